"""Runs that are ended from outside leave nothing behind, and print the reason."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import Start, uniference

HANG = (
    "import os, signal, subprocess, torch.distributed as dist\n"
    "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
    # The process is detached from the rank, its session and its parent, and holds the rank's outputs. It stops itself,
    # because a sleep would soon end.
    "left = subprocess.run(['sh', '-c', 'setsid sh -c \"kill -STOP \\\\$\\\\$\" >&2 & echo $!'], stdout=subprocess.PIPE).stdout\n"
    "print('pids', os.getpid(), int(left))\nif os.environ['RANK'] == '0':\n    dist.init_process_group('gloo')\nwhile True:\n    pass\n"
)
TALK = (
    "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    "for _ in range(300):\n    dist.barrier()\n    print('x' * 1000)\n"
)


def words(directory: Path, source: str) -> list[str]:
    """Arguments of a run of `source` on two ranks."""
    script = directory / "script.py"
    script.write_text(source)
    options = ["--ranks", "2", "--compute", "none", "--jobs", "2", "--out", str(directory / "out")]
    return ["run", *options, str(script)]


def command(directory: Path, source: str) -> list[str]:
    """The full command of such a run."""
    return [sys.executable, "-m", "uniference", *words(directory, source)]


def hanging(directory: Path, start: Start) -> tuple["subprocess.Popen[str]", list[int]]:
    """Starts a run whose ranks never end, whatever signals they get; returns the run and its processes, each followed
    by one that it left behind."""
    told = directory / "told"
    command, *rest = words(directory, HANG)
    run = start(command, "--progress-to", str(told), *rest)
    assert run.stdout is not None
    pids = [int(pid) for _ in range(2) for pid in run.stdout.readline().split()[-2:]]
    # Wait until rank 0 is in the call in which it waits for ever.
    deadline = time.monotonic() + 60
    while not re.search(r"rank 0, [^\"]* waits ", told.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
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
    script = tmp_path / "script.py"
    head, *ranks = err.splitlines()
    assert head == "interrupted"
    # Rank 0 waits in a call; virtual time cannot pass while rank 1 runs.
    assert re.fullmatch(rf"  rank 0, clock \S+ \S+: .* at {script}:6(, in .*)?", ranks[0]), ranks[0]
    assert re.fullmatch(rf"  rank 1, clock 0 ps: is running: main thread at {script}:[4-8]", ranks[1]), ranks[1]
    assert len(ranks) == 2
    assert all_end(pids)


SHARES = (
    "import subprocess, sys\nfrom multiprocessing.shared_memory import SharedMemory\n"
    "made = SharedMemory(create=True, size=4096)\nprint('made', made.name, flush=True)\n"
    "if not sys.argv[1:]:\n    subprocess.run([sys.executable, __file__, 'child'])\nwhile True:\n    pass\n"
)


def test_ctrl_c_removes_shared_memory(tmp_path: Path, start: Start) -> None:
    """The creator of shared memory, a rank or a child of a rank, is killed and cannot remove it, and nor can Python's
    resource tracker."""
    run = start(*words(tmp_path, SHARES))
    assert run.stdout is not None
    made = [Path("/dev/shm", run.stdout.readline().split()[-1]) for _ in range(4)]
    assert all(path.exists() for path in made), made
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=20)
    assert run.returncode == 130
    assert not any(path.exists() for path in made), made


KILLS = (
    "import os, signal, socket, subprocess, sys\nfrom multiprocessing import resource_tracker, shared_memory\n"
    "path = os.path.join(os.path.dirname(__file__), 'socket')\n"
    "if sys.argv[1:]:\n"
    "    socket.socket(socket.AF_UNIX).bind(path)\n"
    "    made = shared_memory.SharedMemory(create=True, size=4096)\n"
    "    resource_tracker.unregister(made._name, 'shared_memory')\n"
    "    print(made.name, flush=True)\n"
    "    import _multiprocessing\n"
    "    _multiprocessing.SemLock(0, 1, 1, '/' + made.name, False)\n"
    "    os.kill(os.getpid(), signal.SIGKILL)\n"
    "there = shared_memory.SharedMemory(os.path.basename(os.path.dirname(path)), create=False)\n"
    "import _posixshmem\n"
    "os.close(_posixshmem.shm_open('/' + there.name, os.O_CREAT | os.O_RDWR, 0o600))\n"
    "resource_tracker.unregister(there._name, 'shared_memory')\n"
    "child = subprocess.run([sys.executable, __file__, 'child'], stdout=subprocess.PIPE)\n"
    "made = child.stdout.decode().strip()\n"
    "there = path, '/dev/shm/' + made, '/dev/shm/sem.' + made\n"
    "print('made', made, child.returncode, *map(os.path.exists, there))\n"
)


def test_what_a_killed_process_of_a_program_has_made_is_removed(tmp_path: Path, start: Start) -> None:
    """A process that the program kills, as vLLM and SGLang kill theirs, long before the run's end."""
    script = tmp_path / "script.py"
    script.write_text(KILLS)
    others = Path("/dev/shm", tmp_path.name)
    others.write_bytes(b"somebody else's")
    run = start("run", "--ranks", "1", "--compute", "none", "--out", str(tmp_path / "out"), str(script))
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    _, made, *there = out.split()[out.split().index("made") :][:6]
    assert there == ["-9", "True", "True", "True"], out
    assert not (tmp_path / "socket").exists()
    assert not [path for path in Path("/dev/shm").iterdir() if made in path.name]
    # This file existed before the run, although the program could have created it.
    assert others.read_bytes() == b"somebody else's"
    others.unlink()


