"""Runs programs for the tests: under `uniference run`, and under real Gloo in forked processes."""

import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from nursery import Nursery

TIMEOUT_S = 300

# A cluster of one simulated GPU.
ONE_GPU = """
backend = "nccl"
[[device]]
name = "gpu"
model = "h100-sxm"
[network]
"""


def gpus(count: int, per_server: int | None = None) -> str:
    """A cluster of H100 GPUs in servers with NVLink, with `per_server` GPUs each; by default all are in one server."""
    return f"""
backend = "nccl"
[[device]]
name = "gpu"
model = "h100-sxm"
count = {count}
[network]
preset = "rail"
per_server = {per_server or count}
fabric = "nvlink4"
link = "infiniband_ndr"
"""


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


# Runs the command with another interpreter for ranks than its own: the first word of its arguments.
_WARM = "import sys; sys.executable = sys.argv.pop(1); from uniference.__main__ import main; sys.exit(main())"


def _interpreters_own(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


# With PYTHONUNBUFFERED a print is two writes, and the lines that tests expect would depend on the user's environment.
os.environ.pop("PYTHONUNBUFFERED", None)

# Libraries to preload for the sanitizers that check the C++ library (`make sanitize`).
_SANITIZER = os.environ.get("SANITIZER")

# Variables that the nursery's interpreter was started with.
_AT_START = _interpreters_own(os.environ)


@cache
def _nursery() -> Nursery:
    return Nursery()


def uniference(
    *arguments: object, cwd: Path, env: dict[str, str] | None = None, cold: bool = False, input: str | None = None
) -> Done:
    """Runs the command. Ranks come from the nursery, unless the interpreter must start anew (`cold`, or because of its
    environment)."""
    words = list(map(str, arguments))
    environment = os.environ | (env or {})
    if _SANITIZER:
        cold, environment = True, environment | {"LD_PRELOAD": _SANITIZER}
    if words[0] in ("run", "fit") and not cold and _interpreters_own(environment) == _AT_START:
        command = [sys.executable, "-c", _WARM, str(_nursery().python), *words]
    else:
        command = [sys.executable, "-m", "uniference", *words]
    done = subprocess.run(
        command, cwd=cwd, env=environment, input=input, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Returns a function that starts the command. Processes that still run after `TIMEOUT_S`, or at the test's end, are
    killed, which closes their streams."""
    started: list[tuple[subprocess.Popen[str], threading.Timer]] = []

    def start(*arguments: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "uniference", *map(str, arguments)]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        timer = threading.Timer(TIMEOUT_S, run.kill)
        timer.start()
        started.append((run, timer))
        return run

    yield start
    for run, timer in started:
        timer.cancel()
        run.kill()
        run.communicate()


def write_script(directory: Path, source: str, name: str = "script.py") -> Path:
    """Writes a script to `directory`."""
    path = directory / name
    path.write_text(source)
    return path


def run_script(directory: Path, source: str, *options: object, ranks: int = 2) -> Done:
    """Runs a script's source on `ranks` ranks of an ideal cluster, without compute."""
    script = write_script(directory, source)
    fixed = ("run", "--ranks", ranks, "--backend", "ideal", "--compute", "none", "--out", directory / "out")
    return uniference(*fixed, *options, script, cwd=directory)


def run_on_gloo(size: int, script: Path, *arguments: object) -> None:
    """Runs a script under real Gloo, in processes forked from this one: torch is imported only once."""
    port = _free_port()
    ranks = [_fork_rank(rank, size, port, script, arguments) for rank in range(size)]
    failed = [rank for rank, pid in enumerate(ranks) if os.waitpid(pid, 0)[1] != 0]
    if failed:
        pytest.fail(f"under real Gloo, ranks {failed} of {size} have failed")


def _fork_rank(rank: int, size: int, port: int, script: Path, arguments: Sequence[object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    signal.alarm(TIMEOUT_S)
    try:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
        sys.argv = [str(script), *map(str, arguments)]
        sys.path.insert(0, str(script.parent))
        # keeps the globals, so that no destructor runs after this
        kept = runpy.run_path(str(script), run_name="__main__")
        assert kept is not None
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
