"""Triton kernels and kernels of torch's compiler on simulated GPUs: their values and their costs."""

from pathlib import Path

import pytest
import torch
from kernel_runs import checked, kernel_seconds, run

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA")


TRITON = """
import triton, triton.language as tl

@triton.jit
def activated(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(out + i, tl.where(v > 0, tl.exp(v), tl.sigmoid(v)), mask=i < n)
"""


# Triton's interpreter computes the same values, but slowly.
NOT_INTERPRETED = """
import sys
assert "uniference.rank.execution" in sys.modules and "uniference.rank.interpretation" not in sys.modules
"""


def test_kernels_of_triton_compute(tmp_path: Path) -> None:
    checked(
        tmp_path,
        TRITON
        + """
from triton.language.extra import libdevice

@triton.autotune(configs=[triton.Config({"BLOCK": size}) for size in (128, 256)], key=["k"])
@triton.jit
def norms(x, out, k, BLOCK: tl.constexpr):
    row, total = tl.program_id(0), 0.0
    for first in range(0, k, BLOCK):
        i = first + tl.arange(0, BLOCK)
        v = tl.load(x + row * k + i, mask=i < k, other=0.0)
        total += tl.sum(v * v)
    tl.store(out + row, libdevice.rsqrt(total))

@triton.jit
def product(a, b, c, M, N, K, SIDE: tl.constexpr):
    i, j, k = tl.program_id(0) * SIDE + tl.arange(0, SIDE), tl.program_id(1) * SIDE + tl.arange(0, SIDE), tl.arange(0, SIDE)
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for first in range(0, K, SIDE):
        x = tl.load(a + i[:, None] * K + (first + k)[None, :])
        total += tl.dot(x, tl.load(b + (first + k)[:, None] * N + j[None, :]))
    tl.store(c + i[:, None] * N + j[None, :], total.to(tl.bfloat16))

x = torch.randn(1000, device="cuda")
out = torch.empty_like(x)
activated[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, out, 1000, BLOCK=256)
assert torch.allclose(out, torch.where(x > 0, x.exp(), x.sigmoid()))

x = torch.randn(20, 300, device="cuda")
out = torch.empty(20, device="cuda")
for _ in range(2):
    norms[(20,)](x, out, 300)
assert torch.allclose(out, 1 / x.norm(dim=1), rtol=1e-4)

# In bfloat16, of which numpy knows nothing.
@triton.jit
def mixed(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(out + i, tl.where(v > 1, v * v - i.to(tl.bfloat16), -v) / 2, mask=i < n)

x = torch.randn(100, device="cuda", dtype=torch.bfloat16)
out, i = torch.empty_like(x), torch.arange(100, device="cuda").bfloat16()
mixed[(1,)](x, out, 100, BLOCK=128)
assert torch.allclose(out.float(), (torch.where(x > 1, x * x - i, -x) / 2).float(), rtol=1e-2), (out, x)

a, b = (torch.randn(64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
c = torch.empty_like(a)
product[(2, 2)](a, b, c, 64, 64, 64, SIDE=32)
assert torch.allclose(c.float(), a.float() @ b.float(), rtol=2e-2, atol=2e-1)

# How many programs there are is a matter of values, and is asked once.
asked = []
counts = torch.tensor([3, 5], device="cuda")
def programs(meta):
    asked.append(meta["BLOCK"])
    return (int(counts.max()) + 1,)

x, out = torch.randn(6 * 64, device="cuda"), torch.zeros(6 * 64, device="cuda")
activated[programs](x, out, 6 * 64, BLOCK=64)
assert torch.allclose(out, torch.where(x > 0, x.exp(), x.sigmoid())) and asked == [64], asked

# Tuples are as many arguments as they have tensors and numbers.
@triton.jit
def all_copied(parts, outs, sizes, strides, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    for part in tl.static_range(len(sizes)):
        v = tl.load(parts[part] + i * strides[part][0], mask=i < sizes[part])
        tl.store(outs[part] + i * strides[part][1], v, mask=i < sizes[part])

parts = torch.randn(60, device="cuda"), torch.arange(40, device="cuda")
outs = tuple(torch.zeros_like(part[::2]) for part in parts)
all_copied[(1,)](parts, outs, (30, 20), ((2, 1), (2, 1)), BLOCK=32)
assert all(torch.equal(out, part[::2]) for out, part in zip(outs, parts)), outs
"""
        + NOT_INTERPRETED,
    )


