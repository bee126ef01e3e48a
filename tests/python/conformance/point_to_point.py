"""Sends and receives: blocking, asynchronous, tags, any source, batches."""

import torch
import torch.distributed as dist
from body import body, sample


@body
def ring(rank, size):
    received = torch.empty(7)
    if rank % 2 == 0:
        dist.send(sample(rank, 7), (rank + 1) % size)
        dist.recv(received, (rank - 1) % size)
    else:
        dist.recv(received, (rank - 1) % size)
        dist.send(sample(rank, 7), (rank + 1) % size)
    return received


@body
def tags_out_of_order(rank, size):
    if rank == 0:
        works = [dist.isend(sample(tag, 3), 1, tag=tag) for tag in (1, 2, 3)]
        for work in works:
            work.wait()
        return None
    if rank == 1:
        received = {}
        for tag in (3, 1, 2):
            received[tag] = torch.empty(3)
            dist.recv(received[tag], 0, tag=tag)
        return received
    return None


@body
def any_source(rank, size):
    if rank != 0:
        dist.send(sample(rank, 4), 0)
        dist.barrier()
        return None
    received = {}
    for _ in range(size - 1):
        tensor = torch.empty(4)
        source = dist.recv(tensor)
        received[source] = tensor
    # The barrier keeps messages of the next body from matching these receives.
    dist.barrier()
    return sorted(received.items())


@body
def batch(rank, size):
    received = torch.empty(2, 5)
    operations = [
        dist.P2POp(dist.isend, sample(rank, 2, 5), (rank + 1) % size),
        dist.P2POp(dist.irecv, received, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return received


@body
def dtypes_and_layouts(rank, size):
    results = []
    for dtype in (torch.bool, torch.int16, torch.float16, torch.complex64, torch.float8_e4m3fn):
        tensor = torch.empty(6, dtype=dtype)
        work = dist.irecv(tensor, (rank - 1) % size)
        dist.isend(sample(rank, 6).to(dtype), (rank + 1) % size).wait()
        work.wait()
        results.append(tensor.view(torch.uint8))
    return results


@body
def empty(rank, size):
    tensor = torch.empty(0)
    work = dist.irecv(tensor, (rank - 1) % size)
    dist.isend(torch.empty(0), (rank + 1) % size).wait()
    work.wait()
    return tensor


@body
def objects_between_two(rank, size):
    if rank == 0:
        dist.send_object_list(["text", {"key": [1, 2.5]}], dst=1)
        return None
    received = [None, None]
    if rank == 1:
        dist.recv_object_list(received, src=0)
    return received
