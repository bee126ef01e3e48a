"""Memory of simulated GPUs that several processes share (CUDA's IPC), and kernels that communicate through it, as in
vLLM's custom all-reduce.

The kernels' names and arguments are those of vllm-project/vllm, `csrc/custom_all_reduce.cuh`; the programs in this file
launch them in the same way.
"""

import json
import re
from pathlib import Path

import pytest
import torch
from harness import gpus, uniference, write_script

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

HEAD = """
import ctypes, os
import torch, torch.distributed as dist

dist.init_process_group("cpu:gloo,cuda:nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
cuda = ctypes.CDLL("libcudart.so.13")

class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]

def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)

def allocate(count):
    pointer = ctypes.c_void_p()
    call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(count))
    return pointer

def handed_out(pointer):
    handle = Handle()
    call("cudaIpcGetMemHandle", ctypes.byref(handle), pointer)
    return bytes(handle.bytes)

def opened(handle):
    pointer = ctypes.c_void_p()
    call("cudaIpcOpenMemHandle", ctypes.byref(pointer), Handle((ctypes.c_ubyte * 64)(*handle)), 1)
    return pointer

def shared(count):
    own, handles = allocate(count), [None] * size
    dist.all_gather_object(handles, list(handed_out(own)))
    return [own if member == rank else opened(handle) for member, handle in enumerate(handles)]

def view(pointer, count):
    return (ctypes.c_ubyte * count).from_address(pointer.value)
"""

KERNELS = """
PLACES = {}

def kernel(name, types):
    mangled = f"_ZN4vllm{len(name)}{name}I{types}EEvPNS_8RankDataENS_11RankSignalsEPNS_6SignalEPT_ii".encode()
    if mangled not in PLACES:
        PLACES[mangled] = ctypes.create_string_buffer(1)
        text = PLACES[mangled.decode()] = ctypes.create_string_buffer(mangled)
        register = getattr(cuda, "__cudaRegisterFunction")
        register.restype = None
        register(None, PLACES[mangled], None, text, -1, None, None, None, None, None)
    return PLACES[mangled]

class Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]

def launch(name, types, flags, listed, result, count):
    values = [
        ctypes.c_void_p(listed.data_ptr()), (ctypes.c_void_p * 8)(*(flag.value for flag in flags)),
        ctypes.c_void_p(flags[rank].value), ctypes.c_void_p(result.data_ptr()), ctypes.c_int(rank), ctypes.c_int(count // 16),
    ]
    arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    call("cudaLaunchKernel", kernel(name, types), Dim3(36, 1, 1), Dim3(512, 1, 1), arguments, ctypes.c_size_t(0), stream)

flags = shared(4096)

def reduced(x, name="cross_device_reduce_1stage", types=None):
    result = torch.zeros_like(x)
    # Of the other members only their kernels know where their tensors are.
    listed = torch.tensor([x.data_ptr()] * size, dtype=torch.int64).cuda()
    launch(name, types or f"{TYPES[x.dtype]}Li{size}E", flags, listed, result, x.numel() * x.element_size())
    return result

TYPES = {torch.float32: "f", torch.float16: "6__half", torch.bfloat16: "13__nv_bfloat16"}
"""


def run(directory: Path, source: str, *, ranks: int = 2) -> tuple[str, str]:
    """Runs a script on the GPUs of one host, and checks that a replay has the same figures; returns its output, and
    warnings."""
    (directory / "cluster.toml").write_text(gpus(ranks))
    script = write_script(directory, HEAD + source)
    done = uniference(
        "run", "--cluster", "cluster.toml", "--cuda", "--compute", "model", "--out", "out", script, cwd=directory
    )
    assert done.code == 0, done.err + done.out
    replay = uniference("replay", "out", "--json", cwd=directory)
    assert replay.code == 0, replay.err
    report, again = json.loads((directory / "out" / "report.json").read_text()), json.loads(replay.out)
    assert (again["digest"], again["makespan_ps"]) == (report["digest"], report["makespan_ps"])
    return done.out, done.err


