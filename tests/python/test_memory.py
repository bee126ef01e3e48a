"""Memory of ranks: in reports and traces, against a device's limit, and in the answers of `uniference fit`."""

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from harness import Done, uniference, write_script

from uniference.rank import capture

LARGE = Path(__file__).parent / "large_model.py"
SETUP = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"

pytestmark = pytest.mark.skipif(capture.load() is None, reason="allocations are known to the C++ library")


def cluster(directory: Path, memory: str | None, count: int = 2) -> Path:
    path = directory / "cluster.toml"
    size = f'memory = "{memory}"\n' if memory else ""
    path.write_text(f'[[device]]\nname = "gpu"\ncount = {count}\n{size}[network]\n')
    return path


def run(directory: Path, source: str, *options: object) -> Done:
    return uniference("run", *options, "--out", directory / "out", write_script(directory, source), cwd=directory)


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


def at_peak(rows: list[dict[str, Any]], rank: int) -> dict[str, int]:
    return {row["kind"]: row["peak_bytes"] for row in rows if row["rank"] == rank}


def counters(folder: Path, rank: int) -> list[dict[str, int]]:
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return [e["args"] for e in events if e["ph"] == "C" and e["name"] == "memory" and e["pid"] == rank + 1]


TRAINING = SETUP + (
    "model = torch.nn.Sequential(*(torch.nn.Linear(500, 500, bias=False) for _ in range(2)))\n"
    "optimizer = torch.optim.Adam(model.parameters(), foreach=False)\n"
    "for _ in range(2):\n"
    "    model(torch.randn(8, 500)).square().mean().backward()\n"
    "    for parameter in model.parameters():\n"
    "        dist.all_reduce(parameter.grad)\n"
    "    optimizer.step()\n"
    "    dist.barrier()\n"
    "    optimizer.zero_grad()\n"
)


def test_a_report_a_trace_and_a_replay_have_what_ranks_held(tmp_path: Path) -> None:
    done = run(tmp_path, TRAINING, "--ranks", 2)
    assert done.code == 0, done.err
    out = tmp_path / "out"
    rows = report(out)["memory"]
    # Two matrices of 500 x 500 float32; gradients of the same size; optimizer states of twice that size, and a step
    # count per matrix.
    held = at_peak(rows, 1)
    assert (held["parameters"], held["gradients"], held["optimizer"]) == (2_000_000, 2_000_000, 4_000_008)
    assert {(row["line"], row["function"]) for row in rows} == {(f"{tmp_path / 'script.py'}:9", "<module>")}
    assert "memory: at most " in done.out
    assert "optimizer 3.81 MiB" in done.out
    points = counters(out, 0)
    assert max(sum(point.values()) for point in points) == sum(at_peak(rows, 0).values())
    # Gradients have their kind from the first one on, before the first optimizer step identifies them.
    first = next(at for at, point in enumerate(points) if point["gradients"] > 0)
    assert points[first]["gradients"] == 2_000_000
    assert points[first]["optimizer"] == 0
    again = uniference("replay", out, "--out", tmp_path / "again", cwd=tmp_path)
    assert again.code == 0, again.err
    for name in ("report.json", "trace.json"):
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes()
    elsewhere = uniference("replay", out, "--ranks", 2, "--latency", "1 ms", "--out", tmp_path / "other", cwd=tmp_path)
    assert elsewhere.code == 0, elsewhere.err
    assert report(tmp_path / "other")["memory"] == rows


# 60 + 40 MiB are the whole memory; one more byte exceeds it.
FULL = SETUP + (
    "import os\n"
    "print('process', os.getpid(), flush=True)\n"
    "first = torch.empty(60 << 20, dtype=torch.uint8)\n"
    "second = torch.nn.Module()\n"
    "second.weight = torch.nn.Parameter(torch.empty(10 << 20))\n"
)


MAPPED = SETUP + (
    "import mmap, numpy\n"
    "array = numpy.frombuffer(mmap.mmap(-1, 4_000_000), dtype=numpy.float32)\n"
    "model = torch.nn.Linear(1000, 1000, bias=False, device='meta')\n"
    "model.load_state_dict({'weight': torch.from_numpy(array).view(1000, 1000)}, assign=True)\n"
    "del array\n"
    "dist.barrier()\n"
    "kept = model.weight.detach().double()\n"
    "del model\n"
    "dist.barrier()\n"
    "more = torch.ones(500_000)\n"
)