# The second Ctrl-C arrives at different moments of the run's end.
@pytest.mark.parametrize("milliseconds", [10, 20, 25, 30])
def test_ctrl_c_twice_ends_at_once(tmp_path: Path, start: Start, milliseconds: int) -> None:
    run, pids = hanging(tmp_path, start)
    # A stopped process does not answer, so its location is not printed.
    os.kill(pids[0], signal.SIGSTOP)
    for _ in range(2):
        run.send_signal(signal.SIGINT)
        time.sleep(milliseconds / 1000)
    run.communicate(timeout=20)
    assert run.returncode == 130
    assert all_end(pids)


def children_of(pid: int) -> list[int]:
    """All descendants of a process at this moment."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has ended
        return []
    return children + [below for child in children for below in children_of(child)]


def command_line(pid: int) -> bytes:
    """The command line of a process that may have ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("started", [b"python", b"uniference.rank.zygote"])
def test_ctrl_c_while_it_starts_ends_quietly(tmp_path: Path, started: bytes) -> None:
    """Ctrl-C as soon as the run has started its first process, or the zygote."""
    run = subprocess.Popen(
        command(tmp_path, HANG), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    children: list[int] = []
    while not any(started in command_line(child) for child in children):
        time.sleep(0.002)
        children = children_of(run.pid)
    # The signal goes to all of its processes, as from a terminal.
    os.killpg(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=20)
    assert (run.returncode, out, err) == (130, "", "interrupted\n")
    assert all_end(children)


def parent(pid: int) -> int:
    """The parent of a running process."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("PPid:")[2].split()[0])


def test_killed_processes_of_ours_leave_nothing(tmp_path: Path, start: Start) -> None:
    """Kills the command, and each of Uniference's processes above the ranks together with it, as simultaneously as
    possible."""
    for number in range(3):
        (directory := tmp_path / str(number)).mkdir()
        run, pids = hanging(directory, start)
        zygote = parent(pids[0])
        # The last victim is the process that adopts orphans of ranks: if it dies, the command ends them.
        victims = ([run.pid], [run.pid, zygote], [parent(zygote)])[number]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        run.communicate(timeout=20)
        assert all_end(pids)


def test_a_zygote_that_is_killed_while_it_starts_is_named(tmp_path: Path) -> None:
    run = subprocess.Popen(command(tmp_path, HANG), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    zygote: list[int] = []
    while not zygote:
        zygote = [child for child in children_of(run.pid) if b"uniference.rank.zygote" in command_line(child)]
        time.sleep(0.002)
    os.kill(zygote[0], signal.SIGKILL)
    _, err = run.communicate(timeout=20)
    assert run.returncode == 1
    assert "forked from was killed by SIGKILL during startup\nhint: the host may have run out of memory" in err


def test_children_that_hold_a_ranks_outputs_do_not_delay_the_end(tmp_path: Path) -> None:
    source = "import subprocess\nsubprocess.Popen(['sleep', '600'])\nprint('last', end='')\n"
    done = subprocess.run(command(tmp_path, source), capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("last\n[1] last\n")
    assert "did not exit within" not in done.stderr


def test_a_killed_zygote_is_named(tmp_path: Path, start: Start) -> None:
    run, pids = hanging(tmp_path, start)
    os.kill(parent(pids[0]), signal.SIGKILL)
    _, err = run.communicate(timeout=20)
    assert run.returncode == 1
    assert "the process that ranks are forked from was killed by SIGKILL\nhint: the host may have run out" in err
    assert all_end(pids)


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal."""
    caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert caught is not None
    return bool(int(caught.group(1), 16) >> (number - 1) & 1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_commands_without_ranks_end_too(tmp_path: Path, start: Start, number: signal.Signals, code: int) -> None:
    workload = tmp_path / "workload.txt"
    workload.write_text("DATA\n1\nlayer -1 5 ALLREDUCE 1000 5 NONE 0 5 ALLREDUCE 1000 10\n")
    # Each command would take hours.
    for words in (
        ("replay", workload, "--ranks", 2, "--passes", 10**9, "--out", tmp_path / "out"),
        ("workload", "llama", "--layers", 10**6, "--tp", 8, "--batch", 1, "--out", tmp_path / "job"),
    ):
        run = start(*words)
        # Python itself handles SIGINT, so its handler proves nothing; SIGTERM is registered after it.
        while not handles(run.pid, signal.SIGTERM):
            assert run.poll() is None
            time.sleep(0.002)
        run.send_signal(number)
        assert run.wait(timeout=20) == code


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
    # With one job the first rank occupies the host until it has been silent for a second; the other rank then writes
    # the file.
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
    # The run continues, because its results are files; then it ends as other programs do that write to a closed pipe.
    err = run.stderr.read()
    assert run.wait(timeout=60) == -signal.SIGPIPE
    assert (tmp_path / "out" / "report.json").exists()
    assert "error" not in err
    assert "bug" not in err


def test_one_command_writes_to_a_folder_at_a_time(tmp_path: Path, start: Start) -> None:
    run, pids = hanging(tmp_path, start)
    (tmp_path / "other.py").write_text("print('not reached')\n")
    other = uniference("run", "--ranks", 1, "--out", tmp_path / "out", tmp_path / "other.py", cwd=tmp_path)
    assert (other.code, other.out) == (2, "")
    assert "another command is writing to" in other.err
    assert "hint: wait until it has ended, or choose another path with --out" in other.err
    run.kill()
    run.communicate(timeout=20)
    assert all_end(pids)
    # Results of a killed run and earlier results are replaced; other files are not.
    for name in (None, "notes.txt"):
        again = uniference("run", "--ranks", 1, "--out", tmp_path / "out", tmp_path / "other.py", cwd=tmp_path)
        assert again.code == (0 if name is None else 2), again.err
        (tmp_path / "out" / "notes.txt").write_text("mine")
    assert "it contains notes.txt\nhint: choose a new or empty folder" in again.err
    assert (tmp_path / "out" / "notes.txt").exists()


RECORDING = Path(__file__).parents[2] / "crates/programs/src/chakra/link/fixtures/ddp.profile.0.json.gz"
SHIPPED = Path(__file__).parents[2] / "crates/costs/data/operators.sqlite"
# Arguments of commands that print to standard output; `run` is a run folder.
SAYING: dict[str, tuple[str, ...]] = {
    "run": ("--ranks", "1", "--out", "again", "script.py"),
    "replay": ("run", "--out", "replayed"),
    "explain": ("run",),
    "whatif": ("run",),
    "diff": ("run", "run"),
    "report": ("run", "--out", "page.html"),
    "sweep": ("points.toml", "--dry-run"),
    "cluster check": ("cluster.toml",),
    "cluster list": (),
    "cluster show": ("dgx-h100:8",),
    "chakra stats": ("run/chakra/chakra.0.et",),
    "chakra json": ("run/chakra/chakra.0.et",),
    "chakra check": ("run/chakra/chakra.0.et",),
    "chakra dot": ("run/chakra/chakra.0.et",),
    "chakra diff": ("run/chakra/chakra.0.et", "run/chakra/chakra.1.et"),
    "chakra link": (str(RECORDING), "--out", "linked"),
    "calibrate": ("--fit", "measured.jsonl", "--out", "fitted.toml"),
    "compare": ("run", "run"),
    "workload llama": ("--layers", "1", "--batch", "1", "--out", "job"),
    "devices list": (),
    "devices show": ("h100-sxm",),
    "devices import": ("operators.sqlite", "--device-db", "more.sqlite"),
    "fit workload llama": ("--layers", "1", "--batch", "2", "--tp", "2"),
    "profile": ("--device-db", "operators.sqlite", "--out", "profiled", "computes.py"),
    "doctor": (),
    "completions": ("bash",),
    "man": (),
}
# Commands whose standard output is only `--help`, because the programs that they start use it.
SILENT = {"chakra convert", "chakra export", "launch", "search", "testbed", "view", "worker"}
POINTS = '[program]\nscript = "script.py"\n[options]\nranks = [1, 2]\n'
MEASURED = "".join(
    json.dumps({"operation": operation, "ranks": [0, 1], "bytes": size, "seconds": [40e-6 + size * 16e-9] * 3}) + "\n"
    for operation in ("pingpong", "round_trip")
    for size in (8, 4096, 65536, 1 << 20)
)


def subcommands(*before: str) -> list[str]:
    """All subcommands, as the command line's help lists them."""
    text = uniference(*before, "--help", cwd=Path.cwd()).out.partition("Commands:\n")[2].partition("\n\n")[0]
    names = [line.split()[0] for line in text.splitlines() if re.match(r"  \S", line)]
    below = [name for name in names for name in (subcommands(*before, name) or [" ".join((*before, name))])]
    return below


def test_output_that_is_lost_is_an_error(tmp_path: Path) -> None:
    assert sorted(subcommands()) == sorted([*SAYING, *SILENT])
    words_of_run = words(tmp_path, TALK.replace("300", "3"))
    words_of_run[words_of_run.index("--out") + 1] = "run"
    assert uniference(*words_of_run, cwd=tmp_path).code == 0
    assert uniference("chakra", "export", "run", cwd=tmp_path).code == 0
    checked = json.loads((tmp_path / "run" / "report.json").read_text())["manifest"]["cluster"]
    (tmp_path / "cluster.toml").write_text(checked)
    (tmp_path / "held.toml").write_text(checked.replace("[[device]]", '[[device]]\nmemory = "800 GB"'))
    (tmp_path / "measured.jsonl").write_text(MEASURED)
    shutil.copy(SHIPPED, tmp_path / "operators.sqlite")
    (tmp_path / "points.toml").write_text(POINTS)
    (tmp_path / "computes.py").write_text("import torch\ntorch.ones(100).sum()\n")
    calls = [*((*name.split(), *given) for name, given in SAYING.items()), ("--help",), ("--version",)]
    # The job of `fit` is a subcommand, behind the options.
    calls = [(call[0], "--cluster", "held.toml", *call[1:]) if call[0] == "fit" else call for call in calls]
    for call in calls:
        line = [sys.executable, "-m", "uniference", *call]
        cases = ((">/dev/full", "No space left on device"), (">&-", "standard output is closed"), ("| :", None))
        # A run takes seconds to start, and handles the pipe as a replay does.
        for where, error in cases[:1] if call[0] in ("run", "profile") else cases:
            # The shell's own standard output receives the exit code of the command before the pipe.
            shell = (
                f'exec 3>&1; {{ sleep 0.2; "$@"; echo $? >&3; }} {where}'
                if where == "| :"
                else f'"$@" {where}; echo $?'
            )
            done = subprocess.run(
                ["sh", "-c", shell, "sh", *line], capture_output=True, text=True, cwd=tmp_path, check=True
            )
            code = int(done.stdout.split()[-1])
            told = done.stderr
            if error is None:
                assert code == 128 + signal.SIGPIPE, (call, told)
                assert "error" not in told
            else:
                assert code == 2, (call, where, told)
                assert "cannot write standard output" in told, (call, where, told)
                assert error in told
    # Standard error may be closed.
    done = subprocess.run(
        ["sh", "-c", '"$@" 2>&- </dev/null', "sh", sys.executable, "-m", "uniference", "run", *SAYING["run"]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert "results: again" in done.stdout


def test_names_need_not_be_utf_8(tmp_path: Path) -> None:
    here = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    here.mkdir()
    odd = os.fsdecode(b"odd\xff")
    (here / f"{odd}.py").write_text(TALK.replace("300", "3").replace("'x' * 1000", "__import__('sys').argv"))
    run = ("run", "--ranks", 2, "--backend", "ideal", "--compute", "none")
    done = uniference(*run, "--out", odd, "--chakra", f"{odd}.traces", f"{odd}.py", f"{odd}.txt", cwd=here)
    assert done.code == 0, done.err
    assert "odd\\udcff.txt" in done.out
    (here / f"{odd}.toml").write_text(json.loads((here / odd / "report.json").read_text())["manifest"]["cluster"])
    for call in (
        ("replay", odd, "--out", f"{odd}.again"),
        ("replay", f"{odd}.traces", "--cluster", f"{odd}.toml", "--out", f"{odd}.other"),
        ("compare", odd, f"{odd}.again"),
        ("cluster", "check", f"{odd}.toml"),
        ("chakra", "export", odd),
        ("chakra", "check", f"{odd}.traces/chakra.0.et"),
        ("workload", "llama", "--layers", 1, "--batch", 1, "--out", f"{odd}.job"),
        ("launch", "--out", f"{odd}.real", f"{odd}.py", f"{odd}.txt"),
    ):
        done = uniference(*call, cwd=here)
        assert done.code == 0, (call, done.err)
    assert (here / f"{odd}.job.0.et").exists()
    # The default folder is named after the script; if a rank fails, the message names the files.
    (here / f"{odd}.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\n1 / dist.get_rank()\ndist.barrier()\n"
    )
    done = uniference(*run, f"{odd}.py", cwd=here)
    assert done.code == 1, done.err
    assert (here / "uniference-out" / f"{odd}-1" / "program.record").exists()
    assert "ZeroDivisionError" in done.err
    assert "not entered by rank 0, at" in done.err
    assert "uniference/" not in done.err


def test_files_beside_the_user_do_not_stand_in_for_modules(tmp_path: Path) -> None:
    # Modules that the zygote imports, and the process that is asked for versions.
    for name in ("queue", "platform", "csv"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not the module')\n")
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    run = command(scripts, TALK)
    run.insert(1, "-P")  # the installed command does not search the current folder either
    subprocess.run(run, cwd=tmp_path, capture_output=True, timeout=60, check=True)
