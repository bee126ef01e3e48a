"""C++ carries out plain collectives and Python all others: the run is the same to the byte as with Python alone."""

from pathlib import Path

import pytest
from harness import Done, uniference, write_script

# Program with plain calls, reductions by torch's kernels, refused calls, and operations in flight.
PROGRAM = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()


def attempt(call):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)


whole = torch.arange(6, dtype=torch.float32) + rank
dist.all_reduce(whole)
later = dist.all_reduce(torch.ones(1000), async_op=True)
for op in (dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX, dist.ReduceOp.AVG):
    dist.all_reduce(whole, op)
numbers = torch.tensor([rank + 1, 7])
dist.all_reduce(numbers, dist.ReduceOp.BAND)
attempt(lambda: dist.all_reduce(whole, dist.ReduceOp.BAND))
dist.reduce(numbers, 1)
dist.broadcast(whole, 1)
gathered, part = torch.empty(3 * size), torch.full((3,), float(rank))
dist.all_gather_into_tensor(gathered, part)
scattered = torch.empty(3)
dist.reduce_scatter_tensor(scattered, gathered)
dist.barrier()
later.wait()
reverse = dist.new_group([1, 0])
dist.all_reduce(whole, group=reverse)
dist.all_reduce(whole.view(2, 3).T)
dist.all_reduce(torch.tensor([1 + 1j]))
attempt(lambda: dist.all_gather_into_tensor(torch.empty(5), part))
attempt(lambda: dist.broadcast(whole, 5))
print(whole, numbers, gathered, scattered, dist.group.WORLD._get_sequence_number_for_group())
"""

BACKENDS = {"C++": {}, "Python": {"UNIFERENCE_BACKEND": "python"}}

# Files of the run and outputs of its ranks; on the terminal, the order of ranks' lines depends on the host.
FILES = ("program.record", "report.json", "trace.json", "rank-0.log", "rank-1.log")


@pytest.mark.parametrize("library", ["gloo", "nccl"])
def test_the_same_run_by_either_backend(library: str, tmp_path: Path) -> None:
    script = write_script(tmp_path, PROGRAM)
    done, files = {}, {}
    for backend, env in BACKENDS.items():
        folder = tmp_path / backend
        folder.mkdir()
        options = ("--ranks", 2, "--backend", library, "--no-cuda", "--compute", "none", "--out", "run")
        done[backend] = uniference("run", *options, script, library, cwd=folder, env=env, cold=True)
        files[backend] = {name: (folder / "run" / name).read_bytes() for name in FILES}
    assert done["C++"].code == 0, done["C++"].err
    assert done["Python"].code == 0, done["Python"].err
    assert b"BAND" in files["C++"]["rank-0.log"]
    for name in FILES:
        assert files["C++"][name] == files["Python"][name], name


WHO = """
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=5))
print(type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__)
if dist.get_rank() == 0:
    for _ in range(2):
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            print(type(error).__name__, error, traceback.extract_tb(error.__traceback__)[0].lineno)
"""


@pytest.mark.parametrize(("backend", "name"), [("C++", "Backend"), ("Python", "Gloo")])
def test_a_time_out_says_the_same(backend: str, name: str, tmp_path: Path) -> None:
    script = write_script(tmp_path, WHO)
    options = ("--ranks", 2, "--compute", "none", "--out", tmp_path / "run")
    done = uniference("run", *options, script, cwd=tmp_path, env=BACKENDS[backend], cold=True)
    assert done.code == 0, done.err
    # The first call fails after the group's timeout, and closes the pairs: the next call finds them closed.
    line = WHO[: WHO.index("dist.all_reduce")].count("\n") + 1
    closed, timed_out = [text for text in _lines(done) if "RuntimeError" in text]
    assert "Timed out waiting 5000ms for recv operation to complete" in timed_out
    assert "Application timeout caused pair closure" in closed
    assert timed_out.endswith(f" {line}")
    assert closed.endswith(f" {line}")
    assert any(text.endswith(name) for text in _lines(done))


def _lines(done: Done) -> list[str]:
    """Output of the ranks, in an order that does not depend on the host."""
    return sorted(done.out.splitlines())
