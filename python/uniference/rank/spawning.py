"""Owns programs that start their own ranks with `torch.multiprocessing.spawn`: the ranks of the run are their children.

Such a program is written to be started once. In a run every rank executes it, and if it spawns as many children as the
run has ranks, each rank continues as one of the children. Other processes that a program starts are not handled;
`refusals` restricts them.
"""

import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from uniference._native import Channel
from uniference.patches import names
from uniference.rank.charging import uncharged

# Environment variables that a program sets before it starts its own ranks.
_MEETING_PLACE = ("MASTER_ADDR", "MASTER_PORT")


class _Finished:
    """Return value of `spawn(join=False)`, for a child that has already ended."""

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        return True

    def pids(self) -> list[int]:
        return [os.getpid()]


class _Spawning:
    """The spawn calls of one rank."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._count = 0

    def start_processes(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> Any:
        """Replaces torch's function, with the same arguments."""
        if nprocs != self.channel.world_size:
            return names.START_PROCESSES[0].original(fn, args, nprocs, join, daemon, start_method)
        try:
            fn(self.channel.rank, *self._first_ranks(args))
        except SystemExit as end:
            if end.code:
                raise
        return None if join else _Finished()

    @uncharged
    def _first_ranks(self, args: Sequence[Any]) -> Sequence[Any]:
        """Rank 0's arguments and rendezvous address, because a free port or a folder that every rank picks for itself
        would differ between ranks."""
        key = f"spawn/{self._count}".encode()
        self._count += 1
        place = {name: os.environ[name] for name in _MEETING_PLACE}
        if self.channel.rank == 0:
            self.channel.store_set(key, _pickled((args, place)))
            return args
        told = self.channel.store_get(key, None, "multiprocessing.spawn:0")
        if not told:
            return args
        values, place = pickle.loads(told)
        os.environ.update(place)
        return tuple(values)


def _pickled(value: Any) -> bytes:
    """Pickled bytes; empty if pickling fails: queues and locks can only be passed to real children."""
    try:
        return pickle.dumps(value)
    except Exception:  # the program's own types may raise anything
        return b""


def install(channel: Channel) -> None:
    """Replaces torch's spawn functions."""
    spawning = _Spawning(channel)
    for name in names.START_PROCESSES:
        name.replace(spawning.start_processes)
