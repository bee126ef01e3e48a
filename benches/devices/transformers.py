"""Transformers of several kinds and sizes, in plain PyTorch, that time themselves.

A program of one rank: `transformers.py KIND LAYERS HIDDEN HEADS SEQUENCE BATCH MODE STEPS`. It prints the durations of
the steps, in seconds of the clock that it sees, as a JSON list. MODE is `forward` (without gradients) or `train`
(forward, cross entropy, backward, AdamW). The first steps, in which memory is allocated, are not timed.
"""

import json
import sys
import time

import torch
from torch import Tensor, nn
from torch.autograd import backward
from torch.nn import functional as F

VOCABULARY, WARM = 2048, 3


class Attention(nn.Module):
    """Attention in which `shared` query heads share a KV head; with rotary embedding if `rotary`."""

    def __init__(self, hidden: int, heads: int, shared: int, bias: bool, causal: bool, rotary: bool) -> None:
        super().__init__()
        self.heads, self.few, self.causal, self.rotary = heads, heads // shared, causal, rotary
        self.width = hidden // heads
        self.into = nn.Linear(hidden, (heads + 2 * self.few) * self.width, bias=bias)
        self.out = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, hidden = x.shape
        q, k, v = self.into(x).split([hidden, self.few * self.width, self.few * self.width], dim=-1)
        q = q.view(batch, sequence, self.heads, self.width).transpose(1, 2)
        k = k.view(batch, sequence, self.few, self.width).transpose(1, 2)
        v = v.view(batch, sequence, self.few, self.width).transpose(1, 2)
        if self.rotary:
            q, k = rotated(q), rotated(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=self.few != self.heads)
        result: Tensor = self.out(y.transpose(1, 2).reshape(batch, sequence, hidden))
        return result


def rotated(x: Tensor) -> Tensor:
    """Rotary positional embedding, with the halves of a head's width as the two coordinates."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 1e4 ** (-torch.arange(half) / half)
    sine, cosine = angle.sin(), angle.cos()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


class Gated(nn.Module):
    """An MLP with SwiGLU."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


class Layer(nn.Module):
    """A transformer layer: `gpt` and `llama` normalize before each part, `bert` after it."""

    def __init__(self, kind: str, hidden: int, heads: int) -> None:
        super().__init__()
        self.before = kind != "bert"
        if kind == "llama":
            self.attention = Attention(hidden, heads, 2, bias=False, causal=True, rotary=True)
            self.mlp: nn.Module = Gated(hidden, hidden * 8 // 3)
            self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
        else:
            self.attention = Attention(hidden, heads, 1, bias=True, causal=self.before, rotary=False)
            self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))
            self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for part, norm in zip((self.attention, self.mlp), self.norms, strict=True):
            x = x + part(norm(x)) if self.before else norm(x + part(x))
        return x


class Transformer(nn.Module):
    def __init__(self, kind: str, layers: int, hidden: int, heads: int, sequence: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, hidden)
        self.positions = nn.Parameter(torch.zeros(sequence, hidden)) if kind != "llama" else None
        self.layers = nn.Sequential(*(Layer(kind, hidden, heads) for _ in range(layers)))
        self.head = nn.Linear(hidden, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions
        result: Tensor = self.head(self.layers(x))
        return result


def main() -> None:
    kind, *sizes, mode, steps = sys.argv[1:]
    layers, hidden, heads, sequence, batch = map(int, sizes)
    torch.manual_seed(1)
    model = Transformer(kind, layers, hidden, heads, sequence)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.arange(batch * (sequence + 1)).remainder(VOCABULARY).view(batch, sequence + 1)

    def forward() -> None:
        with torch.no_grad():
            model(tokens[:, :-1])

    def train() -> None:
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    step = {"forward": forward, "train": train}[mode]
    took = []
    for _ in range(WARM + int(steps)):
        began = time.perf_counter()
        step()
        took.append(time.perf_counter() - began)
    print(json.dumps(took[WARM:]))


if __name__ == "__main__":
    main()
