"""Sources of compute durations: measured, modelled by operators, or from an earlier run."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness import uniference, write_script

RATES = 'peak_flops = "50 GFLOPS"\nmemory_bandwidth = "10 GB/s"\n'

TRAINING = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(3):
    loss = model(torch.ones(8, 64)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
"""


def cluster(directory: Path, name: str, *devices: str) -> Path:
    """A cluster file with one device for each text of keys."""
    path = directory / f"{name}.toml"
    devices_text = "".join(f'[[device]]\nname = "d{at}"\n{keys}' for at, keys in enumerate(devices))
    path.write_text(f'{devices_text}[network]\nbandwidth = "1 Gbps"\nlatency = "20 us"\n')
    return path


def carried_out(directory: Path, *arguments: object) -> dict[str, Any]:
    """The report of a command that simulates."""
    out = directory / f"out-{sum(1 for _ in directory.iterdir())}"
    words = [*map(str, arguments)]
    done = uniference(words[0], "--out", out, *words[1:], cwd=directory)
    assert done.code == 0, done.err
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report | {"folder": out, "shown": done.out}


def same(report: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(report[figure] == other[figure] for figure in ("digest", "makespan_ps", "compute"))


def test_a_program_that_was_captured_once_costs_the_same_replayed_and_run_again(tmp_path: Path) -> None:
    script = write_script(tmp_path, TRAINING)
    plain, rates = cluster(tmp_path, "plain", "", ""), cluster(tmp_path, "rates", RATES, RATES + "slowdown = 3.0\n")
    measured = carried_out(tmp_path, "run", "--cluster", plain, script)
    assert {row["origin"] for row in measured["compute"]} == {"measured"}
    modelled = carried_out(tmp_path, "run", "--cluster", rates, script)
    assert modelled["manifest"]["compute"] == "model"
    assert "compute: model (" in modelled["shown"]
    assert {"gemm"} <= {row["kind"] for row in modelled["compute"] if row["origin"] != "measured"}
    assert same(modelled, carried_out(tmp_path, "run", "--cluster", rates, "--jobs", "1", script))
    assert same(modelled, carried_out(tmp_path, "replay", "--cluster", rates, measured["folder"]))
    assert same(modelled, carried_out(tmp_path, "replay", modelled["folder"]))
    # A slowdown of 3 multiplies captured compute by 3.
    seconds = [sum(row["seconds"] for row in modelled["compute"] if row["rank"] == rank) for rank in range(2)]
    assert seconds[1] == pytest.approx(3 * seconds[0])


THREADS = """
import threading, torch, torch.distributed as dist
dist.init_process_group("gloo")
groups = [dist.new_group([0, 1]) for _ in range(2)]
def work(number):
    layer = torch.nn.Linear(32 * (number + 1), 16)
    for turn in range(4):
        layer(torch.ones(3 + turn, 32 * (number + 1))).sum().backward()
        dist.all_reduce(layer.weight.grad, group=groups[number])
threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
dist.barrier()
"""


def test_threads_are_replayed_though_they_come_to_their_calls_in_another_order(tmp_path: Path) -> None:
    script = write_script(tmp_path, THREADS)
    rates = cluster(tmp_path, "rates", RATES, RATES)
    measured = carried_out(tmp_path, "run", "--cluster", cluster(tmp_path, "plain", "", ""), script)
    modelled = carried_out(tmp_path, "run", "--cluster", rates, script)
    assert same(modelled, carried_out(tmp_path, "replay", modelled["folder"]))
    replayed = carried_out(tmp_path, "replay", "--cluster", rates, measured["folder"])
    # Threads race, so a few operators may differ between runs.
    sums = [sum(row["seconds"] for row in of["compute"]) for of in (modelled, replayed)]
    assert sums[0] == pytest.approx(sums[1], rel=0.05)
    assert replayed["makespan_s"] == pytest.approx(modelled["makespan_s"], rel=0.2)


def test_from_a_run_takes_its_slices(tmp_path: Path) -> None:
    script = write_script(tmp_path, TRAINING)
    first = carried_out(tmp_path, "run", "--ranks", "2", script)
    source = f"from={first['folder']}"
    again = carried_out(tmp_path, "run", "--ranks", "2", "--compute", source, script)
    assert again["makespan_ps"] == first["makespan_ps"]
    assert again["digest"] == first["digest"]
    assert again["manifest"]["compute"] == source
    # The program has one more line: only the slice of that line is measured.
    write_script(tmp_path, TRAINING + "dist.barrier()\n")
    changed = carried_out(tmp_path, "run", "--ranks", "2", "--compute", source, script)
    said = [warning for warning in changed["warnings"] if "no counterpart" in warning]
    assert len(said) == 1
    # Each rank's slices before the barrier, and after it to the end.
    assert said[0].startswith("4 slices")
    assert "script.py:14 (4)" in said[0]


def test_each_device_has_its_own_default(tmp_path: Path) -> None:
    script = write_script(tmp_path, TRAINING)
    mixed = carried_out(tmp_path, "run", "--cluster", cluster(tmp_path, "mixed", RATES, ""), script)
    assert mixed["manifest"]["compute"] == "measured, model"
    measured = {(row["rank"], row["origin"] == "measured") for row in mixed["compute"] if row["seconds"] > 0}
    assert measured == {(0, False), (1, True)}


def test_what_cannot_be_modelled_is_refused(tmp_path: Path) -> None:
    script = write_script(tmp_path, TRAINING)
    done = uniference("run", "--ranks", "1", "--compute", "model", script, cwd=tmp_path)
    assert done.code == 2
    assert "names neither a `model` nor its rates\nhint: " in done.err
    done = uniference("run", "--ranks", "1", "--compute", "guess", script, cwd=tmp_path)
    assert done.code == 2
    assert "measured, model, from=RUN" in done.err
