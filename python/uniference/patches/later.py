"""Owns callbacks for modules that a program may import; this module itself imports none of them."""

import sys
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(whats: Mapping[str, Callable[[], None]]) -> None:
    """Calls each of `whats` once the module of its name is imported: now, or when the program imports it."""
    missing = {name: what for name, what in whats.items() if name not in sys.modules}
    for name, what in whats.items():
        if name not in missing:
            what()
    sys.meta_path.insert(0, _Later(missing))


class _Later(MetaPathFinder):
    """Runs callbacks after modules have been imported."""

    def __init__(self, whats: Mapping[str, Callable[[], None]]) -> None:
        self._whats = dict(whats)

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        what = self._whats.pop(name, None)
        if what is None:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Doing(spec.loader, what)
                return spec
        return None


class _Doing(Loader):
    def __init__(self, loader: Loader, what: Callable[[], None]) -> None:
        self._loader, self._what = loader, what

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._what()
