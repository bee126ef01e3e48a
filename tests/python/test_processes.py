"""Children of a rank share its virtual time."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from harness import Start, run_script, write_script
from harness import uniference as command

READS_S = 2e-5  # clock reads of 50 ns, and more of them than any one line makes

TOOK = """
import os, signal, subprocess, sys, time
begin = time.perf_counter()
def took(what, result=""):
    global begin
    print(what, "=", time.perf_counter() - begin, result, flush=True)
    begin = time.perf_counter()
"""


def lines(directory: Path, source: str, *options: object, ranks: int = 1) -> dict[str, list[str]]:
    """Output of `took`: for each line, its seconds and its result."""
    done = run_script(directory, TOOK + source, *options, ranks=ranks)
    assert done.code == 0, done.out + done.err
    found = (line.partition(" = ") for line in done.out.splitlines() if " = " in line)
    return {what: rest.split(" ", 1) for what, _, rest in found}


def check(found: dict[str, list[str]], expected: dict[str, tuple[float, str]]) -> None:
    assert {what: result for what, (_, result) in found.items()} == {
        what: result for what, (_, result) in expected.items()
    }
    for what, (seconds, _) in expected.items():
        assert float(found[what][0]) == pytest.approx(seconds, abs=READS_S), what


FORK = """
read, write = os.pipe()
child = os.fork()
if child == 0:
    start = time.monotonic()
    time.sleep(1)
    os.write(write, f"{time.monotonic() - start:.3f} {time.time() > 1_767_225_600} {time.time() < 1_767_225_700}".encode())
    if os.fork() == 0:
        time.sleep(3)
        os._exit(0)
    time.sleep(2)
    os._exit(7)
