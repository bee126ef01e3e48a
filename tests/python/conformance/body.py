"""Common parts of the bodies: a body is a function of (rank, world size) that returns tensors, numbers and texts to be
compared."""

from collections.abc import Callable
from typing import Any

import torch


def body(function: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    """Marks a function as a body."""
    function.is_body = True  # type: ignore[attr-defined]
    return function


def since(version: str) -> Callable[[Callable[[int, int], Any]], Callable[[int, int], Any]]:
    """Marks a function as a body if torch has at least this version, for example "2.15": earlier versions of Gloo do
    not support its calls."""
    installed = tuple(map(int, torch.__version__.split(".")[:2]))
    return body if installed >= tuple(map(int, version.split("."))) else lambda function: function


def error_of(call: Callable[[], Any]) -> str:
    """The error a call raises: its type, and its message up to the first line that differs from machine to machine."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "no error"


def sample(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values that differ by rank and element, and whose sums depend on the order of the summands."""
    count = torch.Size(shape).numel()
    if dtype is torch.bool:
        return ((torch.arange(count) * 7 + rank) % 3 == 0).reshape(shape)
    if not dtype.is_floating_point and not dtype.is_complex:
        return ((torch.arange(count) * 5 + 3 * rank + 1) % 11).to(dtype).reshape(shape)
    generator = torch.Generator().manual_seed(100 + rank)
    values = torch.randn(count, generator=generator, dtype=torch.float64)
    if dtype.is_complex:
        return torch.complex(values, -values * 0.3).to(dtype).reshape(shape)
    return values.to(dtype).reshape(shape)
