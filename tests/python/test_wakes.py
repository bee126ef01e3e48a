"""Threads and processes that a thread wakes after modelled compute continue only at the virtual time at which that compute has ended."""

import json
from pathlib import Path

from harness import uniference, write_script

CLUSTER = """
backend = "gloo"
[[device]]
name = "gpu"
model = "h100-sxm"
count = 1
[network]
preset = "switch"
bandwidth = "100 Gbps"
latency = "2 us"
"""

HEAD = """
import ctypes, json, os, queue, socket, sys, threading, time
import torch

matrix = torch.empty(8192, 8192, dtype=torch.bfloat16)
took = {}

def work():
    # Some milliseconds, of which the machine needs none.
    matrix @ matrix

def now():
    return 1e3 * time.perf_counter()
"""

# Pairs of a blocking call and the call that ends it, by name. Each waiting thread records the time at which it
# continues, counted from the time at which the other thread begins to compute.
THREADS = """
event, lock, condition, semaphore = threading.Event(), threading.Lock(), threading.Condition(), threading.Semaphore(0)
lock.acquire()
simple, full, bounded = queue.SimpleQueue(), queue.Queue(), queue.Queue(1)
bounded.put(0)
reader, writer = os.pipe()
ending, ends = os.pipe()
left, right = socket.socketpair()
shut, shuts = socket.socketpair()
counter = os.eventfd(0)
library = ctypes.CDLL(None)
mutex, variable, word = (ctypes.create_string_buffer(64) for _ in range(3))

def wait_for_condition():
    with condition:
        condition.wait()

def notify():
    with condition:
        condition.notify_all()

def wait_in_c():
    library.pthread_mutex_lock(mutex)
    library.pthread_cond_wait(variable, mutex)
    library.pthread_mutex_unlock(mutex)

WAYS = {
    "event": (event.wait, event.set),
    "event with a time-out": (lambda: event.wait(10), event.set),
    "lock": (lock.acquire, lock.release),
    "condition": (wait_for_condition, notify),
    "semaphore": (semaphore.acquire, semaphore.release),
    "simple queue": (simple.get, lambda: simple.put(1)),
    "queue": (full.get, lambda: full.put(1)),
    "queue that is full": (lambda: bounded.put(1), bounded.get),
    "pipe": (lambda: os.read(reader, 1), lambda: os.write(writer, b"1")),
    "end of a pipe": (lambda: os.read(ending, 1), lambda: os.close(ends)),
    "socket": (lambda: left.recv(1), lambda: right.send(b"1")),
    "end of a socket": (lambda: shut.recv(1), lambda: shuts.shutdown(socket.SHUT_RDWR)),
    "eventfd": (lambda: os.eventfd_read(counter), lambda: os.eventfd_write(counter, 1)),
    "condition variable": (wait_in_c, lambda: library.pthread_cond_signal(variable)),
    # 202 is the futex's number on x86-64, 98 elsewhere.
    "futex": (lambda: library.syscall(FUTEX, word, 0, 0, 0, 0, 0), lambda: library.syscall(FUTEX, word, 1, 1, 0, 0, 0)),
}
FUTEX = 202 if os.uname().machine == "x86_64" else 98

begun = now()
work()
took["work"] = now() - begun
for name, (wait, wake) in WAYS.items():
    event.clear()
    woken = []
    def waiting():
        wait()
        woken.append(now())
    thread = threading.Thread(target=waiting)
    thread.start()
    time.sleep(0.001)
    begun = now()
    work()
    wake()
    thread.join()
    took[name] = woken[0] - begun

# The end of a thread, and its beginning.
begun = now()
thread = threading.Thread(target=work)
thread.start()
thread.join()
took["end of a thread"] = now() - begun
begun = now()
work()
thread = threading.Thread(target=lambda: took.update({"beginning of a thread": now() - begun}))
thread.start()
thread.join()

# A thread that sleeps while the main thread computes continues when its sleep ends, although the main thread acquires a lock right
# after its operators.
passed = []
def sleeps():
    time.sleep(0.0005)
    passed.append(now())
thread = threading.Thread(target=sleeps)
thread.start()
begun = now()
work()
with threading.Lock():
    pass
thread.join()
took["sleep"] = passed[0] - begun
json.dump(took, open("took.json", "w"))
"""

PROCESSES = """
import multiprocessing

def child(ours):
    ours.recv()
    work()
    ours.send(1)
    ours.recv()
    work()

if __name__ == "__main__":
    begun = now()
    work()
    took["work"] = now() - begun
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs,))
    process.start()
    ours.send(1)
    begun = now()
    ours.recv()
    took["message"] = now() - begun
    begun = now()
    ours.send(1)
    process.join()
    took["end"] = now() - begun
    json.dump(took, open("took.json", "w"))
"""


def run(directory: Path, body: str) -> dict[str, float]:
    (directory / "cluster.toml").write_text(CLUSTER)
    script = write_script(directory, HEAD + body)
    options = ("--cluster", "cluster.toml", "--compute", "model", "--values", "small")
    done = uniference("run", *options, script, cwd=directory)
    assert done.code == 0, done.err + done.out
    took: dict[str, float] = json.loads((directory / "took.json").read_text())
    return took


def test_a_thread_goes_on_when_the_compute_before_its_wake_is_over(tmp_path: Path) -> None:
    took = run(tmp_path, THREADS)
    work = took.pop("work")
    assert work > 1
    # The other thread continues after its sleep of half a millisecond.
    assert 0.3 < took.pop("sleep") < 0.6
    assert len(took) == 17
    # Each thread continues when the compute has ended, plus some microseconds for clock reads.
    late = {name: time for name, time in took.items() if not work - 0.001 < time < work + 0.1}
    assert not late, (work, late)


def test_a_process_is_heard_of_when_its_compute_is_over(tmp_path: Path) -> None:
    took = run(tmp_path, PROCESSES)
    work = took["work"]
    assert work > 1
    assert work - 0.001 < took["message"] < work + 0.2, took
    assert work - 0.001 < took["end"] < work + 0.2, took
