"""The same program gives the same values under real Gloo and under `uniference run --backend gloo`, bit for bit.

The simulation runs with its defaults, with plain collectives carried out in C++, and a part of it with Python alone.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import run_on_gloo, uniference

PROGRAM = Path(__file__).parent / "conformance" / "program.py"
sys.path.insert(0, str(PROGRAM.parent))

from program import BODIES  # noqa: E402 - its folder is on the path only now

Results = list[dict[str, Any]]


# By which backends a part runs, and what the environment says for that.
BACKENDS: dict[str, dict[str, str]] = {"C++": {}, "Python": {"UNIFERENCE_BACKEND": "python"}}

# Parts that run without `--all-sizes`.
SHORT = (("calls", 2), ("calls", 3), ("arguments", 2), ("layers", 2))
ALL = (
    *((part, size) for part in ("calls", "layers") for size in (2, 3, 4)),
    ("arguments", 2),
    ("arguments", 3),
    ("compiled", 2),
)


# None: the results are being computed, or could not be.
_results: dict[tuple[str, int, str], tuple[Results, Results] | None] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    runs = ALL if metafunc.config.getoption("--all-sizes", default=False) else SHORT
    cases = [(part, size, "C++", name) for part, size in runs for name in BODIES[part]]
    cases += [("calls", 2, "Python", name) for name in BODIES["calls"]]
    metafunc.parametrize(("part", "size", "backend", "name"), cases)


def test_same_values(part: str, size: int, backend: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    if part == "compiled" and shutil.which("c++") is None:
        pytest.skip("this machine has no C++ compiler")
    key = part, size, backend
    if key not in _results:
        _results[key] = None
        _results[key] = run_both(part, size, backend, tmp_path_factory.mktemp(part))
    results = _results[key]
    assert results is not None, "its part could not be run: an earlier body's failure says why"
    for rank, (real, ours) in enumerate(zip(*results, strict=True)):
        assert not differences(real[name], ours[name], f"rank {rank}")


def run_both(part: str, size: int, backend: str, directory: Path) -> tuple[Results, Results]:
    """Results of every body of a part on every rank: under Gloo, and in the simulation."""
    real, ours = directory / "gloo", directory / "uniference"
    real.mkdir()
    ours.mkdir()
    run_on_gloo(size, PROGRAM, part, real)
    options = ("--ranks", size, "--backend", "gloo", "--compute", "none", "--out", ours / "out")
    env = BACKENDS[backend]
    done = uniference("run", *options, PROGRAM, part, ours, cwd=ours, env=env, cold=bool(env))
    assert done.code == 0, done.err
    return _load(real, size), _load(ours, size)


def _load(directory: Path, size: int) -> Results:
    return [torch.load(directory / f"rank{rank}.pt", weights_only=False) for rank in range(size)]


def differences(real: Any, ours: Any, where: str) -> list[str]:
    """Paths of differing parts of two results; tensors are compared by their bytes."""
    if isinstance(real, torch.Tensor) and isinstance(ours, torch.Tensor):
        same = real.shape == ours.shape and real.dtype == ours.dtype and torch.equal(_bytes(real), _bytes(ours))
        return [] if same else [f"{where}: {real} and {ours}"]
    if isinstance(real, list | tuple) and isinstance(ours, list | tuple) and len(real) == len(ours):
        pairs = enumerate(zip(real, ours, strict=True))
        return [line for index, (a, b) in pairs for line in differences(a, b, f"{where}[{index}]")]
    if isinstance(real, dict) and isinstance(ours, dict) and real.keys() == ours.keys():
        return [line for key in real for line in differences(real[key], ours[key], f"{where}[{key!r}]")]
    return [] if real == ours else [f"{where}: {real!r} and {ours!r}"]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype is torch.bool:
        # Gloo adds truth values as bytes: True + True is 2, which also means True.
        tensor = torch.tensor(tensor.tolist())
    return tensor.contiguous().flatten().view(torch.uint8)
