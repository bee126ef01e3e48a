"""Owns NeuSight's rows: its models as PyTorch programs, captured once each, and costed on each device by replays."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from .section import Row, Section, read

PROGRAM = Path(__file__).parent / "models.py"
# Names of device models, by the rows' names.
DEVICES = {
    "NVIDIA_A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA_A100-SXM4-40GB": "a100-sxm4-40gb",
    "NVIDIA_A100_80GB_PCIe": "a100-pcie-80gb",
    "NVIDIA_H100_80GB_HBM3": "h100-sxm-80gb",
    "NVIDIA_L4": "l4",
    "Tesla_V100-PCIE-32GB": "v100-pcie-32gb",
    "Tesla_T4": "t4",
    "Tesla_P100-PCIE-16GB": "p100-pcie-16gb",
    "Tesla_P4": "p4",
    "AMD_Instinct_MI100": "mi100",
    "AMD_Instinct_MI210": "mi210",
    "AMD_Instinct_MI250": "mi250-gcd",
}
# NeuSight's own errors are those of its stored predictions, at the same commit, against the rows of this file.
OTHERS = {
    "A100-PCIe-40, V100, T4, P100": "NeuSight: 8.6, 6.6, 18.5, 7.1",
    "compiled": "NeuSight: 13 to 17",
    "P4": "NeuSight: 27.1",
    "AMD": "NeuSight: MI100 12.1, MI210 11.1, MI250 10.7",
    "4 x A100-SXM": "NeuSight: 10.5",
}
# NeuSight's errors on devices that its training has not seen.
UNSEEN = {
    "A100-PCIe-40, V100, T4, P100": "NeuSight, on devices it was not trained on: 7.6 (A100-80, H100) to 12.6 (L4)"
}

TEXT = """\
[NeuSight](https://github.com/sitar-lab/NeuSight) at 6945927d (MIT), the labels of its evaluation: milliseconds of a
forward pass, or of a forward and a backward pass, between CUDA events; the mean of the best five of 25 runs; torch 2.1,
32-bit floating-point numbers without TF32. NeuSight's tracing module defines the measured programs: Hugging Face's
models with eager attention, dropout in training, cross entropy between both passes, no optimizer, and accumulated
gradients. `benches/devices/models.py` runs the same operators in plain PyTorch; it is captured once on a CPU
(`uniference run --values none`) and costed on each device (`uniference replay`).

The models' configurations are not available, so these are assumed: GPT3-XL has 24 heads of width 128, and therefore a
hidden size of 3072, which agrees with its time compared with GPT3-2.7B's; SwitchXL is T5-3B with four experts of
capacity 64 in every second layer; each of four GPUs has a quarter of the batch (DP), of each layer (TP) or of the
layers (PP), and 300 GB/s to the others. The cross entropy's forward pass is included (less than 0.5 %), the caching
allocator's calls of the driver are not. Models that `torch.compile` has fused are predicted without fusion. No constant
was fitted to these rows."""
LEFT_OUT = """\
The same rows of one GPU, with all operators that were measured on the device left out (`--leave-out`): only the
device's rates, and operators of other devices, are known."""


def sections(out: Path, few: bool) -> list[Section]:
    """Sections with measurements of the devices themselves, and without."""
    measured = read("neusight.csv")
    if few:
        measured = [row for row in measured if row["model"] == "bert_large" and row["mode"] == "inference"][:4]
    programs = sorted({program(row) for row in measured})
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(partial(capture, out), programs))
        alone = [row for row in measured if not row["parallelism"] and DEVICES[row["device"]] != "mi250-gcd"]
        known = list(pool.map(partial(predict, out, False), measured))
        unknown = list(pool.map(partial(predict, out, True), alone))
    return [
        Section("NeuSight's models", TEXT, in_groups(known), OTHERS),
        Section("NeuSight's models, on devices without measurements", LEFT_OUT, in_groups(unknown), UNSEEN),
    ]


def in_groups(rows: Sequence[Row]) -> list[Row]:
    """Rows in the order of the groups, and within a group in the order of the file."""
    return sorted(rows, key=lambda row: GROUPS.index(row.group))


GROUPS = ("A100-PCIe-40, V100, T4, P100", "other GPUs of NVIDIA", "P4", "compiled", "4 x A100-SXM", "AMD")


def group(row: dict[str, str]) -> str:
    """The group in which a row's error is summarized."""
    device = DEVICES[row["device"]]
    if row["parallelism"]:
        return "compiled" if row["parallelism"] == "compiled" else "4 x A100-SXM"
    if device.startswith("mi"):
        return "AMD"
    if device == "p4":
        return "P4"
    known = ("a100-pcie-40gb", "v100-pcie-32gb", "t4", "p100-pcie-16gb")
    return GROUPS[0] if device in known else GROUPS[1]


def name(row: dict[str, str]) -> str:
    """A readable name of a row."""
    words = [
        DEVICES[row["device"]],
        row["model"],
        row["mode"],
        f"{row['batch']} x {row['seq_len']}",
        row["parallelism"],
    ]
    return " ".join(word for word in words if word)


def program(row: dict[str, str]) -> tuple[str, ...]:
    """The arguments of `models.py`. A compiled model is predicted as an uncompiled one."""
    parallel = row["parallelism"][:2] if int(row["gpus"]) > 1 else ""
    return (row["model"], row["mode"], row["seq_len"], row["batch"], parallel, row["gpus"])


def capture(out: Path, words: tuple[str, ...]) -> None:
    """Runs a program once, on any device: only its operators and its communication are used."""
    *arguments, ranks = words
    folder = out / "-".join(word for word in words if word)
    if (folder / "complete").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    cluster = clusters(out, "a100-sxm4-40gb", int(ranks))
    quiet: list[str | Path] = ["--compute", "model", "--values", "none", "--out", folder]
    uniference("run", "--cluster", cluster, "--no-cuda", *quiet, PROGRAM, *arguments)
    (folder / "complete").touch()


def predict(out: Path, without: bool, row: dict[str, str]) -> Row:
    """Predicted milliseconds on the row's device, `without` measurements of that device."""
    words = program(row)
    folder = out / "-".join(word for word in words if word)
    device = DEVICES[row["device"]]
    left_out = ["--leave-out", device] if without else []
    cluster = clusters(out, device, int(row["gpus"]))
    with TemporaryDirectory() as again:
        to: list[str | Path] = ["--compute", "model", "--json", "--out", f"{again}/run"]
        report = json.loads(uniference("replay", folder, "--cluster", cluster, *left_out, *to))
    interval = (1e3 * report["interval"]["low_s"], 1e3 * report["interval"]["high_s"])
    return Row(name(row), float(row["ms"]), 1e3 * report["makespan_s"], group(row), interval=interval)


def clusters(out: Path, device: str, count: int) -> Path:
    """The cluster file with `count` devices: several devices share a server whose GPUs are linked by NVLink."""
    path = out / f"{count}-{device}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    backend = "nccl" if count > 1 else "gloo"
    network = 'bandwidth = "300 GB/s"\nlatency = "2 us"\n' if count > 1 else ""
    path.write_text(
        f'backend = "{backend}"\n[[device]]\nname = "gpu"\nmodel = "{device}"\nmemory = "1 TiB"\ncount = {count}\n[network]\n{network}'
    )
    return path


def uniference(*words: str | Path) -> str:
    """Runs the command; returns its standard output."""
    line: Sequence[str] = [sys.executable, "-m", "uniference", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)}\n{done.stderr}")
    return done.stdout
