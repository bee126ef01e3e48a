"""Owns the comparison of served requests with published measurements: `serving.py TABLE [options]`.

`TABLE` is a CSV of measurements with the columns source, model, hardware, gpus, parallelism, seq_len, batch, dtype,
metric and value. Only rows that tests/programs/vllm_serve.py and sglang_serve.py can serve are used: Qwen3-32B in
bfloat16, and Qwen3-235B-A22B in FP8, on H100 and H200, sharded over all GPUs, experts too, with `batch` concurrent
requests. Each point is a separate run, and existing runs are not repeated. The errors are a report, and fail no check.

The load is that of the tools published with the measurements, aiconfigurator's `genai_perf_runner.py` and
`benchmark/vllm.rule`: as many prompts at once as requests run concurrently, twice as many of them in all to warm up,
then ten times as many after those have ended; for vLLM the tokens of a step are those of a prompt, one for each
request, and 1,500. `benchmark/sglang.rule` specifies the same for SGLang, but its rows contradict that: 16 prompts of
1,024 tokens have their first tokens only after the time of all of them together. The simulation computes as many
prompts at once as fit into 16,384 tokens, which is an inference from the rows.

Requests pass through the processes in front of the engine, which need `frontend` seconds for each, one after the other.
The value is the additional wait for the first token of the last of 32 prompts of 1,024 tokens, sent at once, compared
with a single prompt, divided by 31, if the servers' own processes serve the shape `tiny` (tests/programs/vllm_server.py
and sglang_server.py with `--python-time model`).
"""

import argparse
import csv
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from devices.section import ROOT, Row, table

PROGRAMS = ROOT / "tests" / "programs"
# Versions that schedule a step when the one before has ended, by default.
SYNCHRONOUS = ("vllm-0.12.0",)
# Requests in multiples of the concurrent ones: for the warm-up, and for the measurement. Additional tokens of a step.
WARM_UP, WAVES, SPARE = 2, 10, 1500
# Largest number of prompt tokens that SGLang computes at once.
PREFILL = 16384
METRICS = {"TTFT_ms": "ttft_ms", "TPOT_ms": "tpot_ms", "E2E_ms": "end_to_end_ms"}

# The shapes of tests/programs/shapes.py, by the table's model and type. The FP8 weights of this checkpoint have a scale
# for each block, whatever the type is called.
SHAPES = {
    ("Qwen/Qwen3-32B", "gemm=nan moe=nan"): "qwen3-32b",
    ("Qwen/Qwen3-235B-A22B-FP8", "gemm=fp8 moe=fp8"): "qwen3-235b-fp8",
    ("Qwen/Qwen3-235B-A22B-FP8", "gemm=fp8_block moe=fp8_block"): "qwen3-235b-fp8",
}
DEVICES = {"h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm"}

CLUSTER = """\
backend = "nccl"
[[device]]
name = "gpu"
model = "{device}"
count = {gpus}
[network]
preset = "rail"
per_server = {gpus}
fabric = "nvlink4"
link = "infiniband_ndr"
"""


@dataclass(frozen=True, order=True)
class Point:
    """A measured point: a model with a framework and a number of GPUs, concurrent requests, and tokens of each."""

    shape: str
    device: str
    framework: str
    gpus: int
    input: int
    output: int
    concurrency: int

    @property
    def stack(self) -> str:
        return self.framework.partition("-")[0]

    @property
    def name(self) -> str:
        return (
            f"{self.shape} {self.device} {self.framework} TP{self.gpus} {self.input}+{self.output} x{self.concurrency}"
        )


