"""Operators that are timed on real hardware, and a device that is made of them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import run_on_gloo, uniference, write_script

from uniference.rank import capture

PROGRAM = """
import torch
layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64))
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(20):
    layer(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CLUSTER = """
backend = "ideal"
[[device]]
name = "board"
model = "here"
peak_flops = "50 GFLOPS"
memory_bandwidth = "10 GB/s"
[network]
preset = "switch"
bandwidth = "1 Gbps"
latency = "10 us"
"""

needs_library = pytest.mark.skipif(
    capture.library() is None, reason="operators are timed in C++ only, and no compiler was found"
)


@needs_library
@pytest.mark.parametrize("way", [(), ("--in-place",)])
def test_a_profiled_program_is_known_to_the_model(tmp_path: Path, way: tuple[str, ...]) -> None:
    script = write_script(tmp_path, PROGRAM)
    database = tmp_path / "operators.sqlite"
    profile = ("profile", *way, "--device", "here", "--device-db", database, "--json")
    done = uniference(*profile, "--out", tmp_path / "profile", script, cwd=tmp_path)
    assert done.code == 0, done.err
    added = json.loads(done.out)
    assert added["measured"] == added["operators"] > 10
    assert (added["reused"], added["not_measured"]) == (0, {})
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(CLUSTER)
    words = ("run", "--cluster", cluster, "--device-db", database, "--out", tmp_path / "run", script)
    run = uniference(*words, cwd=tmp_path)
    assert run.code == 0, run.err
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    # The host's overhead before operators that ran once, while parameters were created, is not measured.
    seconds = [(row["seconds"], row["origin"]) for row in report["compute"]]
    assert sum(one for one, origin in seconds if origin == "database") > 0.9 * sum(one for one, _ in seconds)
    assert {origin for _, origin in seconds} <= {"database", "interpolated"}
    # Limits of the duration of twenty steps of so small a layer, on any CPU.
    assert 1e-4 < report["makespan_s"] < 10


# Embedded tokens, a layer of the model's, and another width as the last argument: only the norm of the layer's weight
# depends on the model alone.
SWEPT = """
import sys, torch
batch, tokens, last = map(int, sys.argv[1:])
with torch.no_grad():
    hidden = torch.nn.functional.embedding(torch.ones(batch, tokens, dtype=torch.int64), torch.ones(1000, 48))
    weight = torch.ones(48, 96)
    weight.norm()
    product = hidden.view(-1, 48) @ weight
    torch.softmax(product, -1)
    if last > 96:
        product @ torch.ones(96, last)
"""


@needs_library
def test_only_what_the_database_lacks_is_measured(tmp_path: Path) -> None:
    script = write_script(tmp_path, SWEPT)
    profile = ("profile", "--device", "here", "--device-db", "operators.sqlite", "--out", "profile", "--json")

    def measured(*words: object) -> dict[str, Any]:
        done = uniference(*profile, *words, cwd=tmp_path)
        assert done.code == 0, done.err
        said: dict[str, Any] = json.loads(done.out)
        return said

    sizes = ("--sweep", "batch=1,4", "--sweep", "tokens=32,128", script, "{batch}", "{tokens}")
    first = measured(*sizes, 0)
    assert (first["sizes"], first["reused"], first["not_measured"]) == (4, 0, {})
    # 1 x 128 and 4 x 32 tokens share a GEMM and a softmax, but have two look-ups, each with its ids.
    same = first["same_at_all_sizes"]
    assert first["measured"] == first["operators"] == same + 4 + 4 + 3 + 3
    # Another model that shares all but its last GEMM with this one: that GEMM at 3 sizes, and its weight.
    second = measured(*sizes, 192)
    assert (second["reused"], second["measured"]) == (first["operators"], 3 + 1)
    assert measured(script, 4, 128, 192)["measured"] == 0
    again = measured("--again", script, 4, 128, 192)
    assert (again["reused"], again["measured"]) == (0, again["operators"])


@needs_library
def test_an_operator_that_does_not_run_by_itself_is_named(tmp_path: Path) -> None:
    source = """
import torch
torch.ones(8192).clone()
torch.ops.aten.bincount(torch.ones(5000, dtype=torch.int64))
torch.linalg.cholesky_ex(torch.eye(64), check_errors=True)
"""
    script = write_script(tmp_path, source)
    words = ("--device-db", "operators.sqlite", "--out", "profile", script)
    done = uniference("profile", *words, cwd=tmp_path)
    assert done.code == 0, done.err
    # A matrix of random numbers has no Cholesky factor.
    assert "1 not measured, as they do not run by themselves: aten::linalg_cholesky_ex (1)" in done.out
    assert "hint: --in-place" in done.out
    placed = uniference("profile", "--in-place", *words, cwd=tmp_path)
    assert placed.code == 0, placed.err
    assert "not measured" not in placed.out
    assert uniference("profile", *words, cwd=tmp_path).out.count(" 0 measured") == 1


@needs_library
def test_what_cannot_be_profiled_is_said(tmp_path: Path) -> None:
    nothing = uniference("profile", "--device-db", tmp_path / "a", write_script(tmp_path, "pass\n"), cwd=tmp_path)
    assert nothing.code == 2
    assert "no operator that could be timed" in nothing.err
    assert "hint:" in nothing.err
    (tmp_path / "text").write_text("this is no database, though it is as long as one's header\n" * 3)
    words = ("profile", "--device-db", tmp_path / "text", write_script(tmp_path, PROGRAM))
    foreign = uniference(*words, cwd=tmp_path)
    assert foreign.code == 2
    assert "is not an operator database" in foreign.err


# The second GEMM is long enough to compute a rate from it.
CALIBRATED = """
import torch
small, large = torch.ones(32, 32), torch.ones(1024, 1024)
for _ in range(3):
    small @ small
    large @ large
"""
# Three ranks with two kinds of CPU names.
PROBE = """
import os, sys
from uniference.real import probe
name = ["board", "server", "board"][int(os.environ["RANK"])]
fixed = "--plain --repetitions 2 --budget 0.01 --pingpong-sizes 1024 65536 --out measured.jsonl".split()
sys.argv[1:] = [*fixed, "--profile", name, "--device-db", "operators.sqlite", "--program", "program.py"]
probe.main()
"""


@needs_library
def test_processors_that_take_part_in_a_calibration_are_profiled_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = write_script(tmp_path, CALIBRATED, "program.py")
    probe = write_script(tmp_path, PROBE, "probe.py")
    run_on_gloo(3, probe)
    measured = (tmp_path / "measured.jsonl").read_text()
    profiles = [row for row in map(json.loads, measured.splitlines()) if row["operation"] == "profile"]
    assert [(row["device"]["name"], row["ranks"]) for row in profiles] == [("board", [0, 2]), ("server", [1])]
    # Existing measurements are not repeated.
    run_on_gloo(3, probe)
    assert (tmp_path / "measured.jsonl").read_text() == measured

    fit = uniference("calibrate", "--fit", "measured.jsonl", "--out", "cluster.toml", "--json", cwd=tmp_path)
    assert fit.code == 0, fit.err
    assert [row["name"] for row in json.loads(fit.out)["processors"]] == ["board", "server"]
    run = ("run", "--cluster", "cluster.toml", "--device-db", "operators.sqlite", "--out", "run", program)
    done = uniference(*run, cwd=tmp_path)
    assert done.code == 0, done.err
    rows = json.loads((tmp_path / "run" / "report.json").read_text())["compute"]
    assert {row["rank"] for row in rows} == {0, 1, 2}
    # The host's overhead before operators that ran once or twice is not measured.
    found = sum(row["seconds"] for row in rows if row["origin"] == "database")
    assert found > 0.9 * sum(row["seconds"] for row in rows)


def test_what_cannot_be_profiled_ends_a_calibration_with_a_hint(tmp_path: Path) -> None:
    gpus = uniference("calibrate", "--compute", "--library", "nccl", cwd=tmp_path)
    assert gpus.code == 2
    assert "--compute profiles processors" in gpus.err
    assert "hint: remove --compute" in gpus.err
    nothing = write_script(tmp_path, "pass\n")
    words = ["--profile", "board", "--device-db", "operators.sqlite", "--program", str(nothing), "--out", "measured"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    done = subprocess.run(
        [*launch, "-m", "uniference.real.probe", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "no operator that could be timed" in done.stderr
    assert not (tmp_path / "measured").exists()
