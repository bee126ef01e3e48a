"""PyTorch's symmetric memory on simulated GPUs: ranks access each other's memory, between barriers and by its
kernels."""

import json
from pathlib import Path

import pytest
import torch
from harness import gpus, uniference, write_script

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

HEAD = """
import os
import torch, torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
group = dist.group.WORLD.group_name
memory = symmetric.empty(64, device="cuda")
handle = symmetric.rendezvous(memory, group)
operators = torch.ops.symm_mem
"""

VALUES = """
# What is read is of this round, though each rank goes on to the next one as soon as it may.
for round in range(10):
    memory.fill_(100 * round + rank)
    handle.barrier()
    read = [handle.get_buffer(peer, (64,), torch.float32).clone() for peer in range(size)]
    handle.barrier()
    assert all(int(of[3]) == 100 * round + peer for peer, of in enumerate(read)), (rank, round)

# A write into another rank's memory is there behind a barrier.
handle.get_buffer((rank + 1) % size, (64,), torch.float32).fill_(7.0 + rank)
handle.barrier()
assert int(memory[0]) == 7 + (rank - 1) % size

ramp = torch.arange(64.0, device="cuda")
whole = ramp * size + sum(range(size))
assert torch.equal(operators.one_shot_all_reduce(memory.copy_(ramp + rank), "sum", group), whole)
ones = torch.ones(64, device="cuda")
assert torch.equal(operators.one_shot_all_reduce_copy(memory, ones, "sum", group), ones * size)
out = torch.empty(64, device="cuda")
operators.two_shot_all_reduce_out(memory.copy_(ramp + rank), "sum", group, out)
assert torch.equal(out, whole)
assert torch.equal(operators.two_shot_all_reduce_(memory, "sum", group), whole)
part = torch.empty(64 // size, device="cuda")
operators.reduce_scatter_out(memory.copy_(ramp + rank), group, False, part)
assert torch.equal(part, whole.chunk(size)[rank])

# Products beside communication: asynchronous tensor parallel.
torch.manual_seed(0)
left, right = torch.randn(8 * size, 16).cuda(), torch.randn(16, 12).cuda()
gathered, (product,) = operators.fused_all_gather_matmul(left.chunk(size)[rank].contiguous(), [right], 0, group)
assert torch.equal(gathered, left)
torch.testing.assert_close(product, left @ right)
scattered = operators.fused_matmul_reduce_scatter(left, right, "sum", 0, group)
torch.testing.assert_close(scattered, (left @ right * size).chunk(size)[rank])
print("all is as it should be")
dist.destroy_process_group()
"""


def report(folder: Path) -> dict[str, object]:
    read: dict[str, object] = json.loads((folder / "report.json").read_text())
    return read


@pytest.mark.parametrize("ranks", [2, 4])
def test_values_are_those_of_this_round_and_runs_are_the_same(tmp_path: Path, ranks: int) -> None:
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(gpus(ranks))
    script = write_script(tmp_path, HEAD + VALUES)
    digests = set()
    for out in ("first", "second"):
        options = ("--cluster", cluster, "--cuda", "--compute", "model", "--out", tmp_path / out)
        done = uniference("run", *options, script, cwd=tmp_path)
        assert done.code == 0, done.err
        assert done.out.count("all is as it should be") == ranks
        digests.add(report(tmp_path / out)["digest"])
    # Meanwhile descriptors pass between ranks over the kernel's sockets, and NCCL's watchdog sleeps for a second.
    assert len(digests) == 1
    assert float(str(report(tmp_path / "first")["makespan_s"])) < 0.1
    done = uniference("replay", tmp_path / "first", "--out", tmp_path / "again", cwd=tmp_path)
    assert done.code == 0, done.err
    assert report(tmp_path / "again")["digest"] in digests


def test_a_kernel_that_waits_for_unknown_flags_is_named(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(gpus(2))
    source = HEAD + "handle.put_signal(1 - rank, 0)\nhandle.wait_signal(1 - rank, 0)\ntorch.cuda.synchronize()\n"
    options = ("--cluster", cluster, "--cuda", "--compute", "model", "--out", tmp_path / "out")
    done = uniference("run", *options, write_script(tmp_path, source), cwd=tmp_path)
    assert done.code == 0, done.err
    assert "a kernel that communicates is taken for one that computes: _ZN4c10d16symmetric_memory" in done.err
    assert "put_signal_kernel" in done.err


def test_memory_that_was_not_made_for_it_is_not_shared(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(gpus(1))
    source = """
import ctypes
import torch

class Properties(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("handles", ctypes.c_int), ("where", ctypes.c_int), ("device", ctypes.c_int),
                ("security", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]

torch.zeros(1, device="cuda")
cuda = ctypes.CDLL("libcuda.so.1")
granule, none = 2 << 20, ctypes.c_size_t()

def created(handles):
    handle = ctypes.c_ulonglong()
    properties = Properties(kind=1, handles=handles, where=1)
    assert cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(granule), ctypes.byref(properties), none) == 0
    return handle

def exported(handle, kind=1):
    descriptor = ctypes.c_int(-1)
    return cuda.cuMemExportToShareableHandle(ctypes.byref(descriptor), handle, kind, none), descriptor.value

def imported(descriptor, kind=1):
    handle = ctypes.c_ulonglong()
    return cuda.cuMemImportFromShareableHandle(ctypes.byref(handle), ctypes.c_void_p(descriptor), kind), handle

def mapped(handle):
    at, bytes = ctypes.c_size_t(), ctypes.c_size_t(granule)
    assert cuda.cuMemAddressReserve(ctypes.byref(at), bytes, none, none, none) == 0
    assert cuda.cuMemMap(at, bytes, none, handle, none) == 0
    return at.value

print("private", exported(created(0))[0])
shared = created(1)
status, descriptor = exported(shared)
print("shared", status, "of Windows", exported(shared, 2)[0])
print("standard input", imported(0)[0])
status, again = imported(descriptor)
first, second = mapped(shared), mapped(again)
ctypes.memset(first, 5, 3)
print("imported", status, "same memory", ctypes.string_at(second, 4) == bytes([5, 5, 5, 0]))
"""
    options = ("--cluster", cluster, "--cuda", "--compute", "model", "--out", tmp_path / "out")
    done = uniference("run", *options, write_script(tmp_path, source), cwd=tmp_path)
    assert done.code == 0, done.err
    # CUDA's numbers of "invalid value" and "not supported".
    for line in ("private 1", "shared 0 of Windows 801", "standard input 1", "imported 0 same memory True"):
        assert line in done.out.splitlines()


def test_memory_that_is_not_handed_out_is_private(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(gpus(1))
    source = """
import os
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch
blocks = [torch.empty(64 << 20, device="cuda", dtype=torch.uint8) for _ in range(16)]
files = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
print("handed out:", sum("uniference-gpu" in file for file in files))
"""
    options = ("--cluster", cluster, "--cuda", "--compute", "model", "--out", tmp_path / "out")
    done = uniference("run", *options, write_script(tmp_path, source), cwd=tmp_path)
    assert done.code == 0, done.err
    assert "handed out: 0" in done.out.splitlines()
