"""Calls of `new_group` that differ between ranks end the run with an error that names the lines of the calls."""

from pathlib import Path

import pytest
from harness import run_script, uniference, write_script

# Program of four ranks. The code in place of `{}` creates groups of two ranks and assigns this rank's group to `group`.
PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
{}
x = torch.full((2,), float(rank))
dist.all_reduce(x, group=group)
print(f"rank {{rank}} has {{x[0].item()}}", flush=True)
dist.destroy_process_group()
"""

PAIRS = "mine = [0, 3] if rank in (0, 3) else [1, 2]\n"

ILLEGAL = {
    "each rank its own": (PAIRS + "group = dist.new_group(mine)", "new_group([0, 3]", "new_group([1, 2]"),
    "another order": (
        "pairs = [[0, 3], [1, 2]] if rank in (0, 3) else [[1, 2], [0, 3]]\n"
        "group = [g for g in map(dist.new_group, pairs) if g != dist.GroupMember.NON_GROUP_MEMBER][0]",
        "new_group([0, 3]",
        "new_group([1, 2]",
    ),
    "one call more": (
        "if rank == 0:\n    dist.new_group([0])\ngroup = dist.new_group()",
        "new_group([0],",
        "new_group([0, 1, 2, 3]",
    ),
    "another backend": (
        "group = dist.new_group(backend='gloo' if rank else 'nccl')",
        'backend="gloo")',
        'backend="nccl")',
    ),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_groups_that_clash_are_named_with_their_lines(case: str, tmp_path: Path) -> None:
    create, *calls = ILLEGAL[case]
    source = PROGRAM.format(create)
    done = run_script(tmp_path, source, ranks=4)
    assert done.code == 3, done.err
    assert "create different process groups under one name" in done.err
    assert "has" not in done.out
    last = source[: source.index("\nx = ")].count("\n") + 1
    for call in calls:
        assert any(call in line and f"script.py:{last - n}" in line for line in done.err.splitlines() for n in range(3))
    assert "use_local_synchronization=True" in done.err


LEGAL = {
    "members alone": PAIRS + "group = dist.new_group(mine, use_local_synchronization=True)",
    "all ranks call": (
        "groups = [dist.new_group(ranks) for ranks in ([0, 3], [1, 2])]\ngroup = groups[0 if rank in (0, 3) else 1]"
    ),
    "groups of one member": (
        "groups = [dist.new_group(ranks) for ranks in ([0, 3], [1, 2])]\ngroup = groups[0 if rank in (0, 3) else 1]\n"
        "dist.new_subgroups(group_size=1, group=group)"
    ),
    "by list": "group, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])",
    "a split": PAIRS + "group = dist.split_group(split_ranks=[mine])",
    "a mesh": (
        "mesh = dist.device_mesh.DeviceMesh('cpu', [[0, 3], [1, 2]], mesh_dim_names=('a', 'b'))\n"
        "group = mesh['b'].get_group()"
    ),
    "a new world": (
        PAIRS + "dist.new_group([0, 1])\ndist.destroy_process_group()\ndist.init_process_group('gloo')\n"
        "groups = [dist.new_group(ranks) for ranks in ([0, 3], [1, 2])]\ngroup = groups[0 if rank in (0, 3) else 1]"
    ),
}


@pytest.mark.parametrize("case", LEGAL)
def test_groups_of_legal_programs_meet(case: str, tmp_path: Path) -> None:
    done = run_script(tmp_path, PROGRAM.format(LEGAL[case]), ranks=4)
    assert done.code == 0, done.err
    # Sums of the ranks in both groups: 0 + 3 = 1 + 2.
    assert done.out.count("has 3.0") == 4


def test_worlds_of_their_own_may_number_their_groups_alike(tmp_path: Path) -> None:
    source = """
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{29700 + rank // 2}", rank=rank % 2, world_size=2)
group = dist.new_group([0, 1] if rank < 2 else [1, 0])
x = torch.full((2,), float(rank))
dist.all_reduce(x, group=group)
print(f"rank {rank} has {x[0].item()}", flush=True)
"""
    done = uniference("run", "--ranks", 4, "--compute", "none", write_script(tmp_path, source), cwd=tmp_path)
    assert done.code == 0, done.err
    # Sums of the ranks in each world: 0 + 1 and 2 + 3.
    assert (done.out.count("has 1.0"), done.out.count("has 5.0")) == (2, 2)
