"""Attribution of the time of programs with GPUs: communication on CUDA streams, and named ranges of several threads.

The report agrees with the timeline, with what-ifs and with PyTorch's profiler.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import gpus, uniference, write_script

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

RANKS = 2
# Error of the profiler's ranges, in seconds. Between two launches the profiler's clock divides virtual time by the
# CPU's counter (decision 0044), so a busy machine moves the ends of a range by up to the virtual time between two
# launches.
PROFILER_S = 100e-6
# FSDP program. The reduce-scatter of the first layer's gradients overlaps only the all-reduce, whose result the program waits for.
FSDP = """
import json, os
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile, record_function

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(4)]).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
x = torch.ones(4096, 2048, device="cuda")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
    for _ in range(2):
        with record_function("forward"):
            loss = model(x).sum()
        with record_function("backward"):
            loss.backward()
        with record_function("average"):
            dist.all_reduce(loss.detach())
            torch.cuda.synchronize()
if dist.get_rank() == 0:
    # The host's events: on the GPU there are others of the same names.
    named = [event for event in prof.events() if event.device_type == torch.autograd.DeviceType.CPU]
    named = [event for event in named if event.name in ("forward", "backward", "average") or event.name.startswith("FSDP::")]
    found = {}
    for event in named:
        count, seconds, on_device = found.get(event.name, (0, 0.0, 0.0))
        found[event.name] = (count + 1, seconds + event.cpu_time_total / 1e6, on_device + event.device_time_total / 1e6)
    print(json.dumps(found))
dist.destroy_process_group()
"""

# Ranges that begin and end in hooks of modules, gradients and DistributedDataParallel, in autograd functions, and in recomputed layers.
HOOKS = """
import json, os
import torch, torch.distributed as dist
from torch import nn
from torch.cuda import nvtx
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
layers = nn.ModuleList([nn.Linear(512, 512) for _ in range(3)]).cuda()


class Ranged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        with record_function("function forward"):
            return x * 2

    @staticmethod
    def backward(ctx, gradient):
        with record_function("function backward"):
            return gradient * 2


def block(x):
    with record_function("recomputed"):
        return torch.relu(layers[1](x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return layers[2](checkpoint(block, Ranged.apply(layers[0](x)), use_reentrant=False))


begun = {}


def begin(name):
    def hook(*_):
        begun[name] = record_function(name)
        begun[name].__enter__()

    return hook


def end(name):
    return lambda *_: begun.pop(name).__exit__(None, None, None)


def accumulated(parameter):
    nvtx.range_push("accumulated")
    parameter.grad.mul_(1)
    nvtx.range_pop()


def communicate(state, bucket):
    with record_function("communication hook"):
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])


layers[0].register_forward_pre_hook(begin("module forward"))
layers[0].register_forward_hook(end("module forward"))
layers[2].register_full_backward_pre_hook(begin("module backward"))
layers[2].register_full_backward_hook(end("module backward"))
# From the forward pass of one layer, on the program's thread, to the backward pass of another, on autograd's.
layers[2].register_forward_hook(begin("across"))
layers[1].register_full_backward_hook(end("across"))
model = nn.parallel.DistributedDataParallel(Net())
model.register_comm_hook(None, communicate)
for parameter in layers[0].parameters():
    parameter.register_post_accumulate_grad_hook(accumulated)
x = torch.ones(256, 512, device="cuda", requires_grad=True)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
    for _ in range(2):
        with record_function("forward"):
            y = model(x).sum()
        with record_function("backward"):
            y.backward()
        torch.cuda.synchronize()
if dist.get_rank() == 0:
    found = {}
    for event in prof.events():
        if event.device_type == torch.autograd.DeviceType.CPU:
            count, seconds, on_device, threads = found.get(event.name, (0, 0.0, 0.0, []))
            seconds, on_device = seconds + event.time_range.elapsed_us() / 1e6, on_device + event.device_time_total / 1e6
            found[event.name] = (count + 1, seconds, on_device, sorted({*threads, event.thread}))
    print("profiled", json.dumps(found))
