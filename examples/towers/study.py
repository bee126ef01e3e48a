"""Time of two boards for pictures and captions, with a tower each or with half of the items, compared with one board."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))

import studies
from studies import Row, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
PICTURES = 16
CAPTIONS = [4, 8, 16, 24, 32, 64]
SPLITS = {"one board": 1, "towers": 2, "data": 2}
NETWORKS = {"1 Gbps, 200 us": ("1 Gbps", "200 us"), "100 Mbps, 5 ms": ("100 Mbps", "5 ms")}


def measure(runs: Runs) -> list[Row]:
    """A run without values for each split and number of captions; a slower network is a replay."""
    rows: list[Row] = []
    for captions in CAPTIONS:
        alone: dict[str, float] = {}
        for split, boards in SPLITS.items():
            words = ["--pictures", PICTURES, "--captions", captions]
            run = runs.simulate(
                f"{split}-{captions}",
                HERE / "embed.py",
                [*words, *(["--split", split] if boards > 1 else [])],
                HERE / "boards.toml",
                set=f"device.board.count={boards}",
                values="none",
            )
            for network, (bandwidth, latency) in NETWORKS.items():
                changes = [f'network.bandwidth="{bandwidth}"', f'network.latency="{latency}"']
                there = runs.replay("replay", run, set=changes)
                answer = studies.phase(there, "answer")
                computing = [phase for phase in there.phases if phase.name in ("pictures", "captions")]
                held: dict[int, int] = {}
                for entry in there.report["memory"]:
                    held[entry["rank"]] = held.get(entry["rank"], 0) + entry["peak_bytes"]
                alone.setdefault(network, answer)
                rows.append(
                    {
                        "captions": captions,
                        "split": split,
                        "network": network,
                        "answer_s": answer,
                        "pictures_s": max((p.total_s for p in computing if p.name == "pictures"), default=""),
                        "captions_s": max((p.total_s for p in computing if p.name == "captions"), default=""),
                        "times_as_fast": alone[network] / answer,
                        "memory_mb": max(held.values()) / 1e6,
                    }
                )
    return rows


def draw(rows: list[Row]) -> "Figure":
    """Speed relative to one board, over the number of captions."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, sharey=True)
    for panel, network in zip(panels, NETWORKS, strict=True):
        for split in SPLITS:
            line = [row for row in rows if (row["network"], row["split"]) == (network, split)]
            panel.plot([r["captions"] for r in line], [r["times_as_fast"] for r in line], marker="o", label=split)
        panel.set(title=network, xlabel=f"captions for {PICTURES} pictures", ylim=(0, 2.1))
    panels[0].set_ylabel("times as fast as one board")
    panels[1].legend(loc="lower right")
    return figure


if __name__ == "__main__":
    studies.main(__file__, measure, draw)