def test_parameters_that_torch_did_not_allocate_are_counted_as_long_as_they_live(tmp_path: Path) -> None:
    done = run(tmp_path, MAPPED, "--ranks", 2)
    assert done.code == 0, done.err
    # The peak includes the copy of 8 MB and the barrier's byte; allocations after the parameters' end do not add to the
    # peak.
    assert at_peak(report(tmp_path / "out")["memory"], 0) == {"parameters": 4_000_000, "activations": 8_000_001}
    assert counters(tmp_path / "out", 0)[-1]["parameters"] == 0
    refused = run(tmp_path, MAPPED, "--cluster", cluster(tmp_path, "11 MB"))
    assert refused.code == 1
    assert "Of the allocated memory 3.81 MiB is parameters" in refused.err


LAZY = SETUP + (
    "model = torch.nn.Sequential(torch.nn.LazyLinear(1000, bias=False), torch.nn.Linear(1000, 10, bias=False))\n"
    "model(torch.ones(1, 1000)).sum().backward()\n"
    "torch.optim.SGD(model.parameters()).step()\n"
)


def test_parameters_that_have_no_memory_at_first_are_counted_once_they_have(tmp_path: Path) -> None:
    done = run(tmp_path, LAZY, "--ranks", 2)
    assert done.code == 0, done.err
    # 1000 x 1000 and 1000 x 10 elements of 4 bytes.
    assert at_peak(report(tmp_path / "out")["memory"], 0)["parameters"] == 4_040_000


THREADS = """
import threading, torch
x = [torch.zeros(64, 64, requires_grad=True) for _ in range(2)]
made, first = {}, threading.Event()

def squared():
    made["squared"] = x[0] @ x[0]
    first.set()

def doubled():
    first.wait()
    made["doubled"] = x[1] * 2.0

threads = [threading.Thread(target=work) for work in (squared, doubled)]
for thread in threads: thread.start()
for thread in threads: thread.join()
made["squared"].sum().backward()
made["doubled"].sum().backward()
"""


def test_the_backward_pass_of_a_thread_is_that_of_its_own_lines(tmp_path: Path) -> None:
    """Threads number the nodes of their graphs separately, from zero."""
    done = run(tmp_path, THREADS, "--ranks", 1)
    assert done.code == 0, done.err
    rows = report(tmp_path / "out")["memory"]
    # Two gradients of one GEMM at once.
    assert {(row["line"].rpartition(":")[2], row["function"], row["backward"]) for row in rows} == {
        ("7", "squared", True)
    }, rows


SHARDED = SETUP + (
    "from torch.distributed.fsdp import fully_shard\n"
    "model = torch.nn.Sequential(torch.nn.Linear(1000, 1000, bias=False), torch.nn.Linear(1000, 1000, bias=False))\n"
    "fully_shard(model)\n"
    "model(torch.ones(4000, 1000))\n"
)


def test_what_fsdp_keeps_of_parameters_is_known_before_the_first_step(tmp_path: Path) -> None:
    refused = run(tmp_path, SHARDED, "--cluster", cluster(tmp_path, "30 MB"))
    assert refused.code == 1
    # Half of 8 MB on each of the two ranks.
    assert "Of the allocated memory 3.81 MiB is parameters, 0 bytes gradients" in refused.err, refused.err


@pytest.mark.parametrize("options", [(), ("--compute", "none"), ("--compute", "none", "--values", "small")])
def test_a_rank_gets_no_more_than_its_device_has(tmp_path: Path, options: tuple[str, ...]) -> None:
    where = ("--cluster", cluster(tmp_path, "100 MiB"), *options)
    fits = run(tmp_path, FULL, *where)
    assert fits.code == 0, fits.err
    exceeds = run(tmp_path, FULL + "torch.empty(1, dtype=torch.uint8)\n", *where)
    assert exceeds.code == 1
    said = (
        "gpu.0 is out of memory. Tried to allocate 1 bytes. The device has a total capacity of 100.00 MiB of which 0 bytes is free. "
        "Of the allocated memory 40.00 MiB is parameters, 0 bytes gradients, 0 bytes optimizer state, 0 bytes buffers, "
        "and 60.00 MiB activations and other tensors."
    )
    assert f"torch.OutOfMemoryError: {said}" in exceeds.err, exceeds.err
    assert "hint: `uniference fit` says" in exceeds.err
    for process in (exceeds.err + exceeds.out).split("process ")[1:]:
        # The process may be reaped a moment later.
        deadline = time.monotonic() + 10
        while Path(f"/proc/{int(process.split()[0])}").exists():
            assert time.monotonic() < deadline, "nothing stays behind"
            time.sleep(0.01)


