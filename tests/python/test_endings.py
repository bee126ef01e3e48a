"""Runs that are ended from outside: nothing of them stays, and the user reads why."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import Start

HANG = (
    "import os, signal, torch.distributed as dist\n"
    "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
    "print('pid', os.getpid())\ndist.init_process_group('gloo')\nwhile True:\n    pass\n"
)
TALK = (
    "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    "for _ in range(300):\n    dist.barrier()\n    print('x' * 1000)\n"
)


def words(directory: Path, source: str) -> list[str]:
    """A run of `source` on two ranks."""
    script = directory / "script.py"
    script.write_text(source)
    options = ["--ranks", "2", "--compute", "none", "--jobs", "2", "--out", str(directory / "out")]
    return ["run", *options, str(script)]


def command(directory: Path, source: str) -> list[str]:
    """The same with what is started for it."""
    return [sys.executable, "-m", "uniference", *words(directory, source)]


def hanging(directory: Path, start: Start) -> tuple["subprocess.Popen[str]", list[int]]:
    """A run whose ranks never end, whatever signals they get; and their processes."""
    run = start(*words(directory, HANG))
    assert run.stdout is not None
    pids = [int(run.stdout.readline().split()[-1]) for _ in range(2)]
    return run, pids


def all_end(pids: list[int]) -> bool:
    """Whether these processes are gone within ten seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_ctrl_c_ends_everything(tmp_path: Path, start: Start) -> None:
    run, pids = hanging(tmp_path, start)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=20)
    assert run.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert all_end(pids)


def children_of(pid: int) -> list[int]:
    """Its processes at this moment."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_line(pid: int) -> bytes:
    """Of a process that may have ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("started", [b"python", b"uniference.zygote"])
def test_ctrl_c_while_it_starts_ends_quietly(tmp_path: Path, started: bytes) -> None:
    """As soon as it has started any process, or that which ranks are forked from."""
    run = subprocess.Popen(
        command(tmp_path, HANG), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    children: list[int] = []
    while not any(started in command_line(child) for child in children):
        time.sleep(0.002)
        children = children_of(run.pid)
    # As from a terminal: to all of its processes.
    os.killpg(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=20)
    assert (run.returncode, out, err) == (130, "", "interrupted\n")
    assert all_end(children)


def test_a_killed_driver_leaves_nothing(tmp_path: Path, start: Start) -> None:
    run, pids = hanging(tmp_path, start)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate(timeout=20)
    assert all_end(pids)


def test_a_killed_zygote_is_named(tmp_path: Path, start: Start) -> None:
    run, pids = hanging(tmp_path, start)
    status = Path(f"/proc/{pids[0]}/status").read_text()
    os.kill(int(status.partition("PPid:")[2].split()[0]), signal.SIGKILL)
    _, err = run.communicate(timeout=20)
    assert run.returncode == 1
    assert "the process that ranks are forked from was killed by SIGKILL\nhint: the host may have run out" in err
    assert all_end(pids)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_commands_without_ranks_end_too(tmp_path: Path, start: Start, number: signal.Signals, code: int) -> None:
    # Each waits for somebody to write what it reads: once that is opened it is at work.
    for words in (("replay", tmp_path), ("calibrate", "--fit", tmp_path / "program.record")):
        os.mkfifo(tmp_path / "program.record")
        run = start(*words)
        with open(tmp_path / "program.record", "wb"):
            run.send_signal(number)
            assert run.wait(timeout=20) == code
        (tmp_path / "program.record").unlink()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    mount = f'mount -t tmpfs -o size=64k none {out} && exec "$@"'
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*inside, mount, "sh", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    full = [*inside, mount, "sh", *command(tmp_path, TALK)]
    done = subprocess.run(full, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert "rank-" in done.stderr
    assert "--out" in done.stderr


def test_a_rank_that_computes_for_long_does_not_keep_the_others_from_running(tmp_path: Path) -> None:
    # With one job the first rank holds the host until it has been silent for a second; the other one then writes the file.
    source = (
        "import os, pathlib, time, torch.distributed as dist\n"
        f"flag = pathlib.Path({str(tmp_path / 'flag')!r})\n"
        "if os.environ['RANK'] == '0':\n"
        "    while not flag.exists():\n"
        "        pass\n"
        "else:\n"
        "    flag.write_text('here')\n"
        "dist.init_process_group('gloo')\n"
        "dist.barrier()\n"
    )
    run = command(tmp_path, source)
    run[run.index("--jobs") + 1] = "1"
    subprocess.run(run, capture_output=True, timeout=60, check=True)


def test_nobody_reads_the_output(tmp_path: Path, start: Start) -> None:
    run = start(*words(tmp_path, TALK))
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdout.readline()
    run.stdout.close()
    err = run.stderr.read()
    assert run.wait(timeout=60) == 0
    assert "bug" not in err


def test_files_beside_the_user_do_not_stand_in_for_modules(tmp_path: Path) -> None:
    # Of the zygote's, and of what is asked for versions before.
    for name in ("queue", "platform", "csv"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not the module')\n")
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    run = command(scripts, TALK)
    run.insert(1, "-P")  # as the installed command, which does not look into the current folder either
    subprocess.run(run, cwd=tmp_path, capture_output=True, timeout=60, check=True)
