"""A Llama of a few layers in plain PyTorch, replicated: one step of the job that `uniference workload llama` generates,
without the optimizer.

llama.py train|prefill
"""

import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

LAYERS, HIDDEN, HEADS, FFN, VOCABULARY, TOKENS = 4, 4096, 32, 14336, 32000, 2048


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Norm(nn.Module):
    """A norm of single operators, as in the generated job: torch's own module is one kernel on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = Norm(), Norm()
        self.q, self.k, self.v, self.o = (linear(HIDDEN, HIDDEN) for _ in range(4))
        self.gate, self.up, self.down = linear(HIDDEN, FFN), linear(HIDDEN, FFN), linear(FFN, HIDDEN)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        y = self.attention_norm(x)
        q, k, v = (m(y).view(1, TOKENS, HEADS, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).reshape(1, TOKENS, HIDDEN))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, HIDDEN), linear(HIDDEN, VOCABULARY)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()

    def forward(self, tokens: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, last: int) -> torch.Tensor:
        """The logits of the `last` tokens."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return self.head(self.norm(x)[:, -last:])


dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = Llama()
    tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    cosine, sine = torch.ones(TOKENS, HIDDEN // HEADS), torch.zeros(TOKENS, HIDDEN // HEADS)
parameters = list(model.parameters())
gradients = torch.empty(sum(p.numel() for p in parameters), device="cuda")


def train() -> None:
    F.cross_entropy(model(tokens, cosine, sine, TOKENS).flatten(0, 1), tokens.flatten()).backward()
    for parameter in parameters:
        parameter.grad = None
    if dist.get_world_size() > 1:
        dist.all_reduce(gradients)


@torch.no_grad()
def prefill() -> None:
    model(tokens, cosine, sine, 1)


step = {"train": train, "prefill": prefill}[sys.argv[1]]
step()
torch.cuda.synchronize()
began = time.perf_counter()
step()
torch.cuda.synchronize()
if dist.get_rank() == 0:
    print(f"step {1e3 * (time.perf_counter() - began):.3f} ms")
