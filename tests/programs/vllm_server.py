"""`vllm serve` under `vllm bench serve`, as separate processes, as users start them: `vllm_server.py [SHAPE] [--rate R]
[options]`.

The rank's process starts the server, waits until it is up, and starts the benchmark, whose requests arrive as a Poisson
process over HTTP. The server's processes are vLLM's own: one that receives requests, and one with the engine and the
GPU.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import servers
import vllm_model
from shapes import SHAPES

# A forked engine would be indistinguishable from the rank's own process.
os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"

VLLM = (sys.executable, "-m", "vllm.entrypoints.cli.main")


def write_model(folder: str, shape: str) -> None:
    """Writes the model's configuration and a tokenizer."""
    config = SHAPES[shape] | {"bos_token_id": 1, "eos_token_id": 1}
    Path(folder, "config.json").write_text(json.dumps(config))
    servers.write_tokenizer(folder, config["vocab_size"])


def server(folder: str, port: int, words: argparse.Namespace) -> list[str]:
    graphs = ["--enforce-eager"] if words.graphs is None else ["-cc", json.dumps({"cudagraph_mode": words.graphs})]
    lengths = ["--max-model-len", str(words.max_model_len), "--no-enable-prefix-caching"]
    ranks = ["--tensor-parallel-size", str(words.tensor_parallel)]
    return [*VLLM, "serve", folder, "--port", str(port), "--load-format", "dummy", *lengths, *graphs, *ranks]


def benchmark(folder: str, port: int, words: argparse.Namespace, count: int) -> dict[str, float]:
    """Figures of vLLM's own benchmark."""
    lengths = ("--random-input-len", str(words.input), "--random-output-len", str(words.output), "--ignore-eos")
    arrivals = ("--num-prompts", str(count), *servers.arrivals(words))
    goodput = ("--goodput", "ttft:500", "tpot:50", "--percentile-metrics", "ttft,tpot,itl,e2el")
    result = ("--save-result", "--result-dir", folder, "--result-filename", "result.json", "--disable-tqdm")
    command = (*VLLM, "bench", "serve", "--model", folder, "--port", str(port), "--dataset-name", "random")
    subprocess.run((*command, *lengths, *arrivals, *goodput, *result), check=True)
    said: dict[str, float] = json.loads(Path(folder, "result.json").read_text())
    return said


def apart(prompts: bool, bootstrap: int) -> tuple[list[str], dict[str, str]]:
    """Options of Mooncake's connector."""
    connector = {"kv_connector": "MooncakeConnector", "kv_role": "kv_producer" if prompts else "kv_consumer"}
    return ["--kv-transfer-config", json.dumps(connector)], {"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(bootstrap)}


def main() -> None:
    parser = vllm_model.parser(__doc__)
    servers.add_load(parser)
    servers.measure(parser.parse_args(), servers.Stack("vllm", write_model, server, benchmark, apart))


if __name__ == "__main__":
    main()
