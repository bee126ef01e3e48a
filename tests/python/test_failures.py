"""Programs that fail: the exit code, and the message."""

from pathlib import Path

import pytest
from harness import Done, run_script, uniference, write_script

from uniference import SimulationError, load, simulate

SETUP = "import os, signal, sys, torch, torch.distributed as dist\ndist.init_process_group('gloo')\nrank = dist.get_rank()\n"


def check(done: Done, code: int, *parts: str) -> None:
    assert done.code == code, done.err
    for part in parts:
        assert part in done.err


def test_missing_script(tmp_path: Path) -> None:
    check(uniference("run", "--ranks", 2, "nowhere.py", cwd=tmp_path), 2, "nowhere.py")


def test_script_with_a_typo(tmp_path: Path) -> None:
    done = run_script(tmp_path, "import torch\nprint('hello'\n")
    check(done, 1, "script.py", "line 2", "SyntaxError")
    assert "uniference/rank/" not in done.err


def test_exception_on_one_rank(tmp_path: Path) -> None:
    source = SETUP + "def work():\n    if rank == 1:\n        raise ValueError('boom')\nwork()\ndist.barrier()\n"
    done = run_script(tmp_path, source)
    check(done, 1, "Traceback", 'script.py", line 6, in work', "ValueError: boom")
    assert done.err.count("ValueError: boom") == 1
    assert "uniference/" not in done.err
    assert "runpy" not in done.err


def test_exit_codes_of_programs(tmp_path: Path) -> None:
    assert run_script(tmp_path, "import sys\nsys.exit(0)\n", ranks=1).code == 0
    (tmp_path / "failing").mkdir()
    check(run_script(tmp_path / "failing", "import sys\nsys.exit('no luck')\n", ranks=1), 1, "no luck")


def test_collective_on_one_rank_only(tmp_path: Path) -> None:
    source = SETUP + "if rank == 0:\n    dist.all_reduce(torch.ones(4))\nelse:\n    dist.recv(torch.ones(1), 0)\n"
    check(run_script(tmp_path, source), 3, "script.py:5", "script.py:7", "all_reduce")


def test_different_sizes(tmp_path: Path) -> None:
    check(run_script(tmp_path, SETUP + "dist.all_reduce(torch.ones(4 + rank))\n"), 3, "script.py:4")


def test_refused_backend(tmp_path: Path) -> None:
    source = "import torch.distributed as dist\ndist.init_process_group('mpi')\n"
    check(run_script(tmp_path, source), 1, 'the backend "mpi" cannot be simulated', "hint:")


def test_refused_rpc(tmp_path: Path) -> None:
    source = "from torch.distributed import rpc\nrpc.init_rpc('worker0', rank=0, world_size=1)\n"
    check(run_script(tmp_path, source, ranks=1), 1, "torch.distributed.rpc cannot be simulated", "hint:")


def test_simulate_raises(tmp_path: Path) -> None:
    with pytest.raises(SimulationError) as caught:
        simulate(tmp_path / "nowhere.py", ranks=2)
    assert caught.value.exit_code == 2
    assert "nowhere.py" in caught.value.message


def test_rank_of_another_version(tmp_path: Path) -> None:
    # Rank 1 sends the greeting of a later version first: a frame of 2 bytes, the version, and its features.
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "def replace_channel():\n"
        "    from uniference.rank import process\n"
        "    from uniference._native import Channel\n"
        "    class Later:\n"
        "        @staticmethod\n"
        "        def adopt(control, rank, world_size):\n"
        "            if rank == 1:\n"
        "                os.write(control, bytes([2, 0, 0, 0, 100, 3]))\n"
        "            return Channel.adopt(control, rank, world_size)\n"
        "    process.Channel = Later\n"
        "os.register_at_fork(after_in_child=replace_channel)\n"
    )
    script = write_script(tmp_path, "print('not reached')\n")
    options = ("--ranks", 2, "--backend", "ideal", "--compute", "none", "--out", tmp_path / "out")
    done = uniference("run", *options, script, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.code == 2, done.err
    sides = "this side speaks version 10 of the protocol between ranks and driver, the other side version 100"
    expected = f"rank 1 cannot join the run: {sides}"
    assert f"error: {expected}\nhint: install the same version of uniference on both sides\n" in done.err


def test_a_failed_run_leaves_a_report_of_what_happened(tmp_path: Path) -> None:
    # Rank 1 sleeps in virtual time, so that rank 0 is in the barrier when rank 1 fails.
    fails = "import time\nif rank == 1:\n    time.sleep(1)\n    raise ValueError('boom')\ndist.barrier()\n"
    script = write_script(tmp_path, SETUP + "dist.all_reduce(torch.ones(4))\n" + fails)
    done = uniference("run", "--ranks", 2, "--out", "out", script, cwd=tmp_path)
    check(done, 1, "ValueError: boom")
    run = load(tmp_path / "out")
    assert run.failure is not None
    assert "rank 1" in run.failure
    assert run.warnings[0].startswith("the run did not finish: ")
    assert [operation["count"] for operation in run.report["operations"] if operation["operation"] == "all_reduce"] == [
        2
    ]
    page = uniference("report", "out", "--out", "page.html", cwd=tmp_path)
    check(page, 2, "did not finish", "hint: ")
    assert not (tmp_path / "page.html").exists()
    explained = uniference("explain", "out", cwd=tmp_path)
    check(explained, 3, "deadlock", "waits for barrier", "hint: ")
    deadlock = SETUP + "if rank == 0:\n    dist.barrier()\nelse:\n    dist.recv(torch.ones(1), 0)\n"
    check(uniference("run", "--ranks", 2, "--out", "out", write_script(tmp_path, deadlock), cwd=tmp_path), 3)
    halted = load(tmp_path / "out")
    assert halted.failure is not None
    assert halted.failure.startswith("error: deadlock at ")


def test_rank_0_reads_standard_input(tmp_path: Path) -> None:
    source = SETUP + "text = sys.stdin.read()\nprint(f'rank {rank} has read {text!r}')\n"
    script = write_script(tmp_path, source)
    done = uniference("run", "--ranks", 2, script, cwd=tmp_path, input="some\nlines\n")
    assert done.code == 0, done.err
    assert "rank 0 has read 'some\\nlines\\n'" in done.out
    assert "rank 1 has read ''" in done.out
    told = uniference("run", "--ranks", 2, "--repeat", 2, script, cwd=tmp_path, input="some")
    assert "standard input is not passed to the program with --repeat" in told.err
    assert "rank 0 has read ''" in told.out
    asks = write_script(tmp_path, SETUP + "print('got', input() if rank == 0 else 'nothing')\n")
    asked = uniference("run", "--ranks", 2, asks, cwd=tmp_path, input="answer\n")
    assert "got answer" in asked.out, asked.err
