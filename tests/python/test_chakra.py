"""Execution traces: of simulated programs, and of PyTorch's own profiler under real Gloo."""

import json
from pathlib import Path
from typing import Any

from harness import run_on_gloo, uniference, write_script

PROGRAM = """
import datetime, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
pair = dist.new_group([0, 1])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]), bucket_cap_mb=0.02)
for step in range(2):
    model(torch.randn(16, 64)).sum().backward()
work = dist.all_reduce(torch.ones(20_000), async_op=True)
torch.randn(200, 200) @ torch.randn(200, 200)
work.wait()
if rank < 2:
    dist.broadcast(torch.ones(1000), 1, group=pair)
time.sleep(0.001 * rank)
other = torch.empty(5)
receive = dist.irecv(other, (rank - 1) % size)
dist.isend(torch.ones(5), (rank + 1) % size)
receive.wait()
if rank == 2:
    try:
        dist.distributed_c10d._get_default_store().wait(["never"], datetime.timedelta(milliseconds=5))
    except dist.DistStoreError:
        pass
dist.barrier()
dist.all_reduce(torch.ones(5), async_op=True)
"""

PROFILED = """
import os, sys
import torch, torch.distributed as dist
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

dist.init_process_group("gloo")
rank, folder = dist.get_rank(), sys.argv[1]
observer = ExecutionTraceObserver().register_callback(f"{folder}/host.{rank}.json")
with profile(activities=[ProfilerActivity.CPU], execution_trace_observer=observer) as profiled:
    weight = torch.randn(64, 64, requires_grad=True)
    (torch.randn(8, 64) @ weight).relu().sum().backward()
    work = dist.all_reduce(weight.grad, async_op=True)
    torch.randn(64, 64) @ torch.randn(64, 64)
    work.wait()
    (dist.send if rank == 0 else dist.recv)(torch.ones(100), 1 - rank)
    dist.barrier()
profiled.export_chrome_trace(f"{folder}/profile.{rank}.json")
observer.unregister_callback()
dist.destroy_process_group()
"""


def report(folder: Path) -> Any:
    """The report of a run."""
    return json.loads((folder / "report.json").read_text())


def finishes(folder: Path) -> list[int]:
    """Virtual time at which each rank ended."""
    return [rank["finish_ps"] for rank in report(folder)["ranks"]]


def test_the_traces_of_a_run_end_when_it_did_and_elsewhere_when_its_record_does(tmp_path: Path) -> None:
    script = write_script(tmp_path, PROGRAM)
    options = ("--ranks", 3, "--slowdown", "1,2.5,1", "--backend", "gloo", "--chakra", "traces", "--out", "run")
    done = uniference("run", *options, script, cwd=tmp_path)
    assert done.code == 0, done.err
    # The warning names events that the trace cannot express, with rank and line.
    assert "rank 2 reached a timeout at" in done.err
    assert "script.py" in done.err

    here = uniference("replay", "traces", "--out", "here", cwd=tmp_path)
    assert here.code == 0, here.err
    assert finishes(tmp_path / "here") == finishes(tmp_path / "run")

    faster = ("--set", 'network.bandwidth="90 Gbps"')
    for source, out in [("traces", "traces-elsewhere"), ("run", "record-elsewhere")]:
        elsewhere = uniference("replay", source, *faster, "--out", out, cwd=tmp_path)
        assert elsewhere.code == 0, elsewhere.err
    assert finishes(tmp_path / "traces-elsewhere") == finishes(tmp_path / "record-elsewhere")

    checked = uniference("chakra", "check", *(f"traces/chakra.{rank}.et" for rank in range(3)), cwd=tmp_path)
    assert checked.code == 0, checked.out


def test_pairs_of_the_profilers_files_become_traces_that_run(tmp_path: Path) -> None:
    run_on_gloo(2, write_script(tmp_path, PROFILED), tmp_path)
    pairs = [f"{kind}.{rank}.json" for rank in range(2) for kind in ("host", "profile")]
    linked = uniference("chakra", "link", *pairs, "--out", "job", cwd=tmp_path)
    # A recording of milliseconds on a busy machine may contain unexplained waits, which cause a warning.
    assert linked.code == 0, linked.err
    assert linked.err.count("operators match between profile and host trace (100.0 %)") == 2
    # One rank's profile alone is not enough, because the other rank of a message may differ.
    alone = uniference("chakra", "link", *pairs[:2], "--out", "alone", cwd=tmp_path)
    assert alone.code == 2
    assert "only 1 are recorded: they communicate point to point" in alone.err
    done = uniference("replay", "job", "--ranks", 2, "--out", "out", cwd=tmp_path)
    assert done.code == 0, done.err
    counts = {operation["operation"]: operation["count"] for operation in report(tmp_path / "out")["operations"]}
    assert counts == {"all_reduce": 2, "send": 1, "recv": 1, "barrier": 2}
    assert [rank["compute_s"] > 0 for rank in report(tmp_path / "out")["ranks"]] == [True, True]
