"""Real runs under the recorder: `uniference launch`, on this machine's loopback and on the testbed."""

import json
import os
import re
import shutil
import signal
import socket
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest
from harness import Done, uniference, write_script

from uniference.real import clocks, meeting

PROGRAM = """
import os, torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.arange(4.0) + rank
dist.all_reduce(x)
pending = dist.all_reduce(x, async_op=True)
pending.wait()
y = functional.all_reduce(x, "sum", dist.group.WORLD) * 1
if rank == 0:
    dist.send(y, 1, tag=3)
else:
    dist.recv(y, tag=3)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
model(y.expand(2, 4)).sum().backward()
# One write: of torchrun's workers, which are not buffered, two that print mix the ends of their lines.
print(f"{sum(p.grad.sum().item() for p in model.parameters()) + y.sum().item()}\\n", end="")
dist.destroy_process_group()
"""


def launched(directory: Path, source: str, *options: object) -> tuple[Done, dict[str, Any]]:
    script = write_script(directory, source)
    done = uniference("launch", *options, "--record", "full", "--out", "out", script, cwd=directory)
    assert done.code == 0, done.err
    return done, json.loads((directory / "out" / "report.json").read_text())


def events(directory: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (directory / "out" / "events.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == kind]


def test_a_real_run_leaves_what_a_simulated_one_does(tmp_path: Path) -> None:
    done, report = launched(tmp_path, PROGRAM, "--nproc-per-node", 2)
    # x = [0 1 2 3] + [1 2 3 4], then twice the sum of equal tensors: y = 4 x, its sum 4 * 16 = 64. The loss is the sum
    # of two rows of outputs: each of 4 biases has gradient 2, each of 4 * 4 weights 2 y: 8 + 2 * 4 * 64 = 520.
    assert sorted(float(line) for line in done.out.splitlines() if line[:1].isdigit()) == [584.0, 584.0]
    counts = {operation["operation"]: operation["count"] for operation in report["operations"]}
    # Three all-reduces in the program, and the reducer's one bucket, on each of two ranks.
    assert counts["all_reduce"] == 2 * 4
    assert counts["send"] == counts["recv"] == 1
    for rank in report["ranks"]:
        # compute + exposed + idle = makespan
        assert rank["compute_s"] + rank["exposed_comm_s"] + rank["idle_s"] == pytest.approx(report["makespan_s"])
    # Every all-reduce is waited for: in Python, in wait_tensor and in the reducer.
    waits = [event for event in events(tmp_path, "waited") if event["operation"] == "all_reduce" and event["rank"] == 0]
    assert len({handle for wait in waits for handle in wait["handles"]}) == 4
    # A message matched its receive, although the receive named no source.
    (receive,) = [event for event in events(tmp_path, "completed") if event["operation"] == "recv"]
    assert receive["peer"][0] == 0
    assert all(time > 0 for time in report["recorder"]["time_s"])
    # The same operations can be simulated, with the real durations of compute.
    replayed = uniference("replay", "out", "--ranks", 2, "--json", "--out", "again", cwd=tmp_path)
    assert replayed.code == 0, replayed.err
    simulated = json.loads(replayed.out)
    assert {operation["operation"]: operation["count"] for operation in simulated["operations"]} == counts
    for real, again in zip(report["ranks"], simulated["ranks"], strict=True):
        assert again["compute_s"] == pytest.approx(real["compute_s"])
    compared = uniference("compare", "again", "out", "--json", cwd=tmp_path)
    assert json.loads(compared.out)["unmatched"] == [0, 0]


def test_a_program_that_fails_is_reported_as_failed(tmp_path: Path) -> None:
    script = write_script(tmp_path, "raise SystemExit(3)\n")
    done = uniference("launch", "--nproc-per-node", 1, "--out", "out", script, cwd=tmp_path)
    assert done.code == 1
    assert not (tmp_path / "out" / "report.json").exists()


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/net/tun") or shutil.which("tc") is None,
    reason="the testbed needs root, /dev/net/tun and iproute2",
)
def test_the_testbed_shows_its_network_in_the_report(tmp_path: Path) -> None:
    source = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(250_000))
