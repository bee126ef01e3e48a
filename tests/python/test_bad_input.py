"""Programs with severe errors: each run ends soon, with a helpful message and the right exit code, and leaves nothing
behind."""

import os
import re
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from harness import TIMEOUT_S, Done, run_script, uniference, write_script

from uniference.patches import versions

SETUP = (
    "import os, signal, sys, threading, time, torch, torch.distributed as dist\n"
    "dist.init_process_group('gloo')\nrank = dist.get_rank()\n"
)


def check(done: Done, code: int, *parts: str) -> None:
    """Checks the exit code and the message, and that no internals of Uniference are shown."""
    assert done.code == code, done.err
    for part in parts:
        assert part in done.err, done.err
    assert "uniference/rank/zygote.py" not in done.err
    assert "panicked" not in done.err


# Processes that a rank starts


def test_a_forked_child_ends_as_it_would_anywhere(tmp_path: Path) -> None:
    source = SETUP + (
        "for leave in (lambda: sys.exit(3), lambda: None, lambda: os._exit(4)):\n"
        "    if (pid := os.fork()) == 0:\n"
        "        leave()\n"
        "        break\n"
        "    print('child', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        "else:\n"
        "    dist.barrier()\n"
        "    print('went on')\n"
    )
    done = run_script(tmp_path, source, ranks=1)
    check(done, 0)
    assert [line for line in done.out.splitlines() if line.startswith(("child", "went"))] == [
        "child 3",
        "child 0",
        "child 4",
        "went on",
    ]


def test_a_forked_child_cannot_go_on_as_the_rank(tmp_path: Path) -> None:
    source = SETUP + (
        "child = os.fork()\n"
        "if child:\n    os.waitpid(child, 0)\n    os._exit(0)\n"
        "dist.barrier()\nprint('not reached')\n"
    )
    done = run_script(tmp_path, source)
    check(done, 0, "a forked child process of a rank cannot communicate", "hint:")
    assert "not reached" not in done.out


def test_a_rank_that_leaves_a_forked_child_behind(tmp_path: Path) -> None:
    done = run_script(tmp_path, SETUP + "if os.fork():\n    os._exit(0)\ndist.barrier()\nprint('not reached')\n")
    # The child's remaining output depends on timing.
    check(done, 1, "error: rank", "hint:")
    assert "not reached" not in done.out


def test_multiprocessing_with_fork(tmp_path: Path) -> None:
    source = SETUP + (
        "import multiprocessing\n"
        "child = multiprocessing.get_context('fork').Process(target=lambda: dist.all_reduce(torch.ones(1)))\n"
        "child.start()\nchild.join()\nprint('child', child.exitcode)\ndist.barrier()\n"
    )
    done = run_script(tmp_path, source, ranks=1)
    check(done, 0, "a forked child process of a rank cannot communicate", "hint:")
    assert "child 1" in done.out


# Descriptors


def test_a_program_may_close_the_numbers_that_programs_have(tmp_path: Path) -> None:
    source = SETUP + (
        "def talk():\n    dist.barrier()\n"
        "thread = threading.Thread(target=talk)\nthread.start()\nthread.join()\n"
        "os.closerange(3, 900)\ndist.barrier()\ntime.sleep(1)\n"
        "thread = threading.Thread(target=talk)\nthread.start()\nthread.join()\nprint('done')\n"
    )
    done = run_script(tmp_path, source)
    check(done, 0)
    assert done.out.count("done") == 2


@pytest.mark.parametrize("after", ["dist.barrier()", "while True: pass"])
def test_a_program_that_closes_all_descriptors(tmp_path: Path, after: str) -> None:
    done = run_script(tmp_path, SETUP + f"if rank == 1:\n    os.closerange(3, 65536)\n    {after}\ndist.barrier()\n")
    check(done, 1, "rank 1 has closed the descriptors that connect it", "rank 0, clock", "hint: close only descriptors")


def test_standard_streams_may_be_closed(tmp_path: Path) -> None:
    source = SETUP + "os.close(1)\nsys.stderr.close()\ndist.barrier()\nsys.exit('nobody reads this')\n"
    check(run_script(tmp_path, source, ranks=1), 1, "the program failed on rank 0")


