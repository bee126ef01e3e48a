"""The node of a rank, and its initial number of threads, as the cluster file defines them."""

import os
from pathlib import Path

import pytest
from harness import uniference, write_script

from uniference import simulate

PROGRAM = """
import os, torch
names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
print("=", *(os.environ[name] for name in names))
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    assert torch.cuda.device_count() == int(os.environ["LOCAL_WORLD_SIZE"])
"""

RAIL = """
[[device]]
name = "gpu"
count = 4
[network]
preset = "rail"
per_server = 2
fabric = "nvlink4"
"""

HOSTS = """
[[device]]
name = "a"
count = 2
host = "first"
[[device]]
name = "b"
[[device]]
name = "c"
host = "first"
[network]
"""


# For each rank: its number on its node, the node's number of ranks, the node's number, and the number of nodes.
@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (RAIL, ["0 0 2 0 2", "1 1 2 0 2", "2 0 2 1 2", "3 1 2 1 2"]),
        (HOSTS, ["0 0 3 0 2", "1 1 3 0 2", "2 0 1 1 2", "3 2 3 0 2"]),
    ],
)
def test_ranks_of_one_node_are_told_so(cluster: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(cluster)
    options = ("--cluster", "cluster.toml", "--backend", "nccl", "--compute", "none", "--out", "out")
    done = uniference("run", *options, write_script(tmp_path, PROGRAM), cwd=tmp_path)
    assert done.code == 0, done.err
    assert sorted(line.partition("= ")[2] for line in done.out.splitlines() if "= " in line) == expected


THREADS = """
import os, torch
print("threads =", os.environ["OMP_NUM_THREADS"], torch.get_num_threads())
torch.set_num_threads(4)
a = torch.ones(384, 384)
a @ a
begin = os.times()
while sum(os.times()[:2]) - sum(begin[:2]) < 0.4:
    a @ a
"""


def test_threads_compute_side_by_side_on_cores(tmp_path: Path) -> None:
    script = write_script(tmp_path, THREADS)
    compute = {}
    for cores in ("", "cores = 4"):
        (tmp_path / "cluster.toml").write_text(f'[[device]]\nname = "board"\n{cores}\n[network]\n')
        out = tmp_path / f"out{len(compute)}"
        run = simulate(script, cluster=tmp_path / "cluster.toml", out=out)
        compute[cores] = run.ranks[0].compute_s
        threads = min(4, len(os.sched_getaffinity(0))) if cores else 1
        assert f"threads = {threads} {threads}" in run.output
    # Four threads use 0.4 s of CPU time: 0.4 s on one core, 0.1 s on four.
    assert compute["cores = 4"] < 0.6 * compute[""], compute
