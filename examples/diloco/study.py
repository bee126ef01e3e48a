"""Training time and final loss with DDP and with DiLoCo, by the network."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))

import studies
from studies import Row, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
STEPS = 100
METHODS = {
    "one site": [],
    "DDP": [],
    "DiLoCo, every 5": ["--method", "diloco", "--inner", 5],
    "DiLoCo, every 20": ["--method", "diloco", "--inner", 20],
    "DiLoCo, every 50": ["--method", "diloco", "--inner", 50],
}
NETWORKS = {
    "20 Mbps, 25 ms": ("20 Mbps", "25 ms"),
    "100 Mbps, 5 ms": ("100 Mbps", "5 ms"),
    "1 Gbps, 200 us": ("1 Gbps", "200 us"),
}


def measure(runs: Runs) -> list[Row]:
    """Each method runs once; other networks are replays."""
    rows: list[Row] = []
    for method, words in METHODS.items():
        sites = 1 if method == "one site" else 4
        run = runs.simulate(
            method,
            HERE / "train.py",
            ["--steps", STEPS, *words],
            HERE / "sites.toml",
            set=f"device.site.count={sites}",
        )
        (loss,) = studies.said(run, "loss ")
        for network, (bandwidth, latency) in NETWORKS.items():
            changes = [f'network.bandwidth="{bandwidth}"', f'network.latency="{latency}"']
            there = runs.replay("replay", run, set=changes)
            rows.append(
                {
                    "method": method,
                    "network": network,
                    "loss": float(loss),
                    "makespan_s": there.makespan,
                    "sent_mb": sum(rank.bytes_sent for rank in there.ranks) / 1e6,
                    "computing": sum(rank.compute_s for rank in there.ranks) / len(there.ranks) / there.makespan,
                }
            )
    return rows


def draw(rows: list[Row]) -> "Figure":
    """Loss over time: a point for each method and network."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(NETWORKS), sharex=True, sharey=True)
    for panel, network in zip(panels, NETWORKS, strict=True):
        for row in rows:
            if row["network"] == network:
                panel.scatter(row["makespan_s"], row["loss"], label=row["method"], s=45)
        panel.set(title=network, xlabel=f"seconds for {STEPS} steps", xscale="log")
    panels[0].set_ylabel("loss on unseen text")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=5, fontsize="small")
    return figure


if __name__ == "__main__":
    studies.main(__file__, measure, draw)
