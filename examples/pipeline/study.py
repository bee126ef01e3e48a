"""Tokens per second of three boards as a pipeline, by the number of micro-batches, compared with one board."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import studies
from studies import Row, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH, TOKENS = 12, 8
MICRO_BATCHES = [1, 2, 3, 4, 6, 12]
CUTS = {"equal layers": "10,10,10", "equal weights": "13,13,4"}
"""The last stage also has the head, whose matrix is as large as those of eight layers."""


def measure(runs: Runs) -> list[Row]:
    """The program runs once for each split of the layers and of the batch; a slower network is a replay."""
    program, boards = HERE / "answer.py", HERE / "boards.toml"
    words = ["--batch", BATCH, "--tokens", TOKENS]
    alone = runs.simulate("alone", program, words, boards, set="device.board.count=1")
    cases = [("one board", 1, "", alone)]
    for cut, layers in CUTS.items():
        for count in MICRO_BATCHES:
            more = ["--micro-batches", count, "--layers", layers]
            run = runs.simulate(f"{layers}-{count}", program, [*words, *more], boards)
            if studies.said(run, "tokens ") != studies.said(alone, "tokens "):
                raise SystemExit(f"{layers}, {count} micro-batches: the pipeline says something else than one board")
            slow = runs.replay("replay", run, set=['network.bandwidth="100 Mbps"', 'network.latency="5 ms"'])
            cases += [(cut, count, "1 Gbps, 200 us", run), (cut, count, "100 Mbps, 5 ms", slow)]
    rows: list[Row] = []
    for cut, count, network, run in cases:
        # The first stage's passes and its waits for tokens follow one another until the end.
        decoding = studies.total(run, "decode")
        computed = sum(phase.compute_s or 0 for phase in run.phases if phase.name == "decode")
        rows.append(
            {
                "cut": cut,
                "micro_batches": count,
                "network": network,
                "tokens_per_s": BATCH * (TOKENS - 1) / decoding,
                "busy": computed / (len(run.ranks) * decoding),
            }
        )
    return rows


def draw(rows: list[Row]) -> "Figure":
    """Tokens per second over micro-batches."""
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots()
    (alone,) = [float(row["tokens_per_s"]) for row in rows if row["cut"] == "one board"]
    networks = dict.fromkeys(row["network"] for row in rows if row["network"])
    for cut, network in [(cut, network) for cut in reversed(CUTS) for network in networks]:
        line = [row for row in rows if (row["cut"], row["network"]) == (cut, network)]
        counts = [row["micro_batches"] for row in line]
        panel.plot(counts, [row["tokens_per_s"] for row in line], marker="o", label=f"{cut}, {network}")
    panel.axhline(alone, color="#777777", linestyle="--", label="one board")
    panel.set(xlabel=f"micro-batches, of a batch of {BATCH}", ylabel="tokens a second", ylim=(0, None))
    panel.set_xticks(MICRO_BATCHES)
    panel.legend(ncols=2, fontsize="small")
    return figure


if __name__ == "__main__":
    studies.main(__file__, measure, draw)
