"""Mooncake's transfer engine for simulated GPUs: writes of one process into memory of another process's GPU."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Done, uniference, write_script

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

CLUSTER = """
backend = "nccl"
[[device]]
name = "gpu"
model = "h100-sxm"
count = 2
[network]
bandwidth = "100 Gbps"
latency = "3 us"
"""

# Each side is a separate process: the programs define `open_side` and how the sides exchange addresses.
SIDES = """
import time
import torch
from mooncake.engine import TransferEngine

LARGE, SMALL = 64 << 20, 100

def open_engine():
    engine = TransferEngine()
    assert engine.initialize("a-host", "P2PHANDSHAKE", "rdma", "") == 0
    tensors = [
        torch.zeros(LARGE, dtype=torch.bfloat16, device="cuda"),
        torch.zeros(SMALL, device="cuda"),
        torch.zeros(LARGE // 8, dtype=torch.int64),
    ]
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    assert engine.batch_register_memory([tensor.data_ptr() for tensor in tensors], sizes) == 0
    return engine, tensors

def writes(tell, hear):
    engine, (large, small, host) = open_engine()
    small += torch.arange(SMALL, device="cuda")
    host[:3] = torch.tensor([7, 8, 9])
    torch.cuda.synchronize()
    to, (there, small_there, host_there) = hear()
    probe = engine.send_probe(to)
    began = time.perf_counter()
    first = engine.transfer_sync_write(to, large.data_ptr(), there, 50_000_000)
    took = time.perf_counter() - began
    at = [small.data_ptr() + 40, host.data_ptr()]
    second = engine.batch_transfer_sync_write(to, at, [small_there, host_there + 8], [40, 24])
    bad = engine.transfer_sync_write("a-host:1", large.data_ptr(), there, 4), engine.transfer_sync_write(to, 4096, there, 4)
    print("WROTE", first, second, bad, round(1e6 * took), probe, hasattr(engine, "transfer_sync_read"))
    tell("written")

def reads(tell, hear):
    engine, tensors = open_engine()
    tell((f"a-host:{engine.get_rpc_port()}", [tensor.data_ptr() for tensor in tensors]))
    hear()
    print("READ", tensors[1][:12].tolist(), tensors[2][:5].tolist())
"""

# A process belongs to its GPU's rank once it uses the GPU: in this program after it has created an engine.
ONE_PROGRAM = """
import multiprocessing
import os

def side(gpu, pipe):
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    (writes, reads)[gpu](pipe.send, pipe.recv)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    pipes = context.Pipe()
    sides = [context.Process(target=side, args=(gpu, pipes[gpu])) for gpu in range(2)]
    [each.start() for each in sides]
    [each.join() for each in sides]
"""

RANKS = """
import os
import pickle
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
store = dist.TCPStore("127.0.0.1", 29511, 2, rank == 0)
tell = lambda what: store.set(f"from {rank}", pickle.dumps(what))
hear = lambda: pickle.loads(store.get(f"from {1 - rank}"))
(writes, reads)[rank](tell, hear)
"""


def ran(tmp_path: Path, program: str, *options: str) -> Done:
    tmp_path.joinpath("cluster.toml").write_text(CLUSTER)
    script = write_script(tmp_path, SIDES + program)
    words = ("run", "--cluster", "cluster.toml", "--cuda", "--out", "out", "--compute", "model", *options, script)
    done = uniference(*words, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    return done


def report(folder: Path) -> Any:
    return json.loads(folder.joinpath("report.json").read_text())


@pytest.mark.parametrize("values", ["all", "small"])
@pytest.mark.parametrize(("program", "options"), [(ONE_PROGRAM, ["--one-program"]), (RANKS, [])])
def test_a_write_takes_the_networks_time_and_brings_values(
    tmp_path: Path, program: str, options: list[str], values: str
) -> None:
    done = ran(tmp_path, program, "--values", values, *options)
    # 50 MB at 100 Gbit/s, and 3 us each way, after 1 us to look up the engine; unregistered memory is not written.
    assert "WROTE 0 0 (-1, -1) 4007 0 False" in done.out, done.out + done.err
    assert f"READ {[*map(float, range(10, 20)), 0.0, 0.0]} [0, 7, 8, 9, 0]" in done.out, done.out + done.err
    assert "a-host:1 has failed: there is no such engine" in done.err
    assert "4 bytes at 0x1000 were not registered" in done.err
    of = report(tmp_path / "out")
    operations = {row["operation"]: row["count"] for row in of["operations"]}
    assert operations["write"] == 2, operations
    again = uniference("replay", "out", "--out", "again", cwd=tmp_path)
    assert again.code == 0, again.err
    assert report(tmp_path / "again")["digest"] == of["digest"]
