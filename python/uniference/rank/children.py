"""Owns what becomes of processes that a rank starts: they may do anything but communicate with others, which would not be simulated.

torch loads this through the entry point `torch.backends`, in every process that imports it; outside of a rank's children it does nothing.
Their clocks are the C library's (`crates/interpose`). What a rank itself must not do is `refusals`' business.
"""

import inspect
import os
from collections.abc import Callable
from typing import Any

from uniference.patches import names

# Names the process that is the rank, in its environment and so in its children's.
_RANK_PROCESS = "UNIFERENCE_RANK_PROCESS"


def mark_rank() -> None:
    """This process is a rank: those that it starts are its children."""
    os.environ[_RANK_PROCESS] = str(os.getpid())


def load() -> None:
    """Refuses communication if this process is a rank's child."""
    if os.environ.get(_RANK_PROCESS, str(os.getpid())) == str(os.getpid()):
        return
    for name in names.INIT_PROCESS_GROUP:
        name.wrap(_only_alone)


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
