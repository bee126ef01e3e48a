"""Benefit of disaggregated prefill and decode on two boards, by the rate of requests and by the network."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import studies
from studies import Row, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REQUESTS, TOKENS = 16, 16
WAYS = {"both on both": "together", "apart": "apart", "apart, by layer": "by-layer"}
RATES = [1, 2, 3]
BANDWIDTHS_MBPS = [1000, 300, 100]
"""Slower networks are run at the lowest rate only."""
TIMES = ("queueing", "first_token", "each_token", "pause", "end_to_end")


def measure(runs: Runs) -> list[Row]:
    """A run for each case: the requests of a batch depend on the clock, so that no replay is valid."""
    rows: list[Row] = []
    for name, way in WAYS.items():
        for bandwidth in BANDWIDTHS_MBPS:
            # Together, no KV cache is sent.
            if bandwidth < max(BANDWIDTHS_MBPS) and way == "together":
                continue
            for rate in RATES if bandwidth == max(BANDWIDTHS_MBPS) else RATES[:1]:
                words = ["--way", way, "--requests", REQUESTS, "--tokens", TOKENS, "--rate", rate]
                run = runs.simulate(
                    f"{way}-{bandwidth}-{rate}",
                    HERE / "answer.py",
                    words,
                    HERE / "boards.toml",
                    set=f'network.bandwidth="{bandwidth} Mbps"',
                    values="small",
                )
                lines = [line.split(": ")[1].split() for line in studies.said(run, "request ")]
                row: Row = {"way": name, "bandwidth_mbps": bandwidth, "rate_per_s": rate}
                for place, time in enumerate(TIMES):
                    sample = sorted(float(line[place]) for line in lines)
                    row[f"{time}_median_s"] = (sample[REQUESTS // 2 - 1] + sample[REQUESTS // 2]) / 2
                    row[f"{time}_longest_s"] = sample[-1]
                rows.append(row)
    return rows


def draw(rows: list[Row]) -> "Figure":
    """First token, pause and end to end over the rate; longest of all requests, and median."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3)
    titles = {"first_token": "first token", "pause": "longest pause", "end_to_end": "last token"}
    for panel, (time, title) in zip(panels, titles.items(), strict=True):
        for place, way in enumerate(WAYS):
            line = [row for row in rows if (row["way"], row["bandwidth_mbps"]) == (way, max(BANDWIDTHS_MBPS))]
            rates = [row["rate_per_s"] for row in line]
            panel.plot(rates, [r[f"{time}_longest_s"] for r in line], marker="o", color=f"C{place}", label=way)
            panel.plot(rates, [r[f"{time}_median_s"] for r in line], color=f"C{place}", linestyle="--")
        panel.set(title=title, xlabel="requests a second", ylim=(0, None))
        panel.set_xticks(RATES)
    panels[0].set_ylabel("s: median (dashed), longest")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize="small")
    return figure


if __name__ == "__main__":
    studies.main(__file__, measure, draw)
