"""A torch.distributed program like any user's: runs every body and saves what each returned, per rank, as `OUT/rank<r>.pt`."""

import sys
from pathlib import Path

import collectives
import combining
import failing
import functional
import groups
import layers
import meeting
import point_to_point
import profiled
import splitting
import torch
import torch.distributed as dist
import waiting

MODULES = (
    *(collectives, functional, combining, point_to_point, meeting, waiting),
    *(groups, splitting, layers, profiled, failing),
)
BODIES = {
    f"{module.__name__}.{name}": body
    for module in MODULES
    for name, body in vars(module).items()
    if getattr(body, "is_body", False)
}


def run(out: Path) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    results = {}
    for name, body in BODIES.items():
        torch.manual_seed(1234 + rank)
        try:
            results[name] = body(rank, size)
        except Exception as error:
            error.add_note(f"in {name}")
            raise
    dist.destroy_process_group()
    torch.save(results, out / f"rank{rank}.pt")


if __name__ == "__main__":
    run(Path(sys.argv[1]))
