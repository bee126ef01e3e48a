"""GPUs that a library simulates below torch's own CUDA code, as a script sees them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import Done, uniference, write_script

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

PHANTOM = Path(__file__).parents[2] / "python/uniference/libuniference_phantom.so"

CLUSTER = """
name = "GPUs"
backend = "nccl"

[[device]]
name = "gpu"
model = "h100-sxm"
count = 2
host = "node"

[network]
preset = "switch"
bandwidth = "100 Gbps"
latency = "3 us"
"""


def run(directory: Path, source: str, **environment: str) -> Done:
    """Runs a script on two GPUs of one host."""
    (directory / "cluster.toml").write_text(CLUSTER)
    script = write_script(directory, source)
    options = ("--cuda", "--cluster", directory / "cluster.toml", "--out", directory / "out", "--compute", "none")
    # Some environment variables are read when torch is loaded.
    return uniference("run", *options, script, cwd=directory, env=environment, cold=bool(environment))


def says(directory: Path, source: str, **environment: str) -> list[dict[str, object]]:
    """Runs a script that calls `say(**facts)`; returns the facts that each rank writes to a file as JSON."""
    head = (
        "import json, os, torch\n"
        "rank = int(os.environ['LOCAL_RANK'])\n"
        "torch.cuda.set_device(rank)\n"
        "def say(**facts):\n"
        "    json.dump(facts, open(f'said-{rank}.json', 'w'))\n"
    )
    done = run(directory, head + source, **environment)
    assert done.code == 0, done.err
    assert "not implemented" not in done.err + done.out
    return [json.loads((directory / f"said-{rank}.json").read_text()) for rank in range(2)]


def test_each_rank_has_the_gpus_of_its_host(tmp_path: Path) -> None:
    facts = says(
        tmp_path,
        """
p = torch.cuda.get_device_properties(rank)
x = torch.ones(256, device="cuda")
say(count=torch.cuda.device_count(), name=p.name, capability=torch.cuda.get_device_capability(), memory=p.total_memory,
    multiprocessors=p.multi_processor_count, l2=p.L2_cache_size, bus=p.pci_bus_id, uuid=str(p.uuid), warp=p.warp_size,
    threads=p.max_threads_per_multi_processor, registers=p.regs_per_multiprocessor,
    shared=p.shared_memory_per_multiprocessor, optin=p.shared_memory_per_block_optin, block=p.shared_memory_per_block,
    device=x.device.index, peer=torch.cuda.can_device_access_peer(rank, 1 - rank))
""",
    )
    expected = {
        "count": 2,
        "name": "NVIDIA H100 80GB HBM3",
        "capability": [9, 0],
        "memory": 81080 << 20,
        "multiprocessors": 132,
        "l2": 50 << 20,
        "warp": 32,
        "threads": 2048,
        "registers": 65536,
        "shared": 228 << 10,
        "optin": 227 << 10,
        "block": 48 << 10,
        "peer": True,
    }
    for rank, said in enumerate(facts):
        assert said.items() >= expected.items()
        assert (said["bus"], said["device"]) == (16 + rank, rank)
    assert facts[0]["uuid"] != facts[1]["uuid"]


def test_a_program_may_see_one_of_its_hosts_gpus_alone(tmp_path: Path) -> None:
    source = """
import json, os
rank = int(os.environ["LOCAL_RANK"])
os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
import torch, torch.distributed as dist
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
x = torch.full((4,), rank + 1.0, device="cuda")
dist.all_reduce(x)
p = torch.cuda.get_device_properties(0)
said = [torch.cuda.device_count(), p.pci_bus_id, x.tolist(), torch.cuda.mem_get_info()[1], torch.cuda.memory_allocated()]
json.dump(said, open(f"said-{rank}.json", "w"))
"""
    done = run(tmp_path, source)
    assert done.code == 0, done.err
    for rank in range(2):
        said = json.loads((tmp_path / f"said-{rank}.json").read_text())
        assert said == [1, 16 + rank, [3.0] * 4, 81080 << 20, 512]


def test_memory_is_counted_by_torchs_own_allocator(tmp_path: Path) -> None:
    facts = says(
        tmp_path,
        """
torch.cuda.synchronize()
before, total = torch.cuda.mem_get_info()
x = torch.empty(300, device="cuda")           # 1,200 bytes: 1,536 of a segment of 2 MiB
y = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")  # of a segment of 20 MiB
allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
held = before - torch.cuda.mem_get_info()[0]
try:
    torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    text = str(error)
