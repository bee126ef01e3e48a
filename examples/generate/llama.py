"""A Llama in plain torch, and its sharding: matrices over a tensor-parallel group, layers over pipeline stages.

Modules are named like the tensors of GGUF, so that a checkpoint's tensor goes to the parameter of the same name. Rotary
embeddings rotate neighbouring pairs, the order in which GGUF stores the rows of Llama's query and key projections.

The newest tokens of several texts are one batch without padding, one text after the other: every token is a row of the
GEMMs, and only attention processes the texts one by one (selective batching: Yu et al., Orca, OSDI 2022).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from checkpoint import Checkpoint

TIED = "output.weight"
"""Name of a tensor that the checkpoint lacks: SmolLM2 reuses the embedding's weights."""


@dataclass(frozen=True)
class Config:
    """The shape of a model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    rope_base: float
    norm_epsilon: float

    @classmethod
    def of(cls, metadata: dict[str, Any]) -> "Config":
        """Reads the shape from a GGUF file's metadata."""
        if metadata["general.architecture"] != "llama":
            raise ValueError(f"not a Llama but a {metadata['general.architecture']}")
        return cls(
            layers=metadata["llama.block_count"],
            hidden=metadata["llama.embedding_length"],
            heads=metadata["llama.attention.head_count"],
            kv_heads=metadata["llama.attention.head_count_kv"],
            ffn=metadata["llama.feed_forward_length"],
            vocabulary=metadata["llama.vocab_size"],
            rope_base=metadata["llama.rope.freq_base"],
            norm_epsilon=metadata["llama.attention.layer_norm_rms_epsilon"],
        )

    @property
    def head(self) -> int:
        """Elements of one attention head."""
        return self.hidden // self.heads


SHAPES = {
    "tiny": Config(2, 64, 4, 4, 128, 256, 10000.0, 1e-5),
    "smollm2-135m": Config(30, 576, 9, 3, 1536, 49152, 100000.0, 1e-5),
    "smollm2-1.7b": Config(24, 2048, 32, 32, 8192, 49152, 130000.0, 1e-5),
    "llama-3.2-1b": Config(16, 2048, 32, 8, 8192, 128256, 500000.0, 1e-5),
}
"""Published shapes (`config.json` of HuggingFaceTB/SmolLM2-* and meta-llama/Llama-3.2-1B), and one for tests."""


class Seen:
    """KV cache of one block for one text: (heads, tokens, head), with this rank's heads."""

    keys: Tensor
    values: Tensor

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Appends keys and values of the newest tokens."""
        first = not hasattr(self, "keys")
        self.keys = keys if first else torch.cat((self.keys, keys), dim=1)
        self.values = values if first else torch.cat((self.values, values), dim=1)


class Memory:
    """KV cache of a model, or of one stage of it, for one text: keys and values of each block."""

    def __init__(self, blocks: int) -> None:
        self.tokens = 0
        self.blocks = [Seen() for _ in range(blocks)]

    def forget(self, tokens: int) -> None:
        """Removes the newest tokens, which were wrong guesses."""
        self.tokens -= tokens
        for seen in self.blocks:
            seen.keys, seen.values = seen.keys[:, : self.tokens], seen.values[:, : self.tokens]


class Block(nn.Module):
    """Attention and feed-forward, each with its norm and residual."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, head = config.hidden, config.head
        self.head = head
        self.attn_norm = nn.RMSNorm(hidden, config.norm_epsilon)
        self.attn_q = nn.Linear(hidden, config.heads * head, bias=False)
        self.attn_k = nn.Linear(hidden, config.kv_heads * head, bias=False)
        self.attn_v = nn.Linear(hidden, config.kv_heads * head, bias=False)
        self.attn_output = nn.Linear(config.heads * head, hidden, bias=False)
        self.ffn_norm = nn.RMSNorm(hidden, config.norm_epsilon)
        self.ffn_gate = nn.Linear(hidden, config.ffn, bias=False)
        self.ffn_up = nn.Linear(hidden, config.ffn, bias=False)
        self.ffn_down = nn.Linear(config.ffn, hidden, bias=False)

    def forward(self, x: Tensor, rotation: Tensor, seen: Sequence[Seen], counts: Sequence[int]) -> Tensor:
        """`x`: (tokens, hidden), with `counts` tokens of each text; `rotation`: (tokens, head / 2), complex."""
        x = x + self.attention(self.attn_norm(x), rotation, seen, counts)
        normed = self.ffn_norm(x)
        out: Tensor = self.ffn_down(F.silu(self.ffn_gate(normed)) * self.ffn_up(normed))
        return x + out

    def attention(self, x: Tensor, rotation: Tensor, seen: Sequence[Seen], counts: Sequence[int]) -> Tensor:
        """Grouped-query attention of each text's newest tokens over all its tokens so far."""
        q, k, v = (self.split(project(x)) for project in (self.attn_q, self.attn_k, self.attn_v))
        q, k = rotate(q, rotation), rotate(k, rotation)
        parts = zip(seen, *(part.split(list(counts), dim=1) for part in (q, k, v)), strict=True)
        out = torch.cat([attend(*part) for part in parts], dim=1)
        projected: Tensor = self.attn_output(out.transpose(0, 1).flatten(1))
        return projected

    def split(self, x: Tensor) -> Tensor:
        """(tokens, heads * head) as (heads, tokens, head), with this rank's heads."""
        return x.view(len(x), -1, self.head).transpose(0, 1)


