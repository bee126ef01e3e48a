"""Owns the benchmark of the bridge between PyTorch programs and the engine: host time per call, not virtual time.

Programs run as a user would run them, by `uniference run`. `make bench` runs all benchmarks (2 minutes); `--quick` runs
short versions, with 2 ranks.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

PROGRAM = Path(__file__).with_name("bridge_program.py")

# Milliseconds of one all-reduce, by ranks: of the predecessor of this program, and the target.
ORIGINAL_MS = {2: 0.6, 8: 30, 32: 1_550, 128: 217_000}
TARGET_MS = {2: 0.15, 8: 0.5, 32: 3, 128: 15}

ROUNDS = {2: 5_000, 8: 2_000, 32: 400, 128: 80}
SMALL = ("all_reduce", "send")
MEGABYTES = (4, 64, 256)
# Target in microseconds for the capture and the costing of an operator together; a round has `OPERATORS` operators.
TARGET_US = 1.5
OPERATORS = 3
LARGE = ("copy", "all_reduce", "broadcast", "all_gather", "send")


@dataclass(frozen=True)
class Cost:
    """Cost of one round in seconds; `rank_cpu` is the mean of all ranks."""

    wall: float
    rank_cpu: float
    driver_cpu: float


@dataclass(frozen=True)
class Mark:
    """A line that the program has printed, with its time and the driver's CPU time at that moment."""

    kind: str
    values: Sequence[str]
    at: float
    driver_cpu: float


def run(
    cluster: Sequence[str], compute: str, cases: Sequence[str], program: Path = PROGRAM, options: Sequence[str] = ()
) -> Iterator[Mark]:
    """Runs a program on the cluster of the options, and yields its marks as they arrive."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "uniference", "run", *cluster, "--compute", compute]
        if compute == "model":
            command += ["--set", "device.device.model=h100-sxm"]
        command += ["--out", f"{out}/run", "--record", "summary", *options, str(program), *cases]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            _, sign, said = line.partition("@ ")
            if sign:
                kind, *values = said.split()
                yield Mark(kind, values, time.perf_counter(), cpu_seconds(process.pid))
        if process.wait():
            sys.exit(f"{' '.join(command)} exited with status {process.returncode}")


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process so far, over all its threads (the first field of schedstat, in nanoseconds)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def costs(ranks: int, compute: str, cases: Sequence[tuple[str, int, int]]) -> list[Cost]:
    """Cost of each case (operation, bytes, rounds)."""
    marks = iter(run(["--ranks", str(ranks)], compute, [":".join(map(str, case)) for case in cases]))
    return [
        cost(count, *triple) for (_, _, count), triple in zip(cases, zip(marks, marks, marks, strict=True), strict=True)
    ]


def cost(count: int, begin: Mark, end: Mark, cpu: Mark) -> Cost:
    assert (begin.kind, end.kind, cpu.kind) == ("begin", "end", "cpu")
    return Cost((end.at - begin.at) / count, float(cpu.values[0]) / count, (end.driver_cpu - begin.driver_cpu) / count)


def small_calls(sizes: Sequence[int], share: int) -> None:
    print("\n4 bytes, every rank once")
    header = f"{'compute':<10}{'ranks':>6}  {'operation':<11}{'ms':>9}{'us CPU a rank':>15}{'us driver':>11}"
    print(f"{header}{'target ms':>11}{'original ms':>13}")
    for compute in ("none", "measured"):
        for ranks in sizes:
            count = ROUNDS[ranks] // share
            found = costs(ranks, compute, [(operation, 4, count) for operation in SMALL])
            for operation, one in zip(SMALL, found, strict=True):
                print(
                    f"{compute:<10}{ranks:>6}  {operation:<11}{one.wall * 1e3:>9.3f}{one.rank_cpu * 1e6:>15.0f}"
                    f"{one.driver_cpu * 1e6:>11.0f}"
                    + (f"{TARGET_MS[ranks]:>11}{ORIGINAL_MS[ranks]:>13,}" if operation == "all_reduce" else ""),
                    flush=True,
                )


def large_tensors(megabytes: Sequence[int], share: int) -> None:
    print("\n2 ranks, GB/s of output (copy: torch's own, one thread, of warm memory)")
    print(f"{'MB':>5}" + "".join(f"{operation:>12}" for operation in LARGE))
    for size in megabytes:
        nbytes, count = size * 1_000_000, max(2_000 // size // share, 3)
        found = costs(2, "none", [(operation, nbytes, count) for operation in LARGE])
        print(f"{size:>5}" + "".join(f"{nbytes / one.wall / 1e9:>12.2f}" for one in found), flush=True)


def memory(ranks: int) -> None:
    start = time.perf_counter()
    (mark,) = run(["--ranks", str(ranks)], "none", ["memory"])
    private, proportional = map(float, mark.values)
    print(f"\n{ranks} ranks, one all-reduce: {time.perf_counter() - start:.1f} s from start to end; a rank's memory is")
    print(
        f"{private / 1024:.1f} MiB of its own, {proportional / 1024:.1f} MiB with its share of what ranks have in common"
    )


def operators(pairs: int) -> None:
    """Alternates blocks with and without the capture; each is compared with its neighbour, which had the same load."""
    cases = [(name, 4, 5_000) for _ in range(pairs) for name in ("bare", "captured")]
    found = costs(1, "model", cases)
    compared = [
        [cost / OPERATORS * 1e6 for cost in (bare.rank_cpu, captured.rank_cpu, captured.driver_cpu - bare.driver_cpu)]
        for bare, captured in zip(found[::2], found[1::2], strict=True)
    ]
    print("\nan operator on 8 x 8 numbers, 1 rank, model: us CPU, medians")
    print(f"{'bare':>7}{'captured':>10}{'ratio':>8}{'capture':>9}{'costing':>9}{'both':>7}{'target':>8}")
    bare, captured, costing = (median(column) for column in zip(*compared, strict=True))
    ratio = median(row[1] / row[0] for row in compared)
    capture = median(row[1] - row[0] for row in compared)
    both = median(row[1] - row[0] + row[2] for row in compared)
    print(
        f"{bare:>7.2f}{captured:>10.2f}{ratio:>8.2f}{capture:>9.2f}{costing:>9.2f}{both:>7.2f}{TARGET_US:>8}",
        flush=True,
    )


PARTS = ("small", "operators", "large", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of each, with 2 ranks")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all if none is named")
    options = parser.parse_args()
    parts, share = options.parts or PARTS, 40 if options.quick else 1
    if "small" in parts:
        small_calls([2] if options.quick else list(ROUNDS), share)
    if "operators" in parts:
        operators(2 if options.quick else 15)
    if "large" in parts:
        large_tensors([4] if options.quick else MEGABYTES, share)
    if "memory" in parts:
        memory(2 if options.quick else 256)


if __name__ == "__main__":
    main()
