"""Owns the events that torch's profilers show for communication, named as the real backends name them.

An event's times are the profiler's own, so host time and not virtual time: its name, count and input shapes equal a
real run's, its duration does not. Virtual time is in the run's timeline.
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
        """Ends the event from another thread, because a profiler shows an event as asynchronous, like a real one's, if
        another thread ends it."""
        ended = _thread.allocate_lock()
        ended.acquire()

        def run() -> None:
            _exit(self._handle)
            ended.release()

        _thread.start_new_thread(run, ())
        ended.acquire()


def begin(backend: str, title: str, inputs: Sequence[Tensor]) -> list[Event]:
    """Profiler events of a call: none without an active profiler, or without a title. Titles are ProcessGroupGloo's, or
    NCCL's."""
    return [Event(f"{backend}:{title}", inputs)] if title and _profiler_enabled() else []
