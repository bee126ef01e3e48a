"""Children of a rank run operators of their own, on the rank's GPU."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Done, uniference, write_script

simulates_gpus = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

GPU = """
backend = "nccl"
[[device]]
name = "gpu"
model = "h100-sxm"
host = "server"
[network]
preset = "switch"
bandwidth = "100 Gbps"
latency = "3 us"
"""

# GEMMs of 4,096 x 4,096 elements, each of which occupies the whole device.
PROGRAM = """
import json, multiprocessing, os, sys, time
import torch
from torch.cuda import nvtx

def products(name, start, queue):
    x = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    queue.put(None)
    start.wait()
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    number = nvtx.range_start(name)
    began = time.perf_counter()
    begun.record()
    for _ in range(20):
        x @ x
    ended.record()
    ended.synchronize()
    seconds = time.perf_counter() - began
    nvtx.range_end(number)
    x = torch.arange(5.0, device="cuda")
    queue.put([name, seconds, begun.elapsed_time(ended) / 1e3, (x * x).sum().item(), torch.cuda.get_device_name()])

def together(names):
    context = multiprocessing.get_context("spawn")
    start, queue = context.Event(), context.Queue()
    processes = [context.Process(target=products, args=(name, start, queue)) for name in names]
    for process in processes:
        process.start()
    for _ in processes:
        queue.get()
    start.set()
    said = sorted(queue.get() for _ in processes)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return said

class Here:
    def __init__(self): self.items = []
    def put(self, item): self.items.append(item)
    def wait(self): pass

if __name__ == "__main__":
    here = Here()
    products("rank", here, here)
    said = [here.items[1], *together(["alone"]), *together(["one", "other"])]
    json.dump(said, open("said.json", "w"))
"""


def run(
    directory: Path, source: str, *options: object, out: str = "out", cluster: str = GPU, compute: str = "model"
) -> Done:
    (directory / "cluster.toml").write_text(cluster)
    script = write_script(directory, source)
    options = ("--cluster", directory / "cluster.toml", "--out", directory / out, "--compute", compute, *options)
    return uniference("run", *options, script, cwd=directory)


def report(folder: Path) -> Any:
    return json.loads((folder / "report.json").read_text())


@simulates_gpus
def test_processes_share_the_gpu_of_their_rank(tmp_path: Path) -> None:
    done = run(tmp_path, PROGRAM, "--cuda", "--values", "small")
    assert done.code == 0, done.err
    names, seconds, elapsed, sums, devices = zip(*json.loads((tmp_path / "said.json").read_text()), strict=True)
    assert names == ("rank", "alone", "one", "other")
    assert sums == (30.0,) * 4
    assert devices == ("NVIDIA H100 80GB HBM3",) * 4
    # Twenty GEMMs last some 4 ms, alone as in the rank's process, and twice as long if two processes run at once.
    assert 3e-3 < seconds[0] < 5e-3
    assert seconds[1] == pytest.approx(seconds[0], rel=0.03)
    for both in seconds[2:]:
        assert both == pytest.approx(2 * seconds[0], rel=0.05)
    assert elapsed == pytest.approx(seconds, rel=0.03)
    phases = {row["name"]: row["total_s"] for row in report(tmp_path / "out")["phases"]}
    assert phases == pytest.approx(dict(zip(names, seconds, strict=True)), abs=2e-5)


@simulates_gpus
def test_a_run_with_processes_is_the_same_again_and_replayed(tmp_path: Path) -> None:
    runs = [run(tmp_path, PROGRAM, "--cuda", "--values", "small", out=out) for out in ("out", "again")]
    assert [done.code for done in runs] == [0, 0], runs[0].err + runs[1].err
    first, second = (tmp_path / out / "trace.json" for out in ("out", "again"))
    assert first.read_bytes() == second.read_bytes()
    done = uniference("replay", tmp_path / "out", "--out", tmp_path / "replay", cwd=tmp_path)
    assert done.code == 0, done.err
    digests = [report(tmp_path / out)["digest"] for out in ("out", "again", "replay")]
    assert len(set(digests)) == 1
    done = uniference("explain", tmp_path / "out", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "aten::mm" in done.out


ALONE = """
import ctypes, multiprocessing, sys
import torch, torch.distributed as dist

def alone():
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29512", rank=0, world_size=1)
    x, parts = torch.arange(4.0, device="cuda"), torch.zeros(4, device="cuda")
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    dist.all_gather_into_tensor(parts, x)
    dist.broadcast(x, 0)
    dist.barrier()
    assert parts.tolist() == x.tolist() == [0, 1, 2, 3], (parts, x)
    print("alone: done")

