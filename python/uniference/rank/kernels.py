"""Owns Triton kernels on simulated GPUs: each becomes a torch operator, so that it is captured, costed and computed
like other operators.

The operator's CUDA kernel launches the Triton kernel, as the program would have; its CPU kernel computes it on the same
bytes: from the compiler's output (`execution`), or otherwise by Triton's interpreter (`interpretation`). The operator
lists the kernel's tensors and which of them it may write to, its integer arguments, and its grid. Kernels that torch's
compiler has generated from operators are in the namespace `inductor`, and are costed by their memory traffic alone.
Others are in the namespace `triton`: their integers include the amount of work of their programs, if it is known.
"""

import ctypes
import dataclasses
import functools
import hashlib
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from uniference._native import Channel
from uniference.patches import names
from uniference.patches.later import when_imported
from uniference.patches.registry import Namespace
from uniference.rank.capture import Library
from uniference.rank.charging import uncharged
from uniference.rank.compiling import is_of_operators

if TYPE_CHECKING:
    # These modules import Triton.
    from uniference.rank.execution import Executable, Work

_SCHEMA = "(str names, Tensor[] read, Tensor(a!)[] written, int[] numbers) -> ()"
_NO_IDENTIFIER = re.compile(r"\W")


@dataclass(frozen=True)
class Launch:
    """A kernel launch: `arguments` by name, including compile-time constants."""

    function: Callable[[], Any]
    """Returns the source of the kernel: Triton's `JITFunction`."""
    arguments: Mapping[str, Any]
    grid: tuple[int, ...]
    start: Callable[[], Any]
    """Launches the kernel on its stream, and returns the program's result."""
    compiled: Any = None
    """The compiled kernel that `execution` carries out; `None`: the result of `start`."""


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of an argument, including those inside Triton's descriptors and wrappers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(base := getattr(value, "base", None), Tensor):
        yield base


