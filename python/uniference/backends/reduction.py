"""Owns the combination of elements: names of torch's reductions, the element types of each, and the kernels.

The simulated algorithm decides the order of combinations, and each library's backend which reductions it refuses.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from uniference._native import combines


class Unsupported(RuntimeError):
    """A library's error during the execution of an operation: for an asynchronous Gloo operation, the wait raises
    it."""


_Kernel = Callable[[Tensor, Tensor], object]

_KERNELS: dict[str, _Kernel] = {
    "sum": lambda into, other: into.add_(other),
    "product": lambda into, other: into.mul_(other),
    "min": lambda into, other: torch.minimum(into, other, out=into),
    "max": lambda into, other: torch.maximum(into, other, out=into),
    "band": lambda into, other: into.bitwise_and_(other),
    "bor": lambda into, other: into.bitwise_or_(other),
    "bxor": lambda into, other: into.bitwise_xor_(other),
}
_KERNELS["avg"] = _KERNELS["premul_sum"] = _KERNELS["sum"]

# Gloo's `min` and `max` (gloo/math.h) are `std::min` and `std::max`: the first operand stays if both are zeros, or if
# one is NaN.
_KEEPING_FIRST: dict[str, _Kernel] = {
    "min": lambda into, other: torch.where(other < into, other, into, out=into),
    "max": lambda into, other: torch.where(into < other, other, into, out=into),
}

# Reductions of complex numbers, as in torch/csrc/distributed/c10d/Utils.hpp.
_COMPLEX_TOO = frozenset({"sum", "avg", "premul_sum"})


def reduction_name(op: Any) -> str:
    """The channel's name of a call's `op`, a ReduceOp or a bare RedOpType."""
    return _NAMES[getattr(op, "op", op).value]


_NAMES = {kind.value: name.lower() for name, kind in ReduceOp.RedOpType.__members__.items()}


class Reduction:
    """The reduction of a call, for an element type on which the reduction is defined."""

    __slots__ = ("_factor", "_kernel", "dtype", "is_native", "name")

    def __init__(self, name: str, factor: Any, dtype: torch.dtype, keeps_first: bool = False) -> None:
        """`name` is a result of `reduction_name`; `factor` is PREMUL_SUM's, else None. `keeps_first` selects Gloo's
        minimum and maximum."""
        self.name = name
        self.dtype = dtype
        self._factor = factor
        kernels = _KERNELS | _KEEPING_FIRST if keeps_first else _KERNELS
        self._kernel = kernels.get(name)
        if self._kernel is None:
            raise Unsupported(f"Unhandled ReduceOp {name}")
        if dtype.is_complex and name not in _COMPLEX_TOO:
            raise RuntimeError(f"ReduceOp.{name.upper()} does not support complex tensors")
        if name in ("band", "bor", "bxor") and (dtype.is_floating_point or dtype.is_complex):
            raise Unsupported(f"Cannot use ReduceOp.{name.upper()} with non-integral dtype")
        self.is_native = combines(name, dtype_name(dtype))
        """Whether the channel combines the elements, so that no torch kernel is needed."""

    def prepare(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Tensors that are sent in place of the inputs: multiplied by the factor, if there is one."""
        return tensors if self._factor is None else [tensor.detach() * self._factor for tensor in tensors]

    def combine(self, into: Tensor, other: Tensor) -> None:
        """into = into op other."""
        assert self._kernel is not None
        if into.dtype in _AS_SIGNED and self.name in ("sum", "avg", "product", "band", "bor", "bxor"):
            into, other = into.view(_AS_SIGNED[into.dtype]), other.view(_AS_SIGNED[other.dtype])
        self._kernel(into, other)

    def finish(self, outputs: Sequence[Tensor], size: int) -> None:
        """The last step of a reduction in a group of `size` members, carried out on each member's own copy of the
        result."""
        if self.name == "avg":
            for out in outputs:
                out.data.div_(size)


_dtype_names: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """Torch's name of the type, without `torch.`."""
    name = _dtype_names.get(dtype)
    if name is None:
        name = _dtype_names[dtype] = str(dtype).removeprefix("torch.")
    return name


# Torch has no arithmetic on unsigned integers; modulo 2^n their arithmetic equals that of the signed types.
_AS_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
