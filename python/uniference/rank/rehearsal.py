"""Owns what a rank does in the stores for ranks that do not run, where a program is folded (`uniference run --fold auto`).

Which ranks run is decided before they start; what absent ones contribute to collectives is the driver's business.
"""

import os
from typing import Any

from uniference.patches import names

RUNNING = "UNIFERENCE_RUNNING"
"""How many ranks run, where some are absent."""

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
    return int(os.environ[RUNNING]) if is_on() and count == int(os.environ["WORLD_SIZE"]) else count


def install() -> None:
    """Takes note of process groups' members before their communicators are made."""
    if not is_on():
        return
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
        _groups[group_name] = list(global_ranks_in_group) or list(range(group_size))
        return original(group_size, group_rank, global_ranks_in_group, backend, store, group_name, *args, **kwargs)

    names.NEW_GROUP.replace(new_group)


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
