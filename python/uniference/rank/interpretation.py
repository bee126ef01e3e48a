"""Owns the interpretation of Triton kernels without a GPU: Triton's own interpreter runs them on numpy, one program of
the grid after the other.

Triton's interpreter lacks four things. Functions that a kernel calls must have been created for the interpreter; this
module rewrites those of an ordinary program at the first call. The interpreter has no functions of libdevice; this
module uses torch's. Numpy has no bfloat16, so the interpreter keeps its bits as integers and calculates with these;
this module calculates in float32. The interpreter's casts to eight bits round wrongly; this module uses torch's.

Memory whose values were not computed reads as zero. Values that a program writes after reading such memory count as not
computed either.
"""

import ast
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import numpy
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from uniference.rank.execution import placed

_lock = threading.RLock()
"""Lock that is held while Triton's language modules are patched for the interpreter."""


def run(
    function: Any,
    arguments: Mapping[str, Any],
    grid: tuple[int, ...],
    here: Callable[[Tensor], Tensor],
    uncomputed: Sequence[range] = (),
) -> list[range]:
    """Interprets a kernel (a `JITFunction`) for all programs of the grid; `here` maps a GPU tensor to the tensor in
    this process's memory.

    `uncomputed` are address ranges of values that were not computed. Returns address ranges of written values that may
    depend on them.
    """
    constants = {parameter.name for parameter in function.params if parameter.is_constexpr}
    values = {
        name: _constant(value) if name in constants else interpreter._implicit_cvt(placed(value, here))
        for name, value in arguments.items()
        if name in function.arg_names
    }
    x, y, z = (*grid, 1, 1, 1)[:3]
    tracked = _Uncomputed(uncomputed)
    with _interpreting() as scope, numpy.errstate(all="ignore"):
        tracked.follow(scope)
        rewritten = _rewritten(function)
        interpreter.interpreter_builder.set_grid_dim(x, y, z)
        for i in range(x):
            for j in range(y):
                for k in range(z):
                    interpreter.interpreter_builder.set_grid_idx(i, j, k)
                    tracked.begin()
                    rewritten(**values)
    return tracked.written


