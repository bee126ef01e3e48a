"""Owns mixed precision on a simulated GPU: autocast for CUDA is autocast for the CPU, in CUDA's precision.

Which operators are cast is the CPU's list, which is not quite CUDA's.
"""

from typing import Any

import torch

from uniference.patches import gpus


def install() -> None:
    """Has `torch.autocast("cuda")` and the questions about it mean the CPU."""
    original = gpus.AUTOCAST.original

    def init(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        original(self, device_type, dtype, *args, **kwargs)

    gpus.AUTOCAST.replace(init)
    for name in gpus.AUTOCAST_STATE:
        name.wrap(_on_cpu)


def _on_cpu(function: Any) -> Any:
    def translated(device_type: Any = "cuda", *args: Any) -> Any:
        return function("cpu" if device_type == "cuda" else device_type, *args)

    return translated
