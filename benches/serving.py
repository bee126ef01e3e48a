"""Owns the comparison of served requests with published measurements: `serving.py TABLE [options]`.

`TABLE` is a CSV of measurements with the columns source, model, hardware, gpus, parallelism, seq_len, batch, dtype, metric and value, of
which the rows are taken that tests/programs/vllm_serve.py can serve: Qwen3-32B in bfloat16 on H100, cut over all GPUs, with as many
requests at any time as `batch` says. Each point is a run of its own, and is not run again once it is there. A report, never a gate.

The load is that of the tools that are published beside the measurements, aiconfigurator's `genai_perf_runner.py` and `benchmark/vllm.rule`:
as many prompts at once as requests run at any time, twice as many of them in all to warm up, then ten times as many after those have
ended; and the tokens of a step are those of a prompt, one for each request, and 1,500.
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

INTERPRETER = ROOT / ".venv-vllm" / "bin" / "python"
PROGRAM = ROOT / "tests" / "programs" / "vllm_serve.py"
# What schedules a step when the one before has ended, unless told otherwise.
SYNCHRONOUS = ("vllm-0.12.0",)
# In multiples of the requests at any time: those before, and those that count. Tokens of a step besides those of a prompt.
WARM_UP, WAVES, SPARE = 2, 10, 1500
METRICS = {"TTFT_ms": "ttft_ms", "TPOT_ms": "tpot_ms", "E2E_ms": "end_to_end_ms"}

CLUSTER = """\
backend = "nccl"
[[device]]
name = "gpu"
model = "h100-sxm"
count = {gpus}
[network]
preset = "rail"
per_server = {gpus}
fabric = "nvlink4"
link = "infiniband_ndr"
"""


@dataclass(frozen=True, order=True)
class Point:
    """What was measured: a framework with so many GPUs, requests at any time, and tokens of each."""

    framework: str
    gpus: int
    input: int
    output: int
    concurrency: int

    @property
    def name(self) -> str:
        return f"{self.framework} TP{self.gpus} {self.input}+{self.output} x{self.concurrency}"


def points(path: Path) -> dict[Point, dict[str, float]]:
    """The metrics of each point of the table that can be served."""
    found: dict[Point, dict[str, float]] = defaultdict(dict)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["model"], row["hardware"], row["dtype"]) != ("Qwen/Qwen3-32B", "h100_sxm", "gemm=nan moe=nan"):
                continue
            # Neither pipeline, experts nor attention of its own for each rank, and no separate GPUs for prompts.
            how = re.fullmatch(r"agg TP(\d+) PP1 attnDP1 moeTP1 EP1 (\S+)", row["parallelism"])
            lengths = re.fullmatch(r"in(\d+) out(\d+)", row["seq_len"])
            load = re.fullmatch(r"concurrency(\d+)", row["batch"])
            if how and lengths and load and row["metric"] in METRICS and how[1] == row["gpus"]:
                point = Point(how[2], int(how[1]), int(lengths[1]), int(lengths[2]), int(load[1]))
                found[point][row["metric"]] = float(row["value"])
    for point, metrics in found.items():
        # Each token after the first takes TPOT.
        metrics["E2E_ms"] = metrics["TTFT_ms"] + (point.output - 1) * metrics["TPOT_ms"]
    return dict(found)


def serve(point: Point, words: argparse.Namespace) -> Path:
    """Simulates it, and says where the table of its requests is."""
    synchronous = point.framework in SYNCHRONOUS
    how = [words.graphs or "eager", "synchronous" if synchronous else "asynchronous"]
    name = f"tp{point.gpus}-{point.input}-{point.output}-c{point.concurrency}-{'-'.join(how)}"
    folder: Path = words.out / name
    requests = folder / "requests.csv"
    if requests.exists() and not words.again:
        return requests
    folder.mkdir(parents=True, exist_ok=True)
    cluster = folder / "cluster.toml"
    cluster.write_text(CLUSTER.format(gpus=point.gpus))
    simulated = ["--cluster", cluster, "--cuda", "--compute", "model", "--values", "small", "--fold", words.fold]
    simulated += ["--host-time", words.host_time] if words.host_time else []
    simulated += ["--device-db", words.device_db.resolve()] if words.device_db else []
    served = ["qwen3-32b", "--concurrency", point.concurrency, "--warmup", WARM_UP * point.concurrency, "--drain"]
    served += ["--count", WAVES * point.concurrency, "--input", point.input, "--output", point.output]
    served += ["--max-sequences", point.concurrency, "--max-batched-tokens", point.concurrency + point.input + SPARE]
    served += ["--brief", "--requests", requests]
    served += ["--synchronous"] if synchronous else []
    served += ["--graphs", words.graphs] if words.graphs else []
    command = [INTERPRETER, "-m", "uniference", "run", *simulated, "--out", folder / "run", PROGRAM, *served]
    with (folder / "log").open("w") as log:
        done = subprocess.run([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    if done.returncode:
        print(f"{point.name} has failed: {folder / 'log'}", file=sys.stderr)
    return requests


def compare(found: dict[Point, dict[str, float]], words: argparse.Namespace) -> Iterator[Row]:
    """The rows of each point as soon as it has been simulated."""
    for point, measured in sorted(found.items()):
        began = time.monotonic()
        requests = serve(point, words)
        if not requests.exists():
            continue
        with requests.open(newline="") as file:
            served = list(csv.DictReader(file))
        for metric, column in METRICS.items():
            if metric in measured:
                predicted = mean(float(request[column]) for request in served)
                row = Row(point.name, measured[metric], predicted, f"TP{point.gpus} {metric}")
                print(f"{row.name} {metric}: {row.measured:.2f} {row.predicted:.2f} {100 * row.error:+.1f} %", end=" ")
                yield row
        print(f"({time.monotonic() - began:.0f} s)", flush=True)


def report(rows: Iterable[Row]) -> str:
    """A line for each row, then the errors of each group."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    lines = [
        [row.name, group.split()[1], f"{row.measured:.4g}", f"{row.predicted:.4g}", f"{100 * row.error:+.1f}"]
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
    parser.add_argument("--framework", default="vllm", help="what it was measured with (default vllm)")
    parser.add_argument("--gpus", type=int, nargs="+", help="only with so many GPUs")
    parser.add_argument("--concurrency", type=int, nargs="+", help="only so many requests at any time")
    parser.add_argument("--input", type=int, nargs="+", help="only prompts of so many tokens")
    parser.add_argument("--output", type=int, nargs="+", help="only so many tokens generated")
    parser.add_argument("--graphs", help="vLLM's mode of CUDA graphs (default: eager)")
    parser.add_argument("--host-time", help="as of `uniference run`")
    parser.add_argument("--device-db", type=Path, help="as of `uniference run`; each has a folder --out of its own")
    parser.add_argument("--fold", default="off", choices=("off", "auto"), help="as of `uniference run`")
    parser.add_argument("--again", action="store_true", help="run what is there already, too")
    parser.add_argument("--list", action="store_true", help="only list the points and what was measured")
    parser.add_argument("--out", type=Path, default=ROOT / "uniference-out" / "accuracy-serving", help="runs")
    words = parser.parse_args()
    words.out = words.out.resolve()
    wanted = {name: getattr(words, name) for name in ("gpus", "concurrency", "input", "output")}
    found = {
        point: measured
        for point, measured in points(words.table).items()
        if point.framework.startswith(words.framework)
        and all(only is None or getattr(point, name) in only for name, only in wanted.items())
    }
    if words.list:
        for point, measured in sorted(found.items()):
            print(point.name, *(f"{metric} {value:g}" for metric, value in measured.items()))
        return
    print(f"\n{report(list(compare(found, words)))}")


if __name__ == "__main__":
    main()
