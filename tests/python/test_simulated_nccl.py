"""torch's own ProcessGroupNCCL on simulated GPUs: its results, its streams, and the layers above it."""

import json
from pathlib import Path

import pytest
import torch
from harness import gpus, uniference, write_script

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

HEAD = """
import copy, os
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))

def full(value, elements=4, dtype=torch.float32):
    return torch.full((elements,), value, device="cuda", dtype=dtype)
"""


def run(directory: Path, source: str, *options: str, ranks: int = 2, environment: dict[str, str] | None = None) -> str:
    """Runs a script on the GPUs of one host, and checks that a replay has the same figures; returns its output."""
    (directory / "cluster.toml").write_text(gpus(ranks))
    script = write_script(directory, HEAD + source)
    arguments = ("run", "--cluster", "cluster.toml", "--cuda", "--compute", "model", "--out", "out", *options, script)
    done = uniference(*arguments, cwd=directory, env=environment, cold=environment is not None)
    assert done.code == 0, done.err + done.out
    assert "not implemented" not in done.err + done.out
    replay = uniference("replay", "out", "--json", cwd=directory)
    assert replay.code == 0, replay.err
    report, again = json.loads((directory / "out" / "report.json").read_text()), json.loads(replay.out)
    assert (again["digest"], again["makespan_ps"]) == (report["digest"], report["makespan_ps"])
    return done.out


def test_collectives_and_messages_bring_their_data(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
x = full(rank + 1.0); dist.all_reduce(x); assert x.tolist() == [3.0] * 4
x = torch.arange(3, device="cuda", dtype=torch.bfloat16) + rank
dist.all_reduce(x, op=dist.ReduceOp.AVG); assert x.tolist() == [0.5, 1.5, 2.5]
x = full(rank + 2, dtype=torch.int64); dist.all_reduce(x, op=dist.ReduceOp.MAX); assert x.tolist() == [3] * 4
x = full(rank + 2.0); dist.all_reduce(x, op=dist.ReduceOp.PRODUCT); assert x.tolist() == [6.0] * 4
x = full(1.0 + rank); dist.all_reduce(x, op=dist._make_nccl_premul_sum(0.5)); assert x.tolist() == [1.5] * 4
out = [full(9.0, 2) for _ in range(2)]
dist.all_gather(out, full(float(rank), 2)); assert [o.tolist() for o in out] == [[0.0, 0.0], [1.0, 1.0]]
x = full(float(rank)); dist.broadcast(x, 1); assert x.tolist() == [1.0] * 4
x = full(rank + 1.0); dist.reduce(x, 0); assert rank or x.tolist() == [3.0] * 4
x = torch.empty(2, device="cuda")
dist.reduce_scatter_tensor(x, torch.arange(4, device="cuda").float()); assert x.tolist() == [[0.0, 2.0], [4.0, 6.0]][rank]
x = torch.empty(4, device="cuda")
dist.all_to_all_single(x, torch.arange(4, device="cuda").float() + 10 * rank)
assert x.tolist() == [[0, 1, 10, 11], [2, 3, 12, 13]][rank]
x = torch.zeros(2, device="cuda")
dist.send(full(7.0, 2), 1) if rank == 0 else dist.recv(x, 0)
assert rank == 0 or x.tolist() == [7.0, 7.0]
sent, got = full(float(rank), 2), full(9.0, 2)
for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]):
    work.wait()
assert got.tolist() == [1.0 - rank] * 2
objects = [None, None]
dist.all_gather_object(objects, {"rank": rank}); assert objects == [{"rank": 0}, {"rank": 1}]
group = dist.new_group([0, 1]); x = full(1.0); dist.all_reduce(x, group=group); assert x.tolist() == [2.0] * 4
work = dist.all_reduce(x, async_op=True); work.wait(); assert x.tolist() == [4.0] * 4
dist.barrier()
dist.destroy_process_group()
""",
    )


@pytest.mark.parametrize("group", ["TORCH_DIST_USE_NCCL2=0", "TORCH_DIST_USE_NCCL2=1"])
def test_data_is_there_whichever_device_is_current_and_whoever_has_waited(group: str, tmp_path: Path) -> None:
    """Lists of unequal tensors, which are several calls; the process group's own threads also query whether a call has
    ended."""
    run(
        tmp_path,
        """
