"""Owns what a process group knows of its members' connections, and what its library says where an operation over them fails."""

from abc import ABC, abstractmethod
from datetime import timedelta

from uniference._native import Channel


class Connections(ABC):
    """Those of one process group. Each library has a class of its own."""

    def __init__(self, channel: Channel, group: int, rank: int) -> None:
        self._channel = channel
        self._group = group
        self._rank = rank
        """Rank in the group."""

    closed = False
    """An operation has timed out: later calls on these connections fail."""

    def abort(self) -> None:
        """Closes the connections and ends this rank's outstanding operations in the group."""
        self.closed = True
        self._channel.abort(self._group)

    @abstractmethod
    def check(self) -> None:
        """Raises what the library does if they are closed."""

    @abstractmethod
    def timed_out(self, name: str, limit: timedelta, callers: bool = False) -> RuntimeError:
        """The error of operation `name`, which was not complete within `limit`. `callers`: the limit was that of one wait."""

    @abstractmethod
    def closed_by(self, peer: int) -> RuntimeError:
        """The error of an operation whose connection was closed by `peer`, a rank of the world."""

    def error_from_now_on(self, name: str, error: RuntimeError) -> RuntimeError:
        """What operation `name` raises whenever it is waited for again, once it has raised `error` and the connections are closed."""
        return error
