"""Owns which code is not the user's: torch's, this package's, and what both are called through."""

import os

import torch

from uniference._native import set_libraries, user_line
from uniference.program import PACKAGE

__all__ = ["user_line"]

set_libraries(
    (
        os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
        PACKAGE,
        os.path.dirname(os.path.abspath(os.__file__)) + os.sep + "contextlib",
        "<frozen ",
    )
)
