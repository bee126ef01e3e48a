"""Several runs of one program: `uniference run --repeat`."""

import json
from pathlib import Path

from harness import Done, uniference, write_script

SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.randn(200, 200)
for _ in range(5):
    x = torch.relu(x @ x) / 200
    dist.all_reduce(x)
dist.destroy_process_group()
"""


def run(folder: Path, source: str, *options: object) -> Done:
    script = write_script(folder, source)
    return uniference("run", "--ranks", 2, "--backend", "ideal", "--out", "runs", *options, script, cwd=folder)


def report(folder: Path) -> dict:
    read: dict = json.loads((folder / "report.json").read_text())
    return read


def test_the_results_are_those_of_the_median(tmp_path: Path) -> None:
    done = run(tmp_path, SCRIPT, "--compute", "measured", "--repeat", 3)
    assert done.code == 0, done.err
    folder = tmp_path / "runs"
    runs = [report(folder / f"repeat-{number}") for number in (1, 2, 3)]
    assert [run["manifest"]["seed"] for run in runs] == [0, 1, 2]
    makespans = sorted(run["makespan_s"] for run in runs)
    of_all = report(folder)
    assert of_all["makespan_s"] == makespans[1]
    assert of_all["interval"]["runs"] == 3
    assert of_all["interval"]["low_s"] <= makespans[1] <= of_all["interval"]["high_s"]
    assert "median of 3 runs" in of_all["headline"]
    assert "median of 3 runs" in done.out
    assert done.err.count("makespan") == 3
    # The result is an ordinary run: it can be replayed, and another run may use its folder.
    explained = uniference("explain", "runs", "--json", cwd=tmp_path)
    assert explained.code == 0, explained.err
    assert abs(json.loads(explained.out)["makespan_s"] - makespans[1]) < 1e-9
    again = run(tmp_path, SCRIPT, "--compute", "none")
    assert again.code == 0, again.err
    assert not list(folder.glob("repeat-*"))
    assert "interval" not in report(folder)


def test_runs_that_are_all_the_same_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, SCRIPT, "--compute", "none", "--repeat", 3)
    assert done.code == 2
    assert "--repeat has no effect" in done.err


def test_a_run_that_fails_ends_them(tmp_path: Path) -> None:
    done = run(tmp_path, SCRIPT + "raise SystemExit(3)\n", "--compute", "measured", "--repeat", 3)
    assert done.code == 1
    assert "failed on rank" in done.err
    assert not (tmp_path / "runs" / "report.json").exists()
    assert not (tmp_path / "runs" / "repeat-2").exists()
