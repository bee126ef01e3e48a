"""Owns the process that ranks are forked from: it imports torch once, then makes a rank of a copy of itself on command.

What a rank then does is `process`'s business; when a rank is started or ended, and what its output means, is the driver's.

Started as `python -m uniference.rank.zygote FD [MODULE...]`, where FD is an inherited Unix stream socket to the driver; it imports the
modules before it forks any rank. Both ways: one JSON object a line. It ends, and every rank with it, when that socket closes or its
parent dies.

Lines from the driver have three descriptors attached (SCM_RIGHTS): [control, stdout, stderr], and for the rank `debug_rank`, or with
`input`, a fourth one, stdin. `control` is the rank's
socket to the engine, from which `_native.Channel.adopt` takes everything else:

    {"op": "fork", "rank": 0, "world_size": 2, "argv": ["train.py", "--lr", "0.1"], "module": false,
     "env": {"NAME": "value"}, "cwd": "/home/user",
     "local_rank": 0, "local_world_size": 1, "group_rank": 0, "group_world_size": 2, "device": "orin.0", "memory": 8589934592, "cores": 4,
     "gpus": [], "debug_rank": null, "input": false}

`argv[0]` is the script, or with `module` the module's name; each byte of a word is the character of that number (Latin-1), as
paths need not be UTF-8. `env` is added to the zygote's own environment; what torchrun sets
is derived from the numbers and need not be in it. `gpus` are those of the host, with the fields of `Gpu` in
`crates/host/src/live/phantom.rs`. `cwd` and what stands on the last two lines are optional: without them each rank
is alone on a host of its own.

To the driver:

    {"event": "ready", "torch": "2.15.0"}                           once, when ranks can be forked
    {"event": "error", "message": "...", "hint": "..."}             in place of ready, or of forked: the run cannot go on
    {"event": "forked", "rank": 0, "pid": 4711}
    {"event": "exited", "rank": 0, "pid": 4711, "status": 0}        status: exit code, or minus the signal's number

A rank's exit code is its program's: 0, what it passed to `sys.exit`, or 1 if it raised (its traceback is then on its stderr).
"""

import array
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_FDS_A_RANK = 3
_LINE_LIMIT = 1 << 20

# Threads do not survive a fork, so no library may start a pool of them before it. Those of ranks sleep while they have nothing to do:
# what they spend on waiting would count as compute.
_SINGLE_THREADED = {
    name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
} | {"OMP_WAIT_POLICY": "PASSIVE"}


class Zygote:
    """The loop that forks ranks and reports their ends."""

    def __init__(self, driver: socket.socket) -> None:
        self._driver = driver
        self._ranks: dict[int, int] = {}  # pid -> rank
        self._text = b""
        self._fds: list[int] = []
        self._wakeup, self._wakeup_writer = socket.socketpair()

    def run(self, version: str) -> None:
        """Tells the driver that torch `version` is loaded, and serves it until it hangs up."""
        self._wakeup_writer.setblocking(False)
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
        # The driver may have been interrupted meanwhile, or die rather than hang up.
        with contextlib.suppress(ConnectionError):
            self.report(event="ready", torch=version)
            while self._serve():
                pass
        for pid in self._ranks:
            os.kill(pid, signal.SIGKILL)

    def report(self, **event: Any) -> None:
        """Tells the driver."""
        self._driver.sendall(json.dumps(event).encode() + b"\n")

    def _serve(self) -> bool:
        """Waits for the next thing to happen and handles it. False: the driver has hung up."""
        import select

        ready, _, _ = select.select([self._driver, self._wakeup], [], [])
        if self._wakeup in ready:
            self._wakeup.recv(4096)
            self._reap()
        return self._driver not in ready or self._receive()

    def _reap(self) -> None:
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            rank = self._ranks.pop(pid, None)
            # A module that was loaded for all ranks may have started processes of its own.
            if rank is not None:
                self.report(event="exited", rank=rank, pid=pid, status=os.waitstatus_to_exitcode(status))

    def _receive(self) -> bool:
        data, ancillary, _, _ = self._driver.recvmsg(_LINE_LIMIT, socket.CMSG_SPACE(4 * (_FDS_A_RANK + 1) * 16))
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self._fds.extend(fds)
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            self._command(json.loads(line))
        return bool(data)

    def _command(self, command: Mapping[str, Any]) -> None:
        assert command["op"] == "fork", f"the driver asks for {command['op']}"
        count = _FDS_A_RANK + (command.get("debug_rank") == command["rank"]) + command.get("input", False)
        fds, self._fds = self._fds[:count], self._fds[count:]
        try:
            pid = os.fork()
        except OSError as error:
            hint = "use fewer ranks, or raise the limits of processes (ulimit -u) and memory (ulimit -v)"
            self.report(event="error", message=f"cannot start rank {command['rank']}: {error.strerror}", hint=hint)
            return
        if pid == 0:
            self._become_rank(command, fds)
        for fd in fds:
            os.close(fd)
        self._ranks[pid] = command["rank"]
        self.report(event="forked", rank=command["rank"], pid=pid)

    def _become_rank(self, command: Mapping[str, Any], fds: list[int]) -> NoReturn:
        """In the child: keeps the three descriptors and nothing else of the zygote's, and runs the program."""
        from uniference import _native
        from uniference.rank import process

        _native.die_with_parent()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Ctrl-C is for the driver, which says where each rank is and ends the run, or for the debugger of one rank.
        debugs = command.get("debug_rank") is not None and command["debug_rank"] != command["rank"]
        signal.signal(signal.SIGINT, signal.SIG_IGN if debugs else signal.default_int_handler)
        if command.get("debug_rank") is None:
            # In a group of its own: the terminal's Ctrl-C is not sent there, nor to the others what the program sends to its group.
            os.setpgid(0, 0)
        control, stdout, stderr, *terminal = fds
        stdin = terminal[0] if terminal else os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
            os.dup2(fd, target)
        os.closerange(3, control)
        os.closerange(control + 1, os.sysconf("SC_OPEN_MAX"))
        os.set_inheritable(control, False)
        process.run(process.Task.from_command(command), control)


