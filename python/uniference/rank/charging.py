"""Owns the boundary between the program's time and the simulator's: code inside `uncharged` costs the rank no virtual
time."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from uniference._native import Channel


class HasChannel(Protocol):
    """Objects whose methods can be `uncharged`."""

    @property
    def channel(self) -> Channel: ...


_S = TypeVar("_S", bound=HasChannel)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def uncharged(method: Callable[Concatenate[_S, _P], _T]) -> Callable[Concatenate[_S, _P], _T]:
    """Marks a method as the simulator's work and not the program's. The attribute `is_uncharged` identifies such
    methods."""

    @wraps(method)
    def wrapper(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        channel = self.channel
        channel.enter()
        try:
            return method(self, *args, **kwargs)
        finally:
            channel.leave()

    checked: Any = wrapper  # mypy does not see through `wraps` that the signature is kept
    checked.is_uncharged = True
    return checked  # type: ignore[no-any-return]
