"""A program's clock is virtual."""

import errno
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import run_script, write_script
from harness import uniference as command

import uniference

READ_S = 50e-9
READS_S = 2e-5  # more clock reads than any one wait makes


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
    # ring of two: 2 (alpha + n/2 beta) = 2 (10 us + 160 us), at 1 us per poll
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
    # One job: the main thread is blocked in a call that the engine does not see, and must not keep the other rank from
    # running.
    (elapsed,) = printed(tmp_path, PRODUCER, "--jobs", "1", ranks=2)
    assert float(elapsed) == pytest.approx(3 * 0.1, abs=1e-3)


SLEEPERS = """
import threading, time
begin = time.perf_counter()
threads = [threading.Thread(target=time.sleep, args=(0.5 + n / 100,)) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("took =", time.perf_counter() - begin)
""" + "\n".join(
    """
begin = time.perf_counter()
threads = [threading.Thread(target=time.sleep, args=(0.5,)) for n in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("again =", time.perf_counter() - begin)
"""
    for _ in range(20)
)


def test_threads_sleep_side_by_side(tmp_path: Path) -> None:
    # max(0.5, ..., 0.57), and max(0.5, ...) in each of 20 repetitions: never a sum
    first, *again = printed(tmp_path, SLEEPERS)
    assert float(first) == pytest.approx(0.57, abs=READS_S)
    assert [float(took) for took in again] == pytest.approx([0.5] * 20, abs=READS_S)


TIME_OUTS = """
import asyncio, concurrent.futures, queue, select, selectors, socket, threading, time
def took(name, wait):
    begin = time.perf_counter_ns()
    try: result = wait()
    except Exception as error: result = type(error).__name__
    print(name, "=", (time.perf_counter_ns() - begin) / 1e9, result)
lock = threading.Lock(); lock.acquire()
condition = threading.Condition(); condition.acquire()
here, there = socket.socketpair(); here.settimeout(9)
poll = select.poll(); poll.register(here, select.POLLIN)
epoll = select.epoll(); epoll.register(here, select.EPOLLIN)
selector = selectors.DefaultSelector(); selector.register(here, selectors.EVENT_READ)
async def give_up():
    try: await asyncio.wait_for(asyncio.sleep(100), 3)
    except asyncio.TimeoutError: return "late"
async def call_later():
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(2, done.set)
    await done.wait()
def all_time_outs():
    took("event", lambda: threading.Event().wait(5))
    took("condition", lambda: condition.wait(4))
    took("queue", lambda: queue.Queue().get(timeout=3))
    took("lock", lambda: lock.acquire(timeout=2))
    took("semaphore", lambda: threading.Semaphore(0).acquire(timeout=1.5))
    took("barrier", lambda: threading.Barrier(2).wait(timeout=1.25))
    took("select", lambda: len(select.select([here], [], [], 7)[0]))
    took("poll", lambda: len(poll.poll(1500)))
    took("epoll", lambda: len(epoll.poll(2.5)))
    took("selector", lambda: len(selector.select(0.5)))
    took("socket", lambda: here.recv(1))
    took("asyncio.sleep", lambda: asyncio.run(asyncio.sleep(7)))
    took("asyncio.wait_for", lambda: asyncio.run(give_up()))
    took("asyncio.call_later", lambda: asyncio.run(call_later()))
"""

GIVEN_UP = {
    "event": (5, "False"),
    "condition": (4, "False"),
    "queue": (3, "Empty"),
    "lock": (2, "False"),
    "semaphore": (1.5, "False"),
    "barrier": (1.25, "BrokenBarrierError"),
    "select": (7, "0"),
    "poll": (1.5, "0"),
    "epoll": (2.5, "0"),
    "selector": (0.5, "0"),
    "socket": (9, "TimeoutError"),
    "asyncio.sleep": (7, "None"),
    "asyncio.wait_for": (3, "late"),
    "asyncio.call_later": (2, "None"),
}