class _Running(threading.local):
    """State of this thread's launches: the stack of launches, the result of the innermost launch, and the address
    ranges that this launch has written without values."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.result: Any = None
        self.uncomputed: Sequence[range] = ()


_running = _Running()


def _start(called: str, read: Sequence[Tensor], written: Sequence[Tensor], numbers: Sequence[int]) -> None:
    _running.result = _running.launches[-1].start()


def _compute(called: str, read: Sequence[Tensor], written: Sequence[Tensor], numbers: Sequence[int]) -> None:
    """Computes a kernel. A RuntimeError marks its results as not computed; a bug of Uniference ends the rank."""
    try:
        _compute_here(read, written)
    except (RuntimeError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        traceback.print_exc()
        print(
            "this is a bug in Uniference; please report it together with the lines above", file=sys.stderr, flush=True
        )
        os._exit(70)


def _compute_here(read: Sequence[Tensor], written: Sequence[Tensor]) -> None:
    number = _graphs.library.computed()
    if number:
        _carry_out(_graphs.launches[number], lambda tensor: tensor)
        return
    launch = _running.launches[-1]
    launch = dataclasses.replace(launch, compiled=launch.compiled or _running.result)
    # A kernel needs only a tensor's address and element type.
    here = {(tensor.data_ptr(), tensor.dtype): tensor for tensor in (*read, *written)}
    given = [tensor for value in launch.arguments.values() for tensor in _tensors(value)]
    uncomputed = [_span(tensor) for tensor in given if _graphs.library.is_uncomputed(tensor)]
    _running.uncomputed = _carry_out(launch, lambda tensor: here[tensor.data_ptr(), tensor.dtype], uncomputed)


def _carry_out(launch: Launch, here: Callable[[Tensor], Tensor], uncomputed: Sequence[range] = ()) -> Sequence[range]:
    """Carries out a kernel from the compiler's output if that is readable, otherwise by `interpretation.run`."""
    from uniference.rank import execution

    executable = execution.of(launch.compiled)
    if executable is not None:
        return executable.run(launch.arguments, launch.grid, here, uncomputed)
    from uniference.rank import interpretation

    try:
        return interpretation.run(launch.function(), launch.arguments, launch.grid, here, uncomputed)
    except Exception as error:  # the interpreter raises various errors for unsupported kernels
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _span(tensor: Tensor) -> range:
    """The address range from a tensor's first to its last element."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(tensor.data_ptr(), tensor.data_ptr() + (last + 1 if tensor.numel() else 0) * tensor.element_size())


class _Graphs:
    """Launches that CUDA graphs have captured, by number: they are computed at each launch of their graph."""

    library: Library
    channel: Channel

    def __init__(self) -> None:
        self.launches: dict[int, Launch] = {}

    def keep(self, launch: Launch) -> None:
        """Keeps the launch if the operator that has just run was captured. The tensors belong to the graph, and are not
        kept alive."""
        number = self.library.take_captured()
        if not number:
            return
        from uniference.rank import execution

        while gone := self.library.forgotten():
            self.launches.pop(gone, None)
        arguments = {key: execution.placed(value, execution.address) for key, value in launch.arguments.items()}
        self.launches[number] = dataclasses.replace(
            launch, arguments=arguments, start=_no_start, compiled=launch.compiled or _running.result
        )


def _no_start() -> Any:
    raise AssertionError("a graph launches its kernels itself")


_graphs = _Graphs()


@dataclass(frozen=True)
class _Call:
    """A kernel launch as a call of an operator."""

    launch: Launch
    operator: Any
    called: str
    read: Sequence[Tensor]
    written: Sequence[Tensor]
    numbers: Sequence[int]

    def run(self) -> Any:
        """Launches the kernel."""
        _running.launches.append(self.launch)
        try:
            with (
                torch._C._AutoDispatchBelowAutograd(),
                torch._C._DisableTorchDispatch(),
                torch._C.DisableTorchFunction(),
            ):
                self.operator(self.called, self.read, self.written, self.numbers)
            self._ran()
            return _running.result
        finally:
            _running.launches.pop()
            _running.result, _running.uncomputed = None, ()

    def _ran(self) -> None:
        _graphs.channel.enter()
        try:
            _graphs.keep(self.launch)
            for tensor in self.written if _running.uncomputed else ():
                span = _span(tensor)
                if any(written.start < span.stop and span.start < written.stop for written in _running.uncomputed):
                    _graphs.library.mark_uncomputed(tensor)
        finally:
            _graphs.channel.leave()


class _Works:
    """Work of kernels, as counted from the compiler's output."""

    _MOST_BYTES = 1 << 20
    """Most bytes of integers that are read at each launch."""
    _MOST_KNOWN = 1 << 14

    def __init__(self) -> None:
        # Indices of the tensors whose integers the work depends on, by kernel, grid and arguments.
        self._deciding: dict[tuple[Any, ...], frozenset[int]] = {}
        # Known work, by kernel, grid, arguments and the integers in memory that it depends on.
        self._known: dict[tuple[Any, ...], Mapping[str, int]] = {}

    def of(
        self, executable: "Executable | None", arguments: Mapping[str, Any], grid: tuple[int, ...]
    ) -> Mapping[str, int]:
        """Work of a launch as named integers; empty if the work is unknown."""
        if executable is None:
            return {}
        tensors = [tensor for value in arguments.values() for tensor in _tensors(value)]
        # A kernel may access the whole storage, of which the tensor may be a part.
        sizes = tuple(len(_memory(tensor)) for tensor in tensors)
        plain = (executable, grid, sizes, tuple(map(_plain, arguments.values())))
        deciding = self._deciding.get(plain, frozenset())
        integers = _digests([tensors[place] for place in sorted(deciding)], self._MOST_BYTES)
        if integers is None:
            return {}
        key = (*plain, deciding, integers)
        if key not in self._known:
            if len(self._known) == self._MOST_KNOWN:
                self._known.clear()
                self._deciding.clear()
            work = executable.work(arguments, grid, list(map(_memory, tensors)))
            read = None if work is None else _holders(tensors, work.integers)
            if read is not None and not read <= deciding:
                self._deciding[plain] = deciding | read
                return self.of(executable, arguments, grid)
            self._known[key] = {} if work is None or read is None else _numbers(work)
        return self._known[key]


