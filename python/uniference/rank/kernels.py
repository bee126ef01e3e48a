"""Owns kernels of Triton on simulated GPUs: each is an operator of torch, so that it is captured, costed and computed as these are.

Its kernel for CUDA launches it, as the program would have; its kernel for the CPU computes it on the same bytes: by what the compiler has
made of it (`execution`), or else by Triton's interpreter (`interpretation`). The operator says which tensors a kernel is given and which of
them it may write to, the integers by which it is called, and its grid. Kernels that torch's compiler has written from operators are in the
namespace `inductor`: they are told by their memory traffic alone. Others are in the namespace `triton`: among their integers is how much
their programs do, where that can be told.
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
    # It imports Triton.
    from uniference.rank.execution import Executable, Work

_SCHEMA = "(str names, Tensor[] read, Tensor(a!)[] written, int[] numbers) -> ()"
_NO_IDENTIFIER = re.compile(r"\W")


@dataclass(frozen=True)
class Launch:
    """A kernel as it is launched: `arguments` by name, those that are constants when it is compiled among them."""

    function: Callable[[], Any]
    """What it is compiled from: Triton's `JITFunction`."""
    arguments: Mapping[str, Any]
    grid: tuple[int, ...]
    start: Callable[[], Any]
    """Has it start on its stream, and returns what the program is given."""
    compiled: Any = None
    """What `execution` carries out; `None`: what `start` has returned."""


def _tensors(value: Any) -> Iterator[Tensor]:
    """Also what a descriptor or a wrapper of Triton's is of."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(base := getattr(value, "base", None), Tensor):
        yield base


class _Running(threading.local):
    """The launches that this thread is in; of the innermost what it has returned, and the addresses of what it has written without
    values."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.result: Any = None
        self.absent: Sequence[range] = ()


_running = _Running()


def _start(called: str, read: Sequence[Tensor], written: Sequence[Tensor], numbers: Sequence[int]) -> None:
    _running.result = _running.launches[-1].start()


def _compute(called: str, read: Sequence[Tensor], written: Sequence[Tensor], numbers: Sequence[int]) -> None:
    """What cannot be computed is a RuntimeError, and counts as absent; a mistake of ours ends the rank."""
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
    # To a kernel a tensor is an address and the type of what is there.
    here = {(tensor.data_ptr(), tensor.dtype): tensor for tensor in (*read, *written)}
    given = [tensor for value in launch.arguments.values() for tensor in _tensors(value)]
    absent = [_span(tensor) for tensor in given if _graphs.library.is_absent(tensor)]
    _running.absent = _carry_out(launch, lambda tensor: here[tensor.data_ptr(), tensor.dtype], absent)


