"""Ranges that a program names: of several threads, and such as overlap."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import run_script, uniference, write_script

# Two requests that overlap, of which the second begins on another thread and has the steps of that thread inside.
PROGRAM = """
import threading
import time
import torch.distributed as dist
from torch.cuda import nvtx
from torch.profiler import record_function

def serve():
    global second
    time.sleep(0.2)
    second = nvtx.range_start("request")
    with record_function("step"):
        time.sleep(0.4)

dist.init_process_group("gloo")
first = nvtx.range_start("request")
thread = threading.Thread(target=serve)
thread.start()
with nvtx.range("main"):
    time.sleep(0.3)
nvtx.range_end(first)
thread.join()
time.sleep(0.4)
nvtx.range_end(second)
nvtx.range_end(second)
dist.barrier()
"""

EXPECTED = {("main", 1): 0.3, ("request", 2): 0.3 + 0.8, ("step", 1): 0.4}


def assert_phases(report: Mapping[str, Any], late: float, early: float = 0.0, without: str = "") -> None:
    """Of each rank the expected ranges, so often, that have lasted so long in all."""
    expected = {key: seconds for key, seconds in EXPECTED.items() if key[0] != without}
    for rank in range(2):
        found = {(row["name"], row["count"]): row["total_s"] for row in report["phases"] if row["rank"] == rank}
        assert found.keys() == expected.keys()
        for key, seconds in expected.items():
            assert seconds - early - 1e-3 <= found[key] < seconds + late, (key, found)


def test_ranges_may_overlap_and_belong_to_threads(tmp_path: Path) -> None:
    done = run_script(tmp_path, PROGRAM, "--record", "full")
    assert done.code == 0, done.err
    assert_phases(json.loads((tmp_path / "out" / "report.json").read_text()), 1e-3)
    lines = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    marked = [line for line in lines if line["event"] == "marked" and line["rank"] == 0]
    assert [(line["begin"], line["range"], line["task"]) for line in marked] == [
        ("request", 0, 0),
        ("main", None, 0),
        ("request", 1, 1),
        ("step", None, 1),
        (None, None, 0),
        (None, 0, 0),
        (None, None, 1),
        (None, 1, 0),
    ]


def test_those_of_a_real_run_are_recorded_and_replayed(tmp_path: Path) -> None:
    script = write_script(tmp_path, PROGRAM)
    options = ("--nproc-per-node", 2, "--record", "full", "--out", "out")
    done = uniference("launch", *options, script, cwd=tmp_path)
    assert done.code == 0, done.err
    # The machine may be busy.
    assert_phases(json.loads((tmp_path / "out" / "report.json").read_text()), 60)
    replayed = uniference("replay", "out", "--ranks", 2, "--json", "--out", "again", cwd=tmp_path)
    assert replayed.code == 0, replayed.err
    # What is replayed is the main thread, which comes to the second request's beginning when it has slept.
    assert_phases(json.loads(replayed.out), 60, early=0.1, without="step")
