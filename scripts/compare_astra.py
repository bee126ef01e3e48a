"""Compares the default fidelity with ASTRA-sim's congestion-aware results, and prints the tables of
docs/explanation/astra-sim.md.

python scripts/compare_astra.py FOLDER, where FOLDER has `predictions/collectives.csv` (ASTRA-sim's results) and `et/`
(its input traces). Networks are rebuilt with the same links; the `ideal` backend carries out collectives, with the
algorithm that is nearest to ASTRA-sim's; on networks of several dimensions also the `hierarchical` backend, with as
many chunks as ASTRA-sim's.
"""

import csv
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

KINDS = {
    "ring1d": ["ring"],
    "switch1d": ["switch"],
    "fc1d": ["fully_connected"],
    "switch2d": ["switch", "switch"],
    "torus3d": ["ring", "ring", "ring"],
}
NAMES = {
    "ring1d": "ring",
    "switch1d": "switch",
    "fc1d": "fully connected",
    "switch2d": "2 switches",
    "torus3d": "torus",
}
# Algorithms of ASTRA-sim that differ from the `ideal` backend's, and that Uniference has, too.
ALGORITHMS = {("halvingDoubling", "all_reduce"): "halving_doubling"}
# Names of algorithms along a dimension, in ASTRA-sim and in Uniference.
ROWS = {"ring": "ring", "direct": "direct", "halvingDoubling": "halving_doubling"}
# Larger collectives appear only in the summary.
LARGEST_SHOWN = 1 << 26

Row = dict[str, str]


def cluster(row: Row, *, hierarchical: bool) -> str:
    """The cluster file of a row's network.

    Hierarchical algorithms are compared on store-and-forward switches, like ASTRA-sim's: every byte is transmitted
    twice at its link's rate, unless messages of a rank follow each other (all-to-all).
    """
    columns = [column.split("/") for column in (row["bw_GBps"], row["lat_ns"])]
    sizes = row["npus_per_dim"].split("x")
    dimensions = []
    for kind, size, rate, latency in zip(KINDS[row["topo"]], sizes, *columns, strict=True):
        # ASTRA-sim counts two hops to a switch, a cluster file one.
        hop = float(latency) * (2 if kind == "switch" else 1)
        width = float(rate) * 2**30 / 1e9
        if hierarchical and kind == "switch" and row["collective"] != "all_to_all":
            width /= 2
        dimensions.append(f'{{ kind = "{kind}", size = {size}, bandwidth = "{width} GB/s", latency = "{hop} ns" }}')
    rules = ""
    if hierarchical:
        names = row["a2a_impl" if row["collective"] == "all_to_all" else "impl"].split("/")
        along = json.dumps([ROWS[name] for name in names])
        rule = f'{{ algorithm = "hierarchical", chunks = {row["splits"]}, dimensions = {along} }}'
        rules = f"[collective]\n{row['collective']} = {rule}\n"
    return (
        f'backend = "ideal"\n[[device]]\nname = "npu"\ncount = {row["npus"]}\n[network]\n'
        f'preset = "dimensions"\ndimensions = [{", ".join(dimensions)}]\n{rules}'
    )


def ours(row: Row, trace: Path, folder: Path, *, hierarchical: bool) -> float:
    """Uniference's makespan in nanoseconds."""
    file = folder / "cluster.toml"
    file.write_text(cluster(row, hierarchical=hierarchical))
    words = [sys.executable, "-m", "uniference", "replay", str(trace), "--cluster", str(file), "--json"]
    algorithm = ALGORITHMS.get((row["impl"], row["collective"]))
    if algorithm and not hierarchical:
        words += ["--algorithm", f"{row['collective']}={algorithm}"]
    words += ["--record", "summary", "--out", str(folder / "out")]
    report = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return float(report["makespan_ps"]) / 1e3


def compared(reference: Path, *, hierarchical: bool) -> list[tuple[Row, float, float]]:
    """Every congestion-aware row with both makespans in nanoseconds; `hierarchical` selects rows of several
    dimensions."""
    rows = []
    with (reference / "predictions/collectives.csv").open() as file, tempfile.TemporaryDirectory() as folder:
        for row in csv.DictReader(file):
            several = len(KINDS.get(row["topo"], [])) > 1
            if row["backend"] in ("aware", "aware_md") and several >= hierarchical:
                trace = reference / f"et/{row['collective']}_{row['comm_size_B']}B.et"
                mine = ours(row, trace, Path(folder), hierarchical=hierarchical)
                rows.append((row, float(row["cycles_max"]), mine))
    return rows


def print_cases(rows: list[tuple[Row, float, float]]) -> None:
    """Prints one-dimensional networks, case by case."""
    columns = "| network | ranks | collective | bytes | ASTRA-sim's algorithm | ASTRA-sim, us | Uniference, us |"
    print(f"{columns} Uniference / ASTRA-sim |")
    print("|---|---|---|---|---|---|---|---|")
    for row, theirs, mine in rows:
        size = int(row["comm_size_B"])
        if row["backend"] == "aware" and size <= LARGEST_SHOWN:
            algorithm = row["a2a_impl"] if row["collective"] == "all_to_all" else row["impl"]
            cells = [NAMES[row["topo"]], row["npus"], row["collective"], str(size), algorithm]
            cells += [f"{theirs / 1e3:,.1f}", f"{mine / 1e3:,.1f}", f"{mine / theirs:.3f}"]
            print("| " + " | ".join(cells) + " |")


def print_summary(rows: list[tuple[Row, float, float]]) -> None:
    """Prints the ratios of all rows, by network and collective."""
    groups = defaultdict(list)
    for row, theirs, mine in rows:
        groups[NAMES[row["topo"]], row["collective"]].append((mine / theirs, row))
    columns = "| network | collective | cases | Uniference / ASTRA-sim, median |"
    print(f"{columns} 95 % are no farther from 1 than | farthest from 1 |")
    print("|---|---|---|---|---|---|")
    for (network, collective), ratios in groups.items():
        by_distance = sorted(ratios, key=lambda pair: max(pair[0], 1 / pair[0]))
        median = statistics.median(ratio for ratio, _ in ratios)
        p95 = by_distance[-(-len(by_distance) * 95 // 100) - 1][0]
        worst, row = by_distance[-1]
        where = f"{worst:.3f} ({row['npus']} ranks, {int(row['comm_size_B']) >> 20} MiB, {row['splits']} chunks)"
        print(f"| {network} | {collective} | {len(ratios)} | {median:.3f} | {p95:.3f} | {where} |")


def main(reference: Path) -> None:
    rows = compared(reference, hierarchical=False)
    print_cases(rows)
    print()
    print_summary(rows)
    print()
    print_summary(compared(reference, hierarchical=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
