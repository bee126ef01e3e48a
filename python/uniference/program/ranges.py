"""Owns how the ranges that a program names are seen: `torch.profiler.record_function`, and those of NVTX.

A range of `record_function` ends as PyTorch's profiler ends it: with its own `__exit__`, on whatever thread that is called and whatever has
begun since; with the future that it was handed to; or with its object.
"""

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from torch.autograd import profiler

from uniference.patches import names


class Listener(Protocol):
    """Hears of ranges. Each has a number, and may end on another thread than the one that it begins on."""

    def begin_range(self, name: str) -> int:
        """One of the calling thread begins; returns its number."""

    def end_range(self, number: int) -> None:
        """That one ends."""

    def open_range(self, name: str) -> int:
        """One of the rank begins, which may overlap others; returns its number."""

    def close_range(self, number: int) -> None:
        """That one ends."""


class _Range:
    """A range that has begun. It ends once, at the latest when nothing refers to it any more."""

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
    """Tells it of all ranges of this process, not of those that it forks."""
    enter, leave = names.RANGE_ENTER.original, names.RANGE_EXIT.original
    until = names.RANGE_UNTIL.original
    push, pop = names.NVTX_PUSH.original, names.NVTX_POP.original
    start, end = names.NVTX_START.original, names.NVTX_END.original
    # What a tool calls them that listens to NVTX; without one they are all 0.
    by_tool = dict[int, int]()
    # The ranges of NVTX that each thread has pushed.
    pushed = threading.local()
    is_watched = True

    def end_range(number: int) -> None:
        # In a fork the range is the parent's; and at the end of the process nobody listens.
        if is_watched:
            listener.end_range(number)

    def watched_enter(self: profiler.record_function) -> Any:
        # One that is entered again begins anew, as in PyTorch.
        vars(self)["_uniference_range"] = _Range(listener.begin_range(self.name), end_range)
        return enter(self)

    def watched_leave(self: profiler.record_function, *error: Any) -> None:
        # One that was handed to a future ends with that.
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
