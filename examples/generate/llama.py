"""A Llama in plain torch, and how it is cut over the ranks of a tensor-parallel group.

Modules are named as GGUF names tensors, so that a checkpoint's tensor goes to the parameter of the same name. Rotary
embeddings turn neighbouring pairs, the order in which GGUF stores the rows of Llama's query and key projections.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from checkpoint import Checkpoint

TIED = "output.weight"
"""Not in the checkpoint: SmolLM2 uses the embedding's weights again."""


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
        """From a GGUF file's metadata."""
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


class Seen:
    """One block's keys and values of all tokens so far: (heads, tokens, head), of as many heads as this rank has."""

    def __init__(self) -> None:
        self.tokens = 0
        # An empty tensor of one dimension can be joined to any other.
        self.keys = self.values = torch.empty(0)

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Those of the newest tokens."""
        self.tokens += keys.shape[1]
        self.keys = torch.cat((self.keys, keys), dim=1)
        self.values = torch.cat((self.values, values), dim=1)


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

    def forward(self, x: Tensor, rotation: Tensor, seen: Seen) -> Tensor:
        """`x`: (tokens, hidden), the newest tokens; `rotation`: (tokens, head / 2), complex."""
        x = x + self.attention(self.attn_norm(x), rotation, seen)
        normed = self.ffn_norm(x)
        out: Tensor = self.ffn_down(F.silu(self.ffn_gate(normed)) * self.ffn_up(normed))
        return x + out

    def attention(self, x: Tensor, rotation: Tensor, seen: Seen) -> Tensor:
        """Grouped-query attention of the newest tokens over all tokens so far."""
        q, k, v = (self.split(project(x)) for project in (self.attn_q, self.attn_k, self.attn_v))
        seen.append(rotate(k, rotation), v)
        # Several tokens at once are a whole prompt; a token alone sees everything before it.
        causal = len(x) > 1
        q = rotate(q, rotation)
        out = F.scaled_dot_product_attention(q, seen.keys, seen.values, is_causal=causal, enable_gqa=True)
        projected: Tensor = self.attn_output(out.transpose(0, 1).flatten(1))
        return projected

    def split(self, x: Tensor) -> Tensor:
        """(tokens, heads * head) as (heads, tokens, head): of as many heads as this rank has."""
        return x.view(len(x), -1, self.head).transpose(0, 1)


class Llama(nn.Module):
    """From the newest token ids to the logits that follow the last of them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.token_embd = nn.Embedding(config.vocabulary, config.hidden)
        self.blk = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.output_norm = nn.RMSNorm(config.hidden, config.norm_epsilon)
        self.output = nn.Linear(config.hidden, config.vocabulary, bias=False)

    def remember(self) -> list[Seen]:
        """A memory for one text, still empty."""
        return [Seen() for _ in self.blk]

    def forward(self, ids: Tensor, memory: list[Seen]) -> Tensor:
        """`ids`: (tokens,), all of a prompt or one token after it. Returns this rank's slice: (vocabulary / ranks,)."""
        start = memory[0].tokens
        positions = torch.arange(start, start + len(ids), dtype=torch.float32)
        pair = torch.arange(0, self.config.head, 2, dtype=torch.float32)
        angle = torch.outer(positions, self.config.rope_base ** (-pair / self.config.head))
        rotation = torch.polar(torch.ones_like(angle), angle)
        x = self.token_embd(ids)
        for block, seen in zip(self.blk, memory, strict=True):
            x = block(x, rotation, seen)
        logits: Tensor = self.output(self.output_norm(x[-1]))
        return logits


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotary position embedding of (heads, tokens, head)."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation).flatten(-2)


def plan(config: Config) -> dict[str, ParallelStyle]:
    """Megatron-LM's cut (arXiv:1909.08053): two all-reduces a layer, the vocabulary cut at both ends."""
    block: dict[str, ParallelStyle] = {
        "attn_q": ColwiseParallel(),
        "attn_k": ColwiseParallel(),
        "attn_v": ColwiseParallel(),
        "attn_output": RowwiseParallel(),
        "ffn_gate": ColwiseParallel(),
        "ffn_up": ColwiseParallel(),
        "ffn_down": RowwiseParallel(),
    }
    styles: dict[str, ParallelStyle] = {
        "token_embd": RowwiseParallel(input_layouts=Replicate()),
        "output": ColwiseParallel(),
    }
    return styles | {f"blk.{layer}.{name}": style for layer in range(config.layers) for name, style in block.items()}


def load(checkpoint: Checkpoint, mesh: DeviceMesh) -> Llama:
    """This rank's part of the model. No rank ever holds, or dequantizes, more than that."""
    config = Config.of(checkpoint.metadata)
    if config.kv_heads % mesh.size():
        raise ValueError(f"{mesh.size()} ranks do not divide {config.kv_heads} key/value heads")
    with torch.device("meta"):
        model = Llama(config)
    parallelize_module(model, mesh, plan(config))
    state = {name: local(checkpoint, name, parameter) for name, parameter in model.named_parameters() if name != TIED}
    state[TIED] = state["token_embd.weight"]
    model.load_state_dict(state, assign=True)
    return model.eval()


def local(checkpoint: Checkpoint, name: str, parameter: Tensor) -> Tensor:
    """This rank's slice of a checkpoint's tensor, placed as `parameter` is."""
    if not isinstance(parameter, DTensor):
        return checkpoint.shard(name, None, 0, 1)
    mesh, (placement,) = parameter.device_mesh, parameter.placements
    dim = placement.dim if isinstance(placement, Shard) else None
    shard = checkpoint.shard(name, dim, mesh.get_local_rank(), mesh.size())
    return DTensor.from_local(shard, mesh, [placement], run_check=False)
