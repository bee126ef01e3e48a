"""Runs the language model of examples/generate on two simulated clusters, and compares them.

The argument is the folder for both run folders.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLE = Path("examples/generate")
CLUSTERS = ["three-boards", "slow-network"]


def main() -> None:
    """Runs both clusters, then prints a comparison."""
    directory = Path(sys.argv[1])
    runs = {cluster: run(cluster, directory / cluster) for cluster in CLUSTERS}
    print(f"\n{'':34}" + "".join(f"{cluster:>16}" for cluster in runs))
    for row in [
        line("virtual time of a token, ms", [decode(output) for output, _ in runs.values()]),
        line("makespan with loading, s", [report["makespan_s"] for _, report in runs.values()]),
        line("computing, slowest rank, s", [worst(report, "compute_s") for _, report in runs.values()]),
        line("blocked in communication, worst, s", [worst(report, "exposed_comm_s") for _, report in runs.values()]),
        line("of that for a late peer, worst, s", [worst(report, "late_peer_s") for _, report in runs.values()]),
    ]:
        print(row)
    print(f"\nThe timelines are {directory}/*/trace*: open them at https://ui.perfetto.dev (nothing is uploaded).")
    print("Your own program: .venv/bin/uniference run --cluster CLUSTER.toml SCRIPT.py")


def run(cluster: str, out: Path) -> tuple[str, dict[str, Any]]:
    """The output of rank 0, and the run's report."""
    shutil.rmtree(out, ignore_errors=True)
    command = [str(Path(sys.executable).parent / "uniference"), "run", "--cluster", str(EXAMPLE / f"{cluster}.toml")]
    command += ["--out", str(out), str(EXAMPLE / "generate.py")]
    print(f"\n$ {' '.join(command)}", flush=True)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for text in process.stdout:
        print(text, end="", flush=True)
        lines.append(text)
    if process.wait():
        sys.exit(process.returncode)
    return "".join(lines), json.loads((out / "report.json").read_text())


def decode(output: str) -> float:
    """Milliseconds per token, as measured by the program itself."""
    found = re.search(r"decode ([\d.]+) ms a token", output)
    if found is None:
        raise ValueError("the program did not say how long a token takes")
    return float(found.group(1))


def worst(report: dict[str, Any], quantity: str) -> float:
    """The largest value of all ranks."""
    return max(float(rank[quantity]) for rank in report["ranks"])


def line(what: str, values: list[float]) -> str:
    """A row of the table."""
    return f"{what:34}" + "".join(f"{value:16.3f}" for value in values)


if __name__ == "__main__":
    main()