ALONE = "all_time_outs()\n"
BESIDE_ANOTHER = """
end = threading.Event()
other = threading.Thread(target=end.wait)
other.start(); all_time_outs(); end.set(); other.join()
"""


@pytest.mark.parametrize("how", [ALONE, BESIDE_ANOTHER], ids=["alone", "beside another thread"])
def test_a_wait_that_nobody_ends_lasts_as_long_as_its_time_out(tmp_path: Path, how: str) -> None:
    done = run_script(tmp_path, TIME_OUTS + how, ranks=1)
    assert done.code == 0, done.err
    found = {name: rest.split() for name, _, rest in (line.partition(" = ") for line in done.out.splitlines()) if rest}
    assert found.keys() == GIVEN_UP.keys()
    for name, (seconds, result) in GIVEN_UP.items():
        # asyncio reads its clock a few times per turn
        assert float(found[name][0]) == pytest.approx(seconds, abs=5 * READS_S), name
        assert found[name][1] == result


ENDED_EARLY = """
import asyncio, concurrent.futures, queue, select, socket, threading, time
def after(seconds, work): threading.Thread(target=lambda: (time.sleep(seconds), work())).start()
def took(wait):
    begin = time.perf_counter_ns()
    try: result = wait()
    except Exception as error: result = type(error).__name__
    print("took =", (time.perf_counter_ns() - begin) / 1e9, result)
event, items = threading.Event(), queue.Queue()
after(1, event.set); took(lambda: event.wait(5))
after(2, lambda: items.put("item")); took(lambda: items.get(timeout=5))
here, there = socket.socketpair(); here.settimeout(20)
after(3, lambda: there.send(b"x")); took(lambda: here.recv(1).decode())
poll = select.poll(); poll.register(here, select.POLLIN)
after(4, lambda: there.send(b"x")); took(lambda: len(poll.poll(20000)))
thread = threading.Thread(target=time.sleep, args=(10,)); thread.start()
took(lambda: (thread.join(4), thread.is_alive())[1])
took(lambda: (thread.join(20), thread.is_alive())[1])
pool = concurrent.futures.ThreadPoolExecutor(4)
took(lambda: len(concurrent.futures.wait([pool.submit(time.sleep, 1.5) for _ in range(4)], timeout=9).done))
future = pool.submit(time.sleep, 3)
took(lambda: future.result(timeout=1))
took(lambda: future.result(timeout=9))
async def beside():
    await asyncio.gather(*[asyncio.to_thread(time.sleep, 2) for _ in range(3)], asyncio.sleep(1))
took(lambda: asyncio.run(beside()))
"""


def test_a_wait_that_another_thread_ends_lasts_until_then(tmp_path: Path) -> None:
    expected = [
        (1, "True"),
        (2, "item"),
        (3, "x"),
        (4, "1"),
        (4, "True"),
        (10 - 4, "False"),
        (1.5, "4"),  # four concurrently
        (1, "TimeoutError"),
        (3 - 1, "None"),
        (2, "None"),  # three threads and the loop, concurrently
    ]
    found = [line.split() for line in printed(tmp_path, ENDED_EARLY)]
    assert [result for _, result in found] == [result for _, result in expected]
    assert [float(took) for took, _ in found] == pytest.approx([took for took, _ in expected], abs=5 * READS_S)


