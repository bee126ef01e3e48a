"""Charges the CPU work of programs with simulated GPUs that is no PyTorch operator: functions of C++ extensions. Warns about files.

A call of an extension's function is recorded as an operator that reads and writes each of its CPU tensors. If a
function runs PyTorch operators, only these operators are charged. Files cost no time, and the run warns about
`torch.save` and `torch.load`. Limitation: only extensions that `torch.utils.cpp_extension` loads and DeepSpeed's are
charged.
"""

import functools
import io
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from uniference._native import Channel
from uniference.patches import names
from uniference.patches.later import when_imported
from uniference.rank.capture import Library

_PREBUILT = tuple(f"deepspeed.ops.{kind}.cpu_{kind}_op" for kind in ("adam", "adagrad", "lion"))
"""DeepSpeed's CPU extensions, which are separate modules if they were built with its wheel."""


def install(channel: Channel, library: Library) -> None:
    """Charges functions of the extensions that this process loads from now on, and warns about files."""
    of_extensions = {
        "torch.utils.cpp_extension": lambda: names.EXTENSION.wrap(functools.partial(_charging_loader, library))
    }
    prebuilt = {name: functools.partial(_charge_prebuilt, library, name) for name in _PREBUILT}
    when_imported(of_extensions | prebuilt)
    names.SAVE.wrap(functools.partial(_warning_of_files, channel, 1))
    names.LOAD.wrap(functools.partial(_warning_of_files, channel, 0))


def _charging_loader(library: Library, load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def loaded(*args: Any, **kwargs: Any) -> Any:
        module = load(*args, **kwargs)
        if isinstance(module, ModuleType):
            _charge_functions(library, module)
        return module

    return loaded


def _charge_prebuilt(library: Library, name: str) -> None:
    _charge_functions(library, sys.modules[name])


def _charge_functions(library: Library, module: ModuleType) -> None:
    for name, value in tuple(vars(module).items()):
        if callable(value) and not isinstance(value, type) and not name.startswith("__"):
            vars(module)[name] = _charged(library, value)


def _charged(library: Library, function: Callable[..., Any]) -> Callable[..., Any]:
    operator = names.EXTENSIONS.operator("function_of_extension", "(Tensor[] tensors) -> ()", {"CPU": lambda _: None})

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = library.computing_operators()
        result = function(*args, **kwargs)
        tensors = [tensor.detach() for tensor in _tensors((*args, *kwargs.values())) if tensor.is_cpu]
        if tensors and library.computing_operators() == before:
            # The operator's cost counts each tensor twice: one read and one write. If the schema declared the writes,
            # the tensors' values would be marked as missing, and their versions for autograd would change.
            operator([*tensors, *tensors])
        return result

    return call


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _warning_of_files(channel: Channel, place: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the function, whose argument `f` has this position: the wrapper warns unless `f` is a buffer in memory."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        file = args[place] if len(args) > place else kwargs.get("f")
        if not isinstance(file, io.BytesIO):
            channel.warn(
                "torch.save and torch.load take the time of their operators, and none for files: where files matter, "
                "add time.sleep(bytes / rate) to the program"
            )
        return function(*args, **kwargs)

    return call
