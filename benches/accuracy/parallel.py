"""Owns the programs of `make accuracy`: four ways to distribute a model over ranks, reduced to their compute and
communication.

torchrun --nproc-per-node 2 parallel.py tensor
"""

import argparse
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

LAYERS = 6
MICROBATCHES = 6
# Elements of a layer's activations: 512 KiB.
ACTIVATION = 1 << 17


class Rank:
    """One rank's compute; the slow rank computes everything twice."""

    def __init__(self, slow: bool) -> None:
        self._times = 2 if slow else 1
        self._weight = torch.randn(384, 384) / 20
        self._x = torch.randn(384, 384)

    def compute(self) -> None:
        for _ in range(self._times):
            for _ in range(4):
                self._x = torch.tanh(self._x @ self._weight)


def tensor(rank: Rank) -> None:
    """Tensor parallelism: the partial results of each layer's two halves are summed over all ranks."""
    x = torch.zeros(ACTIVATION)
    for _ in range(2 * LAYERS):
        rank.compute()
        dist.all_reduce(x)


def pipeline(rank: Rank) -> None:
    """Pipeline parallel: each rank has some of the layers; microbatches pass through."""
    me, last = dist.get_rank(), dist.get_world_size() - 1
    x = torch.zeros(ACTIVATION)
    for _ in range(MICROBATCHES):
        if me > 0:
            dist.recv(x, me - 1)
        rank.compute()
        if me < last:
            dist.send(x, me + 1)


def sequence(rank: Rank) -> None:
    """Sequence parallel: each layer's keys and values are gathered before the compute continues."""
    size = dist.get_world_size()
    mine, everything = torch.zeros(ACTIVATION // size), torch.zeros(ACTIVATION)
    for _ in range(LAYERS):
        dist.all_gather_into_tensor(everything, mine)
        rank.compute()
        rank.compute()


def overlap(rank: Rank) -> None:
    """Sequence parallel as a ring: the transfer of the next block overlaps the work on the current one."""
    me, size = dist.get_rank(), dist.get_world_size()
    block, arriving = torch.zeros(ACTIVATION // size), torch.zeros(ACTIVATION // size)
    for _ in range(LAYERS):
        for hop in range(size):
            under_way = [] if hop == size - 1 else _pass_on(block, arriving, me, size)
            rank.compute()
            for work in under_way:
                work.wait()
            block, arriving = arriving, block


def _pass_on(block: Tensor, arriving: Tensor, me: int, size: int) -> list[dist.Work]:
    works = [dist.isend(block, (me + 1) % size), dist.irecv(arriving, (me - 1) % size)]
    return [work for work in works if work is not None]


KINDS: dict[str, Callable[[Rank], None]] = {
    "tensor": tensor,
    "pipeline": pipeline,
    "sequence": sequence,
    "overlap": overlap,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--slow", type=int, help="the rank that computes everything twice")
    words = parser.parse_args()
    dist.init_process_group("gloo")
    rank = Rank(words.slow == dist.get_rank())
    # The first repetition warms up connections, threads and caches.
    for _ in range(3):
        KINDS[words.kind](rank)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
