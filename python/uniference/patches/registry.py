"""Owns the replacement of names of torch and of the standard library, and the check that all needed names exist.

`names` lists them. This module does not import torch.
"""

import importlib
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import ModuleType
from typing import Any

from uniference.patches import versions

# A parameter in the first line of a docstring that pybind11 has made.
_PYBIND_PARAMETER = re.compile(r"(\w+): ")


class Part(Enum):
    """The part of this package that needs a name."""

    RANK = "simulated ranks"
    REAL = "recorded ranks"


class MovedError(RuntimeError):
    """Names are missing or have other parameters than expected: `args` are the message, which lists the names, and the
    hint."""


class Name:
    """A name of torch or of the standard library that is private, or that is replaced.

    `place` is `module:attribute`, or a module alone. `why` completes "Uniference relies on it to". `parameters` are the
    function's, separated by commas, if callers or replacements depend on them; a trailing `...` allows for more.
    """

    verb = "relies on"

    def __init__(self, place: str, why: str, parameters: str | None = None, part: Part = Part.RANK) -> None:
        self.module, _, self.attribute = place.partition(":")
        self.why = why
        self.parameters = parameters
        self.part = part

    def __str__(self) -> str:
        return f"{self.module}.{self.attribute}" if self.attribute else self.module

    @property
    def library(self) -> str:
        """Library of the name, with the installed version."""
        package = self.module.partition(".")[0]
        if package not in ("torch", "triton"):
            return f"Python {platform.python_version()}"
        return f"{package} {sys.modules[package].__version__}" if package in sys.modules else package

    @property
    def advice(self) -> str:
        """Advice for users if the name has moved."""
        return versions.ADVICE if self.library.startswith(("torch", "triton")) else "use another version of Python"

    @property
    def current(self) -> Any:
        """Current value of the name."""
        return getattr(self._owner(), self.attribute.rpartition(".")[2])

    def problem(self) -> str | None:
        """Description of the mismatch, if there is one. A module that has not been imported is not checked."""
        owner: Any = sys.modules.get(self.module)
        if owner is None:
            return None
        for part in self.attribute.split(".") if self.attribute else ():
            try:
                owner = getattr(owner, part)
            except AttributeError:
                return "was not found"
        return None if self.parameters is None else self._difference(owner)

    def _owner(self) -> Any:
        owner: Any = importlib.import_module(self.module)
        for part in self.attribute.split(".")[:-1]:
            owner = getattr(owner, part)
        return owner

    def _difference(self, function: Any) -> str | None:
        assert self.parameters is not None
        expected = [parameter for parameter in self.parameters.replace(" ", "").split(",") if parameter]
        actual = _parameters(function)
        if actual is None or actual == expected:
            return None
        if expected[-1:] == ["..."] and actual[: len(expected) - 1] == expected[:-1]:
            return None
        return f"takes ({', '.join(actual)}) rather than ({self.parameters})"


class Replaced(Name):
    """A name that is replaced: `why` completes "Uniference replaces it to"."""

    verb = "replaces"

    def __init__(self, place: str, why: str, parameters: str | None = None, part: Part = Part.RANK) -> None:
        super().__init__(place, why, parameters, part)
        # The original value; empty until the first replacement.
        self._original: list[Any] = []
        # Namespaces of modules that imported the name earlier by `from ... import`, with the name in each.
        self._copies: list[tuple[dict[str, Any], str]] = []

    @property
    def original(self) -> Any:
        """Value of the name before the first replacement."""
        return self._original[0] if self._original else self.current

    def replace(self, value: Any) -> None:
        """Sets the name to `value`. Raises MovedError if the name does not exist, or has other parameters."""
        importlib.import_module(self.module)
        if not self._original:
            check([self])
            self._original.append(self.current)
        self._set(value)

    def wrap(self, make: Callable[[Any], Any]) -> None:
        """Sets the name to `make(current)`."""
        self.replace(make(self.current))

    def restore(self) -> None:
        """Restores the value from before the first replacement."""
        if self._original:
            self._set(self._original[0])

    def _set(self, value: Any) -> None:
        setattr(self._owner(), self.attribute.rpartition(".")[2], value)
        for namespace, name in self._copies:
            namespace[name] = value

    def find_copies(self, modules: Iterable[ModuleType]) -> None:
        """Finds copies of this name in the given modules, so that the copies are replaced, too. The name must not have
        been replaced yet."""
        if self.attribute and sys.modules.get(self.module) is not None and self.problem() is None:
            original = self.current
            spaces = [vars(module) for module in modules]
            self._copies += [(space, name) for space in spaces for name, value in space.items() if value is original]


