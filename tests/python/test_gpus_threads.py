"""Threads of a program that use its simulated GPU concurrently: one thread waits for work that another one has
launched."""

import json
from pathlib import Path

import pytest
import torch
from harness import ONE_GPU, uniference, write_script

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA")


HEAD = """
import json, threading, time
from concurrent.futures import ThreadPoolExecutor
import torch

torch.zeros(1, device="cuda")
torch.cuda.synchronize()
took = {}

class timed:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.begun = time.perf_counter()

    def __exit__(self, *_):
        took[self.name] = 1e3 * (time.perf_counter() - self.begun)

matrix = torch.empty(8192, 8192, dtype=torch.bfloat16, device="cuda")
product = torch.empty_like(matrix)

def work():
    # Some milliseconds.
    torch.mm(matrix, matrix, out=product)

with timed("work"):
    work()
    torch.cuda.synchronize()
"""


def milliseconds(directory: Path, body: str) -> dict[str, float]:
    """Durations that the script prints, by name; `work` is the duration of each launch on the GPU."""
    (directory / "cluster.toml").write_text(ONE_GPU)
    script = write_script(directory, HEAD + body + "\njson.dump(took, open('took.json', 'w'))\n")
    options = ("--cluster", "cluster.toml", "--cuda", "--compute", "model", "--values", "small")
    done = uniference("run", *options, script, cwd=directory)
    assert done.code == 0, done.err + done.out
    took: dict[str, float] = json.loads((directory / "took.json").read_text())
    assert took["work"] > 1
    return took


# Ways in which the program's thread waits for another one, whose answer depends only on the GPU.
WAYS = {
    "an event": "event = torch.cuda.Event(); event.record(); pool.submit(event.synchronize).result()",
    "an event that is asked for": "event = torch.cuda.Event(); event.record(); pool.submit(poll, event).result()",
    "a stream": "pool.submit(torch.cuda.current_stream().synchronize).result()",
    "the device": "thread = threading.Thread(target=torch.cuda.synchronize); thread.start(); thread.join()",
    "a copy": "pool.submit(torch.ones(1, device='cuda').cpu).result()",
    "an event, by a pipe": "event.record(); os.write(asks[1], b'x'); os.read(answers[0], 1)",
    "an event, by a socket": "event.record(); ours.send(b'x'); ours.recv(1)",
    "an event, by a process": "event.record(); os.write(asks[1], b'x'); os.wait()",
}
# Threads that wait for the event, each with another way of request and answer.
HELPERS = """
import os, socket

event = torch.cuda.Event()
asks, answers = os.pipe(), os.pipe()
ours, theirs = socket.socketpair()

def serves(receives, sends):
    torch.cuda.current_device()
    while receives():
        event.synchronize()
        sends(b"x")

threading.Thread(target=serves, args=(lambda: os.read(asks[0], 1), lambda x: os.write(answers[1], x)), daemon=True).start()
if {reads_in_children}:
    # Each ends when one answer has come.
    for _ in range(3):
        if os.fork() == 0:
            os.read(answers[0], 1)
            os._exit(0)

threading.Thread(target=serves, args=(lambda: theirs.recv(1), theirs.send), daemon=True).start()
"""


@pytest.mark.parametrize("way", WAYS)
def test_a_thread_waits_for_what_another_one_has_handed_to_the_gpu(way: str, tmp_path: Path) -> None:
    body = f"""
def poll(event):
    while not event.query():
        time.sleep(1e-4)

pool = ThreadPoolExecutor(1)
pool.submit(torch.cuda.current_device).result()
{HELPERS.format(reads_in_children="os.wait" in WAYS[way])}
for _ in range(3):
    with timed("waited"):
        work()
        {WAYS[way]}
    with timed("rest"):
        torch.cuda.synchronize()
"""
    took = milliseconds(tmp_path, body)
    assert took["work"] - 0.001 < took["waited"] < took["work"] + 0.3, took
    assert took["rest"] < 0.1, took


def test_what_a_thread_has_handed_over_before_it_ended_is_waited_for(tmp_path: Path) -> None:
    body = """
with timed("waited"):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
"""
    took = milliseconds(tmp_path, body)
    assert took["work"] - 0.001 < took["waited"] < took["work"] + 0.3, took


def test_launches_of_a_thread_take_its_own_time_while_another_one_asks(tmp_path: Path) -> None:
    """The program launches 100 kernels, each with some microseconds of host time, while another thread queries the
    device."""
    body = """
stop = threading.Event()

def asks():
    event, stream = torch.cuda.Event(), torch.cuda.Stream()
    while not stop.is_set():
        event.record(stream)
        begun = time.perf_counter()
        event.synchronize()
        took["asks"] = max(took.get("asks", 0), 1e3 * (time.perf_counter() - begun))
        time.sleep(1e-5)

def launches(name):
    x = torch.zeros(16, device="cuda")
    torch.cuda.synchronize()
    with timed(name):
        for _ in range(100):
            x.add_(1)
    torch.cuda.synchronize()

launches("alone")
thread = threading.Thread(target=asks)
thread.start()
time.sleep(1e-3)
launches("beside it")
stop.set()
thread.join()
"""
    took = milliseconds(tmp_path, body)
    assert took["alone"] > 0.3, took
    assert took["alone"] <= took["beside it"] < 1.1 * took["alone"], took
    # The thread's event is on a stream of its own, which is idle.
    assert took["asks"] < 0.1, took
