"""Owns debuggers and `input()`: on the rank that has the terminal they work, and cost no virtual time; on any other they say how to get it.

Which rank has the terminal is the command line's business (`--debug-rank`).
"""

import builtins
import os
import pdb
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

from uniference._native import Channel


def install(channel: Channel, attached: bool) -> None:
    """`attached`: this rank has the terminal."""
    if attached:
        builtins.input = _uncharged(channel, builtins.input)
        pdb.Pdb.interaction = _uncharged(channel, pdb.Pdb.interaction)  # type: ignore[method-assign]
        return
    if os.environ.get("PYTHONBREAKPOINT", "") == "":
        sys.breakpointhook = _refusal(channel, "breakpoint()", RuntimeError)
    pdb.set_trace = _refusal(channel, "pdb.set_trace()", RuntimeError)
    builtins.input = _refusal(channel, "input()", EOFError)


def _uncharged(channel: Channel, function: Callable[..., Any]) -> Callable[..., Any]:
    """While the user thinks, the rank's clock stands."""

    @wraps(function)
    def outside(*args: Any, **kwargs: Any) -> Any:
        channel.enter()
        try:
            return function(*args, **kwargs)
        finally:
            channel.leave()

    return outside


def _refusal(channel: Channel, call: str, kind: type[Exception]) -> Callable[..., NoReturn]:
    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise kind(
            f"{call} on rank {channel.rank}, which has no terminal\nhint: give it one with --debug-rank {channel.rank}"
        )

    return refuse
