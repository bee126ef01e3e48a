"""Ranks on workers: jobs that exceed a worker's memory, refused options, options that must work, and the names of
lines."""

import json

import pytest
import torch
from harness import uniference, write_script
from remote import START, Commands, commands, digest, ended, said

__all__ = ["commands"]

HELPER = """import torch.distributed as dist
def reduce(x):
    for _ in range(3):
        x = x @ x
    dist.all_reduce(x)
"""


@pytest.fixture
def small_board(commands: Commands) -> Commands:
    """Makes the worker's machine report 3 GiB of free memory, through a fake meminfo."""
    meminfo = commands.folder / "meminfo"
    meminfo.write_text(f"MemTotal: {8 << 20} kB\nMemAvailable: {3 << 20} kB\n")
    script = f'mount --bind {meminfo} /proc/meminfo && exec "$@"'
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    probe = Commands(commands.folder, there=inside).start("worker", "--help")
    if ended(probe)[0] != 0:
        pytest.skip(f"no file can be mounted here: {said(probe)}")
    commands.there = inside
    return commands


def test_ranks_that_do_not_fit_a_worker_are_refused_with_figures(small_board: Commands) -> None:
    path = small_board.folder / "cluster.toml"
    # 700 MiB + 300 * 10 MiB
    path.write_text(path.read_text().replace("count = 2", "count = 300"))
    small_board.worker()
    code, err = ended(small_board.run("--compute", "none"))
    assert code == 2
    assert (
        "error: worker worker-a: 300 ranks need at least 3700 MiB of memory to start, but only 3072 MiB are available"
        in err
    )
    assert "hint: use fewer ranks, or free memory" in err


def test_a_tensor_that_does_not_fit_a_worker_is_refused_with_figures_and_its_line(small_board: Commands) -> None:
    # 2^30 floats are 4 GiB: the worker's machine lacks them, the driver's would have them.
    write_script(
        small_board.folder,
        "import helper\n" + START + "if dist.get_rank() == 1:\n    helper.take()\ndist.barrier()\n",
    )
    write_script(small_board.folder, "import torch\ndef take():\n    torch.empty(1 << 30)\n", "helper.py")
    small_board.worker()
    code, err = ended(small_board.run("--compute", "none"))
    assert code == 2
    line = f"{small_board.folder}/helper.py:3"
    assert f"error: rank 1 allocates 4.00 GiB at {line}, but only 3.00 GiB of worker worker-a's memory" in err
    assert "hint: large tensors take no memory with --values small" in err


def test_more_than_the_device_has_is_the_programs_failure(commands: Commands) -> None:
    commands.with_models('memory = "64 MiB"\n')
    write_script(commands.folder, START + "x = torch.ones(100 << 18)\ndist.barrier()\n")
    commands.worker()
    for cluster in ("cluster.toml", "local.toml"):
        code, err = ended(commands.run("--compute", "model", cluster=cluster))
        assert code == 1, err
        assert "torch.OutOfMemoryError: board.0 is out of memory. Tried to allocate 100.00 MiB" in err, err
        assert "total capacity of 64.00 MiB" in err, err


def test_lines_of_ranks_at_workers_name_the_files_of_the_driver(commands: Commands) -> None:
    commands.with_models()
    write_script(commands.folder, HELPER, "helper.py")
    script = "import helper, torch\n" + START.partition("\n")[2] + "helper.reduce(torch.ones(300, 300))\n"
    write_script(commands.folder, "import torch.distributed as dist\n" + script)
    commands.worker()
    reports = []
    for cluster in ("cluster.toml", "local.toml"):
        run = commands.run("--compute", "model", "--record", "full", cluster=cluster)
        assert ended(run)[0] == 0, said(run)
        report = json.loads((run.out / "report.json").read_text())  # type: ignore[attr-defined]
        # The two reports differ only in this machine's time and the command line.
        reports.append({key: report[key] for key in ("digest", "ranks", "operations", "compute") if key in report})
        files = {file.name: file.read_bytes() for file in run.out.rglob("*") if file.is_file()}  # type: ignore[attr-defined]
        assert not [name for name, content in files.items() if b"uniference-worker-" in content]
        # The all-reduce's line, and the GEMM's line in the captured operators' dictionary.
        assert f'"{commands.folder}/helper.py:5"'.encode() in files["events.jsonl"]
        assert f"{commands.folder}/helper.py:4".encode() in files["program.record"], sorted(files)
        explained = uniference("explain", run.out, cwd=commands.folder)  # type: ignore[attr-defined]
        assert explained.code == 0, explained.err
        assert "uniference-worker-" not in explained.out
    assert reports[0] == reports[1]


