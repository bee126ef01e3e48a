"""Timeouts and monitored barriers: the errors, and the ranks that raise them."""

from datetime import timedelta

import torch
import torch.distributed as dist
from body import body, error_of, sample


def _group() -> dist.ProcessGroup:
    """A group that a failure may break. Gloo connects within the group's timeout, so all ranks create it at the same
    time."""
    dist.barrier()
    return dist.new_group(timeout=timedelta(seconds=2))


@body
def receive_times_out(rank, size):
    group = _group()
    if rank == 0:
        first = error_of(lambda: dist.recv(torch.empty(2), 1, group))
        return [first, error_of(lambda: dist.all_reduce(torch.ones(2), group=group))]
    return None


@body
def collective_times_out(rank, size):
    group = _group()
    return error_of(lambda: dist.broadcast(torch.ones(4), 0, group)) if rank == size - 1 else None


@body
def a_wait_after_a_time_out_fails_again(rank, size):
    message, sum_up = _group(), _group()
    if rank == 0:
        works = [dist.irecv(torch.empty(2), 1, message), dist.all_reduce(torch.ones(2), group=sum_up, async_op=True)]
        return [[error_of(work.wait), error_of(work.wait), work.is_completed(), work.is_success()] for work in works]
    return None


@body
def waiting_for_a_collective_times_out(rank, size):
    group = _group()
    if rank == 0:
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        return error_of(lambda: work.wait(timedelta(milliseconds=50)))
    return None


@body
def monitored_barrier_passes(rank, size):
    dist.monitored_barrier(_group(), timedelta(seconds=20))
    return dist.monitored_barrier(_group(), timedelta(seconds=20), wait_all_ranks=True)


@body
def monitored_barrier_blames_the_missing_rank(rank, size):
    group = _group()
    return error_of(lambda: dist.monitored_barrier(group, timedelta(milliseconds=200))) if rank != 1 else None


@body
def monitored_barrier_blames_all_missing_ranks(rank, size):
    group, limit = _group(), timedelta(milliseconds=100)
    return error_of(lambda: dist.monitored_barrier(group, limit, wait_all_ranks=True)) if rank == 0 else None


@body
def group_goes_on_elsewhere(rank, size):
    tensor = sample(rank, 4)
    dist.all_reduce(tensor)
    return tensor
