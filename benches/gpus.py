"""Owns the benchmark of simulated GPUs: host CPU time of operators and launches beyond torch's own work.

Torch's own work is measured as the same operator on the CPU, and as torch's GPU code without the capture;
FakeTensorMode, torch's own way to run without a GPU, is listed for comparison. `make bench` runs it (a minute);
`--quick` runs a short version.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from bridge import run

PROGRAM = Path(__file__).with_name("gpu_program.py")

# Targets in microseconds of CPU time beyond torch's own.
OPERATOR_US = 6
LAUNCH_US = 2


def blocks(values: str, rounds: int, pairs: int) -> dict[str, dict[str, list[list[float]]]]:
    """By operator or launch and by name, a row per block: operators of a round, and its microseconds in each way."""
    found: dict[str, dict[str, list[list[float]]]] = {"operator": {}, "launch": {}}
    options = ["--cuda", "--values", values]
    marks = run(["--ranks", "1"], "model", [str(rounds), str(pairs)], PROGRAM, options)
    for begin, end in zip(marks, marks, strict=True):
        name, count, *ways = end.values
        driver = (end.driver_cpu - begin.driver_cpu) / rounds
        row = [float(count), *(float(seconds) * 1e6 for seconds in ways), driver * 1e6]
        found[end.kind].setdefault(name.replace("_", " "), []).append(row)
    return found


def medians(rows: Iterable[Iterable[float]]) -> list[float]:
    return [median(column) for column in zip(*rows, strict=True)]


def operators(values: str, found: dict[str, list[list[float]]]) -> None:
    print(f"\n--values {values}, us CPU an operator, medians")
    header = f"{'operator':<24}{'CPU':>7}{'fake':>8}{'bare':>7}{'here':>7}{'driver':>8}"
    print(f"{header}{'beyond CPU':>12}{'beyond bare':>13}{'target':>8}")
    for name, rows in found.items():
        shares = [[us / row[0] for us in row[1:]] for row in rows]
        cpu, fake, bare, here, driver = medians(shares)
        beyond, ours = medians([here - cpu, here - bare] for cpu, _, bare, here, _ in shares)
        print(
            f"{name:<24}{cpu:>7.2f}{fake:>8.1f}{bare:>7.2f}{here:>7.2f}{driver:>8.2f}"
            f"{beyond:>12.2f}{ours:>13.2f}{OPERATOR_US:>8}",
            flush=True,
        )


def launches(values: str, found: dict[str, list[list[float]]]) -> None:
    print(f"\n--values {values}, us CPU a launch, medians")
    print(f"{'launch':<24}{'driver':>8}{'beyond the call':>17}{'target':>8}")
    for name, rows in found.items():
        beyond, driver = medians([here - nothing, driver] for _, nothing, here, driver in rows)
        print(f"{name:<24}{driver:>8.2f}{beyond:>17.2f}{LAUNCH_US:>8}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of each")
    rounds, pairs = (50, 2) if parser.parse_args().quick else (1_000, 15)
    for values in ("none", "all"):
        found = blocks(values, rounds, pairs)
        operators(values, found["operator"])
        launches(values, found["launch"])


if __name__ == "__main__":
    main()
