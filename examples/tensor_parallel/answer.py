"""Answers a batch of prompts with a language model whose matrices are sharded over all ranks (tensor parallelism).

    torchrun --nproc-per-node 3 answer.py --batch 4

Each rank has a third of the heads, of the feed-forward network and of the vocabulary, and the KV cache of its heads.
Every layer needs two all-reduces of one hidden state for each new token.
"""

import sys
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.profiler import record_function

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "generate"))

from batch import opened, parser, prompts, show
from llama import Llama, load, most_likely


def main() -> None:
    """Loads, answers, and prints on rank 0."""
    options = parser("Answers of a tensor-parallel Llama.").parse_args()
    dist.init_process_group("gloo")
    checkpoint = opened(options)
    model = load(checkpoint, init_device_mesh("cpu", (dist.get_world_size(),)))
    tokenizer = checkpoint.tokenizer()
    dist.barrier()
    answers = generate(model, prompts(tokenizer, options.batch), options.tokens)
    if dist.get_rank() == 0:
        show(checkpoint, tokenizer, answers)
    dist.destroy_process_group()


@torch.inference_mode()
def generate(model: Llama, texts: list[list[int]], tokens: int) -> list[list[int]]:
    """Decodes greedily, all texts together. Every rank has the result."""
    memories = [model.remember() for _ in texts]
    with record_function("prefill"):
        newest = most_likely(model(torch.tensor(list(chain(*texts))), memories, [len(text) for text in texts]))
    answers = [[token] for token in newest]
    for _ in range(1, tokens):
        with record_function("decode"):
            newest = most_likely(model(torch.tensor(newest), memories))
        for answer, token in zip(answers, newest, strict=True):
            answer.append(token)
    return answers


if __name__ == "__main__":
    main()
