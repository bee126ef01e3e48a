"""Charges the CPU work of programs with simulated GPUs that is no PyTorch operator: functions of C++ extensions. Warns about files.

A call of an extension's function is recorded as an operator that reads and writes each of its CPU tensors. Files cost no time, and the run
warns about `torch.save` and `torch.load`. Limitation: only extensions that `torch.utils.cpp_extension` loads and DeepSpeed's are charged.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from uniference._native import Channel
from uniference.patches import names
from uniference.patches.later import when_imported

_PREBUILT = tuple(f"deepspeed.ops.{kind}.cpu_{kind}_op" for kind in ("adam", "adagrad", "lion"))
"""DeepSpeed's CPU extensions, which are separate modules if they were built with its wheel."""


def install(channel: Channel) -> None:
    """Charges functions of the extensions that this process loads from now on, and warns about files."""
    of_extensions = {"torch.utils.cpp_extension": lambda: names.EXTENSION.wrap(_costs)}
    when_imported(of_extensions | {name: functools.partial(_cost_module, name) for name in _PREBUILT})
    for name in (names.SAVE, names.LOAD):
        name.wrap(functools.partial(_tells, channel))


def _costs(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def loaded(*args: Any, **kwargs: Any) -> Any:
        module = load(*args, **kwargs)
        if isinstance(module, ModuleType):
            _cost_functions(module)
        return module

    return loaded


def _cost_module(name: str) -> None:
    _cost_functions(sys.modules[name])


def _cost_functions(module: ModuleType) -> None:
    for name, value in tuple(vars(module).items()):
        if callable(value) and not isinstance(value, type) and not name.startswith("__"):
            vars(module)[name] = _costed(value)


def _costed(function: Callable[..., Any]) -> Callable[..., Any]:
    operator = names.EXTENSIONS.operator("function_of_extension", "(Tensor[] tensors) -> ()", {"CPU": lambda _: None})

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        tensors = list(_tensors((*args, *kwargs.values())))
        if tensors and all(tensor.is_cpu for tensor in tensors):
            # The operator's cost counts each tensor twice: one read and one write.
            operator([*tensors, *tensors])
        return result

    return call


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value.detach()
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _tells(channel: Channel, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        channel.warn(
            "torch.save and torch.load take the time of their operators, and none for files: where files matter, "
            "add time.sleep(bytes / rate) to the program"
        )
        return function(*args, **kwargs)

    return call
