"""The Python API: figures as tables, plots, answers, and an interrupt that ends all started processes."""

import doctest
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import uniference, write_script
from test_endings import HANG, all_end

import uniference as package
from uniference import results, showing, simulation
from uniference.results import MOST_SHOWN, table_in_html

ROOT = Path(__file__).parents[2]
RING = ROOT / "examples" / "ring.py"
# Program with a named range of three all-reduces of computed tensors.
NAMED = """
import torch, torch.distributed as dist
from torch.profiler import record_function
dist.init_process_group()
with record_function("step"):
    for _ in range(3):
        dist.all_reduce(torch.ones(1 << 16) @ torch.ones(1 << 16) * torch.ones(1000))
"""
BOARDS = '[[device]]\nname = "board"\ncount = 4\nmemory = "4 GiB"\n[network]\nbandwidth = "1 Gbps"\n'
MODELS = '[[device]]\nname = "pi"\ncount = 2\nmodel = "raspberry-pi-5"\n[network]\nbandwidth = "1 Gbps"\n'


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> package.Run:
    """A run of four ranks that pass 256 KiB around."""
    out = tmp_path_factory.mktemp("ring") / "out"
    return package.simulate(RING, ranks=4, bandwidth="1 Gbps", latency="100 us", compute="none", out=out)


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory) -> package.Run:
    """A run of two ranks with ranges, operators and memory."""
    folder = tmp_path_factory.mktemp("modelled")
    (folder / "pi.toml").write_text(MODELS)
    return package.simulate(write_script(folder, NAMED), cluster=folder / "pi.toml", out=folder / "out")


def test_the_examples_in_docstrings_are_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(RING, tmp_path)
    (tmp_path / "boards.toml").write_text(BOARDS)
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    examples = [test for module in (simulation, results) for test in finder.find(module, globs={"uniference": package})]
    # The first example creates the run of the others.
    examples.sort(key=lambda test: (not test.name.endswith("simulate"), not test.name.endswith("replay"), test.name))
    said: list[str] = []
    for example in examples:
        runner.run(example, out=said.append)
    assert not said, "".join(said)
    assert runner.tries >= 18


def test_rows_are_a_sequence_and_become_frames(ring: package.Run, modelled: package.Run) -> None:
    for run, name in (
        (ring, "ranks"),
        (ring, "operations"),
        (ring, "links"),
        (modelled, "phases"),
        (ring, "critical_path"),
    ):
        rows = getattr(run, name)
        assert len(rows) > 0, name
        assert rows == list(rows)
        assert rows[:1] == [rows[0]]
        frames = rows.to_pandas(), rows.to_polars()
        for frame in frames:
            assert list(frame.columns) == [*rows[0].__dataclass_fields__], name
            assert len(frame) == len(rows)
        # Missing values are NaN in pandas, and null in polars.
        first = {name: value for name, value in frames[0].to_dict("records")[0].items() if value == value}
        assert first == {name: value for name, value in frames[1].to_dicts()[0].items() if value is not None}
        assert rows._repr_html_().count("<tr>") == 1 + min(len(rows), MOST_SHOWN)
    nothing = ring.phases
    assert not nothing
    assert (
        list(nothing.to_pandas().columns)
        == list(nothing.to_polars().columns)
        == list(modelled.phases.to_pandas().columns)
    )


def test_links_have_carried_what_was_sent(ring: package.Run) -> None:
    links = {link.link: link for link in ring.links}
    for rank in ring.ranks:
        up = links[f"{rank.device} -> switch"]
        # Control messages belong to the rank only, not to the link's traffic.
        assert rank.bytes_sent < up.wire_bytes <= rank.wire_bytes_sent
        assert up.bandwidth == 125e6
        assert up.utilization == pytest.approx(up.wire_bytes / (125e6 * ring.makespan))
        assert up.messages == 3
    up, down = ([link.wire_bytes for link in ring.links if ("-> switch" in link.link) == out] for out in (True, False))
    assert sum(up) == sum(down)


