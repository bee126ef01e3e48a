"""`uniference search` finds the optimum of an exhaustive sweep, in a fraction of the trials, and resumes an interrupted
search."""

import shutil
from pathlib import Path

import polars
import pytest
from harness import uniference

EXAMPLES = Path(__file__).parents[2] / "examples"

SMALL = """
where = "tp * dp == 4"
[program]
workload = "llama"
arguments = ["--layers=4", "--hidden=512", "--heads=8", "--vocab=1024", "--seq=128", "--batch=16"]
[arguments]
tp = [1, 2, 4]
dp = [1, 2, 4]
ffn = [1024, 2048, 4096]
[options]
ranks = 4
[cluster]
device.0.price = 2.0
[measures]
width = "ffn"
"""


def search(folder: Path, text: str, *options: object) -> polars.DataFrame:
    (folder / "search.toml").write_text(text)
    done = uniference("search", "search.toml", "--out", folder / "out", *options, cwd=folder)
    assert done.code == 0, done.err
    return polars.read_parquet(folder / "out" / "results.parquet")


# The second example needs more CPU time than all other tests of searches and sweeps together.
@pytest.mark.parametrize("example", ["layout", pytest.param("placement", marks=pytest.mark.load)])
def test_the_best_of_all_is_found_in_a_fraction_of_the_trials(tmp_path: Path, example: str) -> None:
    for file in [f"{example}.toml", "layout-cluster.toml"]:
        shutil.copy(EXAMPLES / file, tmp_path)
    found = uniference("search", f"{example}.toml", "--out", "found", cwd=tmp_path)
    assert found.code == 0, found.err
    everything = uniference("sweep", f"{example}.toml", "--out", "all", cwd=tmp_path)
    assert everything.code == 0, everything.err
    found, everything = (polars.read_parquet(tmp_path / name / "results.parquet") for name in ("found", "all"))
    assert len(everything) >= 200
    assert len(found) <= 60
    assert found["makespan_s"].min() == everything["makespan_s"].min()


def test_constraints_and_objectives_choose_the_best(tmp_path: Path) -> None:
    # 3 layouts x 3 widths: 20 trials are more than there are points.
    text = SMALL + '[search]\ntrials = 20\nminimize = "makespan_s"\nmaximize = "width"\nconstraints = "ffn <= 2048"\n'
    frame = search(tmp_path, text)
    assert len(frame) == 9
    assert frame.filter(polars.col("tp") * polars.col("dp") != 4).is_empty()
    done = uniference("search", "search.toml", "--out", tmp_path / "out", cwd=tmp_path)
    lines = [line for line in done.out.splitlines() if line.startswith("  trial ")]
    # The fastest run of each allowed width, except one that is dominated by a wider one.
    allowed = frame.filter(polars.col("ffn") <= 2048)
    fastest = allowed.group_by("ffn").agg(polars.col("makespan_s").min()).sort("makespan_s")
    assert [float(line.split("makespan_s ")[1].split(",")[0]) for line in lines] == fastest["makespan_s"].to_list()


def test_a_search_is_that_of_its_seed_and_goes_on_where_it_was(tmp_path: Path) -> None:
    goal = '[search]\nseed = 1\nmaximize = "tokens_per_s"\n'
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    whole = search(tmp_path / "first", SMALL + goal + "trials = 6\n")
    part = search(tmp_path / "second", SMALL + goal + "trials = 3\n")
    assert part.rows() == whole.head(3).rows()
    written = (tmp_path / "second" / "out" / "trials" / "0" / "report.json").stat().st_mtime_ns
    rest = search(tmp_path / "second", SMALL + goal + "trials = 6\n")
    assert rest.rows() == whole.rows()
    assert (tmp_path / "second" / "out" / "trials" / "0" / "report.json").stat().st_mtime_ns == written


def test_a_file_without_a_search_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(SMALL)
    done = uniference("search", "sweep.toml", cwd=tmp_path)
    assert done.code == 2
    assert "hint: add [search]" in done.err
    assert not (tmp_path / "uniference-out").exists()
