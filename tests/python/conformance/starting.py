"""Programs that initialize the default group in every way of torch, and destroy it again."""

import os
import socket
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from body import body, error_of, sample


def _port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _agreed():
    """Ports and a folder that are the same on every rank."""
    choice = [_port(), _port(), _port(), tempfile.mkdtemp()]
    dist.broadcast_object_list(choice, src=0)
    return choice


def _used(rank):
    """Uses the group that has just been created."""
    tensor = sample(rank, 5)
    dist.all_reduce(tensor)
    results = [tensor, dist.get_backend(), dist.get_rank(), dist.get_world_size()]
    dist.barrier()
    dist.destroy_process_group()
    return results


@body
def ways_to_start(rank, size):
    port, other, third, folder = _agreed()
    dist.barrier()
    dist.destroy_process_group()
    who, results = {"rank": rank, "world_size": size}, [dist.is_initialized()]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", **who)
    results.append(_used(rank))
    dist.init_process_group(init_method=f"tcp://127.0.0.1:{other}?rank={rank}&world_size={size}")
    results.append(_used(rank)[0])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", **who)
    results.append(_used(rank))
    dist.init_process_group("gloo", store=dist.FileStore(str(Path(folder) / "store"), size), **who)
    results.append(_used(rank))
    os.environ["MASTER_PORT"] = str(third)
    # Later bodies need the default group.
    dist.init_process_group("gloo", init_method="env://")
    return [*results, dist.is_initialized(), dist.get_world_size()]


@body
def ways_not_to_start(rank, size):
    results = [
        error_of(lambda: dist.init_process_group("gloo")),
        error_of(lambda: dist.new_group([0, 0])),
        error_of(lambda: dist.new_group([size])),
        error_of(lambda: dist.get_process_group_ranks(None)),
        error_of(lambda: dist.all_reduce(torch.ones(1), group=dist.GroupMember.NON_GROUP_MEMBER)),
    ]
    dist.barrier()
    return results