del x, y
torch.cuda.empty_cache()
say(allocated=allocated, reserved=reserved, held=held, text=text, left=before - torch.cuda.mem_get_info()[0], context=total - before)
""",
    )
    for rank, said in enumerate(facts):
        # torch/c10/cuda/CUDACachingAllocator: blocks of multiples of 512 bytes.
        assert said["allocated"] == 1536 + (5 << 20)
        assert said["reserved"] == said["held"] == 22 << 20
        assert said["left"] == 0
        assert said["context"] == 520 << 20
        start = f"CUDA out of memory. Tried to allocate 100.00 GiB. GPU {rank} has a total capacity of 79.18 GiB"
        assert str(said["text"]).startswith(start)


def test_expandable_segments_grow_in_place(tmp_path: Path) -> None:
    facts = says(
        tmp_path,
        """
before = torch.cuda.mem_get_info()[0]
x = torch.zeros(30 << 20, dtype=torch.uint8, device="cuda")
y = torch.full((40 << 20,), 7, dtype=torch.uint8).cuda()
held = before - torch.cuda.mem_get_info()[0]
segments = torch.cuda.memory_snapshot()
ends = y[-2:].tolist()
del x, y
torch.cuda.empty_cache()
say(segments=[s["is_expandable"] for s in segments], held=held, ends=ends, left=before - torch.cuda.mem_get_info()[0])
""",
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    for said in facts:
        # 30 and 40 MiB in pages of 20 MiB: 70 MiB are 4 of them.
        assert said == {"segments": [True], "held": 80 << 20, "ends": [7, 7], "left": 0}


def test_bytes_move_between_host_and_devices(tmp_path: Path) -> None:
    facts = says(
        tmp_path,
        """
x = torch.arange(1000.)
there = x.cuda()
pinned = x.pin_memory()
back = torch.empty(1000, pin_memory=True)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    back.copy_(pinned.cuda(non_blocking=True), non_blocking=True)
side.synchronize()
other = there.to(f"cuda:{1 - rank}")
say(there=torch.equal(there.cpu(), x), back=torch.equal(back, x), pinned=pinned.is_pinned(), plain=x.is_pinned(),
    other=torch.equal(other.cpu(), x), zeros=torch.zeros(5, device="cuda").tolist(), device=other.device.index)
""",
    )
    for rank, said in enumerate(facts):
        assert said == {
            "there": True,
            "back": True,
            "pinned": True,
            "plain": False,
            "other": True,
            "zeros": [0.0] * 5,
            "device": 1 - rank,
        }


def test_operators_run_on_streams_with_events(tmp_path: Path) -> None:
    facts = says(
        tmp_path,
        """
side = torch.cuda.Stream(priority=-1)
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
x = torch.ones(512, 512, device="cuda")
start.record()
with torch.cuda.stream(side):
    side.wait_event(start)
    y = torch.nn.functional.softmax(x @ x + 1, dim=-1)
    end.record()
torch.cuda.current_stream().wait_stream(side)
z = y.sum()
torch.cuda.synchronize()
try:
    torch.cuda.Event().elapsed_time(end)
    text = ""
except (RuntimeError, ValueError) as error:
    text = str(error)
say(time=start.elapsed_time(end) >= 0, shape=list(y.shape), priority=side.priority, done=end.query() and side.query(), text=text)
""",
    )
    for said in facts:
        assert said["time"]
        assert said["done"]
        assert said["text"]
        assert (said["shape"], said["priority"]) == ([512, 512], -1)


def test_a_graph_is_captured_and_launched(tmp_path: Path) -> None:
    facts = says(
        tmp_path,
        """
