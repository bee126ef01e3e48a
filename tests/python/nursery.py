"""Owns a process that has torch loaded and becomes the zygote of one `uniference run` after another.

Tests then need not import torch each time, which is most of a short run's CPU time. From the fork on, the zygote runs
the product's own code.

The command starts its zygote as `PYTHON -P -m uniference.rank.zygote FD`. In tests PYTHON is a script, `attach`, that
passes descriptors, environment and working directory to the nursery, which forks a zygote from itself; `attach` exits
with the zygote's exit code. The libraries for simulated GPUs must be loaded before torch, so their zygotes come from a
second nursery, which the first one starts when it is needed.

Tests of how zygotes start and end, and those that change how the interpreter itself starts, start a new interpreter
(`harness.uniference(cold=True)`).
"""

import array
import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

# Runs without site packages, so that it starts in 20 ms. It keeps no copy of the zygote's socket, because the driver
# would not see the socket's end.
_ATTACH = """\
#!{python} -IS
import array, json, os, signal, socket, sys
if "uniference.rank.zygote" not in sys.argv:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
fd = int(sys.argv[-1])
path = {path!r}
if "UNIFERENCE_PHANTOM_DEVICES" in os.environ:
    path += "-gpus"
    # The run's own libraries, which are there until its zygote ends.
    with open(path + "-preload", "w") as file:
        file.write(os.environ["LD_PRELOAD"])
nursery = socket.socket(socket.AF_UNIX)
nursery.connect(path)
asked = json.dumps([dict(os.environ), os.getcwd()]).encode()
head = len(asked).to_bytes(4, "little")
nursery.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd, 1, 2]))])
nursery.sendall(asked)
os.close(fd)
ended = nursery.recv(8)
status = int.from_bytes(ended, "little", signed=True) if ended else 1
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
    os.kill(os.getpid(), -status)
os._exit(status)
"""


class Nursery:
    """A running nursery. It ends with this process."""

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="nursery-")
        atexit.register(self._scratch.cleanup)
        path = f"{self._scratch.name}/socket"
        listeners = _listener(path), _listener(f"{path}-gpus")
        import uniference._native

        self._process = _start({"LD_PRELOAD": uniference._native.__file__}, *listeners)
        for listener in listeners:
            listener.close()
        atexit.register(self._process.kill)
        self.python = Path(self._scratch.name) / "attach"
        """The interpreter that `uniference run` uses for its zygote."""
        self.python.write_text(_ATTACH.format(python=sys.executable, path=path))
        self.python.chmod(0o755)


def _listener(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener


def _start(environment: dict[str, str], *listeners: socket.socket) -> "subprocess.Popen[bytes]":
    fds = [listener.fileno() for listener in listeners]
    command = [sys.executable, "-P", __file__, *map(str, fds)]
    return subprocess.Popen(command, pass_fds=fds, env=os.environ | environment, stdin=subprocess.DEVNULL)


def _serve(listener: socket.socket, of_gpus: socket.socket | None = None) -> None:
    import select

    from uniference.rank import zygote

    version = zygote.prepare()
    while True:
        ready, _, _ = select.select([listener, of_gpus] if of_gpus else [listener], [], [])
        if of_gpus in ready:
            assert of_gpus is not None
            preload = Path(of_gpus.getsockname() + "-preload").read_text()
            _start({"LD_PRELOAD": preload, "UNIFERENCE_PHANTOM_DEVICES": "0"}, of_gpus)
            of_gpus.close()
            of_gpus = None
            continue
        connection, _ = listener.accept()
        # One process waits for each zygote, to report its end.
        if os.fork() == 0:
            listener.close()
            _raise_zygote(connection, version)
        connection.close()
        while _reaps_one():
            pass


def _reaps_one() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _raise_zygote(connection: socket.socket, version: str) -> None:
    from uniference import _native
    from uniference.rank import zygote

    head, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(3 * 4))
    fds = array.array("i")
    fds.frombytes(ancillary[0][2])
    with connection.makefile("rb") as stream:
        environ, directory = json.loads(stream.read(int.from_bytes(head, "little")))
    pid = os.fork()
    if pid == 0:
        connection.close()
        _native.die_with_parent()
        driver, stdout, stderr = fds
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.close(stdout)
        os.close(stderr)
        os.environ.clear()
        os.environ.update(environ)
        zygote.set_up()
        os.chdir(directory)
        zygote.Zygote(socket.socket(fileno=driver)).run(version)
        os._exit(0)
    for fd in fds:
        os.close(fd)
    # If the command kills `attach`, the zygote must end as well.
    _, status = _wait(pid, connection)
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "little", signed=True))
    os._exit(0)


def _wait(pid: int, connection: socket.socket) -> tuple[int, int]:
    import select
    import signal

    pidfd = os.pidfd_open(pid)
    ready, _, _ = select.select([pidfd, connection], [], [])
    if pidfd not in ready:
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)


if __name__ == "__main__":
    from uniference import _native

    _native.die_with_parent()
    _serve(*(socket.socket(fileno=int(word)) for word in sys.argv[1:]))
