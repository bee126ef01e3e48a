"""Real processes over an emulated network: `uniference testbed`."""

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import Done, uniference, write_script

MISSING = next(
    (
        reason
        for reason, missing in {
            "the testbed needs root": os.geteuid() != 0,
            "the testbed needs /dev/net/tun": not os.path.exists("/dev/net/tun"),
            "the testbed needs iproute2": shutil.which("ip") is None or shutil.which("tc") is None,
        }.items()
        if missing
    ),
    None,
)
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

NETWORK = ("--ranks", 2, "--bandwidth", "100 Mbps", "--latency", "2 ms")


def on_testbed(directory: Path, source: str) -> Done:
    script = write_script(directory, source)
    return uniference("testbed", *NETWORK, "--", sys.executable, script, cwd=directory)


def test_nothing_is_faster_than_the_emulated_links(tmp_path: Path) -> None:
    done = on_testbed(
        tmp_path,
        """
import os, socket, time

address = (os.environ["MASTER_ADDR"], 29501)
if os.environ["RANK"] == "0":
    peer, _ = socket.create_server(address).accept()
    assert peer.recv(1) == b"?"
    peer.sendall(b"!")
    received = 0
    while chunk := peer.recv(1 << 16):
        received += len(chunk)
    assert received == 1_000_000
    peer.close()
else:
    for _ in range(500):
        try:
            peer = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    start = time.perf_counter()
    peer.sendall(b"?")
    assert peer.recv(1) == b"!"
    print("round_trip", time.perf_counter() - start)
    start = time.perf_counter()
    peer.sendall(bytes(1_000_000))
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)
    print("transfer", time.perf_counter() - start)
""",
    )
    assert done.code == 0, done.err
    times = {name: float(value) for name, value in map(str.split, done.out.splitlines())}
    # Both ways: 2 * 2 ms.
    assert times["round_trip"] >= 2 * 2e-3
    # 1 MB in packets of 1,448 bytes of payload and 1,514 on the wire, at 12.5 MB/s, and one round trip.
    assert times["transfer"] >= 1_000_000 * 1514 / 1448 / 12.5e6 + 2 * 2e-3


def test_real_gloo_runs_on_it(tmp_path: Path) -> None:
    done = on_testbed(
        tmp_path,
        """
import torch, torch.distributed as dist

dist.init_process_group("gloo")
x = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(x)
if dist.get_rank() == 0:
    print(x.sum().item())
dist.destroy_process_group()
""",
    )
    # 1,000 * (1 + 2)
    assert (done.code, done.out) == (0, "3000.0\n"), done.err


def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    source = "import os, sys, time\nsys.exit(5) if os.environ['RANK'] == '1' else time.sleep(600)\n"
    done = on_testbed(tmp_path, source)
    assert done.code == 1
    assert "rank 1: exit status: 5" in done.err


@pytest.mark.parametrize("end", ["killed", "finished"])
def test_it_leaves_nothing_behind(tmp_path: Path, end: str) -> None:
    """Detached processes would keep their host's network namespace."""
    source = (
        "import os, subprocess, sys, time\n"
        "left = subprocess.run(['sh', '-c', 'setsid sleep 600 >/dev/null 2>&1 & echo $!'], stdout=subprocess.PIPE).stdout\n"
        "os.write(1, b'%d %d\\n' % (os.getpid(), int(left)))\n"
        "sys.stdin.readline()\n"
    )
    script = write_script(tmp_path, source)
    command = [sys.executable, "-m", "uniference", "testbed", *map(str, NETWORK), "--", sys.executable, str(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as testbed:
        assert testbed.stdin is not None
        assert testbed.stdout is not None
        pids = [int(pid) for _ in range(2) for pid in testbed.stdout.readline().split()]
        deaths = [os.pidfd_open(pid) for pid in pids]
        if end == "killed":
            testbed.send_signal(signal.SIGKILL)
        else:
            testbed.stdin.close()
            assert testbed.wait(timeout=60) == 0
    for death in deaths:
        assert _readable(death, 10), "a process has outlived the testbed"
        os.close(death)


def _readable(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])
