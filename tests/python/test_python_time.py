"""Python functions cost time by their number of calls: on the main thread, on others, and in children of a rank."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Done, uniference, write_script

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

CLUSTER = """
backend = "nccl"
[[device]]
name = "gpu"
model = "h100-sxm"
count = 1
[network]
"""

PROGRAM = """
import subprocess, sys, threading, time
import torch

def function():
    pass

def calls(count):
    for _ in range(count):
        function()

def generator(count):
    for number in range(count):
        yield number

def timed(name, run):
    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    torch.cuda.synchronize()
    print(name, "=", (time.perf_counter() - began) * 1e6)

def operators(before_each):
    for _ in range(10):
        calls(before_each)
        tensor.add_(1)

def replaced():
    before = sys.getprofile()
    sys.setprofile(lambda *event: None)
    sys.setprofile(before)
    calls(1000)

def on_threads():
    threads = [threading.Thread(target=calls, args=(1000,)) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]

def elsewhere():
    subprocess.run([sys.executable, __file__, "child"], check=True)

def imports():
    import xml.dom.minidom, wave, mailbox

tensor = torch.zeros(4, device="cuda")
if sys.argv[1:] == ["child"]:
    timed("child", lambda: calls(1000))
else:
    timed("functions", lambda: calls(1000))
    timed("generator", lambda: list(generator(1000)))
    timed("operators", lambda: operators(0))
    timed("few", lambda: operators(3))
    timed("many", lambda: operators(100))
    timed("threads", on_threads)
    timed("imports", imports)
    timed("replaced", replaced)
    timed("elsewhere", elsewhere)
"""


def run(folder: Path, *options: str, out: str = "out", program: str = PROGRAM) -> Done:
    (folder / "cluster.toml").write_text(CLUSTER)
    script = write_script(folder, program)
    fixed = ("run", "--cluster", folder / "cluster.toml", "--cuda", "--compute", "model", "--out", folder / out)
    done = uniference(*fixed, *options, script, cwd=folder)
    assert done.code == 0, done.err
    return done


def times(done: Done) -> dict[str, float]:
    lines = (line.partition(" = ") for line in done.out.splitlines() if " = " in line)
    return {name: float(microseconds) for name, _, microseconds in lines}


def report(folder: Path) -> Any:
    return json.loads((folder / "report.json").read_text())


def replay(folder: Path, out: Path, *options: str) -> Done:
    done = uniference("replay", folder, *options, "--out", out, cwd=folder)
    assert done.code == 0, done.err
    return done


def test_functions_are_charged_by_their_number(tmp_path: Path) -> None:
    free = times(run(tmp_path))
    once = times(run(tmp_path, "--python-time", "1 us"))
    assert max(free["functions"], free["threads"]) < 1
    # The measuring functions are called, too.
    assert 1000 < once["functions"] < 1100
    assert 1000 < once["generator"] < 1100
    assert 1000 < once["child"] < 1100 < once["elsewhere"]
    assert 2000 < once["threads"] < 2200
    # The 6 us of an operator include six functions of 1 us.
    assert once["operators"] - free["operators"] < 40
    assert once["few"] - once["operators"] < 10
    assert 1000 < once["many"] < 1100
    # A profile function that is set and removed does not end the counting.
    assert 1000 < once["replaced"] < 1100
    # Modules have thousands of functions.
    assert once["imports"] < 200


OURS = """
import time, torch, triton, triton.language as tl

@triton.jit
def copied(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)

def function():
    pass

@torch.library.custom_op("mine::twice", mutates_args=(), device_types="cuda")
def twice(x: torch.Tensor) -> torch.Tensor:
    return x + x

@twice.register_kernel("cpu")
def _(x):
    [function() for _ in range(1000)]
    return x + x

@torch.compile
def compiled(x):
    return torch.relu(x) * 2 + 1

x = torch.ones(1000, device="cuda")
out = torch.zeros_like(x)
calls = {
    "operator": lambda: twice(x),
    "kernel": lambda: copied[(4,)](x, out, 1000, BLOCK=256),
    "compiled": lambda: compiled(x),
}
for name, call in calls.items():
    [call() for _ in range(3)]
    torch.cuda.synchronize()
    began = time.perf_counter()
    [call() for _ in range(10)]
    torch.cuda.synchronize()
    print(name, "=", (time.perf_counter() - began) * 1e5)
assert twice(x)[0] == 2 and out.sum() == 1000
"""


def test_what_the_simulator_calls_is_not_charged(tmp_path: Path) -> None:
    """The CPU's kernel, which may be in Python, computes an operator's values; an operator launches a Triton kernel."""
    once = times(run(tmp_path, "--python-time", "1 us", program=OURS))
    # Each calls some 15 functions of `torch.library`, 30 of Triton, and 60 of torch's compiler; a kernel also calls
    # four of Uniference's.
    assert once["operator"] < 20
    assert once["kernel"] < 38
    assert once["compiled"] < 72


def test_runs_are_the_same_and_a_replay_takes_another_figure(tmp_path: Path) -> None:
    figures = {"first": "1 us", "again": "1 us", "other": "model"}
    for name, figure in figures.items():
        run(tmp_path, "--python-time", figure, out=name)
    runs = [report(tmp_path / name) for name in figures]
    assert runs[0]["digest"] == runs[1]["digest"] != runs[2]["digest"]
    for figure, expected in (("350 ns", runs[2]), ("1000 ns", runs[0])):
        replay(tmp_path / "first", tmp_path / "replay", "--python-time", figure)
        assert report(tmp_path / "replay")["makespan_s"] == pytest.approx(expected["makespan_s"], rel=1e-3)
    replay(tmp_path / "first", tmp_path / "same")
    assert report(tmp_path / "same")["digest"] == runs[0]["digest"]


def test_it_is_said_where_it_has_no_effect(tmp_path: Path) -> None:
    run(tmp_path)
    warning = "--python-time has no effect: no rank whose compute is modelled has counted its calls of Python"
    assert warning in replay(tmp_path / "out", tmp_path / "replay", "--python-time", "model").err
    script = write_script(tmp_path, "print('nothing')")
    done = uniference(
        "run", "--ranks", 1, "--python-time", "model", "--out", tmp_path / "measured", script, cwd=tmp_path
    )
    assert (done.code, warning in done.err) == (0, True), done.err
    measured = ("--cuda", "--compute", "model", "--host-time", "measured", "--python-time", "model")
    done = uniference(
        "run", "--cluster", tmp_path / "cluster.toml", *measured, "--out", tmp_path / "both", script, cwd=tmp_path
    )
    assert (done.code, "hint: leave one of them out" in done.err) == (2, True), done.err
    done = uniference("run", "--ranks", 1, "--python-time", "fast", script, cwd=tmp_path)
    assert (done.code, '"350 ns"' in done.err) == (2, True), done.err
