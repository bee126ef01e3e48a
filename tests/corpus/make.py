"""Makes the corpus: program records, and the results of replaying them with the version of Uniference that wrote them.

Usage: make.py FOLDER [--only NAME...]. Runs `python -m uniference` of the interpreter that runs this script, so the
corpus is of the importable version. The files in this folder, of records of version 1, were made before records had a
schema of their own; they are kept and never made again: `crates/formats/tests/corpus.rs` checks with them that every
figure of an old record's replay is unchanged, bit for bit.

Each case is `NAME.record.gz` and `NAME.json`: for every cluster on which the record was replayed the cluster (resolved,
as a cluster file), the seed, makespan, digest, and every figure of every rank and operation in whole picoseconds or
bytes. A record without figures belongs to a run that was halted.
"""

import argparse
import gzip
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TESTS = ROOT / "tests" / "python"
BODIES = TESTS / "conformance" / "program.py"
sys.path.insert(0, str(TESTS))

import test_chakra  # noqa: E402 - their folder is on the path only now
import test_changes  # noqa: E402
import test_crash  # noqa: E402
import test_steps  # noqa: E402
import test_time  # noqa: E402

# Larger records are left out, because all replays together must end within seconds.
LARGEST_RECORD = 1 << 21


@dataclass(frozen=True)
class Case:
    """A program, its run, and other clusters on which its record is replayed."""

    name: str
    program: Path | str
    """A script's path, or its text."""
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ("--ranks", "2")
    cluster: str = ""
    """Text of a cluster file, in place of `--ranks`."""
    elsewhere: tuple[str, ...] = ("slow", "nccl")
    """Names in `OTHERS`."""
    more: dict[str, str] = field(default_factory=dict)
    """Other cluster files to replay on, by name."""


# Replays of any record: options without the number of ranks.
OTHERS = {
    "slow": ("--bandwidth", "90 Mbps", "--latency", "1.3 ms", "--slowdown", "2.5", "--backend", "mpi"),
    "nccl": ("--bandwidth", "200 Gbps", "--latency", "3 us", "--backend", "nccl"),
    "ideal": ("--bandwidth", "1 Gbps", "--latency", "50 us", "--backend", "ideal"),
    "gloo": ("--bandwidth", "1 Gbps", "--latency", "200 us", "--backend", "gloo"),
    # Groups are joined in the same order as in the run, on which records of version 1 depend.
    "near": ("--bandwidth", "11 Gbps", "--latency", "9 us", "--backend", "gloo"),
}

JITTER = '[[network.change]]\njitter = { distribution = "exponential", mean = "50 us" }\n'
OUTAGE = '[[network.change]]\nlink = "a.1"\noutages = [{ from = "1 ms", to = "4 ms" }]\n'
BACKGROUND = (
    '[[network.change]]\nlink = "a.0"\nperiod = "20 ms"\n'
    'profile = [{ at = "0 s", bandwidth = "100 Mbps" }, { at = "7 ms", bandwidth = "900 Mbps", latency = "2 ms" }]\n'
)


def devices(count: int, network: str, backend: str = "gloo", more: str = "") -> str:
    """A cluster file with equal boards."""
    return f'backend = "{backend}"\n[[device]]\nname = "a"\ncount = {count}\n{more}[network]\n{network}'


SERVERS = (
    '[[device]]\nname = "g"\ncount = 4\nhost = "server"\nper_host = 2\n[network]\nbandwidth = "100 Gbps"\n'
    'latency = "2 us"\nlocal = "nvlink4"\n'
)
RAIL = 'preset = "rail"\nper_server = 2\nfabric = "nvlink4"\nbandwidth = "100 Gbps"\nlatency = "2 us"\n'

