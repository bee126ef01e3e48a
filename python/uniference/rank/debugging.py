"""Owns debuggers and `input()`. Both work, at no cost in virtual time, on the rank that has the terminal
(`--debug-rank`); on a rank whose standard input is a file or a pipe only `input()` works; on any other rank both fail
with a message that names the option.
"""

import bdb
import os
from collections.abc import Callable
from functools import wraps
from types import FrameType, TracebackType
from typing import Any, NoReturn

from uniference._native import Channel
from uniference.patches import names
from uniference.program.execution import is_ours


def install(channel: Channel, attached: bool, has_input: bool) -> None:
    """Installs debuggers and `input()`. `attached`: this rank has the terminal. `has_input`: its standard input is a file or a pipe."""
    if attached:
        for name in (names.INPUT, names.INTERACTION):
            name.wrap(lambda function: _uncharged(channel, function))
        _hide_our_frames()
        return
    if os.environ.get("PYTHONBREAKPOINT", "") == "":
        names.BREAKPOINT.replace(_refusal(channel, "breakpoint()", RuntimeError))
    names.SET_TRACE.replace(_refusal(channel, "pdb.set_trace()", RuntimeError))
    if has_input:
        names.INPUT.wrap(lambda function: _uncharged(channel, function))
    else:
        names.INPUT.replace(_refusal(channel, "input()", EOFError))


def _hide_our_frames() -> None:
    """Hides Uniference's frames: the program's stack begins with its script, and stepping out of the script does not
    lead into its caller."""
    real_get_stack, real_stop_here = names.GET_STACK.original, names.STOP_HERE.original

    def get_stack(
        self: bdb.Bdb, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        stack, current = real_get_stack(self, f, t)
        callers = [at for at, (frame, _) in enumerate(stack) if is_ours(frame.f_code.co_filename)]
        # Uniference's frames above the script belong to calls of the program, and are shown.
        script = next((at + 1 for at in callers if at + 1 not in callers), 0)
        return (stack[script:], current - script) if script <= current else (stack, current)

    def stop_here(self: bdb.Bdb, frame: FrameType) -> bool:
        return not is_ours(frame.f_code.co_filename) and real_stop_here(self, frame)

    names.GET_STACK.replace(get_stack)
    names.STOP_HERE.replace(stop_here)


def _uncharged(channel: Channel, function: Callable[..., Any]) -> Callable[..., Any]:
    """Stops the rank's clock while the user types."""

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
            f"{call} was called on rank {channel.rank}, which has no terminal\n"
            f"hint: connect the terminal to this rank with --debug-rank {channel.rank}"
        )

    return refuse
