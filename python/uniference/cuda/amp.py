"""Owns mixed precision on a simulated GPU: autocast for CUDA is autocast for the CPU, in CUDA's precision.

Which operators are cast is the CPU's list, which is not quite CUDA's.
"""

from typing import Any

import torch
from torch.amp import autocast_mode


def install() -> None:
    """Has `torch.autocast("cuda")` and the questions about it mean the CPU."""
    original = autocast_mode.autocast.__init__

    def init(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        original(self, device_type, dtype, *args, **kwargs)

    autocast_mode.autocast.__init__ = init  # type: ignore[method-assign]
    for name in ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _on_cpu(function: Any) -> Any:
    def translated(device_type: Any = "cuda", *args: Any) -> Any:
        return function("cpu" if device_type == "cuda" else device_type, *args)

    return translated