def test_events_are_tables_of_their_kind(ring: package.Run) -> None:
    waited = ring.events("waited")
    frame = waited.to_pandas(["rank", "exposed_ps"])
    assert list(frame.columns) == ["rank", "exposed_ps"]
    assert frame.exposed_ps.sum() == waited.to_polars()["exposed_ps"].sum()
    by_rank = frame.groupby("rank").exposed_ps.sum() / 1e12
    assert by_rank.tolist() == pytest.approx([rank.exposed_comm_s for rank in ring.ranks])
    with pytest.raises(ValueError, match="no events of kind 'wait'\nhint: there are completed, "):
        ring.events("wait")
    with pytest.raises(ValueError, match='hint: run it with record="full"'):
        ring.events("message")


def test_a_run_is_loaded_from_its_folder(ring: package.Run, tmp_path: Path) -> None:
    loaded = package.load(ring.directory)
    assert loaded.report == ring.report
    assert sorted(loaded.output.splitlines()) == [f"rank {rank}: 6" for rank in range(4)]
    with pytest.raises(FileNotFoundError, match=r"has no report.json\nhint: "):
        package.load(tmp_path)
    for text, reason in (
        ("{", "is not a report: "),
        ("[]", "of version 1 or 2"),
        ('{"version": 99}', "of version 1 or 2"),
    ):
        (tmp_path / "report.json").write_text(text)
        with pytest.raises(ValueError, match=reason):
            package.load(tmp_path)


def test_without_events_it_says_how_to_get_them(tmp_path: Path) -> None:
    run = package.simulate(RING, ranks=2, compute="none", record="summary", out=tmp_path / "out")
    assert not run.links
    with pytest.raises(ValueError, match='hint: run it with record="ops"'):
        run.events("waited")
    with pytest.raises(ValueError, match="no links\nhint: "):
        run.plot.links()


def test_answers_are_objects_with_tables(ring: package.Run, tmp_path: Path) -> None:
    path = package.explain(ring)
    assert path["makespan_s"] == ring.makespan
    kinds = path.to_pandas("kinds")
    assert kinds.seconds.sum() == pytest.approx(ring.makespan)
    assert path.to_polars("kinds")["name"].to_list() == kinds.name.tolist()
    with pytest.raises(KeyError, match="'kind' is none of the lists: kinds, ranks"):
        path.to_pandas("kind")
    page = path._repr_html_()
    assert "<h4>parts</h4>" in page
    assert "makespan_s" in page
    said = package.Answer({"warnings": ["it read the clock"], "makespan": {"first_s": 1.0, "error": 0.5}})._repr_html_()
    assert "it read the clock" in said
    assert "<th>error</th>" in said
    table = package.whatif(ring)
    assert table.to_pandas("changes").gain_s.max() == table["changes"][0]["gain_s"]
    slower = package.replay(ring, set="network.latency=*4", out=tmp_path / "slower")
    compared = package.compare(ring, slower)
    assert compared["makespan"]["second_s"] == slower.makespan
    assert package.diff(ring, slower)["difference_s"] == pytest.approx(slower.makespan - ring.makespan)
    with pytest.raises(package.SimulationError, match="is not a run folder"):
        package.compare(ring, tmp_path)


def test_fit_says_no_without_an_exception(tmp_path: Path) -> None:
    script = write_script(tmp_path, "import torch\nx = torch.empty(1 << 20)\n")
    for memory, fits in (("1 GiB", True), ("1 MiB", False)):
        (tmp_path / "cluster.toml").write_text(BOARDS.replace("4 GiB", memory))
        assert package.fit(script, cluster=tmp_path / "cluster.toml")["fits"] is fits
    with pytest.raises(package.SimulationError, match="does not exist") as refused:
        package.fit(tmp_path / "nowhere.py", ranks=2)
    assert refused.value.exit_code == 2


def test_measurements_are_fitted(tmp_path: Path) -> None:
    case = {"library": "gloo", "operation": "send", "ranks": [0, 1]}
    with pytest.raises(package.SimulationError, match="give a file of measurements"):
        package.calibrate(tmp_path / "cluster.toml", fit=tmp_path / "nowhere.jsonl")
    (tmp_path / "measurements.jsonl").write_text(json.dumps(case) + "\n")
    with pytest.raises(package.SimulationError, match=r"measurements.jsonl: "):
        package.calibrate(tmp_path / "cluster.toml", fit=tmp_path / "measurements.jsonl")


