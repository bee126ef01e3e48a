"""Gloo's minimum and maximum of zeros of both signs, infinities and NaNs: the simulation gives the bits of real Gloo."""

from pathlib import Path

import pytest
import torch
from harness import run_on_gloo, uniference, write_script

PROGRAM = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.float16: torch.int16, torch.bfloat16: torch.int16}

def values(dtype, count):
    # Numbers, zeros, infinities and NaNs of both signs, the NaNs with the rank in their bits.
    one_of = torch.randint(0, 7, (count,), generator=torch.Generator().manual_seed(rank))
    nan = torch.tensor([float("nan")], dtype=dtype).view(INTEGERS[dtype]) + rank + 1
    special = [0.0, -0.0, float("inf"), -float("inf"), rank + 1.0]
    choices = torch.cat([torch.tensor(special, dtype=dtype), nan.view(dtype), -nan.view(dtype)])
    return choices[one_of]

results = []
for dtype in INTEGERS:
    for count in (1, 5, 1200, 100_000):
        x = values(dtype, count * size)
        for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN):
            everywhere, at_root, block = x.clone(), x.clone(), torch.zeros(count, dtype=dtype)
            dist.all_reduce(everywhere, op)
            dist.reduce(at_root, size - 1, op)
            dist.reduce_scatter_tensor(block, x.clone(), op=op)
            listed = torch.zeros(count, dtype=dtype)
            dist.reduce_scatter(listed, list(x.clone().chunk(size)), op=op)
            results += [everywhere, block, listed] + ([at_root] if rank == size - 1 else [])
torch.save([result.view(INTEGERS[result.dtype]) for result in results], f"{sys.argv[1]}.{rank}")
"""


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_bits_are_those_of_real_gloo(size: int, tmp_path: Path) -> None:
    script = write_script(tmp_path, PROGRAM)
    run_on_gloo(size, script, tmp_path / "real")
    options = ("--ranks", size, "--backend", "gloo", "--compute", "none", "--out", tmp_path / "out")
    done = uniference("run", *options, script, tmp_path / "ours", cwd=tmp_path)
    assert done.code == 0, done.err
    for rank in range(size):
        real, ours = (torch.load(tmp_path / f"{name}.{rank}") for name in ("real", "ours"))
        assert len(real) == len(ours)
        for one, other in zip(real, ours, strict=True):
            assert torch.equal(one, other), (rank, one.dtype, len(one))
