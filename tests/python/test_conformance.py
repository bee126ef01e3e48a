"""The same program gives the same values under real Gloo and under `uniference run --backend gloo`, bit for bit."""

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


@pytest.fixture(scope="module", params=[2, 3, 4])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results]:
    """What every body returned on every rank: under Gloo, and under us."""
    size = request.param
    real, ours = tmp_path_factory.mktemp("gloo"), tmp_path_factory.mktemp("uniference")
    run_on_gloo(size, PROGRAM, real)
    options = ("--ranks", size, "--backend", "gloo", "--compute", "none", "--out", ours / "out")
    done = uniference("run", *options, PROGRAM, ours, cwd=ours)
    assert done.code == 0, done.err
    return _load(real, size), _load(ours, size)


@pytest.mark.parametrize("name", BODIES)
def test_same_values(both: tuple[Results, Results], name: str) -> None:
    for rank, (real, ours) in enumerate(zip(*both, strict=True)):
        assert not differences(real[name], ours[name], f"rank {rank}")


def _load(directory: Path, size: int) -> Results:
    return [torch.load(directory / f"rank{rank}.pt", weights_only=False) for rank in range(size)]


def differences(real: Any, ours: Any, where: str) -> list[str]:
    """Where two results differ; tensors are compared by their bytes."""
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
        # Gloo adds them up as bytes: two times True is a 2, which is True as well.
        tensor = torch.tensor(tensor.tolist())
    return tensor.contiguous().flatten().view(torch.uint8)
