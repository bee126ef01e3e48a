"""Owns the benchmark of explanations and what-ifs: how long `uniference explain` and `whatif` take, and how much memory.

Runs are generated jobs, simulated rank by rank with `--record ops`. `make bench` runs it (3 minutes); `--quick` small ones.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Of `explain`, for ten million events, and of the table of `whatif`, for ten thousand.
EXPLAIN_S, EXPLAIN_GB = 60, 2
TABLE_S = 2

CLUSTER = """
backend = "gloo"
[[device]]
name = "board"
count = 8
slowdown = 2
[network]
preset = "switch"
bandwidth = "10 Gbps"
latency = "20 us"
"""
JOB = "workload llama --layers 4 --hidden 1024 --heads 16 --ffn 4096 --vocab 32000 --seq 512 --tp 4 --dp 2".split()


@dataclass(frozen=True)
class Cost:
    """Of a command: seconds, seconds of processors, and bytes of memory at its peak."""

    wall: float
    cpu: float
    memory: int


def uniference(folder: Path, *words: str) -> Cost:
    """Runs the command to its end."""
    command = [sys.executable, "-m", "uniference", *words]
    begin = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    if status != 0:
        raise SystemExit(f"{' '.join(words)} has failed")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def run(folder: Path, batch: int, record: str) -> Path:
    """The job with so many sequences a step."""
    out = folder / f"{record}-{batch}"
    sequences = ["--batch", str(batch), "--micro-batch", "1"]
    uniference(folder, *JOB, *sequences, "--run", "--cluster", "cluster.toml", "--record", record, "--out", str(out))
    return out


def events(folder: Path, batch: int) -> int:
    """How many events the job has: each sequence has as many as any other."""

    def count(batch: int) -> int:
        with (run(folder, batch, "full") / "events.jsonl").open("rb") as stream:
            return sum(1 for _ in stream)

    few, more = count(8), count(16)
    return few + (more - few) * (batch - 8) // 8


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small runs")
    quick = parser.parse_args(words).quick
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "cluster.toml").write_text(CLUSTER)
        long, short = (48, 8) if quick else (LONG, 8)
        explained = uniference(folder, "explain", str(run(folder, long, "ops")))
        tried = uniference(folder, "whatif", str(run(folder, short, "ops")))
        of_long, of_short = events(folder, long), events(folder, short)
    print(f"{'':<10}{'events':>12}{'s':>8}{'CPU s':>8}{'MB':>8}  target")
    for name, count, cost, target in (
        ("explain", of_long, explained, f"{EXPLAIN_S} s, {EXPLAIN_GB} GB for 10 million"),
        ("whatif", of_short, tried, f"{TABLE_S} s for 10,000, two cores"),
    ):
        print(f"{name:<10}{count:>12,}{cost.wall:>8.1f}{cost.cpu:>8.1f}{cost.memory / 1e6:>8.0f}  {target}")


# So many sequences have ten million events.
LONG = 20_000

if __name__ == "__main__":
    main()
