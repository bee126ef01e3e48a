"""Owns the C++ library that captures a rank's operators (`cpp/capture.cpp`).

The stream that the library writes is documented, and read, in `crates/formats/src/operators`.
"""

import atexit
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial, wraps
from importlib.resources import files
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch.nn.modules import module
from torch.nn.parameter import is_lazy
from torch.optim import optimizer

from uniference._native import MEMORY_KINDS, Channel, check_capture, scalar_type
from uniference.patches import names
from uniference.patches.later import when_imported
from uniference.program.lines import LIBRARIES, user_line
from uniference.rank import compiling

TIMED = "UNIFERENCE_TIMED"
"""Environment variable of a rank: if set, the duration of each operator is captured, too."""

PYTHON_CALLS = "UNIFERENCE_PYTHON_CALLS"
"""Environment variable of a rank: if set, function calls are counted."""

STRICT_VALUES = "UNIFERENCE_STRICT_VALUES"
"""Environment variable of a rank: if set, the first operator or kernel without values ends the run (`--strict-values`)."""

UNLIMITED = "UNIFERENCE_UNLIMITED"
"""Environment variable of a rank: if set, the rank may allocate more than its device's memory."""

_PARAMETER, _GRADIENT, _OPTIMIZER, _BUFFER = (
    MEMORY_KINDS[name] for name in ("parameter", "gradient", "optimizer", "buffer")
)