C_CLOCKS = """
import ctypes, datetime, time, uuid, torch
from torch.utils import benchmark
libc = ctypes.CDLL(None)
class Timespec(ctypes.Structure): _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]
def c_clock(which):
    now = Timespec(); libc.clock_gettime(which, ctypes.byref(now)); return now.seconds + now.nanoseconds / 1e9
time.sleep(3)
print("monotonic =", c_clock(time.CLOCK_MONOTONIC) - time.monotonic())
print("date =", c_clock(time.CLOCK_REALTIME) - time.time(), libc.time(None) - int(time.time()))
print("datetime =", datetime.datetime.now().timestamp() - time.time(), type(datetime.datetime.now()) is datetime.datetime)
begin = time.perf_counter(); libc.usleep(250_000); print("usleep =", time.perf_counter() - begin)
timer = benchmark.Timer("time.sleep(0.5)", setup="import time")
print("benchmark =", timer.timeit(2).mean)
# A mutex that checks who gives it away: a wait must do so, also until a moment that has passed.
kind, mutex, condition = (ctypes.create_string_buffer(64) for _ in range(3))
libc.pthread_mutexattr_init(kind); libc.pthread_mutexattr_settype(kind, 2); libc.pthread_mutex_init(mutex, kind)
print("wait =", libc.pthread_cond_timedwait(condition, mutex, ctypes.byref(Timespec(0, 0))))
# A thread that ends itself: its stack is unwound.
thread = ctypes.c_ulong()
libc.pthread_create(ctypes.byref(thread), None, libc.pthread_exit, None)
print("thread =", libc.pthread_join(thread, None))
"""


def test_c_code_reads_and_spends_the_same_clock(tmp_path: Path) -> None:
    monotonic, date, moment, usleep, mean, wait, thread = printed(tmp_path, C_CLOCKS)
    # two reads, one after the other
    assert float(monotonic) == pytest.approx(-READ_S, abs=1e-9)
    assert [float(part) for part in date.split()] == pytest.approx([-READ_S, 0], abs=1e-6)
    assert float(moment.split()[0]) == pytest.approx(-READ_S, abs=2e-6)
    assert moment.split()[1] == "True"
    assert float(usleep) == pytest.approx(0.25 + READ_S, abs=1e-9)
    assert float(mean) == pytest.approx(0.5, abs=READS_S)
    assert (int(wait), int(thread)) == (errno.EPERM, 0)


# std::future waits by a system call: the C library has no function for futexes.
FUTURES_CPP = """
#include <chrono>
#include <future>
#include <thread>
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
static double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }
extern "C" void waits(double *took, int *kept) {
    auto begin = Clock::now();
    auto future = std::async(std::launch::async, [] { std::this_thread::sleep_for(2s); return 7; });
    kept[0] = future.wait_for(500ms) == std::future_status::ready;
    took[0] = since(begin);
    kept[1] = future.wait_for(60s) == std::future_status::ready;
    took[1] = since(begin);
    auto another = std::async(std::launch::async, [] { std::this_thread::sleep_for(1s); return 7; });
    kept[2] = another.get() == 7;
    took[2] = since(begin);
    std::promise<void> there, back;
    std::thread first([&] { std::this_thread::sleep_for(500ms); there.set_value(); });
    std::thread other([&] { there.get_future().wait_for(60s); std::this_thread::sleep_for(250ms); back.set_value(); });
    kept[3] = back.get_future().wait_for(60s) == std::future_status::ready;
    took[3] = since(begin);
    first.join();
    other.join();
}
"""

