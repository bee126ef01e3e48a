"""Answers a batch of prompts with a language model whose layers are sharded over all ranks (pipeline parallelism).

    torchrun --nproc-per-node 3 answer.py --batch 4 --micro-batches 2 --layers 10,10,10

Each rank has some whole layers. It receives the hidden states of a micro-batch from the previous rank, and sends its
own to the next rank; the last rank sends the new tokens back to the first.
"""

import sys
from itertools import chain
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "generate"))

from batch import opened, parser, prompts, show
from llama import Config, load
from stage import Neighbours, balanced, dealt, generate


def main() -> None:
    """Loads, answers, and prints on rank 0."""
    known = parser("Answers of a pipeline-parallel Llama.")
    known.add_argument("--micro-batches", type=int, help="the batch is cut into so many (default: one a rank)")
    known.add_argument("--layers", help="layers of each rank, as in 10,10,10 (default: equally much to read)")
    options = known.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    checkpoint = opened(options)
    config = Config.of(checkpoint.metadata)
    layers = [int(share) for share in options.layers.split(",")] if options.layers else balanced(config, ranks)
    if len(layers) != ranks or sum(layers) != config.layers or min(layers) < 1:
        raise SystemExit(
            f"--layers must give each of {ranks} ranks at least one of {config.layers} layers, not {layers}"
        )
    start = sum(layers[:rank])
    model = load(checkpoint, layers=range(start, start + layers[rank]))
    tokenizer = checkpoint.tokenizer()
    micro_batches = dealt(prompts(tokenizer, options.batch), min(options.micro_batches or ranks, options.batch))
    dist.barrier()
    neighbours = Neighbours(before=(rank - 1) % ranks, after=(rank + 1) % ranks)
    answers = generate(model, neighbours, micro_batches, options.tokens, lambda logits: logits.argmax(-1).tolist())
    if rank == 0:
        show(checkpoint, tokenizer, list(chain(*answers)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
