"""Reads a prompt with a decoder whose heads and feed-forward networks are sharded over all ranks (tensor parallelism).

torchrun --nproc-per-node 2 prefill.py --prompt 64

Weights are random, and equal for any number of ranks; so is the answer. The range `prefill` is the TTFT.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.profiler import record_function

WIDTH = 512
HEADS = 8
HIDDEN = 2048
VOCABULARY = 1024


class Layer:
    """One rank's shard of a layer: some heads, and as large a part of the feed-forward network."""

    def __init__(self, generator: torch.Generator, rank: int, ranks: int) -> None:
        def matrix(rows: int, columns: int) -> torch.Tensor:
            result: torch.Tensor = torch.randn(rows, columns, generator=generator) / rows**0.5
            return result

        # Every rank draws the whole matrices, so that all shard the same ones.
        self.heads = HEADS // ranks
        self.query, self.key, self.value = (matrix(WIDTH, WIDTH).chunk(ranks, 1)[rank] for _ in range(3))
        self.output = matrix(WIDTH, WIDTH).chunk(ranks, 0)[rank]
        self.up = matrix(WIDTH, HIDDEN).chunk(ranks, 1)[rank]
        self.down = matrix(HIDDEN, WIDTH).chunk(ranks, 0)[rank]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = F.layer_norm(hidden, (WIDTH,))
        query, key, value = (self.cut(normed @ matrix) for matrix in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + added(attended.transpose(0, 1).flatten(1) @ self.output)
        return hidden + added(F.gelu(F.layer_norm(hidden, (WIDTH,)) @ self.up) @ self.down)

    def cut(self, tokens: torch.Tensor) -> torch.Tensor:
        """Moves the heads to the first dimension, as each attends by itself."""
        return tokens.view(len(tokens), self.heads, -1).transpose(0, 1)


def added(part: torch.Tensor) -> torch.Tensor:
    """The sum over all ranks."""
    dist.all_reduce(part)
    return part


@torch.inference_mode()
def main() -> None:
    """Prints the next token on rank 0."""
    parser = argparse.ArgumentParser(description="The first token of a tensor-parallel decoder.")
    parser.add_argument("--prompt", type=int, default=64, help="tokens (default 64)")
    parser.add_argument("--layers", type=int, default=4, help="layers (default 4)")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if HEADS % ranks:
        raise SystemExit(f"{HEADS} heads cannot be divided among {ranks} ranks")
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(VOCABULARY, WIDTH, generator=generator)
    layers = [Layer(generator, rank, ranks) for _ in range(options.layers)]
    tokens = torch.randint(VOCABULARY, (options.prompt,), generator=generator)
    with record_function("prefill"):
        hidden = embedding[tokens]
        for layer in layers:
            hidden = layer(hidden)
        token = (hidden[-1] @ embedding.T).argmax().item()
    if rank == 0:
        print(f"{options.prompt} tokens, then {token}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
