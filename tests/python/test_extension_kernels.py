"""Operators of extensions that launch kernels of their own on simulated GPUs, and attention of vLLM and SGLang: their
costs, which depend on lengths in memory."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from kernel_runs import checked, kernel_seconds, run

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA")


# An extension's operator with a kernel that it launches through the driver, and another operator that it calls.
EXTENSION = """
import ctypes

driver = ctypes.CDLL("libcuda.so.1")
torch.ones(1, device="cuda")
module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuModuleLoadData(ctypes.byref(module), b".version 9.0") == 0
assert driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"own") == 0

def launch_own():
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    assert driver.cuLaunchKernel(kernel, *[ctypes.c_uint(1)] * 6, ctypes.c_uint(0), stream, None, None) == 0

library = torch.library.Library("mine", "DEF")
library.define("doubled(Tensor x, Tensor(a!) cache) -> Tensor")
library.define("called(Tensor x) -> Tensor")

def doubled(x, cache):
    launch_own()
    return torch.empty_like(x).copy_(x)

library.impl("doubled", doubled, "CUDA")
library.impl("called", lambda x: 2 * x, "CUDA")
"""


def test_an_operator_that_launches_kernels_of_its_own_takes_its_traffic_and_is_named(tmp_path: Path) -> None:
    body = (
        EXTENSION
        + """
x, cache = torch.ones(1 << 20, device="cuda"), torch.ones(1 << 20, device="cuda")
torch.ops.mine.doubled(x, cache)
torch.ops.mine.doubled(x, cache)
torch.ops.mine.called(x)
"""
    )
    report = checked(tmp_path, body, "", "--values", "small")
    # Each call moves x, the cache and the result, 12 MiB at 3.35 TB/s, plus a launch.
    assert 24 * 2**20 / 3.35e12 < kernel_seconds(report, "kernel") < 24 * 2**20 / 3.35e12 + 10e-6
    (warning,) = [warning for warning in report["warnings"] if "mine::" in warning]
    assert re.search(r"mine::doubled \(2 times, \d+ % of the compute\)", warning)
    assert "mine::called" not in warning


def test_what_an_extensions_kernels_compute_reads_as_zero(tmp_path: Path) -> None:
    """Also in a CUDA graph. Values of an operator that it calls are computed if that operator launches no kernel
    itself; earlier values of a large cache stay."""
    body = (
        EXTENSION
        + """
x, cache = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
assert torch.ops.mine.called(x).tolist() == [2] * 4
assert torch.ops.mine.doubled(x, cache).tolist() == [0] * 4 and cache.tolist() == [0] * 4
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = torch.ops.mine.doubled(x, cache)
result.fill_(3)
cache.fill_(3)
graph.replay()
assert result.tolist() == [0] * 4 and cache.tolist() == [0] * 4

large = torch.empty(1 << 17, device="cuda")
torch.ops.mine.doubled(x, large)
large[5] = 1
torch.ops.mine.doubled(x, large)
assert large[5].item() == 1
"""
    )
    done = run(tmp_path, body)
    assert done.code == 0, done.err
    assert (
        "the values of mine::doubled are not computed on simulated GPUs: it launches kernels of its own"
        in done.out + done.err
    )
    assert "no operator launches it" not in done.out + done.err


def test_an_extensions_kernels_on_large_tensors_are_allowed_without_values(tmp_path: Path) -> None:
    """The option `--strict-values` allows missing values of tensors above the limit."""
    body = EXTENSION + 'x = torch.empty(1 << 20, device="cuda")\ntorch.ops.mine.doubled(x, x)\n'
    done = run(tmp_path, body, "", "--values", "small", "--strict-values")
    assert done.code == 0, done.err


ATTENTION = """
library = torch.library.Library("_vllm_fa3_C", "DEF")
# Names of vLLM's schema in another order.
signature = ["Tensor page_table", "Tensor seqused_k", "Tensor cu_seqlens_q", "Tensor? cu_seqlens_k"]
signature += ["Tensor q", "Tensor k", "Tensor v", "Tensor? q_v"]
signature += ["int max_seqlen_k", "bool is_causal", "int window_size_left", "int window_size_right"]
library.define(f"fwd({', '.join(signature)}) -> Tensor")

def fwd(pages, used, borders, keys, q, *rest):
    launch_own()
    return torch.empty_like(q)

library.impl("fwd", fwd, "CUDA")
sequences = 64
query = torch.empty(sequences, 8, 128, device="cuda", dtype=torch.bfloat16)
cache = torch.empty(20000, 16, 8, 128, device="cuda", dtype=torch.bfloat16)
borders = torch.arange(sequences + 1, device="cuda", dtype=torch.int32)
pages = torch.zeros(sequences, 256, device="cuda", dtype=torch.int32)
used = torch.full((sequences,), 4000, device="cuda", dtype=torch.int32)

def attends():
    return torch.ops._vllm_fa3_C.fwd(pages, used, borders, None, query, cache, cache, None, 4000, True, -1, -1)

