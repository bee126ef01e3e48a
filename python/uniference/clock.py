"""Owns the program's sense of time: `time`, `datetime`, `asyncio` and waits with a time-out read and spend the rank's virtual clock.

What a clock read costs and how long a sleep holds the rank is the engine's business. Not covered, as Python cannot reach it:
`clock_gettime` called from C, `uuid1`, file times, and the time-outs of `select`, sockets and `subprocess`. `process_time` and
`thread_time` stay those of this machine: they count what the program computes here.
"""

import datetime as datetime_module
import importlib.machinery
import multiprocessing.connection
import os
import queue
import selectors
import threading
import time
import types
from collections.abc import Callable
from typing import Any

from torch.autograd import profiler

from uniference._charging import uncharged
from uniference._native import Channel

EPOCH_S = 1_767_225_600
"""The date of virtual time zero, in Unix seconds: 2026-01-01 00:00:00 UTC, the same in every run."""

_StructTime = time.struct_time

_PS_PER_NS = 1_000
_PS_PER_S = 1_000_000_000_000
_NS_PER_S = 1_000_000_000
_EPOCH_NS = EPOCH_S * _NS_PER_S

# As they were before the first patch.
_real = types.SimpleNamespace(**vars(time))
_real_datetime = datetime_module.datetime
_real_date = datetime_module.date
_UTC = datetime_module.timezone(datetime_module.timedelta(0))
_real_condition_wait = threading.Condition.wait
_real_selector = selectors.DefaultSelector


