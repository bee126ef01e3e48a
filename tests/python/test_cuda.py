"""Scripts for NVIDIA GPUs run without a GPU: their view of CUDA, and the layers above."""

from pathlib import Path

import pytest
import torch
from harness import Done, run_script, uniference, write_script

REAL = torch.cuda.device_count() > 0
simulated = pytest.mark.skipif(REAL, reason="this machine has a GPU: none is simulated")

CLUSTER = """
backend = "gloo"
[[device]]
name = "h100"
count = 2
host = "server"
memory = "80 GiB"
[network]
"""

START = """
import os, torch, torch.distributed as dist
from torch import nn
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl", device_id=torch.device("cuda", local))
gpu, rank, size = torch.device("cuda", local), dist.get_rank(), dist.get_world_size()
"""

PLACES = """
x = torch.ones(4, device="cuda")
assert x.device == gpu and x.is_cuda and not x.is_cpu and x.get_device() == local
assert (x + 1)[1:].view(3).device == gpu and torch.zeros_like(x).is_cuda and x.new_zeros(2).is_cuda
assert x.to("meta").is_meta and torch.ones_like(x, device="meta").shape == (4,)
assert x.type() == "torch.cuda.FloatTensor" and f"device='cuda:{local}'" in repr(x)
host = torch.ones(4)
assert host.is_cpu and (host * 2).is_cpu and x.cpu().is_cpu and torch.from_numpy(host.numpy()).is_cpu
# Where a tensor is already, `to` returns the tensor itself; elsewhere it copies.
assert x.cuda() is x and x.to(gpu) is x and host.cpu() is host
moved = host.cuda()
moved += 1
assert host.sum() == 4 and moved.sum() == 8
leaf = torch.ones(2, device=gpu, requires_grad=True)
leaf.to("cuda").sum().backward()
assert leaf.grad is not None and leaf.grad.is_cuda
with torch.device("cuda"):
    assert torch.empty(2).is_cuda
torch.set_default_device("cuda")
assert torch.ones(2).is_cuda and torch.get_default_device() == gpu
torch.set_default_device(None)
assert torch.ones(2).is_cpu
pinned = host.pin_memory()
assert pinned.is_pinned() and not host.is_pinned() and pinned.to(gpu, non_blocking=True).is_cuda
batch = next(iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)), batch_size=2, pin_memory=True)))[0]
assert batch.is_pinned() and batch.cuda().device == gpu
model = nn.Linear(2, 2).cuda()
assert all(p.is_cuda for p in model.parameters())
path = f"{os.environ['HERE']}/{rank}.pt"
torch.save({"model": model.state_dict(), "host": host}, path)
loaded = torch.load(path)
assert loaded["model"]["weight"].is_cuda and loaded["host"].is_cpu
assert torch.load(path, map_location="cpu")["model"]["weight"].is_cpu
assert torch.equal(torch.load(path, map_location={"cuda:0": "cuda:1"})["model"]["weight"], model.weight)
# Each GPU has random numbers of its own.
torch.manual_seed(1)
kept = torch.get_rng_state()
torch.cuda.manual_seed_all(7)
state = torch.cuda.get_rng_state()
first = torch.randn(4, device=gpu)
torch.cuda.set_rng_state(state)
assert torch.equal(first, torch.randn(4, device=gpu)) and not torch.equal(first, torch.randn(4, device=gpu))
torch.cuda.default_generators[local].set_state(state)
assert torch.equal(first, torch.randn(4, device=gpu)) and torch.cuda.default_generators[local].initial_seed() == 7
assert torch.equal(kept, torch.get_rng_state())
assert torch.randn(2, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).is_cuda
"""