PAIRS = """
import torch, torch.distributed as dist
from torch.profiler import record_function
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
halves = [dist.new_group(list(range(start, size, 2))) for start in range(2)]
for step in range(3):
    with record_function(f"step {step}"):
        with record_function("half"):
            dist.all_reduce(torch.ones(30_000 * (step + 1)), group=halves[rank % 2])
        dist.all_gather([torch.empty(1000) for _ in range(size)], torch.ones(1000))
        sent = [(rank + 1) * (member + 2) * 10 for member in range(size)]
        received = [(member + 1) * (rank + 2) * 10 for member in range(size)]
        dist.all_to_all_single(torch.empty(sum(received)), torch.ones(sum(sent)), received, sent)
        dist.reduce_scatter(torch.empty(100), [torch.ones(100) for _ in range(size)])
dist.destroy_process_group()
"""

ANY_SOURCE = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
if rank == 0:
    for _ in range(3 * (size - 1)):
        dist.recv(torch.empty(500))
else:
    for turn in range(3):
        time.sleep(0.001 * ((rank * 7 + turn * 5) % 4))
        dist.send(torch.ones(500), 0)
dist.barrier()
"""

STORE = """
import datetime, os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()
store.set(f"mine {rank}", b"x" * (rank + 1))
store.add("sum", rank + 1)
store.append("log", f"{rank};")
store.compare_set("first", "", str(rank))
time.sleep(0.01 * rank)
for other in range(size):
    store.get(f"mine {other}")
store.wait(["sum", "log"])
store.check(["sum", "nothing"])
dist.barrier()
store.delete_key(f"mine {rank}") if rank else None
store.num_keys()
store.queue_push("work", f"item {rank}")
if rank == 0:
    for _ in range(size):
        store.queue_pop("work")
try:
    store.wait(["never"], datetime.timedelta(milliseconds=5))
except dist.DistStoreError:
    pass
dist.barrier()
"""

THREADS = """
import queue, threading, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
groups = [dist.new_group(list(range(size))) for _ in range(2)]
items, event = queue.Queue(), threading.Event()
def reduce(group, count):
    for turn in range(count):
        dist.all_reduce(torch.ones(2000 + turn), group=group)
        items.put(turn)
    event.wait(1)
threads = [threading.Thread(target=reduce, args=(group, 4)) for group in groups]
for thread in threads: thread.start()
for _ in range(8): items.get(timeout=5)
time.sleep(0.002 * (rank + 1))
event.set()
for thread in threads: thread.join()
try: items.get(timeout=0.25)
except queue.Empty: pass
dist.barrier()
"""

STUCK = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
time.sleep(0.25)
if dist.get_rank() == 0:
    dist.recv(torch.ones(1), 1)
else:
    dist.recv(torch.ones(1), 0)
"""

MISMATCH = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4 + dist.get_rank()))
"""

NEVER_WAITED = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for turn in range(20):
    dist.all_reduce(torch.ones(100 + turn), async_op=True)
    if dist.get_rank() == 0:
        dist.isend(torch.ones(10), 1)
    elif dist.get_rank() == 1:
        dist.irecv(torch.ones(10), 0)
"""

NONE = ("--compute", "none")