def _load() -> str:
    """Imports what ranks need; returns torch's version. Raises MovedError where this torch is not as they need it."""
    import torch

    from uniference.patches import names, registry, versions

    version = str(torch.__version__).partition("+")[0]
    if not versions.is_supported(version):
        raise RuntimeError(f"torch {version} is installed; only {versions.SUPPORTED} is supported", versions.ADVICE)
    torch.set_num_threads(1)
    versions.preload()
    # Before anything of ours looks for these names: the registry can say what they are needed for.
    registry.check_all(name for name in names.ALL if name.part is not registry.Part.REAL)
    # Imported by every rank: load it here, once.
    from uniference.rank import process  # noqa: F401

    return version


def set_up() -> None:
    """Makes the environment that of ranks; some of it is read when torch is imported."""
    simulates_gpus = "UNIFERENCE_PHANTOM_DEVICES" in os.environ
    # The extension was loaded before the C library here, first in the list, and behind it the library of simulated GPUs if there is
    # one; programs that ranks start load another library, by the environment that they get.
    if others := os.environ.pop("LD_PRELOAD", "").split(":")[2 if simulates_gpus else 1 :]:
        os.environ["LD_PRELOAD"] = ":".join(others)
    os.environ.update(_SINGLE_THREADED)
    if simulates_gpus:
        # torch.compile's own processes are not on the rank's clock, which would wait for them.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def _preload(modules: Sequence[str]) -> None:
    """Imports modules for all ranks. Raises RuntimeError where ranks cannot be forked from what one has made of this process."""
    import torch

    from uniference.patches import names, registry

    before = set(sys.modules)
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            hint = "name installed modules, and none that reads the program's arguments or a rank's environment when it is imported"
            raise RuntimeError(f"--preload {name}: {type(error).__name__}: {error}", hint) from error
        hint = f"leave {name} out of --preload"
        if _threads() > 1:
            raise RuntimeError(f"--preload {name}: the module starts threads, which no forked rank has", hint)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise RuntimeError(f"--preload {name}: the module initializes CUDA, which no forked rank can", hint)
        if _spoils_forks():
            raise RuntimeError(
                f"--preload {name}: the module asks CUDA for its devices, and no forked rank can use it then", hint
            )
    imported = [sys.modules[name] for name in sorted(set(sys.modules) - before)]
    for known in names.ALL:
        if modules and isinstance(known, registry.Replaced):
            known.find_copies(imported)


def _spoils_forks() -> bool:
    """Whether CUDA was asked something, after which torch refuses to use it in a child: a child tells."""
    import torch

    child = os.fork()
    if child == 0:
        os._exit(torch.cuda._is_in_bad_fork())
    return os.waitpid(child, 0)[1] != 0


def _threads() -> int:
    """How many threads this process has that a fork loses: jemalloc, which pyarrow brings with it, starts its own anew in the child."""
    names = (Path(task, "comm").read_text().strip() for task in Path("/proc/self/task").iterdir())
    return sum(name != "jemalloc_bg_thd" for name in names)


def prepare(modules: Sequence[str] = ()) -> str:
    """Makes this process one that ranks can be forked from, with `modules` imported; returns torch's version.

    Raises ImportError, or RuntimeError with a hint as its second argument, if torch or a part of it is missing or unsupported.
    """
    set_up()
    version = _load()
    _preload(modules)
    gc.collect()
    gc.freeze()
    return version


def main(argv: list[str]) -> int:
    """The process: `argv` is [FD, MODULE...]."""
    from uniference import _native

    _native.die_with_parent()
    zygote = Zygote(socket.socket(fileno=int(argv[0])))
    os.set_inheritable(int(argv[0]), False)
    try:
        version = prepare(argv[1:])
    except (ImportError, RuntimeError) as error:
        message, hint = (*error.args, "install the package with its dependencies: pip install uniference")[:2]
        zygote.report(event="error", message=str(message), hint=str(hint))
        return 1
    except MemoryError:
        hint = "free memory, or raise the memory limit (ulimit -v)"
        zygote.report(event="error", message="not enough memory to load torch", hint=hint)
        return 1
    zygote.run(version)
    # Nothing is left to be done, and tearing down torch's extensions takes time and prints warnings.
    os._exit(0)


if __name__ == "__main__":
    # Without the interpreter's farewell: extensions that torch loaded (nanobind) complain of what `gc.freeze` keeps.
    os._exit(main(sys.argv[1:]))
