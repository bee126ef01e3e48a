"""A decoder-only transformer of Llama 3's shapes, sharded over `tp` ranks by tensor parallelism and over `pp` stages:
prefill, then decode.

large_model.py 70b TP PP LAYERS STEPS
"""

import resource
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

SHAPES = {"70b": (8192, 64, 8, 28672, 128256), "405b": (16384, 128, 8, 53248, 128256)}
WIDTH, HEADS, KV_HEADS, HIDDEN, VOCABULARY = SHAPES[sys.argv[1]]
TP, PP, LAYERS, STEPS = map(int, sys.argv[2:])
HEAD = WIDTH // HEADS
PROMPT = 2048


def cut(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Block(nn.Module):
    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.before_attention, self.before_feed_forward = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query = cut(WIDTH, WIDTH // TP)
        self.key, self.value = cut(WIDTH, KV_HEADS // TP * HEAD), cut(WIDTH, KV_HEADS // TP * HEAD)
        self.output = cut(WIDTH // TP, WIDTH)
        self.gate, self.up, self.down = cut(WIDTH, HIDDEN // TP), cut(WIDTH, HIDDEN // TP), cut(HIDDEN // TP, WIDTH)
        self.keys, self.values = (torch.zeros(1, KV_HEADS // TP, PROMPT + STEPS, HEAD) for _ in range(2))

    def forward(self, x: Tensor, start: int) -> Tensor:
        end = start + x.shape[1]
        normed = self.before_attention(x)
        query, key, value = (
            cut(normed).unflatten(-1, (-1, HEAD)).transpose(1, 2) for cut in (self.query, self.key, self.value)
        )
        self.keys[:, :, start:end], self.values[:, :, start:end] = key, value
        attended = F.scaled_dot_product_attention(
            query, self.keys[:, :, :end], self.values[:, :, :end], is_causal=start == 0, enable_gqa=True
        )
        x = x + self.summed(self.output(attended.transpose(1, 2).flatten(2)))
        normed = self.before_feed_forward(x)
        return x + self.summed(self.down(F.silu(self.gate(normed)) * self.up(normed)))

    def summed(self, part: Tensor) -> Tensor:
        dist.all_reduce(part, group=self.group)
        return part


dist.init_process_group("gloo")
rank = dist.get_rank()
stage = rank // TP
groups = [dist.new_group(range(at * TP, (at + 1) * TP)) for at in range(PP)]
torch.set_default_dtype(torch.bfloat16)
blocks = nn.ModuleList(Block(groups[stage]) for _ in range(LAYERS // PP))
embedding, head = nn.Embedding(VOCABULARY, WIDTH), cut(WIDTH, VOCABULARY // TP)


@torch.no_grad()
def step(ids: Tensor, start: int) -> Tensor:
    x = embedding(ids)
    if stage > 0:
        dist.recv(x, rank - TP)
    for block in blocks:
        x = block(x, start)
    if stage < PP - 1:
        dist.send(x, rank + TP)
    logits = head(x[:, -1])
    parts = [torch.empty_like(logits) for _ in range(TP)]
    dist.all_gather(parts, logits, group=groups[stage])
    return torch.cat(parts, -1).argmax(-1, keepdim=True)


ids = step(torch.zeros(1, PROMPT, dtype=torch.long), 0)
for at in range(STEPS):
    ids = step(ids, PROMPT + at)
weights = sum(p.nbytes for module in (blocks, embedding, head) for p in module.parameters())
print(f"weights {weights} token {ids.item()} resident {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")