def cases() -> Iterable[Case]:
    """All cases."""
    yield Case("ring", EXAMPLES / "ring.py", options=("--ranks", "4"), elsewhere=("slow", "nccl", "ideal"))
    yield Case("ddp", EXAMPLES / "ddp.py", options=("--ranks", "2", "--slowdown", "1,2"), elsewhere=("slow", "nccl"))
    yield Case(
        "ddp-nccl",
        EXAMPLES / "ddp.py",
        options=("--ranks", "4", "--backend", "gloo", *NONE),
        elsewhere=("nccl", "ideal"),
    )
    yield Case(
        "generate",
        EXAMPLES / "generate" / "generate.py",
        arguments=("--tokens", "4"),
        options=("--cluster", str(EXAMPLES / "generate" / "slow-network.toml")),
        more={"boards": (EXAMPLES / "generate" / "three-boards.toml").read_text()},
    )
    steps = ("--cluster", str(EXAMPLES / "steps" / "cluster.toml"), *NONE)
    yield Case("steps", test_steps.PROGRAM, options=steps, elsewhere=("slow",))
    for part, sizes in (("calls", (2, 3, 4)), ("arguments", (2, 3)), ("layers", (2, 3, 4))):
        for size in sizes:
            options = ("--ranks", str(size), "--backend", "gloo", *NONE)
            yield Case(
                f"{part}-{size}", BODIES, arguments=(part, "OUT"), options=options, elsewhere=("near", "slow", "ideal")
            )
    for name in ("CLOCKS", "ALL_REDUCE", "OVERLAP", "DDP", "POLLS", "PRODUCER", "SLEEPERS", "ENDED_EARLY"):
        yield Case(f"time-{name.lower().replace('_', '-')}", getattr(test_time, name), options=("--ranks", "2", *NONE))
    yield Case("time-outs", test_time.TIME_OUTS + test_time.BESIDE_ANOTHER, options=("--ranks", "1", *NONE))
    yield Case("threads", THREADS, options=("--ranks", "3", *NONE), elsewhere=("slow", "nccl", "ideal"))
    yield Case("threads-measured", THREADS, options=("--ranks", "2", "--slowdown", "3,1"), elsewhere=("near", "slow"))
    crash = 'bandwidth = "1 Gbps"\nlatency = "1 ms"\n'
    recovery = devices(4, crash) + test_crash.CRASH
    yield Case(
        "crash-recovery",
        test_crash.RECOVERY,
        options=NONE,
        cluster=recovery,
        more={"later": recovery.replace("5 s", "7 s")},
    )
    alone = devices(2, crash) + '[[crash]]\ndevice = "a.1"\nat = "1 s"\n'
    yield Case(
        "crash-under-way",
        test_crash.ASYNC,
        options=NONE,
        cluster=alone,
        elsewhere=(),
        more={"later": alone.replace("1 s", "1.5 s")},
    )
    yield Case("changes", test_changes.RING, options=("--seed", "5", *NONE), cluster=test_changes.CLUSTER)
    traced = ("--ranks", "3", "--slowdown", "1,2.5,1", "--backend", "gloo")
    yield Case("mixed", test_chakra.PROGRAM, options=traced, elsewhere=("slow", "nccl", "ideal"))
    yield Case("stuck", STUCK, options=("--ranks", "2", *NONE))
    yield Case("mismatch", MISMATCH, options=("--ranks", "2", *NONE))
    yield Case("store", STORE, options=("--ranks", "3", *NONE))
    yield Case("any-source", ANY_SOURCE, options=("--ranks", "4", *NONE), elsewhere=("slow", "ideal"))
    yield Case("never-waited", NEVER_WAITED, options=("--ranks", "3", *NONE), elsewhere=("slow", "nccl", "ideal"))
    networks = {
        "star": devices(4, 'preset = "star"\nbandwidth = "1 Gbps"\nlatency = "1 ms"\nqueue = "64 KiB"\n'),
        "ring": devices(4, 'preset = "ring"\nbandwidth = "5 Gbps"\nlatency = "9 us"\n', "ideal"),
        "full": devices(4, 'preset = "fully_connected"\nbandwidth = "5 Gbps"\nlatency = "9 us"\n', "mpi"),
        "torus": devices(4, 'preset = "torus"\ndims = [2, 2]\nbandwidth = "8 Gbps"\nlatency = "1 us"\n', "nccl"),
        "servers": 'backend = "nccl"\n' + SERVERS,
        "servers-gloo": 'backend = "gloo"\n' + SERVERS,
        "rail": devices(4, RAIL, "nccl"),
        "jitter": devices(4, 'bandwidth = "1 Gbps"\nlatency = "100 us"\n') + JITTER,
        "outage": devices(4, 'bandwidth = "1 Gbps"\nlatency = "100 us"\n') + OUTAGE,
        "profile": devices(4, 'bandwidth = "1 Gbps"\nlatency = "100 us"\n') + BACKGROUND,
        "egress": devices(4, 'bandwidth = { egress = "10 Mbps", ingress = "50 Mbps" }\nlatency = "5 ms"\n'),
        "straggler": devices(4, 'bandwidth = "1 Gbps"\n')
        + '[[straggler]]\ndevice = "a.1"\nfactor = 5.0\nfrom = "0 s"\nto = "20 ms"\n',
    }
    pairs = ("--ranks", "4", "--backend", "gloo", *NONE)
    yield Case("pairs", PAIRS, options=pairs, elsewhere=("slow", "nccl", "ideal", "gloo"), more=networks)
    yield Case(
        "pairs-measured",
        PAIRS,
        options=("--ranks", "4"),
        elsewhere=("slow",),
        more={"straggler": networks["straggler"]},
    )


