"""Owns the answer to "which line of the user's program is this?": the first frame outside torch and outside this package."""

import os
import sys
from types import CodeType, FrameType

import torch

_LIBRARIES = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    os.path.dirname(os.path.abspath(os.__file__)) + os.sep + "contextlib",
    "<frozen ",
)


class _Known:
    """What is known of a code object. It is kept, because the id of one that has gone may be another's; hashing one takes too long."""

    __slots__ = ("code", "is_library", "lines")

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.is_library = code.co_filename.startswith(_LIBRARIES)
        # By instruction: finding the line of one takes long.
        self.lines: dict[int, str] = {}


_known: dict[int, _Known] = {}


def _know(code: CodeType) -> _Known:
    known = _known[id(code)] = _Known(code)
    return known


def is_library(code: CodeType) -> bool:
    """Is this torch's code, or ours?"""
    return (_known.get(id(code)) or _know(code)).is_library


def user_line() -> str:
    """The user's line that is being executed, as "path:line"."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        known = _known.get(id(code)) or _know(code)
        if not known.is_library:
            line = known.lines.get(frame.f_lasti)
            if line is None:
                line = known.lines[frame.f_lasti] = f"{code.co_filename}:{frame.f_lineno}"
            return line
        frame = frame.f_back
    return "unknown:0"