def _digests(tensors: Sequence[Tensor], most: int) -> tuple[bytes, ...] | None:
    """Digests of the tensors' bytes. `None`: a tensor has no values, the tensors have more than `most` bytes, or the
    values exist only when a graph is launched."""
    spans = list(map(_span, tensors))
    is_too_much = sum(map(len, spans)) > most or any(map(_graphs.library.is_uncomputed, tensors))
    if is_too_much or (tensors and torch.cuda.is_current_stream_capturing()):
        return None
    texts = (ctypes.string_at(span.start, len(span)) for span in spans)
    return tuple(hashlib.blake2b(text, digest_size=16).digest() for text in texts)


def _holders(tensors: Sequence[Tensor], integers: Sequence[tuple[int, int]]) -> frozenset[int] | None:
    """Indices of the tensors that contain these addresses. `None`: an address is in no tensor."""
    spans = list(map(_span, tensors))
    holders = [
        [place for place, span in enumerate(spans) if start < span.stop and span.start < stop]
        for start, stop in integers
    ]
    return frozenset(place for places in holders for place in places) if all(holders) else None


def _memory(tensor: Tensor) -> range:
    """The address range of the tensor's storage."""
    storage = tensor.untyped_storage()
    return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def _plain(value: Any) -> Any:
    """An argument without the contents of memory."""
    base = getattr(value, "base", value)
    if hasattr(base, "data_ptr"):
        return base.dtype, base.data_ptr() % 32
    return tuple(map(_plain, value)) if isinstance(value, (tuple, list)) else repr(value)


def _numbers(work: "Work") -> Mapping[str, int]:
    """Named integers that `describe_work` of crates/costs/src/operators/kernel.rs reads."""
    products = zip(("flops_8", "flops_16", "flops_tf32", "flops_32"), work.products, strict=True)
    operations = zip(("operations", "operations_64"), work.operations, strict=True)
    return dict((*products, *operations), bytes_read=work.read, bytes_written=work.written)


_works = _Works()

# Kernels that crates/costs/src/operators/serving describes by their arguments, and an argument that distinguishes
# each from others of its name. Their work is not counted: they are called many times with other lengths, and the
# description needs no count.
_DESCRIBED = {
    "_fwd_grouped_kernel_stage1": "K_Buffer",
    "_fwd_kernel": "Q_Extend",
    "_fwd_kernel_stage1": "K_Buffer",
    "_fwd_kernel_stage2": "Mid_O",
    "_fwd_kernel_unified": "qo_indptr",
    "_matmul_ogs": "YExpectedScale",
    "_p_matmul_ogs": "YExpectedScale",
    "_w8a8_block_fp8_matmul": "As",
    "_w8a8_block_fp8_matmul_hopper": "As",
    "_w8a8_block_fp8_matmul_unrolledx4": "As",
    "_w8a8_triton_block_scaled_mm": "As",
    "create_flashinfer_kv_indices_triton": "kv_indptr",
    "fused_moe_kernel": "a_ptr",
    "kernel_unified_attention": "block_tables_ptr",
    "reduce_segments": "segm_output_ptr",
    "reshape_and_cache_kernel_flash": "slot_mapping_ptr",
    "reshape_and_cache_kernel_flash_diffkv": "slot_mapping_ptr",
    "write_req_to_token_pool_triton": "out_cache_loc",
}


def _is_described(name: str, arguments: Mapping[str, Any]) -> bool:
    # Kernels with a sliding window and a prefix are not described: only the kernel itself knows the length of the
    # prefix.
    return _DESCRIBED.get(name) in arguments and not arguments.get("USE_R_SWA")


