"""Owns the decision whether a program's ranks have GPUs, on a machine that has none.

What the user says goes first (`--cuda`, `--no-cuda`), then a simulated backend that needs them. Otherwise a program that cannot do without
them gets them: its file names `nccl` or a CUDA device, and never asks whether there is one.
"""

import ast
import importlib.util
from collections.abc import Sequence
from pathlib import Path

_ASKS = ("is_available", "current_accelerator")


def needs_gpu(argv: Sequence[str], module: bool) -> bool:
    """Whether the program, as `uniference run` is given it, cannot do without a GPU. What it imports is not looked at."""
    path = _file(argv[0], module)
    try:
        tree = ast.parse(path.read_bytes()) if path is not None else None
    except (OSError, SyntaxError, ValueError):
        return False  # running it will say what is wrong
    if tree is None:
        return False
    nodes = list(ast.walk(tree))
    return any(map(_uses_cuda, nodes)) and not any(map(_asks, nodes))


def _file(name: str, module: bool) -> Path | None:
    if not module:
        return Path(name)
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _uses_cuda(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value in ("nccl", "cuda", "cpu:gloo,cuda:nccl") or node.value.startswith("cuda:")
    if isinstance(node, ast.Attribute):
        return node.attr == "cuda"
    return False


def _asks(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _ASKS