torch.cuda.set_device(0)
here = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
for step in range(4):
    own = torch.full((rank + 1, 3), rank + step + 1.0, device=here)
    parts = [torch.zeros(peer + 1, 3, device=here) for peer in range(2)]
    work = dist.all_gather(parts, own, async_op=step % 2 == 0)
    if work is not None:
        work.wait()
    assert [part.tolist() for part in parts] == [[[peer + step + 1.0] * 3] * (peer + 1) for peer in range(2)], (step, parts)
dist.destroy_process_group()
""",
        environment=dict([group.split("=")]),
    )


def test_tensors_over_several_gpus_are_drawn_as_one(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
mesh = init_device_mesh("cuda", (2,))
torch.manual_seed(0)
whole = nn.init.normal_(distribute_tensor(torch.zeros(4, 8, device="cuda"), mesh, [Shard(0)])).full_tensor()
assert whole.unique().numel() == 32
other = whole.clone()
dist.broadcast(other, 0)
assert torch.equal(whole, other)
dist.destroy_process_group()
""",
    )


TRAIN = """
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

data = torch.arange(32).float().view(4, 8) / 10
own = net(); sgd = torch.optim.SGD(own.parameters(), 0.1)
for _ in range(3):
    sgd.zero_grad(); own(data).square().mean().backward(); sgd.step()
"""


@pytest.mark.parametrize("views", [False, True])
def test_distributed_data_parallel_trains_as_one_process_does(views: bool, tmp_path: Path) -> None:
    run(
        tmp_path,
        TRAIN
        + f"""
model = nn.parallel.DistributedDataParallel(net().cuda(), gradient_as_bucket_view={views})
sgd = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    sgd.zero_grad(); model(data[2 * rank : 2 * rank + 2].cuda()).square().mean().backward(); sgd.step()
for there, here in zip(model.parameters(), own.parameters(), strict=True):
    assert torch.allclose(there.cpu(), here, atol=1e-6)
dist.destroy_process_group()
""",
    )


def test_fully_sharded_data_parallel_trains_as_one_process_does(tmp_path: Path) -> None:
    run(
        tmp_path,
        TRAIN
        + """
from torch.distributed.fsdp import fully_shard
model = net().cuda()
for layer in (model[0], model[2], model):
    fully_shard(layer)
sgd = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    sgd.zero_grad(); model(data[2 * rank : 2 * rank + 2].cuda()).square().mean().backward(); sgd.step()
for there, here in zip(model.parameters(), own.parameters(), strict=True):
    assert torch.allclose(there.full_tensor().cpu(), here, atol=1e-6)
dist.destroy_process_group()
""",
    )


def test_a_collective_on_its_stream_overlaps_with_work_on_another(tmp_path: Path) -> None:
    """Without values there is no wait for data: the all-reduce of 1 GiB and the GEMMs together last little longer than
    the longer of them."""
    out = run(
        tmp_path,
        """
def timed(communicates, computes):
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work = dist.all_reduce(gradients, async_op=True) if communicates else None
    for _ in range(8 * computes):
        torch.mm(weights, weights, out=product)
    if work is not None:
        work.wait()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)

gradients = torch.empty(1 << 28, device="cuda")
weights, product = (torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
timed(True, True)
both, communication, compute = timed(True, True), timed(True, False), timed(False, True)
if rank == 0:
    print("times", both, communication, compute)
dist.destroy_process_group()
""",
        "--values",
        "small",
    )
    both, communication, compute = map(float, out.split("times ")[1].split("\n")[0].split())
    assert min(communication, compute) > 1
    assert max(communication, compute) <= both < 1.35 * max(communication, compute)
    assert both < 0.9 * (communication + compute)


