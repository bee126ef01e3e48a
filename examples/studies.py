"""Owns the common parts of the studies: folders of runs, tables of figures, their comparison, pictures.

Each study's own `study.py` defines its runs and its figures:

    python examples/NAME/study.py            runs it, and writes figures.csv and picture.svg to its folder
    python examples/NAME/study.py --check    runs it, and fails if a figure is not the one in figures.csv
"""

import argparse
import csv
import difflib
import io
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uniference
from uniference import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLES = Path(__file__).resolve().parent
Row = dict[str, str | int | float]


class Runs:
    """Simulations of one study, each in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def simulate(
        self, name: str, script: Path, args: Sequence[object] = (), cluster: Path | None = None, **options: Any
    ) -> Run:
        """Runs `uniference.simulate`, and replaces an earlier run of this name."""
        return uniference.simulate(script, [str(word) for word in args], cluster, out=self.empty(name), **options)

    def replay(self, name: str, run: Run, cluster: Path | None = None, **options: Any) -> Run:
        """Runs `uniference.replay`, and replaces an earlier run of this name."""
        return uniference.replay(run, cluster, out=self.empty(name), **options)

    def empty(self, name: str) -> Path:
        """Deletes the folder of an earlier run of this name; returns its path."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return self.folder / name


def main(file: str, measure: Callable[[Runs], list[Row]], draw: "Callable[[list[Row]], Figure]") -> None:
    """The command line of a study: `measure` runs it, `draw` makes the picture of its figures."""
    parser = argparse.ArgumentParser(description="Runs a study and writes its figures and its picture.")
    parser.add_argument("--check", action="store_true", help="compare with figures.csv in place of writing it")
    parser.add_argument("--draw", action="store_true", help="draw the picture of figures.csv again, and run nothing")
    parser.add_argument("--out", type=Path, help="folder for runs (default uniference-out/examples/NAME)")
    options = parser.parse_args()
    folder = Path(file).resolve().parent
    golden = folder / "figures.csv"
    if not options.draw:
        text = table(measure(Runs(options.out or EXAMPLES.parent / "uniference-out" / "examples" / folder.name)))
        print(text, end="")
        if options.check:
            kept = golden.read_text()
            differences = difflib.unified_diff(kept.splitlines(True), text.splitlines(True), str(golden), "now")
            sys.stderr.writelines(differences)
            sys.exit(text != kept)
        golden.write_text(text)
    style()
    # Without a date and with constant ids, so that equal figures give an equal file.
    draw(read(golden)).savefig(folder / "picture.svg", metadata={"Date": None})


def read(path: Path) -> list[Row]:
    """The rows of a table."""
    with path.open(newline="") as file:
        return [{key: number(text) for key, text in row.items()} for row in csv.DictReader(file)]


def number(text: str) -> str | float:
    """A cell as a number if it is one, otherwise as text."""
    try:
        return float(text)
    except ValueError:
        return text


def table(rows: Sequence[Row]) -> str:
    """Rows as CSV, numbers with six digits: virtual time is the same on every machine, and so is the text."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
    return text.getvalue()


def style() -> None:
    """Sets the common style of all pictures."""
    import matplotlib as mpl
    from cycler import cycler

    mpl.use("svg")
    mpl.rcParams.update(
        {
            "figure.figsize": (7, 3.6),
            "figure.constrained_layout.use": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#dddddd",
            "axes.axisbelow": True,
            "font.size": 10,
            "legend.frameon": False,
            "svg.hashsalt": "uniference",
            "svg.fonttype": "none",
            "axes.prop_cycle": cycler(color=["#2a6fbb", "#d9792b", "#3a9d5d", "#8a5ab5", "#777777"]),
        }
    )


def phase(run: Run, name: str, rank: int = 0) -> float:
    """Median duration in seconds of a program's named range."""
    (found,) = [phase for phase in run.phases if phase.name == name and phase.rank == rank]
    return found.p50_s


def total(run: Run, name: str, rank: int = 0) -> float:
    """Total seconds of all ranges of a name on a rank."""
    (found,) = [phase for phase in run.phases if phase.name == name and phase.rank == rank]
    return found.total_s


def said(run: Run, prefix: str) -> list[str]:
    """The rest of each printed line that contains the prefix."""
    lines = (line.partition(prefix) for line in run.output.splitlines())
    return [after.strip() for _, found, after in lines if found]
