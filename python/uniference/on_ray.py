"""Owns trials of a sweep that are carried out on a Ray cluster: each is a task, whose files come back here.

The command starts this module as a process and talks to it in JSON, one object a line. The first line has the versions that all nodes must
have, the folder of the sweep, which Ray copies to each node, and the user's database of operators, if there is one. The answer has the
processors of the cluster, or says why there is none. Then `{"run": NUMBER, "words": [...], "program": [...], "folder": PATH}` begins a
trial, `{"cancel": NUMBER}` ends it, and `{"ended": NUMBER, "status": CODE or null, "said": TEXT}` says that it has come to its end, with
its files in the folder: the command's exit code and what it has said, or null and why it was not run.

Ray carries a task out again on another node when its node fails. Nothing else is left to Ray: which trials there are, what is done and what
is to be told of it is the command's business.
"""

import asyncio
import contextlib
import ctypes
import functools
import importlib.metadata
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

import ray

# A trial whose nodes fail so often may be the reason itself, as of one that takes all of their memory.
RETRIES = 5
# So many seconds after a failure of Ray's the cluster has to be there.
GRACE = 10
# So many seconds a command that is to end has for it.
PATIENCE = 5
# What is no part of a program, below the folder that is copied.
LEFT_OUT = ["uniference-out", ".git", ".venv", "__pycache__"]
# Stands for the folder of the results in what a command says, which here is another one than there.
RESULTS = "{results}"
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answers until the command closes its end."""
    # Ray and what it loads may print.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    wanted = json.loads(sys.stdin.readline())
    runtime = {"working_dir": wanted["folder"], "excludes": [*LEFT_OUT, *wanted["left_out"]]}
    try:
        ray.init("auto", runtime_env=runtime, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        print(json.dumps({"error": str(error)}), file=answers)
        return
    print(json.dumps({"processors": int(ray.cluster_resources().get("CPU", 0))}), file=answers)
    database = Path(wanted["database"]).read_bytes() if wanted["database"] else None
    asyncio.run(_serve(answers, {"versions": wanted["versions"], "database": ray.put(database)}))
    ray.shutdown()


async def _serve(answers: TextIO, common: dict[str, Any]) -> None:
    """Starts and ends tasks as they are asked for."""
    requests: asyncio.Queue[str] = asyncio.Queue()
    asyncio.get_running_loop().run_in_executor(None, _listen, asyncio.get_running_loop(), requests)
    started: dict[int, tuple[ray.ObjectRef[Any], asyncio.Task[None]]] = {}
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(carried_out)
    while line := await requests.get():
        request = json.loads(line)
        if "run" in request:
            number = request["run"]
            reference = task.remote(request["words"], request["program"], common["versions"], common["database"])
            awaited = asyncio.create_task(_ended(answers, number, Path(request["folder"]), reference))
            started[number] = (reference, awaited)
            awaited.add_done_callback(functools.partial(_forget, started, number))
        elif request["cancel"] in started:
            ray.cancel(started[request["cancel"]][0])
    left = list(started.values())
    for reference, _ in left:
        ray.cancel(reference)
    await asyncio.gather(*(awaited for _, awaited in left))


def _forget(started: dict[int, Any], number: int, _: "asyncio.Task[None]") -> None:
    del started[number]


def _listen(loop: asyncio.AbstractEventLoop, requests: "asyncio.Queue[str]") -> None:
    """Hands on what the command says; at its end an empty line."""
    for line in sys.stdin:
        loop.call_soon_threadsafe(requests.put_nowait, line)
    loop.call_soon_threadsafe(requests.put_nowait, "")


async def _ended(answers: TextIO, number: int, folder: Path, reference: "ray.ObjectRef[Any]") -> None:
    """Says what a task has come to."""
    try:
        status, said, files = await reference
    except ray.exceptions.RayError as raised:
        if not isinstance(raised, ray.exceptions.TaskCancelledError):
            await _expect_cluster()
        status, said, files = None, f"error: Ray has not carried the trial out: {raised}", {}
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as raised:
        status, said = None, f"error: cannot write {raised.filename}: {raised.strerror}"
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more
        print(
            json.dumps({"ended": number, "status": status, "said": said.replace(RESULTS, os.fspath(folder))}),
            file=answers,
        )


async def _expect_cluster() -> None:
    """Ends this process if the cluster is gone, which is no failure of a trial. Its nodes and its head end one after the other."""
    await asyncio.sleep(GRACE)
    try:
        nodes = await asyncio.wait_for(asyncio.to_thread(ray.nodes), GRACE)
    except (ray.exceptions.RayError, RuntimeError, TimeoutError):
        nodes = []
    if not any(node["Alive"] for node in nodes):
        print("error: no node of the Ray cluster is left", file=sys.stderr, flush=True)
        os._exit(1)


def carried_out(
    words: list[str], program: list[str], versions: dict[str, str], database: bytes | None
) -> tuple[int | None, str, dict[str, bytes]]:
    """Runs the command of a trial on the node where this is called: its exit code, what it has said, and the files of its results.

    It runs in the copy of the sweep's folder, with the database of operators of whoever has begun the sweep.
    """
    for package, version in versions.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found = "none"
        if found != version:
            what = f"error: node {ray.util.get_node_ip_address()} has {package} {found}, not {version}"
            return None, f'{what}\nhint: install on every node: pip install "{package}=={version}"', {}
    with tempfile.TemporaryDirectory(prefix="uniference-") as scratch:
        results, data = Path(scratch, "results"), Path(scratch, "data")
        file = data / "uniference" / "operators.sqlite"
        file.parent.mkdir(parents=True)
        if database is not None:
            file.write_bytes(database)
        command = [sys.executable, "-m", "uniference", *words, f"--out={results}", *program]
        status, said = _ran(command, os.environ | {"XDG_DATA_HOME": str(data)})
        files = {str(path.relative_to(results)): path.read_bytes() for path in results.rglob("*") if path.is_file()}
        return status, said.replace(str(results), RESULTS), files


def _ran(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """The exit code of a command, and what it has said on standard error."""
    prctl = ctypes.CDLL(None).prctl
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            # Ray ends the processes of tasks without a word, and with them must end what they have started.
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        try:
            status = child.wait()
        finally:
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    child.kill()
        errors.seek(0)
        return status, errors.read().decode(errors="replace")


if __name__ == "__main__":
    main()
