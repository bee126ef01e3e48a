"""Cost of unequal expert loads, pass by pass, with a plain router and with one that balances loads."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))

import studies
from studies import Row, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
PASSES = 24
ROUTERS = {"as it is": [], "steered": ["--balance"]}


def measure(runs: Runs) -> list[Row]:
    """Two runs: the routing depends on values, so that no replay can change the router."""
    rows: list[Row] = []
    for router, words in ROUTERS.items():
        run = runs.simulate(router, HERE / "experts.py", ["--passes", PASSES, *words], HERE / "boards.toml")
        computing = {phase.rank: phase.total_s for phase in run.phases if phase.name == "experts"}
        for number, line in enumerate(studies.said(run, "busiest rank ")):
            loads = [int(load) for load in line.split("experts [")[1].rstrip("]").split(",")]
            rows.append(
                {
                    "router": router,
                    "pass": number,
                    "busiest_over_mean": float(line.split()[0]),
                    "least_used_expert": min(loads),
                    "most_used_expert": max(loads),
                    "experts_busiest_rank_s": max(computing.values()),
                    "experts_mean_rank_s": sum(computing.values()) / len(computing),
                    "makespan_s": run.makespan,
                }
            )
    return rows


def draw(rows: list[Row]) -> "Figure":
    """Loads over passes."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2)
    for router in ROUTERS:
        line = [row for row in rows if row["router"] == router]
        panels[0].plot([r["pass"] for r in line], [r["busiest_over_mean"] for r in line], marker=".", label=router)
        (low, high) = ([row[key] for row in line] for key in ("least_used_expert", "most_used_expert"))
        panels[1].fill_between([r["pass"] for r in line], low, high, alpha=0.4, label=router)
    panels[0].set(title="busiest rank over the mean", xlabel="pass", ylim=(1, None))
    panels[1].set(title="tokens of an expert, layer 0", xlabel="pass", ylim=(0, None))
    panels[0].legend()
    panels[1].legend()
    return figure


if __name__ == "__main__":
    studies.main(__file__, measure, draw)