class _Clock:
    """The functions of `time`, on one rank's clock."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    @uncharged
    def monotonic_ns(self) -> int:
        return self.channel.now() // _PS_PER_NS

    @uncharged
    def monotonic(self) -> float:
        return self.channel.now() / _PS_PER_S

    def time_ns(self) -> int:
        return _EPOCH_NS + self.monotonic_ns()

    def time(self) -> float:
        return self.time_ns() / _NS_PER_S

    @uncharged
    def sleep(self, seconds: float, /) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        self.channel.sleep(round(seconds * _PS_PER_S))

    def clock_gettime_ns(self, clock: int, /) -> int:
        if clock == time.CLOCK_REALTIME:
            return self.time_ns()
        if clock in (time.CLOCK_PROCESS_CPUTIME_ID, time.CLOCK_THREAD_CPUTIME_ID):
            return int(_real.clock_gettime_ns(clock))
        return self.monotonic_ns()

    def clock_gettime(self, clock: int, /) -> float:
        return self.clock_gettime_ns(clock) / _NS_PER_S

    def localtime(self, seconds: float | None = None, /) -> _StructTime:
        result: _StructTime = _real.localtime(self.time() if seconds is None else seconds)
        return result

    def gmtime(self, seconds: float | None = None, /) -> _StructTime:
        result: _StructTime = _real.gmtime(self.time() if seconds is None else seconds)
        return result

    def ctime(self, seconds: float | None = None, /) -> str:
        return str(_real.ctime(self.time() if seconds is None else seconds))

    def asctime(self, moment: Any = None, /) -> str:
        return str(_real.asctime(self.localtime() if moment is None else moment))

    def strftime(self, form: str, moment: Any = None, /) -> str:
        return str(_real.strftime(form, self.localtime() if moment is None else moment))


_SAME = ("time", "time_ns", "monotonic", "monotonic_ns", "sleep", "clock_gettime", "clock_gettime_ns")
_CALENDAR = ("localtime", "gmtime", "ctime", "asctime", "strftime")


def install(channel: Channel) -> None:
    """Puts this process on the rank's clock. A process that it forks is back on the machine's."""
    clock = _Clock(channel)
    for name in _SAME + _CALENDAR:
        setattr(time, name, getattr(clock, name))
    time.perf_counter = clock.monotonic
    time.perf_counter_ns = clock.monotonic_ns
    threading._time = clock.monotonic  # type: ignore[attr-defined]
    queue.time = clock.monotonic  # type: ignore[attr-defined]
    # It measures waits that are spent in the system's `poll`.
    multiprocessing.connection.time = _real  # type: ignore[attr-defined]
    threading.Condition.wait = _condition_wait(clock)  # type: ignore[assignment,method-assign]
    selectors.DefaultSelector = _selector(clock)  # type: ignore[misc]
    _replace_datetime(clock)
    _spare_extensions()
    _mark_ranges(channel)
    os.register_at_fork(after_in_child=_uninstall)


def _uninstall() -> None:
    for name in (*_SAME, *_CALENDAR, "perf_counter", "perf_counter_ns"):
        setattr(time, name, getattr(_real, name))
    threading._time = queue.time = _real.monotonic  # type: ignore[attr-defined]
    threading.Condition.wait = _real_condition_wait  # type: ignore[method-assign]
    selectors.DefaultSelector = _real_selector  # type: ignore[misc]
    datetime_module.datetime = _real_datetime  # type: ignore[misc]
    datetime_module.date = _real_date  # type: ignore[misc]
    profiler.record_function.__enter__ = _real_enter  # type: ignore[method-assign]
    profiler.record_function.__exit__ = _real_exit  # type: ignore[method-assign]


def _condition_wait(clock: _Clock) -> Callable[[threading.Condition, float | None], bool]:
    """Events, queues, semaphores, barriers and joins with a time-out wait in here."""

    def wait(self: threading.Condition, timeout: float | None = None) -> bool:
        if timeout is None or timeout <= 0:
            return _real_condition_wait(self, timeout)
        # Only another thread of this rank could end the wait early. Where there is one it gets its chance in host time.
        if threading.active_count() > 1 and _real_condition_wait(self, timeout):
            return True
        clock.sleep(timeout)
        return _real_condition_wait(self, 0)

    return wait


def _selector(clock: _Clock) -> Any:
    """asyncio sleeps in its selector."""

    class VirtualSelector(_real_selector):
        def select(self, timeout: float | None = None) -> Any:
            if timeout is None or timeout <= 0:
                return super().select(timeout)
            ready = super().select(0)
            if not ready:
                clock.sleep(timeout)
                ready = super().select(0)
            return ready

    return VirtualSelector


def _replace_datetime(clock: _Clock) -> None:
    """The classes are C types whose methods cannot be set, so subclasses take their names."""

    class _AnyDate(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, _real_date)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, _real_date)

    class _AnyDatetime(_AnyDate):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, _real_datetime)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, _real_datetime)

    class date(_real_date, metaclass=_AnyDate):
        @classmethod
        def today(cls) -> Any:
            return cls.fromtimestamp(clock.time())

    class datetime(_real_datetime, metaclass=_AnyDatetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(clock.time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(clock.time(), _UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return cls.fromtimestamp(clock.time())

    for replacement in (date, datetime):
        replacement.__module__ = "datetime"
        replacement.__qualname__ = replacement.__name__
        setattr(datetime_module, replacement.__name__, replacement)


def _spare_extensions() -> None:
    """An extension module that is loaded sees the C types: compiled code (pandas, pyarrow) counts on the layout of instances."""
    loader = importlib.machinery.ExtensionFileLoader
    for name in ("create_module", "exec_module"):
        setattr(loader, name, _with_real_datetime(getattr(loader, name)))


def _with_real_datetime(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def load(self: Any, argument: Any) -> Any:
        ours = datetime_module.datetime, datetime_module.date
        datetime_module.datetime, datetime_module.date = _real_datetime, _real_date  # type: ignore[misc]
        try:
            return method(self, argument)
        finally:
            datetime_module.datetime, datetime_module.date = ours  # type: ignore[misc]

    return load


_real_enter = profiler.record_function.__enter__
_real_exit = profiler.record_function.__exit__


def _mark_ranges(channel: Channel) -> None:
    """`torch.profiler.record_function` ranges show in the trace."""

    def enter(self: profiler.record_function) -> Any:
        channel.mark(self.name)
        return _real_enter(self)  # type: ignore[no-untyped-call]

    def leave(self: profiler.record_function, *error: Any) -> None:
        channel.mark(None)
        _real_exit(self, *error)

    profiler.record_function.__enter__ = enter  # type: ignore[method-assign]
    profiler.record_function.__exit__ = leave  # type: ignore[method-assign]