def _constant(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


# Functions

_KNOWN: dict[Any, Any] = {}


def _rewritten(function: Any) -> Any:
    """A Triton function as a Python function that accepts the interpreter's tensors."""
    if function.fn not in _KNOWN:
        tree = interpreter.ASTTransformer().visit(ast.parse(function.src))
        ast.fix_missing_locations(tree)
        tree.body[0].decorator_list = []
        # A copy of the globals, so that the function's module is unchanged.
        scope = {**vars(interpreter), **function.fn.__globals__}
        scope.update({name: _LIBDEVICE[value] for name, value in scope.items() if _is_libdevice(value)})
        exec(compile(tree, function.fn.__code__.co_filename, "exec"), scope)
        _KNOWN[function.fn] = scope[function.fn.__name__]
    return _KNOWN[function.fn]


def _is_libdevice(value: Any) -> bool:
    return isinstance(value, FunctionType) and value in _LIBDEVICE


@contextmanager
def _interpreting() -> Iterator[Any]:
    """Patches Triton for the interpreter inside the context. Yields the stack that undoes the patches."""

    def core() -> None: ...

    names = FunctionType(core.__code__, {"tl": tl, "core": tl.core})
    with _lock:
        scope = interpreter._patch_lang(names)
        try:
            scope.set_attr(JITFunction, "__call__", lambda self, *args, **kwargs: _rewritten(self)(*args, **kwargs))
            scope.set_attr(interpreter.ReduceOps, "apply_impl", _reduce(interpreter.ReduceOps.apply_impl))
            for name, make in _NUMBERS.items():
                method = getattr(interpreter.InterpreterBuilder, name)
                scope.set_attr(interpreter.InterpreterBuilder, name, make(method))
            for module in _libraries():
                for name in _BY_TORCH:
                    if (ours := _LIBDEVICE.get(getattr(module, name, None))) is not None:
                        scope.set_attr(module, name, ours)
            yield scope
        finally:
            scope.restore()


# Values that were not computed

_ACCESSES: Mapping[str, tuple[bool, bool, Callable[..., tuple[Any, Any]]]] = {
    "create_masked_load": (True, False, lambda pointers, mask, *_: (pointers, mask)),
    "create_masked_store": (False, True, lambda pointers, _, mask, *__: (pointers, mask)),
    "create_atomic_cas": (True, True, lambda pointers, *_: (pointers, None)),
    "create_atomic_rmw": (True, True, lambda _, pointers, __, mask, *___: (pointers, mask)),
}
"""Memory accesses of the interpreter, by method: whether it reads, whether it writes, and its pointers and mask among
its arguments."""


class _Uncomputed:
    """Tracks values that were not computed through a program of the grid."""

    def __init__(self, uncomputed: Sequence[range]) -> None:
        self._uncomputed = list(uncomputed)
        self._has_read = False
        self.written: list[range] = []

    def begin(self) -> None:
        """Starts the next program, which has read nothing yet."""
        self._has_read = False

    def follow(self, scope: Any) -> None:
        """Records reads and writes from now on."""
        for name in _ACCESSES if self._uncomputed else ():
            scope.set_attr(interpreter.InterpreterBuilder, name, self._following(name))

    def _following(self, name: str) -> Callable[..., Any]:
        original = getattr(interpreter.InterpreterBuilder, name)
        reads, writes, places = _ACCESSES[name]

        def access(builder: Any, *args: Any) -> Any:
            pointers, mask = places(*args)
            addresses = (
                pointers.data if mask is None else pointers.data[numpy.broadcast_to(mask.data, pointers.data.shape)]
            )
            if addresses.size:
                size = pointers.get_element_ty().primitive_bitwidth // 8 or 1
                span = range(int(addresses.min()), int(addresses.max()) + size)
                if reads and not self._has_read:
                    self._has_read = any(_meet(addresses, size, span, known) for known in self._uncomputed)
                if writes and self._has_read:
                    self.written.append(span)
                    # Other programs of the grid may read the written addresses.
                    if not any(known.start <= span.start and span.stop <= known.stop for known in self._uncomputed):
                        self._uncomputed.append(span)
            return original(builder, *args)

        return access


def _meet(addresses: Any, size: int, span: range, uncomputed: range) -> bool:
    """Whether one of the elements of `size` bytes at these addresses, which lie in `span`, overlaps `uncomputed`."""
    if span.stop <= uncomputed.start or uncomputed.stop <= span.start:
        return False
    return bool(((addresses + size > uncomputed.start) & (addresses < uncomputed.stop)).any())


# bfloat16

_COMPARISONS = (numpy.less, numpy.less_equal, numpy.greater, numpy.greater_equal, numpy.equal, numpy.not_equal)


def _is_bfloat16(handle: Any) -> bool:
    return bool(handle.dtype.scalar == tl.bfloat16)


def _widened(handle: Any) -> Any:
    """The tensor in float32, if it is in bfloat16."""
    if not _is_bfloat16(handle):
        return handle
    bits = torch.from_numpy(numpy.ascontiguousarray(handle.data)).view(torch.bfloat16)
    return interpreter.TensorHandle(bits.float().numpy(), tl.float32)


def _narrowed(handle: Any) -> Any:
    """The tensor in bfloat16, rounded to the nearest."""
    numbers = torch.from_numpy(numpy.ascontiguousarray(handle.data)).to(torch.bfloat16)
    return interpreter.TensorHandle(numbers.view(torch.uint16).numpy(), tl.bfloat16)


# Element types whose casts torch does, because the interpreter loses the carry of rounding into the exponent. Too large
# values become the largest one (PTX, `cvt.satfinite`).
_EIGHT_BITS = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}


