"""Owns the replacing of names of torch and of the standard library, and the question whether all are there that are needed.

Which names these are is in `names`. Nothing here imports torch.
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
    """Who needs a name."""

    RANK = "simulated ranks"
    REAL = "recorded ranks"


class MovedError(RuntimeError):
    """Names are not where they are expected: `args` are the message, which says which, and the hint."""


class Name:
    """A name of torch's or of the standard library's that is private, or that is replaced.

    `place` is `module:attribute`, or a module alone. `why` completes "Uniference relies on it to". `parameters` are those that a function
    has, separated by commas, where callers or replacements go by them; after them `...` allows for others.
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
        """Whose it is, with the version that is installed."""
        package = self.module.partition(".")[0]
        if package not in ("torch", "triton"):
            return f"Python {platform.python_version()}"
        return f"{package} {sys.modules[package].__version__}" if package in sys.modules else package

    @property
    def advice(self) -> str:
        """What to do where it has moved."""
        return versions.ADVICE if self.library.startswith(("torch", "triton")) else "use another version of Python"

    @property
    def current(self) -> Any:
        """What stands there now."""
        return getattr(self._owner(), self.attribute.rpartition(".")[2])

    def problem(self) -> str | None:
        """What is wrong with it, if anything. A module that nobody has imported is not looked into."""
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
    """A name that is replaced: what Uniference puts there completes "Uniference replaces it to" with `why`."""

    verb = "replaces"

    def __init__(self, place: str, why: str, parameters: str | None = None, part: Part = Part.RANK) -> None:
        super().__init__(place, why, parameters, part)
        # Nothing, until it is replaced.
        self._original: list[Any] = []
        # Where modules that were imported before have it by `from ... import`.
        self._copies: list[tuple[dict[str, Any], str]] = []

    @property
    def original(self) -> Any:
        """What stood there before the first replacement."""
        return self._original[0] if self._original else self.current

    def replace(self, value: Any) -> None:
        """Puts `value` there. Raises MovedError if the name is not there, or takes other parameters."""
        importlib.import_module(self.module)
        if not self._original:
            check([self])
            self._original.append(self.current)
        self._set(value)

    def wrap(self, make: Callable[[Any], Any]) -> None:
        """Puts there what `make` returns for what stands there now."""
        self.replace(make(self.current))

    def restore(self) -> None:
        """Puts back what stood there before the first replacement."""
        if self._original:
            self._set(self._original[0])

    def _set(self, value: Any) -> None:
        setattr(self._owner(), self.attribute.rpartition(".")[2], value)
        for namespace, name in self._copies:
            namespace[name] = value

    def find_copies(self, modules: Iterable[ModuleType]) -> None:
        """Has what these modules import by this name replaced too. It must not have been replaced yet."""
        if self.attribute and sys.modules.get(self.module) is not None and self.problem() is None:
            original = self.current
            spaces = [vars(module) for module in modules]
            self._copies += [(space, name) for space in spaces for name, value in space.items() if value is original]


class Operators(Name):
    """Operators of torch's that get kernels: `place` is their namespace, `names` those that must be there."""

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
    """A namespace of torch's operators in which Uniference defines some of its own."""

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
        """The operator of this name, which is defined when it is asked for first, with a kernel for each dispatch key."""
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
    """The names that a module declares, in their order: each by itself, in a tuple or in a dictionary."""
    found: list[Name] = []
    for value in namespace.values():
        several = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
        found += [name for name in several if isinstance(name, Name)]
    return tuple(found)


def check(names: Iterable[Name]) -> None:
    """Raises MovedError if one of the names is not there, or not as expected: microseconds for a hundred of them."""
    moved = [(name, problem) for name in names if (problem := name.problem()) is not None]
    if moved:
        name, problem = moved[0]
        one = f" (one of {len(moved)} names that were not found)" if len(moved) > 1 else ""
        raise MovedError(
            f"{name.library}: {name} {problem}{one}. Uniference {name.verb} it to {name.why}",
            f"{name.advice}; run `uniference doctor --patches` to list all such names",
        )


def check_all(names: Iterable[Name]) -> None:
    """As `check`, with what nobody has imported yet. Raises MovedError for a module that is not there."""
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
    """The names of a function's parameters; None where nobody can know."""
    if isinstance(function, ModuleType | type):
        return None
    while (wrapped := getattr(function, "__wrapped__", None)) is not None:
        function = wrapped
    code = getattr(function, "__code__", None)
    if code is not None:
        return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    line = (getattr(function, "__doc__", None) or "").partition("\n")[0]
    return _PYBIND_PARAMETER.findall(line) if "(" in line and "->" in line else None