RUNTIME = """
assert torch.cuda.is_available() and torch.cuda.device_count() == 2 and torch.cuda.current_device() == local
assert torch.accelerator.current_accelerator().type == "cuda" and torch.accelerator.device_count() == 2
assert torch.cuda.get_device_name() == f"h100.{rank}" and torch.cuda.get_device_capability() == (9, 0)
assert torch.cuda.get_device_properties(gpu).total_memory == 80 * 2**30
with torch.cuda.device(1):
    assert torch.cuda.current_device() == 1 and torch.zeros(1, device="cuda").get_device() == 1
assert torch.cuda.current_device() == local
counts = torch.cuda.memory_stats(device=gpu)
# The zero, in torch's smallest block.
assert counts["num_alloc_retries"] == 0 and counts["allocated_bytes.all.peak"] == 512 * local
assert counts["allocation.small_pool.freed"] == local
import time
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
time.sleep(0.5)
end.record()
end.synchronize()
# The sleep, and what a reading of the clock costs: microseconds.
assert 500 <= start.elapsed_time(end) < 500.1
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    assert torch.cuda.current_stream() == side
    y = torch.ones(2, device=gpu) * 2
y.record_stream(side)
torch.cuda.current_stream().wait_event(side.record_event())
assert isinstance(side, torch.Stream) and isinstance(end, torch.Event)
with torch.Stream(device="cuda", priority=-1) as other:
    assert torch.accelerator.current_stream() == other
before, after = torch.Event(enable_timing=True), torch.Event("cuda", enable_timing=True)
before.record(other)
time.sleep(0.25)
after.record()
other.wait_event(after)
assert after.query() and 250 <= before.elapsed_time(after) < 250.1
# A synchronisation waits for communication that the program has not waited for.
summed = torch.ones(4, device=gpu)
dist.all_reduce(summed, async_op=True)
torch.cuda.synchronize(device=gpu)
assert summed.tolist() == [size] * 4
with torch.cuda.nvtx.range("forward"):
    pass
graph, place = torch.cuda.CUDAGraph(), torch.zeros(2, device=gpu)
with torch.cuda.graph(graph):
    place.copy_(y)
graph.replay()
assert place.tolist() == [2, 2] and "Allocated memory" in torch.cuda.memory_summary()
for device, errors in (("cuda:9", ("out of index range", "invalid device ordinal")), ("xpu", ("XPU",))):
    for make in (lambda: torch.ones(1, device=device), lambda: torch.ones(1).to(device)):
        try:
            make()
        except (AssertionError, RuntimeError) as raised:
            assert any(error in str(raised) for error in errors), raised
        else:
            raise AssertionError(device)
"""

CALLS = """
mine = torch.arange(2.0, device=gpu) + rank
everyone = torch.empty(2 * size, device=gpu)
dist.all_gather_into_tensor(everyone, mine)
assert everyone.tolist() == [float(i + r) for r in range(size) for i in range(2)]
part = torch.empty(2, device=gpu)
dist.reduce_scatter_tensor(part, everyone, op=dist.ReduceOp.AVG)
assert part.tolist() == everyone[2 * rank : 2 * rank + 2].tolist()
with dist._coalescing_manager(device=gpu, async_ops=True) as manager:
    a, b = torch.ones(2, device=gpu), torch.ones(3, device=gpu)
    dist.all_reduce(a)
    dist.all_reduce(b)
manager.wait()
assert a.sum() + b.sum() == 5 * size
other, received = (rank + 1) % size, torch.empty(2, device=gpu)
for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, received, other)]):
    work.wait()
assert received.tolist() == [float(other), float(other) + 1]
dist.barrier(device_ids=[local])
objects = [None] * size
dist.all_gather_object(objects, rank)
assert objects == list(range(size))
"""

LAYERS = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 4))
model = DistributedDataParallel(network().cuda(), device_ids=[local])
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = checkpoint(model, torch.randn(8, 4).cuda(non_blocking=True), use_reentrant=False)
        assert out.dtype is torch.bfloat16 and out.is_cuda and torch.is_autocast_enabled("cuda")
        loss = out.float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
weights = [None] * size
dist.all_gather_object(weights, model.module[0].weight.cpu())
assert all(torch.equal(weights[0], weight) for weight in weights)
mesh = init_device_mesh("cuda", (size,))
tensor = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
assert tensor.device == gpu and tensor.to_local().is_cuda and tensor.full_tensor().sum() == 28
# So do operators that a program defines in Python.
@torch.library.custom_op("mine::shifted", mutates_args=())
def shifted(x: torch.Tensor) -> torch.Tensor:
    assert x.is_cuda and x.to("cuda") is x
    return x + torch.ones(1, device="cuda")
