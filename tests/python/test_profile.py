"""Operators that are timed where they run, and a device that is made of them."""

import json
from pathlib import Path

import pytest
from harness import uniference, write_script

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
def test_a_profiled_program_is_known_to_the_model(tmp_path: Path) -> None:
    script = write_script(tmp_path, PROGRAM)
    database = tmp_path / "operators.sqlite"
    profile = ("profile", "--device", "here", "--device-db", database, "--json")
    first, second = (
        uniference(*profile, "--out", tmp_path / name, script, cwd=tmp_path) for name in ("first", "second")
    )
    assert first.code == second.code == 0, first.err + second.err
    added, again = json.loads(first.out), json.loads(second.out)
    assert added["new"] == added["operators"] > 10
    assert (again["new"], again["known"]) == (0, added["operators"])
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(CLUSTER)
    words = ("run", "--cluster", cluster, "--device-db", database, "--out", tmp_path / "run", script)
    run = uniference(*words, cwd=tmp_path)
    assert run.code == 0, run.err
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert {row["origin"] for row in report["compute"]} == {"database"}
    # What 20 steps of so small a layer take on any processor.
    assert 1e-4 < report["makespan_s"] < 10


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
