"""`uniference sweep`: replays answer as runs would, programs that depend on time run again, and a sweep survives `kill
-9`."""

import os
import signal
import sqlite3
import time
from pathlib import Path

import pandas
import polars
import pytest
from harness import Start, start, uniference, write_script

import uniference as api

__all__ = ["start"]

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch.profiler import record_function

dist.init_process_group("gloo")
size = int(sys.argv[sys.argv.index("--size") + 1])
if size == 13:
    raise ValueError("thirteen")
with record_function("step"):
    values = torch.ones(size, size)
    for _ in range(3):
        values = values @ values / size
        dist.all_reduce(values)
"""
CLOCK = "import time\nbegin = time.perf_counter()\n" + PROGRAM


def write_sweep(folder: Path, text: str, program: str = PROGRAM) -> Path:
    write_script(folder, program, "program.py")
    path = folder / "sweep.toml"
    path.write_text('[program]\nscript = "program.py"\n' + text)
    return path


def test_a_replay_answers_what_a_run_would(tmp_path: Path) -> None:
    run = uniference(
        "run",
        "--ranks",
        2,
        "--out",
        "earlier",
        write_script(tmp_path, PROGRAM, "program.py"),
        "--size",
        64,
        cwd=tmp_path,
    )
    assert run.code == 0, run.err
    text = """
[arguments]
size = 64
[options]
ranks = 2
compute = ["none", "model", "from=earlier"]
[cluster]
device.0.model = "raspberry-pi-5"
network.bandwidth = ["1 Gbps", "10 Mbps"]
"""
    write_sweep(tmp_path, text)
    done = uniference("sweep", "sweep.toml", "--out", "exact", cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.out.startswith("6 trials: 3 runs and 3 replays")
    assert "the program runs again for another: compute\n" in done.out
    assert "replays answer for another: network.bandwidth" in done.out
    write_sweep(tmp_path, text)
    (tmp_path / "sweep.toml").write_text('replays = "never"\n' + (tmp_path / "sweep.toml").read_text())
    done = uniference("sweep", "sweep.toml", "--out", "never", cwd=tmp_path)
    assert done.code == 0, done.err
    exact, never = (pandas.read_csv(tmp_path / folder / "results.csv") for folder in ("exact", "never"))
    assert list(exact.source) == ["run", "replay"] * 3
    assert list(exact.record.dropna()) == [0, 2, 4]
    assert list(never.source) == ["run"] * 6
    # Digests cover all events, and each point has its own.
    same = exact.drop(columns=["source", "record"])
    pandas.testing.assert_frame_equal(same, never.drop(columns=["source"]), check_exact=True)
    assert exact.digest.nunique() == 6
    # 64 x 64 floats three times, over a link of 10 Mbit/s at the least: 3 * 16384 * 8 / 1e7
    assert (exact["step.total_s"][1::2] > 0.039).all()


def test_a_program_that_depends_on_time_runs_again(tmp_path: Path) -> None:
    text = '[arguments]\nsize = 8\n[options]\nranks = 2\ncompute = "none"\nlatency = ["10 us", "1 ms"]\n'
    write_sweep(tmp_path, text, CLOCK)
    done = uniference("sweep", "sweep.toml", "--out", "exact", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "the program depends on time, so it ran again for 1 trial" in done.err
    frame = pandas.read_csv(tmp_path / "exact" / "results.csv")
    assert list(frame.source) == ["run", "run"]
    assert "warnings" not in frame
    write_sweep(tmp_path, text, CLOCK)
    (tmp_path / "sweep.toml").write_text('replays = "always"\n' + (tmp_path / "sweep.toml").read_text())
    done = uniference("sweep", "sweep.toml", "--out", "always", cwd=tmp_path)
    assert done.code == 0, done.err
    always = pandas.read_csv(tmp_path / "always" / "results.csv")
    assert list(always.source) == ["run", "replay"]
    assert "read the clock" in always.warnings[1]
    assert list(always.makespan_s) == list(frame.makespan_s)


def test_a_failed_trial_says_why(tmp_path: Path) -> None:
    write_sweep(tmp_path, '[arguments]\nsize = [13, 8]\n[options]\nranks = 2\ncompute = "none"\n')
    done = uniference("sweep", "sweep.toml", "--out", "out", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "trial 0 failed (size 13):\n  error: the program failed on rank" in done.err
    frame = polars.read_parquet(tmp_path / "out" / "results.parquet")
    assert frame["status"].to_list() == ["failed", "finished"]
    assert frame["error"][0].startswith("error: the program failed on rank")
    assert frame.schema["size"] == polars.Int64
    assert frame.schema["makespan_s"] == polars.Float64


def test_a_sweep_outlives_its_end_by_kill_9(tmp_path: Path, start: Start) -> None:
    sweep = write_sweep(
        tmp_path,
        '[arguments]\nsize = [8, 16]\n[options]\nranks = 2\ncompute = "none"\n[cluster]\nnetwork.latency = ["10 us", "1 ms"]\n',
    )
    out = tmp_path / "out"
    command = start("sweep", sweep, "--out", out, "--jobs", 1)
    journal = out / "journal.sqlite"
    deadline = time.monotonic() + 120
    while not _done(journal):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    command.send_signal(signal.SIGKILL)
    command.wait()
    before = _done(journal)
    assert 1 <= len(before) < 4
    reports = {number: (out / "trials" / str(number) / "report.json").stat().st_mtime_ns for number in before}
    done = uniference("sweep", sweep, "--out", out, cwd=tmp_path)
    assert done.code == 0, done.err
    assert f"has {len(before)} of them already" in done.out
    assert len(_done(journal)) == 4
    for number, written in reports.items():
        assert (out / "trials" / str(number) / "report.json").stat().st_mtime_ns == written
    frame = pandas.read_csv(out / "results.csv")
    assert list(frame.status) == ["finished"] * 4
    assert list(frame.source) == ["run", "replay"] * 2
    # Trials in progress have ended with the sweep.
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    assert not any(os.fsencode(out) in words for words in running)


def _done(journal: Path) -> list[int]:
    if not journal.exists():
        return []
    connection = sqlite3.connect(journal)
    try:
        return [number for (number,) in connection.execute("SELECT number FROM trial ORDER BY number")]
    except sqlite3.OperationalError:  # the table does not exist yet
        return []
    finally:
        connection.close()


def test_a_sweep_from_python_gives_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = {"layers": 2, "hidden": 512, "heads": 8, "ffn": 1024, "vocab": 1024, "seq": 128, "batch": 8}
    found = api.sweep(
        program={"workload": "llama"},
        arguments=model | {"tp": [1, 2], "dp": [2, 1]},
        options={"ranks": 2},
        cluster={"network.bandwidth": ["1 Gbps", "10 Gbps"]},
        where="tp * dp == 2",
    )
    frame = found.to_pandas()
    assert found.directory == Path("uniference-out/sweep-1")
    assert frame[["tp", "dp"]].values.tolist() == [[1, 2], [1, 2], [2, 1], [2, 1]]
    assert found.to_polars()["makespan_s"].to_list() == frame.makespan_s.to_list()
    with pytest.raises(api.SimulationError) as refused:
        api.sweep(program="missing.py", options={"ranks": [2, 4]})
    assert refused.value.exit_code == 2
    with pytest.raises(TypeError, match="is no value of a sweep file"):
        api.sweep(program="a.py", options={"ranks": {2, 4}})
    with pytest.raises(ValueError, match="either a sweep file or its keys"):
        api.sweep()