def test_few_descriptors(tmp_path: Path) -> None:
    script = write_script(tmp_path, SETUP + "dist.barrier()\n")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    command = [sys.executable, "-m", "uniference", "run", "--ranks", "2", str(script)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "2 ranks need 262 open descriptors, but the limit is 64" in done.stderr
    assert "hint: raise the limit: ulimit -Hn 262" in done.stderr


MANY_THREADS = (
    SETUP
    + """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
for _ in range(hard + 50):
    thread = threading.Thread(target=dist.barrier); thread.start(); thread.join()
# Of those that live at once each takes four descriptors of ours: three times as many as the program may have itself.
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
def work(): together.wait(); time.sleep(1)
together = threading.Barrier(50)
threads = [threading.Thread(target=work) for _ in range(50)]
for thread in threads: thread.start()
for thread in threads: thread.join()
os.closerange(3, 64)
dist.barrier()
print('at', round(time.monotonic(), 3), resource.getrlimit(resource.RLIMIT_NOFILE) == (64, hard))
"""
)


def test_more_threads_than_descriptors(tmp_path: Path) -> None:
    script = write_script(tmp_path, MANY_THREADS)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 400))

    options = ["--ranks", "1", "--backend", "ideal", "--compute", "none", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "uniference", "run", *options, str(script)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "at 1.0 True\n" in done.stdout


def test_a_program_that_limits_its_own_descriptors(tmp_path: Path) -> None:
    source = SETUP + (
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))\n"
        "thread = threading.Thread(target=lambda: dist.barrier())\nthread.start()\nthread.join()\ndist.barrier()\n"
    )
    check(run_script(tmp_path, source), 0)


# Calls in wrong places


def test_a_collective_after_the_end_of_the_group(tmp_path: Path) -> None:
    source = SETUP + "dist.destroy_process_group()\ndist.all_reduce(torch.ones(1))\n"
    check(
        run_script(tmp_path, source),
        1,
        "script.py",
        "line 5",
        "has not been initialized",
        "hint: call init_process_group",
    )


def test_collectives_in_a_signal_handler_at_exit_and_in_a_destructor(tmp_path: Path) -> None:
    source = SETUP + (
        "import atexit\n"
        "def talk(name):\n    x = torch.ones(1)\n    dist.all_reduce(x)\n    print(name, x.item())\n"
        "class Late:\n    def __del__(self):\n        talk('destructor')\n"
        "late = Late()\natexit.register(talk, 'exit')\n"
        "signal.signal(signal.SIGUSR1, lambda *_: talk('handler'))\nos.kill(os.getpid(), signal.SIGUSR1)\n"
        # A registered handler keeps objects alive.
        "signal.signal(signal.SIGUSR1, signal.SIG_DFL)\n"
    )
    done = run_script(tmp_path, source)
    check(done, 0)
    assert [done.out.count(f"{name} 2.0") for name in ("handler", "exit", "destructor")] == [2, 2, 2]


def test_a_collective_at_the_exit_of_one_rank(tmp_path: Path) -> None:
    source = SETUP + "import atexit\nif rank == 0:\n    atexit.register(dist.barrier)\n"
    check(run_script(tmp_path, source), 3, "deadlock", "not entered by rank 1", "rank 1, clock 0 ps: has finished")


def test_files_that_are_never_closed_are_written(tmp_path: Path) -> None:
    source = (
        "import sys, types\nout = open('main.txt', 'w')\nout.write('main')\n"
        "keeper = types.ModuleType('keeper')\nsys.modules['keeper'] = keeper\n"
        "keeper.out = open('module.txt', 'w')\nkeeper.out.write('module')\n"
    )
    check(run_script(tmp_path, source, ranks=1), 0)
    assert [(tmp_path / f"{name}.txt").read_text() for name in ("main", "module")] == ["main", "module"]


# Early ends


