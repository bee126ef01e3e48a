"""Owns trials of a sweep that are carried out on a Ray cluster: each is a task, whose files are copied back to this
machine.

The command starts this module as a process and talks to it in JSON, one object per line. The first line has the package
versions that all nodes must have, the sweep's folder, which Ray copies to each node, and the user's database of
operators, if there is one. The answer has the number of CPUs of the cluster, or the reason why there is no cluster.
Then `{"run": NUMBER, "words": [...], "program": [...], "folder": PATH}` starts a trial, `{"cancel": NUMBER}` cancels
it, and `{"ended": NUMBER, "status": CODE or null, "said": TEXT}` reports its end, with its files in the folder: the
command's exit code and its standard error, or null and why the trial was not run.

If a node fails, Ray runs the task again on another node. Ray decides nothing else: the command chooses the trials,
tracks which are done, and reports them.
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

# Number of retries after failures of nodes. The number is limited because a trial may itself cause the loss of its
# node, for example by using all memory.
RETRIES = 5
# Seconds after a Ray failure in which the cluster must be reachable again.
GRACE = 10
# Seconds that a terminated command has to end before it is killed.
PATIENCE = 5
# Folders below the copied folder that are no part of a program.
LEFT_OUT = ["uniference-out", ".git", ".venv", "__pycache__"]
# Placeholder for the run folder in a command's messages, because the folder's path differs between the node and
# this machine.
RESULTS = "{results}"
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answers requests until the command closes its end of the pipe."""
    # Standard output becomes standard error, because Ray and the libraries that it loads may print.
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
    """Starts and cancels tasks on request."""
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
    """Puts the command's lines into the queue; at the end of the input an empty line."""
    for line in sys.stdin:
        loop.call_soon_threadsafe(requests.put_nowait, line)
    loop.call_soon_threadsafe(requests.put_nowait, "")


async def _ended(answers: TextIO, number: int, folder: Path, reference: "ray.ObjectRef[Any]") -> None:
    """Reports the end of a task."""
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
    with contextlib.suppress(BrokenPipeError):  # the command has closed the pipe
        print(
            json.dumps({"ended": number, "status": status, "said": said.replace(RESULTS, os.fspath(folder))}),
            file=answers,
        )


async def _expect_cluster() -> None:
    """Ends this process if the cluster no longer exists, which is no failure of a trial. The nodes and the head of a
    cluster end one after the other, so the check waits for a while."""
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
    """Runs the command of a trial on the node of this task: its exit code, its standard error, and the files of its
    results.

    The command runs in the node's copy of the sweep's folder, with the database of operators of the user who started
    the sweep.
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
    """The exit code and the standard error of a command."""
    prctl = ctypes.CDLL(None).prctl
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            # Ray kills the processes of tasks without notice; their children must end with them.
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