def took(call, length):
    used.fill_(length)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)

attends()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    attends()
print("TOOK", *(took(call, length) for call in (attends, graph.replay) for length in (4000, 1000)))
"""


def test_attention_of_vllm_takes_as_long_as_its_sequences_in_a_graph_too(tmp_path: Path) -> None:
    done = run(tmp_path, EXTENSION + ATTENTION, "", "--values", "small")
    assert done.code == 0, done.err
    assert "lengths that are not known" not in done.err
    eager_long, eager, graph_long, graph = map(float, done.out.split("TOOK")[1].split()[:4])
    # Keys and values, 8 heads of 128 in 2 bytes, pass through memory of 3.35 TB/s, of which kernels reach 0.75 at most.
    least = 1000 * 64 * 1000 * 2 * 8 * 128 * 2 / 3.35e12
    assert least < graph < graph_long / 3, done.out
    assert abs(eager - graph) < 0.02, done.out
    assert abs(eager_long - graph_long) < 0.02, done.out


def test_operators_of_another_version_are_named_instead_of_misread(tmp_path: Path) -> None:
    """The schema of an operator lacks an argument; the installed version of its package was not checked."""
    metadata = tmp_path / "vllm-0.99.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.99.0\n")
    body = EXTENSION + ATTENTION.split("def took")[0].replace("seqused_k", "lengths") + "attends()\n"
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = run(tmp_path, body, "", "--values", "small", environment={"PYTHONPATH": path})
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    (schema,) = [warning for warning in report["warnings"] if "seqused_k" in warning]
    assert schema.endswith("_vllm_fa3_C::fwd (no argument `seqused_k`)")
    (version,) = [warning for warning in report["warnings"] if "vllm 0.99.0" in warning]
    assert "only checked with 0.33.0" in version
    assert version.endswith("(for example _vllm_fa3_C::fwd)")
    assert report["manifest"]["versions"]["vllm"] == "0.99.0"


# With SGLang's names: the table of pages has no values, and cumulative lengths have 64 bits.
PAGED = """
import triton, triton.language as tl

@triton.jit
def within(place, borders):
    return place < tl.load(borders + tl.program_id(0) + 1)

@triton.jit
def _fwd_grouped_kernel_stage1(
    Q, K_Buffer, V_Buffer, kv_indptr, kv_indices, Att_Out, num_kv_splits, kv_group_num: tl.constexpr, Lk: tl.constexpr, Lv: tl.constexpr,
    MIN_BLOCK_KV: tl.constexpr,
):
    tl.inline_asm_elementwise("griddepcontrol.wait; // dummy $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    d = tl.arange(0, Lv)
    total, place = tl.zeros((Lv,), tl.float32), tl.load(kv_indptr + tl.program_id(0))
    while within(place, kv_indptr):
        at = tl.load(kv_indices + place)
        total += tl.load(K_Buffer + at * Lk + d) + tl.load(V_Buffer + at * Lk + d) + tl.load(Q + d)
        place += 1
    tl.store(Att_Out + tl.program_id(0) * tl.load(num_kv_splits) * Lv + d, total)

sequences = 64
query = torch.empty(sequences, 8, 128, device="cuda", dtype=torch.bfloat16)
keys, values = torch.empty(2, 1 << 20, 8, 128, device="cuda", dtype=torch.bfloat16).unbind()
borders = torch.zeros(5000, device="cuda", dtype=torch.int64)[: sequences + 1]
places = torch.zeros(1 << 19, device="cuda", dtype=torch.int64)
splits = torch.ones(5000, device="cuda", dtype=torch.int32)
parts = torch.empty(sequences, 8, 4, 128, device="cuda")

def attends():
    _fwd_grouped_kernel_stage1[(sequences,)](
        query, keys, values, borders, places, parts, splits, kv_group_num=1, Lk=128, Lv=128, MIN_BLOCK_KV=32
    )

def took(call, length):
    borders[1:] = torch.full((sequences,), length, device="cuda").cumsum(0)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    assert borders[2].item() == 2 * length and splits[7].item() == 1, "they were only read"
    return start.elapsed_time(end)

took(attends, 10)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    attends()
print("TOOK", *(took(call, length) for call in (attends, graph.replay) for length in (4000, 1000)))
"""


def test_paged_attention_of_triton_takes_as_long_as_its_sequences_in_a_graph_too(tmp_path: Path) -> None:
    done = run(tmp_path, PAGED, "", "--values", "small")
    assert done.code == 0, done.err
    assert "lengths that are not known" not in done.err, done.err
    assert "unknown arithmetic" not in done.err, done.err
    eager_long, eager, graph_long, graph = map(float, done.out.split("TOOK")[1].split()[:4])
    least = 1000 * 64 * 1000 * 2 * 8 * 128 * 2 / 3.35e12
    assert least < graph < graph_long / 3, done.out
    assert abs(eager - graph) < 0.02, done.out
    assert abs(eager_long - graph_long) < 0.02, done.out