def test_a_program_may_free_memory_and_go_on(tmp_path: Path) -> None:
    source = FULL + (
        "try:\n"
        "    torch.empty(30 << 20, dtype=torch.uint8)\n"
        "except torch.OutOfMemoryError as error:\n"
        "    assert 'out of memory' in str(error)\n"
        "    del first\n"
        "third = torch.empty(60 << 20, dtype=torch.uint8)\n"
        "print('went on')\n"
    )
    done = run(tmp_path, source, "--cluster", cluster(tmp_path, "100 MiB"))
    assert done.code == 0, done.err
    assert done.out.count("went on") == 2


def test_a_tensor_that_this_machine_has_no_memory_for_ends_the_run(tmp_path: Path) -> None:
    source = SETUP + "try:\n    torch.zeros(1 << 50)\nexcept Exception:\n    print('caught')\n"
    done = run(tmp_path, source, "--ranks", 2)
    assert done.code == 2, done.err
    assert "caught" not in done.out
    assert "allocates 4096.00 TiB at " in done.err
    assert "script.py:4, but only " in done.err
    assert "hint: large tensors take no memory with --values small" in done.err
    small = run(
        tmp_path,
        SETUP + "print(torch.zeros(1 << 40).sum().item())\n",
        "--ranks",
        2,
        "--compute",
        "none",
        "--values",
        "small",
    )
    assert small.code == 0, small.err


def test_a_run_that_leaves_almost_nothing_of_a_device_is_called_tight(tmp_path: Path) -> None:
    def warnings(memory: str) -> list[str]:
        done = run(tmp_path, FULL, "--cluster", cluster(tmp_path, memory))
        assert done.code == 0, done.err
        found = [warning for warning in report(tmp_path / "out")["warnings"] if "tight" in warning]
        assert all(warning.splitlines()[0] in done.err for warning in found)
        return found

    # The program holds 100 MiB: 98 % of 102 MiB, and 97 % of 103 MiB.
    [warning] = warnings("102 MiB")
    assert warning.startswith(
        "memory is tight: rank 0 leaves 2.00 MiB of the 102.00 MiB of device `gpu.0`; 2 of 2 ranks"
    )
    assert warnings("103 MiB") == []


@pytest.mark.parametrize("command", ["replay", "explain", "whatif"])
def test_a_replay_without_the_memory_that_its_run_held_ends_as_the_program_would(command: str, tmp_path: Path) -> None:
    more = FULL + "third = torch.empty(1, dtype=torch.uint8)\ndist.barrier()\n"
    # Modelled compute lets both ranks allocate at the same time; measured compute lets one of them be the first.
    rates = ("--set", 'device.gpu.peak_flops="1 TFLOPS"', "--set", 'device.gpu.memory_bandwidth="100 GB/s"')
    done = run(tmp_path, more, "--cluster", cluster(tmp_path, None), *rates, "--compute", "model")
    assert done.code == 0, done.err

    def again(memory: str) -> Done:
        out = ("--out", tmp_path / "again") if command == "replay" else ()
        size = f'device.gpu.memory="{memory}"'
        return uniference(command, tmp_path / "out", "--set", size, *out, cwd=tmp_path)

    fits = again("200 MiB")
    assert fits.code == 0, fits.err
    # The error names the line of the first allocation that does not fit, although the recorded run continued.
    replayed = again("100 MiB")
    live = run(tmp_path, more, "--cluster", cluster(tmp_path, "100 MiB"))
    assert live.code == replayed.code == 1
    assert f'File "{tmp_path / "script.py"}", line 8' in live.err
    said = f"error: rank 0 runs out of memory at {tmp_path / 'script.py'}:8: it needs 100.00 MiB ("
    assert said in replayed.err, replayed.err
    assert "and device `gpu.0` has 100.00 MiB\nhint: " in replayed.err


