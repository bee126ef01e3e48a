"""`vllm serve` under `vllm bench serve`, each a process of its own as its users start it: `vllm_server.py [SHAPE] [--rate R] [options]`.

The rank's process starts the server, waits until it is up, and starts the benchmark, whose requests arrive as a Poisson process over HTTP.
The server's processes are vLLM's own: one that receives requests, and one with the engine and the GPU.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import vllm_model

# A forked engine could not be told apart from the rank's own process.
os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
# The model's folder is nobody's.
os.environ["HF_HUB_OFFLINE"] = "1"

VLLM = (sys.executable, "-m", "vllm.entrypoints.cli.main")


def write_model(folder: str, shape: str) -> None:
    """Its configuration, and a tokenizer that takes each word for a token."""
    config = vllm_model.SHAPES[shape] | {
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 1,
    }
    Path(folder, "config.json").write_text(json.dumps(config))
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{token}": token for token in range(config["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(Path(folder, "tokenizer.json")))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "w0",
        "eos_token": "w1",
        "model_max_length": 8192,
    }
    Path(folder, "tokenizer_config.json").write_text(json.dumps(about))


@contextmanager
def serving(folder: str, port: int, words: argparse.Namespace) -> Iterator[None]:
    """While it is entered, a server answers at the port."""
    graphs = ["--enforce-eager"] if words.graphs is None else ["-cc", json.dumps({"cudagraph_mode": words.graphs})]
    lengths = ("--max-model-len", str(words.max_model_len))
    command = (*VLLM, "serve", folder, "--port", str(port), "--load-format", "dummy", *lengths, *graphs)
    server = subprocess.Popen((*command, "--no-enable-prefix-caching"))
    try:
        while not is_up(port):
            if server.poll() is not None:
                sys.exit("the server has ended before it was up")
            time.sleep(1)
        yield
    finally:
        server.terminate()
        server.wait()


def is_up(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def benchmark(folder: str, port: int, words: argparse.Namespace) -> dict[str, float]:
    """What vLLM's own benchmark says."""
    lengths = ("--random-input-len", str(words.input), "--random-output-len", str(words.output), "--ignore-eos")
    arrivals = ("--num-prompts", str(words.count), "--request-rate", str(words.rate))
    goodput = ("--goodput", "ttft:500", "tpot:50", "--percentile-metrics", "ttft,tpot,itl,e2el")
    result = ("--save-result", "--result-dir", folder, "--result-filename", "result.json", "--disable-tqdm")
    command = (*VLLM, "bench", "serve", "--model", folder, "--port", str(port), "--dataset-name", "random")
    subprocess.run((*command, *lengths, *arrivals, *goodput, *result), check=True)
    said: dict[str, float] = json.loads(Path(folder, "result.json").read_text())
    return said


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    parser = vllm_model.parser(__doc__)
    parser.add_argument("--rate", type=float, default=8, help="requests a second")
    parser.add_argument("--count", type=int, default=64, help="requests")
    parser.add_argument("--input", type=int, default=1024, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--max-model-len", type=int, default=4096)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder, words.shape)
        port = free_port()
        with serving(folder, port, words):
            said = benchmark(folder, port, words)
    print("RESULT", os.environ["RANK"], "answered", said["completed"], "generated", said["total_output_tokens"])


if __name__ == "__main__":
    main()
