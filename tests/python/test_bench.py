"""The benchmark of the bridge runs, and measures something of each kind."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

BRIDGE = Path(__file__).parents[2] / "benches" / "bridge.py"


@pytest.mark.load
def test_the_benchmark_shows_a_figure_for_each_operation() -> None:
    shown = subprocess.run(
        [sys.executable, BRIDGE, "--quick"], capture_output=True, text=True, timeout=300, check=True
    ).stdout
    rows = re.findall(r"^(?:none|measured) +2 +(all_reduce|send) +([\d.]+) +(\d+) +(\d+)", shown, re.MULTILINE)
    assert [row[0] for row in rows] == ["all_reduce", "send"] * 2
    # What the driver uses may be less than a microsecond a round.
    assert all(float(took) > 0 and int(rank) > 0 for _, took, rank, _ in rows)
    # Bare and captured operators, and what lies between them.
    assert re.search(r"^ +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d( +-?\d+\.\d\d){3} +1\.5$", shown, re.MULTILINE)
    # GB/s of a copy and of the four operations.
    assert re.search(r"^ +4( +\d+\.\d\d){5}$", shown, re.MULTILINE)
    assert re.search(r"^\d+\.\d MiB of its own", shown, re.MULTILINE)