def _in_eight_bits(handle: Any, to: Any) -> Any:
    dtype = _EIGHT_BITS[to.scalar]
    numbers = torch.from_numpy(numpy.ascontiguousarray(handle.data)).float()
    most = torch.finfo(dtype).max
    rounded = numbers.clamp(-most, most).to(dtype)
    return interpreter.TensorHandle(rounded.view(torch.uint8).numpy(), to.scalar)


def _calculated(result_like: int, handles: int) -> Callable[[Any], Any]:
    """Wraps a method with `handles` operands whose result has the type of one of them, unless the method is a
    comparison."""

    def make(original: Any) -> Any:
        def method(self: Any, *args: Any) -> Any:
            operands = args[:handles]
            if not any(_is_bfloat16(operand) for operand in operands):
                return original(self, *args)
            result = original(self, *map(_widened, operands), *args[handles:])
            stays = not _is_bfloat16(operands[result_like]) or args[-1] in _COMPARISONS
            return result if stays else _narrowed(result)

        return method

    return make


def _to_nearest(rounding: Sequence[Any]) -> bool:
    return all(mode is None or mode.name == "RTNE" for mode in rounding)


def _cast(original: Any) -> Any:
    def method(self: Any, source: Any, to: Any, *rest: Any) -> Any:
        of = source.dtype.scalar
        if to.scalar in _EIGHT_BITS and of in (tl.float16, tl.bfloat16, tl.float32, tl.float64) and _to_nearest(rest):
            return _in_eight_bits(_widened(source), to)
        if to.scalar == tl.bfloat16 and not _is_bfloat16(source):
            return _narrowed(original(self, source, tl.float32, *rest) if source.dtype.scalar != tl.float32 else source)
        if _is_bfloat16(source) and to.scalar != tl.bfloat16:
            wide = _widened(source)
            return wide if to.scalar == tl.float32 else original(self, wide, to, *rest)
        return original(self, source, to, *rest)

    return method


_NUMBERS = {
    "unary_op": _calculated(0, 1),
    "binary_op": _calculated(0, 2),
    "ternary_op": _calculated(2, 3),
    "create_fma": _calculated(2, 3),
    "create_dot": _calculated(2, 3),
    "cast_impl": _cast,
    "create_fp_to_fp": _cast,
}


# Reductions of functions of torch's compiler, which handle NaN differently from Triton's

_BY_NUMPY: dict[str, Any] = {"maximum": numpy.max, "minimum": numpy.min, "_prod_accumulate": numpy.prod}


