"""Owns which code is not the user's: torch's, this package's, and what both are called through."""

import os

import torch

from uniference._native import set_libraries, user_line

__all__ = ["user_line"]

set_libraries(
    (
        os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
        os.path.dirname(os.path.abspath(__file__)) + os.sep,
        os.path.dirname(os.path.abspath(os.__file__)) + os.sep + "contextlib",
        "<frozen ",
    )
)
