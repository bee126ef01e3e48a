"""Changes of a cluster over time, in live runs and their replays."""

import json
from pathlib import Path

import pytest
from harness import uniference, write_script

RING = """
import torch, torch.distributed as dist

dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(1000))
"""

CLUSTER = """
[[device]]
name = "a"
count = 2

[network]
bandwidth = "1 Gbps"
latency = "100 us"

[[network.change]]
jitter = { distribution = "exponential", mean = "50 us" }

[uncertainty]
communication = 0.1
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("changes")
    script = write_script(directory, RING)
    cluster = write_script(directory, CLUSTER, "cluster.toml")
    done = uniference("run", "--cluster", cluster, "--compute", "none", "--out", "out", script, cwd=directory)
    assert done.code == 0, done.err
    return directory


def replay(run: Path, *options: object) -> dict[str, object]:
    done = uniference("replay", run / "out", "--json", "--out", run / "again", *options, cwd=run)
    assert done.code == 0, done.err
    report: dict[str, object] = json.loads(done.out)
    return report


def test_a_seed_draws_its_jitter(run: Path) -> None:
    first = json.loads((run / "out" / "report.json").read_text())
    assert replay(run)["digest"] == first["digest"]
    assert replay(run, "--seed", 0)["digest"] == first["digest"]
    assert replay(run, "--seed", 1)["makespan_ps"] != first["makespan_ps"]


def test_repetitions_make_an_interval(run: Path) -> None:
    report = replay(run, "--repeat", 30)
    interval = report["interval"]
    assert isinstance(interval, dict)
    low, middle, high = interval["runs_s"]
    # For 30 makespans, the quantile of 2.5 % lies below the median, and that of 97.5 % above it.
    assert low < middle < high
    # The model's error widens the interval: s = 0.1 * exposed communication, which is the whole run except a clock read
    # or two.
    assert interval["model_error_s"] == pytest.approx(0.1 * float(str(report["makespan_s"])), rel=1e-3)
    assert interval["low_s"] < low < high < interval["high_s"]


def test_repetitions_without_anything_random_are_refused(run: Path) -> None:
    flags = ("--ranks", 2, "--repeat", 3)
    done = uniference("replay", run / "out", "--out", run / "again", *flags, cwd=run)
    assert done.code == 2
    assert "hint: give a link jitter" in done.err
