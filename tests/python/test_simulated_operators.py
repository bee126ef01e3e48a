"""Operators have the same results on a simulated GPU and on the CPU, on the samples of PyTorch's own tests of
operators."""

import re
from pathlib import Path

import pytest
import torch
from harness import uniference

pytestmark = [
    pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA"),
    pytest.mark.skipif(torch.cuda.device_count() > 0, reason="this machine has a GPU: none is simulated"),
]

PROGRAM = Path(__file__).parents[1] / "conformance" / "operators.py"
CLUSTER = """
[[device]]
name = "gpu"
model = "h100-sxm"
[network]
"""
SHORT = ("--dtypes", "float32,bfloat16,int64", "--samples", "2")
ALL = ("--dtypes", "float32,bfloat16,float16,float64,int64,int32,uint8,bool,complex64,complex128", "--samples", "12")
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_operators_compute_on_a_simulated_gpu_what_they_do_on_the_cpu(
    tmp_path: Path, part: int, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    options = ("--cluster", "cluster.toml", "--cuda", "--compute", "none", "--values", "all")
    samples = ALL if request.config.getoption("--all-sizes") else SHORT
    done = uniference("run", *options, PROGRAM, *samples, "--part", f"{part}/{PARTS}", cwd=tmp_path)
    last = re.findall(r"^OPERATOR (.*)$", done.out, re.MULTILINE)[-1:]
    assert done.code == 0, f"after {last}: {done.err}"
    assert re.findall(r"^DIFFERS .*$", done.out, re.MULTILINE) == []
    (compared,) = re.findall(r"^COMPARED (\d+)$", done.out, re.MULTILINE)
    assert int(compared) > 500


def test_operators_without_values_run_and_say_so(tmp_path: Path) -> None:
    """Results that depend on uncomputed values are those of zeros."""
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    (tmp_path / "script.py").write_text(WITHOUT_VALUES)
    options = ("--cluster", "cluster.toml", "--cuda", "--compute", "none", "--values", "none")
    done = uniference("run", *options, "script.py", cwd=tmp_path)
    assert done.code == 0, done.err + done.out
    assert "mode (64,) eigh (8, 8) isin (64,)" in done.out
    assert "read values that were not computed" in done.err


WITHOUT_VALUES = """
import torch

x = torch.randint(0, 9, (64, 64), device="cuda")
symmetric = torch.eye(8, device="cuda") + 1
values, vectors = torch.linalg.eigh(symmetric)
print("mode", tuple(x.mode().values.shape), "eigh", tuple(vectors.shape), "isin", tuple(torch.isin(x[0], x[1:]).shape))
print(x.sum().item())
"""
