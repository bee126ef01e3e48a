"""Owns the sections of the report: measured rows with their predictions, and summaries of the errors."""

import csv
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

ROOT = Path(__file__).resolve().parents[2]
ROWS = Path(__file__).parent / "rows"
# Largest number of rows of a section that are listed.
MOST_ROWS = 100


@dataclass(frozen=True)
class Row:
    """One published measurement and its prediction, both in the unit of the source."""

    name: str
    measured: float
    predicted: float
    # Rows of one group are summarized together.
    group: str = "all"
    # Whether a constant was fitted to the row, so that it proves nothing about the error.
    fitted: bool = False
    # The prediction's interval, which should contain 95 of 100 measurements, in the same unit.
    interval: tuple[float, float] | None = None

    @property
    def error(self) -> float:
        """Relative error, with its sign."""
        return self.predicted / self.measured - 1

    @property
    def covered(self) -> bool | None:
        """Whether the interval contains the measurement; None without an interval."""
        return None if self.interval is None else self.interval[0] <= self.measured <= self.interval[1]


@dataclass(frozen=True)
class Section:
    """Predictions of one module."""

    title: str
    # Markdown: how the rows were measured and predicted, and the assumptions.
    text: str
    rows: Sequence[Row]
    # Results of others, by group: a figure with its source.
    others: Mapping[str, str] = field(default_factory=dict)


def read(name: str) -> list[dict[str, str]]:
    """The rows of a file in the folder `rows`."""
    with (ROWS / name).open(newline="") as file:
        return list(csv.DictReader(file))


def report(section: Section) -> str:
    """The section of the page: a line per group, in the order of the rows, then every row's error."""
    groups: dict[str, list[Row]] = {}
    for row in section.rows:
        groups.setdefault(row.group, []).append(row)
    header = ["rows", "count", "mean %", "median %", "p90 %", "worst %", "bias %", "covered %", "others"]
    lines = [_line(group, rows, section.others.get(group, "")) for group, rows in groups.items()]
    step = -(-len(section.rows) // MOST_ROWS)
    shown = [
        [row.name + (" (fitted)" if row.fitted else ""), f"{row.measured:.5g}", f"{row.predicted:.5g}", _signed(row)]
        for row in section.rows[:: max(step, 1)]
    ]
    detail = table(["row", "measured", "predicted", "error %"], shown)
    which = f"All {len(shown)} rows" if step <= 1 else f"Each {step}th of {len(section.rows)} rows"
    paragraphs = section.text.split("\n\n")
    text = "\n\n".join(textwrap.fill(part, 120, break_long_words=False, break_on_hyphens=False) for part in paragraphs)
    return "\n\n".join(
        [
            f"### {section.title}",
            text,
            table(header, lines),
            f"<details><summary>{which}</summary>\n\n{detail}\n\n</details>",
        ]
    )


def _line(group: str, rows: Sequence[Row], others: str) -> list[str]:
    errors = [row.error for row in rows if not row.fitted]
    fitted = len(rows) - len(errors)
    count = f"{len(errors)}" + (f" (and {fitted} fitted)" if fitted else "")
    if not errors:
        return [group, count, "", "", "", "", "", "", others]
    sizes = sorted(abs(error) for error in errors)
    figures = [mean(sizes), median(sizes), quantile(sizes, 0.9)]
    worst = max(errors, key=abs)
    covered = [row.covered for row in rows if not row.fitted and row.covered is not None]
    return [
        group,
        count,
        *(f"{100 * figure:.1f}" for figure in figures),
        f"{100 * worst:+.1f}",
        f"{100 * mean(errors):+.1f}",
        f"{100 * mean(covered):.0f}" if covered else "",
        others,
    ]


def _signed(row: Row) -> str:
    return f"{100 * row.error:+.1f}"


def quantile(ordered: Sequence[float], part: float) -> float:
    """The smallest value that at least the given part of the values does not exceed."""
    return ordered[min(max(-int(-part * len(ordered) // 1), 1), len(ordered)) - 1]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