TIMEOUT = SETUP + (
    "from datetime import timedelta\n"
    "x = torch.ones(1 << 20)\n"
    "if dist.get_rank() == 0:\n"
    "    dist.send(x, 1)\n"
    "else:\n"
    "    dist.irecv(x, 0).wait(timedelta(seconds=1))\n"
)


def test_a_replay_in_which_a_timeout_passes_that_did_not_ends_as_the_program_would(tmp_path: Path) -> None:
    done = run(tmp_path, TIMEOUT, "--ranks", 2, "--compute", "none")
    assert done.code == 0, done.err
    # The transfer of 4 MiB at 10 Mbps takes 3.4 s.
    slow = ("--set", 'network.bandwidth="10 Mbps"')
    replayed = uniference("replay", tmp_path / "out", *slow, "--out", tmp_path / "slow", cwd=tmp_path)
    assert replayed.code == 1
    assert "error: rank 1 reaches its timeout in recv at " in replayed.err, replayed.err
    assert "script.py:8 after 1" in replayed.err
    assert "which it did not in the recorded run\nhint: " in replayed.err
    assert run(tmp_path, TIMEOUT, "--ranks", 2, "--compute", "none", *slow).code == 1


ON_GPU = (
    "import torch, torch.distributed as dist\n"
    "dist.init_process_group('nccl')\n"
    "torch.cuda.set_device(dist.get_rank())\n"
    "kept = [torch.ones(1 << 20, device='cuda') for _ in range(8)]\n"
    "torch.cuda.synchronize()\n"
    "del kept[:4]\n"
    "kept[0].add_(1)\n"
    "torch.cuda.synchronize()\n"
)


def test_what_a_program_on_a_gpu_holds_grows_as_its_host_allocates(tmp_path: Path) -> None:
    file = tmp_path / "gpus.toml"
    file.write_text(
        'backend = "nccl"\n[[device]]\nname = "gpu"\nmodel = "h100-sxm"\ncount = 2\nhost = "server"\n[network]\n'
    )
    done = run(tmp_path, ON_GPU, "--cluster", file, "--cuda", "--values", "small")
    assert done.code == 0, done.err

    def times(folder: Path) -> list[tuple[float, int]]:
        events = json.loads((folder / "trace.json").read_text())["traceEvents"]
        memory = [e for e in events if e["ph"] == "C" and e["name"] == "memory" and e["pid"] == 1]
        return [(e["ts"], e["args"].get("activations", 0)) for e in memory]

    points = times(tmp_path / "out")
    # First times at which 4, 8 ... 32 MiB are held: the host needs at least 6 us for each tensor's operators.
    first = [min(at for at, held in points if held == size << 22) for size in range(1, 9)]
    assert all(later - before >= 6 for before, later in itertools.pairwise(first)), points
    # The tensors are freed after the synchronization, not before.
    assert min(at for at, held in points if at > first[-1] and held < 32 << 20) >= first[-1] + 6
    assert 16 << 20 in [held for at, held in points if at > first[-1]]
    again = uniference("replay", tmp_path / "out", "--out", tmp_path / "again", cwd=tmp_path)
    assert again.code == 0, again.err
    assert times(tmp_path / "again") == points


def fit(
    directory: Path, script: Path, memory: str | None, *options: object, count: int = 2, words: tuple[object, ...] = ()
) -> tuple[Done, Any]:
    where = ("--cluster", cluster(directory, memory, count))
    scratch = directory / "scratch"
    scratch.mkdir(exist_ok=True)
    done = uniference("fit", *where, "--json", *options, script, *words, cwd=directory, env={"TMPDIR": str(scratch)})
    assert not list(scratch.glob("uniference*")), "nothing stays behind"
    assert not (directory / "uniference-out").exists()
    return done, json.loads(done.out) if done.out else None