took("pipe", os.read(read, 100).decode())
took("end", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_copy_sleeps_and_tells_the_rank(tmp_path: Path) -> None:
    # 1 s until it writes, 2 s until it ends; its own fork is not waited for.
    check(lines(tmp_path, FORK), {"pipe": (1, "1.000 True True"), "end": (2, "7")})


PROGRAMS = """
took("sleep", subprocess.run(["sleep", "1"]).returncode)
source = "import time, datetime; print(datetime.datetime.now(datetime.timezone.utc).year); time.sleep(3)"
took("python", subprocess.run([sys.executable, "-c", source], capture_output=True, text=True).stdout.strip())
took("shell", subprocess.run("sleep 1 & sleep 2 & wait; echo done", shell=True, capture_output=True).stdout.strip().decode())
took("system", os.system("sleep 2"))
took("spawned", os.waitpid(os.posix_spawn("/bin/sleep", ["sleep", "0.5"], os.environ), 0)[1])
took("environment", subprocess.run(["sleep", "4"], env={}).returncode)
try: subprocess.run(["sleep", "20"], timeout=0.25)
except subprocess.TimeoutExpired as error: took("expired", type(error).__name__)
late = subprocess.Popen(["sleep", "600"])
took("running", late.poll())
"""


def test_programs_sleep_in_virtual_time(tmp_path: Path) -> None:
    start = time.monotonic()
    found = lines(tmp_path, PROGRAMS)
    assert time.monotonic() - start < 60
    expected = {
        "sleep": (1, "0"),
        "python": (3, "2026"),
        # The longer one of two concurrent sleeps.
        "shell": (2, "done"),
        "system": (2, "0"),
        "spawned": (0.5, "0"),
        "environment": (4, "0"),
        "expired": (0.25, "TimeoutExpired"),
        "running": (0, "None"),
    }
    check(found, expected)


# A program with a `malloc` of its own that reads the clock during its work, as jemalloc does: the clock's
# implementation must not call malloc.
ALLOCATOR_C = """
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static _Thread_local int busy;
static char arena[1 << 26];
static size_t used;
static void *next(size_t bytes) {
    if (busy++) _exit(9);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    size_t at = __atomic_fetch_add(&used, (bytes + 31) / 16 * 16, __ATOMIC_RELAXED);
    *(size_t *)(arena + at) = bytes;
    busy--;
    return arena + at + 16;
}
void *malloc(size_t bytes) { return next(bytes); }
void *calloc(size_t count, size_t bytes) { return next(count * bytes); }
void *realloc(void *old, size_t bytes) {
    void *found = next(bytes);
    if (old) memcpy(found, old, ((size_t *)old)[-2] < bytes ? ((size_t *)old)[-2] : bytes);
    return found;
}
void free(void *at) { (void)at; }
static void *work(void *unused) {
    for (int i = 0; i < 1000; i++) *(char *volatile *)malloc(16) = 0;
    struct timespec half = {0, 500000000};
    nanosleep(&half, NULL);
    return unused;
}
int main(void) {
    work(NULL);
    pthread_t other;
    if (pthread_create(&other, NULL, work, NULL)) return 4;
    pthread_join(other, NULL);
    pid_t copy = fork();
    if (copy == 0) { work(NULL); _exit(0); }
    waitpid(copy, NULL, 0);
    return 3;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="this machine has no C compiler")
def test_the_memory_of_a_program_is_not_asked_for_while_it_reads_the_clock(tmp_path: Path) -> None:
    (tmp_path / "allocator.c").write_text(ALLOCATOR_C)
    subprocess.run(
        ["cc", "-O1", "-pthread", "-fno-builtin", "allocator.c", "-o", "allocator"], cwd=tmp_path, check=True
    )
    found = lines(tmp_path, 'took("allocator", subprocess.run(["./allocator"]).returncode)')
    # A sleep of the process, then of its thread, then of its fork.
    check(found, {"allocator": (1.5, "3")})


POOLS = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
def work(seconds):
    time.sleep(seconds)
    return seconds
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        took(f"start {method}")
        with context.Pool(2) as pool:
            took(f"pool {method}", pool.map(work, [1, 1, 1, 1]))
        took(f"end {method}")
        with ProcessPoolExecutor(2, mp_context=context) as executor:
            took(f"executor {method}", list(executor.map(work, [1, 2, 3])))
"""


def test_pools_of_processes(tmp_path: Path) -> None:
    # Two workers: 1 + 1 concurrently with 1 + 1; 1 + 3 concurrently with 2.
    found = lines(tmp_path, POOLS)
    for method in ("fork", "spawn"):
        expected = {f"pool {method}": (2.0, "[1, 1, 1, 1]"), f"executor {method}": (4.0, "[1, 2, 3]")}
        check({what: found[what] for what in expected}, expected)


LOADER = """
import torch
class Items(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        time.sleep(0.5)
        return index
for batch in torch.utils.data.DataLoader(Items(), batch_size=2, num_workers=2):
    took(f"batch {batch.tolist()}")
    time.sleep(0.25)
    begin = time.perf_counter()
"""


def test_workers_of_a_data_loader(tmp_path: Path) -> None:
    # A batch takes 1 s, and two are loaded at once: the second is ready after 0.25 s of work; then the program waits
    # for two that began at 1 s.
    expected = {"batch [0, 1]": 1.0, "batch [2, 3]": 0.0, "batch [4, 5]": 0.5, "batch [6, 7]": 0.0}
    check(lines(tmp_path, LOADER), {what: (seconds, "") for what, seconds in expected.items()})


WAITS = """
import multiprocessing, queue, threading
def child(items, event, connection):
    clock = time.monotonic
    start = clock()
    condition = threading.Condition()
    with condition: condition.wait(1.5)
    items.put(("condition", clock() - start)); start = clock()
    thread = threading.Thread(target=lambda: time.sleep(2)); thread.start()
    thread.join(0.5); items.put(("join", clock() - start)); start = clock()
    thread.join(); items.put(("joined", clock() - start)); start = clock()
    event.wait(10); items.put(("event", clock() - start)); start = clock()
    connection.poll(3); items.put(("poll", clock() - start)); start = clock()
    connection.poll(30); items.put(("message", clock() - start))
items, event = multiprocessing.Queue(), multiprocessing.Event()
ours, theirs = multiprocessing.Pipe()
process = multiprocessing.Process(target=child, args=(items, event, theirs))
process.start()
def hear():
    what, seconds = items.get(timeout=100)
    took(what, f"{seconds:.3f}")
for _ in range(3): hear()
time.sleep(1); event.set(); hear(); hear()
time.sleep(1); ours.send(1); hear()
try: items.get(timeout=5)
except queue.Empty: took("empty")
process.join(50); took("end", process.exitcode)
"""


def test_timed_waits_of_both_sides(tmp_path: Path) -> None:
    expected = {
        "condition": (1.5, "1.500"),
        "join": (0.5, "0.500"),
        "joined": (1.5, "1.500"),
        # Compute of the rank 1 s later.
        "event": (1, "1.000"),
        "poll": (3, "3.000"),
        "message": (1, "1.000"),
        "empty": (5, ""),
        "end": (0, "0"),
    }
    check(lines(tmp_path, WAITS), expected)


SERVER = """
import asyncio
source = '''
import socket, sys, time
for _ in range(3):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5) as connection:
        connection.sendall(b"x\\\\n")
        connection.recv(10)
    time.sleep(1)
'''
async def answer(reader, writer):
    line = await reader.readline()
    await asyncio.sleep(0.5)
    writer.write(line)
    await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = await asyncio.create_subprocess_exec(sys.executable, "-c", source.replace("\\\\\\\\", "\\\\"), str(port))
    try: await asyncio.wait_for(client.wait(), 0.25)
    except asyncio.TimeoutError: took("early")
    took("client", await client.wait())
asyncio.run(main())
"""


def test_a_client_over_tcp_of_an_event_loop(tmp_path: Path) -> None:
    # 3 * (0.5 s for the answer + 1 s)
    check(lines(tmp_path, SERVER), {"early": (0.25, ""), "client": (4.25, "0")})


ENDS = """
import multiprocessing
def sleep(): time.sleep(100)
for number in (signal.SIGKILL, signal.SIGTERM):
    process = multiprocessing.Process(target=sleep)
    process.start(); time.sleep(1); os.kill(process.pid, number); process.join(50)
    took(number.name, process.exitcode)
took("crash", subprocess.run([sys.executable, "-c", "import ctypes; ctypes.string_at(0)"]).returncode)
multiprocessing.Process(target=sleep, daemon=True).start()
subprocess.run("sleep 500 & exec 1>&-", shell=True)
took("left")
"""


def test_processes_that_end_early_or_late(tmp_path: Path) -> None:
    # The rank waits for 1 s, and not for the children that it leaves behind.
    expected = {"SIGKILL": (1, "-9"), "SIGTERM": (1, "-15"), "crash": (0, "-11"), "left": (0, "")}
    check(lines(tmp_path, ENDS), expected)


SLEEPS = """
import os, subprocess, torch.distributed as dist
dist.init_process_group("gloo")
subprocess.run(["sleep", str(1 + dist.get_rank())])
dist.barrier()
"""


KILLED = """
source = "import time" + chr(10) + "while True: time.sleep(0.01)"
child = subprocess.Popen([sys.executable, "-c", source])
time.sleep(0.995)
child.kill()
took("killed", child.wait())
"""


def test_a_killed_process_is_waited_for_by_nobody(tmp_path: Path) -> None:
    # The child's sleep would end after the rank's program: with measured compute, time passes until the rank's end.
    script = write_script(tmp_path, TOOK + KILLED)
    done = command("run", "--ranks", 1, "--compute", "measured", "--out", tmp_path / "out", script, cwd=tmp_path)
    assert done.code == 0, done.err
    seconds, code = done.out.partition("killed = ")[2].split()[:2]
    assert code == "-9"
    assert 0.9 < float(seconds) < 60


def test_a_replay_takes_as_long(tmp_path: Path) -> None:
    done = run_script(tmp_path, SLEEPS)
    assert done.code == 0, done.err
    again = command("replay", tmp_path / "out", "--out", tmp_path / "again", cwd=tmp_path)
    makespans = [re.findall(r"makespan (\S+ \S+)", text) for text in (done.out + done.err, again.out + again.err)]
    # The longer of both sleeps.
    assert makespans[0] == makespans[1] == ["2.000 s"]


ALONE = """
source = '''
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
value = torch.ones(3)
dist.all_reduce(value)
dist.barrier()
print(value.tolist(), dist.get_world_size())
dist.destroy_process_group()
'''
took("group", subprocess.run([sys.executable, "-c", source], capture_output=True, text=True).stdout.strip())
source = source.replace("world_size=1", "world_size=2")
refused = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
took("refused", (refused.returncode, "a child process of a rank cannot communicate" in refused.stderr))
"""


def test_a_group_of_one_member_is_pytorchs_own(tmp_path: Path) -> None:
    found = lines(tmp_path, ALONE)
    assert {what: result for what, (_, result) in found.items()} == {
        "group": "[1.0, 1.0, 1.0] 1",
        "refused": "(1, True)",
    }


COMPUTES = """
took("start")
subprocess.run([sys.executable, "-c", "x = 0\\nfor _ in range(8_000_000): x += 1"])
took("computed")
"""


def test_what_a_process_computes_is_charged_where_compute_is_measured(tmp_path: Path) -> None:
    script = write_script(tmp_path, TOOK + COMPUTES)
    done = command("run", "--ranks", 1, "--compute", "measured", "--out", tmp_path / "measured", script, cwd=tmp_path)
    # The loop takes at least 100 ms on any current machine.
    assert 0.05 < float(done.out.partition("computed = ")[2].split()[0]) < 60
    assert float(lines(tmp_path, COMPUTES)["computed"][0]) == pytest.approx(0, abs=READS_S)


STUCK = """
import multiprocessing
ours, theirs = multiprocessing.Pipe()
process = multiprocessing.Process(target=theirs.recv)
process.start()
print("pids", os.getpid(), process.pid, flush=True)
ours.recv()
"""


def test_processes_that_wait_for_each_other_are_reported_with_their_lines(tmp_path: Path, start: Start) -> None:
    script = write_script(tmp_path, TOOK + STUCK)
    run = start("run", "--ranks", 1, "--compute", "none", "--out", tmp_path / "out", script)
    assert run.stdout is not None
    assert run.stderr is not None
    pids = [int(pid) for pid in run.stdout.readline().split()[-2:]]
    # On a busy machine the progress is printed first, with a line for each rank.
    warning = next(line for line in run.stderr if not line.startswith(("progress", " ")))
    assert "rank 0 has been blocked on external I/O for 10 s" in warning, warning
    assert re.search(rf"main thread at {script}:\d+, in connection.recv; process {pids[1]}: main thread at", warning), (
        warning
    )
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=20)
    assert run.returncode == 130
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


