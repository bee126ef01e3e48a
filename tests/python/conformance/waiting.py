"""Return values of an asynchronous call: Work and Future."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from body import body, error_of, sample


@body
def work(rank, size):
    tensor = sample(rank, 8)
    handle = dist.all_reduce(tensor, async_op=True)
    waited = handle.wait()
    return [tensor, waited, handle.is_completed(), handle.is_success(), handle.result(), handle.get_future().value()]


@body
def polling(rank, size):
    tensor = sample(rank, 8)
    handle = dist.all_reduce(tensor, async_op=True)
    while not handle.is_completed():
        time.sleep(0.001)
    return tensor


@body
def many_at_once(rank, size):
    tensors = [sample(rank + i, 5) for i in range(6)]
    handles = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for handle in reversed(handles):
        handle.wait()
    return tensors


@body
def never_waited_for(rank, size):
    """Works that are never waited for. Gloo runs the collectives of a group in order, in two threads: if two later ones
    are complete, an earlier one is, too."""
    tensor, gathered = sample(rank, 6), [torch.empty(2) for _ in range(size)]
    dist.all_reduce(tensor, async_op=True)
    dist.all_gather(gathered, sample(rank, 2), async_op=True)
    for _ in range(3):
        dist.barrier()
    return [tensor, gathered]


@body
def results_of_lists(rank, size):
    gathered = dist.all_gather([torch.empty(2) for _ in range(size)], sample(rank, 2), async_op=True)
    gathered.wait()
    barrier = dist.barrier(async_op=True)
    barrier.wait()
    return [gathered.result(), gathered.get_future().value(), barrier.result()]


@body
def futures(rank, size):
    tensor = sample(rank, 3)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    both = torch.futures.collect_all([doubled, dist.broadcast(sample(rank, 2), 0, async_op=True).get_future()])
    first, _ = both.wait()
    return [first.wait(), future.wait(), future.done()]


@body
def receive_with_source(rank, size):
    tensor = torch.empty(2)
    if rank == 0:
        dist.send(sample(rank, 2), 1)
        return None
    if rank == 1:
        handle = dist.irecv(tensor, 0)
        handle.wait()
        return [tensor, handle._source_rank()]
    return None


@body
def store_timeout(rank, size):
    store = dist.distributed_c10d._get_default_store()
    return error_of(lambda: store.wait(["nobody sets this"], timedelta(milliseconds=50)))