def test_collectives_in_graphs_are_made_whenever_these_are_launched(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
x, y, gathered = full(0.0), full(0.0), full(0.0, 8)
side = torch.cuda.Stream()
dist.all_reduce(full(1.0))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y.copy_(x + rank)
    dist.all_reduce(y)
    y.mul_(2)
    side.wait_stream(torch.cuda.current_stream())
    work = dist.all_gather_into_tensor(gathered, y + rank, async_op=True)
    with torch.cuda.stream(side):
        doubled = 2 * y
    work.wait()
    torch.cuda.current_stream().wait_stream(side)
    gathered.add_(doubled.repeat(2))
    if rank == 0:
        dist.send(y, dst=1)
    else:
        dist.recv(y, src=0)
    y.add_(rank)
for value in (1.0, 5.0, 5.0):
    x.fill_(value)
    graph.replay()
    once = 2 * (2 * value + 1)
    assert y.tolist() == [once + rank] * 4, y
    assert gathered.tolist() == [3 * once] * 4 + [3 * once + 1] * 4, gathered
""",
    )


def test_a_graph_with_collectives_takes_as_long_as_without_it_where_the_gpu_decides(tmp_path: Path) -> None:
    out = run(
        tmp_path,
        """
a = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)
x = torch.empty(4096, 8192, device="cuda", dtype=torch.bfloat16)

def layers(y):
    for _ in range(4):
        y = y @ a
        work = dist.all_reduce(y, async_op=True)
        z = x @ a
        work.wait()
        y = y + z
    return y

def took(call):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)