def points(path: Path) -> dict[Point, dict[str, float]]:
    """The metrics of each point of the table that this benchmark can serve."""
    found: dict[Point, dict[str, float]] = defaultdict(dict)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            shape, device = SHAPES.get((row["model"], row["dtype"])), DEVICES.get(row["hardware"])
            if shape is None or device is None:
                continue
            # Only rows without pipeline parallelism, without data-parallel attention, with experts sharded as all other
            # layers, and without separate prefill GPUs.
            how = re.fullmatch(r"agg TP(\d+) PP1 attnDP1 moeTP(\d+) EP[01] (\S+)", row["parallelism"])
            lengths = re.fullmatch(r"in(\d+) out(\d+)", row["seq_len"])
            load = re.fullmatch(r"concurrency(\d+)", row["batch"])
            experts = {row["gpus"]} if "235b" in shape else {"0", "1"}
            if how and lengths and load and row["metric"] in METRICS and how[1] == row["gpus"] and how[2] in experts:
                of = (shape, device, how[3], int(how[1]), int(lengths[1]), int(lengths[2]), int(load[1]))
                metrics, value = found[Point(*of)], float(row["value"])
                if metrics.setdefault(row["metric"], value) != value:
                    sys.exit(f"{path} has two values of {row['metric']} for {Point(*of).name}")
    for point, metrics in found.items():
        # The time of each token after the first is TPOT.
        metrics["E2E_ms"] = metrics["TTFT_ms"] + (point.output - 1) * metrics["TPOT_ms"]
    return dict(found)


