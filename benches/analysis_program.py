"""A program for `benches/analysis.py`: all-reduces, alone or after some CPU work, as in a training step."""

import sys

import torch
import torch.distributed as dist


def main() -> None:
    """Arguments: number of all-reduces, and the size of the square matrices multiplied before each (0: none)."""
    rounds, size = map(int, sys.argv[1:])
    dist.init_process_group("gloo")
    gradient, weights = torch.ones(1024), torch.ones(size, size)
    for _ in range(rounds):
        if size:
            weights = torch.tanh(weights @ weights)
        dist.all_reduce(gradient)
    dist.destroy_process_group()


main()
