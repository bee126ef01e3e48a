"""Ranks on workers: the run equals one with all ranks on this machine; and failures of a worker, its token or its
network."""

import json
import os
import signal
import socket
import ssl
from pathlib import Path

import pytest
from harness import write_script
from remote import START, TALK, THREAD, Commands, commands, descendants, digest, ended, said, until

__all__ = ["commands"]


@pytest.mark.parametrize("compute", ["none", "model"])
def test_a_run_with_a_worker_is_the_run_without(commands: Commands, compute: str) -> None:
    if compute == "none":
        write_script(commands.folder, TALK + THREAD)
    else:
        commands.with_models()
    worker = commands.worker()
    remote = commands.run("--compute", compute)
    assert ended(remote)[0] == 0, said(remote)
    local = commands.run("--compute", compute, cluster="local.toml")
    assert ended(local)[0] == 0, said(local)
    assert digest(remote) == digest(local)
    out = remote.printed.read_text()  # type: ignore[attr-defined]
    for rank in (0, 2):
        assert f"rank {rank} has read a note" in out
    assert "rank 1 has read a note" in said(remote)
    # The worker waits for the next run, and no process of this run is left.
    until(lambda: said(worker).count("waits for a run") >= 2, worker)
    assert worker.poll() is None
    assert not descendants(worker.pid)
    worker.send_signal(signal.SIGTERM)
    assert ended(worker)[0] == 143


def test_ranks_at_a_worker_are_charged_for_their_compute(commands: Commands) -> None:
    source = (
        "import time, torch, torch.distributed as dist\ndist.init_process_group('gloo')\nx = torch.ones(400, 400)\n"
    )
    source += "for _ in range(20):\n    x = torch.tanh(x @ x)\ndist.all_reduce(x)\n"
    write_script(commands.folder, source)
    worker = commands.worker("--once")
    run = commands.run("--compute", "measured")
    assert ended(run)[0] == 0, said(run)
    assert ended(worker)[0] == 0, said(worker)
    report = json.loads((run.out / "report.json").read_text())  # type: ignore[attr-defined]
    assert all(rank["compute_s"] > 0 for rank in report["ranks"]), report["ranks"]


def test_a_wrong_token_ends_the_worker_and_the_run_goes_on_waiting(commands: Commands) -> None:
    run = commands.run("--compute", "none")
    until(lambda: "waiting for worker-a" in said(run), run)
    wrong = commands.worker(token="other")
    code, err = ended(wrong)
    assert code == 2
    assert "the token is wrong" in err
    assert "hint: give both sides the same token file" in err
    until(lambda: "refused worker worker-a at 127.0.0.1" in said(run), run)
    # A worker of another run, which may be needed later, is kept waiting.
    other = commands.worker(name="worker-b")
    until(lambda: "does not wait for a worker of this name" in said(other), other)
    # Connections that are no workers.
    with socket.create_connection(("127.0.0.1", commands.port)) as garbage:
        garbage.sendall(os.urandom(1000))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    silent = socket.create_connection(("127.0.0.1", commands.port))
    with socket.create_connection(("127.0.0.1", commands.port)) as stranger, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(stranger).recv(1)
    assert run.poll() is None
    worker = commands.worker("--once")
    assert ended(run)[0] == 0, said(run)
    assert ended(worker)[0] == 0
    silent.close()


def test_two_workers_of_one_name(commands: Commands) -> None:
    run = commands.run("--compute", "none", script="forever.py")
    first = commands.worker()
    until(lambda: "worker worker-a has joined" in said(run), run)
    second = commands.worker()
    code, err = ended(second)
    assert code == 2
    assert "another worker of this name takes part" in err
    assert "hint: give each worker a name of its own" in err
    assert (run.poll(), first.poll()) == (None, None)


def test_a_worker_that_is_killed_ends_the_run_and_leaves_nothing(commands: Commands) -> None:
    run = commands.run("--compute", "none", script="forever.py")
    worker = commands.worker()
    until(lambda: (run.out / "rank-0.log").exists(), run)  # type: ignore[attr-defined]
    ranks = descendants(worker.pid) | descendants(run.pid)
    assert len(ranks) >= 5, "a supervisor, a zygote and ranks on each side"
    worker.kill()
    code, err = ended(run)
    assert code == 1
    assert "error: worker worker-a is lost" in err
    assert "hint: see the worker's output" in err
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks), run)


def test_a_run_that_is_killed_leaves_nothing_at_the_worker(commands: Commands) -> None:
    run = commands.run("--compute", "none", script="forever.py")
    worker = commands.worker()
    until(lambda: (run.out / "rank-0.log").exists(), run)  # type: ignore[attr-defined]
    ranks = descendants(worker.pid)
    run.kill()
    until(lambda: "the run is lost" in said(worker), worker)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks), worker)
    assert worker.poll() is None
    # The next run uses the worker.
    again = commands.run("--compute", "none")
    assert ended(again)[0] == 0, said(again)


def test_a_worker_that_is_stopped_is_lost(commands: Commands) -> None:
    run = commands.run("--compute", "none", script="forever.py")
    worker = commands.worker()
    until(lambda: (run.out / "rank-0.log").exists(), run)  # type: ignore[attr-defined]
    worker.send_signal(signal.SIGSTOP)
    code, err = ended(run)
    assert code == 1
    assert "worker worker-a is lost: nothing was heard of it for 15 s" in err
    worker.send_signal(signal.SIGCONT)
    until(lambda: "the run is lost" in said(worker), worker)


def test_a_rank_that_fails_there_is_shown_here(commands: Commands) -> None:
    write_script(
        commands.folder,
        START + "if dist.get_rank() == 1:\n    raise ValueError('boom')\ndist.barrier()\n",
    )
    commands.worker()
    code, err = ended(commands.run("--compute", "none"))
    assert code == 1
    assert "ValueError: boom" in err
    assert "the program failed on rank 1" in err


def test_a_deadlock_there_names_its_lines(commands: Commands) -> None:
    write_script(
        commands.folder,
        START + "dist.recv(torch.ones(1), (dist.get_rank() + 1) % 3)\n",
    )
    commands.worker()
    code, err = ended(commands.run("--compute", "none"))
    assert code == 3
    assert err.count("script.py:3") >= 3


def test_what_workers_cannot_do_is_refused_with_a_hint(commands: Commands) -> None:
    refused = [
        (("--join-timeout", "1"), "worker-a did not join within 1 s", "uniference worker --name worker-a"),
        (("--debug-rank", "0"), "--debug-rank is a rank at worker worker-a", "runs on this machine"),
    ]
    for options, what, hint in refused:
        code, err = ended(commands.run("--compute", "none", *options))
        assert code == 2, err
        assert what in err
        assert hint in err
    code, err = ended(commands.start("run", "--cluster", "cluster.toml", "--out", "o", "script.py"))
    assert code == 2
    assert "nobody listens for workers" in err
    assert "hint: use `uniference run --listen" in err
    (commands.folder / "token").write_text("short")
    code, err = ended(commands.run())
    assert code == 2
    assert "a token has 16 to 4096" in err


def test_without_sync_the_program_must_be_there(commands: Commands) -> None:
    worker = commands.worker("--once")
    # Both processes are on one machine, so clocks are equal without synchronization.
    run = commands.run("--compute", "none", "--no-sync")
    assert ended(run)[0] == 0, said(run)
    assert ended(worker)[0] == 0