source, place = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()
x = torch.ones(8, 64, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    model(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = model(x)
    place.copy_(source)
source.copy_(torch.tensor([1., 2., 3., 4.]))
before = place.tolist()
graph.replay()
torch.cuda.synchronize()
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.cuda.synchronize()
    text = ""
except Exception as error:
    text = str(error.__context__)
say(before=before, after=place.tolist(), shape=list(y.shape), text=text)
""",
    )
    for said in facts:
        assert (said["before"], said["after"], said["shape"]) == ([0.0] * 4, [1.0, 2.0, 3.0, 4.0], [8, 64])
        assert "operation not permitted when stream is capturing" in str(said["text"])


def test_graphs_compute_whenever_they_are_launched(tmp_path: Path) -> None:
    """A graph does not compute at its capture, but at each launch: with the current inputs, in place, by substitutes,
    with new random numbers, on two streams."""
    facts = says(
        tmp_path,
        """
import torch.nn.functional as F
torch.manual_seed(3)
x, count = torch.zeros(4, device="cuda"), torch.zeros(1, device="cuda")
model = torch.nn.LSTM(4, 8).cuda()
side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    count.add_(1)
    y = model(x.view(1, 1, 4))[0]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        double = 2 * x
    torch.cuda.current_stream().wait_stream(side)
    attended = F.scaled_dot_product_attention(*(torch.cat([double, x]).view(1, 1, 2, 4).half(),) * 3)
    drawn = torch.rand(3, device="cuda")
captured = count.item()
results = []
for start in (1.0, 5.0):
    x.copy_(torch.arange(start, start + 4))
    graph.replay()
    with torch.no_grad():
        there = [y, double, attended, count]
        q = torch.cat([2 * x, x]).view(1, 1, 2, 4).half()
        here = [model(x.view(1, 1, 4))[0], 2 * x, F.scaled_dot_product_attention(q, q, q)]
    results.append([all(torch.equal(a, b) for a, b in zip(there, here)), count.item(), drawn.tolist()])
torch.cuda.manual_seed(7)
graph.replay()
first = drawn.tolist()
torch.cuda.manual_seed(7)
graph.replay()
again = drawn.tolist()
graph.reset()
say(captured=captured, results=results, same=first == again)
""",
    )
    for said in facts:
        assert said["captured"] == 0
        (equal, count, drawn), (equal_then, count_then, drawn_then) = said["results"]
        assert (equal, count, equal_then, count_then) == (True, 1, True, 2)
        assert drawn != drawn_then
        assert len(set(drawn)) == 3
        assert said["same"]


def test_kernels_of_triton_and_of_the_compiler_are_launched(tmp_path: Path) -> None:
    facts = says(
        tmp_path,
        """
import triton, triton.language as tl

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)

x = torch.ones(1000, device="cuda")
kernel = add[(1,)](x, x, torch.empty_like(x), 1000, BLOCK=1024)
compiled = torch.compile(lambda x: torch.softmax(x * 2 + 1, -1))
shape = list(compiled(torch.ones(64, 128, device="cuda")).shape)
torch.cuda.synchronize()
say(registers=kernel.n_regs, spills=kernel.n_spills, shape=shape)
""",
        TRITON_CACHE_DIR=str(tmp_path / "triton"),
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "inductor"),
    )
    for said in facts:
        # Figures that ptxas has written into the binary.
        assert 8 <= said["registers"] <= 255  # type: ignore[operator]
        assert (said["spills"], said["shape"]) == (0, [64, 128])


def test_errors_have_the_real_librarys_names_and_texts() -> None:
    real = next(Path(torch.__file__).parents[1].glob("nvidia/cu*/lib/libcudart.so.*"), None)
    if real is None:
        pytest.skip("NVIDIA's runtime is not installed beside torch")
    source = (
        "import ctypes, json, sys\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "asks = [library.cudaGetErrorName, library.cudaGetErrorString]\n"
        "for ask in asks: ask.restype = ctypes.c_char_p\n"
        "print(json.dumps([[ask(code).decode() for ask in asks] for code in range(1000)]))\n"
    )
    ours, theirs = (
        json.loads(subprocess.run([sys.executable, "-c", source, path], check=True, capture_output=True).stdout)
        for path in (PHANTOM, real)
    )
    assert ours == theirs


DEVICE = """
[[device]]
name = "card"
{model}
memory = "4 GiB"
[network]
"""


def test_a_device_without_a_model_has_its_own_name_and_memory(tmp_path: Path) -> None:
    """All other properties are an H100's."""
    (tmp_path / "cluster.toml").write_text(DEVICE.format(model="count = 1"))
    source = "import torch\np = torch.cuda.get_device_properties(0)\nprint('is', p.name, p.total_memory, p.multi_processor_count)"
    done = uniference(
        "run", "--cuda", "--cluster", "cluster.toml", "--out", "out", write_script(tmp_path, source), cwd=tmp_path
    )
    assert done.code == 0, done.err
    assert f"is card.0 {4 << 30} 132" in done.out


@pytest.mark.parametrize("model", ["mi300x", "rpi-5"])
def test_what_is_no_gpu_of_nvidias_is_refused(model: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(DEVICE.format(model=f'model = "{model}"'))
    command = ("run", "--cuda", "--cluster", "cluster.toml", "--compute", "none", "--out", "out")
    done = uniference(*command, write_script(tmp_path, ""), cwd=tmp_path)
    assert done.code == 2
    assert "and only NVIDIA's GPUs are simulated" in done.err
    assert "--no-cuda" in done.err.split("hint: ")[1]


def test_compute_that_is_measured_needs_all_values(tmp_path: Path) -> None:
    script = write_script(tmp_path, "")
    done = uniference("run", "--cuda", "--ranks", 2, "--values", "small", "--out", "out", script, cwd=tmp_path)
    assert done.code == 2
    assert "their time cannot be measured" in done.err
    assert "hint: add --compute none, or --compute model" in done.err


def test_measured_operators_take_their_processor_time(tmp_path: Path) -> None:
    """On the device as on the host: a kernel has ended when its call returns, so the events' times equal the rank's
    compute."""
    source = """
import torch
x = torch.ones(512, 512, device="cuda")
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
begin.record()
for _ in range(20):
    x = x @ x / 512
end.record()
end.synchronize()
print("took", begin.elapsed_time(end))
"""
    script = write_script(tmp_path, source)
    done = uniference("run", "--cuda", "--ranks", 1, "--out", "out", script, cwd=tmp_path)
    assert done.code == 0, done.err
    took = float(done.out.split("took ")[1].split()[0])
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["manifest"]["compute"] == "measured"
    # 20 GEMMs of 2 * 512^3 operations: at least a tenth of a millisecond each on any CPU.
    assert 2 < took <= report["ranks"][0]["compute_s"] * 1e3
    assert report["warnings"] == ["the program never communicated; only its compute was simulated"]


def test_a_report_and_fit_have_what_gpus_hold_by_kind(tmp_path: Path) -> None:
    source = """
import os, torch
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(2))).cuda()
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, foreach=False)
for _ in range(2):
    model(torch.randn(8, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
large = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
print("reserved", torch.cuda.max_memory_reserved(), flush=True)
"""
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    script = write_script(tmp_path, source)
    where = ("--cuda", "--cluster", tmp_path / "cluster.toml")
    done = uniference("run", *where, "--out", tmp_path / "out", script, cwd=tmp_path)
    assert done.code == 0, done.err
    rows = json.loads((tmp_path / "out" / "report.json").read_text())["memory"]
    held = {row["kind"]: row["peak_bytes"] for row in rows if row["rank"] == 0}
    # Two matrices of 1 MiB, and momentum of the same size; gradients are freed by then.
    assert (held["parameters"], held["optimizer"], held["context"]) == (2 << 20, 2 << 20, 520 << 20)
    assert held["activations"] >= 1 << 30
    of_device = sum(bytes for kind, bytes in held.items() if kind != "host")
    reserved = int(done.out.split("reserved ")[1].split()[0])
    assert of_device == reserved + (520 << 20)
    # Two matrices on the host, before they are moved.
    assert 2 << 20 <= held["host"] < 3 << 20
    assert "; on the host at most " in done.out
    # The allocator releases reserved memory if memory is scarce; 2 MiB less than the remaining use is too little.
    for memory, code in ((of_device, 0), (of_device - held["reserved"] - (2 << 20), 1)):
        (tmp_path / "cluster.toml").write_text(CLUSTER.replace("count = 2", f'count = 2\nmemory = "{memory} B"'))
        fits = uniference("fit", *where, "--json", script, cwd=tmp_path)
        assert fits.code == code, fits.out + fits.err
        assert (json.loads(fits.out)["ranks"][0]["peak_bytes"] > memory) == (code == 1)
    # The last cluster lacks 2 MiB.
    refused = uniference("run", *where, script, cwd=tmp_path)
    assert refused.code == 1
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB" in refused.err, refused.err
    assert (
        "hint: Of the allocated memory 2.00 MiB is parameters, 0 bytes gradients, 2.00 MiB optimizer state"
        in refused.err
    )
