"""Runs operators of many shapes, for `uniference profile` to time without a program: estimates for other shapes
interpolate between them.

The shapes are those of dense layers, attention, normalisations, element-wise operators and optimizers, forward and
backward: from shapes that fit into a cache to those of some hundredths of a second on one CPU core.
"""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import backward

WIDTHS = (64, 256, 1024, 4096)
ROWS = (1, 8, 64, 512)
MOST_FLOPS = 4e9
"""Floating-point operations of the largest GEMM."""
CACHED = 1 << 17
"""Number of elements that fit into a core's caches, if nothing else is computed."""
MOST_ELEMENTS = 1 << 23
"""Elements of the largest tensor of an element-wise operator."""


def layers(dtype: torch.dtype, repeat: int) -> None:
    """Dense layers with and without bias: inference, which finds small ones in the caches, then forward and backward,
    with the three GEMM layouts of training."""
    for rows, inputs, outputs in itertools.product(ROWS, WIDTHS, WIDTHS):
        if 2 * rows * inputs * outputs > MOST_FLOPS:
            continue
        layer = nn.Linear(inputs, outputs, bias=rows != 8).to(dtype)
        x = torch.randn(rows, inputs, dtype=dtype, requires_grad=True)
        with torch.no_grad():
            for _ in range(2 * repeat if x.numel() + layer.weight.numel() < CACHED else 0):
                layer(x)
        for _ in range(repeat):
            backward(layer(x).sum())


def batched(dtype: torch.dtype, repeat: int) -> None:
    """Batched GEMMs of small matrices, as in attention without a fused kernel."""
    for batch, rows, width in itertools.product((4, 32), (16, 128, 512), (32, 128)):
        a = torch.randn(batch, rows, width, dtype=dtype)
        for _ in range(repeat):
            torch.bmm(a, a.transpose(1, 2))


def attention(dtype: torch.dtype, repeat: int) -> None:
    """Fused attention of prefill, of training, and of decode."""
    for heads, queries, keys, width in itertools.product((4, 16), (1, 32, 256), (32, 256, 1024), (32, 64, 128)):
        if queries not in (1, keys):
            continue
        shapes = ((1, heads, queries, width), (1, heads, keys, width), (1, heads, keys, width))
        query, key, value = (torch.randn(shape, dtype=dtype, requires_grad=queries > 1) for shape in shapes)
        for _ in range(repeat):
            result = F.scaled_dot_product_attention(query, key, value, is_causal=queries > 1)
            if queries > 1:
                backward(result.sum())


def rowwise(dtype: torch.dtype, repeat: int) -> None:
    """Operators along rows: normalisations, softmax, losses, embeddings."""
    for rows, width in itertools.product((1, 16, 128, 1024), WIDTHS):
        x = torch.randn(rows, width, dtype=dtype, requires_grad=True)
        norms: list[nn.Module] = [nn.LayerNorm(width).to(dtype), nn.RMSNorm(width).to(dtype)]
        table = torch.randn(1000, width, dtype=dtype, requires_grad=True)
        ids = torch.randint(0, 1000, (rows,))
        targets = torch.randint(0, width, (rows,))
        for _ in range(repeat):
            for norm in norms:
                backward(norm(x).sum())
            backward(F.softmax(x, -1).sum())
            backward(F.cross_entropy(x.float(), targets))
            backward(F.embedding(ids, table).sum())
            x.argmax(-1)