dist.destroy_process_group()
"""

Spans = list[tuple[float, float]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fsdp")
    (folder / "cluster.toml").write_text(gpus(RANKS))
    script = write_script(folder, FSDP)
    options = ("--cluster", "cluster.toml", "--cuda", "--compute", "model", "--values", "small", "--record", "full")
    done = uniference("run", *options, "--out", "out", script, cwd=folder)
    assert done.code == 0, done.err
    (said,) = [line for line in done.out.splitlines() if '{"forward' in line]
    (folder / "profiled.json").write_text(said[said.index("{") :])
    return folder


def read(folder: Path, name: str = "report.json") -> Any:
    return json.loads((folder / "out" / name).read_text())


def asked(folder: Path, *words: str) -> Any:
    done = uniference(*words, "--json", cwd=folder)
    assert done.code == 0, done.err
    return json.loads(done.out)


def union(spans: Spans) -> Spans:
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def bare(span: tuple[float, float], kernels: Spans) -> float:
    """The part of a span in which no kernel ran, in seconds."""
    start, end = span
    hidden = sum(max(0.0, min(end, its_end) - max(start, its_start)) for its_start, its_end in kernels)
    return (end - start - hidden) / 1e6


def traced(folder: Path) -> tuple[dict[int, Spans], dict[int, dict[str, Spans]]]:
    """Reads from the timeline, by rank, the spans of kernels on CUDA streams and the spans of operations."""
    events = read(folder, "trace.json")
    events = events["traceEvents"] if isinstance(events, dict) else events
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    kernels: dict[int, Spans] = {rank: [] for rank in range(RANKS)}
    operations: dict[int, dict[str, Spans]] = {rank: {} for rank in range(RANKS)}
    ranks = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    numbers = {pid: int(name.split()[1]) for pid, name in ranks.items() if name.startswith("rank ")}
    for e in events:
        if e.get("ph") != "X" or e["pid"] not in numbers:
            continue
        rank, row, span = numbers[e["pid"]], rows[e["pid"], e["tid"]], (e["ts"], e["ts"] + e["dur"])
        # Copies between host and GPU do not count as kernels that hide communication.
        if row.startswith("stream ") and not e["name"].startswith("copy to "):
            kernels[rank].append(span)
        elif row.startswith("operations "):
            operations[rank].setdefault(e["name"], []).append(span)
    return {rank: union(spans) for rank, spans in kernels.items()}, operations


def test_operations_are_booked_on_their_streams_as_the_trace_has_them(folder: Path) -> None:
    report = read(folder)
    kernels, operations = traced(folder)
    rows = {row["operation"]: row for row in report["operations"]}
    assert rows.keys() >= {"all_gather", "reduce_scatter", "all_reduce"}
    for name, row in rows.items():
        assert row["ranks"] == RANKS
        spans = [(rank, span) for rank in range(RANKS) for span in operations[rank][name]]
        assert row["count"] == len(spans)
        assert row["time_s"] == pytest.approx(sum(end - start for _, (start, end) in spans) / 1e6)
        assert row["exposed_s"] == pytest.approx(sum(bare(span, kernels[rank]) for rank, span in spans))
        assert row["kernel_s"] - row["overlapped_s"] == pytest.approx(row["exposed_s"] - row["late_peer_s"])
        assert row["time_s"] <= RANKS * report["makespan_s"]
    # In each step, the first of 8 equal all-gathers and the last of 4 equal reduce-scatters overlap no GEMM; the other
    # operations do. During half of the first all-gather at most, the input of the second one is copied.
    for name, exposed in (("all_gather", 1 / 8 / 2), ("reduce_scatter", 1 / 4)):
        assert exposed * rows[name]["kernel_s"] < rows[name]["exposed_s"], name
        assert 0.1 * rows[name]["kernel_s"] < rows[name]["overlapped_s"], name
    assert rows["all_reduce"]["exposed_s"] < rows["reduce_scatter"]["exposed_s"]
    # Bus bandwidth of two GPUs: at most the bandwidth of their NVLinks, and not orders of magnitude below it.
    assert 50e9 < rows["reduce_scatter"]["bus_bandwidth"] < 450e9


def test_ranks_streams_and_operations_have_the_same_exposed_communication(folder: Path) -> None:
    report = read(folder)
    kernels, operations = traced(folder)
    streams = {row["rank"]: row for row in report["streams"] if row["stream"] is None}
    for rank, row in enumerate(report["ranks"]):
        under_way = union([span for spans in operations[rank].values() for span in spans])
        exposed = sum(bare(span, kernels[rank]) for span in under_way)
        assert row["exposed_comm_s"] == pytest.approx(exposed)
        assert streams[rank]["exposed_comm_s"] == pytest.approx(exposed)
        assert row["late_peer_s"] <= row["exposed_comm_s"]
        assert row["compute_s"] + row["exposed_comm_s"] + row["idle_s"] == pytest.approx(report["makespan_s"])


def test_what_is_exposed_is_what_free_operations_gain(folder: Path) -> None:
    rows = {row["operation"]: row for row in read(folder)["operations"]}
    exposed = {name: (row["exposed_s"] - row["late_peer_s"]) / RANKS for name, row in rows.items()}
    gains = {}
    for name in exposed:
        (outcome,) = asked(folder, "whatif", "out", "--free", name)["changes"]
        gains[name] = outcome["gain_s"]
        assert gains[name] <= exposed[name] + 1e-8, name
    # After the first all-gathers the GPU waits for launches; after the last reduce-scatter it waits for nothing.
    assert gains["reduce_scatter"] > 0.7 * exposed["reduce_scatter"]
    assert gains["all_reduce"] == pytest.approx(exposed["all_reduce"], rel=0.05)
    explained = {part["name"]: part["seconds"] for part in asked(folder, "explain", "out")["operations"]}
    for name in ("reduce_scatter", "all_reduce"):
        assert 0.7 * exposed[name] < explained[name] < 1.05 * exposed[name], name


def test_the_table_has_the_mean_of_the_ranks(folder: Path) -> None:
    done = uniference("replay", "out", "--out", "again", cwd=folder)
    assert done.code == 0, done.err
    (header,) = [line for line in done.out.splitlines() if "on CUDA streams" in line]
    assert header.split()[3:] == ["group", "calls", "bytes", "kernel", "overlapped", "exposed", "(late", "peer)", "bus"]
    (line,) = [line for line in done.out.splitlines() if line.strip().startswith("reduce_scatter")]
    (row,) = [row for row in read(folder)["operations"] if row["operation"] == "reduce_scatter"]
    assert line.split()[2] == str(row["count"] // RANKS)
    assert line.rstrip().endswith(f"{row['bus_bandwidth'] / 1e9:.1f} GB/s")
    again = json.loads((folder / "again" / "report.json").read_text())
    assert (again["operations"], again["phases"]) == (read(folder)["operations"], read(folder)["phases"])


def test_ranges_last_as_long_as_for_the_profiler(folder: Path) -> None:
    profiled = json.loads((folder / "profiled.json").read_text())
    rows = {row["name"]: row for row in read(folder)["phases"] if row["rank"] == 0}
    assert {name for name in profiled if name.startswith("FSDP::post_forward")}
    for name, (count, seconds, _) in profiled.items():
        assert rows[name]["count"] == count, name
        assert rows[name]["total_s"] == pytest.approx(seconds, rel=0.1, abs=PROFILER_S * count), name
        if name.startswith("FSDP::post_forward"):
            # No kernel is launched in the range, and the backward pass is not part of it.
            assert rows[name]["total_s"] < 0.3e-3 * count, name


def test_kernels_belong_to_the_ranges_that_launched_them(folder: Path) -> None:
    profiled = json.loads((folder / "profiled.json").read_text())
    rows = {row["name"]: row for row in read(folder)["phases"] if row["rank"] == 0}
    # PyTorch's profiler counts an NCCL kernel from when the stream reaches it.
    forward = rows["forward"]["kernels_s"] + rows["forward"]["communication_s"]
    assert forward == pytest.approx(profiled["forward"][2], rel=0.1)
    # Each layer but the first has two GEMMs in the backward pass, which autograd's thread launches.
    assert rows["backward"]["kernels_s"] > 1.5 * rows["forward"]["kernels_s"]
    gathered = {name: row for name, row in rows.items() if name.startswith("FSDP::post_backward_reduce")}
    assert sum(row["communication_s"] for row in gathered.values()) > 0


def test_ranges_of_the_program_and_of_autograd_stay_on_their_threads(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "out" / "events.jsonl").read_text().splitlines()]
    marked = [line for line in lines if line["event"] == "marked" and line["rank"] == 0]
    begun = {line["range"]: line for line in marked if line["begin"]}
    ends = [line for line in marked if line["range"] in begun and not line["begin"]]
    assert len(begun) == len(ends)
    for end in ends:
        assert end["task"] == begun[end["range"]]["task"]
    threads: dict[str, set[int]] = {}
    for line in begun.values():
        threads.setdefault(line["begin"].split(" ")[0], set()).add(line["task"])
    assert threads["forward"] == threads["backward"] == threads["FSDP::post_forward"] == {0}
    assert 0 not in threads["FSDP::post_backward_reduce"]
    # The last unit's forward pass ends before the backward pass begins, so kernels of the backward pass are not booked to its range.
    explained = asked(folder, "explain", "out")
    after = sum(part["seconds"] for part in explained["ranges"] if str(part["name"]).startswith("FSDP::post_forward"))
    assert after < 0.05 * explained["makespan_s"]


def test_ranges_of_hooks_are_where_the_profiler_has_them(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(gpus(RANKS))
    options = ("--cluster", "cluster.toml", "--cuda", "--compute", "model", "--values", "small", "--record", "full")
    done = uniference("run", *options, "--out", "out", write_script(tmp_path, HOOKS), cwd=tmp_path)
    assert done.code == 0, done.err
    profiled = json.loads(done.out.partition("profiled ")[2].splitlines()[0])
    rows = {row["name"]: row for row in read(tmp_path)["phases"] if row["rank"] == 0}
    lines = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    begun = [line for line in lines if line["event"] == "marked" and line["rank"] == 0 and line["begin"]]
    (autograd,) = {line["task"] for line in begun} - {0}
    threads = {name: {line["task"] for line in begun if line["begin"] == name} for name in rows}
    on_one = {"forward", "backward", "function forward", "module forward", "across", "DistributedDataParallel.forward"}
    on_other = {"function backward", "module backward", "communication hook", "accumulated"}
    assert threads == {name: {0} for name in on_one} | {name: {autograd} for name in on_other} | {
        "recomputed": {0, autograd}
    }
    # PyTorch's profiler does not record NVTX ranges: 2 parameters of the first layer, in 2 steps.
    assert rows["accumulated"]["count"] == 4
    for name in rows.keys() - {"accumulated"}:
        count, seconds, on_device, its_threads = profiled[name]
        assert (rows[name]["count"], len(threads[name])) == (count, len(its_threads)), name
        assert rows[name]["total_s"] == pytest.approx(seconds, rel=0.1, abs=PROFILER_S * count), name
        # The profiler counts kernels that autograd's thread launches only in ranges of that thread.
        if name not in ("backward", "across"):
            launched = rows[name]["kernels_s"] + rows[name]["communication_s"]
            assert launched == pytest.approx(on_device, rel=0.2), name
