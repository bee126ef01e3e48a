"""Owns the steps from one setting to its errors: measuring what is missing, fitting ping-pongs, predicting the rest.

All results are kept case by case in the setting's folder, so that an interrupted run continues at its last case.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from grid import COLD_SIZES, PINGPONG_SIZES, QUEUE, SIZES, Program, Setting

ROOT = Path(__file__).resolve().parents[2]
PROBE = "uniference.real.probe"
# Number of a case's repetitions that are predicted, each with the measured lateness of every rank.
_PREDICTED = 7
_FITTED_TO = ("pingpong", "ping", "round_trip", "compute", "solo")


@dataclass(frozen=True)
class Cell:
    """One operation of one size on one setting: medians over its repetitions."""

    setting: Setting
    operation: str
    bytes: int
    cold: bool
    measured_s: float
    predicted_s: float
    # The interquartile range over the median: a lower bound of any prediction's error.
    floor: float
    # The relative standard error of predictions, as estimated by the calibration.
    stated: float

    @property
    def error(self) -> float:
        return (self.predicted_s - self.measured_s) / self.measured_s

    @property
    def limited(self) -> bool:
        """Whether the machine limits the operation rather than the network."""
        return self.setting.mbps is None or (self.setting.latency_us == 0 and self.bytes < 1 << 18)

    @property
    def bound(self) -> bool:
        """Whether the project promises an accuracy for it. Two effects are known and not modelled."""
        broadcast = self.operation == "broadcast" and self.bytes >= 1 << 20 and self.setting.ranks >= 4
        slow = self.operation == "all_to_all_single" and self.setting.shape == "slow host"
        return not (self.limited or broadcast or slow)


def uniference(*words: object, timeout: float | None = None) -> str:
    """Runs the command, and returns its standard output."""
    command = [sys.executable, "-m", "uniference", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def measure(setting: Setting, folder: Path, timeout: float, quick: bool) -> None:
    """Measures the missing operations."""
    sizes, pingpong = (SIZES[:3], PINGPONG_SIZES[:4]) if quick else (SIZES, PINGPONG_SIZES)
    options: list[object] = ["--sizes", *setting.sizes(sizes), "--pingpong-sizes", *setting.sizes(pingpong)]
    if setting.cold:
        options += ["--cold-sizes", *setting.sizes(COLD_SIZES)]
    probe = ["-m", PROBE, "--plain", "--probe", "full", "--budget", "0.15", "--out", folder / "measured.jsonl"]
    if setting.mbps is None:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(setting.ranks)]
        subprocess.run(
            [sys.executable, *torchrun, *map(str, probe + options)], capture_output=True, check=True, timeout=timeout
        )
    else:
        emulated = folder / "emulated.toml"
        emulated.write_text(setting.cluster())
        uniference("testbed", "--cluster", emulated, "--", sys.executable, *probe, *options, timeout=timeout)


def predict(setting: Setting, folder: Path) -> list[Cell]:
    """Fits a cluster file to the ping-pongs, and predicts the other operations with the measured lateness of ranks."""
    measured, fitted, predicted = folder / "measured.jsonl", folder / "fitted.toml", folder / "predicted.jsonl"
    fit = json.loads(uniference("calibrate", "--fit", measured, "--out", fitted, "--json"))
    (folder / "fit.json").write_text(json.dumps(fit, indent=1))
    predicted.unlink(missing_ok=True)
    like = folder / "like.jsonl"
    like.write_text("".join(map(_shortened, measured.read_text().splitlines())))
    cluster = ["--cluster", fitted, *_queue(setting)]
    options = ["--compute", "none", "--record", "summary", "--out", folder / "simulated"]
    uniference("run", *cluster, *options, "-m", PROBE, "--like", like, "--out", predicted)
    return cells(setting, folder)


def _queue(setting: Setting) -> list[str]:
    """The size of the testbed switch's queue per host, which ping-pongs do not show."""
    return [] if setting.mbps is None else ["--set", f"network.queue={QUEUE}"]


def _shortened(line: str) -> str:
    """The first repetitions of a case, which suffice for the median: small messages have five times as many."""
    row = json.loads(line)
    row["seconds"], row["late"] = row["seconds"][:_PREDICTED], row["late"][:_PREDICTED]
    return json.dumps(row) + "\n"


def cells(setting: Setting, folder: Path) -> list[Cell]:
    """The results of a setting."""
    measured, predicted = read(folder / "measured.jsonl"), read(folder / "predicted.jsonl")
    stated = json.loads((folder / "fit.json").read_text())["spread"]
    return [
        Cell(
            setting,
            operation,
            size,
            cold,
            median(seconds),
            median(predicted[operation, size, cold]),
            floor(seconds),
            stated,
        )
        for (operation, size, cold), seconds in measured.items()
        if (operation, size, cold) in predicted
    ]


def read(path: Path) -> Mapping[tuple[str, int, bool], list[float]]:
    """Seconds by operation, size and whether its connections were new."""
    rows = map(json.loads, path.read_text().splitlines())
    return {
        (row["operation"], row["bytes"], row["cold"]): row["seconds"]
        for row in rows
        if row["operation"] not in _FITTED_TO
    }


def floor(seconds: Sequence[float]) -> float:
    first, _, third = quantiles(seconds, n=4)
    return (third - first) / median(seconds)


def launch(program: Program, folder: Path, timeout: float) -> None:
    """Runs a program on the testbed, unless its results exist."""
    real = folder / program.name.replace(", ", "_").replace(" ", "-")
    if (real / "program.record").exists():
        return
    (folder / "emulated.toml").write_text(program.setting.cluster())
    words: list[object] = [Path(__file__).parent / "parallel.py", program.kind]
    if program.slow is not None:
        words += ["--slow", program.slow]
    uniference("launch", "--testbed", "--cluster", folder / "emulated.toml", "--out", real, *words, timeout=timeout)


def replay(program: Program, folder: Path) -> dict[str, object]:
    """The comparison of a program with its simulation: the same compute, on the network fitted to ping-pongs."""
    real = folder / program.name.replace(", ", "_").replace(" ", "-")
    simulated = real.with_name(real.name + "-simulated")
    # The compute is that of the measured devices.
    equal = [word for rank in range(program.setting.ranks) for word in ("--set", f"device.{rank}.slowdown=1")]
    cluster = ["--cluster", folder / "fitted.toml", *_queue(program.setting), *equal]
    uniference("replay", real, *cluster, "--out", simulated)
    compared: dict[str, object] = json.loads(uniference("compare", "--json", simulated, real))
    return compared
