"""Operations that never end in programs with simulated GPUs: each group follows the rules and the timeout of its own library."""

import re
from pathlib import Path

import pytest
import torch
from harness import Done, gpus, uniference, write_script

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")


def run(directory: Path, source: str, environment: dict[str, str] | None = None) -> Done:
    (directory / "cluster.toml").write_text(gpus(2))
    script = write_script(directory, source)
    words = ("run", "--cluster", "cluster.toml", "--cuda", "--compute", "model", script)
    return uniference(*words, cwd=directory, env=environment, cold=environment is not None)


BESIDE = """
import time, torch, torch.distributed as dist
dist.init_process_group("cpu:gloo,cuda:nccl")
rank, x = dist.get_rank(), torch.zeros(4)
torch.cuda.set_device(0 if torch.cuda.device_count() == 1 else rank)
"""


def test_a_send_of_gloo_beside_nccl_waits_for_its_receive(tmp_path: Path) -> None:
    """Sends that both ranks post first deadlock, as in real Gloo: each waits for a receive that the other rank posts
    after its send."""
    done = run(tmp_path, BESIDE + "dist.send(x, 1 - rank)\ndist.recv(x, 1 - rank)\n")
    assert done.code == 3, done.err + done.out
    assert re.search(r"rank 0.*waits for send.*script\.py:6", done.err), done.err
    assert re.search(r"rank 1.*waits for send.*script\.py:6", done.err), done.err


def test_messages_of_gloo_beside_nccl_that_meet_end(tmp_path: Path) -> None:
    body = """
work = dist.isend(x + rank, 1 - rank)
dist.recv(x, 1 - rank); work.wait()
print("got", x.tolist())
y = torch.zeros(1, device="cuda"); dist.all_reduce(y); torch.cuda.synchronize()
"""
    done = run(tmp_path, BESIDE + body)
    assert done.code == 0, done.err + done.out
    assert "got [1.0, 1.0, 1.0, 1.0]" in done.out
    assert "got [0.0, 0.0, 0.0, 0.0]" in done.out


def test_the_root_of_gloos_broadcast_beside_nccl_waits_for_late_members(tmp_path: Path) -> None:
    """The root's broadcast ends only when the late member has called it, a second later."""
    body = """
dist.barrier()
begun = time.perf_counter()
if rank == 1:
    time.sleep(1)
dist.broadcast(x, 0)
print("rank", rank, "took", round(time.perf_counter() - begun, 1))
"""
    done = run(tmp_path, BESIDE + body)
    assert done.code == 0, done.err + done.out
    assert "rank 0 took 1.0" in done.out
    assert "rank 1 took 1.0" in done.out


def test_an_own_time_out_of_nccl_ends_crossed_messages(tmp_path: Path) -> None:
    """Both ranks' receives precede their sends on the pair's CUDA stream. The calls that send return, because they read other memory."""
    body = """
import datetime, torch, torch.distributed as dist
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=10))
rank = dist.get_rank(); torch.cuda.set_device(0 if torch.cuda.device_count() == 1 else rank)
x, y = torch.ones(1, device="cuda"), torch.zeros(1, device="cuda")
a = dist.irecv(y, 1 - rank)
b = dist.isend(x, 1 - rank); print("issued", flush=True)
a.wait(); b.wait()
torch.cuda.synchronize()
"""
    done = run(tmp_path, body)
    assert done.code == 1, done.err + done.out
    assert done.out.count("issued") == 2
    assert "deadlock" not in done.err
    waited = [int(figure) for figure in re.findall(r"Operation timed out after (\d+) ms", done.out + done.err)]
    # PyTorch's watchdog looks at operations once a second.
    assert waited
    assert all(10_000 <= figure <= 12_000 for figure in waited), waited


@pytest.mark.parametrize("peer", ["pass", "dist.all_reduce(x, group=other)"])
def test_a_communicator_that_a_rank_waits_for_alone_is_a_deadlock(peer: str, tmp_path: Path) -> None:
    """The first call creates the group's communicator and needs all members. PyTorch's polling thread does not hide the deadlock."""
    body = f"""
import torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank(); torch.cuda.set_device(0 if torch.cuda.device_count() == 1 else rank)
other = dist.new_group([0, 1])
x = torch.ones(1, device="cuda")
if rank == 0:
    dist.all_reduce(x)
else:
    {peer}
torch.cuda.synchronize()
"""
    done = run(tmp_path, body, {"TORCH_DIST_USE_NCCL2": "0"})
    assert done.code == 3, done.err + done.out
    assert re.search(r"deadlock at \d+\.\d+ s", done.err), done.err
    assert "script.py:8" in done.err, done.err
