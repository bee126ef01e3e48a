"""Owns the events that torch's profilers show for communication, named as the real backends name them.

An event lies in the profiler's own time, which is the host's, not the rank's: its name, count and input shapes are a real run's,
its length is not. Virtual time shows in the trace of the run.
"""

import _thread
from collections.abc import Sequence

from torch import Tensor
from torch._C._autograd import _profiler_enabled
from torch._C._autograd import _record_function_with_args_enter as _enter
from torch._C._autograd import _record_function_with_args_exit as _exit


class Event:
    """One operation, from its issue until `end`."""

    def __init__(self, title: str, inputs: Sequence[Tensor]) -> None:
        self._handle = _enter(title, *inputs)

    def end(self) -> None:
        """The operation is complete. A profiler shows an event as asynchronous, as real ones are, if another thread ends it."""
        ended = _thread.allocate_lock()
        ended.acquire()

        def run() -> None:
            _exit(self._handle)
            ended.release()

        _thread.start_new_thread(run, ())
        ended.acquire()


def begin(backend: str, title: str, inputs: Sequence[Tensor]) -> list[Event]:
    """What a profiler sees of a call: nothing if none looks, or without a title. Titles are ProcessGroupGloo's, or NCCL's."""
    return [Event(f"{backend}:{title}", inputs)] if title and _profiler_enabled() else []
