"""Owns the common parts of programs that start an inference server and its benchmark as separate processes: a
tokenizer, the server's lifetime, and the load.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from json import dumps
from pathlib import Path

# The model's folder is on no hub.
os.environ["HF_HUB_OFFLINE"] = "1"


def add_load(parser: argparse.ArgumentParser) -> None:
    """Adds the benchmark's options."""
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--rate", type=float, default=8, help="requests a second, a Poisson process (default 8)")
    load.add_argument("--concurrency", type=int, help="requests at any time, a new one when one has ended")
    parser.add_argument("--count", type=int, default=64, help="requests")
    parser.add_argument(
        "--warmup", type=int, default=0, help="requests before these, which have ended and do not count"
    )
    parser.add_argument("--input", type=int, default=1024, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument(
        "--tensor-parallel", type=int, default=1, help="GPUs; several need `uniference run --one-program`"
    )
    parser.add_argument(
        "--apart", action="store_true", help="prompts are computed by a server of their own, on as many GPUs besides"
    )


def arrivals(words: argparse.Namespace) -> tuple[str, ...]:
    """Options of both benchmarks for the arrivals of requests."""
    if words.concurrency:
        return ("--request-rate", "inf", "--max-concurrency", str(words.concurrency))
    return ("--request-rate", str(words.rate))


def write_tokenizer(folder: str, vocabulary: int) -> None:
    """Writes a tokenizer with one token per word. Token 0, which logits without values select, is an ordinary word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    # Words of equal length: a word that ends a sequence would be found anywhere in a text, also at the beginning of a
    # longer word.
    words = [f"w{token:06}" for token in range(vocabulary)]
    unknown = words[-1]
    tokenizer = Tokenizer(models.WordLevel({word: token for token, word in enumerate(words)}, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(Path(folder, "tokenizer.json")))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": unknown,
        "eos_token": words[1],
        "model_max_length": 8192,
    }
    Path(folder, "tokenizer_config.json").write_text(dumps(about))


@dataclass(frozen=True)
class Stack:
    """Commands that start and measure servers of one kind. Each receives the model's folder, a port, and the parsed
    command line."""

    name: str
    write_model: Callable[[str, str], None]
    server: Callable[[str, int, argparse.Namespace], Sequence[str]]
    # Runs the benchmark with a number of requests; returns its figures.
    benchmark: Callable[[str, int, argparse.Namespace, int], Mapping[str, float]]
    # Options and variables of a prefill or decode server: whether it is for prefill, and the bootstrap's port.
    apart: Callable[[bool, int], tuple[Sequence[str], Mapping[str, str]]]


def measure(words: argparse.Namespace, stack: Stack) -> None:
    """Starts the server of a model, and then the benchmark."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as open_servers:
        stack.write_model(folder, words.shape)
        port = free_port()
        start = (
            router_of_two(port, folder, words, stack, open_servers)
            if words.apart
            else stack.server(folder, port, words)
        )
        open_servers.enter_context(serving(port, start))
        if words.warmup:
            stack.benchmark(folder, port, words, words.warmup)
        said = stack.benchmark(folder, port, words, words.count)
    print("RESULT", os.environ.get("RANK", 0), "answered", said["completed"], "generated", said["total_output_tokens"])
    print("MEAN ms", *(f"{name} {said[f'mean_{name.lower()}_ms']:.3f}" for name in ("TTFT", "TPOT")))


def router_of_two(
    port: int, folder: str, words: argparse.Namespace, stack: Stack, open_servers: ExitStack
) -> list[str]:
    """Starts a prefill and a decode server; returns the command of a router in front of them."""
    bootstrap, addresses = free_port(), []
    for number in range(2):
        gpus = range(number * words.tensor_parallel, (number + 1) * words.tensor_parallel)
        arguments, variables = stack.apart(number == 0, bootstrap)
        variables = {**variables, "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
        own = free_port()
        command = [*stack.server(folder, own, words), *arguments]
        open_servers.enter_context(serving(own, command, variables))
        addresses.append(f"http://127.0.0.1:{own}")
    router = str(Path(__file__).with_name("router.py"))
    return [sys.executable, router, stack.name, str(port), *addresses, f"127.0.0.1:{bootstrap}"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(port: int, command: Sequence[str], variables: Mapping[str, str] | None = None) -> Iterator[None]:
    """Runs the server with these environment variables inside the context; it answers at the port when the context is
    entered."""
    server = subprocess.Popen(command, env=os.environ | dict(variables or {}))
    try:
        while not _is_up(port):
            if server.poll() is not None:
                sys.exit("the server has ended before it was up")
            time.sleep(1)
        yield
    finally:
        server.terminate()
        server.wait()


def _is_up(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
