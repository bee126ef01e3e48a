"""Cost of a rank's crash by its time: training continues with the other ranks at the interrupted step."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))

import studies
from studies import Row, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
STEPS = 40
CRASHES_MS = [None, 50, 150, 250]


def measure(runs: Runs) -> list[Row]:
    """A run for each time of the crash; the last but one of four ranks crashes, or none."""
    rows: list[Row] = []
    whole = HERE / "boards.toml"
    for crash in CRASHES_MS:
        cluster = runs.empty("boards.toml")
        cluster.unlink(missing_ok=True)
        cluster.parent.mkdir(parents=True, exist_ok=True)
        text = whole.read_text().replace('"150 ms"', f'"{crash} ms"')
        cluster.write_text(text if crash is not None else text[: text.index("[[crash]]")])
        run = runs.simulate(f"crash-{crash}", HERE / "train.py", ["--steps", STEPS, "--patience", 1], cluster)
        (last,) = studies.said(run, f"step {STEPS - 1}: loss ")
        recoveries = [line.split(":")[0] for line in studies.said(run, "step ") if "going on" in line]
        rows.append(
            {
                "crash_ms": "" if crash is None else crash,
                "taken_again": recoveries[0] if recoveries else "",
                "loss": float(last),
                "makespan_s": run.makespan,
                "recovery_s": studies.total(run, "recovery") if recoveries else 0.0,
                "step_ms": 1e3 * studies.phase(run, "step"),
            }
        )
    losses = [float(row["loss"]) for row in rows]
    # A sample's gradient is the same on every rank: sums differ only by their order.
    if max(losses) - min(losses) > 1e-5:
        raise SystemExit(f"the loss depends on the crash: {losses}")
    return rows


def draw(rows: list[Row]) -> "Figure":
    """Parts of the makespan."""
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(7, 2.6))
    names = ["nobody crashes" if row["crash_ms"] == "" else f"crash at {row['crash_ms']:g} ms" for row in rows]
    steps = [float(row["makespan_s"]) - float(row["recovery_s"]) for row in rows]
    panel.barh(names, steps, label="40 steps, and the step that is taken again")
    panel.barh(
        names, [float(row["recovery_s"]) for row in rows], left=steps, label="recovery: waiting for all to sign in"
    )
    panel.set_xlabel("makespan, s")
    panel.invert_yaxis()
    figure.legend(loc="outside upper center", ncols=2, fontsize="small")
    return figure


if __name__ == "__main__":
    studies.main(__file__, measure, draw)
