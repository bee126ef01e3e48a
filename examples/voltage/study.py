"""Gain of overlapping the gathers of a prefill, by length and network: simulated, by `whatif`, published."""

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))

import studies
import uniference
from studies import Row, Runs
from uniference import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "prefill.py"
OVERLAPS = ["nothing", "queries", "all"]
NETWORKS = [(100, 1), (100, 10), (1000, 1), (10000, 0.02)]
"""Mbit/s, and milliseconds one way. The first three networks are those of the published measurements."""
BOARDS_LENGTHS = [48, 192]


def measure(runs: Runs) -> list[Row]:
    """Each variant runs once for each length; other networks are replays of its record."""
    with (HERE / "published.csv").open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    published = {(int(r["bandwidth_mbps"]), float(r["latency_ms"]), int(r["length"])): r for r in rows}
    figures: list[Row] = []
    for length in sorted({length for _, _, length in published}):
        # The tokens of a prompt are sharded over two boards.
        words = ["--shape", "llama-3.2-1b", "--length", length + length % 2]
        made = {
            overlap: runs.simulate(
                f"orin-{length}-{overlap}", PROGRAM, [*words, "--overlap", overlap], HERE / "orins.toml", values="none"
            )
            for overlap in OVERLAPS
        }
        figures += compared(runs, "orin nano, llama-3.2-1b", length, made, published)
    for length in BOARDS_LENGTHS:
        made = {
            overlap: runs.simulate(
                f"board-{length}-{overlap}", PROGRAM, ["--length", length, "--overlap", overlap], HERE / "boards.toml"
            )
            for overlap in OVERLAPS
        }
        if len({str(studies.said(run, "next token")) for run in made.values()}) != 1:
            raise SystemExit(f"{length} tokens: with overlap the next token is another one")
        figures += compared(runs, "raspberry pi 5, smollm2-135m", length, made, {})
    return figures


def compared(
    runs: Runs, boards: str, length: int, made: dict[str, Run], published: dict[tuple[int, float, int], dict[str, str]]
) -> list[Row]:
    """One row for each network."""
    # The call is the same in all variants; only one variant waits for it at once.
    (line,) = [n for n, text in enumerate(PROGRAM.read_text().splitlines(), 1) if "all_gather_into_tensor(" in text]
    rows: list[Row] = []
    for bandwidth, latency in NETWORKS:
        network = [f'network.bandwidth="{bandwidth} Mbps"', f'network.latency="{latency} ms"']
        runs_there = {name: runs.replay(f"replay-{name}", run, set=network) for name, run in made.items()}
        plain, queries, everything = (prefill(runs_there[name]) for name in OVERLAPS)
        advice = uniference.whatif(runs_there["nothing"], overlap=f"prefill.py:{line}")
        real = published.get((bandwidth, latency, length))
        rows.append(
            {
                "boards": boards,
                "network": f"{bandwidth} Mbps, {latency:g} ms",
                "length": length,
                "plain_s": plain,
                "queries_gain_pct": 100 * (1 - queries / plain),
                "all_gain_pct": 100 * (1 - everything / plain),
                "whatif_gain_pct": 100 * advice["changes"][0]["gain_s"] / plain,
                "published_plain_s": real["plain_s"] if real else "",
                "published_gain_pct": 100 * (1 - float(real["overlapped_s"]) / float(real["plain_s"])) if real else "",
                "published_p": real["p"] if real else "",
            }
        )
    return rows


def prefill(run: Run) -> float:
    """Seconds until the next token, on the rank that has the end of the prompt."""
    return studies.phase(run, "prefill", rank=len(run.ranks) - 1)


def draw(rows: list[Row]) -> "Figure":
    """Gain by length, one panel per network; dots are published measurements, filled if they are significant."""
    import matplotlib.pyplot as plt

    mine = [row for row in rows if str(row["boards"]).startswith("orin")]
    networks = list(dict.fromkeys(row["network"] for row in mine if row["published_p"] != ""))
    figure, panels = plt.subplots(1, len(networks), sharey=True)
    for panel, network in zip(panels, networks, strict=True):
        line = [row for row in mine if row["network"] == network]
        lengths = [row["length"] for row in line]
        panel.axhline(0, color="#777777", linewidth=0.8)
        panel.plot(
            lengths, [r["queries_gain_pct"] for r in line], marker=".", label="simulated: queries beside the gather"
        )
        panel.plot(lengths, [r["all_gain_pct"] for r in line], marker=".", label="simulated: own keys and values, too")
        for sure, face in ((True, "#777777"), (False, "none")):
            dots = [row for row in line if (float(row["published_p"]) < 0.05) == sure]
            panel.scatter(
                [row["length"] for row in dots],
                [row["published_gain_pct"] for row in dots],
                facecolors=face,
                edgecolors="#777777",
                label=f"published, p {'<' if sure else '>='} 0.05",
                zorder=3,
            )
        panel.set(title=network, xlabel="length of the prompt", ylim=(-7, 7))
    panels[0].set_ylabel("gain, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize="small")
    return figure


if __name__ == "__main__":
    studies.main(__file__, measure, draw)
