"""Owns the benchmark of recording and analysis: the overhead of records, `explain` and `whatif`.

Programs run by `uniference run`, as for users. `make bench` runs all cases (8 minutes, 6 GB of disk); `--quick` a part
of each.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

PROGRAM = Path(__file__).with_name("analysis_program.py")
RANKS = 8
# Targets: seconds and bytes of `explain` for a number of events; seconds of a number of `whatif` rows for a number of
# events; the share of a run that recording at `ops` may cost; bytes per event in the tables.
EXPLAIN_EVENTS, EXPLAIN_S, EXPLAIN_BYTES = 10_000_000, 60, 2_000_000_000
WHATIF_EVENTS, WHATIF_ROWS, WHATIF_S = 10_000, 40, 2
RECORDING, EVENT_BYTES = 0.05, 100


@dataclass(frozen=True)
class Cost:
    """Cost of a command with all its processes: wall-clock seconds, CPU seconds, and the largest memory of one process
    in bytes."""

    wall_s: float
    cpu_s: float
    peak: int


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of each")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        recording(folder, rounds=3 if quick else 9)
        table(folder, quick)
        large(folder, 100_000 if quick else EXPLAIN_EVENTS)


def recording(folder: Path, rounds: int) -> None:
    """Runs a program with compute, with and without its record, alternately."""
    print("recording: a run with `ops` beside one with `summary`, in turns; medians")
    for size, times in ((0, 2_000), (256, 600)):
        costs: dict[str, list[Cost]] = {"summary": [], "ops": []}
        for _ in range(rounds):
            for level, all_costs in costs.items():
                all_costs.append(run(folder / "recording", times, size, "--record", level, "--compute", "measured"))
        wall, cpu = (
            {level: median(getattr(cost, what) for cost in all_costs) for level, all_costs in costs.items()}
            for what in ("wall_s", "cpu_s")
        )
        what = f"product of {size} x {size} before each" if size else "nothing between"
        print(
            f"  {RANKS} ranks, {times} all-reduces, {what}: {wall['summary']:.2f} s, {wall['ops']:.2f} s: "
            f"{100 * (wall['ops'] / wall['summary'] - 1):+.1f} % (processors {100 * (cpu['ops'] / cpu['summary'] - 1):+.1f} %; "
            f"target {100 * RECORDING:g} %)"
        )


def table(folder: Path, quick: bool) -> None:
    """Times the table of what-ifs."""
    events = 0
    rounds = WHATIF_EVENTS // (RANKS * 8)
    while True:
        run(folder / "whatif", rounds, 0, "--compute", "none", "--record", "full")
        events = counted(folder / "whatif")
        if events >= WHATIF_EVENTS or quick:
            break
        rounds = rounds * WHATIF_EVENTS // events + 1
    costs = [command("whatif", folder / "whatif", "--json") for _ in range(3)]
    rows = len(json.loads(costs[0][1])["changes"])
    cost = sorted((cost for cost, _ in costs), key=lambda cost: cost.wall_s)[1]
    print(
        f"whatif: {rows} rows of a run of {events:,} events: {cost.wall_s:.2f} s, {cost.cpu_s:.2f} s of processors; "
        f"{WHATIF_ROWS} rows would take {cost.wall_s * WHATIF_ROWS / rows:.2f} s (target {WHATIF_S} s)"
    )


def large(folder: Path, wanted: int) -> None:
    """Measures a run with very many events: the size of its tables and record, and the time to explain it."""
    run(folder / "sample", 100, 0, "--compute", "none", "--record", "full")
    rounds = wanted * 100 // counted(folder / "sample") + 1
    cost = run(folder / "large", rounds, 0, "--compute", "none", "--record", "full")
    events = counted(folder / "large")
    tables = sum(path.stat().st_size for path in (folder / "large" / "events").rglob("*.parquet"))
    record = (folder / "large" / "program.record").stat().st_size
    print(
        f"a run of {events:,} events, messages included: {cost.wall_s:.0f} s; tables {tables / events:.1f} bytes an event "
        f"(target {EVENT_BYTES}), record {record / events:.1f}"
    )
    cost, printed = command("explain", folder / "large", "--json")
    path = json.loads(printed)
    print(
        f"explain: {cost.wall_s:.1f} s, {cost.cpu_s:.1f} s of processors, {cost.peak / 1e9:.2f} GB "
        f"(target {EXPLAIN_S} s, {EXPLAIN_BYTES / 1e9:g} GB); a makespan of {path['makespan_s']:.3g} s"
    )


def counted(folder: Path) -> int:
    """Number of rows of all event tables."""
    from pyarrow import parquet  # type: ignore[import-untyped]

    names = {"line", "link"}
    files = (path for path in (folder / "events").rglob("*.parquet") if path.parent.name not in names)
    return sum(parquet.read_metadata(path).num_rows for path in files)


def run(out: Path, rounds: int, size: int, *options: str) -> Cost:
    """Runs the program, and returns its cost."""
    words = ["run", "--ranks", str(RANKS), "--out", str(out), "--quiet", *options, str(PROGRAM), str(rounds), str(size)]
    return command(*words)[0]


def command(*words: str | Path) -> tuple[Cost, str]:
    """Runs a command below an intermediate process that has no other children; returns its cost and its output."""
    measure = (
        "import json, resource, subprocess, sys, time\n"
        "begun = time.monotonic()\n"
        "subprocess.run(sys.argv[1:], check=True)\n"
        "wall, used = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "sys.stderr.write('cost ' + json.dumps([wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))\n"
    )
    words = tuple(map(str, words))
    done = subprocess.run(
        [sys.executable, "-c", measure, sys.executable, "-m", "uniference", *words], capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(done.stderr)
    wall, cpu, peak = json.loads(done.stderr.rpartition("cost ")[2])
    return Cost(wall, cpu, peak), done.stdout


if __name__ == "__main__":
    main()
