"""Owns what a rank does in the stores for ranks that do not run, where a program is folded (`uniference run --fold auto`).

Which ranks run is decided before they start; what absent ones contribute to collectives is the driver's business.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist

from uniference.patches import names

RUNNING = "UNIFERENCE_RUNNING"
"""The numbers of the ranks that run, where some are absent, separated by commas."""

# Of NCCL's identifier of a communicator, which the first of its ranks puts into the store.
_IDENTIFIER_BYTES = 128
# The part of it by which the library of simulated GPUs knows it (`crates/phantom/src/nccl.rs`).
_NAME = slice(8, 20)

# By the name of a process group of NCCL, its ranks of the world.
_groups: dict[str, list[int]] = {}


def is_on() -> bool:
    """Whether ranks are absent."""
    return RUNNING in os.environ


def workers(count: int) -> int:
    """How many of `count` workers come to a store."""
    return len(_running()) if is_on() and count == int(os.environ["WORLD_SIZE"]) else count


def _running() -> list[int]:
    return [int(rank) for rank in os.environ[RUNNING].split(",")]


def install() -> None:
    """Takes note of process groups' members before their communicators are made."""
    if not is_on():
        return
    # Of more ranks than these NCCL would have several roots, which all ranks ask, and some of which do not run.
    os.environ.setdefault("TORCH_NCCL_RANKS_PER_ROOT", os.environ["WORLD_SIZE"])
    original = names.NEW_GROUP.original

    def new_group(
        group_size: int,
        group_rank: int,
        global_ranks_in_group: list[int],
        backend: Any,
        store: Any,
        group_name: str,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        _groups[group_name] = ranks = list(global_ranks_in_group) or list(range(group_size))
        with _split_into(ranks):
            return original(group_size, group_rank, global_ranks_in_group, backend, store, group_name, *args, **kwargs)

    names.NEW_GROUP.replace(new_group)
    split = names.SPLIT_GROUP.current

    def split_group(self: dist.ProcessGroup, ranks: list[int], *args: Any, **kwargs: Any) -> dist.ProcessGroup | None:
        of_world = dist.get_process_group_ranks(self)
        with _split_into([of_world[rank] for rank in ranks]):
            group: dist.ProcessGroup | None = split(self, ranks, *args, **kwargs)
        return group

    names.SPLIT_GROUP.replace(split_group)


@contextlib.contextmanager
def _split_into(ranks: Sequence[int]) -> Iterator[None]:
    """Tells the library of simulated GPUs, if it is there, whom it makes a communicator of meanwhile, where NCCL would ask all."""
    expect = getattr(ctypes.CDLL(None), "uniference_phantom_expect", None)
    if expect is None:
        yield
        return
    running = _running()
    expect.argtypes = [ctypes.c_void_p, ctypes.c_size_t] * 2
    expect((ctypes.c_uint32 * len(ranks))(*ranks), len(ranks), (ctypes.c_uint32 * len(running))(*running), len(running))
    try:
        yield
    finally:
        expect(None, 0, None, 0)


def members(key: str, value: bytes) -> list[tuple[bytes, bytes]]:
    """What the members of a communicator will tell each other in the store, if this is its identifier: keys and values."""
    if not is_on() or len(value) != _IDENTIFIER_BYTES:
        return []
    named = [ranks for name, ranks in _groups.items() if f"{name}/" in key]
    if not named:
        return []
    name = f"uniference/nccl/{value[_NAME].hex()}.0"
    per_host = int(os.environ["LOCAL_WORLD_SIZE"])
    said = [rank.to_bytes(4, "little") + (rank // per_host).to_bytes(4, "big") for rank in named[-1]]
    return [(f"{name}/{member}".encode(), value) for member, value in enumerate(said)]
