"""Owns the exclusion of compilers' own work from a program's time: operators that torch's compiler runs, which a run
with warm caches does not have, and measurements by which a compiler chooses between kernels."""

import functools
import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

from uniference.patches import names
from uniference.patches.later import when_imported


class Notes(Protocol):
    """The capture's methods that this module uses."""

    def compiling(self, is_compiling: bool) -> AbstractContextManager[None]:
        """Computes operators of this thread with values and without recording them; with `is_compiling` false, records
        them again."""
        ...

    def leave_uncomputed(self) -> AbstractContextManager[None]:
        """Computes no values on simulated GPUs on this thread inside the context, because the results are not used."""
        ...


def install(capture: Notes) -> None:
    """Excludes compilation from operators' time, and measurements from value computation, from now on. Compilers that
    the program does not import are not imported either."""
    when_imported(
        {
            names.COMPILES.module: functools.partial(_leave_out_compiling, capture),
            names.GPU_BENCHMARK.module: functools.partial(_measure_in_blocks, capture),
            names.INDUCTOR_BENCH.module: functools.partial(_choose_any, capture),
            names.TRITON_BENCH.module: functools.partial(_measure_in_calls, capture),
        }
    )


def is_of_operators(tuner: Any) -> bool:
    """Whether torch's compiler has generated this kernel from operators. Other kernels are templates, whose GEMMs
    count, and the program's own."""
    return tuner.heuristic_type.name in ("POINTWISE", "REDUCTION", "PERSISTENT_REDUCTION", "SPLIT_SCAN")


def _leave_out_compiling(capture: Notes) -> None:
    original = names.COMPILES.original

    @contextmanager
    @functools.wraps(original)
    def compiles(self: Any, trigger: Any, compile_id: str) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(original(self, trigger, compile_id))
            # Recording a CUDA graph runs the program, so it is not excluded.
            if trigger.name != "CUDAGRAPH_RECORDING":
                stack.enter_context(capture.compiling(True))
            yield

    names.COMPILES.replace(compiles)


class _Choosing(threading.local):
    """Whether this thread is choosing between kernels of equal duration."""

    any = False


_choosing = _Choosing()


def _choose_any(capture: Notes) -> None:
    """Reports equal durations for all configurations of a kernel that is costed by its memory traffic. Memory that the
    measurement allocates is counted, as on a GPU."""
    original = names.INDUCTOR_BENCH.original

    @functools.wraps(original)
    def measured(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_of_operators(self):
            return original(self, *args, **kwargs)
        before, _choosing.any = _choosing.any, True
        try:
            with capture.compiling(True):
                took = original(self, *args, **kwargs)
        finally:
            _choosing.any = before
        # Configurations that need too many registers are refused, and keep their infinite duration.
        return took if math.isinf(took) else 1.0

    names.INDUCTOR_BENCH.replace(measured)


def _measure_in_blocks(capture: Notes) -> None:
    original = names.GPU_BENCHMARK.original

    @contextmanager
    def measuring() -> Iterator[None]:
        with original(), _measured(capture):
            yield

    names.GPU_BENCHMARK.replace(measuring)


def _measure_in_calls(capture: Notes) -> None:
    original = names.TRITON_BENCH.original

    @functools.wraps(original)
    def measured(*args: Any, **kwargs: Any) -> Any:
        with _measured(capture):
            return original(*args, **kwargs)

    names.TRITON_BENCH.replace(measured)


@contextmanager
def _measured(capture: Notes) -> Iterator[None]:
    """Skips values during a measurement, which runs a kernel a hundred times and discards the results. Durations are
    the simulated GPU's, unless any configuration will do."""
    with capture.compiling(_choosing.any), capture.leave_uncomputed():
        yield
