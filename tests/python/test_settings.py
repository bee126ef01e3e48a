"""Settings of NCCL and CUDA by environment variables and configurations: their effects, and the warnings about settings
without a model."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import gpus, uniference, write_script

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

HEAD = """
import os, time
import torch, torch.distributed as dist

rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])

def took(call):
    call(); torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record(); call(); end.record(); torch.cuda.synchronize()
    return round(begin.elapsed_time(end) * 1e3, 1)

def say(name, figure):
    if rank == 0:
        print(name, figure, flush=True)
"""


def run(
    directory: Path, source: str, ranks: int = 1, per_host: int | None = None, environment: dict[str, str] | None = None
) -> tuple[dict[str, float], str]:
    """Runs a script. Returns the figures that it prints, by name, and the report's warnings; checks that replays give the same figures."""
    (directory / "cluster.toml").write_text(gpus(ranks, per_host))
    script = write_script(directory, HEAD + source)
    options = ("--cluster", "cluster.toml", "--cuda", "--compute", "model", "--values", "small", "--out", "out")
    done = uniference("run", *options, script, cwd=directory, env=environment, cold=environment is not None)
    assert done.code == 0, done.err + done.out
    report = json.loads((directory / "out" / "report.json").read_text())
    replay = uniference("replay", "out", "--json", cwd=directory)
    assert replay.code == 0, replay.err
    assert json.loads(replay.out)["digest"] == report["digest"]
    warnings = "\n".join(report["warnings"])
    assert all(line.splitlines()[0] in done.err for line in report["warnings"])
    said = re.findall(r"^(?:\[\d+\] )?(\w+) ([\d.]+)$", done.out, re.M)
    return {name: float(figure) for name, figure in said}, warnings


def test_nccl_follows_its_settings_by_communicator(tmp_path: Path) -> None:
    """All-reduces of 256 MiB among 4 GPUs with links of 360 GB/s. A ring moves 3/2 of the bytes and the tail of a step at
    95 % of the links' rate, or at a 24th of that rate per channel; without peer access it moves them through the host's
    memory, by links of 51.2 GB/s."""
    said, warnings = run(
        tmp_path,
        """
torch.cuda.set_device(local)
dist.init_process_group("nccl", device_id=torch.device("cuda", local))
x = torch.ones(1 << 26, device="cuda")

def under(name, options=None, **variables):
    os.environ.update(variables)
    group = dist.new_group(pg_options=options)
    say(name, took(lambda: dist.all_reduce(x, group=group)))
    for variable in variables:
        del os.environ[variable]
    return group

under("usual")
under("ring", NCCL_ALGO="Ring")
under("without_nvls", NCCL_NVLS_ENABLE="0")
under("ll", NCCL_ALGO="Ring", NCCL_PROTO="LL")
under("four_channels", NCCL_ALGO="Ring", NCCL_MAX_NCHANNELS="4")
under("by_host", NCCL_P2P_DISABLE="1")
options = dist.ProcessGroupNCCL.Options()
options.config.max_ctas = options.config.min_ctas = 1
one = under("one_channel", options, NCCL_ALGO="Ring", NCCL_PROTO="Simple")
parts = torch.empty_like(x)
say("all_to_all_one", took(lambda: dist.all_to_all_single(parts, x, group=one)))
say("all_to_all", took(lambda: dist.all_to_all_single(parts, x)))
dist.destroy_process_group()
""",
        ranks=4,
    )
    size = 2**28 / 1e3  # microseconds at 1 GB/s
    near = lambda figure: pytest.approx(figure, rel=0.05)  # noqa: E731
    # Constants of docs/explanation/network-model.md for H100. The events add another microsecond.
    ring = 6.42 / 4 * size  # with the tail of Simple, 0.42 of a step
    fill = 4 * 16 * 2**17 / 1e3  # 128 KiB per rank and channel
    assert said["usual"] == pytest.approx((size + fill) / (0.823 * 360 / (1 + 1 / 4)) + 8.4, abs=1.5)
    overhead = 15.7 + 6 * (0.84 + 948 / 360)
    assert said["ring"] == said["without_nvls"] == pytest.approx(ring / (0.95 * 360) + overhead, abs=1.5)
    assert said["ll"] == near(7 / 4 * size / (0.518 * 360))
    assert said["four_channels"] == near(ring / (0.95 * 360 / 6))
    assert said["one_channel"] == near(ring / (0.95 * 360 / 24))
    assert said["by_host"] == near(ring / (0.93 * 51.2 * (2 / 4) ** 1.93))
    assert said["all_to_all_one"] > 20 * said["all_to_all"]
    assert "not modelled" not in warnings


