"""Compute that is costed from captured operators: equal in all runs and replays, by either capture."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import uniference, write_script

PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
model = torch.nn.parallel.DistributedDataParallel(layer)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    loss = model(torch.ones(2, 16, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
# Nothing has taken these operators apart before they come to be captured.
with torch.inference_mode():
    weight = layer.linear1.weight
    (torch.nn.functional.linear(torch.ones(2, 16, 64), weight)[0, 0] @ weight).sum().item()
"""
CLUSTER = """
backend = "gloo"
[[device]]
name = "gpu"
model = "h100-sxm"
count = 2
[network]
preset = "switch"
bandwidth = "100 Gbps"
latency = "2 us"
"""


class Runs:
    """Runs and replays of one program, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = write_script(folder, PROGRAM)
        self.cluster = folder / "cluster.toml"
        self.cluster.write_text(CLUSTER)

    def run(self, name: str, *options: object, **environment: str) -> dict[str, Any]:
        """The report of a run."""
        words = ("run", "--cluster", self.cluster, "--out", self.folder / name, *options, self.script)
        return self._report(name, uniference(*words, cwd=self.folder, env=environment))

    def replay(self, of: str, name: str, *options: object) -> dict[str, Any]:
        """The report of a replay."""
        words = ("replay", self.folder / of, "--out", self.folder / name, *options)
        return self._report(name, uniference(*words, cwd=self.folder))

    def _report(self, name: str, done: Any) -> dict[str, Any]:
        assert done.code == 0, done.err
        report: dict[str, Any] = json.loads((self.folder / name / "report.json").read_text())
        return report


def test_a_modelled_run_is_the_same_in_every_way_to_get_it(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    first = runs.run("first", "--jobs", 1)
    origins = {row["origin"] for row in first["compute"]}
    assert origins & {"database", "interpolated", "extrapolated", "transferred", "roofline"}
    assert "unknown" not in origins
    measured = runs.run("measured", "--compute", "measured")
    assert measured["makespan_ps"] > first["makespan_ps"]
    others = [
        runs.run("again", "--jobs", 2),
        runs.replay("first", "replayed"),
        runs.replay("measured", "costed", "--compute", "model"),
    ]
    for other in others:
        assert (other["digest"], other["makespan_ps"]) == (first["digest"], first["makespan_ps"])


def test_a_faster_device_takes_less_time(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.run("h100")
    faster = CLUSTER.replace("h100-sxm", "b200")
    (tmp_path / "b200.toml").write_text(faster)
    seconds = [
        sum(row["seconds"] for row in report["compute"])
        for report in (
            runs.replay("h100", "again"),
            runs.replay("h100", "elsewhere", "--cluster", tmp_path / "b200.toml"),
        )
    ]
    assert seconds[1] < seconds[0]


def test_what_is_not_computed_is_not_measured(tmp_path: Path) -> None:
    script = write_script(tmp_path, PROGRAM)
    done = uniference("run", "--ranks", 2, "--values", "small", script, cwd=tmp_path, env=dict(os.environ))
    assert done.code == 2
    assert "cannot be measured" in done.err
    assert "hint: add --compute none" in done.err


SHAPES_ALONE = """
import time
import torch, torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

dist.init_process_group("gloo")


def seconds(product):
    began = time.perf_counter()
    product()
    return time.perf_counter() - began


real, meta = torch.empty(1000, 1000), torch.empty(1000, 1000, device="meta")
print("real", seconds(lambda: real @ real))
print("meta", seconds(lambda: meta @ meta))
with FakeTensorMode():
    fake = torch.empty(1000, 1000)
    print("fake", seconds(lambda: fake @ fake))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
with torch.inference_mode():
    whole = DTensor.from_local(real, mesh, [Shard(1)])
    rows = DTensor.from_local(torch.empty(1000, 1000), mesh)
    print("first", seconds(lambda: rows @ whole))
    print("second", seconds(lambda: rows @ whole))
"""


def test_shapes_alone_take_no_time(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    script = write_script(tmp_path, SHAPES_ALONE)
    words = ("run", "--cluster", "cluster.toml", "--set", "device.gpu.count=1", script)
    done = uniference(*words, cwd=tmp_path)
    assert done.code == 0, done.err
    took = {name: float(seconds) for name, seconds in re.findall(r"^(\w+) ([\d.e-]+)$", done.out, re.MULTILINE)}
    # A clock read takes 50 ns.
    assert took["real"] > 1e-5
    assert took["meta"] < 1e-7
    assert took["fake"] < 1e-7
    # For a new shape, DTensor infers the result's shape with tensors without data.
    assert took["first"] < 1.5 * took["second"]


TENSOR_CORES = """
import time

import torch

wide, image = torch.zeros(4096, 4096, device="cuda"), torch.zeros(8, 256, 64, 64, device="cuda")
layer, recurrent = torch.nn.Conv2d(256, 256, 3).cuda(), torch.nn.LSTM(1024, 1024).cuda()
words = torch.zeros(64, 64, 1024, device="cuda")
works = {
    "mm": lambda: wide @ wide,
    "addmm": lambda: torch.addmm(wide, wide, wide),
    "conv": lambda: layer(image),
    "lstm": lambda: recurrent(words),
}


def took(work):
    torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def show(setting):
    for name, work in works.items():
        work()
        print(setting, name, took(work))


show("default")
for precision in ("ieee", "tf32"):
    torch.backends.cuda.matmul.fp32_precision = precision
    torch.backends.cudnn.conv.fp32_precision = precision
    torch.backends.cudnn.rnn.fp32_precision = precision
    show(precision)
torch.backends.cuda.matmul.fp32_precision = "ieee"
torch.set_float32_matmul_precision("high")
show("high")
"""


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="this machine has a GPU: none is simulated")
def test_products_are_computed_in_tensor_cores_where_the_program_asks_for_it(tmp_path: Path) -> None:
    """An H100 has 67 TFLOPS for 32-bit numbers, 495 in tensor cores. A T4 has no tensor cores for them, so the setting
    has no effect."""
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    script = write_script(tmp_path, TENSOR_CORES)

    def run(model: str) -> dict[str, dict[str, float]]:
        words = (
            "run",
            "--cluster",
            "cluster.toml",
            "--set",
            "device.gpu.count=1",
            "--set",
            f"device.gpu.model={model}",
        )
        done = uniference(*words, "--cuda", "--compute", "model", "--values", "small", script, cwd=tmp_path)
        assert done.code == 0, done.err
        assert "tf32" not in done.err, done.err
        found: dict[str, dict[str, float]] = {}
        for setting, name, seconds in re.findall(r"^(\w+) (\w+) ([\d.e-]+)$", done.out, re.MULTILINE):
            found.setdefault(setting, {})[name] = float(seconds)
        return found

    took = run("h100-sxm")
    for name, factor in (("mm", 5), ("addmm", 5), ("conv", 2), ("lstm", 1.05)):
        assert took["ieee"][name] > factor * took["tf32"][name], (name, took)
        # GEMMs use full precision unless the program allows less; cuDNN's default is the opposite.
        default = "ieee" if name in ("mm", "addmm") else "tf32"
        assert took["default"][name] == pytest.approx(took[default][name], rel=0.02), (name, took)
        assert took["high"][name] == pytest.approx(took["tf32"][name], rel=0.02), (name, took)
    took = run("t4")
    assert took["ieee"] == pytest.approx(took["tf32"], rel=0.02), took
