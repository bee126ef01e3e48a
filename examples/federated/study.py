"""Duration of rounds and accuracy, by the deadline of a round: with all clients, or with those that meet it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))

import studies
from studies import Row, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
DEADLINES_S = [1e9, 0.2, 0.1]


def measure(runs: Runs) -> list[Row]:
    """A run for each deadline, as the participating clients depend on it."""
    rows: list[Row] = []
    for deadline in DEADLINES_S:
        run = runs.simulate(f"{deadline:g}", HERE / "rounds.py", ["--deadline", deadline], HERE / "homes.toml")
        said = studies.said(run, "round ")
        ends = 0.0
        for result, took in zip(said[::2], said[1::2], strict=True):
            number, _, rest = result.partition(": clients ")
            part, _, rest = rest.partition(" of ")
            there, _, accuracy = rest.partition(", accuracy ")
            ends += float(took.split(" took ")[1].removesuffix(" s"))
            rows.append(
                {
                    "deadline_s": "none" if deadline == 1e9 else deadline,
                    "round": int(number),
                    "clients": len(part.split(",")),
                    "there": len(there.split(",")),
                    "ends_s": ends,
                    "accuracy": float(accuracy),
                }
            )
    return rows


def draw(rows: list[Row]) -> "Figure":
    """Accuracy over time."""
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots()
    for deadline in dict.fromkeys(row["deadline_s"] for row in rows):
        line = [row for row in rows if row["deadline_s"] == deadline]
        label = "waits for all" if deadline == "none" else f"deadline {deadline:g} s"
        panel.plot([row["ends_s"] for row in line], [row["accuracy"] for row in line], marker="o", label=label)
    panel.set(xlabel="seconds", ylabel="accuracy on all classes")
    panel.legend()
    return figure


if __name__ == "__main__":
    studies.main(__file__, measure, draw)
