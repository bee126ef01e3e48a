"""`uniference run --fold auto`: a few ranks run, all are simulated, and the digest equals that of a run with all
ranks."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Done, gpus, uniference, write_script

CLUSTER = """
[[device]]
name = "node"
count = 16
peak_flops = "10 TFLOPS"
memory_bandwidth = "100 GB/s"
[network]
preset = "rail"
per_server = 8
fabric = "nvlink4"
link = "ethernet_25g"
"""


def run(directory: Path, script: Path, fold: str, *options: object) -> tuple[Done, dict[str, Any]]:
    out = directory / f"out-{fold}"
    done = uniference("run", "--fold", fold, "--out", out, *options, script, cwd=directory)
    assert done.code == 0, done.err + done.out
    return done, json.loads((out / "report.json").read_text())


def run_both(directory: Path, source: str, *options: object) -> tuple[Done, dict[str, Any]]:
    """Runs a script with all ranks and folded, and checks that the figures are equal; returns the folded run and its
    report."""
    script = write_script(directory, source)
    _, whole = run(directory, script, "off", *options)
    done, folded = run(directory, script, "auto", *options)
    assert folded["digest"] == whole["digest"], done.err
    assert folded["makespan_ps"] == whole["makespan_ps"]
    assert folded.get("memory") == whole.get("memory")
    return done, folded


def ranks_that_ran(directory: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("rank-")) for path in (directory / "out-auto").glob("rank-*.log"))


REPLICAS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
print("rank", rank)
if rank == 0:
    import time
    print("it is", time.time())
torch.manual_seed(1)
model = torch.nn.Linear(8, 8)
weight = model.weight.detach()
dist.broadcast(weight, 0)
for step in range(3):
    model(torch.ones(4, 8)).sum().backward()
    dist.all_reduce(model.weight.grad)
    seen = [torch.empty(1) for _ in range(size)]
    dist.all_gather(seen, torch.ones(1) * step)
    assert torch.cat(seen).tolist() == [float(step)] * size
    dist.reduce_scatter_tensor(torch.empty(2), torch.ones(2 * size))
    total = torch.ones(1) * (step + 1)
    dist.all_reduce(total)
    assert total.item() == size * (step + 1)
dist.barrier()
"""


def test_replicas_run_as_five_of_eight(tmp_path: Path) -> None:
    """8 = 2 * 2 * 2: rank 0, steps of 1, 2 and 4, and the last rank run. Only rank 0 reads the clock, which does not
    change its class."""
    done, report = run_both(tmp_path, REPLICAS, "--ranks", 8, "--compute", "none")
    assert ranks_that_ran(tmp_path) == [0, 1, 2, 4, 7]
    assert "5 of 8 ranks run" in done.err
    assert any("5 of 8 ranks ran (0, 1, 2, 4, 7)" in warning for warning in report["warnings"])
    assert len(report["ranks"]) == 8


def test_a_folded_run_is_replayed_and_explained(tmp_path: Path) -> None:
    script = write_script(tmp_path, REPLICAS)
    _, report = run(tmp_path, script, "auto", "--ranks", 8, "--compute", "none")
    replay = uniference("replay", tmp_path / "out-auto", "--json", cwd=tmp_path)
    assert replay.code == 0, replay.err
    assert json.loads(replay.out)["digest"] == report["digest"]


MESH = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2, 4), mesh_dim_names=("replicate", "shard", "tensor"))
torch.manual_seed(1)
x = torch.ones(64, 64)
for step in range(2):
    for dimension in ("tensor", "shard", "replicate"):
        x = x @ x / 64
        dist.all_reduce(x, group=mesh.get_group(dimension))
        x = x / x.max()
    blocks = torch.empty(4 * 64, 64)
    dist.all_gather_into_tensor(blocks, x, group=mesh.get_group("tensor"))
"""


@pytest.mark.parametrize("values", ["all", "small"])
def test_a_mesh_of_16_ranks_on_two_machines(tmp_path: Path, values: str) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    run_both(tmp_path, MESH, "--cluster", "cluster.toml", "--compute", "model", "--values", values)


def test_stages_of_a_pipeline_do_not_fold(tmp_path: Path) -> None:
    source = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
replicas = dist.new_subgroups_by_enumeration([list(range(8)), list(range(8, 16))])[0]
x = torch.ones(100)
for step in range(2):
    if rank < 8:
        dist.send(x, rank + 8)
    else:
        dist.recv(x, rank - 8)
    dist.all_reduce(x, group=replicas)
"""
    done, report = run_both(tmp_path, source, "--ranks", 16, "--compute", "none")
    assert "ranks 8 apart (every 2) do not fold: " in done.err, done.err
    assert any("10 of 16 ranks ran" in warning for warning in report["warnings"])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = torch.ones(1) * rank; dist.all_reduce(x); assert x.item() == 28", "contribute different values"),
        ("dist.new_group([7]); dist.barrier()", "rank 7 is in a group of 1 ranks (7)"),
        ("objects = [None] * 8; dist.all_gather_object(objects, rank); assert objects == list(range(8))", "different"),
        ("dist.broadcast(torch.ones(1), 3)", "needs data of rank 3, which does not run, in a broadcast"),
        ("store.set(str(rank), b'x'); store.wait([str(r) for r in range(8)])", "came to a halt: deadlock"),
    ],
)
def test_ranks_that_are_not_alike_all_run_and_it_says_why(tmp_path: Path, source: str, reason: str) -> None:
    head = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
