"""Owns the exclusion of imports of libraries from a program's time: in this process they load at other times than on
the simulated cluster. Code that the program's own modules run at import is the program's compute.
"""

import os
import sys
import sysconfig
import threading
from types import ModuleType
from typing import Any

import torch

from uniference._native import Channel
from uniference.patches import names
from uniference.program import execution

_STANDARD = {os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib")}
_LIBRARIES = (*_STANDARD, os.path.join(os.path.dirname(torch.__file__), ""), execution.PACKAGE)


class _Depth(threading.local):
    """Number of nested imports of this thread."""

    value = 0


def install(channel: Channel) -> None:
    """Stops charging imports of modules that are not loaded yet, from now on. Imports of loaded modules do not reach
    this code."""
    # The module objects themselves, not importlib's names for them: the interpreter calls their attributes.
    bootstrap: Any = sys.modules["_frozen_importlib"]
    find_and_load, execute = names.FIND_AND_LOAD.original, names.EXEC_MODULE.original
    depth = _Depth()

    def uncharged(name: str, import_: Any) -> ModuleType:
        depth.value += 1
        channel.enter()
        try:
            module: ModuleType = find_and_load(name, import_)
            return module
        finally:
            channel.leave()
            depth.value -= 1

    def charged(self: Any, module: ModuleType) -> None:
        code = self.get_code(module.__name__) if depth.value and _is_users(module) else None
        if code is None:
            execute(self, module)
            return
        before, depth.value = depth.value, 0
        for _ in range(before):
            channel.leave()
        try:
            bootstrap._call_with_frames_removed(exec, code, module.__dict__)
        finally:
            for _ in range(before):
                channel.enter()
            depth.value = before

    # The interpreter removes frames with these file names from the traceback of a failed import.
    uncharged.__code__ = uncharged.__code__.replace(co_filename="<frozen importlib._bootstrap>")
    charged.__code__ = charged.__code__.replace(co_filename="<frozen importlib._bootstrap_external>")
    names.FIND_AND_LOAD.replace(uncharged)
    names.EXEC_MODULE.replace(charged)


def _is_users(module: ModuleType) -> bool:
    """Whether the module is neither in the standard library nor installed."""
    file = getattr(module.__spec__, "origin", None)
    installed = ("site-packages", "dist-packages")
    return file is not None and not file.startswith(_LIBRARIES) and not any(name in file for name in installed)
