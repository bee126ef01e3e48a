"""Ring attention compared with gathered keys and values: time, and largest memory of a rank, by length and network."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))

import studies
from studies import Row, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
LENGTHS = [2048, 8192, 32768]
WAYS = {
    "gather": ["--gather"],
    "ring, contiguous": ["--order", "contiguous"],
    "ring, zigzag": ["--order", "zigzag"],
}
NETWORKS = {"1 Gbps, 200 us": ("1 Gbps", "200 us"), "10 Gbps, 20 us": ("10 Gbps", "20 us")}


def measure(runs: Runs) -> list[Row]:
    """Each method runs once for each length, without values; a test of the program checks its results."""
    rows: list[Row] = []
    for length in LENGTHS:
        for way, words in WAYS.items():
            run = runs.simulate(
                f"{way}-{length}",
                HERE / "attend.py",
                ["--length", length, "--unchecked", *words],
                HERE / "boards.toml",
                values="none",
            )
            for network, (bandwidth, latency) in NETWORKS.items():
                changes = [f'network.bandwidth="{bandwidth}"', f'network.latency="{latency}"']
                there = runs.replay("replay", run, set=changes)
                attending = [phase for phase in there.phases if phase.name == "attention"]
                held: dict[int, int] = {}
                for entry in there.report["memory"]:
                    held[entry["rank"]] = held.get(entry["rank"], 0) + entry["peak_bytes"]
                rows.append(
                    {
                        "length": length,
                        "way": way,
                        "network": network,
                        "layer_ms": 1e3 * max(phase.p50_s for phase in attending),
                        "most_compute_ms": 1e3 * max((phase.compute_s or 0) / phase.count for phase in attending),
                        "least_compute_ms": 1e3 * min((phase.compute_s or 0) / phase.count for phase in attending),
                        "memory_mb": max(held.values()) / 1e6,
                    }
                )
    return rows


def draw(rows: list[Row]) -> "Figure":
    """Time of a layer, relative to gathering."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, sharey=True)
    for panel, network in zip(panels, NETWORKS, strict=True):
        for shift, way in enumerate(WAYS):
            bars = [row for row in rows if (row["network"], row["way"]) == (network, way)]
            panel.bar([x + 0.27 * shift for x in range(len(bars))], [r["layer_ms"] for r in bars], 0.27, label=way)
        panel.set(title=network, xlabel="tokens of the sequence", yscale="log")
        panel.set_xticks([x + 0.27 for x in range(len(LENGTHS))], [str(length) for length in LENGTHS])
    panels[0].set_ylabel("a layer's attention, ms")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize="small")
    return figure


if __name__ == "__main__":
    studies.main(__file__, measure, draw)
