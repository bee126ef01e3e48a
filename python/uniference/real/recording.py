"""Owns the observations of one rank, in order, and the file format of them.

A file is JSON, one value per line. The first is an object that describes the rank, the last one how it ended; between
them are lists whose first element is the kind. Times are nanoseconds of the rank's own clock (CLOCK_MONOTONIC).

    ["g", time, group, ranks]                                         the ranks of a group's members, at its first operation
    ["s", site, "path:line"]                                          a line of the program, at its first use
    ["i", time, task, handle, group, kind, dtype, shape, root, site]  an operation is issued; root: a message's peer too
    ["d", time, handle, peer]                                         it is complete; peer: whom a receive from anybody has met
    ["w", start, end, task, reason, handles, site]                    a thread was blocked: communication, store or sleep
    ["n", time, task, range, name]                                    a thread's range with this number begins; name null: it ends
    ["r", time, task, range, name]                                    a rank's range, which may overlap others, begins; name null: it ends

A shape is a number of elements, a list with one number per rank, or for all-to-all two lists: sent and received. For a
message it is bytes.
"""

import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from uniference.program.lines import user_line

VERSION = 3

now: Callable[[], int] = time.perf_counter_ns


class Recording:
    """The observations of one rank. `cost` is the time spent on recording so far, in nanoseconds, and `calls` the
    number of recorded calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.cost = 0
        self._records: list[tuple[Any, ...]] = []
        # Counters instead of lengths of dictionaries, because another thread may run between any two steps.
        self._next_site, self._next_task, self._next_range = itertools.count(), itertools.count(1), itertools.count()
        self._sites: dict[str, int] = {}
        self._tasks: dict[int, int] = {threading.get_ident(): 0}
        # Task of the thread that began each open range, by the range's number.
        self._range_tasks: dict[int, int] = {}

    def add(self, *record: Any) -> None:
        """Stores a record."""
        self._records.append(record)

    def begin_range(self, name: str) -> int:
        """Records the beginning of a named range of the calling thread; returns the range's number."""
        number = next(self._next_range)
        self._range_tasks[number] = task = self.task()
        self.add("n", now(), task, number, name)
        return number

    def end_range(self, number: int) -> None:
        """Records the end of thread range `number`. Any thread may call this."""
        self.add("n", now(), self._range_tasks.pop(number), number, None)

    def open_range(self, name: str) -> int:
        """Records the beginning of a named range that may overlap others; returns the range's number."""
        number = next(self._next_range)
        self.add("r", now(), self.task(), number, name)
        return number

    def close_range(self, number: int) -> None:
        """Records the end of rank range `number`. Any thread may call this."""
        self.add("r", now(), self.task(), number, None)

    def charge(self, since: int) -> None:
        """Adds the time since `since` to the cost of recording."""
        self.calls += 1
        self.cost += now() - since

    def task(self) -> int:
        """Number of the calling thread: 0 is the main one."""
        ident = threading.get_ident()
        known = self._tasks.get(ident)
        if known is None:
            known = self._tasks[ident] = next(self._next_task)
        return known

    def site(self) -> int:
        """Number of the program's line that is being executed."""
        line = user_line()
        known = self._sites.get(line)
        if known is None:
            known = self._sites[line] = next(self._next_site)
            self.add("s", known, line)
        return known

    def write(self, path: Path, head: Mapping[str, Any], tail: Mapping[str, Any]) -> None:
        """Writes the file under a temporary name and renames it, so that no incomplete file has its name."""
        partial = path.with_suffix(".part")
        cost = {"recorder_calls": self.calls, "recorder_ns": self.cost}
        with partial.open("w") as file:
            for value in ({"version": VERSION, **head}, *self._records, {**tail, **cost}):
                file.write(json.dumps(value, separators=(",", ":")) + "\n")
        partial.rename(path)