NAMES = """
import ctypes, subprocess, sys, threading, time
libc = ctypes.CDLL(None)
PR_SET_NAME = 15
def work():
    libc.prctl(PR_SET_NAME, b"loader", 0, 0, 0)
    time.sleep(1)
thread = threading.Thread(target=work)
thread.start()
thread.join()
named = "import ctypes, time; time.sleep(1); ctypes.CDLL(None).prctl(15, b'server', 0, 0, 0); time.sleep(1)"
subprocess.run([sys.executable, "-c", named], check=True)
subprocess.run(["sleep", "1"], check=True)
"""
NAMED = {"loader (task 1)", "server (task 2)", "sleep (task 3)"}


def test_threads_and_processes_have_their_names_in_the_trace_of_a_run_and_of_its_replay(tmp_path: Path) -> None:
    done = run_script(tmp_path, NAMES, ranks=1)
    assert done.code == 0, done.out + done.err
    replayed = command("replay", tmp_path / "out", "--out", tmp_path / "again", cwd=tmp_path)
    assert replayed.code == 0, replayed.err
    for out in ("out", "again"):
        events = json.loads((tmp_path / out / "trace.json").read_text())["traceEvents"]
        # A thread that was named late has two names: the last one counts.
        rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        assert {name.partition(") ")[2] for name in rows.values() if "task" in name} == NAMED


def test_what_is_over_is_told_to_the_process_that_communicates_and_not_to_its_children(tmp_path: Path) -> None:
    """Two workers read the time just after the arena block of a collective's tensor was freed."""
    source = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
dist.init_process_group("gloo")
total = torch.ones(100_000)
dist.all_reduce(total)
rows = sum(len(batch) for batch, in DataLoader(TensorDataset(torch.randn(64, 512)), batch_size=16, num_workers=2))
print("rows", rows, float(total[0]))
"""
    # With Gloo, and measured compute.
    done = command("run", "--ranks", 2, "--out", "out", write_script(tmp_path, source), cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.out.count("rows 64 2.0") == 2, done.out