def test_a_deadlock_names_the_files_of_the_driver(commands: Commands) -> None:
    write_script(
        commands.folder,
        "import torch, torch.distributed as dist, threading\ndef wait():\n    dist.recv(torch.ones(1), 0)\n"
        "def lock():\n    threading.Lock().acquire() and threading.Event().wait()\n",
        "helper.py",
    )
    write_script(
        commands.folder, "import helper\n" + START + "helper.lock() if dist.get_rank() == 0 else helper.wait()\n"
    )
    commands.worker()
    code, err = ended(commands.run("--compute", "none"))
    assert code == 3
    assert err.count(f"{commands.folder}/helper.py:3") == 2, err
    assert f"{commands.folder}/helper.py:5" in err
    assert "uniference-worker-" not in err


def test_values_that_are_not_computed_are_not_at_workers_either(commands: Commands) -> None:
    commands.with_models()
    # 2,000 tensors of 8 million floats would be 64 GB per rank.
    write_script(
        commands.folder,
        START + "xs = [torch.ones(8_000_000) * 2 for _ in range(2_000)]\ndist.all_reduce(xs[0])\n"
        "small = torch.full((8,), dist.get_rank() + 1.0)\ndist.all_reduce(small)\nassert small.tolist() == [6.0] * 8\n"
        "if dist.get_rank() == 0:\n    dist.send(xs[1], 2)\nelif dist.get_rank() == 2:\n    dist.recv(xs[1], 0)\n",
    )
    commands.worker()
    runs = []
    for cluster in ("cluster.toml", "local.toml"):
        runs.append(commands.run("--compute", "model", "--values", "small", cluster=cluster))
        assert ended(runs[-1])[0] == 0, said(runs[-1])
    assert digest(runs[0]) == digest(runs[1])


def test_a_run_is_repeated_with_the_same_workers(commands: Commands) -> None:
    write_script(
        commands.folder, START + "x = torch.ones(300, 300)\nfor _ in range(5):\n    x = x @ x\ndist.all_reduce(x)\n"
    )
    worker = commands.worker()
    run = commands.run("--compute", "measured", "--repeat", "3")
    code, err = ended(run)
    assert code == 0, err
    assert [f"run {number} of 3: makespan" in err for number in (1, 2, 3)] == [True] * 3
    assert err.count("worker worker-a has joined") == 3
    assert said(worker).count("has joined a run") == 3
    assert worker.poll() is None


def test_a_worker_for_one_run_is_missed_by_the_second(commands: Commands) -> None:
    write_script(commands.folder, START + "dist.all_reduce(torch.ones(3))\n")
    worker = commands.worker("--once")
    code, err = ended(commands.run("--compute", "measured", "--repeat", "2", "--join-timeout", "5"))
    assert code == 2
    assert "worker-a did not join within 5 s" in err
    assert "hint: start it there with `uniference worker --name worker-a" in err
    assert ended(worker)[0] == 0


def test_folding_is_refused_with_workers(commands: Commands) -> None:
    code, err = ended(commands.run("--compute", "none", "--fold", "auto"))
    assert code == 2
    assert "error: --fold auto is not supported with workers, and a device is at worker-a" in err
    assert "hint: remove --fold auto; with `count` one worker stands for all boards of its kind" in err


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")
def test_simulated_gpus_are_refused_at_workers(commands: Commands) -> None:
    commands.with_models()
    code, err = ended(commands.run("--compute", "model", "--cuda"))
    assert code == 2
    assert "error: simulated GPUs are not supported at workers, and a device is at worker-a" in err
    assert "hint: add --no-cuda, or remove `at` from the cluster file" in err
