"""Time per token on three boards and on one, by the latency between boards, with batches of 1 and 4."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import studies
from studies import Row, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LATENCIES_US = [10, 50, 200, 1000, 5000]
BATCHES = [1, 4, 16]


def measure(runs: Runs) -> list[Row]:
    """The program runs once for each number of boards and batch; other networks are replays of its record."""
    program, boards = HERE / "answer.py", HERE / "boards.toml"
    rows: list[Row] = []
    for batch in BATCHES:
        words = ["--batch", batch, "--tokens", 8]
        alone = runs.simulate(f"alone-{batch}", program, words, boards, set="device.board.count=1")
        three = runs.simulate(f"three-{batch}", program, words, boards)
        if studies.said(alone, "tokens ") != studies.said(three, "tokens "):
            raise SystemExit(f"batch {batch}: three boards say something else than one")
        networks = [("one board", "", 0, alone)]
        for backend in ("gloo", "ideal"):
            for latency in LATENCIES_US:
                changed = runs.replay("replay", three, backend=backend, set=f'network.latency="{latency} us"')
                networks.append(("three boards", backend, latency, changed))
        for used, backend, latency, run in networks:
            rows.append(
                {
                    "boards": used,
                    "library": backend,
                    "latency_us": latency,
                    "batch": batch,
                    "prefill_ms": 1e3 * studies.phase(run, "prefill"),
                    "decode_ms": 1e3 * studies.phase(run, "decode"),
                    "tokens_per_s": batch / studies.phase(run, "decode"),
                }
            )
    return rows


def draw(rows: list[Row]) -> "Figure":
    """Time per token over latency."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(BATCHES), sharey=True)
    for panel, batch in zip(panels, BATCHES, strict=True):
        mine = [row for row in rows if row["batch"] == batch]
        (alone,) = [row["decode_ms"] for row in mine if row["boards"] == "one board"]
        panel.axhline(float(alone), color="#777777", linestyle="--", label="one board")
        for library, label in (("gloo", "three boards, Gloo"), ("ideal", "three boards, a library without cost")):
            line = [row for row in mine if row["library"] == library]
            panel.plot([r["latency_us"] for r in line], [r["decode_ms"] for r in line], marker="o", label=label)
        panel.set(xscale="log", yscale="log", title=f"batch {batch}", xlabel="latency between boards, us")
        panel.set_yticks([30, 100, 300, 1000, 3000], ["30", "100", "300", "1000", "3000"])
        panel.minorticks_off()
    panels[0].set_ylabel("one token of each text, ms")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


if __name__ == "__main__":
    studies.main(__file__, measure, draw)
