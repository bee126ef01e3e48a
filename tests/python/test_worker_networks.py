"""A driver and a worker on two machines, simulated by two network namespaces with a cable between them."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from remote import TALK, THREAD, Commands, commands, descendants, digest, ended, said, until

__all__ = ["commands"]

DRIVER, WORKER = "10.67.0.1", "10.67.0.2"

# Silent connections, more than the limit of handshakes in progress; prints how many are closed after a second, and that
# all are closed.
SILENT = """import select, socket, sys, time
sockets = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(100)]
time.sleep(1)
print(len(select.select(sockets, [], [], 0)[0]), flush=True)
for one in sockets:
    one.settimeout(60)
    try:
        assert one.recv(1) == b""
    except ConnectionResetError:
        pass
print("all", flush=True)
"""


@dataclass(frozen=True)
class Machine:
    """A network namespace, kept alive by an idle process in it."""

    holder: "subprocess.Popen[bytes]"

    @property
    def inside(self) -> list[str]:
        """Words that run a command in the namespace."""
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net"]

    def ip(self, words: str) -> None:
        subprocess.run([*self.inside, "ip", *shlex.split(words)], check=True, capture_output=True)


def missing() -> str | None:
    """The requirement for namespaces that this machine lacks; None if it lacks none."""
    if os.geteuid() != 0:
        return "only root can connect network namespaces"
    lacks = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]
    if lacks:
        return f"{lacks[0]} is not installed"
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return done.stderr.strip() or None


@pytest.fixture
def machines(commands: Commands) -> Iterator[tuple[Machine, Machine]]:
    """The driver's machine and the worker's, with one cable between them."""
    if reason := missing():
        pytest.skip(f"no network namespaces: {reason}")
    here, there = (Machine(subprocess.Popen(["unshare", "--net", "sleep", "infinity"])) for _ in range(2))
    try:
        own = Path("/proc/self/ns/net").readlink()
        for machine in (here, there):
            while Path(f"/proc/{machine.holder.pid}/ns/net").readlink() == own:
                time.sleep(0.01)
        here.ip(f"link add cable type veth peer name cable netns {there.holder.pid}")
        for machine, address in ((here, DRIVER), (there, WORKER)):
            machine.ip(f"address add {address}/24 dev cable")
            machine.ip("link set cable up")
            machine.ip("link set lo up")
        commands.address, commands.here, commands.there = DRIVER, here.inside, there.inside
        yield here, there
    finally:
        for machine in (here, there):
            machine.holder.kill()
            machine.holder.wait()


@pytest.mark.parametrize("compute", ["none", "model"])
@pytest.mark.usefixtures("machines")
def test_a_run_over_a_cable_is_the_local_run(commands: Commands, compute: str) -> None:
    if compute == "none":
        (commands.folder / "script.py").write_text(TALK + THREAD)
    else:
        commands.with_models()
    worker = commands.worker("--once")
    remote = commands.run("--compute", compute)
    assert ended(remote)[0] == 0, said(remote)
    assert f"worker worker-a has joined from {WORKER}" in said(remote)
    assert ended(worker)[0] == 0, said(worker)
    local = commands.run("--compute", compute, cluster="local.toml")
    assert ended(local)[0] == 0, said(local)
    assert digest(remote) == digest(local)


def test_a_cut_cable_ends_the_run_and_leaves_nothing(commands: Commands, machines: tuple[Machine, Machine]) -> None:
    run = commands.run("--compute", "none", script="forever.py")
    worker = commands.worker()
    until(lambda: (run.out / "rank-0.log").exists(), run)  # type: ignore[attr-defined]
    ranks = descendants(worker.pid) | descendants(run.pid)
    assert len(ranks) >= 5, "a supervisor, a zygote and ranks on each side"
    machines[1].ip("link set cable down")
    code, err = ended(run)
    assert code == 1
    assert "error: worker worker-a is lost" in err
    assert "hint: see the worker's output, and whether its machine and the network are up" in err
    until(lambda: "the run is lost" in said(worker), worker)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks), run)
    assert not descendants(worker.pid)
    assert worker.poll() is None
    # After the repair, the next run uses the worker.
    machines[1].ip("link set cable up")
    again = commands.run("--compute", "none")
    assert ended(again)[0] == 0, said(again)


def test_connections_that_say_nothing_hold_no_slot(commands: Commands, machines: tuple[Machine, Machine]) -> None:
    run = commands.run("--compute", "none")
    until(lambda: "waiting for worker-a" in said(run), run)
    command = [*machines[1].inside, sys.executable, "-c", SILENT, DRIVER, str(commands.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as silent:
        assert silent.stdout is not None
        # 64 handshakes may be in progress: the other 36 connections, the oldest, are closed.
        assert int(silent.stdout.readline()) == 36
        # Each remaining connection is closed after its timeout of 10 s.
        assert silent.stdout.readline() == "all\n"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as silent:
        assert silent.stdout is not None
        silent.stdout.readline()
        # Between these connections, the worker can join.
        worker = commands.worker("--once")
        assert ended(run)[0] == 0, said(run)
        assert ended(worker)[0] == 0, said(worker)
        silent.kill()
