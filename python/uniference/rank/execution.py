"""Owns how kernels of Triton that its compiler has compiled are carried out where there is no GPU: the extension runs their intermediate
representation (`crates/triton`), some sixty times as fast as Triton's interpreter.

It is the text that a GPU's code is made of, so types, rounding and control flow are the kernel's own. What the extension does not know is
left to `interpretation`.
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
    """The first element in its memory, which nothing keeps: to a kernel a tensor is an address and the type of what is there."""
    memory = (ctypes.c_char * tensor.element_size()).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype)


def placed(value: Any, here: Callable[[Tensor], Tensor]) -> Any:
    """An argument with the tensors in its memory in place of a GPU's."""
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
    """What a kernel does."""

    products: Sequence[int]
    """Floating-point operations of products of matrices, of numbers of 8 bits, of 16, of 32 as TF32, and of 32."""
    operations: Sequence[int]
    """Operations on single numbers of up to 32 bits, and of 64."""
    read: int
    written: int
    """Bytes, each once."""
    integers: Sequence[tuple[int, int]]
    """Addresses, from and up to, of integers that decide all this."""


class Executable:
    """A kernel that the extension can run."""

    def __init__(self, kernel: TritonKernel, places: Sequence[tuple[Any, ...]]) -> None:
        self._kernel = kernel
        # Of what it is given, in that order: an argument's name, and of tuples the places in them.
        self._places = places

    @functools.cached_property
    def written(self) -> frozenset[str] | None:
        """The names of arguments that it may write to. `None`: all."""
        places = self._kernel.written()
        return None if places is None else frozenset(self._places[place][0] for place in places)

    def run(
        self,
        arguments: Mapping[str, Any],
        grid: tuple[int, ...],
        here: Callable[[Tensor], Tensor],
        absent: Sequence[range],
    ) -> list[range]:
        """As `interpretation.run`."""
        given = self._given(arguments, here)
        written = self._kernel.run(given, _three(grid), [(span.start, span.stop) for span in absent])
        return [range(start, stop) for start, stop in written]

    def work(self, arguments: Mapping[str, Any], grid: tuple[int, ...], memory: Sequence[range]) -> Work | None:
        """What all programs of the grid do together, if it can be told; the tensors lie in `memory`."""
        try:
            given = self._given(arguments, lambda tensor: tensor)
            found = self._kernel.work(given, _three(grid), [(span.start, span.stop) for span in memory])
        except (RuntimeError, TypeError):  # it was compiled for other arguments
            return None
        return None if found is None else Work(*found)

    def _given(self, arguments: Mapping[str, Any], here: Callable[[Tensor], Tensor]) -> list[int | float]:
        return [_number(placed(functools.reduce(getitem, place, arguments), here)) for place in self._places]


def _three(grid: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*grid, 1, 1, 1)[:3]
    return x, y, z


def _number(value: Any) -> int | float:
    base = getattr(value, "base", value)
    # Torch's own kernels are given what is no tensor and has the address of one.
    if hasattr(base, "data_ptr"):
        return int(base.data_ptr())
    return int(value) if isinstance(value, numbers.Integral) else float(value)


class Source:
    """What torch's compiler has a kernel compiled from: the function, and `compile_meta` of its configuration.

    What is compiled may come from a cache, which does not keep the text. So it is made again: what is computed must not depend on that.
    """

    def __init__(self, function: Callable[[], Any], meta: Mapping[str, Any]) -> None:
        self._function, self._meta = function, meta

    @functools.cached_property
    def executable(self) -> Executable | None:
        try:
            text = self._text()
        except Exception:  # it is the compiler's matter what a kernel may have in it
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
"""By the hash that Triton's compiler gives to what it has compiled."""


def of(compiled: Any) -> Executable | None:
    """What runs a kernel, of which this is a `Source` or a `triton.compiler.CompiledKernel`. `None`: it is neither, or has something in it
    that the extension does not know."""
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
    # A descriptor is several arguments, which only the compiler tells apart.
    places = list(_places(signature.items()))
    if any("tensordesc" in kind for _, kind in places):
        return None
    try:
        kernel = TritonKernel(text)
    except ValueError:
        return None
    return Executable(kernel, [place for place, _ in places]) if len(kernel) == len(places) else None


def _places(kinds: Iterable[tuple[Any, Any]]) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Where in the arguments, or in a tuple, each of what a kernel is given lies, and of which type it is."""
    for key, kind in kinds:
        if isinstance(kind, tuple):
            yield from (((key, *place), inner) for place, inner in _places(enumerate(kind)))
        elif str(kind) != "constexpr":
            yield (key,), str(kind)
