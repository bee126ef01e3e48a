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

# By code object, not by its id: a code object that has gone may leave its id to another.
_is_library: dict[CodeType, bool] = {}


def is_library(code: CodeType) -> bool:
    """Is this torch's code, or ours?"""
    known = _is_library.get(code)
    if known is None:
        known = _is_library[code] = code.co_filename.startswith(_LIBRARIES)
    return known


def user_line() -> str:
    """The user's line that is being executed, as "path:line"."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library(frame.f_code):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "unknown:0"
