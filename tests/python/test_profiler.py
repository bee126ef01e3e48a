"""PyTorch's profiler on simulated GPUs: kernels, copies and calls of the runtime at their virtual times."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import uniference, write_script

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() > 0, reason="this machine has a GPU: none is simulated"),
    pytest.mark.skipif(torch.version.cuda is None, reason="this build of torch has no CUDA"),
]

CLUSTER = """
backend = "nccl"
[[device]]
name = "gpu"
model = "h100-sxm"
count = 2
host = "node"
[network]
preset = "switch"
bandwidth = "100 Gbps"
latency = "2 us"
"""

# CUDA events measure the same durations as the profile, plus 6 us of host time before the operator.
ONE = """
import json
import torch
from torch.profiler import ProfilerActivity, profile, record_function

ACTIVITIES = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
a = torch.ones(4096, 4096, device="cuda")
pinned, there = torch.ones(1 << 22).pin_memory(), torch.empty(1 << 22, device="cuda")
graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.cuda.graph(graph):
    doubled = a + a
    product = doubled @ a
    there.zero_()

def elapsed(work):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3

with profile(activities=ACTIVITIES, record_shapes=True, with_stack=True) as profiled:
    times = {"product": elapsed(lambda: a @ a), "copy": elapsed(lambda: there.copy_(pinned, non_blocking=True))}
    with record_function("beside"), torch.cuda.stream(stream):
        a.exp_()
    stream.synchronize()
    graph.replay()
    graph.replay()
    float(a[0, 0])
    torch.cuda.synchronize()
profiled.export_chrome_trace("one.json")
averages = {
    event.key: [event.count, event.device_time_total, event.self_device_time_total] for event in profiled.key_averages()
}
print("one", json.dumps({"times": times, "averages": averages}))
assert "Self CUDA" in profiled.key_averages(group_by_input_shape=True).table(sort_by="self_cuda_time_total")

# Without activity of the GPU, by its events, and by NVTX.
with profile(activities=[ProfilerActivity.CPU]) as profiled:
    a @ a
assert not any(event.device_time_total for event in profiled.key_averages())
with torch.autograd.profiler.profile(use_device="cuda", use_kineto=False) as profiled:
    a @ a
assert any(event.device_time_total for event in profiled.key_averages())
with torch.autograd.profiler.emit_nvtx():
    a @ a
"""

MANY = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
    record_shapes=True,
    schedule=schedule(wait=1, warmup=1, active=3),
    on_trace_ready=lambda profiled: profiled.export_chrome_trace(f"{sys.argv[1]}.{rank}.json"),
) as profiled:
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(256, 1024, device="cuda")).sum().backward()
        optimizer.step()
        profiled.step()
dist.destroy_process_group()
"""