FUTURES = """
import ctypes
took, kept = (ctypes.c_double * 4)(), (ctypes.c_int * 4)()
ctypes.CDLL("./futures.so").waits(took, kept)
print("took =", *took)
print("kept =", *kept)
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="this machine has no C++ compiler")
def test_threads_of_cpp_wait_for_futures_in_virtual_time(tmp_path: Path) -> None:
    (tmp_path / "futures.cpp").write_text(FUTURES_CPP)
    build = ["c++", "-std=c++17", "-shared", "-fPIC", "-pthread", "futures.cpp", "-o", "futures.so"]
    subprocess.run(build, cwd=tmp_path, check=True)
    took, kept = printed(tmp_path, FUTURES)
    assert kept.split() == ["0", "1", "1", "1"]
    # 0.5 s of waiting in vain; ready at 2 s; another at 3 s; passed from one thread to the next at 3.5 s and 3.75 s.
    assert [float(part) for part in took.split()] == pytest.approx([0.5, 2, 3, 3.75], abs=READS_S)


# An allocator that replaces the C library's in all processes, and reads the clock during its work, as jemalloc does.
ALLOCATOR_C = """
#include <stddef.h>
#include <time.h>
#include <unistd.h>
extern void *__libc_malloc(size_t);
static _Thread_local int busy;
void *malloc(size_t bytes) {
    if (busy++) _exit(9);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    void *found = __libc_malloc(bytes);
    busy--;
    return found;
}
"""

WITH_ALLOCATOR = """
import time
begin = time.perf_counter()
blocks = [bytearray(10_000) for _ in range(1000)]
time.sleep(0.5)
print("took =", time.perf_counter() - begin)
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="this machine has no C compiler")
def test_an_allocator_that_reads_the_clock_is_not_called_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "allocator.c").write_text(ALLOCATOR_C)
    build = ["cc", "-shared", "-fPIC", "-fno-builtin", "allocator.c", "-o", "allocator.so"]
    subprocess.run(build, cwd=tmp_path, check=True)
    script, preload = write_script(tmp_path, WITH_ALLOCATOR), {"LD_PRELOAD": str(tmp_path / "allocator.so")}
    # Not from the nursery, whose processes run already and cannot preload the library.
    done = command("run", "--ranks", 1, "--compute", "none", script, cwd=tmp_path, env=preload, cold=True)
    assert done.code == 0, done.err
    assert float(done.out.partition("took = ")[2].split()[0]) == pytest.approx(0.5, abs=READS_S)


CHILDREN = """
import multiprocessing, subprocess, time
def took(wait):
    begin = time.perf_counter_ns()
    try: result = wait()
    except Exception as error: result = type(error).__name__
    print("took =", (time.perf_counter_ns() - begin) / 1e9, result)
took(lambda: subprocess.run(["sleep", "0.2"], timeout=50).returncode)
took(lambda: subprocess.run(["sleep", "20"], timeout=0.2).returncode)
took(lambda: subprocess.run(["sh", "-c", "sleep 0.2; echo out"], timeout=50, capture_output=True).stdout.strip().decode())
items = multiprocessing.Queue()
on_host = lambda: time.time() > 1_770_000_000 or time.time() < 1_767_225_600
child = multiprocessing.Process(target=lambda: (time.sleep(0.3), items.put(str(on_host()))))
child.start()
took(lambda: items.get(timeout=50))
took(lambda: (child.join(50), child.exitcode)[1])
"""


def test_waits_for_child_processes_take_as_long_as_these_sleep(tmp_path: Path) -> None:
    # `Popen.wait` with a timeout waits for 1 ms, 2 ms, ..., 32 ms, then 50 ms at a time between two polls (CPython's
    # subprocess.py).
    expected = [(0.213, "0"), (0.2, "TimeoutExpired"), (0.2, "out"), (0.3, "False"), (0, "0")]
    found = [line.split() for line in printed(tmp_path, CHILDREN)]
    assert [result for _, result in found] == [result for _, result in expected]
    assert [float(took) for took, _ in found] == pytest.approx([took for took, _ in expected], abs=5 * READS_S)


BESIDE_COMPUTE = """
import threading, time, torch
woke = []
def sleep():
    time.sleep(0.01); woke.append(time.perf_counter())
thread = threading.Thread(target=sleep)
thread.start()
matrix = torch.ones(500, 500)
for _ in range(40): matrix = matrix @ matrix / 500
end = time.perf_counter()
thread.join()
print("woke =", woke[0], end, time.perf_counter())
"""


