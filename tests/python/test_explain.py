"""The critical path of runs of programs, and changes that would shorten it: `uniference explain` and `uniference
whatif`."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from harness import ONE_GPU, uniference

# Tensor parallelism: two GEMMs and an all-reduce per layer, first in prefill, then in decode.
SERVE = """
import torch
import torch.distributed as dist
from torch.profiler import record_function

dist.init_process_group("gloo")
size = dist.get_world_size()
torch.manual_seed(0)
up, down = torch.randn(256, 512 // size), torch.randn(512 // size, 256)


def layer(x):
    y = torch.relu(x @ up) @ down
    dist.all_reduce(y)
    return y


with record_function("prefill"):
    layer(torch.randn(512, 256))
with record_function("decode"):
    for _ in range(10):
        layer(torch.randn(1, 256))
dist.destroy_process_group()
"""
WIFI = """
[[device]]
name = "board"
count = 2
model = "raspberry-pi-5"
[[device]]
name = "old"
model = "raspberry-pi-5"
slowdown = 3
[network]
preset = "wifi"
bandwidth = "100 Mbps"
latency = "3 ms"
"""
# A GPU that is behind its host: during its GEMMs, the program waits in another range, and at another line.
MULTIPLY = """
import torch
from torch.profiler import record_function

a = torch.ones(2048, 2048, device="cuda", requires_grad=True)
with record_function("forward"):
    b = a
    for _ in range(20):
        b = b @ a
with record_function("wait"):
    torch.cuda.synchronize()
b.sum().backward()
torch.cuda.synchronize()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "serve.py").write_text(SERVE)
    (tmp_path / "wifi.toml").write_text(WIFI)
    return tmp_path


def run(folder: Path, out: str, *options: str) -> dict:
    done = uniference("run", "--cluster", "wifi.toml", "--out", out, *options, "serve.py", cwd=folder)
    assert done.code == 0, done.err
    report: dict = json.loads((folder / out / "report.json").read_text())
    return report


def asked(folder: Path, *words: str) -> dict:
    done = uniference(*words, "--json", cwd=folder)
    assert done.code == 0, done.err
    answer: dict = json.loads(done.out)
    return answer


@pytest.mark.parametrize("compute", ["none", "model", "from=measured"])
def test_a_what_if_is_the_run_of_the_program_with_the_change(folder: Path, compute: str) -> None:
    if compute == "from=measured":
        run(folder, "measured", "--compute", "measured")
    run(folder, "base", "--compute", compute)
    compared = 0
    for number, change in enumerate(
        [
            ("--set", "network.latency=0"),
            ("--set", "device.old.slowdown=/3"),
            ("--free", "all_reduce"),
            ("--algorithm", "all_reduce=ring"),
        ]
    ):
        fresh = run(folder, f"fresh-{number}", "--compute", compute, *change)
        # Ranks meet in the store: the first rank there may have more slices of compute, which were then measured anew.
        if any("no counterpart in the earlier run" in warning for warning in fresh["warnings"]):
            continue
        (outcome,) = asked(folder, "whatif", "base", *change)["changes"]
        assert outcome["digest"] == fresh["digest"], change
        assert outcome["makespan_s"] == fresh["makespan_s"]
        compared += 1
    assert compared > 0 if compute == "from=measured" else compared == 4


def test_a_run_says_what_it_had_to_wait_for(folder: Path) -> None:
    report = run(folder, "base", "--compute", "model")
    explanation = asked(folder, "explain", "base")
    path = report["critical_path"]
    assert [part["seconds"] for part in path["kinds"]] == [part["seconds"] for part in explanation["kinds"]]
    assert sum(part["seconds"] for part in explanation["kinds"]) == pytest.approx(report["makespan_s"])
    for listed in ("ranks", "lines", "ranges", "parts"):
        assert sum(part["seconds"] for part in explanation[listed]) == pytest.approx(report["makespan_s"]), listed
    # Tokens are small: their time is the latency of the radio, at the line of the all-reduce.
    line = f"{folder}/serve.py:{1 + SERVE[: SERVE.index('dist.all_reduce')].count(chr(10))}"
    assert explanation["lines"][0]["name"] == line
    assert {part["name"] for part in explanation["ranges"]} >= {"prefill", "decode"}
    assert explanation["operations"][0]["name"] == "all_reduce"


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")
def test_work_of_a_gpu_has_the_line_and_the_range_of_its_launch(tmp_path: Path) -> None:
    (tmp_path / "gpu.toml").write_text(ONE_GPU)
    (tmp_path / "multiply.py").write_text(MULTIPLY)
    options = ("--cuda", "--cluster", "gpu.toml", "--values", "small", "--out", "out")
    done = uniference("run", *options, "multiply.py", cwd=tmp_path)
    assert done.code == 0, done.err
    explanation = asked(tmp_path, "explain", "out")
    line = f"multiply.py:{1 + MULTIPLY[: MULTIPLY.index('b @ a')].count(chr(10))}"
    products = {Path(part["line"]).name: part for part in explanation["parts"] if part["name"] == "aten::mm"}
    # Each GEMM has two in the backward pass.
    assert {name: part["count"] for name, part in products.items()} == {line: 20, f"{line} (backward)": 40}
    ranges = {part["name"]: part["seconds"] for part in explanation["ranges"]}
    assert ranges["forward"] >= products[line]["seconds"] > 0.9 * ranges["forward"]
    assert ranges.get("wait", 0) < 0.01 * ranges["forward"]
    # The change halves both passes.
    (outcome,) = asked(tmp_path, "whatif", "out", "--line", f"{line}=0.5")["changes"]
    of_line = sum(part["seconds"] for part in explanation["lines"] if line in str(part["name"]))
    assert outcome["gain_s"] == pytest.approx(of_line / 2, rel=0.01)


