"""Owns what compilers run while the program does: operators of torch's compiler, which a run that finds all compiled has none of, and
measurements by which a compiler chooses between kernels."""

import functools
import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

from uniference.patches import names
from uniference.patches.later import when_imported


class Notes(Protocol):
    """What the capture can be told of what a thread runs."""

    def compiling(self, is_compiling: bool) -> AbstractContextManager[None]:
        """What this thread runs meanwhile has values, and is not written down; or it is once more."""
        ...

    def unvalued(self) -> AbstractContextManager[None]:
        """What this thread computes on simulated GPUs meanwhile has no values: nobody looks at its results."""
        ...


def install(capture: Notes) -> None:
    """From here on, compiling takes no operators' time, and measurements no values. Nothing is imported for that."""
    when_imported(
        {
            names.COMPILES.module: functools.partial(_leave_out_compiling, capture),
            names.GPU_BENCHMARK.module: functools.partial(_measure_in_blocks, capture),
            names.INDUCTOR_BENCH.module: functools.partial(_choose_any, capture),
            names.TRITON_BENCH.module: functools.partial(_measure_in_calls, capture),
        }
    )


def is_of_operators(tuner: Any) -> bool:
    """Whether torch's compiler has written this kernel from operators. Others are templates, whose products of matrices count, and the
    program's own."""
    return tuner.heuristic_type.name in ("POINTWISE", "REDUCTION", "PERSISTENT_REDUCTION", "SPLIT_SCAN")


def _leave_out_compiling(capture: Notes) -> None:
    original = names.COMPILES.original

    @contextmanager
    @functools.wraps(original)
    def compiles(self: Any, trigger: Any, compile_id: str) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(original(self, trigger, compile_id))
            # A graph of the program is recorded by running it.
            if trigger.name != "CUDAGRAPH_RECORDING":
                stack.enter_context(capture.compiling(True))
            yield

    names.COMPILES.replace(compiles)


class _Choosing(threading.local):
    """Whether this thread chooses between kernels that take equally long."""

    any = False


_choosing = _Choosing()


def _choose_any(capture: Notes) -> None:
    """What is told by its memory traffic alone takes as long in any configuration. What is allocated to measure it is, as on a GPU."""
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
        # Not one that is refused as it needs too many registers.
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
    """A kernel runs a hundred times to be measured, and what it computes is discarded. Its durations are the simulated GPU's, if they are
    asked for."""
    with capture.compiling(_choosing.any), capture.unvalued():
        yield
