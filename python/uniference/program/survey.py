"""Owns the survey of an interpreter and a program before the driver starts ranks: versions, torch's location, and
whether the program has GPUs.

The interpreter receives this module as text (`crates/cli/src/interpreter.rs`) with the arguments PROGRAM, KIND
(`script` or `module`), CUDA (`yes`, `no`, `needed` or `used`) and the names of packages whose versions are wanted, and
answers with a JSON object. The module imports neither torch nor this package.

A program needs GPUs if its file names `nccl` or a CUDA device, and queries neither whether a GPU is available nor which
backend it was given. A program uses GPUs if its file, or a module in its folder that it imports, names `nccl` or a CUDA
device or uses `torch.accelerator`.
"""

import ast
import contextlib
import ctypes
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_ASKS = ("is_available", "current_accelerator")

# Bounds the time of the survey to seconds: GPUs that only further modules use are not found.
_MOST_MODULES = 1000


def needs_gpu(path: Path) -> bool:
    """Whether the program in this file requires a GPU. Its imports are not inspected."""
    nodes = _nodes(path)
    return any(map(_uses_cuda, nodes)) and not any(map(_asks, nodes))


def uses_gpu(path: Path) -> bool:
    """Whether this program uses GPUs if it finds some. Modules that it imports from its folder or the current folder
    count too."""
    path = path.resolve()
    folders = list(dict.fromkeys((path.parent, Path.cwd())))
    waiting, seen = [path], {path}
    while waiting and len(seen) <= _MOST_MODULES:
        module = waiting.pop()
        nodes = _nodes(module)
        if any(_uses_cuda(node) or _uses_accelerator(node) for node in nodes):
            return True
        found = {file for node in nodes for file in _files(node, module, folders)} - seen
        seen |= found
        waiting += sorted(found)
    return False


def _nodes(path: Path) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(path.read_bytes())))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []  # running the program reports the error


def _files(node: ast.AST, module: Path, folders: list[Path]) -> list[Path]:
    """The files in these folders that a statement imports."""
    if isinstance(node, ast.Import):
        names = [name.name for name in node.names]
    elif isinstance(node, ast.ImportFrom):
        # A relative import with one dot starts at the module's own package.
        if 0 < node.level <= len(module.parents):
            folders = [module.parents[node.level - 1]]
        first = node.module or ""
        names = [f"{first}.{name.name}".strip(".") for name in node.names]
    else:
        return []
    # An import of `a.b` runs `a` first.
    paths = {part for name in names for part in itertools.accumulate(name.split("."), os.path.join)}
    places = [Path(folder, path) for folder in folders for path in paths]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return [file for file in files if file.is_file()]


def find(program: str, module: bool) -> Path | None:
    """The main file of a program, as far as it can be found without importing anything."""
    if not module:
        return Path(program, "__main__.py") if os.path.isdir(program) else Path(program)
    first, *rest = program.split(".")
    try:
        sys.path.insert(0, os.getcwd())
        spec = importlib.util.find_spec(first)
        for part in (*rest, "__main__"):
            if spec is None or spec.submodule_search_locations is None:
                break
            spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    except (ImportError, KeyError, OSError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def has_gpus(torch: Path) -> bool:
    """Whether torch, in this folder, finds GPUs on this machine. The CUDA driver is queried in the same way as by
    torch."""
    if not (torch / "lib" / "libtorch_cuda.so").exists():
        return False
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def _uses_cuda(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value in ("nccl", "cuda", "cpu:gloo,cuda:nccl") or node.value.startswith("cuda:")
    if isinstance(node, ast.Attribute):
        return node.attr == "cuda"
    return False


def _uses_accelerator(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        # Only `torch.accelerator` counts: an attribute `accelerator` of another object may be an option of the program.
        return node.attr == "current_accelerator" or (node.attr == "accelerator" and _name(node.value) == "torch")
    if isinstance(node, ast.Import):
        names = [name.name for name in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = [f"{node.module}.{name.name}" for name in node.names]
    else:
        return False
    return any(f"{name}.".startswith("torch.accelerator.") for name in names)


def _asks(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):  # dist.get_backend() == "nccl"
        return any(
            isinstance(part, ast.Call) and _name(part.func) == "get_backend" for part in (node.left, *node.comparators)
        )
    return isinstance(node, ast.Attribute) and node.attr in _ASKS


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def installed(packages: list[str]) -> dict[str, str]:
    """Versions of these packages, as far as they are installed."""
    versions = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def main(program: str, module: bool, cuda: str, packages: list[str]) -> None:
    """Prints the answer."""
    version = importlib.metadata.version("torch")
    spec = importlib.util.find_spec("torch")
    torch = Path(spec.origin).parent if spec is not None and spec.origin else None
    uses = {"needed": needs_gpu, "used": uses_gpu}.get(cuda)
    path = find(program, module) if uses else None
    wanted = cuda == "yes" or (uses is not None and path is not None and uses(path))
    simulated = wanted and not (torch is not None and has_gpus(torch))
    folder = str(torch) if simulated and torch is not None else None
    versions = {"python": platform.python_version(), "torch": version, **installed(packages)}
    print(json.dumps({"versions": versions, "simulates_gpus": simulated, "folder": folder}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "module", sys.argv[3], sys.argv[4:])
