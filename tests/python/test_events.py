"""The run as data: the tables of events, which pandas, polars and DuckDB read as the documentation says."""

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pytest
from harness import run_script, uniference

SCRIPT = """
import torch
import torch.distributed as dist
from torch.profiler import record_function

dist.init_process_group("gloo")
for _ in range(3):
    with record_function("step"):
        dist.all_reduce(torch.ones(1000))
if dist.get_rank() == 0:
    dist.send(torch.ones(10), 1)
else:
    dist.recv(torch.ones(10), 0)
dist.destroy_process_group()
"""
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "events.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `train`, of `--record full`."""
    folder = tmp_path_factory.mktemp("events")
    done = run_script(folder, SCRIPT, "--record", "full")
    assert done.code == 0, done.err
    (folder / "out").rename(folder / "train")
    return folder


def stream(folder: Path) -> dict[str, list[dict[str, Any]]]:
    events: dict[str, list[dict[str, Any]]] = {}
    for line in (folder / "train" / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        events.setdefault(event.pop("event"), []).append(event)
    return events


def test_every_library_reads_what_the_stream_says(folder: Path) -> None:
    events = stream(folder)
    del events["stream"]
    tables = folder / "train" / "events"
    assert set(events) < {table.name for table in tables.iterdir()}
    for table in tables.iterdir():
        expected = events.get(table.name, [])
        assert polars.read_parquet(table / "*.parquet").to_dicts() == expected, table.name
        assert duckdb.sql(f"from '{table}/*.parquet'").pl().to_dicts() == expected, table.name
        frame = pandas.read_parquet(table)
        assert len(frame) == len(expected)
        for column in frame.columns:
            if not expected or any(row[column] is None for row in expected):
                continue
            found = [
                list(value) if hasattr(value, "__len__") and not isinstance(value, str) else value
                for value in frame[column]
            ]
            assert found == [row[column] for row in expected], f"{table.name}.{column}"


def test_the_documented_lines_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    blocks = re.findall(r"```(python|sql)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [language for language, _ in blocks] == ["python", "python", "sql"]
    printed = []
    for language, code in blocks:
        if language == "sql":
            printed.append(duckdb.sql(code).fetchall())
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, {})
        printed.append(out.getvalue())
    counts, waits, lines = printed
    assert re.search(r"^all_reduce +6$", counts, re.MULTILINE)
    assert "exposed_ps" in waits
    exposed = sum(row["exposed_ps"] for row in stream(folder)["waited"])
    assert sum(seconds for _, seconds in lines) == pytest.approx(exposed / 1e12)
    assert all("script.py:" in line for line, _ in lines)


def test_each_level_holds_what_the_table_says(folder: Path, tmp_path: Path) -> None:
    header, _, *rows = (line for line in PAGE.read_text().splitlines() if line.startswith("|"))
    columns = [re.findall(r"`([^`]+)`", cell) for cell in header.strip("|").split("|")][1:]
    assert len(rows) > 3
    for row in rows[:3]:
        level, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        level = level.split("`")[1]
        done = uniference("replay", "train", "--record", level, "--out", tmp_path / level, cwd=folder)
        assert done.code == 0, done.err
        for names, cell in zip(columns, cells, strict=True):
            for name in names:
                pattern = name.replace("KIND", "waited").rstrip("/")
                assert (tmp_path / level / pattern).exists() == (cell == "yes"), f"{level}: {name}"


def test_the_same_run_has_the_same_tables(folder: Path, tmp_path: Path) -> None:
    done = uniference("replay", "train", "--record", "full", "--out", tmp_path / "again", cwd=folder)
    assert done.code == 0, done.err
    parts = sorted(part.relative_to(folder / "train") for part in (folder / "train" / "events").rglob("*.parquet"))
    assert len(parts) == 12
    for part in parts:
        if part.parts[1] != "line":
            assert (tmp_path / "again" / part).read_bytes() == (folder / "train" / part).read_bytes(), part
    # Live ranks name their script before they execute one of its lines; a record has only lines with an event.
    before, again = (
        polars.read_parquet(run / "events" / "line" / "*.parquet").rows()
        for run in (folder / "train", tmp_path / "again")
    )
    assert set(again) < set(before)
    assert all(line.endswith("script.py") for _, _, line in set(before) - set(again))
