"""The benchmarks of the bridge, of workers, of simulated GPUs and of analyses run, and print figures of each kind."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHES = Path(__file__).parents[2] / "benches"


def quickly(benchmark: str) -> str:
    command = [sys.executable, BENCHES / benchmark, "--quick"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


@pytest.mark.load
def test_the_benchmark_shows_a_figure_for_each_operation() -> None:
    shown = quickly("bridge.py")
    rows = re.findall(r"^(?:none|measured) +2 +(all_reduce|send) +([\d.]+) +(\d+) +(\d+)", shown, re.MULTILINE)
    assert [row[0] for row in rows] == ["all_reduce", "send"] * 2
    # The driver's part may be less than a microsecond per round.
    assert all(float(took) > 0 and int(rank) > 0 for _, took, rank, _ in rows)
    # Bare and captured operators, and the difference.
    assert re.search(r"^ +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d( +-?\d+\.\d\d){3} +1\.5$", shown, re.MULTILINE)
    # GB/s of a copy and of the four operations.
    assert re.search(r"^ +4( +\d+\.\d\d){5}$", shown, re.MULTILINE)
    assert re.search(r"^\d+\.\d MiB of its own", shown, re.MULTILINE)


@pytest.mark.load
@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")
def test_the_benchmark_of_simulated_gpus_has_each_operator_and_launch_beside_torch() -> None:
    shown = quickly("gpus.py")
    names = [
        f"{name}{gradients}" for name in ("add", "mm", "layer norm", "attention") for gradients in ("", ", gradients")
    ]
    # Columns: the CPU, FakeTensorMode, torch's code for GPUs, simulated GPUs, the driver; the difference to torch's
    # own, twice; the target.
    rows = re.findall(r"^([a-z_, ]+?)((?: +[\d.]+){5})(?: +-?[\d.]+){2} +6$", shown, re.MULTILINE)
    assert [name.strip() for name, _ in rows] == names * 2
    assert all(float(took) > 0 for _, figures in rows for took in figures.split()[:4])
    assert re.findall(r"^(\w+) +[\d.]+ +-?[\d.]+ +2$", shown, re.MULTILINE) == ["kernel", "memset"] * 2


@pytest.mark.load
def test_the_benchmark_of_analyses_has_a_figure_for_each_target() -> None:
    shown = quickly("analysis.py")
    assert len(re.findall(r"all-reduces, .*: [\d.]+ s, [\d.]+ s: [+-][\d.]+ %", shown)) == 2
    assert re.search(r"^whatif: \d+ rows of a run of [\d,]+ events: [\d.]+ s", shown, re.MULTILINE)
    assert re.search(r"tables [\d.]+ bytes an event", shown)
    assert re.search(r"^explain: [\d.]+ s, [\d.]+ s of processors, [\d.]+ GB", shown, re.MULTILINE)


@pytest.mark.load
def test_the_benchmark_of_workers_shows_what_a_call_costs_more() -> None:
    shown = quickly("workers.py")
    found = re.search(r"^ +([\d.]+) +([\d.]+) +(-?[\d.]+)$", shown, re.MULTILINE)
    assert found is not None, shown
    local, remote, more = map(float, found.groups())
    assert local > 0
    # The three figures are rounded to a tenth.
    assert abs(remote - local - more) < 0.2
