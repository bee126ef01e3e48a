"""Owns the rows of this machine's CPU: measured and predicted durations of transformers that were not profiled."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from .section import Row, Section

PROGRAM = Path(__file__).parent / "transformers.py"
# Layers, hidden size, heads, sequence, batch: from models that are limited by the host to models that saturate the CPU.
SIZES = ((2, 64, 4, 64, 1), (4, 128, 4, 64, 2), (4, 256, 4, 128, 4), (3, 512, 8, 256, 2), (2, 1024, 16, 256, 1))
ROUNDS = 3
"""Number of rounds. Profiles and measurements of all programs alternate, because a shared machine's speed varies over
time."""

TEXT = """\
Durations of transformers' steps on one core of the machine that wrote this page, {machine}: the median of a process's
steps in plain Python, in milliseconds, and the prediction of `uniference run --compute model` from only the
measurements that `uniference profile` without a script makes on the CPU in half a minute. None of these programs was
profiled. Profiling and measuring alternated, {rounds} times each; the table has the medians of both. "gpt", "bert" and
"llama" normalize before or after their parts, with LayerNorm and GELU or RMSNorm, SwiGLU, rotary positions and
grouped-query attention (`benches/devices/transformers.py`); the numbers are layers, hidden size, heads, sequence and
batch. `train` is forward, cross entropy, backward and AdamW.

Durations vary between runs of a program: the middle one of its {rounds} measurements differs by {noise:.1f} % from the
farther of the other two in the median of all rows, and by {worst:.1f} % in the worst row. The {rounds} predictions for
a program, each from another profile, vary in the same way, by {drift:.1f} % in the median of all rows."""


def sections(out: Path, few: bool) -> list[Section]:
    """Rows of forward passes and training steps."""
    out.mkdir(parents=True, exist_ok=True)
    database, cluster = out / "operators.sqlite", out / "here.toml"
    programs = list(product(("forward", "train"), ("gpt", "llama", "bert"), SIZES[1:2] if few else SIZES))
    measured: dict[str, list[float]] = {}
    predicted: dict[str, list[float]] = {}
    for _ in range(1 if few else ROUNDS):
        database.unlink(missing_ok=True)
        profile = json.loads(uniference("profile", "--device", "here", "--device-db", database, "--json"))
        cluster.write_text(
            f'[[device]]\nname = "here"\nmodel = "here"\npeak_flops = {{ float32 = "{profile["peak_flops"]["float32"]:.0f} FLOPS" }}\n'
            f'memory_bandwidth = "{profile["memory_bandwidth"]:.0f} B/s"\n[network]\n'
        )
        for mode, kind, sizes in programs:
            words = [kind, *map(str, sizes), mode]
            name = f"{kind} {' x '.join(words[1:-1])} {mode}"
            steps = "40" if sizes[1] < 256 else "6"
            measured.setdefault(name, []).append(median(json.loads(plain(*words, steps))))
            ran = uniference(
                "run", "--cluster", cluster, "--device-db", database, "--compute", "model", PROGRAM, *words, "4"
            )
            steps_s = json.loads(next(line for line in ran.splitlines() if line.startswith("[") and line.endswith("]")))
            predicted.setdefault(name, []).append(median(steps_s))
    rows = [
        Row(name, 1e3 * median(measured[name]), 1e3 * median(predicted[name]), name.split()[-1]) for name in measured
    ]
    noises, drifts = [spread(times) for times in measured.values()], [spread(times) for times in predicted.values()]
    text = TEXT.format(machine=machine(), rounds=ROUNDS, noise=median(noises), worst=max(noises), drift=median(drifts))
    return [Section("This machine's processor", text, rows)]


def spread(times: list[float]) -> float:
    """Distance of the farthest value from the median, in percent."""
    return 100 * max(abs(time / median(times) - 1) for time in times)


def machine() -> str:
    """The system's name of the CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "an unnamed processor")


def plain(*words: str) -> str:
    """Runs the program without Uniference, on one core; returns its standard output."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, PROGRAM, *words], env=environment, capture_output=True, text=True, check=True
    ).stdout


def uniference(*words: str | Path) -> str:
    """Runs the command in a temporary folder; returns its standard output."""
    command, *rest = words
    with TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "uniference", command, "--out", f"{folder}/run", *map(str, rest)]
        done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{line}\n{done.stderr}")
    return done.stdout
