"""Owns the part of simulated time that must be implemented in Python: exact sleeps.

Clocks and waits with a timeout need nothing in this module: `crates/interpose` replaces the functions of the C library
that they call.
"""

import os
import threading
from datetime import timedelta

from uniference._native import Channel
from uniference.patches import names
from uniference.rank.charging import uncharged

_PS_PER_S = 1_000_000_000_000
_PS_PER_US = 1_000_000

# Virtual time ends after 2^64 - 1 ps, about 213 days.
_MOST_PS = 2**64 - 1
_LONGEST_S = 2.0**64 / _PS_PER_S


def picoseconds(duration: timedelta) -> int:
    """A duration in the engine's unit; durations longer than virtual time are clipped to the longest one."""
    return min(duration // timedelta(microseconds=1) * _PS_PER_US, _MOST_PS)


def _check_length(seconds: float) -> None:
    """Raises the errors of `time.sleep` for an invalid duration: acquiring a free lock parses its timeout by the same
    function, and does not wait."""
    try:
        threading.Lock().acquire(timeout=seconds)
    except ValueError:
        if seconds == seconds:
            raise ValueError("sleep length must be non-negative") from None
        raise
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")


class _Clock:
    """The rank's clock."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    @uncharged
    def sleep(self, seconds: float, /) -> None:
        """Sleeps like `time.sleep`, which would also read the clock: that would cost virtual time."""
        if not (isinstance(seconds, (float, int)) and 0 <= seconds < _LONGEST_S):
            _check_length(seconds)
        # A sleep longer than virtual time ends the run, if no other event is left.
        self.channel.sleep(min(round(min(float(seconds), _LONGEST_S) * _PS_PER_S), _MOST_PS))


def install(channel: Channel) -> None:
    """Puts this process on the rank's clock. A forked child stays on the clock through the C library's functions
    alone."""
    clock = _Clock(channel)
    names.SLEEP.replace(clock.sleep)
    os.register_at_fork(after_in_child=names.SLEEP.restore)