def test_what_torchs_compiler_has_written_computes(tmp_path: Path) -> None:
    report = checked(
        tmp_path,
        """
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10), nn.Softmax(-1)).cuda()
compiled = torch.compile(model)
x, y = torch.randn(32, 64, device="cuda"), torch.randint(0, 10, (32,), device="cuda")
losses, gradients = [], []
for forward in (model, compiled):
    loss = nn.functional.cross_entropy(forward(x), y)
    loss.backward()
    losses.append(loss.item())
    gradients.append([p.grad.clone() for p in model.parameters()])
    model.zero_grad()
assert abs(losses[0] - losses[1]) < 1e-5, losses
assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*gradients))
"""
        + NOT_INTERPRETED,
    )
    # The program's kernels are element-wise or row-wise: none of them has an unknown cost.
    assert not any("unknown" in warning for warning in report["warnings"]), report["warnings"]


def test_the_step_of_an_optimizer_is_compiled_as_a_whole(tmp_path: Path) -> None:
    """The hooks that identify gradients and states are not part of the compiled step, and still work."""
    report = checked(
        tmp_path,
        """
torch.manual_seed(0)
results = []
for place in ("cuda", "cpu"):
    torch.manual_seed(1)
    layer = torch.nn.Linear(256, 256).to(place)
    optimizer = torch.optim.Adam(layer.parameters())
    step = torch.compile(lambda: optimizer.step()) if place == "cuda" else optimizer.step
    for _ in range(3):
        layer(torch.randn(8, 256).to(place)).square().sum().backward()
        step()
        optimizer.zero_grad(set_to_none=False)
    results.append(layer.weight.detach().cpu())
torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
# By PyTorch itself, where it turns gradients off.
breaks = torch._dynamo.utils.counters["graph_break"]
assert all("graph_break()" in reason for reason in breaks), breaks
""",
    )
    kinds = {row["kind"]: row["peak_bytes"] for row in report["memory"]}
    assert kinds["optimizer"] >= 2 * 4 * 256 * 257, kinds
    assert kinds["gradients"] >= 4 * 256 * 257, kinds


COLD_AND_WARM = """
torch.manual_seed(0)
norm = torch.nn.LayerNorm(512).cuda()
weights = torch.ones(512, 512).cuda()

@torch.compile
def forward(x):
    return torch.softmax(norm(x @ weights), -1).sum()

forward(torch.ones(256, 512).cuda()).backward()
print(norm.bias.grad.abs().sum().isfinite().item())
"""


def test_what_is_run_to_compile_takes_no_operators_time(tmp_path: Path) -> None:
    """With a cold and a warm cache. Choosing between configurations of a kernel used to cost several milliseconds."""
    cold, warm = (checked(tmp_path, COLD_AND_WARM, "", "--values", "all") for _ in range(2))
    assert abs(cold["makespan_ps"] - warm["makespan_ps"]) < 20_000_000