def _call(
    namespace: Namespace,
    name: str,
    launch: Launch,
    written: Callable[[str], bool],
    read: Callable[[str], bool],
    known: Mapping[str, int] = MappingProxyType({}),
) -> _Call | None:
    """Returns the call of the kernel's operator. `written` and `read` tell whether the kernel accesses the argument of
    a name; `known` has further integers. `None`: no tensor is on a GPU."""
    tensors = {key: list(_tensors(value)) for key, value in launch.arguments.items()}
    if not any(tensor.is_cuda for several in tensors.values() for tensor in several):
        return None
    operator = namespace.operator(_NO_IDENTIFIER.sub("_", name), _SCHEMA, {"CUDA": _start, "CPU": _compute})
    integers = {**{key: value for key, value in launch.arguments.items() if isinstance(value, int)}, **known}
    grid = dict(zip(("grid_x", "grid_y", "grid_z"), (*launch.grid, 1, 1), strict=False))
    inputs = {key: several for key, several in tensors.items() if several and read(key)}
    outputs = {key: several for key, several in tensors.items() if several and written(key)}
    return _Call(
        launch,
        operator,
        ";".join(",".join(part) for part in (inputs, outputs, (*integers, *grid))),
        [tensor for several in inputs.values() for tensor in several],
        [tensor for several in outputs.values() for tensor in several],
        [_signed(int(number)) for number in (*integers.values(), *grid.values())],
    )


def _signed(number: int) -> int:
    """The 64 bits of an unsigned integer as a signed one, which operators accept."""
    return number - (1 << 64) if number >= 1 << 63 else number


# Kernels launched by the program


class _Accesses:
    """Finds the arguments that a kernel writes to, from the compiler's output; if that is unreadable, by torch's
    compiler, which also counts every argument that an address depends on as written."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._known: dict[Any, frozenset[str]] = {}

    def written(
        self, function: Any, arguments: Mapping[str, Any], executable: "Callable[[], Executable | None]"
    ) -> frozenset[str]:
        """Names of the written tensors. The result depends on types and constants; if torch cannot find it, it is all
        tensors."""
        constants = {parameter.name for parameter in function.params if parameter.is_constexpr}
        key = tuple(
            (name, value.dtype)
            if isinstance(value, Tensor)
            # Triton compiles a separate version for an integer argument of 1.
            else (name, repr(value) if name in constants else (type(value), isinstance(value, int) and value == 1))
            for name, value in arguments.items()
        )
        known = self._known.get((function, key))
        if known is None:
            known = self._known[function, key] = self._find(function, arguments, executable())
        return known

    @uncharged
    def _find(self, function: Any, arguments: Mapping[str, Any], executable: "Executable | None") -> frozenset[str]:
        if executable is not None and executable.written is not None:
            return executable.written
        if any(isinstance(value, tuple) for value in arguments.values()):
            # Torch expects each tensor behind a name of its own, and otherwise prints a long message.
            return frozenset(name for name, value in arguments.items() if any(True for _ in _tensors(value)))
        with _quiet(), _past_assembly():
            accesses = names.TRITON_ACCESSES.current(function, dict(arguments), {})
        return frozenset(access.name for access in accesses.read_writes.writes)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences torch's long messages about kernels that it cannot analyse. Errors in a kernel are reported by its
    compiler."""

    def dropped(record: logging.LogRecord) -> bool:
        return False

    log = logging.getLogger("torch._dynamo")
    log.addFilter(dropped)
    try:
        yield
    finally:
        log.removeFilter(dropped)


_asking = threading.Lock()


@contextmanager
def _past_assembly() -> Iterator[None]:
    """Treats inline assembly, which might write anywhere, as not writing: such code waits for other kernels, or
    calculates. Compilers on other threads see the patch, too."""
    operations, assembly = names.TRITON_ACCESS_OPS.current, "tt.elementwise_inline_asm"
    with _asking:
        known = operations.pop(assembly, None)
        try:
            yield
        finally:
            if known is not None:
                operations[assembly] = known