class Library:
    """The C++ part, loaded once by the process that ranks are forked from."""

    def __init__(self, path: Path, nanoseconds_a_tick: float | None = None) -> None:
        self.functions = ctypes.CDLL(str(path))
        self.address = _functions_of(self.functions, path)
        self.functions.uniference_capture_ticks.restype = ctypes.c_uint64
        self.functions.uniference_capture_begin.argtypes = [
            ctypes.c_int64,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_double,
        ]
        self.functions.uniference_capture_limit.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
        for name in ("is_uncomputed", "mark_uncomputed"):
            getattr(self.functions, f"uniference_capture_{name}").argtypes = [ctypes.c_void_p]
        self.functions.uniference_capture_is_large.argtypes = [ctypes.c_uint64, ctypes.c_uint32]
        for name in ("kind", "call"):
            getattr(self.functions, f"uniference_capture_{name}").argtypes = [ctypes.c_void_p, ctypes.c_int]
        self.nanoseconds_a_tick = nanoseconds_a_tick or self._nanoseconds_a_tick()

    def begin(self, channel: Channel, limit: int | None, device: str, memory: int | None) -> None:
        """Captures what this process computes from here on; see `install`."""
        channel.capture(self.address)
        libraries = b"".join(os.fsencode(beginning) + b"\0" for beginning in LIBRARIES) + b"\0"
        self._lacking = _Lacking(_ends_without_memory(channel))
        self.functions.uniference_capture_lacking(self._lacking, ctypes.c_void_p(channel.available_memory()))
        self._uncomputed = _Uncomputed(_warns_of_missing_values(channel))
        self.functions.uniference_capture_uncomputed(self._uncomputed)
        atexit.register(_count_missing_values, channel, self)
        self.functions.uniference_capture_limit(device.encode(), memory or 0)
        self.functions.uniference_capture_begin(
            -1 if limit is None else limit, libraries, channel.captures, TIMED in os.environ, self.nanoseconds_a_tick
        )
        _note_kinds(channel, self)
        compiling.install(self)
        _pass_higher_order_operators()
        when_imported({names.BLOCK_MASK.module: partial(_compute_masks, self)})

    def count_python_calls(self) -> None:
        """Counts function calls of this thread, and of Python threads that start later, from now on."""
        self.functions.uniference_capture_python_calls.restype = ctypes.c_void_p
        count = ctypes.c_void_p(self.functions.uniference_capture_python_calls())
        prototype = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.py_object)
        set_profile = prototype(("PyEval_SetProfile", ctypes.pythonapi))

        def begin(*_event: Any) -> None:
            # If a program replaces the profile function and then restores this one, this one is called again.
            set_profile(count, begin)

        threading.setprofile(begin)
        begin()

    def communication(self, channel: Channel) -> int:
        """Address of the functions by which the simulated GPU library communicates: see `Channel.communication`."""
        return channel.communication(self.address)

    def begin_cpu_reference(self, *functions: int) -> None:
        """Computes the values of operators on simulated GPUs from now on, through functions of the simulated GPU
        library."""
        self.functions.uniference_capture_begin_cpu_reference(*(ctypes.c_void_p(function) for function in functions))

    def take_captured(self) -> int:
        """Number of the operator that this thread ran last, if a graph has captured it; otherwise 0."""
        return self._number("take_captured")

    def computed(self) -> int:
        """Number of the graph's operator that this thread is computing; 0: none."""
        return self._number("computed")

    def forgotten(self) -> int:
        """Number of an operator whose graph was destroyed; each such operator is returned once; 0: none is left."""
        return self._number("forgotten")

    def computing_operators(self) -> int:
        """Number of operators that this thread has run so far and whose compute is charged: views are not."""
        return self._number("computing_operators")

    def _number(self, name: str) -> int:
        function = getattr(self.functions, f"uniference_capture_{name}")
        function.restype = ctypes.c_uint64
        return int(function())

    def leave_uncomputed(self) -> AbstractContextManager[None]:
        """Computes no values on simulated GPUs on this thread inside the context, because the results are not used."""
        return self._meanwhile(self.functions.uniference_capture_leave_uncomputed)

    def keep_indices(self) -> AbstractContextManager[None]:
        """Computes integers of up to 268 million elements on this thread inside the context, because they decide the
        work of other operators."""
        return self._meanwhile(self.functions.uniference_capture_keep_indices)

    @contextmanager
    def _meanwhile(self, change: Callable[[int], None]) -> Iterator[None]:
        """Increments a counter of this thread by `change`, and decrements it at the end of the context."""
        change(1)
        try:
            yield
        finally:
            change(-1)

    @contextmanager
    def compiling(self, is_compiling: bool) -> Iterator[None]:
        """Computes operators of this thread with values and without recording them; with `is_compiling` false, records
        them again."""
        before = self.functions.uniference_capture_compiling(is_compiling)
        try:
            yield
        finally:
            self.functions.uniference_capture_compiling(before)

    def count_gpu_memory(self, own: int, taken: int) -> None:
        """Counts torch's allocations on the rank's own GPU from now on: `own` and `taken` are functions that return the
        GPU and the process's used memory."""
        self.functions.uniference_capture_gpu_memory(ctypes.c_void_p(own), ctypes.c_void_p(taken))

    def held_on_gpu(self) -> str:
        """Memory allocated on the rank's GPU, by kind, as text."""
        self.functions.uniference_capture_held.restype = ctypes.c_char_p
        return str(self.functions.uniference_capture_held().decode())

    def device_link(self, channel: Channel) -> int:
        """Address of the functions by which the simulated GPU library writes entries: see `Channel.device_link`."""
        return channel.device_link(self.address)

    def carry_out_calls(self, channel: Channel) -> None:
        """Sends calls of process groups that need no Python directly to the channel's client."""
        self.functions.uniference_backend_begin(*map(ctypes.c_void_p, channel.calls()))

    def note(self, tensor: torch.Tensor, kind: int) -> None:
        """Sets the kind of a tensor's memory."""
        if is_lazy(tensor):
            return  # a lazy tensor has no memory before its module is called
        tensor = getattr(tensor, "_local_tensor", tensor)
        if tensor.device.type in ("cpu", "cuda") and tensor.layout == torch.strided:
            self.functions.uniference_capture_kind(tensor.untyped_storage()._cdata, kind)

    def call(self, tensors: Iterable[torch.Tensor], written: bool) -> None:
        """Announces that this thread's next call sends the data of these tensors, or writes received data into them."""
        for tensor in tensors:
            if tensor.is_cpu:
                self.functions.uniference_capture_call(tensor.untyped_storage()._cdata, written)

    def is_uncomputed(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor has elements that were not computed."""
        return bool(self.functions.uniference_capture_is_uncomputed(tensor.untyped_storage()._cdata))

    def is_large(self, tensor: torch.Tensor) -> bool:
        """Whether communication moves only the tensor's size, and no data."""
        dtype = scalar_type(str(tensor.dtype).removeprefix("torch."))
        return bool(self.functions.uniference_capture_is_large(tensor.numel(), dtype))

    def mark_uncomputed(self, tensor: torch.Tensor) -> None:
        """Marks the tensor's elements as not computed."""
        self.functions.uniference_capture_mark_uncomputed(tensor.untyped_storage()._cdata)

    def _nanoseconds_a_tick(self) -> float:
        begin, start = self.functions.uniference_capture_ticks(), time.perf_counter_ns()
        while (took := time.perf_counter_ns() - start) < 5_000_000:
            pass
        ticks: int = self.functions.uniference_capture_ticks() - begin
        return took / ticks


def _pass_higher_order_operators() -> None:
    """Lets higher-order operators written in Python, which do not know the capture's dispatch key, fall through: the
    operators that they call are captured."""
    key: Any = torch._C._parse_dispatch_key("Fake")
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)
    operators: Iterable[Any] = torch._ops._higher_order_ops.values()
    for operator in operators:
        operator.fallthrough(key)


