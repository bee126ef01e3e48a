"""A generated job and the same job as a PyTorch program take the same time."""

import json
from pathlib import Path

import pytest
from harness import uniference

PROGRAM = Path(__file__).with_name("llama.py")

SHAPE = "--layers 4 --hidden 4096 --heads 32 --kv-heads 32 --ffn 14336 --vocab 32000 --seq 2048 --micro-batch 1"

CLUSTER = """
backend = "nccl"
[[device]]
name = "gpu"
model = "h100-sxm"
count = {ranks}
[network]
preset = "rail"
per_server = {ranks}
fabric = "nvlink4"
link = "infiniband_ndr"
"""


@pytest.mark.parametrize(("phase", "ranks"), [("prefill", 1), ("train", 1), ("train", 8)])
def test_a_program_takes_as_long_as_the_job_that_is_generated(phase: str, ranks: int, tmp_path: Path) -> None:
    """Within 5 %. The optimizer is left out: none of PyTorch's has gradients and parameters of 2 bytes, and 4 of its own."""
    (tmp_path / "cluster.toml").write_text(CLUSTER.format(ranks=ranks))
    cluster = ("--cluster", "cluster.toml")
    run = uniference("run", *cluster, "--values", "small", "--cuda", "--out", "run", PROGRAM, phase, cwd=tmp_path)
    assert run.code == 0, run.err
    step = float(run.out.split("step ")[1].split(" ms")[0]) / 1e3

    options = f"{SHAPE} --phase {phase} --dp {ranks} --batch {ranks} --kernels eager --recompute none".split()
    if phase == "train":
        options += ["--gradient-bytes", "2", "--no-gradient-overlap"]
    job = uniference("workload", "llama", *options, "--run", *cluster, "--out", "job", cwd=tmp_path)
    assert job.code == 0, job.err
    report = json.loads((tmp_path / "job" / "report.json").read_text())
    optimizer = sum(row["seconds"] for row in report["compute"] if row["kind"] == "optimizer" and row["rank"] == 0)
    assert (optimizer > 0) == (phase == "train")
    assert step == pytest.approx(report["makespan_s"] - optimizer, rel=0.05)