def test_memory_that_was_handed_out_is_the_same_for_all(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
buffers = shared(1024)
call("cudaMemset", buffers[1 - rank], rank + 1, ctypes.c_size_t(1024))
call("cudaDeviceSynchronize")
dist.barrier()
assert set(view(buffers[rank], 1024)) == {2 - rank}
# Who has it need not open it, nor is any address one that was handed out; what is opened twice is there once.
pointer = ctypes.c_void_p()
own = Handle((ctypes.c_ubyte * 64)(*handed_out(buffers[rank])))
assert cuda.cudaIpcOpenMemHandle(ctypes.byref(pointer), own, 1) == 201
assert cuda.cudaIpcGetMemHandle(ctypes.byref(Handle()), ctypes.c_void_p(4096)) == 1
assert cuda.cudaIpcOpenMemHandle(ctypes.byref(pointer), Handle(), 1) == 1
cuda.cudaGetLastError()
# What torch allocates can be handed out, too; what is opened is not counted as this process's.
tensor = torch.full((1 << 20,), float(rank), device="cuda")
torch.cuda.synchronize()
others = [None, None]
dist.all_gather_object(others, list(handed_out(ctypes.c_void_p(tensor.data_ptr()))))
free = torch.cuda.mem_get_info()
there = opened(others[1 - rank])
assert torch.cuda.mem_get_info() == free
assert opened(others[1 - rank]).value == there.value
call("cudaIpcCloseMemHandle", there)
assert ctypes.c_float.from_address(there.value).value == 1 - rank
dist.barrier()
tensor.fill_(7.0)
torch.cuda.synchronize()
dist.barrier()
assert ctypes.c_float.from_address(there.value).value == 7.0
call("cudaIpcCloseMemHandle", there)
assert cuda.cudaIpcCloseMemHandle(there) == 1
dist.barrier()
""",
    )


def test_libraries_that_are_opened_as_files_are_the_simulated_ones(tmp_path: Path) -> None:
    """Libraries of packages, also under auditwheel's names in wheels; other files are opened unchanged."""
    run(
        tmp_path,
        """
for name in ("libcudart.so.13", "libcudart.3eda8113.so.13", "libcudart-3eda8113.so.13"):
    count = ctypes.c_int()
    assert ctypes.CDLL(f"/nowhere/{name}").cudaGetDeviceCount(ctypes.byref(count)) == 0
    assert count.value == 2
for other in ("/nowhere/libother.so.1", "/nowhere/libcudart.so.12"):
    try:
        ctypes.CDLL(other)
    except OSError:
        continue
    raise SystemExit(f"{other} was found")
""",
    )


def test_kernels_bring_what_all_members_have(tmp_path: Path) -> None:
    out, _ = run(
        tmp_path,
        KERNELS
        + """
for dtype in TYPES:
    x = torch.arange(64, device="cuda").to(dtype) + rank
    assert reduced(x).tolist() == [4.0 * i + 6 for i in range(64)], dtype
    assert reduced(x, "cross_device_reduce_2stage").tolist() == [4.0 * i + 6 for i in range(64)], dtype
# The result of a reduce-scatter is a part of the input, that of an all-gather all members' inputs.
x, result = torch.arange(64, device="cuda").float() + rank, torch.zeros(16, device="cuda")
listed = torch.tensor([x.data_ptr()] * size, dtype=torch.int64).cuda()
launch("cross_device_reduce_scatter", "fLi4E", flags, listed, result, 64)
assert result.tolist() == [4.0 * i + 6 for i in range(16 * rank, 16 * rank + 16)]
gathered = torch.zeros(256, device="cuda")
launch("cross_device_all_gather", "Li4E", flags, listed, gathered, 256)
assert gathered.tolist() == [float(i + member) for member in range(4) for i in range(64)]
# In the order of ranks: 2^24 swallows each 1 that is added to it, and all of them together no more.
x = torch.full((4,), [2.0**24, 1.0, 1.0, 1.0][rank], device="cuda")
print("sum", reduced(x).tolist()[0] - 2**24)
""",
        ranks=4,
    )
    assert re.findall(r"sum (\S+)", out) == ["0.0"] * 4


def test_graphs_carry_them_out_whenever_they_are_launched(tmp_path: Path) -> None:
    run(
        tmp_path,
        KERNELS
        + """
x, result = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
listed = torch.zeros(size, dtype=torch.int64, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
    launch("cross_device_reduce_1stage", "fLi2E", flags, listed, result, 32)
    z = result * 2
# As vLLM registers the buffers of a graph: after it was captured.
listed.copy_(torch.tensor([y.data_ptr()] * size, dtype=torch.int64))
for value in (1.0, 5.0):
    x.fill_(value + rank)
    graph.replay()
    assert z.tolist() == [2 * (2 * value + 3)] * 8
""",
    )


def test_what_they_take_is_a_start_and_bytes_over_the_link(tmp_path: Path) -> None:
    """As published for H100: 3.7 us for few bytes on 2 GPUs (sgl-project/sglang, pull request 2904); 23 us for 2 MiB on
    4, in two shots 26 (vllm-project/vllm, pull request 24532)."""
    source = (
        KERNELS
        + """
def microseconds(elements, *name):
    x = torch.zeros(elements, device="cuda", dtype=torch.bfloat16)
    listed, result = torch.tensor([x.data_ptr()] * size, dtype=torch.int64).cuda(), torch.zeros_like(x)
    types = f"13__nv_bfloat16Li{size}E"
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            launch(name[0], types, flags, listed, result, elements * 2)
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / 20

for elements in (256, 1 << 20):
    one, two = microseconds(elements, "cross_device_reduce_1stage"), microseconds(elements, "cross_device_reduce_2stage")
    print(f"took {elements} {one:.2f} {two:.2f}")
"""
    )
    for ranks, small, large in ((2, 3.7, None), (4, 4.5, (23.0, 26.0))):
        out, _ = run(tmp_path, source, ranks=ranks)
        took = {
            int(elements): (float(one), float(two)) for elements, one, two in re.findall(r"took (\d+) (\S+) (\S+)", out)
        }
        assert took[256][0] == pytest.approx(small, rel=0.15)
        if large is not None:
            assert took[1 << 20] == pytest.approx(large, rel=0.2)


def test_members_that_start_different_kernels_are_told(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(gpus(2))
    source = """
name = ["cross_device_reduce_1stage", "cross_device_reduce_2stage"][rank]
reduced(torch.ones(8, device="cuda"), name)
torch.cuda.synchronize()
"""
    script = write_script(tmp_path, HEAD + KERNELS + source)
    done = uniference(
        "run", "--cluster", "cluster.toml", "--cuda", "--compute", "model", "--out", "out", script, cwd=tmp_path
    )
    assert done.code != 0
    assert re.search(r"kernel: .*(one_shot.*two_shot|two_shot.*one_shot)", done.err), done.err


def test_what_is_no_memory_of_a_gpu_cannot_be_read(tmp_path: Path) -> None:
    run(
        tmp_path,
        KERNELS
        + """
x, listed = torch.zeros(8, device="cuda"), torch.full((size,), 4096, dtype=torch.int64).cuda()
try:
    launch("cross_device_reduce_1stage", "fLi2E", flags, listed, x, 32)
except AssertionError as error:
    assert "700" in str(error)
else:
    raise SystemExit("it was read")
""",
    )


def test_a_kernel_that_is_not_called_as_we_know_it_computes(tmp_path: Path) -> None:
    _, err = run(
        tmp_path,
        KERNELS
        + """
strangers = [allocate(64) for _ in range(size)]
x = torch.zeros(8, device="cuda")
launch("cross_device_reduce_1stage", "fLi2E", strangers, x, x, 32)
torch.cuda.synchronize()
""",
    )
    assert "a kernel that communicates is taken for one that computes" in err
