"""Owns the C++ backend in front of a Python backend: plain collectives then need no interpreter (`cpp/backend.h`).

`cpp/backend.h` defines which collectives are plain. All other calls are forwarded to the Python backend unchanged.
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
"""Environment variable of a run: with the value `python`, the Python backend carries out all collectives, so that both
backends can be compared."""

_MILLISECOND = timedelta(milliseconds=1)


def install(channel: Channel) -> None:
    """Puts the C++ backend in front of all groups that torch creates from now on, if the C++ library is available."""
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
            # The Python backend is registered in a process group of its own, from which C++ obtains it.
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
    """Whether the group's library is simulated, and its timeout is a whole number of milliseconds, as C++ expects."""
    return backend.is_simulated and not backend.timeout % _MILLISECOND
