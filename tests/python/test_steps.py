"""Algorithms that users define step by step, and hierarchical ones, in live runs and their replays."""

import json
from pathlib import Path

from harness import Done, uniference, write_script

STEPS = Path(__file__).parents[2] / "examples" / "steps"

# Values whose sums differ for every order of reduction, in a group of the file's size and in a smaller one.
PROGRAM = """
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
values = torch.tensor([1.0, 1e8, -1e8, 3e-3]).roll(rank).repeat(5000)
dist.all_reduce(values)
pair = dist.new_group([0, 1])
if rank < 2:
    both = values.clone()
    dist.all_reduce(both, group=pair)
    assert torch.equal(both, 2 * values)
if rank == 0:
    print("sum", values[:8].tolist(), values.double().sum().item())
"""


def run(directory: Path, source: str, *options: object) -> Done:
    directory.mkdir(exist_ok=True)
    script = write_script(directory, source)
    fixed = ("run", "--cluster", STEPS / "cluster.toml", "--compute", "none", "--json", "--out", directory / "out")
    done = uniference(*fixed, *options, script, cwd=directory)
    assert done.code == 0, done.err
    return done


def sums(done: Done) -> set[str]:
    """Sums that the ranks printed, in any order."""
    return {line.partition("sum ")[2] for line in done.err.splitlines() if "sum " in line}


def test_a_ring_given_as_a_file_is_our_ring(tmp_path: Path) -> None:
    """Times, bytes and the last bit of every value are equal."""
    # The backend's own rule selects the smaller group's algorithm, so that group is left out.
    script = PROGRAM.split("pair =")[0] + 'print("sum", values.double().sum().item(), values[:8].tolist())\n'
    given = run(tmp_path / "given", script)
    built_in = run(tmp_path / "ring", script, "--algorithm", "all_reduce=ring")
    ours, theirs = json.loads(given.out), json.loads(built_in.out)
    assert (ours["makespan_ps"], ours["ranks"]) == (theirs["makespan_ps"], theirs["ranks"])
    assert sums(given) == sums(built_in) != set()
    assert "ring-of-four.toml" in ours["manifest"]["cluster"]
    again = uniference("replay", tmp_path / "given" / "out", "--json", "--out", tmp_path / "again", cwd=tmp_path)
    assert json.loads(again.out)["digest"] == ours["digest"]


def test_groups_of_another_size_are_served_by_the_backend(tmp_path: Path) -> None:
    # All ranks have the same values by then, and x + x = 2 x exactly: the program asserts it.
    assert len(sums(run(tmp_path, PROGRAM))) == 1


def test_steps_that_lose_a_contribution_are_refused(tmp_path: Path) -> None:
    text = (STEPS / "ring-of-four.toml").read_text().replace(", combine = true", "", 1)
    write_script(tmp_path, text, "ring-of-four.toml")
    cluster = write_script(tmp_path, (STEPS / "cluster.toml").read_text(), "cluster.toml")
    done = uniference("cluster", "check", cluster, cwd=tmp_path)
    assert done.code == 2
    assert "ring-of-four.toml: wrong result: at the end, block " in done.err
    assert "hint: every rank must have the contributions of all ranks" in done.err


GRID = """
backend = "gloo"
[[device]]
name = "board"
count = 6
[network]
preset = "torus"
dims = [2, 3]
[collective]
all_reduce = { algorithm = "hierarchical", chunks = 3 }
reduce_scatter = { algorithm = "hierarchical", chunks = 2 }
all_gather = "hierarchical"
all_to_all = "hierarchical"
"""

# Pairs are reduced first, then the three pairs' sums in the order of a ring, which starts at another pair for each
# block.
ON_A_GRID = """
import torch, torch.distributed as dist

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
inputs = [torch.randn(2000, generator=torch.Generator().manual_seed(of)) for of in range(size)]
values = inputs[rank].clone()
dist.all_reduce(values)
pairs = [inputs[2 * pair] + inputs[2 * pair + 1] for pair in range(3)]
orders = [(pairs[first - 2] + pairs[first - 1]) + pairs[first] for first in range(3)]
assert torch.stack([values == order for order in orders]).any(0).all()
assert not any(torch.equal(values, order) for order in orders)
block = torch.zeros(5)
dist.reduce_scatter_tensor(block, torch.arange(5.0 * size) + rank)
assert torch.equal(block, (size * torch.arange(5.0 * size) + 15)[5 * rank : 5 * rank + 5])
blocks = [torch.zeros(3) for _ in range(size)]
dist.all_gather(blocks, torch.full((3,), float(rank)))
assert [int(block[0]) for block in blocks] == list(range(size))
received = [torch.zeros(2) for _ in range(size)]
dist.all_to_all(received, [torch.full((2,), float(10 * rank + to)) for to in range(size)])
assert [int(block[1]) for block in received] == [10 * of + rank for of in range(size)]
# A column of the grid, and ranks that are no part of it.
for members in ([0, 2, 4], [0, 3]):
    group = dist.new_group(members)
    if rank in members:
        few = torch.full((7,), float(rank))
        dist.all_reduce(few, group=group)
        assert few.tolist() == [float(sum(members))] * 7
"""


def test_hierarchical_algorithms_combine_along_one_dimension_after_the_other(tmp_path: Path) -> None:
    cluster = write_script(tmp_path, GRID, "grid.toml")
    script = write_script(tmp_path, ON_A_GRID)
    done = uniference(
        "run", "--cluster", cluster, "--compute", "none", "--json", "--out", tmp_path / "out", script, cwd=tmp_path
    )
    assert done.code == 0, done.err
    again = uniference("replay", tmp_path / "out", "--json", "--out", tmp_path / "again", cwd=tmp_path)
    assert json.loads(again.out)["digest"] == json.loads(done.out)["digest"]
