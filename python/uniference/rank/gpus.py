"""Owns GPUs that a library simulates below torch's own CUDA code: which this rank has.

What they do is the library's business (`crates/phantom`); it was loaded before torch, and has had no devices until now.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from uniference import _native
from uniference._native import Channel
from uniference.rank import capture


def install(channel: Channel, own: int, gpus: Sequence[Mapping[str, Any]]) -> None:
    """Gives the process the GPUs of its host, of which `own` is this rank's. What they are handed is written down by the C++ library."""
    library = capture.library()
    if library is None:
        raise RuntimeError(
            "simulated GPUs require Uniference's C++ library for this version of torch, which was not built\n"
            "hint: install g++ and run `make setup` again, or install a wheel that was built for this version of torch"
        )
    _native.attach_gpus(own, gpus, library.device_link(channel))
