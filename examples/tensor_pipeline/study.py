"""Splits of a model over six boards: the one with most tokens per second, and the one with the fastest next token."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import studies
from studies import Row, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOKENS = 4
CUTS = [(1, 1), (1, 3), (3, 1), (6, 1), (2, 3)]
"""Stages, and ranks of each. The model has three KV heads, so matrices are sharded over three ranks or not at all."""
BATCH = 12


def measure(runs: Runs) -> list[Row]:
    """The program runs once for each split; a faster network is a replay."""
    rows: list[Row] = []
    expected = None
    for stages, width in CUTS:
        ranks = stages * width
        words = ["--stages", stages, "--batch", BATCH, "--tokens", TOKENS]
        cut = f"device.board.count={ranks}"
        run = runs.simulate(f"{stages}x{width}", HERE / "answer.py", words, HERE / "boards.toml", set=cut)
        expected = expected or studies.said(run, "tokens ")
        if studies.said(run, "tokens ") != expected:
            raise SystemExit(f"{stages} stages of {width}: other tokens than those of one board")
        fast = runs.replay("replay", run, set=['network.bandwidth="10 Gbps"', 'network.latency="20 us"'])
        for network, result in (("1 Gbps, 200 us", run), ("10 Gbps, 20 us", fast)):
            # Passes of the first stage and its waits for tokens follow one another: they add up to one round.
            seconds = studies.total(result, "decode") / (TOKENS - 1)
            rows.append(
                {
                    "stages": stages,
                    "width": width,
                    "boards": ranks,
                    "batch": BATCH,
                    "network": network,
                    "token_ms": 1e3 * seconds,
                    "tokens_per_s": BATCH / seconds,
                }
            )
    return rows


def draw(rows: list[Row]) -> "Figure":
    """Tokens per second of each split."""
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots()
    for shift, network in enumerate(dict.fromkeys(row["network"] for row in rows)):
        bars = [row for row in rows if row["network"] == network]
        panel.bar(
            [x + 0.4 * shift for x in range(len(bars))], [row["tokens_per_s"] for row in bars], 0.4, label=network
        )
    panel.set(xlabel=f"stages x ranks of each, batch {BATCH}", ylabel="tokens a second")
    panel.set_xticks([x + 0.2 for x in range(len(CUTS))], [f"{stages} x {width}" for stages, width in CUTS])
    panel.legend()
    return figure


if __name__ == "__main__":
    studies.main(__file__, measure, draw)
