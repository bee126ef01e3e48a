"""Named ranges of programs: on several threads, and overlapping ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import run_script, uniference, write_script

# Two overlapping requests, of which the second begins on another thread and contains the steps of that thread.
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
    """Checks the number and the total duration of each rank's ranges."""
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
        ("main", 1, 0),
        ("request", 2, 1),
        ("step", 3, 1),
        (None, 1, 0),
        (None, 0, 0),
        (None, 3, 1),
        (None, 2, 0),
    ]


# Program whose ranges end on other threads or in other calls than they began in. It prints the ranges' figures of PyTorch's profiler.
ELSEWHERE = """
import asyncio
import json
import threading
import time

import torch
import torch.distributed as dist
from torch.cuda import nvtx
from torch.profiler import ProfilerActivity, profile, record_function

dist.init_process_group("gloo")


def end_there():
    with record_function("helper"):
        time.sleep(0.1)
        begun.__exit__(None, None, None)
        time.sleep(0.2)


async def request(name, seconds):
    with record_function(name):
        await asyncio.sleep(seconds)


async def requests():
    await asyncio.gather(request("short request", 0.1), request("long request", 0.3))


def generator():
    with record_function("generator"):
        time.sleep(0.1)
        yield
        time.sleep(0.1)


def forget():
    record_function("forgotten").__enter__()
    time.sleep(0.1)
    kept = record_function("kept by a frame")
    kept.__enter__()
    time.sleep(0.1)
    raise ValueError


def complete():
    time.sleep(0.2)
    future.set_result(1)


with profile(activities=[ProfilerActivity.CPU]) as prof:
    # Begins here, and ends on another thread inside a range of that thread.
    begun = record_function("handed over")
    begun.__enter__()
    with record_function("main"):
        thread = threading.Thread(target=end_there)
        thread.start()
        thread.join()
        time.sleep(0.1)
    asyncio.run(requests())
    begun_first = generator()
    next(begun_first)
    with record_function("around the end"):
        time.sleep(0.1)
        next(begun_first, None)
        time.sleep(0.2)
    try:
        with record_function("fails"):
            time.sleep(0.1)
            raise ValueError
    except ValueError:
        pass
    try:
        forget()
    except ValueError:
        pass
    time.sleep(0.1)
    future = torch.futures.Future()
    thread = threading.Thread(target=complete)
    with record_function("until a future") as until:
        until._call_end_callbacks_on_future(future)
        thread.start()
        time.sleep(0.1)
    thread.join()
    time.sleep(0.1)
if dist.get_rank() == 0:
    found = {}
    for event in prof.events():
        found.setdefault(event.name, []).append(event.time_range.elapsed_us() / 1e6)
    print(json.dumps(found))
left = record_function("left open")
left.__enter__()
nvtx.range_pop()
dist.barrier()
"""
SECONDS = {
    "handed over": 0.1,
    "helper": 0.3,
    "main": 0.4,
    "short request": 0.1,
    "long request": 0.3,
    "generator": 0.3,
    "around the end": 0.4,
    "fails": 0.1,
    "forgotten": 0.0,
    "kept by a frame": 0.1,
    "until a future": 0.2,
}


def test_ranges_end_where_the_profiler_has_them_end(tmp_path: Path) -> None:
    done = run_script(tmp_path, ELSEWHERE, "--record", "full")
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    for rank in range(2):
        rows = [row for row in report["phases"] if row["rank"] == rank]
        assert {row["name"]: row["count"] for row in rows} == dict.fromkeys(SECONDS, 1)
        for row in rows:
            assert abs(row["total_s"] - SECONDS[row["name"]]) < 1e-3, row
    # The profiler watches only the thread that started it, and sees neither beginnings nor ends of ranges on other
    # threads.
    (said,) = [line for line in done.out.splitlines() if '{"handed over' in line]
    profiled = json.loads(said[said.index("{") :])
    for name in SECONDS.keys() - {"handed over", "helper"}:
        (seconds,) = profiled[name]
        assert abs(seconds - SECONDS[name]) < 1e-3, (name, seconds)
    assert any("`left open` of rank 0" in warning and "hint: " in warning for warning in report["warnings"])
    lines = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    marked = [line for line in lines if line["event"] == "marked" and line["rank"] == 0]
    threads = {line["begin"]: (line["range"], line["task"]) for line in marked if line["begin"]}
    number, helper = threads["handed over"][0], threads["helper"][1]
    assert helper != 0
    assert [task for name, (_, task) in threads.items() if name != "helper"] == [0] * (len(threads) - 1)
    # The range ended on the second thread, but belongs to the first, which began it.
    assert [line["task"] for line in marked if line["range"] == number] == [0, 0]


def test_those_of_a_real_run_are_recorded_and_replayed(tmp_path: Path) -> None:
    script = write_script(tmp_path, PROGRAM)
    options = ("--nproc-per-node", 2, "--record", "full", "--out", "out")
    done = uniference("launch", *options, script, cwd=tmp_path)
    assert done.code == 0, done.err
    # Limits are wide, because the machine may be busy.
    assert_phases(json.loads((tmp_path / "out" / "report.json").read_text()), 60)
    replayed = uniference("replay", "out", "--ranks", 2, "--json", "--out", "again", cwd=tmp_path)
    assert replayed.code == 0, replayed.err
    # The replay has the main thread's timing, which reaches the second request's beginning after its sleep.
    assert_phases(json.loads(replayed.out), 60, early=0.1, without="step")
