"""Owns how elements are combined: the names of torch's reductions, which elements a backend accepts, and the kernels.

In which order elements are combined is the simulated algorithm's business.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from uniference import gloo
from uniference._native import combines

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

# As torch/csrc/distributed/c10d/Utils.hpp has it.
_COMPLEX_TOO = frozenset({"sum", "avg", "premul_sum"})


def reduction_name(op: Any) -> str:
    """The name of a call's `op`, a ReduceOp or a bare RedOpType, as the channel has it."""
    return _NAMES[getattr(op, "op", op).value]


_NAMES = {kind.value: name.lower() for name, kind in ReduceOp.RedOpType.__members__.items()}


# Reductions without a factor, by kind, type and backend: each was checked once.
_checked: dict[tuple[int, torch.dtype, str], "Reduction"] = {}


class Reduction:
    """One reduction as a call asks for it, checked against what the backend accepts."""

    __slots__ = ("_factor", "_kernel", "dtype", "is_native", "name")

    @staticmethod
    def of(op: Any, dtype: torch.dtype, backend: str) -> "Reduction":
        """That of a call's `op`."""
        # A call carries either a ReduceOp or a bare RedOpType; PREMUL_SUM's factor lies on the former only.
        kind = getattr(op, "op", op).value
        known = _checked.get((kind, dtype, backend))
        if known is None:
            name = _NAMES[kind]
            known = Reduction(name, op.factor if name == "premul_sum" else None, dtype, backend)
            if name != "premul_sum":
                _checked[kind, dtype, backend] = known
        return known

    def __init__(self, name: str, factor: Any, dtype: torch.dtype, backend: str) -> None:
        self.name = name
        self.dtype = dtype
        self._factor = factor
        self._kernel = _KERNELS.get(name)
        if self._kernel is None:
            raise gloo.Unsupported(f"Unhandled ReduceOp {name}")
        if backend == "gloo":
            self._check_gloo(dtype)
        if dtype.is_complex and name not in _COMPLEX_TOO:
            raise RuntimeError(f"ReduceOp.{name.upper()} does not support complex tensors")
        if name in ("band", "bor", "bxor") and (dtype.is_floating_point or dtype.is_complex):
            raise gloo.Unsupported(f"Cannot use ReduceOp.{name.upper()} with non-integral dtype")
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

    def _check_gloo(self, dtype: torch.dtype) -> None:
        if self.name == "premul_sum":
            raise gloo.Unsupported("Cannot use ReduceOp.PREMUL_SUM with Gloo")
        gloo.check_dtype(dtype)


_dtype_names: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name, without `torch.`."""
    name = _dtype_names.get(dtype)
    if name is None:
        name = _dtype_names[dtype] = str(dtype).removeprefix("torch.")
    return name


# torch has no arithmetic on these; modulo 2^n it is that of the signed types.
_AS_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