def test_fit_says_whether_by_how_much_and_why(tmp_path: Path) -> None:
    # At the peak: 2,000,000 of parameters and gradients each, 4,000,008 of the optimizer, and Adam's temporary memory
    # of a step.
    script = write_script(tmp_path, TRAINING)
    done, answer = fit(tmp_path, script, "1 GiB")
    assert done.code == 0, done.err
    assert answer["fits"] is True
    needs = answer["ranks"][0]
    assert needs["peak_bytes"] == sum(needs["kinds"].values())
    assert needs["memory_bytes"] == 1 << 30
    assert needs["kinds"]["optimizer"] == 4_000_008
    # The device's memory equals the peak to the byte.
    peak = needs["peak_bytes"]
    done, tight = fit(tmp_path, script, f"{peak} B")
    assert done.code == 0
    assert (answer["tight"], tight["tight"], tight["ranks"][0]["tight"]) == (False, True, True)
    words = uniference("fit", "--cluster", cluster(tmp_path, f"{peak} B"), script, cwd=tmp_path)
    assert "tight: 2 of 2 ranks leave at most 2 % of their device's memory" in words.out
    done, answer = fit(tmp_path, script, f"{peak - 1} B")
    assert done.code == 1, done.err
    assert answer["fits"] is False
    assert answer["ranks"][1]["peak_bytes"] == peak
    words = uniference("fit", "--cluster", cluster(tmp_path, "8 MiB"), script, cwd=tmp_path)
    assert words.code == 1
    assert "0-1 " in words.out
    assert "does not fit: rank 0 needs " in words.out
    assert "2 of 2 ranks do not fit" in words.out
    assert f"at {script}:9" in words.out
    assert "optimizer 3.81 MiB" in words.out


def test_fit_cannot_say_what_it_does_not_know(tmp_path: Path) -> None:
    script = write_script(tmp_path, TRAINING)
    done, answer = fit(tmp_path, script, None)
    assert done.code == 2
    assert answer["fits"] is None
    assert "the memory of device `gpu.0` is not known\nhint: " in done.err
    failing = write_script(tmp_path, SETUP + "raise ValueError('no data')\n")
    done, _ = fit(tmp_path, failing, "1 GiB")
    assert done.code == 2
    assert "ValueError: no data" in done.err
    assert "cannot say whether it fits" in done.err
    assert "hint: see its output above" in done.err
    endless = write_script(tmp_path, SETUP + "while True:\n    dist.barrier()\n")
    done, _ = fit(tmp_path, endless, "1 GiB", "--timeout", 3)
    assert done.code == 2
    assert "did not end within 3 s" in done.err
    assert "--timeout" in done.err
    # A program that exceeds a device before it fails does not fit in any case.
    both = write_script(tmp_path, SETUP + "large = torch.empty(1 << 30)\ndist.barrier()\nraise ValueError('no data')\n")
    assert fit(tmp_path, both, "1 GiB")[0].code == 1


WIDTH, BLOCKS, TOKENS = 256, 4, 64
TRANSFORMER = SETUP + (
    "import torch.nn.functional as F\n"
    "from torch import nn\n"
    f"WIDTH, BLOCKS, TOKENS = {WIDTH}, {BLOCKS}, {TOKENS}\n"
    "class Block(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.norm = nn.LayerNorm(WIDTH)\n"
    "        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))\n"
    "        self.out = nn.Linear(WIDTH, WIDTH)\n"
    "        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)\n"
    "    def forward(self, x):\n"
    "        normed = self.norm(x)\n"
    "        parts = (part(normed).unflatten(-1, (-1, 32)).transpose(1, 2) for part in (self.query, self.key, self.value))\n"
    "        attended = F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)\n"
    "        x = x + self.out(attended)\n"
    "        return x + self.down(F.gelu(self.up(x)))\n"
    "model = nn.Sequential(*(Block() for _ in range(BLOCKS)))\n"
)
STEPS = (
    "optimizer = torch.optim.AdamW(model.parameters(), foreach=False)\n"
    "for _ in range(2):\n"
    "    model(torch.randn(1, TOKENS, WIDTH)).square().mean().backward()\n"
    "    optimizer.step()\n"
    "    dist.barrier()\n"
    "    optimizer.zero_grad()\n"
    "    dist.barrier()\n"
)
# Elements of a block: a norm, four matrices and their biases, and a network of four times the width.
BLOCK = 2 * WIDTH + 4 * (WIDTH + 1) * WIDTH + (WIDTH + 1) * 4 * WIDTH + (4 * WIDTH + 1) * WIDTH


