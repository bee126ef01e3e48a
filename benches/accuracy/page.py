"""Owns the report of `make accuracy`: tables of errors, intervals and their coverage, the plot, and the page."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from math import hypot, log
from pathlib import Path
from statistics import median
from typing import Any

from cells import Cell
from grid import Program

BEGIN, END = "<!-- testbed: written by `make accuracy` -->", "<!-- /testbed -->"
# Standard errors on each side of a 95 % interval.
_WIDTH = 1.96
# The columns of `_row`, after its name.
_ERRORS = (
    "cells",
    "median error %",
    "median absolute error %",
    "p95 absolute error %",
    "largest error %",
    "measurement spread %",
)


def operations(cells: Iterable[Cell]) -> str:
    """Errors of the cells of each operation, and the spread of their measurements."""
    by_operation = _grouped(cells, lambda cell: cell.operation)
    rows = [_row(operation, own) for operation, own in sorted(by_operation.items())]
    rows.append(_row("all", [cell for own in by_operation.values() for cell in own]))
    return _table(["operation", *_ERRORS], rows)


def settings(cells: Iterable[Cell]) -> str:
    """Errors of the cells of each setting."""
    by_setting = _grouped(cells, lambda cell: cell.setting.name + (", cold" if cell.cold else ""))
    rows = [_row(name, own) for name, own in by_setting.items()]
    return _table(["setting", *_ERRORS], rows)


def _row(name: str, cells: Sequence[Cell]) -> list[str]:
    errors = sorted((cell.error for cell in cells), key=abs)
    spread = median(cell.floor for cell in cells)
    absolute = [abs(error) for error in errors]
    return [
        name,
        str(len(cells)),
        f"{100 * median(errors):+.1f}",
        *(f"{100 * figure:.1f}" for figure in (median(absolute), quantile(absolute, 0.95))),
        f"{100 * errors[-1]:+.1f}",
        f"{100 * spread:.1f}",
    ]


def intervals(cells: Sequence[Cell]) -> str:
    """The coverage of 95 % intervals; a setting's intervals are computed from the errors of all other settings."""
    rows = []
    held: list[bool] = []
    for operation, own in sorted(_grouped(cells, lambda cell: cell.operation).items()):
        covered = [
            _covers(cell, model_error([other for other in own if other.setting != cell.setting])) for cell in own
        ]
        rows.append([operation, f"{100 * model_error(own):.1f}", f"{100 * sum(covered) / len(covered):.0f}"])
        held += covered
    rows.append(["all", "", f"{100 * sum(held) / max(len(held), 1):.0f}"])
    return _table(["operation", "model standard error %", "coverage %"], rows)


def model_error(cells: Sequence[Cell]) -> float:
    """The relative standard error of an operation's predictions: 95 of 100 are within 1.96 times that."""
    return quantile(sorted(_distance(cell) for cell in cells), 0.95) / _WIDTH if cells else 0.0


def _covers(cell: Cell, model: float) -> bool:
    return _distance(cell) <= _WIDTH * hypot(model, cell.stated)


def _distance(cell: Cell) -> float:
    return abs(log(cell.predicted_s / cell.measured_s))


def programs(compared: Sequence[tuple[Program, Mapping[str, Any]]]) -> str:
    """The errors of whole programs, replayed with the compute of the measured run, and of their operations."""
    rows = [
        [
            program.name,
            program.setting.name,
            f"{1e3 * its['makespan']['second_s']:.0f}",
            f"{100 * its['makespan']['error']:+.1f}",
            f"{100 * its['overall']['median']:+.1f}",
        ]
        for program, its in compared
    ]
    return _table(
        ["program", "setting", "measured makespan, ms", "makespan error %", "median error of operations %"], rows
    )


def ranking(compared: Sequence[tuple[Program, Mapping[str, Any]]]) -> str:
    """The share of programs for which the fastest of several configurations (algorithm and network) is predicted
    correctly."""
    jobs: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for program, its in compared:
        jobs[program.job].append((its["makespan"]["first_s"], its["makespan"]["second_s"]))
    rows = []
    for count in (2, 3):
        sets = [chosen for own in jobs.values() for chosen in combinations(own, count)]
        right = sum(min(chosen)[1] == min(real for _, real in chosen) for chosen in sets)
        rows.append([f"every {count}", str(len(sets)), f"{100 * right / max(len(sets), 1):.0f}"])
    whole = [own for own in jobs.values() if len(own) > 1]
    right = sum(min(own)[1] == min(real for _, real in own) for own in whole)
    rows.append(["all of a program", str(len(whole)), f"{100 * right / max(len(whole), 1):.0f}"])
    return _table(["configurations compared", "sets", "fastest predicted correctly %"], rows)


def quantile(ordered: Sequence[float], part: float) -> float:
    """The smallest value that at least the given part of the values does not exceed."""
    return ordered[min(max(-int(-part * len(ordered) // 1), 1), len(ordered)) - 1]


def _grouped(cells: Iterable[Cell], key: Callable[[Cell], str]) -> dict[str, list[Cell]]:
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[key(cell)].append(cell)
    return groups


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def plot(cells: Sequence[Cell], path: Path) -> bool:
    """A scatter plot of every cell's error, by operation; False without matplotlib."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return False
    names = sorted({cell.operation for cell in cells})
    figure, axes = pyplot.subplots(figsize=(9, 5))
    kinds: tuple[tuple[str, str, Callable[[Cell], bool]], ...] = (
        ("tab:blue", "warm", lambda cell: not cell.limited and not cell.cold),
        ("tab:orange", "new connections", lambda cell: not cell.limited and cell.cold),
        ("lightgray", "limited by the machine", lambda cell: cell.limited),
    )
    for place, (colour, label, chosen) in enumerate(kinds):
        own = [cell for cell in cells if chosen(cell)]
        x = [names.index(cell.operation) + (place - 1) * 0.25 for cell in own]
        y = [max(min(100 * cell.error, 60), -60) for cell in own]
        axes.scatter(x, y, s=10, c=colour, label=label, linewidths=0)
    for error in (-3, 3):
        axes.axhline(error, color="tab:green", linewidth=0.6, linestyle="dashed")
    axes.axhline(0, color="black", linewidth=0.5)
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right")
    axes.set_ylabel("(predicted - measured) / measured, %")
    axes.set_ylim(-62, 62)
    axes.legend(loc="upper right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return True


def write(page: Path, section: str) -> None:
    """Replaces the generated section of the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before.rstrip()}\n\n{BEGIN}\n\n{section}\n\n{END}\n\n{after.lstrip()}")
