"""The models that NeuSight measured, operator by operator as Hugging Face's eager classes of 2023 run them on a GPU.

A program for `uniference run --values none`: `models.py MODEL MODE SEQUENCE BATCH`, on one rank or, followed by DP, TP
or PP, on several. MODE is `inference` (a forward pass without gradients) or `train` (forward, cross entropy, backward;
no optimizer). Memory is not initialized, so every operator except views and allocations belongs to the part that
NeuSight's events timed; gradients exist already, and are accumulated, as in every step but the first.
"""

import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model."""

    kind: str
    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int
    # Width of a head, if heads * width is not the hidden size.
    width: int = 0


SIZES = {
    "bert_large": Sizes("bert", 24, 1024, 16, 4096, 30522),
    "gpt2_large": Sizes("gpt2", 36, 1280, 20, 5120, 50257),
    "opt_13": Sizes("opt", 24, 2048, 32, 8192, 50272),
    # 24 heads of width 128, as in table 2.1 of "Language Models are Few-Shot Learners" (2020), which gives a hidden
    # size of 3072.
    "gpt3_xl": Sizes("gpt2", 24, 3072, 24, 12288, 50257),
    "gpt3_27": Sizes("gpt2", 32, 2560, 32, 10240, 50257),
    # T5's 3B model with four experts in every second feed-forward layer.
    "switchxl4": Sizes("switch", 24, 1024, 32, 16384, 32128, 128),
}
EXPERTS, CAPACITY = 4, 64


class Linear(nn.Linear):
    """A linear layer with uninitialized memory."""

    def reset_parameters(self) -> None:
        """Runs no operator."""


class LayerNorm(nn.LayerNorm):
    """A layer normalization with uninitialized memory."""

    def reset_parameters(self) -> None:
        """Runs no operator."""


class Embedding(nn.Embedding):
    """An embedding with uninitialized memory."""

    def reset_parameters(self) -> None:
        """Runs no operator."""


class Conv1D(nn.Module):
    """GPT-2's linear layer: its weight is `in x out`."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], self.weight.shape[1])
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(shape)


