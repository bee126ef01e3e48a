"""One program with the GPUs of all ranks: a process that it starts belongs to the rank whose GPU it uses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Done, uniference, write_script

simulates_gpus = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

SERVER = """
backend = "nccl"
[[device]]
name = "gpu"
model = "h100-sxm"
count = 2
host = "server"
[network]
local = "nvlink4"
"""

# A worker for each GPU. They meet through a file, because PyTorch retries connections at random times.
WORKERS = """
import multiprocessing, os, sys, time
import torch
import torch.distributed as dist

def worker(rank, size, store, queue):
    torch.cuda.set_device(rank)
    dist.init_process_group("cuda:nccl,cpu:gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    a = torch.ones(2048, 2048, device="cuda", dtype=torch.bfloat16)
    x = torch.tensor([rank + 1.0, 2.0], device="cuda")
    for _ in range(rank + 1):
        a @ a
    torch.cuda.synchronize()
    began = time.perf_counter()
    dist.all_reduce(x)
    everybody = torch.empty(size, 2, device="cuda")
    dist.all_gather_into_tensor(everybody, x * (rank + 1))
    if rank == 0:
        dist.send(torch.arange(3.0, device="cuda"), 1)
    else:
        got = torch.empty(3, device="cuda")
        dist.recv(got, 0)
        x += got.sum()
    torch.cuda.synchronize()
    on_host = torch.ones(2)
    dist.all_reduce(on_host)
    queue.put([rank, (x + on_host.sum().item() - 4).tolist(), everybody.tolist(), torch.cuda.current_device(), time.perf_counter() > began])
    dist.destroy_process_group()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    store = os.path.abspath("store")
    workers = [context.Process(target=worker, args=(rank, 2, store, queue)) for rank in range(2)]
    [each.start() for each in workers]
    said = sorted(queue.get() for _ in workers)
    [each.join() for each in workers]
    print("SAID", said, torch.cuda.device_count(), os.environ.get("RANK"))
"""


def ran(tmp_path: Path, program: str, *options: str, cluster: str = SERVER, code: int = 0) -> Done:
    tmp_path.joinpath("cluster.toml").write_text(cluster)
    script = write_script(tmp_path, program)
    words = ("run", "--cluster", "cluster.toml", "--out", "out", "--compute", "model", *options, script)
    done = uniference(*words, cwd=tmp_path)
    assert done.code == code, done.out + done.err
    return done


def report(folder: Path) -> Any:
    return json.loads(folder.joinpath("report.json").read_text())


@simulates_gpus
def test_workers_of_one_program_are_the_ranks_of_their_gpus(tmp_path: Path) -> None:
    done = ran(tmp_path, WORKERS, "--cuda", "--one-program")
    # 1 + 2 = 3; all-gathered times each rank's number plus 1; 0 + 1 + 2 = 3 was received.
    everybody = [[3.0, 4.0], [6.0, 8.0]]
    said = [[0, [3.0, 4.0], everybody, 0, True], [1, [6.0, 7.0], everybody, 1, True]]
    assert f"SAID {said} 2 None" in done.out, done.out + done.err
    of = report(tmp_path / "out")
    # Each GEMM of 2,048 x 2,048 elements counts for the rank of its GPU.
    kernels = {row["rank"]: row["kernels_s"] for row in of["streams"] if row.get("stream") is None}
    assert 1.5 < kernels[1] / kernels[0] < 2.5, kernels
    operations = {row["operation"]: row["count"] for row in of["operations"]}
    assert operations == {"all_reduce": 2, "all_gather": 2, "send": 1, "recv": 1}
    # Reductions are on the stream of the kernels, messages on a stream of their own.
    busy = {row["rank"]: [] for row in of["streams"]}
    for row in of["streams"]:
        if row["stream"] is not None:
            busy[row["rank"]].append((row["kernels_s"] > 0, row["communication_s"] > 0))
    assert busy == {0: [(True, True), (False, True)], 1: [(True, True), (False, True)]}, of["streams"]
    context = {row["rank"] for row in of["memory"] if row["kind"] == "context"}
    assert context == {0, 1}
    again = uniference("replay", "out", "--out", "again", cwd=tmp_path)
    assert again.code == 0, again.err
    assert report(tmp_path / "again")["digest"] == of["digest"]


# Programs in separate processes, and the main program itself.
APART = """
import subprocess, sys
import torch

if sys.argv[1:]:
    torch.cuda.set_device(int(sys.argv[1]))
    x = torch.ones(1000, device="cuda")
    print("SUM", sys.argv[1], x.sum().item())
else:
    for gpu in range(2):
        subprocess.run([sys.executable, __file__, str(gpu)], check=True)
"""


@simulates_gpus
def test_processes_that_do_not_communicate_are_of_their_gpus_ranks_as_well(tmp_path: Path) -> None:
    done = ran(tmp_path, APART, "--cuda", "--one-program")
    assert sorted(line for line in done.out.splitlines() if "SUM" in line) == ["SUM 0 1000.0", "SUM 1 1000.0"], done.err
    kernels = [row["rank"] for row in report(tmp_path / "out")["streams"] if row.get("stream") is None]
    assert kernels == [0, 1]


BOTH = """
import torch
for gpu in range(2):
    print("SUM", torch.ones(1000, device=f"cuda:{gpu}").sum().item())
"""


@simulates_gpus
def test_a_process_with_two_gpus_is_warned_of(tmp_path: Path) -> None:
    done = ran(tmp_path, BOTH, "--cuda", "--one-program")
    assert "a process uses the GPUs 0 and 1: its work counts as that of GPU 0" in done.err, done.err


@pytest.mark.parametrize(
    ("cluster", "options", "message"),
    [
        (
            SERVER.replace('backend = "nccl"', ""),
            ("--no-cuda",),
            "--one-program uses the GPUs of all ranks, and there are none",
        ),
        (
            SERVER + '[[crash]]\nrank = 1\nat = "1 s"\n',
            ("--cuda",),
            "--one-program is not supported with ranks that crash",
        ),
        (SERVER, ("--cuda", "--debug-rank", "1"), "--debug-rank is a rank without a program of its own"),
    ],
)
def test_what_one_program_cannot_have_is_refused(
    tmp_path: Path, cluster: str, options: tuple[str, ...], message: str
) -> None:
    if "--cuda" in options and torch.version.cuda is None:
        pytest.skip("this torch was built without CUDA")
    done = ran(tmp_path, "print()", *options, "--one-program", cluster=cluster, code=2)
    assert message in done.err, done.err
    assert "hint:" in done.err


# The main thread names lines by numbers that the thread's first record carries, and that thread waits until its process
# has moved to another rank.
NAMES = """
import multiprocessing, threading, time
import torch

def worker():
    torch.cuda.set_device(1)
    x = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    x = x + 1
    x = x * 2
    thread = threading.Thread(target=time.sleep, args=(0.01,))
    thread.start()
    ended = time.monotonic() + 0.2
    while time.monotonic() < ended:
        pass
    y = x.sum() - 4
    time.sleep(0.02)
    print("SUM", y.item())

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=worker)
    process.start()
    process.join()
"""


@simulates_gpus
def test_what_a_thread_names_is_known_before_it_is_one_of_its_processs_rank(tmp_path: Path) -> None:
    done = ran(tmp_path, NAMES, "--cuda", "--one-program")
    assert "SUM 3996.0" in done.out, done.out + done.err