def _compute_masks(library: Library) -> None:
    """Computes FlexAttention's block masks with values, because they decide which blocks the kernel skips."""
    original = names.BLOCK_MASK.original

    @wraps(original)
    def create_block_mask(*args: Any, **kwargs: Any) -> Any:
        # During compilation the tensors have no values.
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        with library.keep_indices():
            return original(*args, **kwargs)

    names.BLOCK_MASK.replace(create_block_mask)


_Lacking = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)


def _ends_without_memory(channel: Channel) -> Callable[[int, int], None]:
    """Returns the callback for a tensor that does not fit into this machine's memory, which ends the rank and its run:
    the program must not mistake the error for its device's out-of-memory error."""

    def end(wanted: int, available: int) -> None:
        channel.lacks_memory(wanted, available, user_line())
        os._exit(1)

    return end


_Uncomputed = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


def _warns_of_missing_values(channel: Channel) -> Callable[[bytes], None]:
    """Returns the callback for operators and kernels without values, which warns the driver, or ends the run with `STRICT_VALUES`."""

    def warn(text: bytes) -> None:
        said = text.decode(errors="replace")
        if STRICT_VALUES not in os.environ:
            channel.warn(said)
            return
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the program may have closed it
                stream.flush()
        channel.lacks_values(said)
        os._exit(1)

    return warn


def _count_missing_values(channel: Channel, native: Library) -> None:
    """Tells the driver the number of calls of each operator and kernel without values."""
    native.functions.uniference_capture_uncomputed_counts.restype = ctypes.c_char_p
    counts = native.functions.uniference_capture_uncomputed_counts()
    if counts:
        channel.warn(f"operators and kernels without values: {counts.decode(errors='replace')}")


def _functions_of(library: ctypes.CDLL, path: Path) -> int:
    """Returns the address of the library's table of functions, if the library fits the extension module."""
    try:
        find = library.uniference_capture_functions
        find.restype = ctypes.c_void_p
        address = int(find())
        check_capture(address)
    except (AttributeError, RuntimeError) as error:
        raise RuntimeError(
            f"{path} was built from other sources than Uniference's extension module\n"
            "hint: run `make setup` again with a C++ compiler, or install a wheel that was built for this version of torch"
        ) from error
    return address


def load(nanoseconds_a_tick: float | None = None) -> Library | None:
    """The library for the torch that is loaded, if there is one.

    The duration of a tick of the CPU's counter is measured, unless it is given.
    """
    version = ".".join(torch.__version__.split(".")[:2])
    path = Path(str(files("uniference"))) / f"capture-{version}.so"
    return Library(path, nanoseconds_a_tick) if path.exists() else None


_library: Library | None = None
_loaded = False


def library() -> Library | None:
    """The library, loaded at the first call: by the process that ranks are forked from, so that ranks do not spend time
    on loading."""
    global _library, _loaded
    if not _loaded:
        _library, _loaded = load(), True
    return _library


def load_in_child(nanoseconds_a_tick: float | None) -> None:
    """Loads the library into a process that a rank has started. The counter's tick is given, because the process's
    virtual clock does not advance during a measurement."""
    global _library, _loaded
    _library, _loaded = load(nanoseconds_a_tick), True


