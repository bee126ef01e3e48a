"""Ranks that crash at a configured time: the errors on other ranks, and the program's own recovery. The messages are
real Gloo's."""

import json
from pathlib import Path

from harness import Done, run_script, uniference, write_script

CRASH = '[[crash]]\nrank = 3\nat = "5 s"\n'

# Program with recovery as for a real cluster.
RECOVERY = """
import os, time, torch, torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
time.sleep(1 if rank != 3 else 100)
try:
    dist.all_reduce(torch.ones(4))
    print("not reached")
except RuntimeError as error:
    assert "Connection closed by peer [127.0.0.1]:" in str(error), error
    print("failed")
dist.destroy_process_group()
alive = [member for member in range(world) if member != 3]
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
dist.init_process_group(
    "gloo", store=dist.PrefixStore("generation1", store), rank=alive.index(rank), world_size=len(alive)
)
total = torch.full((4,), float(rank))
dist.all_reduce(total)
assert total.tolist() == [3.0] * 4, total
half = dist.new_group([0, 2])
if rank != 1:
    dist.all_reduce(total, group=half)
    assert total.tolist() == [6.0] * 4, total
print("recovered", dist.get_rank(), dist.get_world_size())
"""

ASYNC = """
import os, time, torch, torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    time.sleep(100)
work = dist.irecv(torch.ones(4), 1)
reduced = dist.all_reduce(torch.ones(4), async_op=True)
time.sleep(2)
assert work.is_completed() and not work.is_success()
assert "Connection closed by peer" in str(work.exception())
for failing in (work.wait, work.wait, reduced.wait, dist.barrier, lambda: dist.send(torch.ones(1), 1)):
    try:
        failing()
        raise SystemExit("no error")
    except RuntimeError as error:
        assert type(error) is RuntimeError and "remote worker crashing" in str(error)
"""

STUCK = """
import os, time, torch, torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    time.sleep(100)
dist.recv(torch.ones(1))
"""


def cluster(directory: Path, crash: str, ranks: int = 4) -> Path:
    devices = f'[[device]]\nname = "a"\ncount = {ranks}\n[network]\nbandwidth = "1 Gbps"\nlatency = "1 ms"\n'
    return write_script(directory, devices + crash, "cluster.toml")


def run(directory: Path, source: str, crash: str, ranks: int = 4) -> Done:
    file = cluster(directory, crash, ranks)
    script = write_script(directory, source)
    fixed = ("run", "--cluster", file, "--compute", "none", "--out", directory / "out")
    return uniference(*fixed, script, cwd=directory)


def test_an_unmodified_recovery_path_runs(tmp_path: Path) -> None:
    done = run(tmp_path, RECOVERY, CRASH)
    assert done.code == 0, done.err
    for rank, renumbered in ((0, 0), (1, 1), (2, 2)):
        assert f"recovered {renumbered} 3" in (tmp_path / "out" / f"rank-{rank}.log").read_text()
    assert "rank 3 crashed at 5.000 s, as the cluster file specifies" in done.err
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    crashed = report["ranks"][3]
    assert (crashed["finish_ps"], crashed["crash_ps"]) == (None, 5 * 10**12)
    # A crash is part of the run: its record replays to the same bytes.
    again = uniference("replay", tmp_path / "out", "--json", "--out", tmp_path / "again", cwd=tmp_path)
    assert again.code == 0, again.err
    assert json.loads(again.out)["digest"] == report["digest"]


def test_an_operation_under_way_fails_when_it_is_waited_for(tmp_path: Path) -> None:
    done = run(tmp_path, ASYNC, '[[crash]]\ndevice = "a.1"\nat = "1 s"\n', 2)
    assert done.code == 0, done.err


def test_an_error_that_nobody_handles_fails_the_program(tmp_path: Path) -> None:
    source = ASYNC.split("work =")[0] + "dist.barrier()\n"
    done = run(tmp_path, source, '[[crash]]\nrank = 1\nat = "1 s"\n', 2)
    assert done.code == 1
    assert "the program failed on rank 0" in done.err
    assert "Connection closed by peer" in done.err


def test_who_waits_for_nothing_is_told_of_the_crash(tmp_path: Path) -> None:
    done = run(tmp_path, STUCK, '[[crash]]\nrank = 1\nat = "1 s"\n', 2)
    assert done.code == 3
    assert "has crashed, as the cluster file specifies" in done.err
    assert "hint: default timeouts are not simulated" in done.err


def test_a_rank_that_ends_early_is_still_a_deadlock(tmp_path: Path) -> None:
    source = ASYNC.split("if ")[0] + "if dist.get_rank() == 0:\n    dist.barrier()\n"
    done = run_script(tmp_path, source)
    assert done.code == 3
    assert "deadlock" in done.err
