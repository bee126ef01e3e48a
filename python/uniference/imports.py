"""Owns that importing a module costs a program no virtual time: a simulated cluster has its modules where this process loads its own."""

import sys
from types import ModuleType
from typing import Any

from uniference._native import Channel


def install(channel: Channel) -> None:
    """From here on, loading a module that is not loaded yet is not charged. Modules that are loaded never come here."""
    # The module object itself, not importlib._bootstrap's name for it: the interpreter calls its attribute.
    bootstrap: Any = sys.modules["_frozen_importlib"]
    find_and_load = bootstrap._find_and_load

    def uncharged(name: str, import_: Any) -> ModuleType:
        channel.enter()
        try:
            module: ModuleType = find_and_load(name, import_)
            return module
        finally:
            channel.leave()

    # The interpreter takes frames of this file name out of the traceback of a failed import.
    uncharged.__code__ = uncharged.__code__.replace(co_filename="<frozen importlib._bootstrap>")
    bootstrap._find_and_load = uncharged