class Dropout(nn.Module):
    """Dropout by CUDA's fused operator; the CPU has several operators for it."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return torch.native_dropout(x, 0.1, True)[0]


def heads(x: Tensor, count: int) -> Tensor:
    """From (batch, sequence, hidden) to (batch, head, sequence, width)."""
    return x.view(*x.shape[:2], count, -1).permute(0, 2, 1, 3)


def merged(x: Tensor) -> Tensor:
    """From (batch, head, sequence, width) to (batch, sequence, hidden)."""
    x = x.permute(0, 2, 1, 3).contiguous()
    return x.view(*x.shape[:2], -1)


class Sum(torch.autograd.Function):
    """The sum over a tensor-parallel group in the forward pass, a copy in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Copy(torch.autograd.Function):
    """A copy in the forward pass, the sum over a tensor-parallel group in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient)
        return gradient


class Bert(nn.Module):
    """A layer of `BertModel`."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden = sizes.hidden
        self.heads = sizes.heads
        self.query, self.key, self.value, self.output = (Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = Linear(hidden, sizes.feed_forward), Linear(sizes.feed_forward, hidden)
        self.norms = nn.ModuleList([LayerNorm(hidden), LayerNorm(hidden)])
        self.dropout = Dropout()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (heads(part(x), self.heads) for part in (self.query, self.key, self.value))
        scores = torch.matmul(query, key.transpose(-1, -2))
        scores = scores / query.shape[-1] ** 0.5
        scores = scores + mask
        weights = self.dropout(F.softmax(scores, dim=-1))
        context = merged(torch.matmul(weights, value))
        x = self.norms[0](self.dropout(self.output(context)) + x)
        return self.norms[1](self.dropout(self.down(F.gelu(self.up(x)))) + x)


class Gpt2(nn.Module):
    """A layer of `GPT2Model`; with `parts` ranks, one rank's part of it."""

    def __init__(self, sizes: Sizes, parts: int) -> None:
        super().__init__()
        hidden, self.parts = sizes.hidden, parts
        self.heads = sizes.heads // parts
        self.attention, self.output = Conv1D(hidden, 3 * hidden // parts), Conv1D(hidden // parts, hidden)
        self.up, self.down = Conv1D(hidden, sizes.feed_forward // parts), Conv1D(sizes.feed_forward // parts, hidden)
        self.norms = nn.ModuleList([LayerNorm(hidden), LayerNorm(hidden)])
        self.dropout = Dropout()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        normal = self.norms[0](x)
        normal = Copy.apply(normal) if self.parts > 1 else normal
        query, key, value = self.attention(normal).chunk(3, dim=2)
        query, key, value = (heads(part, self.heads) for part in (query, key, value))
        scores = torch.matmul(query, key.transpose(-1, -2))
        scores = scores / torch.full([], query.shape[-1] ** 0.5)
        lowest = torch.full([], torch.finfo(scores.dtype).min)
        scores = torch.where(mask, scores, lowest)
        weights = self.dropout(F.softmax(scores, dim=-1))
        x = self.dropout(self._sum(self.output(merged(torch.matmul(weights, value))))) + x
        normal = self.norms[1](x)
        normal = Copy.apply(normal) if self.parts > 1 else normal
        return x + self.dropout(self._sum(self.down(gelu(self.up(normal)))))

    def _sum(self, x: Tensor) -> Tensor:
        return Sum.apply(x) if self.parts > 1 else x


def gelu(x: Tensor) -> Tensor:
    """`NewGELUActivation`, in eight operators."""
    cubic: Tensor = 0.044715 * torch.pow(x, 3.0)
    return 0.5 * x * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (x + cubic)))


class Opt(nn.Module):
    """A layer of `OPTModel`."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden = sizes.hidden
        self.heads = sizes.heads
        self.query, self.key, self.value, self.output = (Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = Linear(hidden, sizes.feed_forward), Linear(sizes.feed_forward, hidden)
        self.norms = nn.ModuleList([LayerNorm(hidden), LayerNorm(hidden)])
        self.dropout = Dropout()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, sequence, hidden = x.shape
        normal = self.norms[0](x)
        width = hidden // self.heads
        query = self.query(normal) * width**-0.5
        key, value = (
            heads(self.key(normal), self.heads).contiguous(),
            heads(self.value(normal), self.heads).contiguous(),
        )
        query = heads(query, self.heads).contiguous().view(-1, sequence, width)
        key, value = key.view(-1, sequence, width), value.view(-1, sequence, width)
        scores = torch.bmm(query, key.transpose(1, 2)).view(batch, self.heads, sequence, sequence) + mask
        scores = torch.max(scores, torch.full([], torch.finfo(scores.dtype).min))
        weights = F.softmax(scores.view(-1, sequence, sequence), dim=-1)
        context = torch.bmm(self.dropout(weights), value).view(batch, self.heads, sequence, width)
        x = x + self.dropout(self.output(context.transpose(1, 2).reshape(batch, sequence, hidden)))
        rows = x.reshape(-1, hidden)
        changed = self.down(F.relu(self.up(self.norms[1](rows))))
        return (rows + self.dropout(changed)).view(batch, sequence, hidden)


class RootMeanSquare(nn.Module):
    """T5's normalization, in six operators."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


class T5Attention(nn.Module):
    """Attention of Switch Transformers: without bias and without scaling; a position bias is added."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        inner = sizes.heads * sizes.width
        self.heads = sizes.heads
        self.query, self.key, self.value = (Linear(sizes.hidden, inner, bias=False) for _ in range(3))
        self.output = Linear(inner, sizes.hidden, bias=False)
        self.norm = RootMeanSquare(sizes.hidden)
        self.dropout = Dropout()

    def forward(self, x: Tensor, positions: Tensor, source: Tensor | None = None) -> Tensor:
        normal = self.norm(x)
        keys = normal if source is None else source
        query, key, value = (heads(part, self.heads) for part in (self.query(normal), self.key(keys), self.value(keys)))
        scores = torch.matmul(query, key.transpose(3, 2))
        scores += positions
        weights = self.dropout(F.softmax(scores, dim=-1))
        return x + self.dropout(self.output(merged(torch.matmul(weights, value))))


class FeedForward(nn.Module):
    """Two GEMMs without bias."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.up = Linear(sizes.hidden, sizes.feed_forward, bias=False)
        self.down = Linear(sizes.feed_forward, sizes.hidden, bias=False)
        self.dropout = Dropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(F.relu(self.up(x))))