class Operators(Name):
    """Torch operators to which Uniference adds kernels: `place` is their namespace, `names` are the operators that must
    exist."""

    verb = "replaces"

    def __init__(self, place: str, names: str, why: str, part: Part = Part.RANK) -> None:
        super().__init__("torch", why, None, part)
        self.namespace = place
        self.names = names.split()
        self._library: Any = None

    def __str__(self) -> str:
        return f"{self.namespace}::{{{', '.join(self.names)}}}"

    def problem(self) -> str | None:
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return None
        has = torch._C._dispatch_has_kernel
        missing = [name for name in self.names if not has(f"{self.namespace}::{name}")]
        return f"lacks {', '.join(missing)}" if missing else None

    def implement(self, name: str, kernel: Callable[..., Any], key: str, **options: Any) -> None:
        """Puts a kernel for the dispatch key `key` in front of torch's, for the rest of the process."""
        import torch.library

        if self._library is None:
            library: Any = torch.library.Library
            self._library = library(self.namespace, "IMPL")
        self._library.impl(name, kernel, key, **options)


class Namespace(Name):
    """A namespace of torch operators in which Uniference defines its own operators."""

    verb = "adds to"

    def __init__(self, place: str, why: str, part: Part = Part.RANK) -> None:
        super().__init__("torch", why, None, part)
        self.namespace = place
        self._library: Any = None

    def __str__(self) -> str:
        return f"{self.namespace}::*"

    def problem(self) -> str | None:
        return None

    def operator(self, name: str, schema: str, kernels: Mapping[str, Callable[..., Any]]) -> Any:
        """The operator of this name, defined at the first request, with a kernel for each dispatch key."""
        import torch.library

        defined = getattr(torch.ops, self.namespace)
        if not hasattr(defined, name):
            if self._library is None:
                library: Any = torch.library.Library
                self._library = library(self.namespace, "FRAGMENT")
            self._library.define(name + schema)
            for key, kernel in kernels.items():
                self._library.impl(name, kernel, key)
        return getattr(defined, name).default


def collect(namespace: Mapping[str, Any]) -> tuple[Name, ...]:
    """The names that a module declares, in their order: single ones, and those in tuples or dictionaries."""
    found: list[Name] = []
    for value in namespace.values():
        several = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
        found += [name for name in several if isinstance(name, Name)]
    return tuple(found)


def check(names: Iterable[Name]) -> None:
    """Raises MovedError if one of the names does not exist or is not as expected. A hundred names cost microseconds."""
    moved = [(name, problem) for name in names if (problem := name.problem()) is not None]
    if moved:
        name, problem = moved[0]
        one = f" (one of {len(moved)} names that were not found)" if len(moved) > 1 else ""
        raise MovedError(
            f"{name.library}: {name} {problem}{one}. Uniference {name.verb} it to {name.why}",
            f"{name.advice}; run `uniference doctor --patches` to list all such names",
        )


def check_all(names: Iterable[Name]) -> None:
    """Imports the names' modules and then checks like `check`. Raises MovedError for a module that does not exist."""
    names = list(names)
    for name in names:
        try:
            importlib.import_module(name.module)
        except ModuleNotFoundError:
            raise MovedError(
                f"{name.library}: module {name.module} does not exist. Uniference {name.verb} {name} to {name.why}",
                name.advice,
            ) from None
    check(names)


def _parameters(function: Any) -> list[str] | None:
    """Names of a function's parameters; None if they are unknown."""
    if isinstance(function, ModuleType | type):
        return None
    while (wrapped := getattr(function, "__wrapped__", None)) is not None:
        function = wrapped
    code = getattr(function, "__code__", None)
    if code is not None:
        return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    line = (getattr(function, "__doc__", None) or "").partition("\n")[0]
    return _PYBIND_PARAMETER.findall(line) if "(" in line and "->" in line else None
