"""Collectives of tensors without data are refused if the program calls them, and allowed if torch infers shapes with
them."""

from pathlib import Path

from harness import run_script

PROGRAM = """
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.fx.experimental.proxy_tensor import make_fx
dist.init_process_group("gloo")
world, rank, size, cpu = dist.group.WORLD, dist.get_rank(), dist.get_world_size(), torch.device("cpu")
mesh = dist.device_mesh.init_device_mesh("cpu", (size,))

def batch(t, wide):
    dist.batch_isend_irecv([dist.P2POp(dist.isend, t, 1 - rank), dist.P2POp(dist.irecv, t, 1 - rank)])

def coalesced(t, wide):
    with dist._coalescing_manager():
        dist.all_reduce(t)
        dist.all_reduce(t)

CALLS = {
    "all_reduce": lambda t, wide: dist.all_reduce(t),
    "all_reduce, asynchronous": lambda t, wide: dist.all_reduce(t, async_op=True).wait(),
    "all_reduce_coalesced": lambda t, wide: dist.all_reduce_coalesced([t, t]),
    "all_gather_coalesced": lambda t, wide: dist.all_gather_coalesced([[t]] * size, [t]),
    "coalescing manager": coalesced,
    "broadcast": lambda t, wide: dist.broadcast(t, 0),
    "reduce": lambda t, wide: dist.reduce(t, 0),
    "all_gather": lambda t, wide: dist.all_gather([t] * size, t),
    "all_gather_into_tensor": lambda t, wide: dist.all_gather_into_tensor(wide, t),
    "reduce_scatter": lambda t, wide: dist.reduce_scatter(t, [t] * size),
    "reduce_scatter_tensor": lambda t, wide: dist.reduce_scatter_tensor(t, wide),
    "all_to_all": lambda t, wide: dist.all_to_all([t] * size, [t] * size),
    "all_to_all_single": lambda t, wide: dist.all_to_all_single(wide, wide),
    "gather": lambda t, wide: dist.gather(t, [t] * size if rank == 0 else None, 0),
    "scatter": lambda t, wide: dist.scatter(t, [t] * size if rank == 0 else None, 0),
    "send": lambda t, wide: dist.send(t, 1 - rank),
    "recv": lambda t, wide: dist.recv(t, 1 - rank),
    "recv from anyone": lambda t, wide: dist.recv(t),
    "isend and irecv": batch,
    "functional all_reduce": lambda t, wide: functional.all_reduce(t, "sum", world) + 0,
    "functional all_gather": lambda t, wide: functional.all_gather_single(t, 0, world) + 0,
    "functional reduce_scatter": lambda t, wide: functional.reduce_scatter_single(wide, "sum", 0, world) + 0,
    "functional all_to_all": lambda t, wide: functional.all_to_all_single(wide, None, None, world) + 0,
    "functional broadcast": lambda t, wide: functional.broadcast(t, 0, world) + 0,
    "functional, coalesced": lambda t, wide: functional.all_reduce_coalesced([t, t], "sum", world)[0] + 0,
    "differentiable": lambda t, wide: functional.all_gather_single_autograd(t.requires_grad_(), 0, world) + 0,
}

def tried(name, call, *tensors):
    try:
        call(*tensors)
    except RuntimeError as error:
        print(f"{name} =", "without data" in str(error) and "hint:" in str(error) or error)
    else:
        print(f"{name} = went through")

for name, call in CALLS.items():
    tried(f"meta, {name}", call, torch.empty(2, device="meta"), torch.empty(2 * size, device="meta"))
with FakeTensorMode():
    for name, call in CALLS.items():
        tried(f"fake, {name}", call, torch.empty(2), torch.empty(2 * size))
    tried("fake, objects", dist.broadcast_object_list, [1, 2])
    tried("fake, barrier", dist.barrier)
    tried("fake, DataParallel", torch.nn.parallel.DistributedDataParallel, torch.nn.Linear(2, 2))
shards = distribute_tensor(torch.empty(4, device="meta"), mesh, [Shard(0)])  # nothing is sent for this on a cluster either
tried("meta, DTensor", shards.full_tensor)

def step(t):
    return functional.all_reduce(t * 2, "sum", world) + 1

expected = step(torch.ones(3))
assert torch.equal(make_fx(step, tracing_mode="fake")(torch.ones(3))(torch.ones(3)), expected)
assert torch.equal(torch.compile(step, backend="aot_eager", fullgraph=True)(torch.ones(3)), expected)

class Step(torch.nn.Module):
    def forward(self, t):
        return step(t)

exported = torch.export.export(Step(), (torch.ones(3),), strict=False)
assert torch.equal(exported.module()(torch.ones(3)), expected)
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
FakeTensorProp(make_fx(step)(torch.ones(3))).propagate(torch.ones(3))
print("traced = yes")
"""


def test_the_program_is_refused_and_torch_is_not(tmp_path: Path) -> None:
    done = run_script(tmp_path, PROGRAM, "--no-cuda")
    assert done.code == 0, done.err
    lines = [line.partition("] ")[2] or line for line in done.out.splitlines() if " = " in line]
    assert len(lines) == 2 * (2 * 26 + 4 + 1), done.out
    # torch itself refuses two of them before it reaches the collective.
    torchs = ("No backend type associated with device type meta", "located yet.")
    assert [line for line in lines if not line.endswith(("= True", "traced = yes", *torchs))] == []
    assert sum(line.endswith(torchs) for line in lines) == 2 * 2, lines


def test_the_run_fails_at_the_users_line(tmp_path: Path) -> None:
    source = 'import torch, torch.distributed as dist\ndist.init_process_group("gloo")\ndist.all_reduce(torch.ones(2, device="meta"))\n'
    done = run_script(tmp_path, source)
    assert done.code == 1
    assert f'File "{tmp_path / "script.py"}", line 3' in done.err
    assert "hint: use tensors with data" in done.err
