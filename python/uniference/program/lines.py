"""Owns the list of code that is not the user's: torch, this package, and the modules through which both call user
code."""

import os

import torch

from uniference._native import set_libraries, user_line
from uniference.program.execution import PACKAGE

__all__ = ["LIBRARIES", "user_line"]

LIBRARIES = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    PACKAGE,
    os.path.dirname(os.path.abspath(os.__file__)) + os.sep + "contextlib",
    "<frozen ",
)
"""Beginnings of the names of files whose code is not the user's."""

set_libraries(LIBRARIES, os.path.dirname(os.path.abspath(os.__file__)) + os.sep)