def run_without_values(directory: Path, source: str, ranks: int) -> tuple[dict[str, Any], list[list[dict[str, int]]]]:
    """The report, and each rank's memory counter."""
    devices = f'[[device]]\nname = "gpu"\ncount = {ranks}\npeak_flops = "1 TFLOPS"\nmemory_bandwidth = "1 TB/s"\n'
    path = directory / "modelled.toml"
    path.write_text(devices + "[network]\n")
    done = run(directory, source, "--cluster", path, "--values", "small")
    assert done.code == 0, done.err
    return report(directory / "out"), [counters(directory / "out", rank) for rank in range(ranks)]


def most(points: list[dict[str, int]], kind: str) -> int:
    return max(point.get(kind, 0) for point in points)


def test_a_rank_of_fsdp2_holds_its_shards_and_one_gathered_block(tmp_path: Path) -> None:
    shard = "from torch.distributed.fsdp import fully_shard\nfor part in (*model, model):\n    fully_shard(part)\n"
    result, points = run_without_values(tmp_path, TRANSFORMER + shard + STEPS, 4)
    # A quarter of 4 blocks of float32, which equals one block.
    quarter = 4 * BLOCKS * BLOCK // 4
    for rank in range(4):
        held = at_peak(result["memory"], rank)
        assert held["parameters"] == pytest.approx(quarter + 4 * BLOCK, rel=0.01)
        assert held["optimizer"] == pytest.approx(2 * quarter, rel=0.01)
        assert most(points[rank], "gradients") == pytest.approx(quarter, rel=0.01)
        assert most(points[rank], "optimizer") == pytest.approx(2 * quarter, rel=0.01)
        # Between steps only the shards remain.
        assert points[rank][-2]["parameters"] == pytest.approx(quarter, rel=0.01)


def test_a_rank_of_tensor_parallelism_holds_its_part(tmp_path: Path) -> None:
    cut = (
        "from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module\n"
        "mesh = dist.device_mesh.init_device_mesh('cpu', (2,))\n"
        "plan = {name: ColwiseParallel() for name in ('query', 'key', 'value', 'up')}\n"
        "plan |= {name: RowwiseParallel() for name in ('out', 'down')}\n"
        "for block in model:\n    parallelize_module(block, mesh, plan)\n"
    )
    result, points = run_without_values(tmp_path, TRANSFORMER + cut + STEPS, 2)
    # Half of each matrix and of the biases sharded by columns; norms and the other biases are whole.
    part = 4 * BLOCKS * (2 * WIDTH + 12 * WIDTH * WIDTH // 2 + 7 * WIDTH // 2 + 2 * WIDTH)
    for rank in range(2):
        # After sharding, and between steps.
        assert points[rank][-2]["parameters"] == pytest.approx(part, rel=0.01)
        assert most(points[rank], "gradients") == pytest.approx(part, rel=0.01)
        assert at_peak(result["memory"], rank)["optimizer"] == pytest.approx(2 * part, rel=0.01)


def test_a_large_model_has_the_weights_and_the_cache_of_the_hand_count(tmp_path: Path) -> None:
    layers, steps = 8, 2
    done, answer = fit(tmp_path, LARGE, "4 GiB", count=8, words=("70b", 8, 1, layers, steps))
    assert done.code == 1, done.err
    layer = 2 * 8192 * 8192 // 8 + 2 * 8192 * 1024 // 8 + 3 * 8192 * 28672 // 8 + 2 * 8192
    weights = 2 * (layers * layer + 128256 * 8192 + 128256 * 8192 // 8)
    # KV cache of one head of 128 elements, bfloat16, for a prompt of 2,048 tokens and the decoded ones.
    cache = 2 * 2 * layers * (2048 + steps) * 128
    for need in answer["ranks"]:
        assert (need["kinds"]["parameters"], need["kinds"]["kv_cache"]) == (weights, cache)
        assert need["function"].startswith("Block."), need
