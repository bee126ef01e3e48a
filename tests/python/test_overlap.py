"""Compute that could overlap operations: `uniference whatif` finds it, and predicts the changed program's makespan."""

import json
from pathlib import Path

import pytest
from harness import uniference

# A prefill that is sharded over the sequence: each rank has its part of the activations, and attention needs keys and
# values of all ranks.
PREFILL = """
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
WIDTH, LENGTH, LAYERS = 256, 64, 3
layers = [[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)] for _ in range(LAYERS)]
gathered = torch.empty(LENGTH * size, WIDTH)


def attention(x, query, key, value, output):
    normed = torch.nn.functional.layer_norm(x, (WIDTH,))
    if "overlapped" in sys.argv:
        work = dist.all_gather_into_tensor(gathered, normed, async_op=True)
        q = query(normed)
        work.wait()
    else:
        dist.all_gather_into_tensor(gathered, normed)
        q = query(normed)
    k, v = key(gathered), value(gathered)
    scores = torch.softmax(q @ k.T / WIDTH**0.5, dim=-1)
    return x + output(scores @ v)


with torch.no_grad():
    x = torch.randn(LENGTH, WIDTH)
    for layer in layers:
        x = attention(x, *layer)
dist.destroy_process_group()
"""
# Each GEMM needs the sum of the all-reduce before it.
CHAIN = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
weight, x = torch.randn(256, 256), torch.randn(64, 256)
for _ in range(3):
    x = x @ weight
    dist.all_reduce(x)
dist.destroy_process_group()
"""
BOARDS = """
[[device]]
name = "board"
count = 4
peak_flops = "20 GFLOPS"
memory_bandwidth = "8 GB/s"
[network]
bandwidth = "1 Gbps"
latency = "100 us"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prefill.py").write_text(PREFILL)
    (tmp_path / "chain.py").write_text(CHAIN)
    (tmp_path / "boards.toml").write_text(BOARDS)
    return tmp_path


def run(folder: Path, out: str, *words: str, compute: str = "model") -> float:
    done = uniference("run", "--cluster", "boards.toml", "--compute", compute, "--out", out, *words, cwd=folder)
    assert done.code == 0, done.err
    makespan: float = json.loads((folder / out / "report.json").read_text())["makespan_s"]
    return makespan


def whatif(folder: Path, *words: str) -> dict:
    done = uniference("whatif", "base", *words, "--json", cwd=folder)
    assert done.code == 0, done.err
    answer: dict = json.loads(done.out)
    return answer


def line_of(source: str, text: str, nth: int = 0) -> int:
    return [number for number, line in enumerate(source.splitlines(), 1) if text in line][nth]


def test_the_query_projection_does_not_need_the_gathered_activations(folder: Path) -> None:
    before = run(folder, "base", "prefill.py")
    overlapped = run(folder, "other", "prefill.py", "overlapped")
    gather = f"prefill.py:{line_of(PREFILL, 'dist.all_gather_into_tensor', 1)}"
    table = whatif(folder)
    (row,) = [change for change in table["changes"] if change["options"] == ["--overlap", gather]]
    assert overlapped < 0.97 * before
    assert row["makespan_s"] == pytest.approx(overlapped, rel=0.02)
    (chance,) = [chance for chance in table["overlap"]["operations"] if chance["line"].endswith(gather)]
    assert (chance["operation"], chance["calls"]) == ("all_gather", 12)
    first = chance["compute"][0]
    assert (first["line"], first["before"]) == (
        f"{folder}/prefill.py:{line_of(PREFILL, 'q = query(normed)', 1)}",
        False,
    )
    # A single requested overlap gives the same result, and is printed as text.
    alone = whatif(folder, "--overlap", gather)
    assert alone["changes"][0]["digest"] == row["digest"]
    done = uniference("whatif", "base", cwd=folder)
    assert f"all_gather at {gather} could overlap the compute of prefill.py:" in done.out.replace("\n", " "), done.out


def test_compute_that_was_measured_is_divided(folder: Path) -> None:
    before = run(folder, "base", "prefill.py", compute="measured")
    row = whatif(folder, "--overlap", f"prefill.py:{line_of(PREFILL, 'dist.all_gather_into_tensor', 1)}")["changes"][0]
    assert 0 < row["makespan_s"] < before


def test_a_program_without_such_a_chance_is_told_so(folder: Path) -> None:
    run(folder, "base", "chain.py")
    answer = whatif(folder)
    assert answer["overlap"] == {"operations": []}
    done = uniference("whatif", "base", cwd=folder)
    assert "no operation could overlap compute" in done.out
    # Moving no operation changes nothing.
    nothing = whatif(folder, "--overlap", f"chain.py:{line_of(CHAIN, 'dist.all_reduce')}")
    assert nothing["changes"][0]["makespan_s"] == answer["makespan_s"]


def test_what_cannot_be_moved_is_refused(folder: Path) -> None:
    run(folder, "base", "chain.py")
    run(folder, "earlier", "chain.py", compute="measured")
    no_call = uniference("whatif", "base", "--overlap", "chain.py:1", cwd=folder)
    assert no_call.code == 2
    assert "no operation that is called at this line" in no_call.err
    no_line = uniference("whatif", "base", "--overlap", "chain.py", cwd=folder)
    assert no_line.code == 2
    assert "FILE:LINE" in no_line.err
    whole = uniference("whatif", "base", "--compute", "from=earlier", "--overlap", "chain.py:9", cwd=folder)
    assert whole.code == 2
    assert "divides slices" in whole.err
    run(folder, "base", "chain.py", compute="none")
    unknown = uniference("whatif", "base", cwd=folder)
    assert unknown.code == 0
    assert "not examined for overlap" in unknown.out