def _carry_out(launch: Launch, here: Callable[[Tensor], Tensor], absent: Sequence[range] = ()) -> Sequence[range]:
    """What `interpretation.run` does, by what the compiler has made of the kernel, where that can be read."""
    from uniference.rank import execution

    executable = execution.of(launch.compiled)
    if executable is not None:
        return executable.run(launch.arguments, launch.grid, here, absent)
    from uniference.rank import interpretation

    try:
        return interpretation.run(launch.function(), launch.arguments, launch.grid, here, absent)
    except Exception as error:  # it is the interpreter's matter what it does not take
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _span(tensor: Tensor) -> range:
    """The addresses of its elements, and of what lies between them."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(tensor.data_ptr(), tensor.data_ptr() + (last + 1 if tensor.numel() else 0) * tensor.element_size())


class _Graphs:
    """Launches that graphs have captured, by number: they are computed whenever their graph is launched."""

    library: Library
    channel: Channel

    def __init__(self) -> None:
        self.launches: dict[int, Launch] = {}

    def keep(self, launch: Launch) -> None:
        """If the operator that has just run was captured. What it is given belongs to the graph, and is not kept here."""
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
    """A launch as a call of an operator."""

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
            _running.result, _running.absent = None, ()

    def _ran(self) -> None:
        _graphs.channel.enter()
        try:
            _graphs.keep(self.launch)
            for tensor in self.written if _running.absent else ():
                span = _span(tensor)
                if any(written.start < span.stop and span.start < written.stop for written in _running.absent):
                    _graphs.library.mark_absent(tensor)
        finally:
            _graphs.channel.leave()


class _Works:
    """How much kernels do, by what the compiler has made of them."""

    _MOST_BYTES = 1 << 20
    """More integers are not looked at for each launch."""
    _MOST_KNOWN = 1 << 14

    def __init__(self) -> None:
        # By kernel, grid and arguments: which of the tensors have integers that decide it.
        self._deciding: dict[tuple[Any, ...], frozenset[int]] = {}
        # By these integers, too.
        self._known: dict[tuple[Any, ...], Mapping[str, int]] = {}

    def of(
        self, executable: "Executable | None", arguments: Mapping[str, Any], grid: tuple[int, ...]
    ) -> Mapping[str, int]:
        """Empty, where it cannot be told."""
        if executable is None:
            return {}
        tensors = [tensor for value in arguments.values() for tensor in _tensors(value)]
        # A part of a tensor is not all that a kernel may access.
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
    """Of what is in memory. `None`: it has no values, is more than so many bytes, or is there only when a graph is launched."""
    spans = list(map(_span, tensors))
    is_too_much = sum(map(len, spans)) > most or any(map(_graphs.library.is_absent, tensors))
    if is_too_much or (tensors and torch.cuda.is_current_stream_capturing()):
        return None
    texts = (ctypes.string_at(span.start, len(span)) for span in spans)
    return tuple(hashlib.blake2b(text, digest_size=16).digest() for text in texts)


def _holders(tensors: Sequence[Tensor], integers: Sequence[tuple[int, int]]) -> frozenset[int] | None:
    """Which of the tensors these addresses are of. `None`: some are of none."""
    spans = list(map(_span, tensors))
    holders = [
        [place for place, span in enumerate(spans) if start < span.stop and span.start < stop]
        for start, stop in integers
    ]
    return frozenset(place for places in holders for place in places) if all(holders) else None


def _memory(tensor: Tensor) -> range:
    """The addresses of what it may be a part of."""
    storage = tensor.untyped_storage()
    return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def _plain(value: Any) -> Any:
    """An argument as far as it is known without memory."""
    base = getattr(value, "base", value)
    if hasattr(base, "data_ptr"):
        return base.dtype, base.data_ptr() % 32
    return tuple(map(_plain, value)) if isinstance(value, (tuple, list)) else repr(value)


def _numbers(work: "Work") -> Mapping[str, int]:
    """`describe_work` of crates/devices/src/operators/kernel.rs reads them."""
    products = zip(("flops_8", "flops_16", "flops_tf32", "flops_32"), work.products, strict=True)
    operations = zip(("operations", "operations_64"), work.operations, strict=True)
    return dict((*products, *operations), bytes_read=work.read, bytes_written=work.written)


_works = _Works()

# Kernels that crates/devices/src/operators/serving describes by what they are called with, and an argument that tells each from others of
# its name. They are called again and again with other lengths, and nobody asks for what their programs do.
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
    # Prefixes that queries see beside their window are known to the kernel alone.
    return _DESCRIBED.get(name) in arguments and not arguments.get("USE_R_SWA")


def _call(
    namespace: Namespace,
    name: str,
    launch: Launch,
    written: Callable[[str], bool],
    read: Callable[[str], bool],
    known: Mapping[str, int] = MappingProxyType({}),
) -> _Call | None:
    """`written` and `read` say of an argument's name whether the kernel does that with it; `known` says more of it. `None`: no tensor is
    of a GPU."""
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
    """Of an integer without a sign its 64 bits, as operators take them."""
    return number - (1 << 64) if number >= 1 << 63 else number


# Kernels of the program


class _Accesses:
    """Which of its arguments a kernel writes to, by what the compiler has made of it; where that cannot be read, as torch's compiler finds
    it: to that, whatever an address depends on is written to as well."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._known: dict[Any, frozenset[str]] = {}

    def written(
        self, function: Any, arguments: Mapping[str, Any], executable: "Callable[[], Executable | None]"
    ) -> frozenset[str]:
        """What it does with addresses depends on types, and on constants; where torch cannot tell, it is all tensors."""
        constants = {parameter.name for parameter in function.params if parameter.is_constexpr}
        key = tuple(
            (name, value.dtype)
            if isinstance(value, Tensor)
            # Triton compiles for an integer of 1 by itself.
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
            # Torch looks for each tensor behind a name of its own, and says so at length.
            return frozenset(name for name, value in arguments.items() if any(True for _ in _tensors(value)))
        with _quiet(), _past_assembly():
            accesses = names.TRITON_ACCESSES.current(function, dict(arguments), {})
        return frozenset(access.name for access in accesses.read_writes.writes)


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch says at length where it cannot tell. What is wrong with a kernel, its compiler says."""

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
    """Assembly that may write anywhere is taken not to: it waits for other kernels, or calculates. A compiler on another thread takes it so
    meanwhile, too."""
    operations, assembly = names.TRITON_ACCESS_OPS.current, "tt.elementwise_inline_asm"
    with _asking:
        known = operations.pop(assembly, None)
        try:
            yield
        finally:
            if known is not None:
                operations[assembly] = known


def _note_programs_kernels(accesses: _Accesses) -> None:
    """What a kernel that a program launches by itself is given counts once."""
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
        # The program's own function.
        places = tuple(map(int, grid(arguments) if callable(grid) else grid))

        def start() -> Any:
            return original(self, *args, grid=places, warmup=warmup, **kwargs)

        @functools.cache
        def executable() -> "Executable | None":
            from uniference.rank import execution

            # These want to see each launch once.
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
    """A call's arguments by name; options of the compiler are none."""
    given = dict(zip(function.arg_names, args, strict=False))
    given.update((name, value) for name, value in kwargs.items() if name in function.arg_names)
    defaults = {name: parameter.default for name, parameter in function.signature.parameters.items()}
    return {name: given.get(name, defaults[name]) for name in function.arg_names}


# Kernels of torch's compiler


def _note_compiled_kernels() -> None:
    original = names.INDUCTOR_LAUNCHER.original

    @functools.wraps(original)
    def made(self: Any, compile_result: Any) -> Any:
        launcher, error = original(self, compile_result)
        return (None if launcher is None else _noted(self, launcher, compile_result.compile_meta)), error

    names.INDUCTOR_LAUNCHER.replace(made)


def _noted(tuner: Any, launcher: Any, meta: Mapping[str, Any]) -> Any:
    """A launcher of a kernel, for one configuration."""
    from uniference.rank import execution

    constants = {**tuner.triton_meta.get("constants", {}), **launcher.config.kwargs}
    constants = {name: value for name, value in constants.items() if isinstance(name, str)}
    # How often its loops access tensors bounds how much of a table they read.
    accesses = {name: tuner.inductor_meta[name] for name in ("num_load", "num_store") if name in tuner.inductor_meta}
    name = tuner.inductor_meta.get("kernel_name") or tuner.fn.__name__
    is_known = is_of_operators(tuner)
    namespace = names.COMPILED_KERNELS if is_known else names.OTHER_KERNELS

    def written(argument: str) -> bool:
        # Besides results, what a scan keeps for its blocks.
        if is_known:
            return "out_ptr" in argument or not argument.startswith("in_")
        executable = source.executable
        return executable is None or executable.written is None or argument in executable.written

    def read(argument: str) -> bool:
        return argument.startswith("in_") if is_known else not written(argument)

    def function() -> Any:
        # It is dropped once it is compiled.
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
            # A tensor of the CPU may be given for a number.
            given = {key: value if "*" in str(signature[key]) else _number(value) for key, value in given.items()}
            arguments = {**constants, **given, **kwargs}
            known = accesses if is_known else _works.of(source.executable, arguments, grid)
            call = _call(namespace, name, Launch(function, arguments, grid, start, source), written, read, known)
        finally:
            _graphs.channel.leave()
        return start() if call is None else call.run()

    # Torch would take what is marked so apart, to launch the kernel without this function.
    launched.__dict__.update({key: value for key, value in launcher.__dict__.items() if key != "_is_static"})
    return launched


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.device.type == "cpu" and value.numel() == 1 else value


def install(channel: Channel, library: Library) -> None:
    """From here on, kernels of Triton are operators. Nothing is imported for that."""

    _graphs.library, _graphs.channel = library, channel
    accesses = _Accesses(channel)

    when_imported(
        {
            names.TRITON_RUN.module: functools.partial(_note_programs_kernels, accesses),
            names.INDUCTOR_LAUNCHER.module: _note_compiled_kernels,
        }
    )