def serve(point: Point, words: argparse.Namespace) -> dict[str, float] | None:
    """Simulates a point: the means of its requests. None if the run has failed."""
    stack = STACKS[point.stack]
    how = [words.graphs or "eager", *stack.how(point)]
    load = f"tp{point.gpus}-{point.input}-{point.output}-c{point.concurrency}-f{1e6 * frontend(point, words):.0f}"
    if (words.warm_up, words.waves) != (WARM_UP, WAVES):
        load += f"-{words.warm_up}+{words.waves}"
    folder: Path = words.out / point.shape / point.device / f"{load}-{'-'.join(how)}"
    if words.again or not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        cluster = folder / "cluster.toml"
        cluster.write_text(CLUSTER.format(device=point.device, gpus=point.gpus))
        simulated = ["--cluster", cluster, "--cuda", "--compute", "model", "--values", "small"]
        simulated += ["--host-time", words.host_time] if words.host_time else []
        simulated += ["--python-time", words.python_time] if words.python_time else []
        simulated += ["--device-db", words.device_db.resolve()] if words.device_db else []
        interpreter, program = ROOT / stack.environment / "bin" / "python", PROGRAMS / stack.program
        command = [interpreter, "-m", "uniference", "run", *simulated, "--out", folder / "run"]
        command += ["--fold", words.fold, program, *load_of(point, words), *stack.served(point, words)]
        command += ["--brief", "--requests", folder / "requests.csv"]
        with (folder / "log").open("w") as log:
            done = subprocess.run([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        if done.returncode:
            print(f"{point.name} has failed: {folder / 'log'}", file=sys.stderr)
            return None
        (folder / "done").touch()
    with (folder / "requests.csv").open(newline="") as file:
        requests = list(csv.DictReader(file))
    return {metric: mean(float(request[column]) for request in requests) for metric, column in METRICS.items()}


def load_of(point: Point, words: argparse.Namespace) -> list[object]:
    """Options of tests/programs/loads.py for a point."""
    load: list[object] = [point.shape, "--concurrency", point.concurrency, "--drain"]
    load += ["--warmup", words.warm_up * point.concurrency, "--count", words.waves * point.concurrency]
    return [*load, "--input", point.input, "--output", point.output, "--frontend", frontend(point, words)]


def frontend(point: Point, words: argparse.Namespace) -> float:
    """Seconds that each request spends in the processes in front of the engine."""
    return STACKS[point.stack].frontend if words.frontend is None else words.frontend


class VLLM:
    """vLLM's engine in the ranks' processes, driven step by step."""

    environment, program = ".venv-vllm", "vllm_serve.py"
    frontend = 0.00075

    @staticmethod
    def how(point: Point) -> list[str]:
        return ["synchronous" if point.framework in SYNCHRONOUS else "asynchronous"]

    @staticmethod
    def served(point: Point, words: argparse.Namespace) -> list[object]:
        tokens = point.concurrency + point.input + SPARE
        served: list[object] = ["--max-sequences", point.concurrency, "--max-batched-tokens", tokens]
        served += ["--synchronous"] if point.framework in SYNCHRONOUS else []
        return served + (["--graphs", words.graphs] if words.graphs else [])


class SGLang:
    """SGLang's schedulers in the ranks' processes, each with its event loop."""

    environment, program = ".venv-sglang", "sglang_serve.py"
    frontend = 0.00057

    @staticmethod
    def how(point: Point) -> list[str]:
        return [point.framework]

    @staticmethod
    def served(point: Point, words: argparse.Namespace) -> list[object]:
        served: list[object] = ["--max-prefill-tokens", PREFILL, "--chunked-prefill-size", PREFILL]
        served += ["--max-running-requests", point.concurrency, "--cuda-graph-max-bs-decode", point.concurrency]
        return served + (["--graphs"] if words.graphs else [])


STACKS: dict[str, type[VLLM] | type[SGLang]] = {"vllm": VLLM, "sglang": SGLang}


def compare(found: dict[Point, dict[str, float]], words: argparse.Namespace) -> Iterator[Row]:
    """Yields the rows of each point after its simulation."""
    for point, measured in sorted(found.items()):
        began = time.monotonic()
        served = serve(point, words)
        if served is None:
            continue
        for metric, predicted in served.items():
            if metric in measured:
                row = Row(point.name, measured[metric], predicted, f"{point.shape} TP{point.gpus} {metric}")
                print(f"{row.name} {metric}: {row.measured:.2f} {row.predicted:.2f} {100 * row.error:+.1f} %", end=" ")
                yield row
        print(f"({time.monotonic() - began:.0f} s)", flush=True)


def report(rows: Iterable[Row]) -> str:
    """Prints a line per row, then the errors of each group."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    lines = [
        [row.name, group.split()[-1], f"{row.measured:.4g}", f"{row.predicted:.4g}", f"{100 * row.error:+.1f}"]
        for group, its in sorted(groups.items())
        for row in its
    ]
    sums = [
        [
            group,
            f"{len(its)}",
            f"{100 * mean(abs(row.error) for row in its):.1f}",
            f"{100 * mean(r.error for r in its):+.1f}",
        ]
        for group, its in sorted(groups.items())
    ]
    return "\n\n".join(
        [
            table(["point", "metric", "measured", "simulated", "error %"], lines),
            table(["group", "rows", "mean absolute error %", "mean error %"], sums),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, help="published measurements")
    parser.add_argument("--framework", default="vllm", choices=STACKS, help="what it was measured with (default vllm)")
    parser.add_argument("--shape", nargs="+", help="only these models")
    parser.add_argument("--device", nargs="+", help="only these devices")
    parser.add_argument("--gpus", type=int, nargs="+", help="only with so many GPUs")
    parser.add_argument("--concurrency", type=int, nargs="+", help="only so many requests at any time")
    parser.add_argument("--input", type=int, nargs="+", help="only prompts of so many tokens")
    parser.add_argument("--output", type=int, nargs="+", help="only so many tokens generated")
    parser.add_argument(
        "--warm-up", type=int, default=WARM_UP, help="requests before, for each at any time (default 2)"
    )
    parser.add_argument("--waves", type=int, default=WAVES, help="requests that count, the same (default 10)")
    parser.add_argument(
        "--frontend",
        type=float,
        help="what a request takes before the engine, in seconds (default: as the servers take)",
    )
    parser.add_argument("--graphs", help="vLLM's mode of CUDA graphs; of SGLang those of decoding (default: eager)")
    parser.add_argument("--host-time", help="as of `uniference run`")
    parser.add_argument("--python-time", help="as of `uniference run`")
    parser.add_argument("--device-db", type=Path, help="as of `uniference run`; each has a folder --out of its own")
    parser.add_argument("--fold", default="off", choices=("off", "auto"), help="as of `uniference run`")
    parser.add_argument("--again", action="store_true", help="run what is there already, too")
    parser.add_argument("--list", action="store_true", help="only list the points and what was measured")
    parser.add_argument("--out", type=Path, default=ROOT / "uniference-out" / "accuracy-serving", help="runs")
    words = parser.parse_args()
    words.out = words.out.resolve()
    wanted = {name: getattr(words, name) for name in ("shape", "device", "gpus", "concurrency", "input", "output")}
    found = {
        point: measured
        for point, measured in points(words.table).items()
        if point.stack == words.framework
        and all(only is None or getattr(point, name) in only for name, only in wanted.items())
    }
    if words.list:
        for point, measured in sorted(found.items()):
            print(point.name, *(f"{metric} {value:g}" for metric, value in measured.items()))
        return
    print(f"\n{report(list(compare(found, words)))}")


if __name__ == "__main__":
    main()