def test_every_plot_draws_something(modelled: package.Run) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib import pyplot

    for name in ("timeline", "ranks", "operations", "links", "phases", "memory", "critical_path"):
        axes = getattr(modelled.plot, name)()
        marks = [*axes.patches, *axes.images]
        assert marks, name
        assert axes.get_xlabel(), name
        axes.figure.canvas.draw()
        assert name in repr(modelled.plot)
        pyplot.close(axes.figure)
    figure, both = pyplot.subplots(2)
    assert modelled.plot.timeline(both[1]) is both[1]
    pyplot.close(figure)


def test_the_timeline_has_all_compute_and_all_waits(modelled: package.Run) -> None:
    pytest.importorskip("matplotlib").use("agg")
    from matplotlib import pyplot

    axes = modelled.plot.timeline()
    drawn = {}
    for strip in axes.images:
        _, _, bottom, top = strip.get_extent()
        drawn[int(top + 0.5), round(bottom % 1, 3) == 0.4] = strip.get_array().mean() * modelled.makespan
    for rank in modelled.ranks:
        assert drawn[rank.rank, False] == pytest.approx(rank.compute_s)
        assert drawn[rank.rank, True] == pytest.approx(rank.exposed_comm_s)
    pyplot.close(axes.figure)


def test_notebooks_show_a_run_and_nothing_in_it_is_markup(ring: package.Run) -> None:
    page = ring._repr_html_()
    assert page.count("<tr>") >= 5
    assert "makespan 9.201 ms" in page
    assert "display:inline-block" in page
    # A part of the critical path that several ranks share belongs to no rank and no link.
    shared = {"rank": 0, "kinds": [], "parts": [{"kind": "latency", "seconds": 0.001, "share": 0.1}]}
    page = replace(ring, report=ring.report | {"critical_path": shared})._repr_html_()
    assert "<td>latency</td><td></td>" in page
    assert "<b>x</b>" not in table_in_html(["<i>"], [["<b>x</b>"]])
    assert "and 5 more rows" in table_in_html(["n"], [[n] for n in range(MOST_SHOWN + 5)])


def test_progress_goes_to_a_file(tmp_path: Path) -> None:
    source = (
        "import torch, torch.distributed as dist, os\ndist.init_process_group()\n"
        # Work that uses this machine's time.
        "if os.environ['RANK'] == '0':\n    sum(range(200_000_000))\ndist.barrier()\n"
    )
    script = write_script(tmp_path, source)
    out = tmp_path / "out"
    told = tmp_path / "progress"
    options = ("--ranks", 2, "--compute", "none", "--out", out, "--progress-to", told)
    done = uniference("run", *options, "--quiet", script, cwd=tmp_path)
    assert done.code == 0, done.err
    assert (done.out, done.err) == ("", "")
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    assert len(lines) >= 3
    assert [line["host_s"] for line in lines] == sorted(line["host_s"] for line in lines)
    texts = [rank["text"] for line in lines for rank in line["ranks"]]
    assert any(text.startswith("rank 0, ") and "is running" in text for text in texts)
    assert any(
        text.startswith("rank 1, ") and "waits until rank 0, which is running, has come as far" in text
        for text in texts
    )
    refused = uniference("run", "--ranks", 2, "--progress-to", tmp_path / "no" / "file", script, cwd=tmp_path)
    assert refused.code == 2
    assert "choose a writable file with --progress-to" in refused.err


def test_progress_is_read_once_and_in_whole_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []
    monkeypatch.setattr(showing.Display, "show", lambda self, head, ranks=(): seen.append(head))
    line = '{"head": "%s", "ranks": []}\n'
    with open(tmp_path / "progress", "a") as written, open(tmp_path / "progress", "rb") as told:
        for text in (line % "a" + line % "b" + line[:9], (line % "d")[9:].replace("d", "c"), ""):
            written.write(text)
            written.flush()
            showing._show_last(told, showing.Display())
    assert seen == ["b", "c"]


