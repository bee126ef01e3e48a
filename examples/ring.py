"""Passes a tensor once around a ring of ranks: every rank sends to the next while it receives from the previous.

torchrun --nproc-per-node 4 ring.py
"""

import torch
import torch.distributed as dist


def main() -> None:
    """After as many steps as there are ranks, every rank has the sum of all ranks' numbers."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    passing = torch.full((65536,), float(rank))
    total = passing.clone()
    for _ in range(size - 1):
        arriving = torch.empty_like(passing)
        sent = dist.isend(passing, (rank + 1) % size)
        received = dist.irecv(arriving, (rank - 1) % size)
        assert sent is not None
        assert received is not None
        received.wait()
        sent.wait()
        passing = arriving
        total += passing
    print(f"rank {rank}: {total[0].item():g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
