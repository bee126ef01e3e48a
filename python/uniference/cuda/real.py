"""Owns GPUs that this machine really has: what they still compute is waited for before the rank's time is read or charged.

The tensors' way between GPU and host is the extension's business.
"""

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from uniference.process_group import SimulatedBackend

_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")


def install() -> None:
    """Waits at the clock, and where communication begins. The wait is the program's, so it is charged."""
    for name in _CLOCKS:
        setattr(time, name, _after_the_gpu(getattr(time, name)))
    for name, method in tuple(vars(SimulatedBackend).items()):
        if hasattr(method, "__wrapped__"):  # what is not charged: the calls that a program makes
            setattr(SimulatedBackend, name, _after_the_gpu(method))


def _after_the_gpu(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def synchronised(*args: Any) -> Any:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        return function(*args)

    return synchronised
