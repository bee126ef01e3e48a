"""Compares our default fidelity with ASTRA-sim's congestion-aware results, and prints the table of docs/astra-sim.md.

python scripts/compare_astra.py FOLDER, where FOLDER has `predictions/collectives.csv` (ASTRA-sim's results) and `et/` (the traces
that gave them). Only one-dimensional networks are compared, each with the algorithm of ours that is nearest to ASTRA-sim's.
"""

import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

PRESETS = {"ring1d": "ring", "switch1d": "switch", "fc1d": "fully_connected"}
# Where ASTRA-sim has another algorithm than our `ideal` backend, and we have it too.
ALGORITHMS = {("halvingDoubling", "all_reduce"): "halving_doubling"}
LARGEST = 1 << 26


def cluster(row: dict[str, str]) -> str:
    rate = float(row["bw_GBps"]) * 2**30 / 1e9
    preset = PRESETS[row["topo"]]
    # ASTRA-sim's switch is two hops away, ours in the middle of one.
    latency = float(row["lat_ns"]) * (2 if preset == "switch" else 1)
    return (
        f'backend = "ideal"\n[[device]]\nname = "npu"\ncount = {row["npus"]}\n[network]\n'
        f'preset = "{preset}"\nbandwidth = "{rate} GB/s"\nlatency = "{latency} ns"\n'
    )


def ours(row: dict[str, str], trace: Path, folder: Path) -> float:
    file = folder / "cluster.toml"
    file.write_text(cluster(row))
    words = [sys.executable, "-m", "uniference", "replay", str(trace), "--cluster", str(file), "--json"]
    algorithm = ALGORITHMS.get((row["impl"], row["collective"]))
    if algorithm:
        words += ["--algorithm", f"{row['collective']}={algorithm}"]
    words += ["--record", "summary", "--out", str(folder / "out")]
    report = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return float(report["makespan_ps"]) / 1e3


def main(reference: Path) -> None:
    print("| network | ranks | collective | bytes | ASTRA-sim's algorithm | ASTRA-sim, us | ours, us | ours / theirs |")
    print("|---|---|---|---|---|---|---|---|")
    with (reference / "predictions/collectives.csv").open() as file, tempfile.TemporaryDirectory() as folder:
        for row in csv.DictReader(file):
            size = int(row["comm_size_B"])
            if row["backend"] != "aware" or row["topo"] not in PRESETS or size > LARGEST:
                continue
            theirs = float(row["cycles_max"])
            mine = ours(row, reference / f"et/{row['collective']}_{size}B.et", Path(folder))
            algorithm = row["a2a_impl"] if row["collective"] == "all_to_all" else row["impl"]
            cells = [PRESETS[row["topo"]], row["npus"], row["collective"], size, algorithm]
            cells += [f"{theirs / 1e3:,.1f}", f"{mine / 1e3:,.1f}", f"{mine / theirs:.3f}"]
            print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
