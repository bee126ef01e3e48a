"""Answers a batch of prompts with a language model sharded twice: layers over stages, matrices over a stage's ranks.

    torchrun --nproc-per-node 6 answer.py --stages 2 --batch 4

Ranks of a stage combine their results by all-reduce in every layer; each sends the hidden states, which are the same on
all ranks of a stage, to its counterpart in the next stage.
"""

import sys
from functools import partial
from itertools import chain
from pathlib import Path

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

EXAMPLES = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(EXAMPLES / "generate"), str(EXAMPLES / "pipeline")]

from batch import opened, parser, prompts, show
from llama import Config, load, most_likely
from stage import Neighbours, balanced, dealt, generate


def main() -> None:
    """Loads, answers, and prints on rank 0."""
    known = parser("Answers of a Llama that is cut over stages and, within them, over ranks.")
    known.add_argument("--stages", type=int, default=2, help="number of stages; it divides the ranks (default 2)")
    known.add_argument("--micro-batches", type=int, help="the batch is cut into so many (default: one a stage)")
    options = known.parse_args()
    dist.init_process_group("gloo")
    rank, ranks, stages = dist.get_rank(), dist.get_world_size(), options.stages
    if ranks % stages:
        raise SystemExit(f"--stages {stages} does not divide {ranks} ranks")
    width = ranks // stages
    mesh = init_device_mesh("cpu", (stages, width), mesh_dim_names=("stage", "tensor"))
    checkpoint = opened(options)
    layers = balanced(Config.of(checkpoint.metadata), stages)
    stage = rank // width
    start = sum(layers[:stage])
    model = load(checkpoint, mesh["tensor"], range(start, start + layers[stage]))
    tokenizer = checkpoint.tokenizer()
    micro_batches = dealt(prompts(tokenizer, options.batch), min(options.micro_batches or stages, options.batch))
    dist.barrier()
    neighbours = Neighbours(before=(rank - width) % ranks, after=(rank + width) % ranks)
    choose = partial(most_likely, group=mesh["tensor"].get_group())
    answers = generate(model, neighbours, micro_batches, options.tokens, choose)
    if rank == 0:
        show(checkpoint, tokenizer, list(chain(*answers)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
