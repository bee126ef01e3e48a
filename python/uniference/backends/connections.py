"""Owns the state of a process group's connections, and the library's error messages for failed operations."""

from abc import ABC, abstractmethod
from datetime import timedelta

from uniference._native import Channel


class Connections(ABC):
    """The connections of one process group. Each library has a subclass."""

    def __init__(self, channel: Channel, group: int, rank: int) -> None:
        self._channel = channel
        self._group = group
        self._rank = rank
        """Rank in the group."""

    closed = False
    """Whether an operation has timed out: later calls on these connections fail."""

    def abort(self) -> None:
        """Closes the connections and ends this rank's outstanding operations in the group."""
        self.closed = True
        self._channel.abort(self._group)

    @abstractmethod
    def check(self) -> None:
        """Raises the library's error if the connections are closed."""

    @abstractmethod
    def timed_out(self, name: str, limit: timedelta, callers: bool = False) -> RuntimeError:
        """The error of operation `name`, which did not complete within `limit`. `callers`: `limit` was the timeout of a
        single wait, not of the group."""

    @abstractmethod
    def closed_by(self, peer: int) -> RuntimeError:
        """The error of an operation whose connection was closed by `peer`, a rank of the world."""

    def error_from_now_on(self, name: str, error: RuntimeError) -> RuntimeError:
        """The error of operation `name` in later waits, after the operation raised `error` and the connections were
        closed."""
        return error
