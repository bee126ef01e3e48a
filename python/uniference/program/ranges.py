"""Owns how the ranges that a program names are seen: `torch.profiler.record_function`, and those of NVTX."""

import os
from typing import Any, Protocol

from torch.autograd import profiler

from uniference.patches import names


class Listener(Protocol):
    """Hears of ranges. Those of a thread lie in each other; those that have a number may overlap, and end on another thread."""

    def begin_range(self, name: str) -> None:
        """One of the thread begins."""

    def end_range(self) -> None:
        """The one ends that the thread has begun last."""

    def open_range(self, name: str) -> int:
        """One that may overlap others begins; returns its number."""

    def close_range(self, number: int) -> None:
        """That one ends."""


def watch(listener: Listener) -> None:
    """Tells it of all ranges of this process, not of those that it forks."""
    enter, leave = names.RANGE_ENTER.original, names.RANGE_EXIT.original
    push, pop = names.NVTX_PUSH.original, names.NVTX_POP.original
    start, end = names.NVTX_START.original, names.NVTX_END.original
    # What a tool calls them that listens to NVTX; without one they are all 0.
    by_tool = dict[int, int]()

    def watched_enter(self: profiler.record_function) -> Any:
        listener.begin_range(self.name)
        return enter(self)

    def watched_leave(self: profiler.record_function, *error: Any) -> None:
        listener.end_range()
        leave(self, *error)

    def range_push(msg: str) -> int:
        depth: int = push(msg)
        listener.begin_range(msg)
        return depth

    def range_pop() -> int:
        depth: int = pop()
        listener.end_range()
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

    os.register_at_fork(after_in_child=restore)