def main() -> None:
    """Makes the selected cases."""
    parser = argparse.ArgumentParser(description="Makes the corpus of program records.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", help="the names of cases (default: all)")
    options = parser.parse_args()
    for case in cases():
        if options.only is None or case.name in options.only:
            print(case.name, flush=True)
            make(case, options.folder)


def make(case: Case, folder: Path) -> None:
    """Runs one program, and replays its record on each cluster."""
    with TemporaryDirectory() as scratch:
        here = Path(scratch)
        script = case.program
        if isinstance(script, str):
            script = here / "script.py"
            script.write_text(str(case.program))
        where = case.options
        if case.cluster:
            (here / "cluster.toml").write_text(case.cluster)
            where = ("--cluster", "cluster.toml", *where)
        arguments = [word.replace("OUT", scratch) for word in case.arguments]
        ended = uniference("run", *where, "--out", "run", script, *arguments, cwd=here)
        record = (here / "run" / "program.record").read_bytes()
        assert len(record) < LARGEST_RECORD, f"{case.name}: {len(record)} bytes"
        if ended not in (0, 3):
            raise SystemExit(f"{case.name} ended with {ended}")
        runs = [replayed(here, "own")]
        for name, cluster in case.more.items():
            (here / f"{name}.toml").write_text(cluster)
            runs.append(replayed(here, name, "--cluster", f"{name}.toml"))
        for name in case.elsewhere if runs[0] else ():
            runs.append(replayed(here, name, "--ranks", len(runs[0]["ranks"]), *OTHERS[name]))
    with open(folder / f"{case.name}.record.gz", "wb") as file, gzip.GzipFile("", "wb", 9, file, 0) as packed:
        packed.write(record)
    (folder / f"{case.name}.json").write_text(json.dumps([run for run in runs if run], indent=1) + "\n")


def replayed(here: Path, name: str, *options: object) -> dict[str, Any] | None:
    """Figures of a record's replay; None if the replay does not reach its end, for example because the program would
    have chosen another branch."""
    out = here / f"on-{name}"
    ended = uniference("replay", "run", *options, "--out", out, cwd=here)
    if ended != 0:
        print(f"  {name}: ended with {ended}", flush=True)
        return None
    report = json.loads((out / "report.json").read_text(), parse_float=Decimal)
    return {
        "name": name,
        "cluster": report["manifest"]["cluster"],
        "seed": report["manifest"]["seed"],
        "makespan_ps": report["makespan_ps"],
        "digest": report["digest"],
        "ranks": [figures(rank) for rank in report["ranks"]],
        "operations": [figures(operation) for operation in report["operations"]],
    }


def figures(entry: dict[str, Any]) -> dict[str, Any]:
    """The figures with seconds as whole picoseconds, from which the seconds were computed; exact below two hours."""
    whole = {}
    for key, value in entry.items():
        if key.endswith("_s") and not isinstance(value, str):
            assert value < 4000, f"{key} = {value}"
            whole[key.removesuffix("_s") + "_ps"] = round(Decimal(value) * 10**12)
        else:
            whole[key] = value
    return whole


def uniference(*arguments: object, cwd: Path) -> int:
    """Runs the command; returns its exit code."""
    command = [sys.executable, "-m", "uniference", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode not in (0, 3):
        print(done.stderr[:300], file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    main()
