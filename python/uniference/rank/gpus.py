"""Owns GPUs that a library simulates below torch's own CUDA code: which this rank has.

What they do is the library's business (`crates/phantom`); it was loaded before torch, and has had no devices until now.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from uniference import _native


def install(own: int, gpus: Sequence[Mapping[str, Any]]) -> None:
    """Gives the process the GPUs of its host, of which `own` is this rank's."""
    _native.attach_gpus(own, gpus)