shifted.register_autograd(lambda context, grad: 2 * grad)
slope = torch.zeros(2, device=gpu, requires_grad=True)
shifted(slope).sum().backward()
assert shifted(slope).device == gpu and shifted(slope).tolist() == [1, 1] and slope.grad.tolist() == [2, 2]
# What torch does below its operators goes by the mesh's device, too.
assert torch.equal(tensor, tensor) and not torch.equal(tensor, tensor + 1)
logits, target = torch.randn(6, 4, generator=torch.Generator().manual_seed(3)).cuda(), torch.arange(6, device=gpu) % 4
with loss_parallel():
    split = distribute_tensor(logits, mesh, [Shard(1)]).requires_grad_()
    loss = nn.functional.cross_entropy(split, target)
    loss.backward()
whole = logits.clone().requires_grad_()
expected = nn.functional.cross_entropy(whole, target)
expected.backward()
torch.testing.assert_close(loss.full_tensor(), expected)
torch.testing.assert_close(split.grad.full_tensor(), whole.grad)
for sharded in (fully_shard(network().cuda(), mesh=mesh), FullyShardedDataParallel(network(), device_id=local)):
    sharded(torch.randn(2, 4, device=gpu)).sum().backward()
    assert all(p.grad.device == gpu for p in sharded.parameters() if p.grad is not None)
# With synchronised statistics each rank's part of a batch gives what the whole batch gives.
for spread in (torch.float32, torch.float16):
    whole = torch.randn(4 * size, 3, 5, generator=torch.Generator().manual_seed(9)).cuda().to(spread).requires_grad_()
    plain, synced = nn.BatchNorm1d(3).cuda(), nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(3)).cuda()
    part = whole.detach()[4 * rank : 4 * rank + 4].clone().requires_grad_()
    results = plain(whole), synced(part)
    for result, slope in zip(results, (whole, part)):
        (result.float() * slope.detach().float().cos()).sum().backward()
    share = slice(4 * rank, 4 * rank + 4)
    close = dict(rtol=1e-3, atol=1e-2) if spread is torch.float16 else {}
    for expected, got in ((results[0][share], results[1]), (whole.grad[share], part.grad)):
        torch.testing.assert_close(got, expected, **close)
    torch.testing.assert_close(synced.running_var, plain.running_var)
    torch.testing.assert_close(synced.running_mean, plain.running_mean)
    dist.all_reduce(synced.weight.grad)
    torch.testing.assert_close(synced.weight.grad, plain.weight.grad, **close)
compiled = torch.compile(network().cuda().eval())
assert compiled(torch.ones(1, 4, device=gpu)).is_cuda
"""


def run(directory: Path, source: str, *options: str) -> Done:
    """Runs a script on two simulated GPUs of one host."""
    cluster = directory / "cluster.toml"
    cluster.write_text(CLUSTER)
    fixed = ("run", "--cluster", cluster, "--compute", "none", "--out", directory / "out")
    return uniference(*fixed, *options, write_script(directory, source), cwd=directory, env={"HERE": str(directory)})


@simulated
@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")
def test_a_split_of_nccl_may_leave_ranks_out(tmp_path: Path) -> None:
    source = """
import os, torch, torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
part = dist.split_group(split_ranks=[[0, 1]])
x = torch.ones(1, device=device)
if dist.get_rank() < 2:
    dist.all_reduce(x, group=part)
print("sum", x.item())
"""
    done = run_script(tmp_path, source, "--cuda", ranks=3)
    assert done.code == 0, done.err
    assert sorted(line for line in done.out.splitlines() if "sum" in line) == [
        "[0] sum 2.0",
        "[1] sum 2.0",
        "[2] sum 1.0",
    ]


@pytest.mark.skipif(not REAL, reason="this machine has no GPU")
def test_tensors_of_a_real_gpu(tmp_path: Path) -> None:
    source = (
        "import os, torch, torch.distributed as dist\ndist.init_process_group('nccl')\n"
        "x = torch.arange(8.0, device='cuda').reshape(2, 4).t()\ndist.all_reduce(x)\n"
        "assert x.is_cuda and torch.equal(x.cpu(), 2 * torch.arange(8.0).reshape(2, 4).t())\n"
    )
    done = run(tmp_path, source)
    assert done.code == 0, done.err


@simulated
@pytest.mark.parametrize("body", [PLACES, RUNTIME, CALLS, LAYERS], ids=["places", "runtime", "calls", "layers"])
def test_program_for_gpus(tmp_path: Path, body: str) -> None:
    done = run(tmp_path, START + body, "--cuda")
    assert done.code == 0, done.err


TIMEOUT = """
from datetime import timedelta
brief = dist.new_group(timeout=timedelta(milliseconds=100))
if rank == 0:
    try:
        dist.all_reduce(torch.ones(2, device=gpu), group=brief, async_op=True).wait()
        torch.cuda.synchronize()
    except dist.DistBackendError as error:
        print("raised:", error)
