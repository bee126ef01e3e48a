"""Owns a process that has torch loaded and becomes the zygote of one `uniference run` after another.

Tests then need not import torch each time, which takes most of a short run's processor time. What a zygote does from there on is the
product's.

The command starts its zygote as `PYTHON -P -m uniference.rank.zygote FD`. Here PYTHON is a script, `attach`, that hands descriptors,
environment and working directory to the nursery, which forks a zygote from itself; `attach` ends as that zygote does.

Tests of how zygotes start and end, and those that change how the interpreter itself starts, use the real way
(`harness.uniference(cold=True)`).
"""

import array
import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

# Runs without site packages, so that it starts in 20 ms. It keeps no copy of the zygote's socket: the driver would not see its end.
_ATTACH = """\
#!{python} -IS
import array, json, os, signal, socket, sys
if "uniference.rank.zygote" not in sys.argv:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
fd = int(sys.argv[-1])
nursery = socket.socket(socket.AF_UNIX)
nursery.connect({path!r})
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
        path = Path(self._scratch.name) / "socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        import uniference._native

        extension = uniference._native.__file__
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno())],
            pass_fds=[listener.fileno()],
            env=os.environ | {"LD_PRELOAD": extension},
            stdin=subprocess.DEVNULL,
        )
        listener.close()
        atexit.register(self._process.kill)
        self.python = Path(self._scratch.name) / "attach"
        """What `uniference run` takes for the interpreter of its zygote."""
        self.python.write_text(_ATTACH.format(python=sys.executable, path=str(path)))
        self.python.chmod(0o755)


def _serve(listener: socket.socket) -> None:
    from uniference.rank import zygote

    version = zygote.prepare()
    while True:
        connection, _ = listener.accept()
        # One process stays with each zygote, to tell its end.
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
        os.environ.update(environ | zygote.SINGLE_THREADED)
        os.environ.pop("LD_PRELOAD")
        os.chdir(directory)
        zygote.Zygote(socket.socket(fileno=driver)).run(version)
        os._exit(0)
    for fd in fds:
        os.close(fd)
    # When the command kills `attach`, the zygote has to end as well.
    _, status = _wait(pid, connection)
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
    _serve(socket.socket(fileno=int(sys.argv[1])))