def _note_programs_kernels(accesses: _Accesses) -> None:
    """Wraps launches of a program's own kernels, and evaluates a launch's arguments once."""
    original = names.TRITON_RUN.original

    @functools.wraps(original)
    def launched(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        accesses.channel.enter()
        try:
            arguments = _bound(self, args, kwargs)
        finally:
            accesses.channel.leave()
        # `grid` may be a function of the program, so its time is charged.
        places = tuple(map(int, grid(arguments) if callable(grid) else grid))

        def start() -> Any:
            return original(self, *args, grid=places, warmup=warmup, **kwargs)

        @functools.cache
        def executable() -> "Executable | None":
            from uniference.rank import execution

            # The program's launch hooks must see each launch only once.
            if self.pre_run_hooks:
                return None
            return execution.of(original(self, *args, grid=places, warmup=True, **kwargs))

        accesses.channel.enter()
        try:
            launch = Launch(lambda: self, arguments, places, start)
            written = accesses.written(self, arguments, executable)
            known = {} if _is_described(self.__name__, arguments) else _works.of(executable(), arguments, places)
            call = _call(
                names.OTHER_KERNELS,
                self.__name__,
                launch,
                written.__contains__,
                lambda name: name not in written,
                known,
            )
        finally:
            accesses.channel.leave()
        return start() if call is None else call.run()

    names.TRITON_RUN.replace(launched)


def _bound(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by name; compiler options are left out."""
    given = dict(zip(function.arg_names, args, strict=False))
    given.update((name, value) for name, value in kwargs.items() if name in function.arg_names)
    defaults = {name: parameter.default for name, parameter in function.signature.parameters.items()}
    return {name: given.get(name, defaults[name]) for name in function.arg_names}


# Kernels generated by torch's compiler


def _note_compiled_kernels() -> None:
    original = names.INDUCTOR_LAUNCHER.original

    @functools.wraps(original)
    def made(self: Any, compile_result: Any) -> Any:
        launcher, error = original(self, compile_result)
        return (None if launcher is None else _noted(self, launcher, compile_result.compile_meta)), error

    names.INDUCTOR_LAUNCHER.replace(made)


def _noted(tuner: Any, launcher: Any, meta: Mapping[str, Any]) -> Any:
    """Wraps a kernel's launcher for one configuration."""
    from uniference.rank import execution

    constants = {**tuner.triton_meta.get("constants", {}), **launcher.config.kwargs}
    constants = {name: value for name, value in constants.items() if isinstance(name, str)}
    # The number of accesses in the kernel's loops limits the rows of a table that they read.
    accesses = {name: tuner.inductor_meta[name] for name in ("num_load", "num_store") if name in tuner.inductor_meta}
    name = tuner.inductor_meta.get("kernel_name") or tuner.fn.__name__
    is_known = is_of_operators(tuner)
    namespace = names.COMPILED_KERNELS if is_known else names.OTHER_KERNELS

    def written(argument: str) -> bool:
        # Outputs include the workspace of a scan.
        if is_known:
            return "out_ptr" in argument or not argument.startswith("in_")
        executable = source.executable
        return executable is None or executable.written is None or argument in executable.written

    def read(argument: str) -> bool:
        return argument.startswith("in_") if is_known else not written(argument)

    def function() -> Any:
        # The compiler drops the function after compilation, so it is loaded again.
        tuner._ensure_kernel_loaded()
        return tuner.fn

    source, signature = execution.Source(function, meta), tuner.triton_meta["signature"]

    def launched(*args: Any, stream: Any, **kwargs: Any) -> Any:
        def start() -> Any:
            return launcher(*args, stream=stream, **kwargs)

        _graphs.channel.enter()
        try:
            own, grid = tuner._interpret_args_grid(args, launcher.config)
            passed = [argument for argument in signature if argument not in constants]
            given = dict(zip(passed, own, strict=False))
            # A number may be passed as a CPU tensor.
            given = {key: value if "*" in str(signature[key]) else _number(value) for key, value in given.items()}
            arguments = {**constants, **given, **kwargs}
            known = accesses if is_known else _works.of(source.executable, arguments, grid)
            call = _call(namespace, name, Launch(function, arguments, grid, start, source), written, read, known)
        finally:
            _graphs.channel.leave()
        return start() if call is None else call.run()

    # Without the mark `_is_static`, because torch would unpack a marked launcher and launch the kernel without this
    # function.
    launched.__dict__.update({key: value for key, value in launcher.__dict__.items() if key != "_is_static"})
    return launched


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.device.type == "cpu" and value.numel() == 1 else value


def install(channel: Channel, library: Library) -> None:
    """Turns Triton kernels into operators from now on. Triton is not imported if the program does not import it."""

    _graphs.library, _graphs.channel = library, channel
    accesses = _Accesses(channel)

    when_imported(
        {
            names.TRITON_RUN.module: functools.partial(_note_programs_kernels, accesses),
            names.INDUCTOR_LAUNCHER.module: _note_compiled_kernels,
        }
    )