def test_what_is_left_is_known_from_an_earlier_run(tmp_path: Path) -> None:
    source = (
        "import torch.distributed as dist, sys\ndist.init_process_group()\n"
        "for _ in range(8):\n    dist.barrier()\n    if len(sys.argv) > 2: sum(range(10_000_000))\n"
    )
    script = write_script(tmp_path, source)
    told = tmp_path / "progress"
    options = ("--ranks", 2, "--compute", "none", "--progress-to", told)
    for expected in (None, 2 * 8):
        done = uniference("run", *options, script, "slowly", "please", cwd=tmp_path)
        assert done.code == 0, done.err
        last = json.loads(told.read_text().splitlines()[-1])
        assert last["expected_operations"] in (expected, None if expected is None else last["expected_operations"])
        if expected is not None:
            assert last["expected_operations"] >= expected
            assert last["left_s"] is not None
            assert "left, by script-1" in last["head"]
    # A command with other arguments counts as another program.
    done = uniference("run", *options, script, "slowly", "now", cwd=tmp_path)
    assert json.loads(told.read_text().splitlines()[-1])["expected_operations"] is None
    replayed = uniference("replay", "uniference-out/script-1", "--quiet", "--out", "again", cwd=tmp_path)
    assert (replayed.code, replayed.out, replayed.err) == (0, "", "")


def test_an_interrupt_ends_a_run_and_all_its_processes(tmp_path: Path) -> None:
    script = write_script(tmp_path, HANG)
    out = tmp_path / "out"
    program = (
        # Concurrent test runners ignore SIGINT, which children would inherit.
        "import signal, uniference\nsignal.signal(signal.SIGINT, signal.default_int_handler)\ntry:\n"
        f"    uniference.simulate({str(script)!r}, ranks=2, compute='none', jobs=2, out={str(out)!r})\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n"
    )
    ours = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        pids: list[int] = []
        deadline = time.monotonic() + 60
        while len(pids) < 4 and time.monotonic() < deadline:
            logs = [log.read_text() for log in out.glob("rank-*.log")]
            pids = [
                int(pid) for log in logs for line in log.splitlines() for pid in line.split()[-2:] if "pids" in line
            ]
            time.sleep(0.1)
        assert len(pids) == 4
        # The signal goes to this process alone, as from some kernels of notebooks.
        os.kill(ours.pid, signal.SIGINT)
        said, _ = ours.communicate(timeout=30)
    finally:
        ours.kill()
    assert said == "interrupted\n"
    assert all_end(pids)


def again_and_again(**job: Any) -> None:
    """Simulates a job repeatedly until it is interrupted, or a minute has passed."""
    begun = time.monotonic()
    while time.monotonic() - begun < 60:
        package.workload("llama", **job)


def test_an_interrupt_ends_a_replay_in_this_process(ring: package.Run, tmp_path: Path) -> None:
    job: dict[str, Any] = {
        "ranks": 64,
        "fold": "off",
        "layers": 64,
        "batch": 64,
        "tp": 8,
        "dp": 8,
        "ignore_memory": True,
    }
    # Concurrent test runners ignore SIGINT.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    begun = time.monotonic()
    timer = threading.Timer(1.0, signal.raise_signal, [signal.SIGINT])
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            again_and_again(out=tmp_path / "job", **job)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert time.monotonic() - begun < 20
    # The folder can be used again.
    again = package.replay(ring, out=tmp_path / "job")
    assert again.report["digest"] == ring.report["digest"]


def test_progress_of_a_replay_is_told_and_may_end_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []
    monkeypatch.setattr(showing.Display, "show", lambda self, head, ranks=(): seen.append(head))
    job: dict[str, Any] = {
        "ranks": 64,
        "fold": "off",
        "layers": 32,
        "batch": 64,
        "tp": 8,
        "dp": 8,
        "ignore_memory": True,
    }
    run = package.workload("llama", out=tmp_path / "job", progress=True, **job)
    assert run.makespan > 0
    assert seen
    assert all(" s simulated, " in head for head in seen)


def test_a_notebook_is_known_by_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shell:
        kernel = object()

    class Module:
        @staticmethod
        def get_ipython() -> Shell:
            return Shell()

    assert not showing.is_notebook()
    monkeypatch.setitem(sys.modules, "IPython", Module)  # type: ignore[arg-type]
    assert showing.is_notebook()
