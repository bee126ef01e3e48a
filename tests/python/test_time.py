"""A program's clock is virtual."""

import time
from pathlib import Path

import pytest
from harness import run_script

import uniference

READ_S = 1e-6  # what a clock read costs


def printed(directory: Path, source: str, *options: object, ranks: int = 1) -> list[str]:
    done = run_script(directory, source, *options, ranks=ranks)
    assert done.code == 0, done.err
    return [line.partition("= ")[2] for line in done.out.splitlines() if "= " in line]


def test_sleep_costs_no_host_time(tmp_path: Path) -> None:
    start = time.monotonic()
    run = uniference.simulate(
        _script(tmp_path, "import time\ntime.sleep(3600)\n"), ranks=1, compute="none", out=tmp_path / "out"
    )
    assert time.monotonic() - start < 60
    # makespan = the time slept
    assert run.makespan == pytest.approx(3600, abs=1e-3)
    assert run.ranks[0].idle_s == pytest.approx(3600, abs=1e-3)


CLOCKS = """
import asyncio, datetime, queue, threading, time
start, wall, date = time.perf_counter_ns(), time.time(), datetime.datetime.now(datetime.timezone.utc)
def elapsed(since): return (time.perf_counter_ns() - since) / 1e9
print("wall =", wall, date.year)
begin = time.perf_counter_ns(); time.sleep(2.5); print("sleep =", elapsed(begin))
begin = time.perf_counter_ns(); asyncio.run(asyncio.sleep(7)); print("asyncio =", elapsed(begin))
begin = time.perf_counter_ns(); threading.Event().wait(5); print("event =", elapsed(begin))
begin = time.perf_counter_ns()
try: queue.Queue().get(timeout=3)
except queue.Empty: print("queue =", elapsed(begin))
print("date =", (datetime.datetime.now(datetime.timezone.utc) - date).total_seconds(), isinstance(date, datetime.datetime))
"""


def test_every_clock_of_the_standard_library(tmp_path: Path) -> None:
    start = time.monotonic()
    wall, sleep, asyncio, event, queue, date = printed(tmp_path, CLOCKS)
    assert time.monotonic() - start < 60
    seconds, year = wall.split()
    # time zero is 2026-01-01 00:00 UTC
    assert float(seconds) == pytest.approx(1_767_225_600, abs=1)
    assert year == "2026"
    for value, expected in ((sleep, 2.5), (asyncio, 7), (event, 5), (queue, 3)):
        assert float(value) == pytest.approx(expected, abs=1e-3)
    seconds, is_datetime = date.split()
    assert float(seconds) == pytest.approx(2.5 + 7 + 5 + 3, abs=1e-2)
    assert is_datetime == "True"


def test_each_rank_has_its_own_clock(tmp_path: Path) -> None:
    source = "import os, time\nrank = int(os.environ['RANK'])\ntime.sleep(10 * rank)\nprint('at =', rank, time.perf_counter())\n"
    for line in printed(tmp_path, source, ranks=3):
        rank, clock = line.split()
        assert float(clock) == pytest.approx(10 * int(rank), abs=1e-3)


ALL_REDUCE = """
import time, torch, torch.distributed as dist
dist.init_process_group()
dist.barrier()
tensor = torch.ones(1_000_000)
begin = time.perf_counter(); dist.all_reduce(tensor); end = time.perf_counter()
print("took =", end - begin)
"""


def test_all_reduce_takes_what_the_closed_form_says(tmp_path: Path) -> None:
    size, nbytes, rate, latency = 4, 4_000_000, 1e9 / 8, 100e-6
    lines = printed(tmp_path, ALL_REDUCE, "--bandwidth", "1 Gbps", "--latency", "100 us", ranks=size)
    # Ring: 2 (P - 1) steps, each of n / P bytes and one latency.
    expected = 2 * (size - 1) * (nbytes / size / rate + latency)
    assert len(lines) == size
    for line in lines:
        assert float(line) == pytest.approx(expected + READ_S, rel=1e-4)


OVERLAP = """
import time, torch, torch.distributed as dist
dist.init_process_group()
dist.barrier()
tensor = torch.ones(12_500_000)
begin = time.perf_counter()
work = dist.all_reduce(tensor, async_op=True)
time.sleep(10)
work.wait()
print("took =", time.perf_counter() - begin)
"""


def test_asynchronous_communication_overlaps(tmp_path: Path) -> None:
    # 50 MB over 1 Gbps in a ring of two: 2 (P - 1) n / P / rate = 0.4 s, within the 10 s of sleep.
    for line in printed(tmp_path, OVERLAP, "--bandwidth", "1 Gbps", ranks=2):
        assert float(line) == pytest.approx(10, abs=1e-3)


DDP = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, grad): time.sleep(0.05); return grad
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(1250, 1250, bias=False)
    def forward(self, x): return Slow.apply(self.inner(x))
dist.init_process_group()
net = DistributedDataParallel(torch.nn.Sequential(*[Layer() for _ in range(8)]), bucket_cap_mb=0.001)
for _ in range(2):
    loss = net(torch.ones(1, 1250)).sum()
    dist.barrier()
    begin = time.perf_counter()
    loss.backward()
    end = time.perf_counter()
print("took =", end - begin)
"""


def test_backward_overlaps_buckets_with_compute(tmp_path: Path) -> None:
    # Eight layers of 50 ms each; a bucket of 6.25 MB over 1 Gbps takes 2 (P - 1) n / P / rate = 50 ms: all but the last is hidden.
    for line in printed(tmp_path, DDP, "--bandwidth", "1 Gbps", ranks=2):
        assert float(line) == pytest.approx(8 * 0.05 + 0.05, rel=0.02)


def _script(directory: Path, source: str) -> Path:
    path = directory / "script.py"
    path.write_text(source)
    return path


POLLS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
work, polls = dist.all_reduce(torch.ones(100_000), async_op=True), 0
while not work.is_completed(): polls += 1
if dist.get_rank() == 0: print("polls =", polls)
"""


def test_a_busy_wait_for_an_operation_ends(tmp_path: Path) -> None:
    # ring of two: 2 (alpha + n/2 beta) = 2 (10 us + 160 us), at 1 us a poll
    (polls,) = printed(tmp_path, POLLS, ranks=2)
    assert int(polls) == pytest.approx(340, abs=2)


PRODUCER = """
import queue, threading, time, torch.distributed as dist
dist.init_process_group("gloo")
items = queue.Queue()
def produce():
    for item in range(3): time.sleep(0.1); items.put(item)
begin = time.perf_counter_ns()
threading.Thread(target=produce).start()
for _ in range(3): items.get()
if dist.get_rank() == 0: print("elapsed =", (time.perf_counter_ns() - begin) / 1e9)
dist.barrier()
"""


def test_a_rank_may_wait_for_a_thread_of_its_own(tmp_path: Path) -> None:
    # One job: the main thread is blocked where the engine cannot see it, and must not keep the other rank from running.
    (elapsed,) = printed(tmp_path, PRODUCER, "--jobs", "1", ranks=2)
    assert float(elapsed) == pytest.approx(3 * 0.1, abs=1e-3)
