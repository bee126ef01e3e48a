"""Owns what becomes of processes that a rank starts: they may do anything but communicate with others, which would not be simulated.

torch loads this through the entry point `torch.backends`, in every process that imports it; outside of a rank's children it does nothing.
Their clocks are the C library's (`crates/interpose`). An interpreter that the rank starts has the rank's GPUs, and its operators are
captured as the rank's are. What a rank itself must not do is `refusals`' business.
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

# Names the process that is the rank, in its environment and so in its children's.
_RANK_PROCESS = "UNIFERENCE_RANK_PROCESS"

# What a child that captures its operators must know, in JSON.
_DEVICE = "UNIFERENCE_RANK_DEVICE"


def mark_rank() -> None:
    """This process is a rank: those that it starts are its children."""
    os.environ[_RANK_PROCESS] = str(os.getpid())


def hand_on(channel: Channel, device: str, own: int, gpus: Sequence[Mapping[str, Any]], lends: bool) -> None:
    """Tells the children of this rank of its device, and of the GPUs that it sees, of which `own` is its own.

    With `lends` these are the GPUs of all ranks, and a child is of the rank whose GPU it uses.
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
    """Makes this process what a rank's child may be, if it is one: it does not communicate, and may have the rank's GPUs."""
    if os.environ.get(_RANK_PROCESS, str(os.getpid())) == str(os.getpid()):
        return
    handed = json.loads(os.environ[_DEVICE]) if _DEVICE in os.environ else {}
    if not handed.get("arena"):
        for name in names.INIT_PROCESS_GROUP:
            name.wrap(_only_alone)
    channel = Channel.of_relative() if handed else None
    if channel is not None:
        _install(channel, **handed)


def _install(
    channel: Channel, device: str, own: int, gpus: Sequence[Mapping[str, Any]], tick: float | None, arena: str | None
) -> None:
    """Puts the rank's GPUs in place and captures operators, as far as the run has them. Of a processor's memory nothing is checked here."""
    if not (gpus or channel.captures):
        return
    # Torch is being imported, and these need all of it.
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
    """A group of one member sends nothing, so torch's own may carry it out."""
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
