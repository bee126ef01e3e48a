"""Owns CUDA's streams and events, also as `torch.Stream` and `torch.Event`, on the rank's virtual clock.

A simulated GPU has computed what it was given when the call returns, so a stream holds nothing back, and an event has happened when it is
recorded. How long that took is what the rank's clock says.
"""

from collections.abc import Callable
from typing import Any

import torch

from uniference.cuda.placement import Devices

_PS_PER_MS = 1e9


class Runtime:
    """What streams and events need of the rank."""

    def __init__(self, devices: Devices, now: Callable[[], int], settle: Callable[[], None]) -> None:
        """`now` is the rank's clock in picoseconds; `settle` waits for the communication that the rank has started."""
        self.devices = devices
        self.now = now
        self.settle = settle
        self.stream: Stream | None = None

    def current(self) -> "Stream":
        """The stream that the program has chosen."""
        if self.stream is None:
            self.stream = Stream()
        return self.stream


_runtime: list[Runtime] = []


def install(runtime: Runtime) -> None:
    """Makes it this process's."""
    _runtime[:] = [runtime]


def _rank() -> Runtime:
    return _runtime[0]


class Stream:
    """`torch.cuda.Stream`, and `torch.Stream`."""

    _made = 0

    def __init__(self, device: Any = None, priority: int = 0, **_ids: Any) -> None:
        self.device = torch.device("cuda", _rank().devices.gpu(device))
        self.priority = priority
        self.cuda_stream = self.stream_id = self.native_handle = Stream._made
        Stream._made += 1
        self.device_index = self.device.index
        self.device_type = 1

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return (0, -5)

    def wait_event(self, event: "Event") -> None:
        event.wait(self)

    def wait_stream(self, stream: "Stream") -> None:
        """All that was given to it has been computed."""

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = CudaEvent() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        _rank().settle()

    def __enter__(self) -> "Stream":
        self._entered = StreamContext(self)
        self._entered.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.__exit__(*error)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class StreamContext:
    """`torch.cuda.stream(...)`: the current stream is this one inside."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        self._before = _rank().stream
        if self.stream is not None:
            _rank().stream = self.stream

    def __exit__(self, *_error: Any) -> None:
        _rank().stream = self._before


class Event:
    """`torch.Event`."""

    def __init__(
        self, device: Any = None, *, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self._timed = enable_timing
        self._at: int | None = None
        self.device = None if device is None else torch.device("cuda", _rank().devices.gpu(device))

    def record(self, stream: Stream | None = None) -> None:
        stream = _rank().current() if stream is None else stream
        self.device = stream.device
        self._at = _rank().now()

    def wait(self, stream: Stream | None = None) -> None:
        """It has happened, or was never recorded, which is no reason to wait."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """As `wait`."""

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds of virtual time."""
        if not (self._timed and end._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end._at - self._at) / _PS_PER_MS

    def __repr__(self) -> str:
        return "<torch.cuda.Event>"


class CudaEvent(Event):
    """`torch.cuda.Event`."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        super().__init__(enable_timing=enable_timing)
