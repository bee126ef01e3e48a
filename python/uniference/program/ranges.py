"""Watches the named ranges of a program: `torch.profiler.record_function` and NVTX ranges.

A range of `record_function` ends when PyTorch's profiler ends it: at its own `__exit__`, on any thread and even if
other ranges have begun since; when the future completes to which the program has attached the range; or when the
range's object is destroyed.
"""

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from torch.autograd import profiler

from uniference.patches import names


class Listener(Protocol):
    """Receives the beginnings and ends of named ranges. Each range has a number, and may end on another thread than it began on."""

    def begin_range(self, name: str) -> int:
        """Begins a range of the calling thread; returns the range's number."""

    def end_range(self, number: int) -> None:
        """Ends thread range `number`. Any thread may call this."""

    def open_range(self, name: str) -> int:
        """Begins a range of the rank, which may overlap other ranges; returns the range's number."""

    def close_range(self, number: int) -> None:
        """Ends rank range `number`. Any thread may call this."""


class _Range:
    """A range of a thread that has begun. The range ends once, at the latest when this object is destroyed."""

    __slots__ = ("_end", "_number")

    def __init__(self, number: int, end: Callable[[int], None]) -> None:
        self._number: int | None = number
        self._end = end

    def end(self, *_: Any) -> None:
        number, self._number = self._number, None
        if number is not None:
            self._end(number)

    def __del__(self) -> None:
        self.end()


def watch(listener: Listener) -> None:
    """Reports all ranges of this process, but not of its forks, to the listener."""
    enter, leave = names.RANGE_ENTER.original, names.RANGE_EXIT.original
    until = names.RANGE_UNTIL.original
    push, pop = names.NVTX_PUSH.original, names.NVTX_POP.original
    start, end = names.NVTX_START.original, names.NVTX_END.original
    # Range identifiers of the tool that listens to NVTX; without a tool they are all 0.
    by_tool = dict[int, int]()
    # Numbers of the open NVTX ranges that each thread has pushed.
    pushed = threading.local()
    is_watched = True

    def end_range(number: int) -> None:
        # Ranges that end in a fork belong to the parent, and ranges that end while the process exits are not reported.
        if is_watched:
            listener.end_range(number)

    def watched_enter(self: profiler.record_function) -> Any:
        # A record_function that is entered again begins a new range, as in PyTorch.
        vars(self)["_uniference_range"] = _Range(listener.begin_range(self.name), end_range)
        return enter(self)

    def watched_leave(self: profiler.record_function, *error: Any) -> None:
        # A range that the program has attached to a future ends when the future completes.
        begun = vars(self).get("_uniference_range")
        if begun is not None and self.run_callbacks_on_exit:
            begun.end()
        leave(self, *error)

    def watched_until(self: profiler.record_function, fut: Any) -> Any:
        result = until(self, fut)
        begun = vars(self).pop("_uniference_range", None)
        if begun is not None:
            fut.add_done_callback(begun.end)
        return result

    def range_push(msg: str) -> int:
        depth: int = push(msg)
        vars(pushed).setdefault("ranges", []).append(listener.begin_range(msg))
        return depth

    def range_pop() -> int:
        depth: int = pop()
        if vars(pushed).get("ranges"):
            listener.end_range(pushed.ranges.pop())
        return depth

    def range_start(msg: str) -> int:
        by_tool_called: int = start(msg)
        number = listener.open_range(msg)
        by_tool[number] = by_tool_called
        return number

    def range_end(range_id: int) -> None:
        if range_id in by_tool:
            end(by_tool.pop(range_id))
            listener.close_range(range_id)

    stand_ins = {
        names.RANGE_ENTER: watched_enter,
        names.RANGE_EXIT: watched_leave,
        names.RANGE_UNTIL: watched_until,
        names.NVTX_PUSH: range_push,
        names.NVTX_POP: range_pop,
        names.NVTX_START: range_start,
        names.NVTX_END: range_end,
    }
    for name, stand_in in stand_ins.items():
        name.replace(stand_in)

    def restore() -> None:
        for name in stand_ins:
            name.restore()
        stop()

    def stop() -> None:
        nonlocal is_watched
        is_watched = False

    os.register_at_fork(after_in_child=restore)
    atexit.register(stop)