def test_ranges_are_summed_on_each_rank(folder: Path) -> None:
    report = run(folder, "base", "--compute", "model")
    rows = {(row["name"], row["rank"]): row for row in report["phases"]}
    assert {rank for name, rank in rows if name == "decode"} == {0, 1, 2}
    for rank, whole in enumerate(report["ranks"]):
        parts = [rows[name, rank] for name in ("prefill", "decode")]
        for part in parts:
            assert part["count"] == 1
            assert part["p50_s"] == part["p99_s"] == pytest.approx(part["total_s"])
            assert part["compute_s"] + part["exposed_comm_s"] == pytest.approx(part["total_s"])
        # All communication of the program itself is in one of the two ranges; outside of them ranks meet in the store.
        assert sum(part["exposed_comm_s"] for part in parts) == pytest.approx(whole["exposed_comm_s"])
    # A replay has the same ranges.
    assert uniference("replay", "base", "--out", "again", cwd=folder).code == 0
    assert json.loads((folder / "again" / "report.json").read_text())["phases"] == report["phases"]


def test_the_table_names_the_radio_first(folder: Path) -> None:
    report = run(folder, "base", "--compute", "model")
    results = asked(folder, "whatif", "base")
    gains = {" ".join(change["options"]): change["gain_s"] for change in results["changes"]}
    assert list(gains.values()) == sorted(gains.values(), reverse=True)
    latency, bandwidth = gains["--set network.latency=0"], gains["--set network.bandwidth=*2"]
    assert gains["--free all_reduce"] >= latency > bandwidth > gains["--set device.board.slowdown=/2"]
    # The gain of a free operation is at most its time on the critical path.
    (freed,) = [part for part in asked(folder, "explain", "base")["operations"] if part["name"] == "all_reduce"]
    assert gains["--free all_reduce"] <= freed["seconds"] + 1e-9
    assert results["makespan_s"] == report["makespan_s"]


def test_the_changed_run_has_a_report_of_its_own(folder: Path) -> None:
    run(folder, "base", "--compute", "model")
    done = uniference("whatif", "base", "--set", "network.latency=0", "--out", "changed", cwd=folder)
    assert done.code == 0, done.err
    assert "results: changed" in done.out
    report = json.loads((folder / "changed" / "report.json").read_text())
    (outcome,) = asked(folder, "whatif", "base", "--set", "network.latency=0")["changes"]
    assert report["digest"] == outcome["digest"]
    again = uniference("replay", "changed", "--out", "again", cwd=folder)
    assert again.code == 0
    assert json.loads((folder / "again" / "report.json").read_text())["digest"] == report["digest"]


def test_a_program_that_reads_the_clock_is_offered_to_be_run_again(folder: Path) -> None:
    (folder / "serve.py").write_text(
        "import time\n" + SERVE.replace("dist.destroy", "print(time.time())\ndist.destroy")
    )
    run(folder, "base", "--compute", "none")
    done = uniference("whatif", "base", "--set", "network.latency=0", cwd=folder)
    assert "read the clock after" in done.err, done.err
    again = shlex.split(done.out.partition("to run the program itself with the change: ")[2].splitlines()[0])
    assert again[:4] == ["uniference", "run", "--set", "network.latency=0"], again


def test_a_run_without_a_record_has_no_explanation(folder: Path) -> None:
    report = run(folder, "base", "--compute", "none", "--record", "summary")
    assert "critical_path" not in report
    for command in ("explain", "whatif"):
        done = uniference(command, "base", cwd=folder)
        assert done.code == 2
        assert "hint:" in done.err


def test_python_has_the_same_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import uniference as api

    monkeypatch.chdir(folder)
    base = api.simulate("serve.py", cluster="wifi.toml", compute="model", out="base")
    assert {phase.name for phase in base.phases} >= {"prefill", "decode"}
    explanation = api.explain(base)
    longest, *_ = base.critical_path
    assert (longest.kind, longest.seconds) == (explanation["parts"][0]["kind"], explanation["parts"][0]["seconds"])
    (change,) = api.whatif(base, set="network.latency=0")["changes"]
    faster = api.replay(base, set="network.latency=0", out="faster")
    assert change["makespan_s"] == faster.makespan
    difference = api.diff(base, faster)
    assert difference["difference_s"] == pytest.approx(-change["gain_s"])
    for listed in ("kinds", "ranks", "lines", "ranges", "parts"):
        total = sum(part["difference_s"] for part in difference[listed])
        assert total == pytest.approx(difference["difference_s"]), listed
    with pytest.raises(api.SimulationError, match="unknown operation"):
        api.whatif("base", free="all_redcue")