def _reduce(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(self: Any, inputs: Any) -> Any:
        function: Any = getattr(self.combine_fn, "fn", None)
        by_numpy: Any = _BY_NUMPY.get(getattr(function, "__name__", ""))
        if by_numpy is None or not function.__module__.startswith("torch._inductor.") or len(inputs) != 1:
            return original(self, inputs)
        reduced = by_numpy(inputs[0].handle.data, axis=self.axis, keepdims=self.keep_dims)
        return self.to_tensor(reduced, inputs[0].dtype)

    return apply


# libdevice

_SAME_IN_TORCH = (
    "abs acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc erfinv exp exp2 expm1 floor fmod hypot lgamma log log10 "
    "log1p log2 nextafter pow round rsqrt sin sinh sqrt tan tanh trunc"
)

_BY_TORCH: dict[str, Any] = {
    **{name: getattr(torch, name) for name in _SAME_IN_TORCH.split()},
    "fabs": torch.abs,
    "nearbyint": torch.round,
    "rint": torch.round,
    "fast_tanhf": torch.tanh,
    "fast_expf": torch.exp,
    "fast_sinf": torch.sin,
    "fast_cosf": torch.cos,
    "fast_logf": torch.log,
    "fast_log2f": torch.log2,
    "fast_powf": torch.pow,
    "fast_dividef": torch.div,
    "add_rn": torch.add,
    "sub_rn": torch.sub,
    "mul_rn": torch.mul,
    "rcp_rn": torch.reciprocal,
    "saturatef": lambda x: torch.nan_to_num(x, 0.0).clamp(0, 1),
    "fdim": lambda x, y: torch.where(x <= y, 0, x - y).to(x.dtype),
    "exp10": lambda x: torch.pow(10, x),
    "fast_exp10f": lambda x: torch.pow(10, x),
    "sinpi": lambda x: torch.sin(torch.remainder(x.double(), 2) * torch.pi).to(x.dtype),
    "cospi": lambda x: torch.cos(torch.remainder(x.double(), 2) * torch.pi).to(x.dtype),
    "erfcx": torch.special.erfcx,
    "erfcinv": lambda x: (torch.special.ndtri(x.double() / 2) / -(2**0.5)).to(x.dtype),
    "rcbrt": lambda x: torch.copysign(torch.abs(x) ** (-1 / 3), x),
    "logb": lambda x: torch.where(
        (x == 0) | ~torch.isfinite(x), torch.log(torch.abs(x)), (torch.frexp(x).exponent - 1).to(x.dtype)
    ),
    "div_rn": torch.div,
    "div_rz": torch.div,
    "sqrt_rn": torch.sqrt,
    "rsqrt_rn": torch.rsqrt,
    "cbrt": lambda x: torch.sign(x) * torch.abs(x) ** (1 / 3),
    "fma": lambda x, y, z: x * y + z,
    "fmin": torch.fmin,
    "fmax": torch.fmax,
    "remainder": lambda x, y: x - y * torch.round(x / y),
    "isinf": lambda x: torch.isinf(x).to(torch.int32),
    "isnan": lambda x: torch.isnan(x).to(torch.int32),
    "isfinited": lambda x: torch.isfinite(x).to(torch.int32),
    "finitef": lambda x: torch.isfinite(x).to(torch.int32),
    "signbit": lambda x: torch.signbit(x).to(torch.int32),
    "llrint": lambda x: torch.round(x).to(torch.int64),
    "llround": lambda x: (torch.sign(x) * torch.floor(torch.abs(x) + 0.5)).to(torch.int64),
    "ilogb": lambda x: (torch.frexp(x).exponent - 1).to(torch.int32),
    "ldexp": lambda x, exponent: torch.ldexp(x, exponent).to(x.dtype),
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
    "tgamma": lambda x: torch.exp(torch.lgamma(x)) * torch.where((x < 0) & (torch.floor(x) % 2 != 0), -1.0, 1.0),
    "normcdf": torch.special.ndtr,
    "normcdfinv": torch.special.ndtri,
}

_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64, torch.int32: tl.int32, torch.int64: tl.int64}


def _libraries() -> list[ModuleType]:
    from triton.language.extra import libdevice
    from triton.language.extra.cuda import libdevice as of_cuda

    return [libdevice, of_cuda]


def _by_torch(compute: Callable[..., Tensor]) -> Callable[..., Any]:
    def computed(*args: Any, _semantic: Any = None) -> Any:
        tensors = [interpreter.interpreter_semantic.to_tensor(arg) for arg in args]
        # A Python number among the arguments gets the other arguments' type.
        floating = [tensor.dtype for tensor in tensors if tensor.dtype.is_floating()]
        wide = torch.float64 if tl.float64 in floating else torch.float32
        data = [torch.from_numpy(numpy.ascontiguousarray(tensor.handle.data)) for tensor in tensors]
        data = [
            each.to(wide) if tensor.dtype.is_floating() else each for each, tensor in zip(data, tensors, strict=True)
        ]
        result = compute(*data)
        dtype = _TYPES[result.dtype]
        is_block = any(tensor.type.is_block() for tensor in tensors)
        shape = tl.block_type(dtype, list(result.shape)) if is_block else dtype
        return tl.core.tensor(interpreter.TensorHandle(result.numpy(), dtype), shape)

    return computed


_LIBDEVICE: dict[Any, Any] = {
    getattr(module, name): _by_torch(compute)
    for module in _libraries()
    for name, compute in _BY_TORCH.items()
    if hasattr(module, name)
}
