"""Owns the process that ranks are forked from: it imports torch once, then forks a rank on command.

`process` runs the rank after the fork; the driver decides when a rank is started or ended, and interprets its output.

Started as `python -m uniference.rank.zygote FD [MODULE...]`, where FD is an inherited Unix stream socket to the driver;
the process imports the modules before it forks any rank. In both directions the socket carries one JSON object per
line. The process ends, and every rank with it, when the socket closes or its parent dies.

Lines from the driver have three descriptors attached (SCM_RIGHTS): [control, stdout, stderr], and for the rank
`debug_rank`, or with `input`, a fourth one, stdin. `control` is the rank's socket to the engine, from which
`_native.Channel.adopt` receives everything else:

    {"op": "fork", "rank": 0, "world_size": 2, "argv": ["train.py", "--lr", "0.1"], "module": false,
     "env": {"NAME": "value"}, "cwd": "/home/user",
     "local_rank": 0, "local_world_size": 1, "group_rank": 0, "group_world_size": 2, "device": "orin.0", "memory": 8589934592, "cores": 4,
     "gpus": [], "debug_rank": null, "input": false}

`argv[0]` is the script, or with `module` the module's name; each byte of a word is the character of that number
(Latin-1), because paths need not be UTF-8. `env` is added to the zygote's own environment; torchrun's variables are
derived from the numbers and need not be in `env`. `gpus` are the host's GPUs, with the fields of `Gpu` in
`crates/host/src/live/phantom.rs`. `cwd` and the fields of the last two lines are optional: without them each rank is
alone on a host of its own.

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

# Threads do not survive a fork, so no library may start a thread pool before it. Idle threads of ranks sleep, because
# busy waiting would count as compute.
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
        # The write may fail, because the driver may have been interrupted or may have died.
        with contextlib.suppress(ConnectionError):
            self.report(event="ready", torch=version)
            while self._serve():
                pass
        for pid in self._ranks:
            os.kill(pid, signal.SIGKILL)

    def report(self, **event: Any) -> None:
        """Sends an event to the driver."""
        self._driver.sendall(json.dumps(event).encode() + b"\n")

    def _serve(self) -> bool:
        """Waits for the next command or child's end and handles it. False: the driver has hung up."""
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
        """Closes the zygote's descriptors except the rank's own, and runs the program in the forked child."""
        from uniference import _native
        from uniference.rank import process

        _native.die_with_parent()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Ctrl-C is for the driver, which prints where each rank is and ends the run, or for the debugger of one rank.
        debugs = command.get("debug_rank") is not None and command["debug_rank"] != command["rank"]
        signal.signal(signal.SIGINT, signal.SIG_IGN if debugs else signal.default_int_handler)
        if command.get("debug_rank") is None:
            # The rank gets its own process group: it does not receive the terminal's Ctrl-C, and other ranks do not
            # receive signals to the rank's group.
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
    """Imports the modules that ranks need; returns torch's version. Raises MovedError if this torch lacks a name that
    they need."""
    import torch

    from uniference.patches import names, registry, versions

    version = str(torch.__version__).partition("+")[0]
    if not versions.is_supported(version):
        raise RuntimeError(f"torch {version} is installed; only {versions.SUPPORTED} is supported", versions.ADVICE)
    torch.set_num_threads(1)
    versions.preload()
    # The names are checked before their first use, because the registry's error says why each name is needed.
    registry.check_all(name for name in names.ALL if name.part is not registry.Part.REAL)
    # Every rank imports this module: it is loaded once, before the forks.
    from uniference.rank import process  # noqa: F401

    return version


def set_up() -> None:
    """Sets environment variables of ranks before torch is imported, because torch reads some of them at import."""
    simulates_gpus = "UNIFERENCE_PHANTOM_DEVICES" in os.environ
    # In the zygote, LD_PRELOAD starts with the extension and, if there is one, the library of simulated GPUs. Programs
    # that ranks start load another library, which their environment names.
    if others := os.environ.pop("LD_PRELOAD", "").split(":")[2 if simulates_gpus else 1 :]:
        os.environ["LD_PRELOAD"] = ":".join(others)
    os.environ.update(_SINGLE_THREADED)
    if simulates_gpus:
        # Worker processes of torch.compile are switched off: they are not on the rank's clock, which would wait for
        # them.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def _preload(modules: Sequence[str]) -> None:
    """Imports modules for all ranks. Raises RuntimeError if a module leaves this process in a state that ranks cannot
    be forked from."""
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
    """Whether CUDA was queried, after which torch refuses to use it in a child; a forked child finds out."""
    import torch

    child = os.fork()
    if child == 0:
        os._exit(torch.cuda._is_in_bad_fork())
    return os.waitpid(child, 0)[1] != 0


def _threads() -> int:
    """Number of threads that a fork would lose. jemalloc's threads, which pyarrow brings, do not count, because they
    are restarted in the child."""
    names = (Path(task, "comm").read_text().strip() for task in Path("/proc/self/task").iterdir())
    return sum(name != "jemalloc_bg_thd" for name in names)


def prepare(modules: Sequence[str] = ()) -> str:
    """Prepares this process for forking ranks, with `modules` imported; returns torch's version.

    Raises ImportError, or RuntimeError with a hint as its second argument, if torch or a part of it is missing or unsupported.
    """
    set_up()
    version = _load()
    _preload(modules)
    gc.collect()
    gc.freeze()
    return version


def main(argv: list[str]) -> int:
    """Runs the process: `argv` is [FD, MODULE...]."""
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
    # No work is left, and finalizing torch's extensions needs time and prints warnings.
    os._exit(0)


if __name__ == "__main__":
    # The interpreter's shutdown is skipped, because extensions that torch loaded (nanobind) complain about objects that
    # `gc.freeze` keeps.
    os._exit(main(sys.argv[1:]))
