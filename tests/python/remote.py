"""Runs with workers, for the tests: a folder with the files that they need, and the commands that were started in
it."""

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness import TIMEOUT_S, write_script

CLUSTER = """[[device]]
name = "board"
at = "worker-a"
count = 2
[[device]]
name = "here"
[network]
preset = "switch"
bandwidth = "1 Gbps"
latency = "100 us"
"""
MODEL = 'model = "h100-sxm"\n'

# Program with sums that the driver reduces itself, and sums that one rank reduces with torch's kernels (bfloat16, MAX)
# and with Uniference's; messages in parts; objects; the store.
TALK = """import sys, threading, torch, torch.distributed as dist
from scale import SCALE
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()
store.set(f"k{rank}", "v" * 100)
store.wait([f"k{(rank + 1) % size}"])
for dtype in (torch.float32, torch.bfloat16, torch.int64):
    for count in (3, 5_000, 700_000):
        x = (torch.arange(count) % 7 + rank * SCALE).to(dtype)
        dist.all_reduce(x)
        want = sum((torch.arange(count) % 7 + r * SCALE).to(torch.float64) for r in range(size))
        assert torch.equal(x.to(torch.float64), want), (dtype, count)
x = torch.full((600_000,), float(rank))
dist.all_reduce(x, op=dist.ReduceOp.MAX)
assert (x == size - 1).all()
out = [torch.empty(50_000) for _ in range(size)]
dist.all_gather(out, torch.full((50_000,), float(rank)))
assert all((o == i).all() for i, o in enumerate(out))
peers = {0: 2, 2: 0}
if rank == 0:
    for work in [dist.isend(torch.full((400_000,), 5.0 + i), 2, tag=i) for i in range(3)]:
        work.wait()
elif rank == 2:
    for i in range(3):
        t = torch.empty(400_000)
        dist.recv(t, 0, tag=i)
        assert (t == 5.0 + i).all()
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert [o["rank"] for o in objects] == list(range(size))
dist.barrier()
print(f"rank {rank} has read {open(sys.argv[1]).read()}", file=sys.stderr if rank == 1 else sys.stdout)
"""
THREAD = """
group = dist.new_group(list(range(size)))
def other():
    y = torch.ones(10)
    dist.all_reduce(y, group=group)
    assert (y == size).all()
thread = threading.Thread(target=other)
thread.start()
thread.join()
"""
START = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
FOREVER = START + "print('goes', flush=True)\nwhile True:\n    dist.all_reduce(torch.ones(100_000))\n"


@dataclass
class Commands:
    """A folder with a program, a token and a cluster, and the commands started in it."""

    folder: Path
    started: list["subprocess.Popen[str]"] = field(default_factory=list)
    port: int = 0
    address: str = "127.0.0.1"
    here: Sequence[str] = ()
    """Words before the driver's command."""
    there: Sequence[str] = ()
    """Words before a worker's command."""

    def start(self, *words: object) -> "subprocess.Popen[str]":
        """Starts the command in a new folder, so that it cannot depend on other files."""
        inside = self.there if words[0] == "worker" else self.here
        command = [*inside, sys.executable, "-m", "uniference", *map(str, words)]
        cwd = self.folder / ("elsewhere" if words[0] == "worker" else ".")
        # Files and not pipes, because pipes would not be read during the run.
        said, printed = (self.folder / f"{name}-{len(self.started)}.txt" for name in ("said", "printed"))
        with said.open("w") as err, printed.open("w") as out:
            process = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=err, text=True)
        process.said, process.printed = said, printed  # type: ignore[attr-defined]
        timer = threading.Timer(TIMEOUT_S, process.kill)
        timer.daemon = True
        timer.start()
        self.started.append(process)
        return process

    def with_models(self, board: str = "") -> None:
        """Gives all devices a model, and `board` further keys."""
        for name in ("cluster.toml", "local.toml"):
            path = self.folder / name
            text = re.sub('(name = "(board|here)"\n)', "\\1" + MODEL, path.read_text())
            path.write_text(text.replace('name = "board"\n', 'name = "board"\n' + board))

    def run(
        self, *options: object, script: str = "script.py", cluster: str = "cluster.toml"
    ) -> "subprocess.Popen[str]":
        """Starts a run that listens for workers."""
        listens = (
            ("--listen", f"{self.address}:{self.port}", "--token-file", "token") if cluster == "cluster.toml" else ()
        )
        folder = self.folder / f"out-{len(self.started)}"
        words = ("run", "--cluster", cluster, *listens, "--out", folder, *options, script, self.folder / "notes.txt")
        process = self.start(*words)
        process.out = folder  # type: ignore[attr-defined]
        return process

    def worker(self, *options: object, name: str = "worker-a", token: str = "token") -> "subprocess.Popen[str]":
        """Starts a worker."""
        join = f"{self.address}:{self.port}"
        return self.start("worker", "--name", name, "--join", join, "--token-file", self.folder / token, *options)


def said(process: "subprocess.Popen[str]") -> str:
    """The process's standard error so far."""
    return str(process.said.read_text())  # type: ignore[attr-defined]


def until(holds: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    """Waits until the condition holds; fails with the messages of `process` if it does not."""
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, said(process)
        time.sleep(0.02)


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """The process's exit code, and its standard error."""
    process.wait(TIMEOUT_S)
    return process.returncode, said(process)


def digest(process: "subprocess.Popen[str]") -> str:
    """The digest of the run's report."""
    report = json.loads((process.out / "report.json").read_text())  # type: ignore[attr-defined]
    return str(report["digest"])


def descendants(pid: int) -> set[int]:
    """All descendants of a process."""
    children: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            children |= {child} | descendants(child)
    return children


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "token").write_text("a token that only the tests know\n")
    (tmp_path / "other").write_text("a token that nobody knows at all\n")
    (tmp_path / "notes.txt").write_text("a note")
    (tmp_path / "scale.py").write_text("SCALE = 3\n")
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    (tmp_path / "local.toml").write_text(CLUSTER.replace('at = "worker-a"\n', ""))
    write_script(tmp_path, TALK)
    write_script(tmp_path, FOREVER, "forever.py")
    commands = Commands(tmp_path, port=port)
    yield commands
    for process in commands.started:
        process.kill()
        process.wait()