def test_what_is_not_modelled_is_warned_about(tmp_path: Path) -> None:
    source = """
torch.cuda.set_device(local)
dist.init_process_group("nccl")
stream = torch.cuda.Stream(priority=-1)
torch.cuda.Stream(priority=-2).record_event()
x = torch.ones(4, device="cuda")
dist.all_reduce(x)
with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
    x + x
torch.cuda.synchronize()
dist.destroy_process_group()
"""
    unmodelled = {"NCCL_BUFFSIZE": "8388608", "NCCL_ALGOS": "Ring", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    between = {"NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "WARN", "NCCL_IB_TIMEOUT": "22"}
    _, warnings = run(tmp_path, source, ranks=2, per_host=1, environment=unmodelled | between)
    for name, value in (unmodelled | {"NCCL_IB_DISABLE": "1"}).items():
        assert warnings.count(f"{name}={value} is not modelled") == 1, warnings
    assert "NCCL_DEBUG" not in warnings
    assert "NCCL_IB_TIMEOUT" not in warnings
    assert warnings.count("priorities of CUDA streams are not modelled") == 1
    # No warnings about a disabled network on one host, nor about priorities if no work is launched on a stream with one.
    source = source.replace("priority=-1", "")
    _, warnings = run(tmp_path, source, ranks=2, environment=between)
    assert "not modelled" not in warnings


def test_simulated_nccl_warns_about_its_groups(tmp_path: Path) -> None:
    """Variables of the network matter to a group across two servers of two ranks, and not to a group within a server."""
    (tmp_path / "cluster.toml").write_text(gpus(4, per_server=2))
    script = write_script(
        tmp_path,
        """
import sys
import torch.distributed as dist
dist.init_process_group("gloo")
options = dist.ProcessGroupNCCL.Options() if "options" in sys.argv else None
# A literal "nccl" in the source would ask for simulated GPUs, on which NCCL is PyTorch's own.
dist.new_group([0, int(sys.argv[1])], backend="NCCL".lower(), pg_options=options)
dist.destroy_process_group()
""",
    )

    def warnings(*words: str, cluster: tuple[Any, ...] = ("--cluster", "cluster.toml")) -> str:
        command = ("run", *cluster, "--out", "out", script, *words)
        done = uniference(*command, cwd=tmp_path, env={"NCCL_IB_DISABLE": "1"}, cold=True)
        assert done.code == 0, done.err + done.out
        return "\n".join(json.loads((tmp_path / "out" / "report.json").read_text())["warnings"])

    assert "NCCL_IB_DISABLE" not in warnings("1")
    assert warnings("2").count("NCCL_IB_DISABLE=1 is not modelled") == 1
    # Without GPUs, NCCL is the simulator's.
    assert "pg_options have no effect" in warnings("1", "options", cluster=("--ranks", 2))


LAUNCHES = """
x = torch.empty(1 << 26, device="cuda")
torch.cuda.synchronize()
begin = time.perf_counter()
for _ in range(10):
    x.add_(1)
say("launched", round((time.perf_counter() - begin) * 1e6))
torch.cuda.synchronize()
say("ended", round((time.perf_counter() - begin) * 1e6))
"""


def test_launches_block(tmp_path: Path) -> None:
    """Each of 10 operators moves 512 MiB at 3.35 TB/s and takes 160 us."""
    said, _ = run(tmp_path, LAUNCHES)
    assert said["launched"] < 100
    assert said["ended"] > 1_600
    said, warnings = run(tmp_path, LAUNCHES, environment={"CUDA_LAUNCH_BLOCKING": "1"})
    assert said["launched"] > 1_600
    assert said["ended"] - said["launched"] < 20
    assert "not modelled" not in warnings


def test_kernels_outside_of_operators_block(tmp_path: Path) -> None:
    """The kernel of `torch.cuda._sleep` spins for 2e6 cycles, which are more than 0.9 ms; the other one's time is unknown."""
    source = """
double = torch.cuda.jiterator._create_jit_fn("template <typename T> T twice(T x) { return x + x; }")
x = torch.ones(1 << 26, device="cuda")
double(x)
torch.cuda.synchronize()
begin = time.perf_counter()
torch.cuda._sleep(2_000_000)
say("slept", round((time.perf_counter() - begin) * 1e6))
double(x)
say("launched", round((time.perf_counter() - begin) * 1e6))
torch.cuda.synchronize()
say("ended", round((time.perf_counter() - begin) * 1e6))
"""
    said, _ = run(tmp_path, source, environment={"CUDA_LAUNCH_BLOCKING": "1"})
    assert said["slept"] > 900
    assert said["ended"] - said["launched"] < 20


def test_a_graph_with_a_collective_is_captured_if_launches_block(tmp_path: Path) -> None:
    """The replay, too, ends before its launch returns."""
    source = """
torch.cuda.set_device(local)
dist.init_process_group("nccl", device_id=torch.device("cuda", local))
x = torch.ones(1 << 26, device="cuda")
dist.all_reduce(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    dist.all_reduce(x)
begin = time.perf_counter()
graph.replay()
say("launched", round((time.perf_counter() - begin) * 1e6))
torch.cuda.synchronize()
say("ended", round((time.perf_counter() - begin) * 1e6))
dist.destroy_process_group()
"""
    said, _ = run(tmp_path, source, ranks=2, environment={"CUDA_LAUNCH_BLOCKING": "1"})
    assert said["launched"] > 500
    assert said["ended"] - said["launched"] < 20


@pytest.mark.parametrize(("override", "tflops"), [("0", [66.9, 66.9]), ("1", [66.9, 494.5]), ("", [66.9, 494.5])])
def test_tf32_is_overridden(tmp_path: Path, override: str, tflops: list[float]) -> None:
    """A GEMM of 2 x 8192^3 operations, with TF32 forbidden and allowed by the program, reaches at least half of the device's rate."""
    said, warnings = run(
        tmp_path,
        """
x = torch.empty(8192, 8192, device="cuda")
torch.backends.cuda.matmul.allow_tf32 = False
say("forbidden", took(lambda: x @ x))
torch.backends.cuda.matmul.allow_tf32 = True
say("allowed", took(lambda: x @ x))
""",
        environment={"NVIDIA_TF32_OVERRIDE": override},
    )
    for name, rate in zip(("forbidden", "allowed"), tflops, strict=True):
        least = 2 * 8192**3 / (rate * 1e6)
        assert least < said[name] < 2 * least, (name, said)
    assert ("NVIDIA_TF32_OVERRIDE=1 is not modelled" in warnings) == (override == "1")
