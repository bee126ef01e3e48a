"""Speedup of a model by a draft on another board, by latency, number of guesses, and layers that the draft lacks."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))

import studies
from studies import Row, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
PROGRAM, BOARDS = HERE / "decode.py", HERE / "boards.toml"
BATCH, TOKENS = 4, 24
WITHOUT = [4, 9]
GUESSES = [1, 2, 4, 6]
LATENCIES_MS = [0.05, 0.2, 1, 5, 20, 50]
SLOWDOWNS = [1, 12.7]
"""Slowdown of the large model's board: the weights of SmolLM2-1.7B are 12.7 times as much to read and to compute."""


def measure(runs: Runs) -> list[Row]:
    """The program runs once for each draft and number of guesses; latencies and the larger model are replays."""
    words = ["--batch", BATCH, "--tokens", TOKENS]
    alone = runs.simulate("alone", PROGRAM, [*words, "--guesses", 0], shortened(runs))
    decoding = studies.total(alone, "decode")
    rows: list[Row] = []
    for without in WITHOUT:
        for guesses in GUESSES:
            more = ["--guesses", guesses, "--without", without]
            run = runs.simulate(f"{without}-{guesses}", PROGRAM, [*words, *more], BOARDS)
            if studies.said(run, "tokens ") != studies.said(alone, "tokens "):
                raise SystemExit(f"{guesses} guesses without {without} layers: not what the model says alone")
            (counts,) = studies.said(run, "accepted ")
            right, guessed = (int(word) for word in counts.split() if word.isdigit())
            rounds = guessed // guesses
            for slowdown in SLOWDOWNS:
                for latency in LATENCIES_MS:
                    changes = [f"device.large.slowdown={slowdown}", f'network.latency="{latency} ms"']
                    there = runs.replay("replay", run, set=changes, compute="model")
                    rows.append(
                        {
                            "without_layers": without,
                            "guesses": guesses,
                            "large_slowdown": slowdown,
                            "latency_ms": latency,
                            "accepted": right / guessed,
                            "tokens_a_round": 1 + right / rounds,
                            "round_ms": 1e3 * studies.total(there, "decode") / rounds,
                            "times_as_fast": slowdown * decoding / studies.total(there, "decode"),
                        }
                    )
    return rows


def shortened(runs: Runs) -> Path:
    """The cluster with the large model's board alone."""
    before, large, rest = BOARDS.read_text().split("[[device]]\n")
    path = runs.folder / "alone.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{before}[[device]]\n{large}{rest[rest.index('[network]') :]}")
    return path


def draw(rows: list[Row]) -> "Figure":
    """Speedup over latency, for both sizes of the large model."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2)
    for panel, slowdown, title in zip(
        panels, SLOWDOWNS, ("the draft is of its size", "12.7 times the size"), strict=True
    ):
        for without, style in zip(WITHOUT, ("-", "--"), strict=True):
            for place, guesses in enumerate(GUESSES):
                key = (without, guesses, slowdown)
                line = [row for row in rows if (row["without_layers"], row["guesses"], row["large_slowdown"]) == key]
                panel.plot(
                    [row["latency_ms"] for row in line],
                    [row["times_as_fast"] for row in line],
                    style,
                    color=f"C{place}",
                    label=f"{guesses} guesses, {30 - without} layers",
                )
        panel.axhline(1, color="#777777", linewidth=0.8)
        panel.set(title=title, xlabel="latency, ms one way", xscale="log", ylim=(0, None))
    panels[0].set_ylabel("times as fast as alone")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize="small")
    return figure


if __name__ == "__main__":
    studies.main(__file__, measure, draw)
