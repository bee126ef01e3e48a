"""Events of communication in a profiler."""

import torch
import torch.distributed as dist
from body import body, sample


@body
def events(rank, size):
    tensor, many = sample(rank, 2, 3), [torch.empty(2, 3) for _ in range(size)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        dist.reduce(tensor, 0)
        dist.all_gather(many, tensor)
        dist.gather(tensor, many if rank == 0 else None, 0)
        dist.scatter(tensor, many if rank == 0 else None, 0)
        dist.all_to_all_single(torch.empty(size, 2), torch.ones(size, 2))
        dist.all_reduce(torch.eye(3).to_sparse())
        dist.barrier()
        if rank < 2:
            dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    shown = [(e.name, e.is_async, e.input_shapes) for e in profiler.events() if e.name.startswith("gloo:")]
    return sorted(shown)
