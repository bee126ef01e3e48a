"""Owns `make accuracy`: the errors of predictions against real Gloo on the testbed, calibrated only with ping-pongs.

For every setting of the grid: the testbed emulates it, the probe measures every operation on it, `uniference calibrate`
fits a cluster file to the ping-pongs among the measurements, and the same probe runs on that cluster in the simulator.
Then programs are launched on the testbed, replayed with the same compute on the fitted network, and compared. The
errors are a report, and fail no check.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import grid
import page
from cells import ROOT, Cell, cells, launch, measure, predict, replay, uniference
from grid import Program, Setting

PAGE = ROOT / "docs" / "explanation" / "accuracy.md"


def main() -> None:
    words = _words()
    if words.again:
        shutil.rmtree(words.out, ignore_errors=True)
    out = words.out.resolve()
    settings = grid.quick() if words.quick else list(grid.full()) if words.full else grid.usual()
    programs = [] if words.quick else grid.programs()
    missing = _testbed_is_missing()
    if missing:
        print(f"skipped, but for this machine's loopback: {missing}")
        settings, programs = [setting for setting in settings if setting.mbps is None], []
    failed: list[str] = []
    deadline = time.monotonic() + 60 * words.minutes
    if not (words.predict_only or words.as_predicted):
        for setting in settings:
            _attempt(setting.name, failed, deadline, partial(_measure, setting, out, deadline, words.quick))
        for program in programs:
            name = f"{program.name} on {program.setting.name}"
            _attempt(name, failed, deadline, partial(_launch, program, out, deadline))
    if words.measure_only:
        return
    found, compared = _predictions(settings, programs, out, failed, words.as_predicted)
    if not found:
        print("nothing was measured", *failed, sep="\n")
        return
    section = report(found, compared, failed)
    print(section)
    if words.write:
        page.plot(found, PAGE.with_suffix(".svg"))
        page.write(PAGE, section)


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="accuracy", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="loopback and two shaped settings")
    parser.add_argument("--full", action="store_true", help="every combination: hours")
    parser.add_argument(
        "--minutes", type=float, default=10_000, help="measure no longer; the next time goes on from there"
    )
    parser.add_argument("--measure-only", action="store_true", help="predict nothing yet")
    parser.add_argument("--predict-only", action="store_true", help="predict again what was measured")
    parser.add_argument("--as-predicted", action="store_true", help="report what was predicted before")
    parser.add_argument(
        "--write", action="store_true", help="put the report on docs/explanation/accuracy.md, and the plot beside it"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "uniference-out" / "accuracy", help="what was measured")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    return parser.parse_args()


def _testbed_is_missing() -> str | None:
    try:
        uniference("testbed", "--ranks", 2, "--", "true")
    except RuntimeError as error:
        return str(error).strip().splitlines()[-1]
    return None


def _attempt(name: str, failed: list[str], deadline: float, action: Callable[[], None]) -> None:
    """Reports a failed action, and continues with the remaining ones."""
    if time.monotonic() > deadline:
        failed.append(f"{name}: there was no time")
        return
    began = time.monotonic()
    try:
        action()
    except subprocess.TimeoutExpired:
        failed.append(f"{name}: there was no time for all of it")
    except (RuntimeError, subprocess.CalledProcessError) as error:
        failed.append(f"{name}: {str(error).strip().splitlines()[-1]}")
        print(error, file=sys.stderr)
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _measure(setting: Setting, out: Path, deadline: float, quick: bool) -> None:
    folder = out / setting.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "complete").exists():
        measure(setting, folder, deadline - time.monotonic(), quick)
        (folder / "complete").touch()


def _launch(program: Program, out: Path, deadline: float) -> None:
    folder = out / program.setting.folder
    folder.mkdir(parents=True, exist_ok=True)
    launch(program, folder, deadline - time.monotonic())


def _predict(setting: Setting, out: Path, found: list[Cell], known: bool) -> None:
    folder = out / setting.folder
    found += cells(setting, folder) if known and (folder / "predicted.jsonl").exists() else predict(setting, folder)


def _replay(program: Program, folder: Path, compared: list[tuple[Program, Mapping[str, Any]]]) -> None:
    compared.append((program, replay(program, folder)))


def _predictions(
    settings: Sequence[Setting], programs: Sequence[Program], out: Path, failed: list[str], known: bool
) -> tuple[list[Cell], list[tuple[Program, Mapping[str, Any]]]]:
    found: list[Cell] = []
    compared: list[tuple[Program, Mapping[str, Any]]] = []
    for setting in settings:
        if (out / setting.folder / "measured.jsonl").exists():
            _attempt(f"predicting {setting.name}", failed, inf, partial(_predict, setting, out, found, known))
    for program in programs:
        folder = out / program.setting.folder
        if (folder / "fitted.toml").exists():
            name = f"replaying {program.name} on {program.setting.name}"
            _attempt(name, failed, inf, partial(_replay, program, folder, compared))
    return found, compared


def report(found: Sequence[Cell], compared: Sequence[tuple[Program, Mapping[str, Any]]], failed: Sequence[str]) -> str:
    """The report's section of the page."""
    scored = [cell for cell in found if cell.bound and not cell.cold]
    unequal = [cell for cell in scored if cell.setting.shape != "equal"]
    known = [cell for cell in found if not (cell.bound or cell.limited or cell.cold)]
    parts = [
        "## Real Gloo on the testbed, fitted to ping-pongs alone",
        f"Measured {date.today()} on {os.cpu_count()} processor cores by `make accuracy`; the method is described below.",
    ]
    for title, own in (
        ("Warm connections, with d > 0 or at least 256 KiB", scored),
        ("The same connections, with one host slower or farther away than the others", unequal),
        ("New connections", [cell for cell in found if cell.cold and not cell.limited]),
        ("Not modelled: broadcast of at least 1 MiB to 3 ranks, all_to_all with a slow host", known),
        ("Limited by the machine: loopback, and d = 0 below 256 KiB", [cell for cell in found if cell.limited]),
    ):
        parts += [f"### {title}", page.operations(own)] if own else []
    parts += ["### By setting", page.settings(found)]
    cores = os.cpu_count() or 1
    carried = [pair for pair in compared if pair[0].setting.ranks <= cores]
    crowded = [pair for pair in compared if pair[0].setting.ranks > cores]
    if carried:
        parts += ["### Programs, with compute from the same run", page.programs(carried)]
        parts += ["### Which configuration of a program is fastest", page.ranking(carried)]
    if crowded:
        parts += ["### Programs limited by the machine: more ranks than cores", page.programs(crowded)]
    if len({cell.setting for cell in scored}) > 2:
        parts += ["### Intervals", page.intervals(scored)]
    parts += [f"Not measured: {line}" for line in failed]
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
