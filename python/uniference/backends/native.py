"""Owns the C++ backend that stands in front of a Python one: plain collectives then pass by the interpreter (`cpp/backend.h`).

What is plain is decided there. Everything else reaches the Python backend as if nobody stood before it.
"""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from uniference._native import Channel
from uniference.backends.base import SimulatedBackend
from uniference.patches import names
from uniference.rank import capture

BACKEND = "UNIFERENCE_BACKEND"
"""Environment variable of a run: `python` lets the Python backend carry out all collectives, to compare the two."""

_MILLISECOND = timedelta(milliseconds=1)


def install(channel: Channel) -> None:
    """Lets the process groups that torch makes from here on carry out their calls so, if the C++ library is there."""
    library = capture.library()
    if library is None or os.environ.get(BACKEND) == "python":
        return
    library.carry_out_calls(channel)
    register = names.REGISTER_BACKEND.original

    def register_backend(
        self: dist.ProcessGroup,
        device: torch.device,
        backend_type: dist.ProcessGroup.BackendType = dist.ProcessGroup.BackendType.UNDEFINED,
        backend: Any = None,
    ) -> None:
        if not (isinstance(backend, SimulatedBackend) and _fits(backend)):
            register(self, device, backend_type, backend)
            return
        channel.enter()
        try:
            # C++ takes the Python backend out of a process group that nobody uses.
            made = dist.ProcessGroup(backend.rank(), backend.size())
            register(made, device, backend_type, backend)
            defaults = [timeout // _MILLISECOND for timeout in backend.DEFAULT_TIMEOUTS]
            torch.ops.uniference.stand_in_front(
                made.boxed(), self.boxed(), device, backend.group, backend.timeout // _MILLISECOND, defaults
            )
        finally:
            channel.leave()

    names.REGISTER_BACKEND.replace(register_backend)


def _fits(backend: SimulatedBackend) -> bool:
    """Whether the group's library is the simulated one, and its time-out can be told to C++."""
    return backend.is_simulated and not backend.timeout % _MILLISECOND
