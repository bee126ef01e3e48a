"""`--on ray`: the results equal those on one machine, byte for byte, even if a node is lost during the sweep."""

import importlib.util
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import uniference

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: make ray"),
]

PROGRAM = """
import sys
import torch
import torch.distributed as dist
import helper

dist.init_process_group("gloo")
size = int(sys.argv[1])
if size == 13:
    raise ValueError("thirteen")
values = torch.ones(size, size)
for _ in range(helper.ROUNDS):
    values = values @ values / size
    dist.all_reduce(values)
"""
SWEEP = """
[program]
script = "code/program.py"
arguments = ["{size}"]
[arguments]
size = [16, 32, 64, 128, 256, 13]
[options]
compute = "model"
cluster = "boards.toml"
[cluster]
network.bandwidth = ["1 Gbps", "10 Mbps"]
"""


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Ray on three nodes with one CPU each, all of them on this machine."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        for _ in range(2):
            nodes.add_node(num_cpus=1)
        nodes.wait_for_nodes()
        yield nodes
    finally:
        nodes.shutdown()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep whose program imports a module next to it."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "program.py").write_text(PROGRAM)
    (tmp_path / "code" / "helper.py").write_text("ROUNDS = 3\n")
    (tmp_path / "boards.toml").write_text('[[device]]\nname = "pi"\nmodel = "raspberry-pi-5"\ncount = 2\n[network]\n')
    (tmp_path / "sweep.toml").write_text(SWEEP)
    return tmp_path


def begin(folder: Path, cluster: Any, *words: str) -> "subprocess.Popen[str]":
    """Starts a sweep on the cluster."""
    command = [sys.executable, "-m", "uniference", "sweep", "sweep.toml", "--on", "ray", *words]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"RAY_ADDRESS": cluster.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def finished(journal: Path) -> int:
    """Number of finished trials."""
    if not journal.exists():
        return 0
    with sqlite3.connect(f"file:{journal}?mode=ro", uri=True) as opened:
        try:
            return int(opened.execute("SELECT count(*) FROM trial").fetchone()[0])
        except sqlite3.OperationalError:
            return 0


def running() -> list[int]:
    """Process ids of runs that Ray tasks have started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"/results\0" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:  # it has ended
            continue
    return found


def raylet(node: Any) -> int:
    """The process that starts a node's tasks."""
    from ray._private.ray_constants import PROCESS_TYPE_RAYLET

    return int(node.all_processes[PROCESS_TYPE_RAYLET][0].process.pid)


def below(pid: int, ancestor: int) -> bool:
    """Whether `ancestor` is an ancestor of the process."""
    while pid > 1 and pid != ancestor:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            return False
    return pid == ancestor


def wait_until(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_node_is_lost_and_the_results_are_the_same(folder: Path, cluster: Any) -> None:
    other = shutil.copytree(folder, folder / "other")
    here = uniference("sweep", "sweep.toml", "--out", "there", cwd=other)
    assert here.code == 0, here.err
    sweep = begin(folder, cluster, "--out", "there")
    lost: list[Any] = []

    def busy() -> bool:
        """Whether a trial is finished, and a worker node is carrying one out."""
        lost[:] = [node for node in cluster.worker_nodes if any(below(pid, raylet(node)) for pid in running())]
        return finished(folder / "there" / "journal.sqlite") >= 1 and bool(lost)

    wait_until(busy)
    cluster.remove_node(lost[0], allow_graceful=False)
    out, err = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, err
    assert "12 trials: 6 runs and 6 replays, 3 at a time" in out
    assert "see its output in there/trials/10/rank-0.log" in err
    assert "ValueError: thirteen" in (folder / "there" / "trials" / "10" / "rank-0.log").read_text()
    for table in ("results.csv", "results.parquet"):
        assert (folder / "there" / table).read_bytes() == (other / "there" / table).read_bytes(), table
    assert running() == []


def test_ctrl_c_ends_tasks_and_the_sweep_goes_on_here(folder: Path, cluster: Any) -> None:
    sweep = begin(folder, cluster, "--out", "there")
    wait_until(lambda: finished(folder / "there" / "journal.sqlite") >= 1 and running())
    sweep.send_signal(signal.SIGINT)
    _, err = sweep.communicate(timeout=60)
    assert sweep.returncode == 130
    assert "hint: go on with --out there" in err
    wait_until(lambda: not running(), 20)
    done = finished(folder / "there" / "journal.sqlite")
    assert done < 12
    on = uniference("sweep", "sweep.toml", "--out", "there", cwd=folder)
    assert on.code == 0, on.err
    assert f"there has {done} of them already" in on.out


def test_a_cluster_that_is_gone_loses_nothing(folder: Path, cluster: Any) -> None:
    sweep = begin(folder, cluster, "--out", "there")
    wait_until(lambda: finished(folder / "there" / "journal.sqlite") >= 1 and running())
    cluster.shutdown()
    _, err = sweep.communicate(timeout=120)
    assert sweep.returncode == 2, err
    assert "the process that talks to Ray has ended" in err
    with sqlite3.connect(folder / "there" / "journal.sqlite") as journal:
        outcomes = journal.execute("SELECT * FROM trial").fetchall()
    assert not any("Ray" in str(outcome) for outcome in outcomes)


def test_what_cannot_be_carried_out_there_is_refused(folder: Path) -> None:
    refused = uniference("sweep", "sweep.toml", "--on", "ray", cwd=folder)
    assert refused.code == 2
    assert "there is no Ray cluster" in refused.err
    assert "hint: start one with `ray start --head`" in refused.err
    text = (folder / "sweep.toml").read_text()
    (folder / "sweep.toml").write_text(text.replace('compute = "model"', 'compute = "measured"'))
    refused = uniference("sweep", "sweep.toml", "--on", "ray", cwd=folder)
    assert refused.code == 2
    assert "not of a Ray cluster's nodes" in refused.err


def test_a_node_with_another_version_says_so() -> None:
    from uniference.on_ray import carried_out

    status, error, files = carried_out(["run"], ["program.py"], {"uniference": "99"}, None)
    assert status is None
    assert "has uniference 0.1.0, not 99" in error
    assert 'hint: install on every node: pip install "uniference==99"' in error
    assert files == {}
