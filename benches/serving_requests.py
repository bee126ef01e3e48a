"""Owns the comparison of recorded requests with their published measurements: `serving_requests.py TABLE [options]`.

LLMServingSim (casys-kaist/LLMServingSim at 5daddb21) has published the arrival times of 300 ShareGPT requests at vLLM
0.19 with Llama 3.1 8B on an RTX 4090, and the lengths of their prompts and answers
(`devices/rows/llmservingsim_requests.csv`); `TABLE` is a CSV of measurements with the columns source, metric and value,
which has the statistics of vLLM's latencies. The simulation serves the same requests at the same times. They need more
memory than the GPU has: most of their time they wait, so the figures depend on the size of the KV cache.

vLLM's options, and the size of its cache, 41,408 tokens, are in `bench/results/llama-3.1-8b-rtx4090/meta.json` of that
repository. The errors are a report, and fail no check.
"""

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy
from devices.section import ROOT, ROWS, table

INTERPRETER = ROOT / ".venv-vllm" / "bin" / "python"
PROGRAM = ROOT / "tests" / "programs" / "vllm_serve.py"
REQUESTS = ROWS / "llmservingsim_requests.csv"
SOURCE = "bench/examples/RTX4090/Llama-3.1-8B/validation/summary.txt"
CACHE = 41408

CLUSTER = """\
backend = "nccl"
[[device]]
name = "gpu"
model = "rtx-4090"
count = 1
[network]
preset = "switch"
link = "pcie4_x16"
"""
# Options of the source; all others are vLLM's defaults.
SERVED = ["8b", "--graphs", "FULL_AND_PIECEWISE", "--max-sequences", "256", "--max-batched-tokens", "2048"]
SERVED += ["--gpu-memory-utilization", "0.9", "--prefix-caching", "--brief"]

COLUMNS = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "Latency": "end_to_end_ms"}
STATISTICS: dict[str, Callable[[numpy.ndarray], float]] = {
    "Mean": numpy.mean,
    "Median": numpy.median,
    **{f"P{part}": partial(numpy.percentile, q=part) for part in (90, 95, 99)},
}


def serve(words: argparse.Namespace) -> None:
    """Simulates the requests."""
    words.out.mkdir(parents=True, exist_ok=True)
    cluster = words.out / "cluster.toml"
    cluster.write_text(CLUSTER)
    simulated = ["--cluster", cluster, "--cuda", "--compute", "model", "--values", "small", "--record", "summary"]
    command = [INTERPRETER, "-m", "uniference", "run", *simulated, "--out", words.out / "run", PROGRAM, *SERVED]
    command += ["--arrivals", REQUESTS, "--requests", words.out / "requests.csv"]
    # A run that compiles needs more memory than one with a warm cache, which leaves a smaller KV cache.
    caches = {"VLLM_CACHE_ROOT": f"{words.out}/vllm", "TORCHINDUCTOR_CACHE_DIR": f"{words.out}/inductor"}
    for folder in caches.values():
        shutil.rmtree(folder, ignore_errors=True)
    with (words.out / "log").open("w") as log:
        done = subprocess.run(
            [str(word) for word in command],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=words.out,
            env=os.environ | caches,
        )
    if done.returncode:
        sys.exit(f"the run has failed: {words.out / 'log'}")


def report(words: argparse.Namespace) -> str:
    """Prints a line per published statistic."""
    with (words.out / "requests.csv").open(newline="") as file:
        served = list(csv.DictReader(file))
    with words.table.open(newline="") as file:
        measured = {row["metric"]: float(row["value"]) for row in csv.DictReader(file) if SOURCE in row["source"]}
    cache = re.search(r"GPU KV cache size: ([\d,]+) tokens", (words.out / "log").read_text())
    tokens = int(cache[1].replace(",", "")) if cache else None
    compared = [("tokens of the cache", float(CACHE), float(tokens))] if tokens else []
    for name, column in COLUMNS.items():
        values = numpy.array([float(request[column]) for request in served])
        for statistic, of in STATISTICS.items():
            if f"vllm_{name}_{statistic}_ms" in measured:
                compared.append((f"{name} {statistic}, ms", measured[f"vllm_{name}_{statistic}_ms"], of(values)))
    rows = [
        [name, f"{real:.6g}", f"{simulated:.6g}", f"{100 * (simulated / real - 1):+.1f}"]
        for name, real, simulated in compared
    ]
    return table(["statistic", "measured", "simulated", "error %"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, help="published measurements")
    parser.add_argument("--again", action="store_true", help="run what is there already, too")
    parser.add_argument("--out", type=Path, default=ROOT / "uniference-out" / "accuracy-requests", help="the run")
    words = parser.parse_args()
    words.out = words.out.resolve()
    if words.again or not (words.out / "requests.csv").exists():
        serve(words)
    print(report(words))


if __name__ == "__main__":
    main()
