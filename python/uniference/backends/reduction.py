"""Owns how elements are combined: the names of torch's reductions, which elements each is defined for, and the kernels.

In which order elements are combined is the simulated algorithm's business, and which of them a library refuses that of its backend.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from uniference._native import combines


class Unsupported(RuntimeError):
    """What a library says of an operation once it carries it out: Gloo, of an asynchronous one, when the program waits for it."""


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

# Gloo's `min` and `max` (gloo/math.h) are `std::min` and `std::max`: the first operand stays if both are zeros, or if one is NaN.
_KEEPING_FIRST: dict[str, _Kernel] = {
    "min": lambda into, other: torch.where(other < into, other, into, out=into),
    "max": lambda into, other: torch.where(into < other, other, into, out=into),
}

# As torch/csrc/distributed/c10d/Utils.hpp has it.
_COMPLEX_TOO = frozenset({"sum", "avg", "premul_sum"})


def reduction_name(op: Any) -> str:
    """The name of a call's `op`, a ReduceOp or a bare RedOpType, as the channel has it."""
    return _NAMES[getattr(op, "op", op).value]


_NAMES = {kind.value: name.lower() for name, kind in ReduceOp.RedOpType.__members__.items()}


class Reduction:
    """One reduction as a call asks for it, of elements that it is defined for."""

    __slots__ = ("_factor", "_kernel", "dtype", "is_native", "name")

    def __init__(self, name: str, factor: Any, dtype: torch.dtype, keeps_first: bool = False) -> None:
        """`name` is a result of `reduction_name`; `factor` is PREMUL_SUM's, else None. `keeps_first` selects Gloo's minimum and maximum."""
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
        """The channel combines the elements, no kernel of torch's is needed."""

    def prepare(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """What is sent in the place of the inputs."""
        return tensors if self._factor is None else [tensor.detach() * self._factor for tensor in tensors]

    def combine(self, into: Tensor, other: Tensor) -> None:
        """into = into op other."""
        assert self._kernel is not None
        if into.dtype in _AS_SIGNED and self.name in ("sum", "avg", "product", "band", "bor", "bxor"):
            into, other = into.view(_AS_SIGNED[into.dtype]), other.view(_AS_SIGNED[other.dtype])
        self._kernel(into, other)

    def finish(self, outputs: Sequence[Tensor], size: int) -> None:
        """The last step, on each member's own copy of the result of a group of `size`."""
        if self.name == "avg":
            for out in outputs:
                out.data.div_(size)


_dtype_names: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name, without `torch.`."""
    name = _dtype_names.get(dtype)
    if name is None:
        name = _dtype_names[dtype] = str(dtype).removeprefix("torch.")
    return name


# torch has no arithmetic on these; modulo 2^n it is that of the signed types.
_AS_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
