"""Owns a rank's entries in the stores on behalf of absent ranks, in the replica check of a folded run (`uniference run
--fold auto`).

The ranks that run are chosen before they start; the driver supplies absent ranks' contributions to collectives.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist

from uniference.patches import names

RUNNING = "UNIFERENCE_RUNNING"
"""Environment variable with the numbers of the ranks that run, separated by commas, if some are absent."""

# Size of NCCL's communicator identifier, which the communicator's first rank puts into the store.
_IDENTIFIER_BYTES = 128
# The bytes of the identifier by which the simulated GPU library knows it (`crates/phantom/src/nccl.rs`).
_NAME = slice(8, 20)

# World ranks of NCCL process groups, by group name.
_groups: dict[str, list[int]] = {}


def is_on() -> bool:
    """Whether some ranks are absent."""
    return RUNNING in os.environ


def workers(count: int) -> int:
    """Number of running ranks among `count` workers of a store."""
    return len(_running()) if is_on() and count == int(os.environ["WORLD_SIZE"]) else count


def _running() -> list[int]:
    return [int(rank) for rank in os.environ[RUNNING].split(",")]


def install() -> None:
    """Records the members of process groups before their communicators are created."""
    if not is_on():
        return
    # With more ranks per communicator than this, NCCL would have several roots, which all ranks query, and some of the
    # roots do not run.
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
    """Tells the simulated GPU library, if it is loaded, the members of the communicator that is created inside the
    context; NCCL itself would query all ranks."""
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
    """Keys and values that the members of a communicator will exchange in the store, if `value` is the communicator's
    identifier."""
    if not is_on() or len(value) != _IDENTIFIER_BYTES:
        return []
    named = [ranks for name, ranks in _groups.items() if f"{name}/" in key]
    if not named:
        return []
    name = f"uniference/nccl/{value[_NAME].hex()}.0"
    per_host = int(os.environ["LOCAL_WORLD_SIZE"])
    said = [rank.to_bytes(4, "little") + (rank // per_host).to_bytes(4, "big") for rank in named[-1]]
    return [(f"{name}/{member}".encode(), value) for member, value in enumerate(said)]