def test_a_thread_sleeps_while_another_computes(tmp_path: Path) -> None:
    # Device 40 times slower: the compute outlasts the sleep, which ends during the compute.
    options = ("--ranks", 1, "--slowdown", 40, "--compute", "measured", "--out", tmp_path / "out")
    done = command("run", *options, write_script(tmp_path, BESIDE_COMPUTE), cwd=tmp_path)
    assert done.code == 0, done.err
    woke, end, joined = map(float, done.out.partition("woke = ")[2].splitlines()[0].split())
    assert 0.01 <= woke < end <= joined


TURNS = """
import threading, time
ends = []
def compute():
    for _ in range(3_000_000): pass
    ends.append(time.monotonic())
threads = [threading.Thread(target=compute) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("ends =", *ends, time.process_time())
"""


def test_threads_take_turns_at_the_interpreters_lock(tmp_path: Path) -> None:
    options = ("--ranks", 1, "--compute", "measured", "--out", tmp_path / "out")
    done = command("run", *options, write_script(tmp_path, TURNS), cwd=tmp_path)
    assert done.code == 0, done.err
    first, second, computed = map(float, done.out.partition("ends = ")[2].splitlines()[0].split())
    # Two threads of equal length c, in turns of 5 ms: both end at about 2 c, and not at c.
    assert 0.6 * second < first <= second
    # Alone, each thread would end at half of both threads' compute.
    assert second > 0.75 * computed


THREADS_AND_RANKS = """
import queue, random, threading, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, items = dist.get_rank(), queue.Queue()
def produce(which):
    for step in range(5):
        time.sleep(0.01 * (1 + which) + 0.001 * rank); items.put((which, step))
threads = [threading.Thread(target=produce, args=(which,)) for which in range(3)]
for thread in threads: thread.start()
total = torch.zeros(1)
for _ in range(15):
    which, step = items.get(timeout=5)
    dist.all_reduce(torch.ones(1000 * (1 + step)))
for thread in threads: thread.join()
"""


def test_programs_with_threads_are_the_same_in_every_run_and_in_a_replay(tmp_path: Path) -> None:
    script = _script(tmp_path, THREADS_AND_RANKS)
    runs = [
        uniference.simulate(script, ranks=3, compute="none", backend="gloo", out=tmp_path / f"out{n}", jobs=jobs)
        for n, jobs in enumerate((1, 1, 3))
    ]
    (digest,) = {run.report["digest"] for run in runs}
    replayed = command("replay", tmp_path / "out0", "--json", cwd=tmp_path)
    assert replayed.code == 0, replayed.err
    assert json.loads(replayed.out)["digest"] == digest


ALARMS = """
import signal, threading, time
moments = []
signal.signal(signal.SIGALRM, lambda *_: moments.append(time.monotonic()))
start = time.monotonic()
signal.alarm(2)
time.sleep(5)
print("once =", moments.pop() - start, time.monotonic() - start)
start = time.monotonic()
signal.setitimer(signal.ITIMER_REAL, 0.5, 1.0)
threading.Event().wait(3)
left, every = signal.setitimer(signal.ITIMER_REAL, 0)
print("again =", *[moment - start for moment in moments], left, every)
start = time.monotonic()
print("none =", signal.sigtimedwait([signal.SIGUSR1], 4), time.monotonic() - start)
def give_up(*_): raise TimeoutError
signal.signal(signal.SIGALRM, give_up)
lock = threading.Lock()
lock.acquire()
start = time.monotonic()
signal.alarm(7)
try: lock.acquire()
except TimeoutError: print("gave up =", time.monotonic() - start)
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.alarm(1)
time.sleep(3)
print("not = reached")
"""


def test_alarms_go_off_in_virtual_time(tmp_path: Path) -> None:
    done = run_script(tmp_path, ALARMS, ranks=1)
    once, again, none, gave_up = (line.partition("= ")[2].split() for line in done.out.splitlines() if " = " in line)
    assert [float(value) for value in once] == pytest.approx([2, 5], abs=READS_S)
    # 0.5 s, then every second; the next timer expires half a second after the third.
    assert [float(value) for value in again] == pytest.approx([0.5, 1.5, 2.5, 0.5, 1], abs=READS_S)
    assert none[0] == "None"
    assert float(none[1]) == pytest.approx(4, abs=READS_S)
    assert float(gave_up[0]) == pytest.approx(7, abs=READS_S)
    # Without a handler the signal ends the process.
    assert done.code == 1
    assert "was killed by SIGALRM" in done.err


