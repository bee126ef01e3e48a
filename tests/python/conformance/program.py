"""An ordinary torch.distributed program that runs every body of a part and saves its results, per rank, as
`OUT/rank<r>.pt`.

Usage: program.py PART OUT.
"""

import sys
from pathlib import Path

import arguments
import collectives
import combining
import compiling
import data_parallel
import failing
import functional
import groups
import layers
import meeting
import pipelines
import point_to_point
import profiled
import resharding
import splitting
import starting
import torch
import torch.distributed as dist
import waiting

PARTS = {
    "calls": (
        *(collectives, functional, combining, point_to_point, meeting, waiting),
        *(groups, splitting, profiled, failing, starting),
    ),
    "arguments": (arguments,),
    "layers": (layers, data_parallel, pipelines, resharding),
    "compiled": (compiling,),
}
BODIES = {
    part: {
        f"{module.__name__}.{name}": body
        for module in modules
        for name, body in vars(module).items()
        if getattr(body, "is_body", False) and body.__module__ == module.__name__
    }
    for part, modules in PARTS.items()
}


def run(part: str, out: Path) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    results = {}
    for name, body in BODIES[part].items():
        torch.manual_seed(1234 + rank)
        try:
            results[name] = body(rank, size)
        except Exception as error:
            error.add_note(f"in {name}")
            raise
    dist.destroy_process_group()
    torch.save(results, out / f"rank{rank}.pt")


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