"""
    done, report = run_both(tmp_path, head + source, "--ranks", 8, "--compute", "none")
    said = done.err + " ".join(report["warnings"])
    assert reason in said, said


ON_GPUS = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
x = torch.ones(1, device="cuda")
dist.all_reduce(x)
print("sum", x.item())
"""


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")
def test_communicators_of_nccl_have_their_absent_members(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(gpus(8))
    script = write_script(tmp_path, ON_GPUS)
    done, report = run(tmp_path, script, "auto", "--cluster", "cluster.toml", "--cuda", "--compute", "model")
    assert done.out.count("sum 8.0") == 5, done.out
    assert any("5 of 8 ranks ran (0, 1, 2, 4, 7)" in warning for warning in report["warnings"])
    assert sum(operation["count"] for operation in report["operations"]) == 8


SPLIT = """
import os, time, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
# With a device NCCL makes its communicators at once, and those of a mesh by splitting the world's.
dist.init_process_group("nccl", device_id=device)
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cuda", (2, size // 2), mesh_dim_names=("shard", "tensor"))
seed = torch.full((1,), 5.0 + rank, device=device)
dist.broadcast(seed, 0)
assert seed.item() == 5
x = torch.ones(2048, 2048, device=device)
for _ in range(3):
    for dimension in ("tensor", "shard"):
        x = x @ x
        dist.all_reduce(x, group=mesh.get_group(dimension))
count = torch.ones(1, device=device)
dist.all_reduce(count, group=mesh.get_group("shard"))
assert count.item() == 2
print("rank", rank)
torch.cuda.synchronize()
if rank == 0:
    time.sleep(2)
"""


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")
@pytest.mark.parametrize(("ranks", "running"), [(8, [0, 1, 2, 4, 7]), (16, [0, 1, 2, 4, 7, 8, 15])])
def test_a_mesh_of_split_communicators_whose_first_rank_sleeps(tmp_path: Path, ranks: int, running: list[int]) -> None:
    cluster = gpus(ranks, per_server=8)
    (tmp_path / "cluster.toml").write_text(cluster)
    options = ("--cluster", "cluster.toml", "--cuda", "--compute", "model", "--values", "small")
    run_both(tmp_path, SPLIT, *options)
    assert ranks_that_ran(tmp_path) == running


UNEVEN = """
import sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("gloo")
print("rank", dist.get_rank())
rows, across = map(int, sys.argv[1:])
mesh = init_device_mesh("cpu", (dist.get_world_size() // across, across), mesh_dim_names=("data", "tensor"))
data, tensor = mesh["data"], mesh["tensor"]
# As FSDP2 divides a parameter: the last ranks have less of it, or nothing, and what they gather is padded.
padded = -(-rows // data.size())
mine = min(max(rows - data.get_local_rank() * padded, 0), padded)
held = torch.tensor([float(mine)])
dist.all_reduce(held)
assert held == rows * across, "who does not run has contributed what others hold"
for step in range(2):
    if mine:
        torch.ones(mine, 256) @ torch.ones(256, 256)
    gathered = torch.empty(data.size() * padded, 64)
    dist.all_gather_into_tensor(gathered, torch.ones(padded, 64), group=data.get_group())
    dist.all_reduce(gathered, group=tensor.get_group())
    assert gathered[0, 0] == across
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("rows", "across", "running"),
    [
        # The last of four machines has one row of seven, the other machines have two.
        (7, 4, [0, 1, 2, 3, 4, 7, 8, 11, 12, 13, 14, 15]),
        # The last rank has one row of 31, the others two.
        (31, 1, [0, 1, 2, 3, 4, 7, 8, 11, 12, 13, 14, 15]),
        # The last two ranks, which are tensor-parallel, have one row of 15.
        (15, 2, [0, 1, 2, 3, 4, 7, 8, 11, 12, 13, 14, 15]),
        # Ranks from 9 on have no rows.
        (9, 1, [0, 1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
    ],
)
def test_what_the_last_ranks_have_less_of(tmp_path: Path, rows: int, across: int, running: list[int]) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER.replace("per_server = 8", "per_server = 4"))
    script = write_script(tmp_path, UNEVEN)
    options = ("--cluster", "cluster.toml", "--compute", "model")
    whole, folded = (
        uniference("run", "--fold", fold, "--out", f"out-{fold}", *options, script, rows, across, cwd=tmp_path)
        for fold in ("off", "auto")
    )
    assert whole.code == folded.code == 0, whole.err + folded.err
    digests = {json.loads((tmp_path / f"out-{fold}" / "report.json").read_text())["digest"] for fold in ("off", "auto")}
    assert len(digests) == 1, folded.err
    assert "the last ranks fold by themselves" in folded.err
    assert ranks_that_ran(tmp_path) == running
