"""Owns `make accuracy`: how far predictions are from real Gloo on the testbed, when only ping-pongs were used to calibrate.

For every setting of a grid: the testbed emulates it, the probe measures every operation there, `uniference calibrate` fits a cluster file
to the ping-pongs among the figures, and the same probe runs on that cluster in the simulator. What was measured is kept, so a run that
was interrupted goes on where it stopped. A report, never a gate.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- testbed: written by benches/accuracy.py -->", "<!-- /testbed -->"
QUICK_SIZES = ("8", str(1 << 16), str(1 << 20))
FULL_SIZES = tuple(str(1 << power) for power in (3, 10, 14, 16, 18, 20, 22))
PROGRAMS = ("examples/ring.py", "examples/ddp.py")
VARIANTS = {
    "equal": "",
    "slow host": '[network.host."rank.{last}"]\nbandwidth = "{slow} Mbps"\n',
    "far host": '[network.host."rank.{last}"]\nlatency = "{far} us"\n',
}


@dataclass(frozen=True)
class Setting:
    """A network to emulate; without a rate it is this machine's loopback."""

    ranks: int
    mbps: int | None
    latency_us: int
    variant: str = "equal"

    @property
    def name(self) -> str:
        if self.mbps is None:
            return f"loopback, {self.ranks} ranks"
        return f"{self.ranks} ranks, {self.mbps} Mbit/s, {self.latency_us / 1000:g} ms, {self.variant}"

    @property
    def limited(self) -> bool:
        """Is it the machine that is measured, rather than the network?"""
        return (
            self.mbps is None or (self.mbps >= 1000 and self.latency_us == 0) or self.ranks > 2 * (os.cpu_count() or 1)
        )

    def cluster(self) -> str:
        """The cluster file of what the testbed emulates."""
        assert self.mbps is not None
        exception = VARIANTS[self.variant].format(
            last=self.ranks - 1, slow=max(self.mbps // 4, 1), far=5 * self.latency_us + 2000
        )
        devices = "".join(f'[[device]]\nname = "rank.{rank}"\n' for rank in range(self.ranks))
        network = f'[network]\npreset = "switch"\nbandwidth = "{self.mbps} Mbps"\nlatency = "{self.latency_us} us"\n'
        return devices + network + exception


@dataclass(frozen=True)
class Cell:
    """One operation of one size on one setting."""

    setting: Setting
    operation: str
    bytes: int
    measured_s: float
    predicted_s: float
    scatter: float

    @property
    def error(self) -> float:
        return (self.predicted_s - self.measured_s) / self.measured_s


def full_grid() -> Iterator[Setting]:
    """Without what has neither a rate nor a delay to tell apart."""
    for ranks, mbps, latency, variant in product((2, 4), (10, 100, 1000), (0, 1000, 5000), VARIANTS):
        yield Setting(ranks, mbps, latency, variant)


def quick_grid() -> list[Setting]:
    return [Setting(2, None, 0), Setting(2, 100, 1000), Setting(2, 1000, 5000)]


def uniference(*words: object) -> None:
    """Runs the command; what it prints is kept from the report unless it fails."""
    command = [sys.executable, "-m", "uniference", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def start(setting: Setting, folder: Path) -> list[object]:
    """The options under which real ranks run."""
    if setting.mbps is None:
        return ["--nproc-per-node", setting.ranks]
    (folder / "emulated.toml").write_text(setting.cluster())
    return ["--testbed", "--cluster", folder / "emulated.toml"]


def measure(setting: Setting, folder: Path, sizes: Sequence[str]) -> list[Cell]:
    """Measures what is missing, fits, predicts."""
    fitted, predicted = folder / "fitted.toml", folder / "predicted.jsonl"
    uniference("calibrate", *start(setting, folder), "--probe", "full", "--sizes", ",".join(sizes), "--out", fitted)
    predicted.unlink(missing_ok=True)
    probe = ["-m", "uniference.real.probe", "--probe", "full", "--repetitions", 3, "--budget", 0, "--sizes", *sizes]
    run = ["--cluster", fitted, "--compute", "none", "--record", "summary", "--out", folder / "simulated"]
    uniference("run", *run, *probe, "--out", predicted)
    measured = read(folder / "fitted.measurements.jsonl")
    return [
        Cell(
            setting, operation, size, median(seconds), median(read(predicted)[operation, ranks, size]), scatter(seconds)
        )
        for (operation, ranks, size), seconds in measured.items()
        if operation not in ("pingpong", "round_trip", "compute")
    ]


def read(path: Path) -> Mapping[tuple[str, tuple[int, ...], int], list[float]]:
    rows = map(json.loads, path.read_text().splitlines())
    return {(row["operation"], tuple(row["ranks"]), row["bytes"]): row["seconds"] for row in rows}


def scatter(seconds: Sequence[float]) -> float:
    """The quartiles' distance over the median."""
    first, _, third = quantiles(seconds, n=4)
    return (third - first) / median(seconds)


def programs(setting: Setting, folder: Path) -> Iterator[tuple[str, float]]:
    """The errors of whole programs' makespans, compute measured apart."""
    for program in PROGRAMS:
        real, simulated = folder / f"real-{Path(program).stem}", folder / f"sim-{Path(program).stem}"
        uniference("launch", *start(setting, folder), "--out", real, program)
        uniference("run", "--cluster", folder / "fitted.toml", "--out", simulated, program)
        command = [sys.executable, "-m", "uniference", "compare", "--json", str(simulated), str(real)]
        compared = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        yield Path(program).stem, json.loads(compared)["makespan"]["error"]


def table(cells: Sequence[Cell]) -> str:
    """By operation: how many cells, and their errors."""
    by_operation = defaultdict(list)
    for cell in cells:
        by_operation[cell.operation].append(cell)
        by_operation["all"].append(cell)
    rows = [
        "| operation | cells | signed median % | median % | p95 % | worst % | IQR / median % |",
        "|---|---|---|---|---|---|---|",
    ]
    for operation, own in sorted(by_operation.items(), key=lambda item: (item[0] == "all", item[0])):
        errors = sorted((cell.error for cell in own), key=abs)
        p95 = abs(errors[min(int(0.95 * len(errors)), len(errors) - 1)])
        figures = (median(errors), median(map(abs, errors)), p95, errors[-1], median(cell.scatter for cell in own))
        shown = " | ".join(
            f"{100 * figure:{sign}.1f}" for figure, sign in zip(figures, ("+", "", "", "+", ""), strict=True)
        )
        rows.append(f"| {operation} | {len(own)} | {shown} |")
    return "\n".join(rows)


def plot(cells: Sequence[Cell], path: Path) -> bool:
    """A point a cell; False without matplotlib."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return False
    operations = sorted({cell.operation for cell in cells})
    figure, axes = pyplot.subplots(figsize=(9, 5))
    for limited, colour, label in ((False, "tab:blue", "network"), (True, "tab:gray", "machine is the limit")):
        own = [cell for cell in cells if cell.setting.limited is limited]
        axes.scatter(
            [operations.index(c.operation) for c in own], [100 * c.error for c in own], s=9, c=colour, label=label
        )
    axes.axhline(0, color="black", linewidth=0.5)
    axes.set_xticks(range(len(operations)), operations, rotation=40, ha="right")
    axes.set_ylabel("(predicted - measured) / measured, %")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    return True


def report(cells: Sequence[Cell], totals: Sequence[tuple[Setting, str, float]], failed: Sequence[str]) -> str:
    """The section of the page."""
    parts = []
    for limited, title in (
        (False, "Where the network is the limit"),
        (True, "Where the machine is the limit (marked, not scored)"),
    ):
        own = [cell for cell in cells if cell.setting.limited is limited]
        if own:
            names = sorted({cell.setting.name for cell in own})
            parts += [f"### {title}", table(own), "Settings: " + "; ".join(names) + "."]
    if totals:
        rows = [f"| {program} | {setting.name} | {100 * error:+.1f} |" for setting, program, error in totals]
        parts += [
            "### Programs, compute measured apart",
            "\n".join(["| program | setting | makespan % |", "|---|---|---|", *rows]),
        ]
    parts += [f"Not measured: {line}" for line in failed]
    return "\n\n".join(parts) + "\n"


def write_page(section: str) -> None:
    """Into its place on the page."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before.rstrip()}\n\n{BEGIN}\n{section}\n{END}\n{after.lstrip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="loopback and two shaped settings; prints, writes no page")
    parser.add_argument("--out", type=Path, default=ROOT / "uniference-out" / "accuracy")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    words = parser.parse_args()
    if words.again:
        shutil.rmtree(words.out, ignore_errors=True)
    cells, totals, failed = [], [], []
    for setting in quick_grid() if words.quick else full_grid():
        folder = words.out.resolve() / setting.name.replace("/", "-").replace(", ", "_").replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        print(setting.name, flush=True)
        try:
            cells += measure(setting, folder, QUICK_SIZES if words.quick else FULL_SIZES)
            if not words.quick and setting.variant == "equal":
                totals += [(setting, program, error) for program, error in programs(setting, folder)]
        except RuntimeError as error:
            failed.append(f"{setting.name}: {str(error).strip().splitlines()[-1]}")
            print(error, file=sys.stderr)
    if cells and plot(cells, (words.out if words.quick else PAGE.parent) / "accuracy.png"):
        print("plot written")
    section = report(cells, totals, failed)
    print(section)
    if cells and not words.quick:
        write_page(section)


if __name__ == "__main__":
    main()