def attend(seen: Seen, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one text, whose newest tokens have these queries, keys and values: (heads, tokens, head)."""
    seen.append(k, v)
    newest, tokens = q.shape[1], seen.keys.shape[1]
    if newest in (1, tokens):
        # A single token sees all earlier ones; several tokens without earlier ones are a whole prompt.
        return F.scaled_dot_product_attention(q, seen.keys, seen.values, is_causal=newest > 1, enable_gqa=True)
    visible = torch.ones(newest, tokens, dtype=torch.bool).tril(tokens - newest)
    return F.scaled_dot_product_attention(q, seen.keys, seen.values, attn_mask=visible, enable_gqa=True)


class Llama(nn.Module):
    """From the newest token ids to the logits after the last token of each text; or one stage with some of the layers.

    A stage other than the first receives the output of the stage before, (tokens, hidden), in place of ids, and a stage
    other than the last returns such an output.
    """

    def __init__(self, config: Config, layers: range | None = None) -> None:
        super().__init__()
        self.config = config
        self.layers = layers if layers is not None else range(config.layers)
        if self.first:
            self.token_embd = nn.Embedding(config.vocabulary, config.hidden)
        self.blk = nn.ModuleDict({str(layer): Block(config) for layer in self.layers})
        if self.last:
            self.output_norm = nn.RMSNorm(config.hidden, config.norm_epsilon)
            self.output = nn.Linear(config.hidden, config.vocabulary, bias=False)

    @property
    def first(self) -> bool:
        """Whether this stage reads token ids."""
        return self.layers.start == 0

    @property
    def last(self) -> bool:
        """Whether this stage returns logits."""
        return self.layers.stop == self.config.layers

    def remember(self) -> Memory:
        """An empty memory for one text."""
        return Memory(len(self.blk))

    def forward(
        self, x: Tensor, memories: Sequence[Memory], counts: Sequence[int] | None = None, every: bool = False
    ) -> Tensor:
        """`x`: ids (tokens,), or (tokens, hidden), with `counts` tokens per text: a prompt, or tokens after it.

        Without `counts` all texts have equally many. Returns (texts, vocabulary / ranks), this rank's slice of the
        logits, of the last token of each text or of `every` token, or (tokens, hidden).
        """
        counts = counts if counts is not None else [len(x) // len(memories)] * len(memories)
        rotation = self.rotation(memories, counts)
        if self.first:
            x = self.token_embd(x)
        for index, block in enumerate(self.blk.values()):
            x = block(x, rotation, [memory.blocks[index] for memory in memories], counts)
        for memory, count in zip(memories, counts, strict=True):
            memory.tokens += count
        if not self.last:
            return x
        if not every:
            x = x[torch.tensor(counts).cumsum(0) - 1]
        logits: Tensor = self.output(self.output_norm(x))
        return logits

    def rotation(self, memories: Sequence[Memory], counts: Sequence[int]) -> Tensor:
        """Rotation of each token's pairs: (tokens, head / 2), complex."""
        ranges = [torch.arange(m.tokens, m.tokens + n) for m, n in zip(memories, counts, strict=True)]
        pair = torch.arange(0, self.config.head, 2, dtype=torch.float32)
        angle = torch.outer(torch.cat(ranges).float(), self.config.rope_base ** (-pair / self.config.head))
        return torch.polar(torch.ones_like(angle), angle)


def most_likely(logits: Tensor, group: dist.ProcessGroup | None = None) -> list[int]:
    """The most likely token of each text, from the whole vocabulary, of which each rank has an equal slice."""
    ranks = dist.get_world_size(group)
    values, indices = logits.max(dim=-1)
    # Exact, because float64 holds every float32, and integers up to 2^53.
    mine = torch.stack((values.double(), indices.double() + dist.get_rank(group) * logits.shape[-1]))
    everyone = torch.empty(ranks * 2, len(logits), dtype=torch.float64)
    dist.all_gather_into_tensor(everyone, mine, group=group)
    values, indices = everyone.view(ranks, 2, -1).unbind(1)
    tokens: list[int] = indices.gather(0, values.argmax(0, keepdim=True))[0].long().tolist()
    return tokens


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotary position embedding of (heads, tokens, head)."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation).flatten(-2).type_as(x)


def plan(layers: range, whole_attention: bool) -> dict[str, ParallelStyle]:
    """Megatron-LM's sharding (arXiv:1909.08053): two all-reduces per layer, the vocabulary sharded at both ends.

    With whole attention every rank computes all heads, and there is one all-reduce per layer.
    """
    block: dict[str, ParallelStyle] = {
        "ffn_gate": ColwiseParallel(),
        "ffn_up": ColwiseParallel(),
        "ffn_down": RowwiseParallel(),
    }
    if not whole_attention:
        block |= {name: ColwiseParallel() for name in ("attn_q", "attn_k", "attn_v")}
        block["attn_output"] = RowwiseParallel()
    return {f"blk.{layer}.{name}": style for layer in layers for name, style in block.items()}


def cut(model: Llama, mesh: DeviceMesh | None, whole_attention: bool = False) -> Llama:
    """Reduces each rank of the mesh to its slice of each matrix, without communication: all have the same model."""
    if mesh is None or mesh.size() == 1:
        return model
    if model.config.kv_heads % mesh.size() and not whole_attention:
        raise ValueError(f"{mesh.size()} ranks do not divide {model.config.kv_heads} key/value heads")
    styles = plan(model.layers, whole_attention)
    if model.first:
        styles["token_embd"] = RowwiseParallel(input_layouts=Replicate())
    if model.last:
        styles["output"] = ColwiseParallel()
    parallelize_module(model, mesh, styles, src_data_rank=None)
    return model


def load(
    checkpoint: Checkpoint,
    mesh: DeviceMesh | None = None,
    layers: range | None = None,
    whole_attention: bool = False,
) -> Llama:
    """This rank's part of the model: its slice of each matrix, over `mesh`, of `layers`. A rank never holds, or
    dequantizes, more than its part. Without `mesh` matrices are whole, without `layers` the rank has all of them. If
    the number of ranks does not divide the heads, set `whole_attention`."""
    with torch.device("meta"):
        model = cut(Llama(Config.of(checkpoint.metadata), layers), mesh, whole_attention)
    state = {name: local(checkpoint, name, parameter) for name, parameter in model.named_parameters() if name != TIED}
    if model.last:
        # A last stage that is not the first has a copy of the embedding's weights.
        embedding = state.get("token_embd.weight")
        state[TIED] = local(checkpoint, "token_embd.weight", model.output.weight) if embedding is None else embedding
    model.load_state_dict(state, assign=True)
    return model.eval()


def random(config: Config, mesh: DeviceMesh | None = None, layers: range | None = None) -> Llama:
    """A model in bfloat16 with weights from torch's seed, for sizes without a checkpoint.

    Every rank draws the whole model. If the model does not fit this machine, use `uniference run --values none`.
    """
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return cut(Llama(config, layers), mesh).eval()
    finally:
        torch.set_default_dtype(usual)


def local(checkpoint: Checkpoint, name: str, parameter: Tensor) -> Tensor:
    """This rank's slice of a checkpoint's tensor, placed as `parameter` is."""
    if not isinstance(parameter, DTensor):
        return checkpoint.shard(name, None, 0, 1)
    mesh, (placement,) = parameter.device_mesh, parameter.placements
    dim = placement.dim if isinstance(placement, Shard) else None
    shard = checkpoint.shard(name, dim, mesh.get_local_rank(), mesh.size())
    return DTensor.from_local(shard, mesh, [placement], run_check=False)
