"""Llama 3 70B on three clusters: whether it fits, the time per token and its parts, and possible speedups."""

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import studies
import uniference
from studies import Row, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
TOKENS, CONTEXT = 4, 2048
CLUSTERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "8 H100": ("h100.toml", {"tp": 8}, {}),
    "16 Orin Nano": ("orins.toml", {"pp": 16}, {"set": "device.orin.model=jetson-orin-nano"}),
    "16 AGX Orin, stages": ("orins.toml", {"pp": 16}, {}),
    "16 AGX Orin, 2 stages of 8": ("orins.toml", {"tp": 8, "pp": 2}, {}),
    "40 Pi 5, stages": ("pis.toml", {"pp": 40}, {}),
    "40 Pi 5, 5 stages of 8": ("pis.toml", {"tp": 8, "pp": 5}, {}),
}
KINDS = {
    "compute": ("compute",),
    "bandwidth": ("bandwidth", "contention", "queueing"),
    "latency": ("latency", "handshake"),
    "library": ("library",),
}


def measure(runs: Runs) -> list[Row]:
    """A generated job for each cluster, split and batch: no program runs."""
    rows: list[Row] = []
    for name, (file, split, changes) in CLUSTERS.items():
        for batch in (1,):
            job = {"phase": "decode", "seq": CONTEXT, "batch": batch, **split}
            fits, least = fitting(HERE / file, job, changes)
            row: Row = {"cluster": name, "batch": batch, "fits": fits, "spare_gib": least}
            if fits == "no":
                rows.append(row | dict.fromkeys(("token_ms", "tokens_per_s", *KINDS, "whatif", "whatif_gain_pct"), ""))
                continue
            run = uniference.workload(
                "llama",
                HERE / file,
                out=runs.empty(f"{name}-{batch}"),
                new_tokens=TOKENS,
                record="ops",
                fold="off",
                **job,
                **changes,
            )
            path = {kind["name"]: kind["share"] for kind in uniference.explain(run)["kinds"]}
            row |= {"token_ms": 1e3 * run.makespan / TOKENS, "tokens_per_s": run.report["job"]["tokens_per_s"]}
            row |= {kind: sum(path.get(part, 0.0) for part in parts) for kind, parts in KINDS.items()}
            # Changes that no purchase and no setting achieves are left out.
            found = [change for change in uniference.whatif(run)["changes"] if "--free" not in change["options"]]
            best = max(found, key=lambda change: change["gain"])
            rows.append(row | {"whatif": " ".join(best["options"]), "whatif_gain_pct": 100 * best["gain"]})
    return rows


def fitting(cluster: Path, job: dict[str, Any], changes: dict[str, str]) -> tuple[str, float]:
    """Whether the job fits, and the GiB of the tightest rank that are free or missing."""
    words = [sys.executable, "-m", "uniference", "fit", "--json", "--cluster", str(cluster)]
    words += [word for name, value in changes.items() for word in (f"--{name}", value)]
    words += ["workload", "llama", *(word for name, value in job.items() for word in (f"--{name}", str(value)))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    ranks = json.loads(done.stdout)["ranks"]
    spare = min(rank["memory_bytes"] - rank["peak_bytes"] for rank in ranks)
    return ("yes", "no")[done.returncode], spare / 2**30


def draw(rows: list[Row]) -> "Figure":
    """Time per token, by its parts."""
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(7, 3))
    mine = [row for row in rows if row["batch"] == 1 and row["fits"] == "yes"]
    left = [0.0] * len(mine)
    for kind in KINDS:
        shares = [float(row[kind]) for row in mine]
        panel.barh([str(row["cluster"]) for row in mine], shares, left=left, label=kind)
        left = [start + share for start, share in zip(left, shares, strict=True)]
    for place, row in enumerate(mine):
        panel.annotate(f"{float(row['token_ms']) / 1e3:.3g} s a token", (1.01, place), va="center")
    panel.set(xlabel="part of the time of a token, batch 1", xlim=(0, 1.25), xticks=[0, 0.25, 0.5, 0.75, 1])
    panel.invert_yaxis()
    figure.legend(loc="outside upper center", ncols=4, fontsize="small")
    return figure


if __name__ == "__main__":
    studies.main(__file__, measure, draw)
