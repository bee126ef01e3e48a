"""Owns the execution of compiled Triton kernels without a GPU: the extension interprets their intermediate
representation (`crates/triton`), some sixty times as fast as Triton's interpreter.

A GPU's code is generated from the same text, so types, rounding and control flow are the kernel's own. Kernels with
operations that the extension does not support are left to `interpretation`.
"""

import ctypes
import functools
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
import triton
from torch import Tensor

from uniference._native import TritonKernel


def address(tensor: Tensor) -> Tensor:
    """A tensor of one element at the argument's address, which does not keep the memory alive: a kernel needs only the
    address and the element type."""
    memory = (ctypes.c_char * tensor.element_size()).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype)


def placed(value: Any, here: Callable[[Tensor], Tensor]) -> Any:
    """An argument in which GPU tensors are replaced by the tensors in this process's memory."""
    if isinstance(value, Tensor):
        return here(value)
    if isinstance(value, tuple):
        return (
            type(value)(*(placed(item, here) for item in value))
            if hasattr(value, "_fields")
            else tuple(placed(item, here) for item in value)
        )
    if isinstance(value, triton.runtime.jit.TensorWrapper):
        return triton.runtime.jit.TensorWrapper(here(value.base), value.dtype)
    if isinstance(value, triton.tools.tensor_descriptor.TensorDescriptor):
        rest = (value.shape, value.strides, value.block_shape, value.padding, value.round_f32_to_tf32)
        return triton.tools.tensor_descriptor.TensorDescriptor(here(value.base), *rest)
    return value


@dataclass(frozen=True)
class Work:
    """Work of a kernel launch."""

    products: Sequence[int]
    """Floating-point operations of GEMMs: in 8 bits, in 16 bits, in TF32, and in 32 bits."""
    operations: Sequence[int]
    """Number of scalar operations of up to 32 bits, and of 64 bits."""
    read: int
    written: int
    """Bytes, each counted once."""
    integers: Sequence[tuple[int, int]]
    """Address ranges (start, end) of the integers in memory that these figures depend on."""


class Executable:
    """A kernel that the extension can interpret."""

    def __init__(self, kernel: TritonKernel, places: Sequence[tuple[Any, ...]]) -> None:
        self._kernel = kernel
        # The kernel's parameters in order: an argument's name, and for elements of tuples the indices.
        self._places = places

    @functools.cached_property
    def written(self) -> frozenset[str] | None:
        """Names of the arguments that the kernel may write to. `None`: all."""
        places = self._kernel.written()
        return None if places is None else frozenset(self._places[place][0] for place in places)

    def run(
        self,
        arguments: Mapping[str, Any],
        grid: tuple[int, ...],
        here: Callable[[Tensor], Tensor],
        uncomputed: Sequence[range],
    ) -> list[range]:
        """See `interpretation.run`."""
        given = self._given(arguments, here)
        written = self._kernel.run(given, _three(grid), [(span.start, span.stop) for span in uncomputed])
        return [range(start, stop) for start, stop in written]

    def work(self, arguments: Mapping[str, Any], grid: tuple[int, ...], memory: Sequence[range]) -> Work | None:
        """Work of all programs of the grid together, if it is known; the tensors lie in `memory`."""
        try:
            given = self._given(arguments, lambda tensor: tensor)
            found = self._kernel.work(given, _three(grid), [(span.start, span.stop) for span in memory])
        except (RuntimeError, TypeError):  # the kernel was compiled for other arguments
            return None
        return None if found is None else Work(*found)

    def _given(self, arguments: Mapping[str, Any], here: Callable[[Tensor], Tensor]) -> list[int | float]:
        return [_number(placed(functools.reduce(getitem, place, arguments), here)) for place in self._places]


def _three(grid: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*grid, 1, 1, 1)[:3]
    return x, y, z


def _number(value: Any) -> int | float:
    base = getattr(value, "base", value)
    # Torch's own kernels accept objects that are no tensors but have an address.
    if hasattr(base, "data_ptr"):
        return int(base.data_ptr())
    return int(value) if isinstance(value, numbers.Integral) else float(value)


class Source:
    """The source of a kernel of torch's compiler: the function, and `compile_meta` of its configuration.

    The compiled kernel may come from a cache without its TTIR. The TTIR is therefore always generated anew: values must
    not depend on the cache.
    """

    def __init__(self, function: Callable[[], Any], meta: Mapping[str, Any]) -> None:
        self._function, self._meta = function, meta

    @functools.cached_property
    def executable(self) -> Executable | None:
        try:
            text = self._text()
        except Exception:  # Triton's compiler raises various errors for unsupported kernels
            return None
        return _read(text, self._meta["signature"])

    def _text(self) -> str:
        from triton.backends.compiler import GPUTarget
        from triton.compiler.compiler import ASTSource, ir, make_backend

        meta = self._meta
        source = ASTSource(self._function(), meta["signature"], meta["constants"], meta["configs"][0])
        target = GPUTarget(meta["device_type"], meta["cc"], 32)
        backend = make_backend(target)
        options = {"num_warps": meta["num_warps"], "num_stages": meta["num_stages"], "debug": meta["debug"]}
        parsed = backend.parse_options({**options, "sanitize_overflow": False, **source.parse_options()})
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        functions = backend.get_codegen_implementation(parsed)
        module = source.make_ir(target, parsed, functions, backend.get_module_map(), context)
        stages: dict[str, Callable[[Any, Any], Any]] = {}
        backend.add_stages(stages, parsed, source.language)
        return str(stages["ttir"](module, {}))


_KNOWN: dict[str, Executable | None] = {}
"""Executables by the hash that Triton's compiler gives to a compiled kernel."""


def of(compiled: Any) -> Executable | None:
    """The executable of a kernel, given as a `Source` or a `triton.compiler.CompiledKernel`. `None`: another type, or
    the kernel contains an operation that the extension does not support."""
    if isinstance(compiled, Source):
        return compiled.executable
    known = getattr(compiled, "hash", None)
    if not isinstance(known, str):
        return None
    if known not in _KNOWN:
        signature = getattr(getattr(compiled, "src", None), "signature", None)
        _KNOWN[known] = _read(getattr(compiled, "asm", {}).get("ttir"), signature)
    return _KNOWN[known]


def _read(text: Any, signature: Any) -> Executable | None:
    if not isinstance(text, str) or not isinstance(signature, dict):
        return None
    # A tensor descriptor expands to several arguments, in a layout that only the compiler knows.
    places = list(_places(signature.items()))
    if any("tensordesc" in kind for _, kind in places):
        return None
    try:
        kernel = TritonKernel(text)
    except ValueError:
        return None
    return Executable(kernel, [place for place, _ in places]) if len(kernel) == len(places) else None


def _places(kinds: Iterable[tuple[Any, Any]]) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Location in the arguments, or in nested tuples, and type of each of a kernel's parameters."""
    for key, kind in kinds:
        if isinstance(kind, tuple):
            yield from (((key, *place), inner) for place, inner in _places(enumerate(kind)))
        elif str(kind) != "constexpr":
            yield (key,), str(kind)