class Experts(nn.Module):
    """NeuSight's own MoE layer: each expert computes `batch * capacity` rows, all of which come from one expert's
    tokens.

    All tokens of its input are equal, so all choose the same expert, which processes as many as its capacity allows.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.router = Linear(sizes.hidden, EXPERTS, bias=False)
        self.experts = nn.ModuleList([FeedForward(sizes) for _ in range(EXPERTS)])

    def forward(self, x: Tensor) -> Tensor:
        probabilities = F.softmax(self.router(x), dim=-1)
        chosen = F.one_hot(torch.argmax(probabilities, dim=-1), EXPERTS)
        chosen = chosen * (torch.cumsum(chosen, dim=-2) <= CAPACITY)
        best = torch.max(probabilities, dim=-1).values.unsqueeze(-1)
        result, rows = x.clone().view(-1, x.shape[-1]), x.shape[0] * CAPACITY
        padded = torch.zeros(rows, x.shape[-1])
        places = torch.empty(rows, dtype=torch.int64)
        for expert in self.experts:
            padded[:rows] = x.view(-1, x.shape[-1])[places]
            padded = expert(padded)
            result[places] = padded
        return best * result.view(x.shape)


class Switch(nn.Module):
    """A layer of `SwitchTransformersStack`; with a source, of the decoder."""

    def __init__(self, sizes: Sizes, sparse: bool, decodes: bool) -> None:
        super().__init__()
        self.itself = T5Attention(sizes)
        self.across = T5Attention(sizes) if decodes else None
        self.norm = RootMeanSquare(sizes.hidden)
        self.feed_forward = Experts(sizes) if sparse else FeedForward(sizes)
        self.dropout = Dropout()

    def forward(self, x: Tensor, positions: Tensor, source: Tensor | None, across: Tensor | None) -> Tensor:
        x = self.itself(x, positions)
        if self.across is not None and across is not None:
            x = self.across(x, across, source)
        return x + self.dropout(self.feed_forward(self.norm(x)))


class Model(nn.Module):
    """A stack of layers between embeddings and a head; `stage` of `stages` has its share of them."""

    def __init__(self, sizes: Sizes, trains: bool, parts: int = 1, stage: int = 0, stages: int = 1) -> None:
        super().__init__()
        self.sizes, self.trains = sizes, trains
        self.first, self.last = stage == 0, stage == stages - 1
        hidden, own = sizes.hidden, sizes.layers // stages
        self.words, self.places = Embedding(sizes.vocabulary, hidden), Embedding(2048, hidden)
        self.dropout = Dropout()
        self.norm: nn.Module = LayerNorm(hidden)
        self.head = Linear(hidden, sizes.vocabulary, bias=sizes.kind == "bert")
        if sizes.kind == "bert":
            self.types = Embedding(2, hidden)
            self.layers = nn.ModuleList([Bert(sizes) for _ in range(own)])
            self.pooler, self.classes = Linear(hidden, hidden), Linear(hidden, 2)
            self.before, self.before_norm = Linear(hidden, hidden), LayerNorm(hidden)
        elif sizes.kind == "gpt2":
            self.layers = nn.ModuleList([Gpt2(sizes, parts) for _ in range(own)])
        elif sizes.kind == "opt":
            self.layers = nn.ModuleList([Opt(sizes) for _ in range(own)])
        else:
            self.layers = nn.ModuleList([Switch(sizes, layer % 2 == 1, False) for layer in range(own)])
            self.decoder = nn.ModuleList([Switch(sizes, layer % 2 == 1, True) for layer in range(own)])
            self.norm, self.decoder_norm = RootMeanSquare(hidden), RootMeanSquare(hidden)
            self.relative = nn.ModuleList([Embedding(32, sizes.heads), Embedding(32, sizes.heads)])
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return {"bert": self._bert, "gpt2": self._gpt2, "opt": self._opt, "switch": self._switch}[self.sizes.kind](x)

    def _bert(self, tokens: Tensor) -> Tensor:
        sequence = tokens.shape[1]
        mask = (1.0 - torch.ones(tokens.shape[0], 1, 1, sequence)) * torch.finfo(torch.float32).min
        x = self.words(tokens) + self.types(torch.zeros_like(tokens))
        x = x + self.places(torch.arange(sequence).expand(1, -1))
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x, mask)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        if not self.trains:
            return self.classes(self.dropout(pooled))
        self.classes(pooled)
        return self.head(self.before_norm(F.gelu(self.before(x))))

    def _gpt2(self, x: Tensor) -> Tensor:
        mask = torch.empty(1, 1, 2048, 2048, dtype=torch.bool)[:, :, : x.shape[1], : x.shape[1]]
        if self.first:
            x = self.dropout(self.words(x) + self.places(torch.arange(x.shape[1]).unsqueeze(0)))
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x)) if self.last else x

    def _opt(self, tokens: Tensor) -> Tensor:
        batch, sequence = tokens.shape
        seen = torch.ones(batch, sequence)
        positions = (torch.cumsum(seen, dim=1) * seen).long() - 1
        mask = causal(sequence)[None, None].expand(batch, 1, sequence, sequence)
        mask = mask + (1.0 - seen[:, None, None, :].expand(batch, 1, sequence, sequence))
        x = self.words(tokens) + self.places(positions + 2)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))

    def _switch(self, tokens: Tensor) -> Tensor:
        sequence, batch = tokens.shape[1], tokens.shape[0]
        steps = torch.arange(sequence)
        distance = (steps[None, :] - steps[:, None]).clamp(-31, 31).abs()
        bias, masked = (table(distance).permute(2, 0, 1).unsqueeze(0) for table in self.relative)
        seen = torch.ones(batch, 1, 1, sequence)
        positions, masked = bias + seen, masked + causal(sequence)
        across = torch.zeros(1, self.sizes.heads, sequence, sequence) + seen
        x = self.dropout(self.words(tokens))
        for layer in self.layers:
            x = layer(x, positions, None, None)
        source = self.dropout(self.norm(x))
        x = self.dropout(self.words(tokens))
        for layer in self.decoder:
            x = layer(x, masked, source, across)
        x = self.dropout(self.decoder_norm(x)) * self.sizes.hidden**-0.5
        return self.head(x)


def causal(sequence: int) -> Tensor:
    """The mask that is added to the scores, which hides later keys."""
    mask = torch.full((sequence, sequence), torch.finfo(torch.float32).min)
    return mask.triu(1)


def main(model: str, mode: str, sequence: int, batch: int, parallel: str) -> None:
    """Runs one pass, or one training step."""
    sizes, trains = SIZES[model], mode == "train"
    rank, ranks = 0, 1
    if parallel:
        dist.init_process_group("nccl")
        rank, ranks = dist.get_rank(), dist.get_world_size()
    stages = ranks if parallel == "PP" else 1
    own = Model(sizes, trains, ranks if parallel == "TP" else 1, rank if stages > 1 else 0, stages).train(trains)
    tokens = torch.empty(batch // ranks if parallel == "DP" else batch, sequence, dtype=torch.int64)
    if not trains:
        with torch.no_grad():
            own(tokens)
        return
    for parameter in own.parameters():
        parameter.grad = torch.empty_like(parameter)
    given = tokens
    if not own.first:
        given = torch.empty(batch, sequence, sizes.hidden, requires_grad=True)
        dist.recv(given.detach(), rank - 1)
    result = own(given)
    if own.last:
        F.cross_entropy(result.view(-1, result.shape[-1]), tokens.view(-1)).backward()
    else:
        dist.send(result.detach(), rank + 1)
        gradient = torch.empty_like(result)
        dist.recv(gradient, rank + 1)
        result.backward(gradient)
    if not own.first and given.grad is not None:
        dist.send(given.grad, rank - 1)
    if parallel == "DP":
        for parameter in own.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] if len(sys.argv) > 5 else "")