def elementwise(dtype: torch.dtype, repeat: int) -> None:
    """Element-wise operators, and operators that move elements."""
    size = 64
    while size <= MOST_ELEMENTS:
        x, y = torch.randn(size, dtype=dtype), torch.randn(size, dtype=dtype)
        halves = torch.randn(2, size // 2, dtype=dtype)
        for _ in range(repeat):
            moved: list[Tensor] = [x + y, x * y, x * 2.0, -x, x.clone(), torch.cat((x, y)), halves.t().contiguous()]
            moved += [
                F.gelu(x),
                F.silu(x),
                F.relu(x),
                torch.tanh(x),
                x.rsqrt(),
                x.pow(2),
                x.sin(),
                x.cos(),
                torch.arange(size, dtype=dtype),
                x.to(torch.float64),
                x.mean(),
            ]
            moved += [torch.zeros_like(x), x > 0, torch.where(x > 0, x, y)]
            x.add_(y, alpha=0.0)
            x.copy_(y)
        size *= 8


def optimizers(dtype: torch.dtype, repeat: int) -> None:
    """Optimizer steps, one parameter after the other, as on CPUs, and fused.

    Each step has several parameters, because in a program a parameter has left the caches before its next step.
    """
    for size, fused in itertools.product((64, 4096, 1 << 15, 1 << 18, 1 << 21), (False, True)):
        parameters = [nn.Parameter(torch.randn(size, dtype=dtype)) for _ in range(max(1, min(16, (1 << 20) // size)))]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer = torch.optim.AdamW(parameters, fused=fused)
        plain = torch.optim.SGD(parameters, momentum=0.9)
        for _ in range(repeat):
            optimizer.step()
            plain.step()


def rotated(x: Tensor) -> Tensor:
    """Rotary positional embedding: the even and the odd elements of a head's width are the two coordinates."""
    frequency = 1e-4 ** (torch.arange(0, x.shape[-1], 2, dtype=x.dtype) / x.shape[-1])
    angle = torch.outer(torch.arange(x.shape[-2], dtype=x.dtype), frequency)
    sine, cosine = angle.sin(), angle.cos()
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1).flatten(-2)


class Block(nn.Module):
    """A transformer layer with pre-normalization (`gated`: as in Llama) or post-normalization (as in BERT)."""

    def __init__(self, width: int, heads: int, gated: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.gated = heads, gated
        norm = nn.RMSNorm if gated else nn.LayerNorm
        self.norms = nn.ModuleList(norm(width, dtype=dtype) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=not gated, dtype=dtype) for _ in range(4))
        self.up = nn.Linear(width, 2 * width, bias=not gated, dtype=dtype)
        self.gate = nn.Linear(width, 2 * width, bias=False, dtype=dtype) if gated else None
        self.down = nn.Linear(2 * width, width, bias=not gated, dtype=dtype)

    def attention(self, x: Tensor) -> Tensor:
        """Attention of all heads."""
        batch, sequence, width = x.shape
        q, k, v = (part(x).view(batch, sequence, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.gated:
            q, k = rotated(q), rotated(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.gated)
        result: Tensor = self.o(y.transpose(1, 2).reshape(batch, sequence, width))
        return result

    def mlp(self, x: Tensor) -> Tensor:
        """The feed-forward part."""
        inner = F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        result: Tensor = self.down(inner)
        return result

    def forward(self, x: Tensor) -> Tensor:
        """Both parts."""
        for part, norm in zip((self.attention, self.mlp), self.norms, strict=True):
            x = x + part(norm(x)) if self.gated else norm(x + part(x))
        return x


def blocks(dtype: torch.dtype, repeat: int) -> None:
    """Small transformers, in which the host's overhead between the short operators dominates.

    The smaller ones leave the host's code and data in the CPU's caches, the larger ones do not.
    """
    for gated, width in itertools.product((False, True), (32, 160)):
        table = nn.Embedding(1024, width, dtype=dtype)
        model = nn.Sequential(*(Block(width, 2, gated, dtype) for _ in range(2)), nn.Linear(width, 1024, dtype=dtype))
        parameters = [*table.parameters(), *model.parameters()]
        steps: list[torch.optim.Optimizer] = [torch.optim.AdamW(parameters), torch.optim.SGD(parameters, momentum=0.9)]
        ids = torch.arange(width).view(2, -1)
        for _ in range(5 * repeat):
            with torch.no_grad():
                model(table(ids))
        for optimizer in steps:
            for _ in range(2 * repeat):
                backward(F.cross_entropy(model(table(ids)).flatten(0, 1), ids.flatten()))
                optimizer.step()
                optimizer.zero_grad()


def main() -> None:
    """Runs all shapes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", nargs="*", default=["float32"])
    parser.add_argument("--repeat", type=int, default=15)
    arguments = parser.parse_args()
    for name in arguments.dtype:
        for part in (layers, batched, attention, rowwise, elementwise, optimizers, blocks):
            part(getattr(torch, name), arguments.repeat)


if __name__ == "__main__":
    main()
