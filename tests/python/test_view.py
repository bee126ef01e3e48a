"""`uniference view`: the files that it serves, to which clients, and their display in a browser. `make browser` lists
the requirements of the last part."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Start, run_script, start, uniference

sys.path.insert(0, str(Path(__file__).parents[1] / "browser"))

from webdriver import Browser, missing

__all__ = ["start"]

# Rank 1 is late for the all-reduce, and sends a message afterwards.
LATE = """
import time
import torch
import torch.distributed as dist
from torch.profiler import record_function

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    with record_function("late"):
        time.sleep(0.01)
dist.all_reduce(torch.ones(1000))
if dist.get_rank() == 1:
    dist.send(torch.ones(1000), 0)
else:
    dist.recv(torch.ones(1000), 1)
dist.destroy_process_group()
"""
VIEWER = Path(__file__).parents[2] / "python" / "uniference" / "program" / "viewer.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view")
    done = run_script(folder, LATE)
    assert done.code == 0, done.err
    return folder / "out"


@pytest.fixture
def address(run: Path, start: Start) -> Iterator[str]:
    viewer = start("view", "--no-browser", run)
    assert viewer.stdout is not None
    yield viewer.stdout.readline().strip()
    assert viewer.stdout.readline() == "Press Ctrl-C to end.\n"
    viewer.send_signal(signal.SIGINT)
    out, err = viewer.communicate(timeout=30)
    assert (viewer.returncode, out, err) == (0, "", "")


def test_the_trace_and_the_viewer_are_served_to_this_machine_alone(address: str, run: Path) -> None:
    page, trace = address.split("#!/?url=")
    assert page.startswith("http://127.0.0.1:")
    assert trace == f"{page}out.pftrace"
    assert urllib.request.urlopen(trace).read() == (run / "trace.pftrace").read_bytes()
    assert b"Perfetto UI" in urllib.request.urlopen(page).read()
    # A page of another site whose name resolves to this machine.
    foreign = urllib.request.Request(trace, headers={"Host": f"example.org:{page.split(':')[2].strip('/')}"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(foreign)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{page}../report.json")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{}")
    done = uniference("view", tmp_path, cwd=tmp_path)
    assert done.code == 2
    assert "contains no trace\nhint: " in done.err
    # An interpreter without the viewer: this one without its packages.
    alone = [sys.executable, "-S", "-c", VIEWER.read_text(), "trace.json", "out.json", "address"]
    lacks = subprocess.run(alone, capture_output=True, text=True, check=False)
    assert lacks.returncode == 2
    assert lacks.stderr.startswith("error: the viewer is not installed\nhint: pip install 'uniference[view]'")


class Viewer(Browser):
    """A browser with the viewer open."""

    def query(self, sql: str) -> list[list[Any]]:
        """Rows of the viewer's own database, once the trace is loaded."""
        rows: list[list[Any]] = self.result(
            """
            const sql = arguments[0];
            const look = () => {
              const trace = window.app && window.app.trace;
              if (!trace) return setTimeout(look, 100);
              trace.engine.query(sql).then((result) => {
                const rows = [], columns = result.columns();
                for (const row = result.iter({}); row.valid(); row.next())
                  rows.push(columns.map((name) => typeof row.get(name) === "bigint" ? Number(row.get(name)) : row.get(name)));
                done(rows);
              }, (error) => done(String(error)));
            };
            look();
            """,
            sql,
        )
        return rows


@pytest.fixture
def browser() -> Iterator[Viewer]:
    if why := missing():
        pytest.skip(why)
    with Viewer() as viewer:
        yield viewer


def test_a_browser_shows_rows_words_and_arrows(browser: Viewer, address: str) -> None:
    browser.open(address)
    processes = browser.query("select name from process where name is not null order by name")
    assert [name for [name] in processes] == ["critical path", "links", "rank 0 (device.0)", "rank 1 (device.1)"]
    rows = {name for [name] in browser.query("select name from thread where name is not null")}
    assert {"ranges", "operations of group 0", "rank 0 (device.0)", "critical path"} <= rows
    slices = {name for [name] in browser.query("select distinct name from slice")}
    assert {"wait: all_reduce", "wait: recv", "waits for rank 1, which sleeps in late", "late"} <= slices
    # The explanation of a wait lies within the wait, on the same row.
    parents = browser.query(
        "select parent.name from slice child join slice parent on child.parent_id = parent.id"
        " where child.name = 'waits for rank 1, which sleeps in late'"
    )
    assert ["wait: all_reduce"] in parents
    arrows = browser.query(
        "select out.name, into_.name from flow join slice out on slice_out = out.id join slice into_ on slice_in = into_.id"
    )
    # Perfetto starts an arrow at the earlier beginning of both slices: in this case the receive, which waits.
    assert ["recv", "send"] in arrows
    assert ["wait: sleep", "waits for rank 1, which sleeps in late"] in arrows
    assert browser.query("select count(*) from counter_track where name like '%switch%'")[0][0] > 0
    errors = browser.query("select name from stats where severity in ('error', 'data_loss') and value > 0")
    assert errors == []
    if folder := os.environ.get("PICTURES"):
        browser.result("window.waitForPerfettoIdle().then(() => setTimeout(done, 500))")
        browser.photograph(Path(folder, "view.png"))