@pytest.mark.parametrize(
    ("end", "code", "what"),
    [
        ("sys.exit(0)", 3, "rank 1, clock 0 ps: has finished"),
        ("os._exit(0)", 3, "rank 1, clock 0 ps: has finished"),
        ("os._exit(3)", 1, "exited with status 3 before its program finished"),
        ("sys.exit(7)", 1, "the program failed on rank 1 (exit status 7)"),
        ("sys.exit('no luck')", 1, "no luck"),
        ("os.abort()", 1, "was killed by SIGABRT"),
    ],
)
def test_a_rank_that_ends_while_others_wait(tmp_path: Path, end: str, code: int, what: str) -> None:
    source = SETUP + f"if rank == 1:\n    {end}\ndist.barrier()\n"
    check(run_script(tmp_path, source), code, what, "waits for barrier", "not entered by rank 1", "script.py:6")


def test_endless_recursion(tmp_path: Path) -> None:
    done = run_script(tmp_path, SETUP + "def f(): f()\nif rank == 0: f()\ndist.barrier()\n")
    check(done, 1, "RecursionError", "Previous line repeated", "rank 1, clock")
    assert "uniference/program/" not in done.err
    assert done.err.count("Traceback") == 1


def test_exceptions_that_defy_printing(tmp_path: Path) -> None:
    source = (
        "import sys\n"
        "class Odd(Exception):\n    def __str__(self):\n        raise ValueError('not printable')\n"
        "def hook(*_):\n    raise TypeError('a broken hook')\n"
        "sys.excepthook = hook\n"
        "one, two = Odd(), Odd()\none.__cause__, two.__cause__ = two, one\nraise one\n"
    )
    check(run_script(tmp_path, source, ranks=1), 1, "a broken hook", "Odd", "the program failed on rank 0")


# Scripts


@pytest.mark.parametrize(
    ("name", "content", "code", "what"),
    [
        ("folder", None, 2, "is a folder without __main__.py\nhint:"),
        ("bytes.py", b"x = '\xff'\n", 1, "(unicode error) 'utf-8' codec can't decode byte 0xff"),
        ("syntax.py", b"def f(:\n", 1, "SyntaxError"),
        ("module.py", b"import no_such_module\n", 1, "No module named 'no_such_module'"),
        ("empty.py", b"", 0, "warning: the program never communicated"),
    ],
)
def test_scripts_that_are_none(tmp_path: Path, name: str, content: bytes | None, code: int, what: str) -> None:
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_bytes(content)
    check(uniference("run", "--ranks", 1, name, cwd=tmp_path), code, what)


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    check(uniference("run", "--ranks", 1, "-m", "no_such_module", cwd=tmp_path), 1, "No module named no_such_module")


def test_devices_that_are_not_there(tmp_path: Path) -> None:
    check(
        run_script(tmp_path, SETUP + "torch.ones(1, device='mps')\n", ranks=1),
        1,
        "hint: the device mps is not simulated",
    )
    source = (
        "import torch, torch.distributed as dist\ndist.init_process_group('nccl')\ntorch.ones(1, device='cuda:7')\n"
    )
    other = tmp_path / "other"
    other.mkdir()
    check(
        run_script(other, source, ranks=1),
        1,
        "invalid device ordinal",
        "hint: a rank has as many GPUs as its host has devices",
    )


def test_an_unsupported_torch_is_refused_before_anything_starts(tmp_path: Path) -> None:
    found = tmp_path / "torch-2.14.1.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    script = write_script(tmp_path, "print('not reached')\n")
    done = uniference("run", "--ranks", 1, script, cwd=tmp_path, env={"PYTHONPATH": path})
    check(
        done,
        2,
        f"torch 2.13.0 is installed; only {versions.SUPPORTED} is supported",
        "hint: install a supported version: pip install torch==2.15.0",
    )
    assert not (tmp_path / "uniference-out").exists()
    doctor = uniference("doctor", cwd=tmp_path, env={"PYTHONPATH": path})
    assert doctor.code == 2
    assert f"only {versions.SUPPORTED} is supported" in doctor.out


# Surroundings


def test_much_output(tmp_path: Path) -> None:
    # One line of 20 MB, and many lines: no output is lost, and no process hangs.
    source = (
        SETUP + "sys.stdout.write('@' * 20_000_000 + '\\n')\nfor _ in range(50_000): print('x' * 100)\ndist.barrier()\n"
    )
    done = run_script(tmp_path, source)
    check(done, 0)
    lines = Counter(re.sub(r"^\[[01]\] ", "", line) for line in done.out.splitlines())
    assert (lines["@" * 20_000_000], lines["x" * 100]) == (2, 100_000)


