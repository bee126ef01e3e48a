"""Owns what becomes of processes that a rank starts: they may do anything but communicate, which would be neither simulated nor timed.

torch loads this through the entry point `torch.backends`, in every process that imports it; outside of a rank's children it does nothing.
What a rank itself must not do is `refusals`' business.
"""

import os
from typing import Any, NoReturn

# Names the process that is the rank, in its environment and so in its children's.
_RANK_PROCESS = "UNIFERENCE_RANK_PROCESS"


def mark_rank() -> None:
    """This process is a rank: those that it starts are its children."""
    os.environ[_RANK_PROCESS] = str(os.getpid())


def load() -> None:
    """Refuses communication if this process is a rank's child."""
    if os.environ.get(_RANK_PROCESS, str(os.getpid())) == str(os.getpid()):
        return
    from uniference.patches import names

    for name in names.INIT_PROCESS_GROUP:
        name.replace(_refuse)


def _refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError(
        "a child process of a rank cannot communicate\n"
        "hint: start all ranks with `uniference run --ranks N`; if the program calls torch.multiprocessing.spawn, "
        "N must be the number of processes that it spawns"
    )