def warned():
    nvml = ctypes.CDLL(None)
    # What is not simulated is said by the library, whatever the thread says next.
    status = nvml.nvmlSystemGetConfComputeCapabilities(ctypes.c_void_p())
    torch.zeros(4, device="cuda").sum().item()
    print("warned:", status)

def forked():
    torch.zeros(4, device="cuda").sum().item()

def two():
    torch.cuda.init()
    class Identifier(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 128)]
    nccl, communicator = ctypes.CDLL(None), ctypes.c_void_p()
    sys.exit(nccl.ncclCommInitRank(ctypes.byref(communicator), 2, Identifier(), 0))

if __name__ == "__main__":
    method, target = sys.argv[1].split(":")
    process = multiprocessing.get_context(method).Process(target=globals()[target])
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@simulates_gpus
@pytest.mark.parametrize("compute", ["model", "none", "measured"])
def test_a_process_has_nccl_for_itself(tmp_path: Path, compute: str) -> None:
    script = ALONE.replace("sys.argv[1]", "'spawn:alone'")
    done = run(tmp_path, script, "--cuda", compute=compute)
    assert done.code == 0, done.out + done.err
    assert "alone: done" in done.out


@simulates_gpus
def test_warnings_of_processes_are_shown(tmp_path: Path) -> None:
    done = run(tmp_path, ALONE.replace("sys.argv[1]", "'spawn:warned'"), "--cuda")
    assert done.code == 0, done.out + done.err
    # NVML_ERROR_NOT_SUPPORTED
    assert "warned: 3" in done.out
    assert "nvmlSystemGetConfComputeCapabilities is not implemented for simulated GPUs" in done.err


@simulates_gpus
def test_a_forked_process_with_gpus_is_refused_with_a_hint(tmp_path: Path) -> None:
    done = run(tmp_path, ALONE.replace("sys.argv[1]", "'fork:forked'"), "--cuda")
    assert done.code == 1
    assert "spawn" in done.out + done.err, done.out + done.err


@simulates_gpus
def test_a_process_with_an_environment_of_its_own_has_the_gpu_of_its_rank(tmp_path: Path) -> None:
    source = """
import subprocess, sys
child = "import time, torch; print('child', torch.cuda.get_device_name(), time.gmtime().tm_year, torch.ones(3, device='cuda').sum().item())"
for environment in (None, {}, {"PATH": "/usr/bin", "UNIFERENCE_VALUES": "4096"}):
    subprocess.run([sys.executable, "-c", child], env=environment, check=True)
"""
    done = run(tmp_path, source, "--cuda")
    assert done.code == 0, done.err
    assert done.out.count("child NVIDIA H100 80GB HBM3 2026 3.0") == 3, done.out


@simulates_gpus
def test_communication_with_others_is_refused_with_a_hint(tmp_path: Path) -> None:
    done = run(tmp_path, ALONE.replace("sys.argv[1]", "'spawn:two'"), "--cuda")
    # ncclInvalidUsage
    assert "exit status 5" in done.err
    assert "communicates with itself alone" in done.err, done.err
    assert "start a rank for each GPU" in done.err


SHELL = """
import json, subprocess, sys, time
source = '''
import time, torch
x = torch.ones(1024, 1024)
began = time.perf_counter()
x @ x
print(time.perf_counter() - began)
'''
open("child.py", "w").write(source)
open("child", "w").write(f"#!{sys.executable}" + chr(10) + source)
import os
os.chmod("child", 0o755)
commands = [[sys.executable, "child.py"], ["sh", "-c", f"{sys.executable} child.py"], ["./child"]]
said = [float(subprocess.run(command, capture_output=True, check=True, text=True).stdout) for command in commands]
import torch
x = torch.ones(1024, 1024)
began = time.perf_counter()
x @ x
json.dump([time.perf_counter() - began, *said], open("said.json", "w"))
"""

PROCESSOR = """
[[device]]
name = "cpu"
peak_flops = { float32 = "100 GFLOPS" }
memory_bandwidth = "50 GB/s"
[network]
preset = "switch"
bandwidth = "10 Gbps"
latency = "10 us"
"""


def test_operators_of_processes_are_costed_on_a_processor_too(tmp_path: Path) -> None:
    done = run(tmp_path, SHELL, cluster=PROCESSOR)
    assert done.code == 0, done.err
    # At least 2 x 1,024^3 operations at 100 GFLOPS, for each of three ways to start the interpreter.
    own, *others = json.loads((tmp_path / "said.json").read_text())
    assert own > 2 * 1024**3 / 100e9
    assert others == pytest.approx([own] * 3, rel=1e-3)
