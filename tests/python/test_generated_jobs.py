"""A generated job and the same job as a PyTorch program have the same makespan."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness import gpus, uniference

PROGRAM = Path(__file__).with_name("llama.py")

SHAPE = "--layers 4 --hidden 4096 --heads 32 --kv-heads 32 --ffn 14336 --vocab 32000 --seq 2048 --micro-batch 1"


@pytest.mark.parametrize(("phase", "ranks"), [("prefill", 1), ("train", 1), ("train", 8)])
def test_a_program_takes_as_long_as_the_job_that_is_generated(phase: str, ranks: int, tmp_path: Path) -> None:
    """Within 5 %. The optimizer is left out, because PyTorch has none with gradients and parameters of 2 bytes and
    states of 4."""
    (tmp_path / "cluster.toml").write_text(gpus(ranks))
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


def test_gpus_of_nvidia_communicate_by_nccl_unless_another_backend_is_named(tmp_path: Path) -> None:
    """A job on NVIDIA GPUs uses NCCL, and NVLink's 360 GB/s, by default; a note says that the backend was chosen."""
    (tmp_path / "named.toml").write_text(gpus(8))
    (tmp_path / "silent.toml").write_text(gpus(8).replace('backend = "nccl"\n', ""))
    options = f"{SHAPE} --dp 8 --batch 8 --run --record summary".split()

    def job(cluster: str, *more: str) -> tuple[dict[str, Any], str]:
        done = uniference("workload", "llama", *options, "--cluster", cluster, *more, "--out", "job", cwd=tmp_path)
        assert done.code == 0, done.err
        return json.loads((tmp_path / "job" / "report.json").read_text()), done.err

    (named, quiet), (silent, note), (gloo, _) = (
        job("named.toml"),
        job("silent.toml"),
        job("silent.toml", "--backend", "gloo"),
    )
    assert named["digest"] == silent["digest"]
    assert "note:" not in quiet
    assert note.count("note: the devices are NVIDIA GPUs; using backend nccl") == 1
    assert gloo["makespan_s"] > 3 * named["makespan_s"]
    assert "Gloo communicates over TCP" in gloo["warnings"][0]
    assert not [text for text in named["warnings"] if "Gloo" in text]


def test_a_check_says_what_it_doubts_of_a_cluster(tmp_path: Path) -> None:
    """`cluster check` prints a summary to standard output and doubts about the cluster to standard error."""
    server = '[[device]]\nname = "gpu"\ncount = 8\nmodel = "l40s"\nhost = "server"\n[network]\nlocal = "pcie4_x16"\n'
    (tmp_path / "server.toml").write_text(server)
    check = uniference("cluster", "check", "server.toml", cwd=tmp_path)
    assert check.code == 0
    assert check.out.startswith("ok: 8 devices\n")
    assert "8 x l40s" in check.out
    assert 'name = "nccl"' in uniference("cluster", "check", "server.toml", "--toml", cwd=tmp_path).out
    note, warning, hint = check.err.splitlines()
    assert note.startswith("note: the devices are NVIDIA GPUs; using backend nccl")
    assert warning.startswith("warning: the 8 GPUs of host `server` share one link, `local`, of 25 GB/s")
    assert hint.startswith(
        'hint: describe the server by `preset = "server"` with `per_server = 8` and `pcie = "pcie4_x16"`'
    )
    (tmp_path / "rail.toml").write_text(gpus(8))
    assert uniference("cluster", "check", "rail.toml", cwd=tmp_path).err == ""


def test_a_program_holds_what_is_counted_of_the_eager_job(tmp_path: Path) -> None:
    """Program and generated job agree within 5 % at the memory peak, in the loss's backward pass. Fused kernels hold a third less."""
    (tmp_path / "cluster.toml").write_text(gpus(1))
    # The loss casts its logits to float32, as in the generated job.
    source = PROGRAM.read_text().replace(".flatten(0, 1), tokens", ".flatten(0, 1).float(), tokens")
    assert ".float(), tokens" in source
    (tmp_path / "llama.py").write_text(source)
    where = ("--cluster", "cluster.toml", "--json")
    program = uniference("fit", *where, "--cuda", "llama.py", "train", cwd=tmp_path)
    assert program.code == 0, program.err
    held = json.loads(program.out)["ranks"][0]["kinds"]
    # The sum covers all kinds that hold tensors, because the gradient buffer belongs to no module and no optimizer.
    held = sum(size for kind, size in held.items() if kind not in ("reserved", "context", "host"))

    def counted(kernels: str) -> tuple[int, int]:
        options = f"{SHAPE} --batch 1 --gradient-bytes 2 --kernels {kernels}".split()
        job = uniference("fit", *where, "workload", "llama", *options, cwd=tmp_path)
        assert job.code == 0, job.err
        kinds = json.loads(job.out)["ranks"][0]["kinds"]
        return sum(kinds.values()) - kinds["optimizer"], kinds["activations"]

    assert held == pytest.approx(counted("eager")[0], rel=0.05)
    assert counted("fused")[1] < 2 / 3 * counted("eager")[1]