layers(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    layers(x)
if rank == 0:
    print("TOOK", *(f"{took(call):.4f}" for call in (lambda: layers(x), graph.replay, graph.replay)))
else:
    [took(call) for call in (lambda: layers(x), graph.replay, graph.replay)]
""",
        "--values",
        "small",
    )
    eager, first, second = map(float, out.split("TOOK")[1].split()[:3])
    assert first == second
    assert 0.98 < first / eager < 1.0, out


def test_gpus_communicate_by_nccl_where_nothing_names_a_backend(tmp_path: Path) -> None:
    """The hosts use Gloo in the same group, whose operations are costed as NCCL's, with a warning."""
    source = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("cpu:gloo,cuda:nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
large = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
dist.all_reduce(large)
torch.cuda.synchronize()
start = time.time()
dist.all_reduce(large)
torch.cuda.synchronize()
print("GB/s", 2**28 / (time.time() - start) / 1e9)
on_host = torch.ones(4)
dist.all_reduce(on_host)
print("on the host", on_host.tolist())
"""
    (tmp_path / "cluster.toml").write_text(gpus(2).replace('backend = "nccl"', ""))
    script = write_script(tmp_path, source)
    done = uniference(
        "run", "--cluster", "cluster.toml", "--cuda", "--compute", "model", "--out", "out", script, cwd=tmp_path
    )
    assert done.code == 0, done.err
    rates = [float(line.split()[1]) for line in done.out.splitlines() if line.startswith("GB/s")]
    # A ring of two passes each byte once over NVLink, of which 360 GB/s remain for payload.
    assert all(250 < rate < 360 for rate in rates), rates
    assert done.out.count("on the host [2.0, 2.0, 2.0, 2.0]") == 2
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert sum("operations of gloo are costed as those of nccl" in warning for warning in report["warnings"]) == 1


def test_communicators_take_memory_of_gpus_until_they_are_destroyed(tmp_path: Path) -> None:
    """A ring and a tree of a pair have 24 channels each, with receive buffers of 10 MiB and send buffers of 2 MiB;
    messages have 32."""
    out = run(
        tmp_path,
        """
MIB = 1 << 20
free = lambda: torch.cuda.mem_get_info()[0]
x = torch.ones(1, device="cuda")
before = free()
dist.broadcast(x, 0)
ring = before - free()
dist.all_reduce(x)
tree = before - free()
dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
message = before - free() - tree
x + 1
torch.cuda.synchronize()
dist.destroy_process_group()
print(rank, ring // MIB, tree // MIB, message // MIB, before - free())
""",
    )
    assert "0 288 576 64 0" in out
    assert "1 288 576 320 0" in out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    most = {(row["rank"], row["kind"]): row["peak_bytes"] for row in report["memory"]}
    assert most[1, "context"] == (520 + 576 + 320) << 20


@pytest.mark.parametrize("group", ["TORCH_DIST_USE_NCCL2=0", "TORCH_DIST_USE_NCCL2=1"])
def test_an_abort_ends_what_a_rank_has_outstanding_and_its_streams_go_on(group: str, tmp_path: Path) -> None:
    run(
        tmp_path,
        """
x = full(1.0); dist.all_reduce(x)
if rank == 0:
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    behind = torch.cuda.Event()
    behind.record()
    assert not behind.query()
    dist.group.WORLD._get_backend(torch.device("cuda")).abort()
    behind.synchronize()
    assert (full(2.0) * 3).tolist() == [6.0] * 4
    torch.cuda.synchronize()
else:
    torch.cuda.synchronize()
""",
        environment=dict([group.split("=")]),
    )


@pytest.mark.parametrize(
    ("handling", "raises"), [("TORCH_NCCL_BLOCKING_WAIT=1", True), ("TORCH_NCCL_ASYNC_ERROR_HANDLING=2", False)]
)
def test_a_collective_that_has_timed_out_is_aborted(handling: str, raises: bool, tmp_path: Path) -> None:
    """One rank never calls, and another one waits for 20 s: then it continues without the collective's data."""
    run(
        tmp_path,
        f"""
import datetime, time
group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=20))
x = full(1.0); dist.all_reduce(x, group=group); torch.cuda.synchronize()
begin = time.monotonic()
if rank == 0:
    raised = False
    try:
        dist.all_reduce(x, group=group)
    except dist.DistBackendError as error:
        raised = "timeout" in str(error) or "timed out" in str(error)
    torch.cuda.synchronize()
    assert raised is {raises}
    assert 20 <= time.monotonic() - begin < 22
else:
    time.sleep(60)
""",
        environment=dict([handling.split("=")]),
    )


def test_a_group_is_shrunk_while_a_collective_waits_for_who_is_left_out(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
from torch.distributed.distributed_c10d import SHRINK_ABORT, shrink_group
x = full(1.0); dist.all_reduce(x); torch.cuda.synchronize()
if rank != 1:
    dist.all_reduce(x, async_op=True)
    shrink_group([1], shrink_flags=SHRINK_ABORT)
    assert dist.get_world_size() == 3
    x = full(float(rank)); dist.all_reduce(x); assert x.tolist() == [5.0] * 4
""",
        ranks=4,
    )


def test_a_run_is_the_same_each_time(tmp_path: Path) -> None:
    source = "for _ in range(20): dist.all_reduce(full(1.0))\ntorch.cuda.synchronize()\n"
    digests = set()
    for _ in range(4):
        run(tmp_path, source)
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        digests.add(report["digest"])
        # The critical path is complete, through threads and streams, too.
        assert sum(part["seconds"] for part in report["critical_path"]["kinds"]) == pytest.approx(report["makespan_s"])
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("calls", "what"),
    [
        ("dist.all_reduce(full(1.0, 4 + 4 * rank))", "number of elements: 8 against 4"),
        (
            "dist.all_reduce(full(1.0)) if rank == 0 else dist.broadcast(full(1.0), 0)",
            "operation: broadcast against all_reduce",
        ),
    ],
)
def test_members_that_call_differently_end_the_run_with_both_lines(calls: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(gpus(2))
    script = write_script(tmp_path, HEAD + calls + "\ntorch.cuda.synchronize()\n")
    done = uniference(
        "run", "--cluster", "cluster.toml", "--cuda", "--compute", "model", "--out", "out", script, cwd=tmp_path
    )
    assert done.code == 3, done.err + done.out
    line = f"{script}:{HEAD.count(chr(10)) + 1}"
    assert f"  {what}\n  rank 0 called it first, at {line}\n  rank 1 called it at {line}\n" in done.err


@pytest.mark.parametrize("values", ["all", "none"])
def test_the_watchdog_ends_a_rank_whose_peer_has_crashed(values: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(gpus(2) + '[[crash]]\nrank = 1\nat = "5 ms"\n')
    source = """
import time
x = full(1.0); dist.all_reduce(x); torch.cuda.synchronize()
if rank == 1: time.sleep(100)
dist.all_reduce(x)
time.sleep(1000)
"""
    script = write_script(tmp_path, HEAD + source)
    arguments = (
        "run",
        "--cluster",
        "cluster.toml",
        "--cuda",
        "--compute",
        "model",
        "--values",
        values,
        "--out",
        "out",
        script,
    )
    done = uniference(*arguments, cwd=tmp_path)
    assert done.code == 1, done.err + done.out
    assert "remote process exited or there was a network error" in done.err + done.out


@pytest.mark.parametrize("goes_on", ["time.sleep(1000)", "x.tolist()"])
def test_what_only_the_watchdog_ends_is_reported_with_what_it_waited_for(goes_on: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(gpus(2))
    source = f"import time\nx = full(1.0); dist.all_reduce(x); x.tolist()\nif rank == 0: dist.all_reduce(x)\n{goes_on}"
    script = write_script(tmp_path, HEAD + source)
    arguments = ("--cluster", "cluster.toml", "--cuda", "--compute", "model", "--out", "out", script)
    done = uniference("run", *arguments, cwd=tmp_path)
    assert done.code == 3, done.err + done.out
    assert (
        "error: time-out: PyTorch has ended rank 0, as its process group had waited for too long\n  rank 0 had waited 6"
        in done.err
    )
    place = f"{script}:{HEAD.count(chr(10)) + 3}"
    assert f" s for all_reduce (16 bytes, group 0), not entered by rank 1, issued at {place}\n" in done.err
    assert "\nhint: call the same operations in the same order" in done.err


def test_numbers_that_torch_adds_by_no_kernel_of_its_own_are_reduced(tmp_path: Path) -> None:
    """Averages of integers are rounded towards zero, and 8-bit numbers have no arithmetic on a CPU."""
    run(
        tmp_path,
        """
for dtype in torch.int8, torch.uint8, torch.int32, torch.int64:
    x = (torch.arange(4, device="cuda") + 3 * rank).to(dtype)
    dist.all_reduce(x, op=dist.ReduceOp.AVG); assert x.tolist() == [1, 2, 3, 4], (dtype, x)
x = torch.full((4,), -1 - rank, device="cuda"); dist.all_reduce(x, op=dist.ReduceOp.AVG); assert x.tolist() == [-1] * 4
x = torch.full((4,), -rank - 1, device="cuda", dtype=torch.int32)
dist.reduce(x, 0, op=dist.ReduceOp.AVG); assert rank == 1 or x.tolist() == [-1] * 4
for dtype in torch.float8_e4m3fn, torch.float8_e5m2:
    most = torch.finfo(dtype).max
    given = lambda: torch.tensor([1.5 + rank, -2.0, most, 0.125], device="cuda").to(dtype)
    # Of an average each is divided first: 1.25 + 0.75 and 448 / 2 + 448 / 2, say.
    for op, expected in [("SUM", [4, -4, most, 0.25]), ("MAX", [2.5, -2, most, 0.125]), ("AVG", [2, -2, most, 0.125])]:
        x = given(); dist.all_reduce(x, op=getattr(dist.ReduceOp, op)); assert x.float().tolist() == expected, (dtype, op, x.float())
    part = torch.empty(2, device="cuda").to(dtype)
    dist.reduce_scatter_tensor(part, given()); assert part.float().tolist() == [[4, -4], [most, 0.25]][rank]
""",
    )


def test_the_report_says_how_much_communication_of_a_gpu_no_kernel_hides(tmp_path: Path) -> None:
    """An all-reduce on its own, and one that overlaps longer GEMMs; a replay gives the same figures."""
    run(
        tmp_path,
        """
gradients = torch.empty(1 << 28, device="cuda")
weights, product = (torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
torch.cuda.synchronize()
dist.all_reduce(gradients)
torch.cuda.synchronize()
work = dist.all_reduce(gradients, async_op=True)
for _ in range(16):
    torch.mm(weights, weights, out=product)
work.wait()
torch.cuda.synchronize()
""",
        "--values",
        "small",
    )
    report = json.loads((tmp_path / "out/report.json").read_text())
    whole = [row for row in report["streams"] if row["stream"] is None]
    assert [row["rank"] for row in whole] == [0, 1]
    for row in whole:
        assert row["communication_s"] > 1e-3
        assert row["kernels_s"] > row["communication_s"] / 2
        # One of two operations of the same size is hidden, except its launch.
        assert row["exposed_comm_s"] == pytest.approx(row["communication_s"] / 2, rel=0.05)
        streams = [one for one in report["streams"] if one["rank"] == row["rank"] and one["stream"] is not None]
        assert sum(one["communication_s"] for one in streams) == pytest.approx(row["communication_s"])
        assert any(one["kernels_s"] == 0 and one["communication_s"] > 0 for one in streams)
    again = uniference("replay", "out", "--out", "again", cwd=tmp_path)
    assert again.code == 0, again.err
    assert json.loads((tmp_path / "again/report.json").read_text())["streams"] == report["streams"]
    assert "GPU streams of rank 0: kernels " in again.err + again.out


ASKS = """
import os, torch, torch.distributed as dist
has_cuda = torch.cuda.is_available()
if has_cuda:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if has_cuda else "gloo")
x = torch.ones(1 << 20, device="cuda" if has_cuda else "cpu")
dist.all_reduce(x)
print("on", x.device.type, dist.get_backend(), x[0].item())
"""


@pytest.mark.parametrize(
    ("backend", "options", "says", "note"),
    [
        ("", (), "on cuda nccl 2.0", True),
        ("", ("--no-cuda",), "on cpu gloo 2.0", False),
        ("", ("--backend", "gloo"), "on cpu gloo 2.0", False),
        ('backend = "gloo"', (), "on cpu gloo 2.0", False),
        ('backend = "nccl"', (), "on cuda nccl 2.0", False),
    ],
)
def test_a_program_that_asks_for_gpus_finds_those_of_the_cluster(
    backend: str, options: tuple[str, ...], says: str, note: bool, tmp_path: Path
) -> None:
    (tmp_path / "cluster.toml").write_text(gpus(2).replace('backend = "nccl"', backend))
    script = write_script(tmp_path, ASKS)
    cluster = ("--cluster", "cluster.toml")
    done = uniference("run", *cluster, *options, "--compute", "model", "--out", "out", script, cwd=tmp_path)
    assert done.code == 0, done.err
    assert says in done.out
    assert done.err.count("note: the devices are NVIDIA GPUs; simulating GPUs and NCCL") == note
    warnings = json.loads((tmp_path / "out" / "report.json").read_text())["warnings"]
    assert any("Gloo communicates over TCP" in warning for warning in warnings) == ("gloo" in says)
    fit = uniference("fit", *cluster, *options, script, cwd=tmp_path)
    assert fit.code == 0, fit.err
    assert fit.err.count("note: the devices are NVIDIA GPUs; simulating GPUs and NCCL") == note


def test_a_program_without_cuda_on_gpus_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(gpus(2).replace('backend = "nccl"', ""))
    source = "import torch, torch.distributed as dist\ndist.init_process_group()\ndist.all_reduce(torch.ones(4))\n"
    script = write_script(tmp_path, source + "print(dist.get_backend())\n")
    done = uniference("run", "--cluster", "cluster.toml", "--compute", "none", "--out", "out", script, cwd=tmp_path)
    assert (done.code, "gloo" in done.out) == (0, True), done.err
    warnings = json.loads((tmp_path / "out" / "report.json").read_text())["warnings"]
    assert any("the program names no CUDA device: it ran without GPUs and with Gloo" in warning for warning in warnings)
