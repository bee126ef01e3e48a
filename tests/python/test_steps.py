"""Algorithms that users give step by step, in live runs and their replays."""

import json
from pathlib import Path

from harness import Done, uniference, write_script

STEPS = Path(__file__).parents[2] / "examples" / "steps"

# Values that tell every order of combination apart, in a group of the file's size and in a smaller one.
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
    """What ranks printed; in which order they came is open."""
    return {line.partition("sum ")[2] for line in done.err.splitlines() if "sum " in line}


def test_a_ring_given_as_a_file_is_our_ring(tmp_path: Path) -> None:
    """Times, bytes and the last bit of every value."""
    # The smaller group is served by the backend's own rule, so that is the same in both.
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
    assert "ring-of-four.toml: rank " in done.err
    assert "hint: every rank gets every rank's contribution" in done.err
