"""A debugger on one rank, at a terminal as users have it."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import run_script, write_script

PROGRAM = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.ones(2)
if rank == 1:
    breakpoint()
    secret = 42
dist.all_reduce(x)
print("sum =", x.tolist(), "at", time.monotonic())
"""


_started: list[int] = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """Kills all processes that a test has started."""
    yield
    while _started:
        pid = _started.pop()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


class Terminal:
    """A run of a program, with a terminal in place of its standard streams."""

    def __init__(self, directory: Path, source: str, *options: str) -> None:
        script = write_script(directory, source)
        command = [sys.executable, "-m", "uniference", "run", "--ranks", "2", "--out", str(directory / "out"), *options]
        pid, self._fd = pty.fork()
        if pid == 0:
            os.execv(command[0], [*command, str(script)])
        self._pid = pid
        # A failed test does not end its processes itself.
        _started.append(pid)
        self.shown = ""
        self._seen = 0

    def expect(self, text: str) -> None:
        """Reads on until `text` has been shown after what was last expected."""
        deadline = time.monotonic() + 60
        while (found := self.shown.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline, f"no {text!r} in {self.shown[self._seen :]!r}"
            assert self._read(1.0), self.shown
        self._seen = found + len(text)

    def type(self, text: str) -> None:
        """Types text as the user."""
        os.write(self._fd, text.encode())

    def end(self) -> int:
        """Waits for the end of the run; returns the exit code."""
        while self._read(60.0):
            pass
        _started.remove(self._pid)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _read(self, seconds: float) -> bool:
        if not select.select([self._fd], [], [], seconds)[0]:
            return seconds < 60
        try:
            text = os.read(self._fd, 4096).decode()
        except OSError:  # the other end is closed
            return False
        self.shown += text.replace("\r", "")
        return bool(text)


def test_a_breakpoint_on_the_rank_with_the_terminal(tmp_path: Path) -> None:
    run = Terminal(tmp_path, PROGRAM, "--debug-rank", "1")
    run.expect("(Pdb) ")
    # Longer than the time for which a silent rank may delay the others on the host.
    time.sleep(1.5)
    run.type("p 'rank is', rank\n")
    run.expect("('rank is', 1)")
    run.expect("(Pdb) ")
    # The prompt is printed before its line is read, and Ctrl-C between the two is noticed with the next line, as in any
    # debugger.
    time.sleep(1)
    run.type("\x03")
    run.expect("--KeyboardInterrupt--")
    run.expect("(Pdb) ")
    # The run received the signal, too, and on a busy machine notices a little later that it was for a rank at its
    # prompt.
    time.sleep(1)
    run.type("n\n")
    run.expect("(Pdb) ")
    run.type("w\n")
    run.expect("dist.all_reduce(x)\n")
    assert "uniference/" not in run.shown
    run.expect("(Pdb) ")
    run.type("p secret\n")
    run.expect("42")
    run.type("c\n")
    assert run.end() == 0, run.shown
    moments = [float(line.split()[-1]) for line in run.shown.splitlines() if "sum = [2.0, 2.0]" in line]
    assert len(moments) == 2
    # The user's time does not count as the program's.
    assert max(moments) < 1.0


def test_the_end_of_the_input_ends_the_run(tmp_path: Path) -> None:
    run = Terminal(tmp_path, PROGRAM, "--debug-rank", "1")
    run.expect("(Pdb) ")
    run.type("\x04")
    assert run.end() == 1
    assert "BdbQuit" in run.shown
    assert "failed on rank 1" in run.shown


def test_ctrl_c_ends_the_run_when_the_rank_waits_for_others(tmp_path: Path) -> None:
    source = "import time, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    # By then rank 1 is in the barrier, because ranks run one after the other.
    source += "if dist.get_rank() == 0:\n    time.sleep(60)\n    while True: pass\n"
    source += "print('waiting', flush=True)\ndist.barrier()\n"
    run = Terminal(tmp_path, source, "--debug-rank", "1")
    run.expect("waiting")
    time.sleep(1.0)
    run.type("\x03")
    assert run.end() == 130, run.shown


def test_input_from_a_pipe(tmp_path: Path) -> None:
    script = write_script(tmp_path, "import os\nif os.environ['RANK'] == '0': print('got', input())\n")
    command = [
        sys.executable,
        "-m",
        "uniference",
        "run",
        "--ranks",
        "2",
        "--debug-rank",
        "0",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(
        [*command, str(script)], input="a word\n", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "got a word" in done.stdout


def test_a_breakpoint_without_a_terminal_says_what_to_do(tmp_path: Path) -> None:
    done = run_script(tmp_path, PROGRAM)
    assert done.code == 1
    assert "breakpoint() was called on rank 1, which has no terminal" in done.err
    assert "--debug-rank 1" in done.err
    done = run_script(tmp_path, "input()\n", ranks=1)
    assert done.code == 1
    assert "EOFError: input() was called on rank 0" in done.err


def test_a_rank_that_is_not_there_cannot_be_debugged(tmp_path: Path) -> None:
    done = run_script(tmp_path, PROGRAM, "--debug-rank", "2")
    assert done.code == 2
    assert "--debug-rank 2 is out of range: the cluster has 2 ranks" in done.err