def _events(file: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(file.read_text())["traceEvents"]
    return events


def _of(events: list[dict[str, Any]], *categories: str) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") in categories]


ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def _check_arrows(events: list[dict[str, Any]]) -> None:
    """Each kernel follows the call that launched it, and the operator around that call; kernels of a stream do not
    overlap."""
    calls = {event["args"]["correlation"]: event for event in _of(events, "cuda_runtime", "cuda_driver")}
    starts = {event["id"] for event in events if event.get("ph") == "s" and event.get("cat") == "ac2g"}
    ends = {event["id"] for event in events if event.get("ph") == "f" and event.get("cat") == "ac2g"}
    streams = defaultdict(list)
    for event in _of(events, *ON_DEVICE):
        call = calls[event["args"]["correlation"]]
        assert call["ts"] <= event["ts"] + 0.001, (call, event)
        assert event["args"]["correlation"] in starts & ends
        streams[event["args"]["stream"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in streams.values():
        spans.sort()
        assert all(before[1] <= after[0] + 0.001 for before, after in pairwise(spans))
    # Every call lies inside its operator.
    operators = {event["args"]["External id"]: event for event in _of(events, "cpu_op")}
    for call in calls.values():
        operator = operators.get(call["args"].get("External id"))
        if operator is not None:
            assert operator["ts"] - 0.001 <= call["ts"], (operator, call)
            assert call["ts"] + call["dur"] <= operator["ts"] + operator["dur"] + 0.001, (operator, call)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a run of one rank, and its output."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "cluster.toml").write_text(CLUSTER.replace("count = 2", "count = 1"))
    done = uniference(
        "run", "--cuda", "--cluster", "cluster.toml", "--out", "out", write_script(folder, ONE), cwd=folder
    )
    assert done.code == 0, done.err
    assert "libcupti" not in done.err
    line = next(line for line in done.out.splitlines() if "one {" in line)
    return folder, json.loads(line.partition("one ")[2])


def test_a_profile_has_the_times_of_the_simulation(one: tuple[Path, dict[str, Any]]) -> None:
    folder, said = one
    events = _events(folder / "one.json")
    _check_arrows(events)
    kernels = _of(events, "kernel")
    gemm = [kernel for kernel in kernels if "gemm" in kernel["name"].lower() or "cublas" in kernel["name"].lower()]
    # One GEMM by itself and one in each launch of the graph, all of one size.
    assert len(gemm) == 3
    assert gemm[0]["dur"] == pytest.approx(said["times"]["product"] - 6, abs=0.002)
    assert gemm[1]["dur"] == pytest.approx(gemm[0]["dur"], abs=0.002)
    copies = _of(events, "gpu_memcpy")
    assert [copy["name"] for copy in copies] == ["Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"]
    assert copies[0]["dur"] == pytest.approx(said["times"]["copy"] - 6, abs=0.002)
    assert copies[0]["args"]["bytes"] == 4 << 22
    # 16 MiB at 80 % of PCIe 5.0 x16 (63.015 GB/s).
    assert copies[0]["dur"] == pytest.approx((4 << 22) / (0.8 * 63.015e9) * 1e6, rel=0.01)
    assert {kernel["args"]["stream"] for kernel in kernels} >= {7}
    assert len({kernel["args"]["stream"] for kernel in kernels}) >= 2
    launches = [call for call in _of(events, "cuda_runtime") if call["name"] == "cudaGraphLaunch"]
    assert len(launches) == 2
    for launch in launches:
        nodes = [e for e in _of(events, *ON_DEVICE) if e["args"]["correlation"] == launch["args"]["correlation"]]
        # An addition, a product, and zeros.
        assert len(nodes) == 3
    # The host waits for the device in synchronizing calls.
    waits = [call for call in _of(events, "cuda_runtime") if call["name"] == "cudaEventSynchronize"]
    assert waits
    assert waits[0]["ts"] + waits[0]["dur"] >= gemm[0]["ts"] + gemm[0]["dur"] - 0.001


def test_operators_have_the_time_of_their_kernels(one: tuple[Path, dict[str, Any]]) -> None:
    _, said = one
    averages = said["averages"]
    # Once: operators by which the simulator computes values are not the program's.
    assert averages["aten::mm"][0] == 1
    assert averages["aten::mm"][1] == pytest.approx(said["times"]["product"] - 6, abs=0.01)
    assert averages["aten::matmul"][1] == averages["aten::mm"][1]
    assert averages["aten::matmul"][2] == 0
    assert averages["aten::copy_"][1] == pytest.approx(said["times"]["copy"] - 6, abs=0.01)
    assert averages["beside"][1] > 0
    assert averages["cudaDeviceSynchronize"][0] >= 2


def test_a_run_with_a_profile_replays(one: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = one
    done = uniference("replay", "out", "--out", "again", cwd=folder)
    assert done.code == 0, done.err
    digests = [json.loads((folder / name / "report.json").read_text())["digest"] for name in ("out", "again")]
    assert digests[0] == digests[1]


def test_profiles_of_several_ranks_are_on_one_clock_and_can_be_linked(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    script = write_script(tmp_path, MANY)
    found = []
    for name, jobs in (("first", 1), ("second", 2)):
        words = ("run", "--cuda", "--cluster", "cluster.toml", "--jobs", jobs, "--out", f"out-{name}", script, name)
        done = uniference(*words, cwd=tmp_path)
        assert done.code == 0, done.err
        ranks = [_events(tmp_path / f"{name}.{rank}.json") for rank in range(2)]
        for events in ranks:
            _check_arrows(events)
        collectives = [[e for e in _of(events, "kernel") if e["name"].startswith("nccl")] for events in ranks]
        # Three steps, each with the all-reduces of its buckets, which end at the same time on both ranks.
        assert len(collectives[0]) == len(collectives[1])
        assert len(collectives[0]) % 3 == 0
        assert collectives[0]
        for mine, other in zip(*collectives, strict=True):
            assert mine["name"] == other["name"] == "ncclDevKernel_AllReduce_Sum_f32"
            assert mine["ts"] + mine["dur"] == pytest.approx(other["ts"] + other["dur"], abs=20)
            assert mine["args"]["Collective name"] == "all_reduce"
        # Equal to the nanosecond to the run's own timeline, which begins in 2026.
        timeline = json.loads((tmp_path / f"out-{name}" / "trace.json").read_text())["traceEvents"]
        spans = [event for event in timeline if event.get("name") == "all_reduce" and "dur" in event]
        base = json.loads((tmp_path / f"{name}.0.json").read_text())["baseTimeNanoseconds"] / 1e3 - 1_767_225_600e6
        for mine in collectives[0]:
            apart = [abs(mine["ts"] + base - span["ts"]) + abs(mine["dur"] - span["dur"]) for span in spans]
            assert min(apart) < 0.003
        found.append([[(e["name"], e["ts"], e["dur"]) for e in _of(events, *ON_DEVICE)] for events in ranks])
    # The device's times do not depend on this machine's speed.
    assert found[0] == found[1]
    files = [f"first.{rank}.json" for rank in range(2)]
    done = uniference("chakra", "link", *files, "--out", "job", cwd=tmp_path)
    assert done.code == 0, done.err
    rows = [line.split() for line in done.out.splitlines() if line.strip()[:1] in ("0", "1")]
    errors = [float(row[-2 if row[-1] == "%" else -1].rstrip("%")) for row in rows]
    assert len(errors) == 2
    assert all(abs(error) <= 3 for error in errors), done.out


def test_without_a_model_kernels_take_no_time(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER.replace("count = 2", "count = 1"))
    source = """
    import torch
    from torch.profiler import ProfilerActivity, profile
    a = torch.ones(64, 64, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        a @ a
    profiled.export_chrome_trace("profile.json")
    """
    script = write_script(tmp_path, "\n".join(line[4:] for line in source.splitlines()))
    words = ("run", "--cuda", "--cluster", "cluster.toml", "--compute", "measured", "--out", "out", script)
    done = uniference(*words, cwd=tmp_path)
    assert done.code == 0, done.err
    kernels = _of(_events(tmp_path / "profile.json"), "kernel")
    assert kernels
    assert all(kernel["dur"] == 0 for kernel in kernels)