def test_what_a_compiler_measures_is_measured_in_virtual_time(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
from torch._inductor.runtime.benchmarking import benchmarker

def slow(graph, inputs):
    took = [benchmarker.benchmark_gpu(lambda: torch.mm(a, a)) for a in (torch.ones(n, n).cuda() for n in (512, 4096))]
    print(took[1] / took[0] > 50, torch.ones(3).cuda().sum().item())
    return graph.forward

print(torch.compile(lambda x: x + 1, backend=slow)(torch.ones(2).cuda()).tolist())
""",
    )
    assert done.code == 0, done.err + done.out
    assert "True 3.0" in done.out, done.out
    assert "[2.0, 2.0]" in done.out, done.out


def test_what_torchs_compiler_has_written_for_any_size_computes(tmp_path: Path) -> None:
    checked(
        tmp_path,
        """
@torch.compile
def gated(x, places):
    a, b = x.index_select(0, places).chunk(2, -1)
    return (torch.nn.functional.silu(a) * b).sum(-1)

x = torch.arange(512.0).view(64, 8) / 100
for device in ("cuda", "cpu"):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for count in (16, 24, 40):
        places = torch.arange(count, device=device)
        torch._dynamo.mark_dynamic(places, 0)
        got = gated(x.to(device), places)
        a, b = x[:count].chunk(2, -1)
        assert torch.allclose(got.cpu(), (torch.nn.functional.silu(a) * b).sum(-1))
    # No size was taken for a constant.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
""",
    )


PRODUCT = (
    TRITON
    + """
x = torch.ones(1 << 20, device="cuda")
out = torch.empty_like(x)
activated[(1024,)](x, out, 1 << 20, BLOCK=1024)
"""
)


def test_a_kernel_of_unknown_arithmetic_takes_its_traffic_and_is_named(tmp_path: Path) -> None:
    """The kernel's work depends on floating-point numbers in memory."""
    kernel = """
import triton, triton.language as tl

@triton.jit
def as_many(lengths, x, out):
    for k in range(0, tl.load(lengths).to(tl.int32)):
        tl.store(out + k, tl.load(x + k))

x = torch.ones(1 << 20, device="cuda")
as_many[(1024,)](x, x, torch.empty_like(x))
"""
    report = checked(tmp_path, kernel, "", "--values", "small")
    # 8 MiB at 3.35 TB/s, and a launch.
    assert 8 * 2**20 / 3.35e12 < kernel_seconds(report, "kernel") < 8 * 2**20 / 3.35e12 + 5e-6
    assert any(
        "unknown arithmetic" in warning and "triton::as_many (1 times, " in warning for warning in report["warnings"]
    )


OF_THE_PROGRAM = """
import triton, triton.language as tl

@triton.jit
def product(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for s in range(0, K, BK):
        k = s + tl.arange(0, BK)
        total += tl.dot(tl.load(a + i[:, None] * K + k[None]), tl.load(b + k[:, None] * N + j[None]))
    tl.store(c + i[:, None] * N + j[None], total.to(tl.bfloat16))

@triton.jit
def pages(pool, table, lengths, out, WIDTH: tl.constexpr, MOST: tl.constexpr):
    s, i, total = tl.program_id(0), tl.arange(0, WIDTH), tl.zeros((WIDTH,), tl.float32)
    for page in range(0, tl.load(lengths + s)):
        total += tl.load(pool + tl.load(table + s * MOST + page).to(tl.int64) * WIDTH + i)
    tl.store(out + s * WIDTH + i, total)

def took(call):
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)

a, b, c = (torch.empty(4096, 4096, dtype=torch.bfloat16, device="cuda") for _ in range(3))
ours = took(lambda: product[(32, 32)](a, b, c, 4096, 4096, BM=128, BN=128, BK=64))
assert 0.6 < ours / took(lambda: a @ b) < 1.4, ours

pool = torch.empty(1 << 17, 1024, device="cuda")  # 512 MiB, of which 128 MiB are in the table
table = torch.arange(64 * 512, dtype=torch.int32).reshape(64, 512).cuda()
out = torch.empty(64, 1024, device="cuda")
def read(pages_each):
    lengths = torch.full((64,), pages_each, dtype=torch.int32).cuda()
    return took(lambda: pages[(64,)](pool, table, lengths, out, WIDTH=1024, MOST=512))
few, more = read(16), read(512)
print(few, more)
assert few < 0.02 and 0.04 < more < 0.07
"""


def test_a_kernel_takes_what_its_programs_do(tmp_path: Path) -> None:
    report = checked(tmp_path, OF_THE_PROGRAM, "", "--values", "small")
    assert not any("unknown arithmetic" in warning for warning in report["warnings"]), report["warnings"]


def test_a_graph_finds_other_integers_than_its_capture(tmp_path: Path) -> None:
    """In a graph, the work of a kernel that depends on integers in memory is unknown."""
    capture = """
lengths = torch.zeros(64, dtype=torch.int32, device="cuda")
pages[(64,)](pool, table, lengths, out, WIDTH=1024, MOST=512)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    pages[(64,)](pool, table, lengths, out, WIDTH=1024, MOST=512)
graph.replay()
"""
    report = checked(tmp_path, OF_THE_PROGRAM + capture, "", "--values", "small")
    assert any(
        "unknown arithmetic" in warning and "triton::pages (1 times" in warning for warning in report["warnings"]
    )


def test_a_user_says_what_a_kernel_costs(tmp_path: Path) -> None:
    kernels = '[[kernel]]\nname = "triton::activ*"\nmicroseconds = "n / BLOCK + x / 2 ^ 20"\n'
    kernels += '[[kernel]]\nname = "triton::activated_twice"\nmicroseconds = "1"\n'
    report = checked(tmp_path, PRODUCT, kernels, "--values", "small")
    assert kernel_seconds(report, "said") == pytest.approx(1025e-6)
    warnings = [warning for warning in report["warnings"] if "activated" in warning]
    assert warnings == ["[[kernel]] has no effect for triton::activated_twice: nothing of that name has run"]

    done = run(tmp_path, PRODUCT, '[[kernel]]\nname = "triton::activated"\nflops = "2 * rows"\n', "--values", "small")
    assert done.code == 2
    assert (
        '[[kernel]] "triton::activated": `flops`: `rows` is not among what it is called with: BLOCK, bytes,' in done.err
    )
    assert "hint:" in done.err


def test_kernels_in_graphs_compute_whenever_these_are_launched(tmp_path: Path) -> None:
    """Kernels of the program, and of the compiler, which creates graphs itself; their arguments stay alive after the
    call."""
    body = (
        TRITON
        + """
x, out = torch.zeros(100, device="cuda"), torch.zeros(100, device="cuda")
activated[(1,)](x, out, 100, BLOCK=128)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    activated[(1,)](x, out, 100, BLOCK=128)
    activated[(1,)](out, x, 50, BLOCK=64)
for start in (-1.0, 0.5):
    expected = torch.linspace(start, 1, 100)
    x.copy_(expected)
    graph.replay()
    once = torch.where(expected > 0, expected.exp(), expected.sigmoid())
    twice = torch.where(once > 0, once.exp(), once.sigmoid())
    assert torch.allclose(out.cpu(), once) and torch.allclose(x.cpu()[:50], twice[:50]), start
    assert torch.equal(x.cpu()[50:], expected[50:])

compiled = torch.compile(lambda x: torch.softmax(x * 2 + 1, -1).sum(0), mode="reduce-overhead")
for _ in range(4):
    x = torch.randn(8, 32, device="cuda")
    assert torch.allclose(compiled(x), torch.softmax(x * 2 + 1, -1).sum(0), atol=1e-6)
"""
    )
    checked(tmp_path, body)


def test_what_a_kernel_only_reads_keeps_its_values_where_the_kernel_is_not_computed(tmp_path: Path) -> None:
    """A helper writes for the kernel; if the written arguments are unknown, for example with an address from memory,
    all count as written."""
    body = """
import triton, triton.language as tl

@triton.jit
def put(to, value, mask):
    tl.store(to, value, mask=mask)

@triton.jit
def scaled(x, lengths, counted, out, n, COUNTS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    length = tl.load(lengths)
    put(out + i, tl.load(x + i, mask=i < n) * length, i < n)
    if COUNTS:
        tl.atomic_add(counted, 1)

n = 1 << 20
x, out = torch.ones(n, device="cuda"), torch.ones(n, device="cuda")
lengths, counted = torch.tensor([3], device="cuda"), torch.tensor([5], device="cuda")
scaled[(n // 1024,)](x, lengths, counted, out, n, COUNTS=False, BLOCK=1024)
assert (lengths.tolist(), counted.tolist(), out[0].item()) == ([3], [5], 0)
scaled[(n // 1024,)](x, lengths, counted, out, n, COUNTS=True, BLOCK=1024)
assert (lengths.tolist(), counted.tolist()) == ([3], [0])
"""
    checked(tmp_path, body, "", "--values", "small")


def test_a_kernel_of_integers_looks_up_large_tables_and_says_what_is_not_there(tmp_path: Path) -> None:
    checked(
        tmp_path,
        """
import triton, triton.language as tl
from uniference.rank import capture

@triton.jit
def prepared(lengths, table, longer, total, rows, B, TABLE: tl.constexpr, WIDTH: tl.constexpr):
    b = tl.program_id(0)
    if b == 0:
        sum = 0
        for i in range(B):
            n = tl.load(lengths + i) + 1
            tl.store(longer + i, n)
            sum += n
        tl.store(total, sum)
    i = tl.arange(0, WIDTH)
    if tl.load(lengths + b) > 1:
        tl.store(rows + b * WIDTH + i, tl.load(table + b * TABLE + i, mask=i < 3, other=7))

integers = {"device": "cuda", "dtype": torch.int32}
lengths = torch.tensor([5, 1, 9], **integers)
longer, total, rows = torch.zeros(3, **integers), torch.zeros(1, **integers), torch.ones(3, 8, **integers)
table = torch.zeros(3, 1_000_000, **integers)
prepared[(3,)](lengths, table, longer, total, rows, 3, 1_000_000, 8)
assert longer.tolist() == [6, 2, 10] and total.item() == 18
assert rows.tolist() == [[0, 0, 0, 7, 7, 7, 7, 7], [1] * 8, [0, 0, 0, 7, 7, 7, 7, 7]]
uncomputed = [capture.library().is_uncomputed(tensor) for tensor in (lengths, longer, total, rows, table)]
assert uncomputed == [False, False, False, True, True], uncomputed
""",
        "",
        "--values",
        "small",
    )


def test_a_kernel_takes_what_it_walks_through_beyond_the_view_that_it_is_given(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import triton, triton.language as tl

@triton.jit
def copied(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i))

x, out = torch.empty(2, 1 << 26, device="cuda").unbind()

def took(x, out):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    copied[(1 << 16,)](x, out, BLOCK=1024)
    end.record()
    end.synchronize()
    return start.elapsed_time(end)

print("TOOK", took(x, out), took(x[:1], out[:100]))
""",
        "",
        "--values",
        "small",
    )
    assert done.code == 0, done.err
    whole, view = map(float, done.out.split("TOOK")[1].split()[:2])
    assert 1000 * 2 * (4 << 26) / 3.35e12 < whole < 1.5 * 1000 * 2 * (4 << 26) / 3.35e12, done.out
    assert view == pytest.approx(whole, rel=0.01), done.out


def test_a_grid_that_is_too_large_is_refused_as_the_driver_does(tmp_path: Path) -> None:
    body = TRITON + "x = torch.ones(9, device='cuda')\nactivated[(1, 65536)](x, x, 9, BLOCK=16)\n"
    done = run(tmp_path, body)
    assert done.code != 0
    assert "Triton Error [CUDA]: invalid argument" in done.err + done.out


def test_what_is_wrong_with_a_kernel_its_compiler_says_alone(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        TRITON.replace("tl.exp(v)", "tl.expp(v)")
        + "x = torch.ones(9, device='cuda')\nactivated[(1,)](x, x, 9, BLOCK=16)\n",
    )
    assert done.code != 0
    assert "expp" in done.err + done.out
    assert "identify_accessed_tensors" not in done.err + done.out


EXTERNAL = """
x, side = torch.ones(2048, 2048, device="cuda"), torch.cuda.Stream()
marker, end, behind = (torch.cuda.Event(enable_timing=True, **words) for words in ({"external": True}, {}, {}))
begin, graph = torch.cuda.Event(enable_timing=True), torch.cuda.CUDAGraph()
x @ x
with torch.cuda.graph(graph):
    y = x @ x
    marker.record()
    for _ in range(9):
        y = y @ x
assert marker.query(), "it was not recorded yet"
begin.record()
graph.replay()
end.record()
side.wait_event(marker)
behind.record(side)
torch.cuda.synchronize()
print("TOOK", *(begin.elapsed_time(event) for event in (marker, behind, end)))
"""


def test_an_external_event_is_recorded_by_a_graph(tmp_path: Path) -> None:
    """At each launch of the graph: another stream waits for the graph's work before the event, and not for the rest."""
    done = run(tmp_path, EXTERNAL, "", "--values", "small", "--compute", "model")
    assert done.code == 0, done.err
    marker, behind, end = map(float, done.out.split("TOOK")[1].split()[:3])
    assert 0 < marker <= behind < end, done.out
    assert 8 * marker < end < 12 * marker, done.out


REUSED = """
import time
side = torch.cuda.Stream()

def used():
    a = torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    begin, at = time.perf_counter(), a.data_ptr()
    with torch.cuda.stream(side):
        a @ a
    a.record_stream(side)
    return begin, at

begin, _ = used()
torch.cuda.synchronize()
took = time.perf_counter() - begin
begin, at = used()
# Memory that another stream uses is not given away before it is through with it.
while torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16).data_ptr() != at:
    pass
print("TOOK", took, time.perf_counter() - begin)
"""


def test_memory_that_another_stream_has_used_is_given_away_soon_after(tmp_path: Path) -> None:
    """The allocator queries the event within each operator. An answer holds for 16 operators, each of about 6 us."""
    done = run(tmp_path, REUSED, "", "--values", "small", "--compute", "model")
    assert done.code == 0, done.err
    took, reused = map(float, done.out.split("TOOK")[1].split()[:2])
    assert took <= reused < took + 20 * 6e-6, done.out


# All 8-bit numbers, and others whose rounding goes to the nearest, to even, into the exponent, below the smallest, and
# beyond the largest.
EIGHT_BITS = """
import sys
import triton, triton.language as tl

@triton.jit
def cast(x, out, n, SIZE: tl.constexpr, counts: tl.constexpr):
    i = tl.arange(0, SIZE)
    v = tl.load(x + i, mask=i < n)
    if counts:
        tl.store(out + i, (v + 0 * tl.sum(tl.histogram(i, 8))).to(out.dtype.element_ty), mask=i < n)
    else:
        tl.store(out + i, v.to(out.dtype.element_ty), mask=i < n)

def same(a, b):
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(7), b.nan_to_num(7))

for eight in torch.float8_e4m3fn, torch.float8_e5m2:
    exact = torch.arange(256, dtype=torch.uint8).view(eight)
    most = torch.finfo(eight).max
    x = exact.float()
    x = x[x.isfinite()].sort().values
    middle = (x[1:] + x[:-1]) / 2
    x = torch.cat([x, middle, middle * (1 + 2**-9), middle * (1 - 2**-9), torch.randn(1000, generator=torch.Generator().manual_seed(1))])
    far = torch.tensor([0.999 * most, 1.01 * most, 2 * most, -3 * most, torch.nan, torch.inf])
    for of in torch.float32, torch.bfloat16, torch.float16:
        given = torch.cat([x, far]).to(of)
        # Where PyTorch has infinity, or none of these numbers, a kernel has the largest.
        expected = given.float().clamp(-most, most).to(eight).float()
        for counts in False, True:
            out = torch.empty(len(given), dtype=eight, device="cuda")
            cast[(1,)](given.cuda(), out, len(given), 4096, counts)
            assert same(out.cpu().float(), expected), (eight, of, counts)
            back = torch.empty(256, dtype=of, device="cuda")
            cast[(1,)](exact.cuda(), back, 256, 256, False)
            assert same(back.cpu(), exact.to(of)), (eight, of)

weights = torch.randn(4096, generator=torch.Generator().manual_seed(1)).cuda()
quantise = lambda w: (w * (448 / w.abs().max())).to(torch.float8_e4m3fn)
compiled = torch.compile(quantise)(weights).cpu()
assert torch.equal(compiled.float(), quantise(weights).cpu().float())
"""


def test_casts_to_eight_bits_round_as_a_gpu_does(tmp_path: Path) -> None:
    report = checked(tmp_path, EIGHT_BITS)
    assert not any("interpreted" in warning for warning in report["warnings"]), report["warnings"]


def test_sleeping_kernels_of_torch_last_for_their_cycles_side_by_side(tmp_path: Path) -> None:
    """`torch.cuda._sleep` on an H100, whose highest clock is 1.98 GHz, and whose shortest kernel lasts some
    microseconds."""
    body = """
ms = 1_980_000
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

def timed(what):
    torch.cuda.synchronize()
    start.record()
    what()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)

def sleeps(*cycles):
    return lambda: [torch.cuda._sleep(each) for each in cycles]

side = torch.cuda.Stream()

def side_by_side():
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(ms)
    torch.cuda._sleep(2 * ms)
    torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    torch.cuda._sleep(3 * ms)

for what, least in [(sleeps(0), 0), (sleeps(-5), 0), (sleeps(ms, 4 * ms), 5), (side_by_side, 2), (graph.replay, 3)]:
    took = timed(what)
    assert least < took < least + 0.025, (least, took)
"""
    report = checked(tmp_path, body, "", "--compute", "model")
    assert not any("spin_kernel" in warning for warning in report["warnings"]), report["warnings"]


FLEX = """
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
TOKENS = 2048
q, k, v = (torch.zeros(1, 8, TOKENS, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
attention = torch.compile(flex_attention)
def window(batch, head, query, key):
    return (query >= key) & (query - key < 256)
mask = create_block_mask(window, None, None, TOKENS, TOKENS, device="cuda")
# Of 16 blocks a side, each row has its own and the two before it.
assert mask.kv_num_blocks.add(mask.full_kv_num_blocks).flatten().tolist() == [1, 2] + 14 * [3]
attention(q, k, v, block_mask=mask)
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
def timed(mask):
    attention(q, k, v, block_mask=mask)
    begin.record(); attention(q, k, v, block_mask=mask); end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)
everything, near = timed(None), timed(mask)
print(everything / near)
# 256 blocks, and 45.
assert 2 < everything / near < 6, (everything, near)
"""


def test_flex_attention_passes_over_blocks_of_a_mask_that_is_too_large_to_be_computed(tmp_path: Path) -> None:
    # 4 million elements.
    checked(tmp_path, FLEX, "", "--compute", "model", "--values", "small")


def test_a_graph_outlives_the_thread_that_captured_it(tmp_path: Path) -> None:
    body = """
import threading
graph, results = torch.cuda.CUDAGraph(), []
x = torch.ones(4, device="cuda")

def capture():
    with torch.cuda.graph(graph):
        both = torch.cat([x * 2, x * 2])
        results.append(both.sqrt() + both.exp() - both.tanh())

thread = threading.Thread(target=capture)
thread.start()
thread.join()
others = [bytes([255]) * size for size in range(100, 900) for _ in range(20)]
x.fill_(3)
graph.replay()
both = torch.full((8,), 6.0)
assert torch.allclose(results[0].cpu(), both.sqrt() + both.exp() - both.tanh()), results
"""
    checked(tmp_path, body)


def test_a_compiled_scan_goes_over_many_blocks(tmp_path: Path) -> None:
    """The scan's blocks exchange their sums through a workspace."""
    body = """
scan = torch.compile(lambda x: x.cumsum(0))
assert scan(torch.ones(1 << 20, device="cuda"))[-1].item() == 1 << 20
"""
    report = checked(tmp_path, body)
    assert not any("not computed" in warning for warning in report["warnings"]), report["warnings"]


def test_a_kernel_takes_unsigned_integers_of_64_bits(tmp_path: Path) -> None:
    body = """
import triton, triton.language as tl

@triton.jit
def halved(out, seed, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), (seed >> 1).to(tl.int64) + tl.arange(0, N))

out = torch.zeros(4, dtype=torch.int64, device="cuda")
for seed in (6, 2**63 + 6):
    halved[(1,)](out, seed, N=4)
    assert out.tolist() == [seed // 2 + i for i in range(4)], (seed, out)
"""
    checked(tmp_path, body)


PRINTED = """
import triton, triton.language as tl

@triton.jit
def shown(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.device_print("half", tl.load(x + i) / 2)

@triton.jit
def far(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N).to(tl.int64) * (1 << 40), 1.0)

x = torch.tensor([1.0, float("inf")], device="cuda")
print("before", flush=True)
shown[(1,)](x, N=2)
print("behind", flush=True)
"""


def test_a_kernel_prints_in_its_place_and_one_that_faults_is_found(tmp_path: Path) -> None:
    done = run(tmp_path, PRINTED)
    assert done.code == 0, done.err
    between = done.out.split("before\n")[1].split("behind\n")[0]
    assert between == "pid (0, 0, 0) idx (0) half: 0.500000\npid (0, 0, 0) idx (1) half: inf\n", done.out
    (tmp_path / "far").mkdir()
    done = run(tmp_path / "far", PRINTED + "far[(1,)](x, N=2)\n")
    line = 2 + PRINTED.count("\n")
    assert done.code == 1, done.err
    assert "killed by SIGSEGV" in done.err, done.err
    assert "Fatal Python error: Segmentation fault" in done.err, done.err
    assert f'.py", line {line} in <module>' in done.err, done.err