def test_standard_input_is_empty(tmp_path: Path) -> None:
    done = run_script(tmp_path, SETUP + "print('read', [sys.stdin.readline(), sys.stdin.read()])\ndist.barrier()\n")
    check(done, 0)
    assert done.out.count("read ['', '']") == 2


def test_a_folder_that_goes_away(tmp_path: Path) -> None:
    source = SETUP + (
        "import shutil, tempfile\nfolder = tempfile.mkdtemp()\nos.chdir(folder)\nshutil.rmtree(folder)\n"
        "dist.barrier()\nif rank == 1:\n    raise ValueError('lost')\ndist.barrier()\n"
    )
    check(run_script(tmp_path, source), 1, "ValueError: lost", "script.py:11", "rank-1.log")


@pytest.mark.parametrize(
    ("limit", "what"),
    [
        ("RLIMIT_AS, (1 << 20, 1 << 20)", "allocate"),
        ("RLIMIT_CPU, (1, 1)", "was killed by SIGKILL"),
        ("RLIMIT_FSIZE, (0, 0)", "OSError: [Errno 27] File too large"),
    ],
)
def test_limits_that_a_program_sets_itself(tmp_path: Path, limit: str, what: str) -> None:
    source = SETUP + (
        f"import resource\nresource.setrlimit(resource.{limit})\ndist.barrier()\n"
        "open('file', 'w').write('x' * 100_000)\nx = torch.ones(100_000_000)\nwhile True: pass\n"
    )
    check(run_script(tmp_path, source, ranks=1), 1, what)


def test_nothing_is_left_in_shared_memory(tmp_path: Path) -> None:
    # A private /dev/shm, because other tests use the real one at the same time.
    private = 'mount -t tmpfs none /dev/shm && { "$@"; code=$?; ls -A /dev/shm; exit $code; }'
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", private, "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    source = SETUP + "if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(torch.ones(1_000_000))\n"
    command = [sys.executable, "-m", "uniference", "run", "--ranks", "2", "--out", str(tmp_path / "out")]
    run = [*inside, *command, str(write_script(tmp_path, source))]
    done = subprocess.run(run, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    check(Done(done.returncode, done.stdout, done.stderr), 1, "was killed by SIGKILL", "hint: the host may have run")
    assert done.stdout == ""


# Locks


def test_a_thread_that_locks_itself_out(tmp_path: Path) -> None:
    source = SETUP + "lock = threading.Lock()\nlock.acquire()\nif rank == 0:\n    lock.acquire()\ndist.barrier()\n"
    check(
        run_script(tmp_path, source),
        3,
        "rank 0, clock 0 ps: waits inside its process: main thread at",
        "script.py:7",
        "rank 1, clock 0 ps: waits for barrier (0 bytes, group 0), not entered by rank 0",
        "hint: check that the locks and queues on which the threads of a process wait",
    )


def test_two_threads_that_lock_each_other_out(tmp_path: Path) -> None:
    source = SETUP + (
        "locks = threading.Lock(), threading.Lock()\n"
        "def work(first, second):\n"
        "    with first:\n"
        "        time.sleep(0.1)\n"
        "        with second: pass\n"
        "threads = [threading.Thread(target=work, args=order) for order in (locks, locks[::-1])]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    parts = "main thread at", "script.py:11, in threading.join", "a thread at", "script.py:8"
    check(run_script(tmp_path, source, ranks=1), 3, "deadlock at 100.000 ms", *parts)


def test_a_queue_that_nobody_fills(tmp_path: Path) -> None:
    source = SETUP + "import queue\nif rank == 0:\n    queue.Queue().get()\ndist.barrier()\n"
    check(run_script(tmp_path, source), 3, "main thread at", "script.py:6, in queue.get", "rank 1, clock")


def test_a_message_with_another_tag(tmp_path: Path) -> None:
    source = SETUP + "x = torch.ones(1)\nif rank == 0: dist.send(x, 1, tag=5)\nelse: dist.recv(x, 0, tag=6)\n"
    done = run_script(tmp_path, source)
    check(done, 3, "waits for recv (4 bytes, group 0)", "(tag 6; rank 0 has sent with tag 5, at", "script.py:5")
