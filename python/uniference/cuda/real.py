"""Owns GPUs that this machine really has: what they still compute is waited for before the rank's time is read or charged.

The tensors' way between GPU and host is the extension's business.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from uniference.backends.base import SimulatedBackend
from uniference.backends.gloo import Gloo
from uniference.backends.nccl import Nccl
from uniference.patches import gpus


def install() -> None:
    """Waits at the clock, and where communication begins. The wait is the program's, so it is charged."""
    for clock in gpus.CLOCKS:
        clock.wrap(_after_the_gpu)
    for backend in (SimulatedBackend, Gloo, Nccl):
        for name, method in tuple(vars(backend).items()):
            if getattr(method, "is_uncharged", False):  # the calls that a program makes
                setattr(backend, name, _after_the_gpu(method))


def _after_the_gpu(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def synchronised(*args: Any) -> Any:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        return function(*args)

    return synchronised
