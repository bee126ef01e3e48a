"""Attention over a sequence sharded over all ranks, with keys and values passing around a ring (Liu et al., 2023).

    torchrun --nproc-per-node 4 attend.py --length 2048 --order zigzag

A rank computes attention over one block of keys and values while it sends the block to the next rank. Results of the
steps are combined by their softmax's denominators, so that no rank ever holds all keys. In causal attention the last
part of a sequence sees most keys; in `zigzag` order each rank has a part from the front and one from the back.
"""

import argparse

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

HEADS, HEAD = 8, 64


@torch.inference_mode()
def main() -> None:
    """Runs attention several times, and prints the difference from the result of one process."""
    parser = argparse.ArgumentParser(description="Ring attention.")
    parser.add_argument("--length", type=int, default=2048, help="tokens of the sequence (default 2048)")
    parser.add_argument("--layers", type=int, default=4, help="how many times to attend (default 4)")
    parser.add_argument("--order", choices=["contiguous", "zigzag"], default="zigzag")
    parser.add_argument("--gather", action="store_true", help="gather all keys and values before, in place of the ring")
    parser.add_argument("--unchecked", action="store_true", help="do not compute the result of one process, too")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if options.length % (2 * ranks):
        raise SystemExit(f"--length must be a multiple of {2 * ranks}")
    torch.manual_seed(0)
    owned = [positions(r, ranks, options.length, options.order) for r in range(ranks)]
    if options.unchecked:
        mine = torch.randn(3, 1, HEADS, options.length // ranks, HEAD)
    else:
        whole = torch.randn(3, 1, HEADS, options.length, HEAD)
        mine = whole[:, :, :, owned[rank]]
    q, k, v = mine.unbind()
    dist.barrier()
    for _ in range(options.layers):
        with record_function("attention"):
            out = gathered(q, k, v, owned) if options.gather else ring(q, k, v, owned)
    if options.unchecked:
        dist.destroy_process_group()
        return
    q, k, v = whole.unbind()
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    worst = (out - expected[:, :, owned[rank]]).abs().max().double()
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    if rank == 0:
        print(f"differs by at most {worst:.1e}: {'equal' if worst < 1e-5 else 'WRONG'}")
    dist.destroy_process_group()


def positions(rank: int, ranks: int, length: int, order: str) -> Tensor:
    """Positions of a rank's tokens, in order."""
    if order == "contiguous":
        return torch.arange(length).view(ranks, -1)[rank]
    halves = torch.arange(length).view(2 * ranks, -1)
    return torch.cat((halves[rank], halves[2 * ranks - 1 - rank]))


def ring(q: Tensor, k: Tensor, v: Tensor, owned: list[Tensor]) -> Tensor:
    """Attention of this rank's tokens over all tokens before each: (1, heads, tokens, head)."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    held, parts = torch.stack((k, v)), []
    for step in range(ranks):
        passing = []
        if step < ranks - 1:
            arriving = torch.empty_like(held)
            passing = [dist.isend(held, (rank + 1) % ranks), dist.irecv(arriving, (rank - 1) % ranks)]
        parts += pieces(q, held[0], held[1], owned[rank], owned[(rank - step) % ranks])
        for work in passing:
            if work is not None:
                work.wait()
        if passing:
            held = arriving
    return added(q, parts)


def gathered(q: Tensor, k: Tensor, v: Tensor, owned: list[Tensor]) -> Tensor:
    """The same attention after an all-gather of keys and values."""
    held = torch.stack((k, v))
    everyone = torch.empty(2 * len(owned), *held.shape[1:])
    dist.all_gather_into_tensor(everyone, held)
    rank = dist.get_rank()
    parts = [
        pieces(q, keys, values, owned[rank], of) for (keys, values), of in zip(everyone.split(2), owned, strict=True)
    ]
    return added(q, [part for of_rank in parts for part in of_rank])


Piece = tuple[slice, Tensor, Tensor]
"""A range of queries, their results over some keys, and the logarithms of their denominators."""


def pieces(q: Tensor, k: Tensor, v: Tensor, mine: Tensor, theirs: Tensor) -> list[Piece]:
    """Attention between ranges of tokens: each half of the queries over each half of the keys that it may see."""
    half = len(mine) // 2
    halves = (slice(0, half), slice(half, 2 * half))
    found: list[Piece] = []
    for queries in halves:
        for keys in halves:
            first, last = int(mine[queries][0]), int(theirs[keys][-1])
            same = first == int(theirs[keys][0])
            if same or last < first:
                out, denominators = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                    q[:, :, queries], k[:, :, keys], v[:, :, keys], 0.0, same
                )
                found.append((queries, out, denominators))
    return found


def added(q: Tensor, found: list[Piece]) -> Tensor:
    """The sum of each query's pieces, weighted by their denominators."""
    total = torch.full(q.shape[:3], -torch.inf)
    for queries, _, denominators in found:
        total[:, :, queries] = torch.logaddexp(total[:, :, queries], denominators)
    out = torch.zeros_like(q)
    for queries, part, denominators in found:
        out[:, :, queries] += part * (denominators - total[:, :, queries]).exp().unsqueeze(-1)
    return out


if __name__ == "__main__":
    main()