dist.destroy_process_group()
"""
    options = ("--testbed", "--ranks", 2, "--bandwidth", "100 Mbps", "--latency", "2 ms")
    _, report = launched(tmp_path, source, *options)
    (operation,) = report["operations"]
    # A ring of two sends each rank's 1 MB over its link: 1e6 * 1514 / 1448 / 12.5e6 s at least, on each of two ranks.
    assert operation["time_s"] / 2 >= 1e6 * 1514 / 1448 / 12.5e6


def test_a_clock_is_read_by_who_knows_its_key_and_by_nobody_else() -> None:
    key = clocks.new_key()
    server = clocks.Server(["127.0.0.1"], key, ["there"])
    (address,) = server.addresses
    serving = threading.Thread(target=server.serve)
    serving.start()
    with pytest.raises(ConnectionError, match=r"cannot read the clock of .* the token is wrong\nhint: make sure"):
        clocks.read(address, clocks.new_key(), "there", patience_s=0)
    reading = clocks.read(address, key, "there")
    # Both readings are of this host's clock.
    assert abs(reading.offset_ns) <= reading.error_ns
    serving.join()


def test_a_server_does_not_wait_for_ever() -> None:
    server = clocks.Server(["127.0.0.1"], clocks.new_key(), ["there"])
    with pytest.raises(TimeoutError, match=r"1 of 1 hosts .*\nhint: make sure that all hosts reach 127.0.0.1:"):
        server.serve(patience_s=0.1)
    (address,) = server.addresses
    del server
    with pytest.raises(ConnectionError, match="hint: make sure that this host can reach it"):
        clocks.read(address, clocks.new_key(), "there", patience_s=0)
    with pytest.raises(
        ConnectionError, match=r"cannot serve the clock of rank 0's host at 192.0.2.1.*\nhint: give an address"
    ):
        clocks.Server(["192.0.2.1"], clocks.new_key(), ["there"])


@pytest.mark.parametrize("given", [None, "127.0.0.9"])
def test_the_clock_of_the_first_host_is_served_where_the_others_reach_it(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    environment = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if given is not None:
        environment[meeting.CLOCK_ADDRESS] = given
    pids = []
    for rank in range(3):
        if pid := os.fork():
            pids.append(pid)
            continue
        code = 1
        try:
            signal.alarm(60)
            os.environ.update(environment, RANK=str(rank))
            monkeypatch.setattr(meeting, "_host", lambda rank=rank: f"host-{rank}")
            listeners = []
            serve = clocks.Server.serve

            def note(server: clocks.Server) -> None:
                listeners.extend(address.rpartition(":")[0] for address in server.addresses)  # noqa: B023 - called in this turn
                serve(server)  # noqa: B023

            monkeypatch.setattr(clocks.Server, "serve", note)
            met = meeting.Meeting()
            for name in ("before", "after"):
                met.compare_clocks(name)
            assert listeners == ([given or "127.0.0.1"] * 2 if rank == 0 else [])
            assert all(abs(reading["offset_ns"]) <= reading["error_ns"] for reading in met.readings)
            assert len(met.readings) == (0 if rank == 0 else 2)
            met.leave()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]


def test_what_is_left_behind_ends_with_torchrun(tmp_path: Path) -> None:
    source = (
        "import os, subprocess\n"
        "left = subprocess.run(['sh', '-c', 'setsid sleep 600 >/dev/null 2>&1 & echo $!'], stdout=subprocess.PIPE).stdout\n"
        "print('left', int(left), os.environ['TORCHELASTIC_ERROR_FILE'], flush=True)\n"
    )
    script = write_script(tmp_path, source)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = uniference("launch", "--out", "out", script, cwd=tmp_path, env={"TMPDIR": str(scratch)})
    assert done.code == 0, done.err
    left, kept = re.search(r"left (\d+) (.*)", done.out).groups()  # type: ignore[union-attr]
    assert not Path(f"/proc/{left}").exists()
    assert kept.startswith(str(scratch))
    # Files of torch's compiler in that folder do not count.
    assert not [path for path in scratch.iterdir() if path.name.startswith(("torchelastic", "uniference"))]


def test_a_probe_that_is_predicted_where_it_ran_finds_the_same(tmp_path: Path) -> None:
    network = ("--ranks", 2, "--bandwidth", "100 Mbps", "--latency", "1 ms", "--compute", "none", "--record", "summary")
    sizes = ("--pingpong-sizes", "--sizes", 65536, "--cold-sizes", 65536)
    for out, options in {"measured": ("--probe", "full", *sizes), "predicted": ("--like", "measured.jsonl")}.items():
        probe = ("-m", "uniference.real.probe", *options, "--out", f"{out}.jsonl")
        done = uniference("run", *network, "--out", out, *probe, cwd=tmp_path)
        assert done.code == 0, done.err
    measured, predicted = (
        [json.loads(line) for line in (tmp_path / f"{out}.jsonl").read_text().splitlines()]
        for out in ("measured", "predicted")
    )
    assert len(measured) == len(predicted) > 15
    for first, second in zip(measured, predicted, strict=True):
        assert [first[key] for key in ("operation", "bytes", "cold")] == [
            second[key] for key in ("operation", "bytes", "cold")
        ]
        # A clock read lasts a microsecond; a cold connection is slower: twice its first window, 14,480 B, is less than
        # 64 KiB.
        assert second["seconds"] == pytest.approx(first["seconds"], abs=3e-6)
    times = {(row["operation"], row["cold"]): row["seconds"][0] for row in measured}
    assert times["one_way", True] > times["one_way", False]
