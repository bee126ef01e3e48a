"""Owns GPUs that a library simulates below torch's own CUDA code: which this rank has, and what they are given to work with.

What they do is the library's business (`crates/phantom`); it was loaded before torch, and has had no devices until now.
"""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from uniference import _native
from uniference._native import Channel
from uniference.rank import capture, values


def install(channel: Channel, own: int, gpus: Sequence[Mapping[str, Any]]) -> None:
    """Gives the process the GPUs of its host, of which `own` is this rank's."""
    library = capture.library()
    if library is None:
        raise RuntimeError(
            f"simulated GPUs require Uniference's C++ library for torch {torch.__version__}, which was not built\n"
            "hint: install g++ and run `make setup` again, or install a wheel that was built for this version of torch"
        )
    link, communication = library.device_link(channel), library.communication(channel, values.limit())
    _native.attach_gpus(own, gpus, link, communication)
    process = ctypes.CDLL(None)
    library.mirror(*(_address(process, name) for name in ("uniference_phantom_launch", "uniference_phantom_settle")))


def _address(process: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(process, name), ctypes.c_void_p).value or 0
