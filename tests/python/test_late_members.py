"""Members that call an operation after others have timed out in it. With Gloo a late member fails at once: its connections are closed."""

from pathlib import Path

import pytest
from harness import run_on_gloo, uniference, write_script

# Program that calls each operation twice in a group of its own. Rank `late` calls 2 s after the others, whose timeout is 1 s.
# Each rank prints the error that it gets, and the time.
PROGRAM = """
import datetime, sys, time, torch, torch.distributed as dist
kinds, backend = sys.argv[2].split(","), sys.argv[3]
dist.init_process_group(backend)
rank, size = dist.get_rank(), dist.get_world_size()
TOLD = {"Timed out waiting": "timed out", "Connection closed by peer": "closed by peer", "caused pair closure": "closed pairs",
        "Watchdog caught": "timed out", "communicator was aborted": "aborted"}

def call(kind, group):
    x, many = torch.ones(4), [torch.ones(4) for _ in range(size)]
    name, _, root = kind.partition(".")
    at_root = rank == int(root or 0)
    if name == "all_reduce": dist.all_reduce(x, group=group)
    if name == "broadcast": dist.broadcast(x, int(root), group=group)
    if name == "reduce": dist.reduce(x, int(root), group=group)
    if name == "gather": dist.gather(x, many if at_root else None, int(root), group=group)
    if name == "scatter": dist.scatter(x, many if at_root else None, int(root), group=group)
    if name == "all_gather": dist.all_gather(many, x, group=group)
    if name == "reduce_scatter": dist.reduce_scatter(x, many, group=group)
    if name == "all_to_all": dist.all_to_all_single(torch.ones(4 * size), torch.ones(4 * size), group=group)
    if name == "barrier": dist.barrier(group=group)
    if name == "monitored_barrier": dist.monitored_barrier(group, datetime.timedelta(seconds=1))
    if name in ("send", "recv") and rank in (0, size - 1):
        other = size - 1 - rank
        (dist.send if (name == "send") == (rank == 0) else dist.recv)(x, other, group=group)

with open(f"{sys.argv[1]}.{rank}", "w") as told:
    for kind in kinds:
        group = dist.new_group(timeout=datetime.timedelta(seconds=1))
        dist.barrier()
        late = 0 if kind in ("broadcast.0", "reduce.0", "gather.0", "scatter.0") else size - 1
        start = time.perf_counter()
        if rank == late:
            time.sleep(2)
        for _ in range(2):
            try:
                call(kind, group)
                what = "done"
            except RuntimeError as error:
                what = [name for words, name in TOLD.items() if words in str(error)][0]
            print(kind, what, "at", round(time.perf_counter() - start), file=told)
        time.sleep(max(0.0, 2.5 - (time.perf_counter() - start)))
"""

KINDS = "all_reduce broadcast.0 reduce.0 gather.0 scatter.0 all_gather reduce_scatter all_to_all barrier monitored_barrier send recv"


def told(folder: Path, size: int) -> list[list[str]]:
    return [(folder / f"told.{rank}").read_text().splitlines() for rank in range(size)]


def simulate(tmp_path: Path, size: int, kinds: str, backend: str = "gloo", *options: object) -> list[list[str]]:
    script = write_script(tmp_path, PROGRAM)
    fixed = ("run", "--ranks", size, "--compute", "none", "--backend", backend, "--out", tmp_path / "out")
    done = uniference(*fixed, *options, script, tmp_path / "told", kinds, backend, cwd=tmp_path)
    assert done.code == 0, done.err
    return told(tmp_path, size)


@pytest.mark.parametrize("size", [2, 3])
def test_whoever_comes_late_finds_the_connections_closed(size: int, tmp_path: Path) -> None:
    kinds = KINDS.split()
    outcome = simulate(tmp_path, size, ",".join(kinds))
    for index, kind in enumerate(kinds):
        late = 0 if kind.endswith(".0") else size - 1
        for rank in range(size):
            first, second = (line.removeprefix(f"{kind} ") for line in outcome[rank][2 * index : 2 * index + 2])
            if rank == late:
                assert (first, second) == ("closed by peer at 2", "closed by peer at 2"), (kind, rank)
            elif size == 2:
                assert (first, second) == ("timed out at 1", "closed pairs at 1"), (kind, rank)
            elif rank == 0 or kind not in ("send", "recv", "monitored_barrier"):
                # If two ranks wait for each other, one may get the error of the other's closed pairs before its own timeout.
                assert first in ("timed out at 1", "closed by peer at 1"), (kind, rank)
                assert second in ("closed pairs at 1", "closed by peer at 1"), (kind, rank)


def test_real_gloo_says_the_same(tmp_path: Path) -> None:
    kinds = "all_reduce,broadcast.0,send,recv"
    ours = simulate(tmp_path, 2, kinds)
    run_on_gloo(2, write_script(tmp_path, PROGRAM), tmp_path / "told", kinds, "gloo")
    # A busy machine delays the errors of real Gloo, which are in real time.
    kinds_and_errors = [[line.partition(" at ")[0] for line in lines] for lines in told(tmp_path, 2)]
    assert kinds_and_errors == [[line.partition(" at ")[0] for line in lines] for lines in ours]


def test_with_nccl_the_late_member_waits_until_it_times_out(tmp_path: Path) -> None:
    outcome = simulate(tmp_path, 2, "all_reduce", "nccl", "--no-cuda")
    assert outcome[0] == ["all_reduce timed out at 1", "all_reduce aborted at 1"]
    assert outcome[1] == ["all_reduce timed out at 3", "all_reduce aborted at 3"]


def test_nccl_names_the_rank_in_the_group(tmp_path: Path) -> None:
    source = """
import datetime, torch, torch.distributed as dist
dist.init_process_group("nccl")
group = dist.new_group([1, 2], timeout=datetime.timedelta(seconds=1))
if dist.get_rank() == 1:
    for _ in range(2):
        try:
            dist.all_reduce(torch.ones(4), group=group)
        except dist.DistBackendError as error:
            print(error)
"""
    options = ("--ranks", 3, "--compute", "none", "--backend", "nccl", "--no-cuda", "--out", tmp_path / "out")
    done = uniference("run", *options, write_script(tmp_path, source), cwd=tmp_path)
    assert done.code == 0, done.err
    assert "NCCL communicator was aborted on rank 0." in done.out
