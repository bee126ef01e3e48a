"""Owns child processes of a rank: they may do anything except communicate with others, which would not be simulated.

Torch loads this module through the entry point `torch.backends`, in every process that imports torch; outside of a
rank's children it does nothing. The C library simulates their clocks (`crates/interpose`). A Python interpreter that
the rank starts has the rank's GPUs, and its operators are captured like the rank's. `refusals` has the restrictions of
the rank itself.
"""

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from uniference._native import Channel
from uniference.patches import names
from uniference.program import ranges
from uniference.rank import capture

# Process id of the rank's process, in its environment and its children's.
_RANK_PROCESS = "UNIFERENCE_RANK_PROCESS"

# Data that a child needs to capture its operators, in JSON.
_DEVICE = "UNIFERENCE_RANK_DEVICE"


def mark_rank() -> None:
    """Marks this process as a rank: processes that it starts are its children."""
    os.environ[_RANK_PROCESS] = str(os.getpid())


def hand_on(channel: Channel, device: str, own: int, gpus: Sequence[Mapping[str, Any]], lends: bool) -> None:
    """Passes the rank's device, and the GPUs that it sees, to its children. `own` is the rank's own GPU.

    With `lends` these are the GPUs of all ranks, and a child belongs to the rank whose GPU it uses.
    """
    if gpus or channel.captures:
        library = capture.library()
        tick = library and library.nanoseconds_a_tick
        arena = f"/proc/{os.getpid()}/fd/{channel.arena_descriptor}" if lends else None
        handed = {"device": device, "own": own, "gpus": list(gpus), "tick": tick, "arena": arena}
        os.environ[_DEVICE] = json.dumps(handed)
    if lends:
        channel.lend()


def load() -> None:
    """Sets up this process if it is a child of a rank: it does not communicate, and may use the rank's GPUs."""
    if os.environ.get(_RANK_PROCESS, str(os.getpid())) == str(os.getpid()):
        return
    handed = json.loads(os.environ[_DEVICE]) if _DEVICE in os.environ else {}
    if not handed.get("arena"):
        for name in names.INIT_PROCESS_GROUP:
            name.wrap(_only_alone)
    channel = Channel.of_child() if handed else None
    if channel is not None:
        _install(channel, **handed)


def _install(
    channel: Channel, device: str, own: int, gpus: Sequence[Mapping[str, Any]], tick: float | None, arena: str | None
) -> None:
    """Installs the rank's GPUs and captures operators, as far as the run uses them. The memory limit of CPU devices is
    not enforced in children."""
    if not (gpus or channel.captures):
        return
    # Imported later, because this function runs while torch is being imported, and these modules need all of torch.
    from uniference.rank import gpus as simulated
    from uniference.rank import imports, values

    channel.enter()
    try:
        if arena is not None:
            channel.borrow(arena)
        capture.load_in_child(tick)
        capture.install(channel, values.limit(), device, None)
        imports.install(channel)
        ranges.watch(channel)
        if gpus:
            simulated.install(channel, own, gpus)
        capture.count_python_calls(channel)
    finally:
        channel.leave()


def _only_alone(init_process_group: Callable[..., Any]) -> Callable[..., Any]:
    """Allows a group of one member, which sends nothing, with torch's own backend."""
    parameters = inspect.signature(init_process_group)

    def init(*args: Any, **kwargs: Any) -> Any:
        asked = parameters.bind(*args, **kwargs).arguments
        size = asked.get("world_size", -1)
        if size == -1 and asked.get("store") is None:
            size = int(os.environ.get("WORLD_SIZE", "-1"))
        if size == 1:
            return init_process_group(*args, **kwargs)
        raise RuntimeError(
            "a child process of a rank cannot communicate\n"
            "hint: start all ranks with `uniference run --ranks N`; if the program calls torch.multiprocessing.spawn, "
            "N must be the number of processes that it spawns"
        )

    return init
