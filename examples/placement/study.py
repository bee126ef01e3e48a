"""Positions of a slow and a remote board in a pipeline: all orders for several layer splits, one record per split."""

import sys
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import studies
from studies import Row, Runs
from uniference import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROGRAM = HERE.parent / "pipeline" / "answer.py"
BATCH, TOKENS = 12, 8
CUTS = {
    "equal layers": "8,8,7,7",
    "equal weights": "10,10,9,1",
    "short third stage": "11,11,4,4",
    "short first stage": "4,11,11,4",
}
"""The last stage also has the head, whose matrix is as large as those of eight layers."""
BOARDS = ("one", "two", "slow", "remote")
PLACES = ("first", "second", "third", "fourth")


def measure(runs: Runs) -> list[Row]:
    """Each split runs once, in the order of the file; all other orders are replays of its record."""
    rows: list[Row] = []
    # Boards "one" and "two" are equal, so that their order does not matter.
    orders = [order for order in permutations(BOARDS) if order.index("one") < order.index("two")]
    for cut, layers in CUTS.items():
        words = ["--batch", BATCH, "--tokens", TOKENS, "--layers", layers]
        record = runs.simulate(layers, PROGRAM, words, HERE / "boards.toml")
        found: list[tuple[Run, Row]] = []
        for order in orders:
            run = runs.replay("-".join((layers, *order)), record, cluster(runs, order), compute="model")
            decoding = [phase for phase in run.phases if phase.name == "decode"]
            row: Row = {"cut": cut, "layers": layers, **dict(zip(PLACES, order, strict=True))}
            row["answers_s"] = run.makespan
            row["busiest_stage_s"] = max(phase.compute_s or 0 for phase in decoding)
            found.append((run, row))
        found.sort(key=lambda entry: float(entry[1]["answers_s"]))
        for run, row in (found[0], found[-1]):
            order = tuple(str(row[place]) for place in PLACES)
            again = runs.simulate("again", PROGRAM, words, cluster(runs, order))
            if again.makespan != run.makespan:
                raise SystemExit(f"{layers} on {order}: {again.makespan} s, but {run.makespan} s from the record")
        rows += [{"ranked": place, **row} for place, (_, row) in enumerate(found, 1)]
    return rows


def cluster(runs: Runs, order: tuple[str, ...]) -> Path:
    """The cluster with the boards in another order, as ranks are placed in the order of the file."""
    before, *tables = (HERE / "boards.toml").read_text().split("[[device]]\n")
    last, network = tables[-1].split("[network]\n")
    by_name = {table.split('"')[1]: table for table in (*tables[:-1], last)}
    path = runs.folder / f"{'-'.join(order)}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    devices = "".join(f"[[device]]\n{by_name[name]}" for name in order)
    path.write_text(f"{before}{devices}[network]\n{network}")
    return path


def draw(rows: list[Row]) -> "Figure":
    """Time of all orders, coloured by the position of the slow board; a ring marks a remote board at an end."""
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(7, 3))
    for shift, place in enumerate(PLACES):
        for end in (False, True):
            dots = [row for row in rows if row[place] == "slow" and ("remote" in (row["first"], row["fourth"])) == end]
            panel.scatter(
                [row["answers_s"] for row in dots],
                [list(CUTS).index(str(row["cut"])) + 0.12 * (shift - 1.5) for row in dots],
                color=f"C{shift}",
                facecolors="none" if end else f"C{shift}",
                label=None if end else place,
            )
    panel.set_yticks(range(len(CUTS)), [f"{cut}\n{layers}" for cut, layers in CUTS.items()])
    panel.set(xlabel="all answers, s", xlim=(0, None))
    panel.invert_yaxis()
    figure.legend(title="stage of the slow board", loc="outside upper center", ncols=4, fontsize="small")
    return figure


if __name__ == "__main__":
    studies.main(__file__, measure, draw)
