"""Streams of a simulated GPU, recorded by a program itself through the link of the simulated GPU library."""

import json
from pathlib import Path
from typing import Any

from harness import uniference, write_script

# Access to 3.35e9 bytes of this device's memory lasts a millisecond, and any kernel at least 2.85 us; the host needs
# 3.8 us per launch and 1 us per record.
CLUSTER = """
[[device]]
name = "gpu"
model = "{model}"
count = 2
[network]
preset = "switch"
bandwidth = "100 Gbps"
latency = "2 us"
"""
PROGRAM = """
import ctypes
import torch
from uniference.rank import capture
from uniference.rank.store import EngineStore

u32, u64, i64, text = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64, ctypes.c_char_p
def function(result, *arguments):
    return ctypes.CFUNCTYPE(result, *arguments)
class Times(ctypes.Structure):
    _fields_ = [(name, u64) for name in ("launch", "node", "began", "ended")]
Take = function(None, ctypes.c_void_p, ctypes.POINTER(Times), ctypes.c_size_t)
class Link(ctypes.Structure):
    _fields_ = [
        ("version", u32),
        ("stream", function(None, u32, u32, ctypes.c_int32)),
        ("kernel", function(u32, text, ctypes.c_size_t)),
        ("launch", function(None, u32, u32, u32, u64)),
        ("copy", function(None, u32, u32, u64, u32)),
        ("record", function(None, u32, u32)),
        ("wait_event", function(None, u32, u32)),
        ("external_record", function(None, u32, u32)),
        ("external_wait", function(None, u32, u32)),
        ("capture", function(None, u32, u32)),
        ("graph_launch", function(None, u32, u32)),
        ("captured_call", function(None, u32, u32)),
        ("graph_resume", function(None, u32, u32)),
        ("host_function", function(None, u32)),
        ("uses", function(ctypes.c_int, u32)),
        ("synchronize_stream", function(None, u32)),
        ("synchronize_event", function(None, u32)),
        ("synchronize_device", function(None, u32)),
        ("query_stream", function(ctypes.c_int, u32)),
        ("query_event", function(ctypes.c_int, u32)),
        ("elapsed", function(i64, u32, u32)),
        ("number", function(None, u64)),
        ("times", function(None, Take, ctypes.c_void_p)),
        ("warn", function(None, text, ctypes.c_size_t)),
    ]
link = Link.from_address(capture.library().device_link(EngineStore.channel))
kernel = link.kernel(b"mine", 4)
assert link.kernel(b"mine", 4) == kernel

def timed(launches, size):
    link.record(1, 1)
    for _ in range(launches):
        link.launch(kernel, 1, 0, size)
    link.record(2, 1)
    assert link.query_event(2) == 0
    link.synchronize_event(2)
    assert link.query_stream(1) == 1
    return link.elapsed(1, 2)

def ended():
    found = []
    def take(data, times, count):
        found.extend((times[i].launch, times[i].node, times[i].ended - times[i].began) for i in range(count))
    link.times(Take(take), None)
    return found

# The device is behind, then the host: 3.8 + 100 * 1113.96, and 1000 * 3.8 + 2.85 us. A kernel moves its bytes at 90 %
# of the memory's bandwidth.
print("elapsed", timed(100, 3_350_000_000), timed(1000, 1))

# What has a number has times, once it has ended, and once.
link.number(9)
link.launch(kernel, 1, 0, 3_350_000_000)
assert ended() == []
link.synchronize_stream(1)
assert ended() == [(9, 0, 1_113_961)]
assert ended() == []

@torch.library.custom_op("mine::launches", mutates_args=())
def launches(x: torch.Tensor) -> torch.Tensor:
    link.launch(kernel, 1, 0, 1)
    return x.clone()
launches(torch.ones(1))
link.warn(b"this is said", 12)

# Backward passes inside of others: from a depth of 60 on other threads of torch's work for this one. Each level has the same operators.
class Nested(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.depth > 0:
            with torch.enable_grad():
                Nested.apply(torch.ones(1, requires_grad=True), ctx.depth - 1).backward()
        return gradient, None

def nested(depth):
    link.record(1, 1)
    Nested.apply(torch.ones(1, requires_grad=True), depth).backward()
    link.record(2, 1)
    link.synchronize_event(2)
    return link.elapsed(1, 2)

short, medium, long = nested(20), nested(40), nested(80)
# Starting a thread, torch looks at the clock, which takes 1 us each time.
print("others", abs(long - medium - 2 * (medium - short)) < 10_000, medium > short)
"""


def _report(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def test_streams_take_their_time_and_replay_as_they_were(tmp_path: Path) -> None:
    script, cluster, other = write_script(tmp_path, PROGRAM), tmp_path / "cluster.toml", tmp_path / "other.toml"
    cluster.write_text(CLUSTER.format(model="h100-sxm"))
    other.write_text(CLUSTER.format(model="a100-sxm-80gb"))
    for jobs in (1, 2):
        words = ("run", "--cluster", cluster, "--jobs", jobs, "--out", tmp_path / f"run-{jobs}", script)
        done = uniference(*words, cwd=tmp_path)
        assert done.code == 0, done.err
        for line in done.out.splitlines():
            times = [int(word) for word in line.partition("elapsed ")[2].split()]
            assert times == [111_399_911, 3_802_850] or not times, line
        assert done.out.count("elapsed ") == 2
        assert done.out.count("others True True") == 2, done.out
        assert "rank 1: this is said" in done.err
    one, two = _report(tmp_path / "run-1"), _report(tmp_path / "run-2")
    assert one["digest"] == two["digest"]
    # Launches inside of an operator belong to the operator.
    assert any("of unknown arithmetic" in warning and "mine::launches" in warning for warning in one["warnings"])
    assert {row["kind"] for row in one["compute"]} >= {"kernel", "host"}
    trace = (tmp_path / "run-1" / "trace.json").read_text()
    assert '"name":"stream 1"' in trace
    assert '"name":"mine"' in trace
    for name, cluster_options, same in (("again", (), True), ("other", ("--cluster", other), False)):
        words = ("replay", tmp_path / "run-1", "--out", tmp_path / name, *cluster_options)
        done = uniference(*words, cwd=tmp_path)
        assert done.code == 0, done.err
        report = _report(tmp_path / name)
        assert (report["digest"] == one["digest"]) is same
        assert any("time between two events" in warning for warning in report["warnings"]) is not same
        # 3.35e9 bytes at 90 % of 2039 GB/s, 2 us to launch.
        slower = 101 * ((3.35e9 / 2.039e12 - 1e-3) / 0.9 - 0.85e-6)
        assert same or abs(report["makespan_s"] - one["makespan_s"] - slower) < 1e-4
    done = uniference("chakra", "export", tmp_path / "run-1", "--out", tmp_path / "traces", cwd=tmp_path)
    assert done.code == 2
    assert "streams of simulated GPUs" in done.err