ANOTHER_DEFAULT = """
import time, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("gloo", timeout=timedelta(minutes=10))
if dist.get_rank() == 1:
    time.sleep(700)
else:
    try: dist.barrier()
    except RuntimeError: print("gave up =", time.monotonic())
"""


def test_another_librarys_default_is_a_time_out_like_any(tmp_path: Path) -> None:
    # NCCL's default timeout is ten minutes.
    (gave_up,) = printed(tmp_path, ANOTHER_DEFAULT, ranks=2)
    assert float(gave_up) == pytest.approx(600, abs=1)


TORCH_LOOKS = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(8)
dist.all_reduce(x)
start = time.monotonic()
for _ in range(5):
    with torch.profiler.record_function("step"):
        x.add_(1)
    # By oneDNN, without the interpreter's lock.
    torch.nn.functional.gelu(torch.ones(64, 256))
work = dist.all_reduce(x, async_op=True)
print("passed =", time.monotonic() - start)
work.wait()
"""


def test_torchs_own_looks_at_the_clock_cost_nothing(tmp_path: Path) -> None:
    # The program reads the clock twice, and every read except the first lies between them: one read.
    for passed in printed(tmp_path, TORCH_LOOKS, ranks=2):
        assert float(passed) == pytest.approx(READ_S, abs=READ_S / 10)


LENGTHS = """
import decimal, select, threading, time
for length in (-1, -0.5, float("nan"), float("inf"), 1e10, 10**30, "1", decimal.Decimal(1), None, True, 0.25):
    try: print("sleep =", time.sleep(length))
    except Exception as error: print("sleep =", type(error).__name__, error)
for wait in (
    lambda: select.select([], [], [], -1), lambda: threading.Event().wait(1e10), lambda: threading.Lock().acquire(timeout=-5),
    lambda: select.poll().poll(1e12),
):
    try: print("wait =", wait())
    except Exception as error: print("wait =", type(error).__name__, error)
"""


def test_lengths_of_time_are_taken_and_refused_as_by_the_interpreter(tmp_path: Path) -> None:
    script = write_script(tmp_path, LENGTHS, "lengths.py")
    plain = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=60).stdout
    assert printed(tmp_path, LENGTHS) == [line.partition("= ")[2] for line in plain.splitlines()]


def test_a_sleep_past_the_end_of_virtual_time_ends_the_run(tmp_path: Path) -> None:
    # 1e9 s are more than 2^64 ps = 18 446 744 s; the program sees no error of its own.
    done = run_script(tmp_path, "import time\ntime.sleep(1e9)\n", ranks=1)
    assert done.code == 3
    assert "virtual time exceeds its limit of 213 days" in done.err
    assert "script.py" in done.err
    assert "OverflowError" not in done.err


def test_a_call_is_no_reason_to_wait_for_a_thread_that_sleeps(tmp_path: Path) -> None:
    """The main thread starts an operation, and then makes no request until another thread has slept."""
    script = """
import threading, time, torch
import torch.distributed as dist

def sleeps():
    time.sleep(0.2)
    time.sleep(0.4)

dist.init_process_group("gloo")
began = time.monotonic()
thread = threading.Thread(target=sleeps)
thread.start()
time.sleep(0.3)
work = dist.all_reduce(torch.ones(4), async_op=True)
thread.join()
work.wait()
assert 0.6 <= time.monotonic() - began < 0.601
"""
    done = run_script(tmp_path, script)
    assert done.code == 0, done.err