"""


@simulated
def test_a_call_of_nccl_that_nobody_else_makes_times_out(tmp_path: Path) -> None:
    """As with the real library, torch's watchdog ends the process, or with TORCH_NCCL_BLOCKING_WAIT the wait raises an
    error."""
    ended = run(tmp_path, START + TIMEOUT, "--cuda")
    assert ended.code == 1
    assert "Aborting process on rank 0 due to timeout" in ended.err
    assert "was killed by SIGABRT" in ended.err
    waits = "import os\nos.environ['TORCH_NCCL_BLOCKING_WAIT'] = '1'\n"
    raised = run(tmp_path, waits + START + TIMEOUT, "--cuda")
    assert "raised: Watchdog caught collective operation timeout" in raised.out


@simulated
def test_a_program_that_cannot_do_without_gpus_gets_them(tmp_path: Path) -> None:
    done = run(tmp_path, START + "dist.all_reduce(torch.ones(1).cuda())\n")
    assert done.code == 0, done.err


@simulated
def test_a_mesh_of_gpus_starts_the_default_group(tmp_path: Path) -> None:
    source = """
import os, torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (1, 2), mesh_dim_names=("data", "model"))
tensor = distribute_tensor(torch.arange(4.0, device="cuda"), mesh["model"], [Shard(0)])
assert tensor.to_local().tolist() == [2.0 * mesh.get_local_rank("model") + i for i in range(2)]
"""
    done = run(tmp_path, source, "--backend", "nccl")
    assert done.code == 0, done.err


@simulated
def test_a_program_that_asks_is_told_that_there_are_none(tmp_path: Path) -> None:
    source = 'import torch\nprint("device =", "cuda" if torch.cuda.is_available() else "cpu")\n'
    assert "device = cpu" in run(tmp_path, source).out
    assert "device = cuda" in run(tmp_path, source, "--cuda").out


@simulated
def test_cuda_without_gpus_is_refused_with_a_hint(tmp_path: Path) -> None:
    done = run(tmp_path, "import torch\ntorch.ones(1).cuda()\n", "--no-cuda")
    assert done.code == 1
    assert "the simulated devices are not GPUs" in done.err
    assert "hint: simulate GPUs with --cuda" in done.err


@simulated
def test_a_kernel_that_wants_a_real_gpu_is_told_what_to_do(tmp_path: Path) -> None:
    # The message is the one in PyTorch's guide to extensions.
    done = run(tmp_path, "raise RuntimeError('x must be a CUDA tensor')\n", "--cuda")
    assert done.code == 1
    assert "hint: custom GPU kernels are not simulated" in done.err


def test_every_simulated_backend_reduces(tmp_path: Path) -> None:
    source = """
import torch, torch.distributed as dist

dist.init_process_group("nccl")
for count in (1, 5_000, 500_000):
    x = torch.ones(count, device="cuda")
    dist.all_reduce(x)
    # Four ranks' ones.
    assert (x == 4).all(), x
if dist.get_rank() == 0:
    print(x.device)
"""
    script = write_script(tmp_path, source)
    for backend in ("nccl", "mpi", "gloo", "ideal"):
        options = ("--ranks", 4, "--backend", backend, "--compute", "none", "--out", tmp_path / "out")
        done = uniference("run", *options, script, cwd=tmp_path)
        assert done.code == 0, done.err
        assert done.out.startswith("cuda:0\n")
