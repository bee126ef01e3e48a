"""SGLang's server under `sglang.bench_serving`, as separate processes, as users start them: `sglang_server.py [SHAPE]
[options]`.

The rank's process starts the server, waits until it is up, and starts the benchmark, whose requests arrive as a Poisson
process over HTTP. The server's processes are SGLang's own: one that receives requests, one that turns tokens into text,
and one with the scheduler and the GPU.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import servers
import sglang_model  # noqa: F401  (the server finds its environment)
from shapes import SHAPES


def write_model(folder: str, shape: str) -> None:
    """Writes the model's configuration and a tokenizer."""
    config = SHAPES[shape] | {"bos_token_id": 1, "eos_token_id": 1}
    Path(folder, "config.json").write_text(json.dumps(config))
    servers.write_tokenizer(folder, config["vocab_size"])


def server(folder: str, port: int, words: argparse.Namespace) -> list[str]:
    # An idle scheduler would poll for requests without pause, and each poll takes virtual time.
    idle = ["--sleep-on-idle"]
    kernels = ["--attention-backend", "fa3", "--sampling-backend", "pytorch"]
    graphs = [] if words.graphs else ["--cuda-graph-backend-decode", "disabled"]
    rest = ["--cuda-graph-backend-prefill", "disabled", "--disable-radix-cache", "--load-format", "dummy"]
    lengths = ["--context-length", str(words.max_model_len)]
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", folder, "--port", str(port)]
    ranks = ["--tp-size", str(words.tensor_parallel)]
    return [*command, *idle, *kernels, *graphs, *rest, *lengths, *ranks, *words.server]


def benchmark(folder: str, port: int, words: argparse.Namespace, count: int) -> dict[str, float]:
    """Figures of SGLang's own benchmark."""
    result = Path(folder, "result.jsonl")
    lengths = ("--random-input-len", str(words.input), "--random-output-len", str(words.output))
    arrivals = ("--num-prompts", str(count), *servers.arrivals(words))
    rest = ("--dataset-name", "random-ids", "--random-range-ratio", "1", "--disable-tqdm", "--output-file", str(result))
    command = (sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang", "--model", folder)
    subprocess.run((*command, "--port", str(port), *lengths, *arrivals, *rest), check=True)
    said: dict[str, float] = json.loads(result.read_text().splitlines()[-1])
    return said


def apart(prompts: bool, bootstrap: int) -> tuple[list[str], dict[str, str]]:
    """Options and variables of Mooncake's connector."""
    mode = ["--disaggregation-mode", "prefill" if prompts else "decode"]
    return [
        *mode,
        "--disaggregation-transfer-backend",
        "mooncake",
        "--disaggregation-bootstrap-port",
        str(bootstrap),
    ], {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", nargs="?", default="tiny", choices=SHAPES)
    parser.add_argument("--graphs", action="store_true", help="launch decode steps as CUDA graphs")
    parser.add_argument(
        "--server", action="append", default=[], metavar="OPTION", help="what the server is told besides: --server=--x"
    )
    servers.add_load(parser)
    servers.measure(parser.parse_args(), servers.Stack("sglang", write_model, server, benchmark, apart))


if __name__ == "__main__":
    main()