def note_call(channel: Channel, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
    """Announces that this thread's next call communicates these tensors: compute that overlaps the call may depend on
    them."""
    native = library() if channel.captures else None
    if native is not None:
        native.call(read, False)
        native.call(written, True)


def install(channel: Channel, limit: int | None, device: str, memory: int | None) -> None:
    """Captures the operators of this rank, if its run wants them, and counts its allocations, which are limited to
    `memory` bytes. Operators on tensors of more than `limit` elements are not computed."""
    native = library()
    if UNLIMITED in os.environ:
        memory = None
    if native is not None:
        native.begin(channel, limit, device, memory)
        return
    if limit is not None or channel.captures:
        raise RuntimeError(
            f"capturing operators requires Uniference's C++ library for torch {torch.__version__}, which was not built\n"
            "hint: install g++ and run `make setup` again, install a wheel that was built for this version of torch, or add --compute none"
        )
    if memory is not None and channel.rank == 0:
        print(
            "warning: the memory of devices is not checked: Uniference's C++ library for this version of torch was not built",
            file=sys.stderr,
        )


def count_python_calls(channel: Channel) -> None:
    """Counts the program's function calls from now on, if its run charges them."""
    if not (channel.captures and PYTHON_CALLS in os.environ):
        return
    native = library()
    if native is None:
        raise RuntimeError(
            f"--python-time requires Uniference's C++ library for torch {torch.__version__}, which was not built\n"
            "hint: install g++ and run `make setup` again, or install a wheel that was built for this version of torch"
        )
    native.count_python_calls()


def _note_kinds(channel: Channel, native: Library) -> None:
    """Sets the kind of memory of parameters, buffers, gradients and optimizer states."""

    def registered(kind: int) -> Any:
        def note(_module: Any, _name: str, tensor: torch.Tensor | None) -> None:
            if tensor is not None:
                native.note(tensor, kind)

        return note

    eager: WeakSet[torch.optim.Optimizer] = WeakSet()

    def steps(stepping: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        # A compiled step is traced with its hooks, whose operators would then be part of the graph.
        if torch.compiler.is_compiling():
            return
        eager.add(stepping)
        note_parameters(stepping)

    def stepped(stepping: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            note_states(stepping)

    def note_parameters(stepping: torch.optim.Optimizer) -> None:
        with _uncharged(channel):
            for group in stepping.param_groups:
                for parameter in group["params"]:
                    native.note(parameter, _PARAMETER)
                    if parameter.grad is not None:
                        native.note(parameter.grad, _GRADIENT)

    def note_states(stepping: torch.optim.Optimizer) -> None:
        with _uncharged(channel):
            for state in stepping.state.values():
                for value in state.values():
                    if isinstance(value, torch.Tensor):
                        native.note(value, _OPTIMIZER)

    def zeroing(zero_grad: Any) -> Any:
        @wraps(zero_grad)
        def zero(stepping: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            # If an optimizer has stepped since the last call, its hooks have already noted its tensors. The mark is
            # cleared, because the next step may be compiled, without hooks.
            if stepping in eager:
                eager.discard(stepping)
            else:
                note_parameters(stepping)
                note_states(stepping)
            return zero_grad(stepping, *args, **kwargs)

        return zero

    def called(model: torch.nn.Module, _args: Any) -> None:
        # FSDP registers no parameters, so its shards are recorded when a model is called for the first time.
        parameters = list(model.parameters())
        if parameters:
            first_call.remove()
        with _uncharged(channel):
            for parameter in parameters:
                native.note(parameter, _PARAMETER)

    module.register_module_parameter_registration_hook(registered(_PARAMETER))
    module.register_module_buffer_registration_hook(registered(_BUFFER))
    first_call = module.register_module_forward_pre_hook(called)
    optimizer.register_optimizer_step_pre_hook(steps)
    optimizer.register_optimizer_step_post_hook(stepped)
    names.ZERO_GRAD.wrap(zeroing)


@contextmanager
def _uncharged(channel: Channel) -> Iterator[None]:
    """Charges the rank no time inside the context."""
    channel.enter()
    try:
        yield
    finally:
        channel.leave()
