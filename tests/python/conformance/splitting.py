"""Groups derived from groups: split, sub-groups by size and by list, groups that only their members create, objects in
them."""

from datetime import timedelta

import torch
import torch.distributed as dist
from body import body, error_of, sample, since


def _summed(rank, group):
    tensor = sample(rank, 5)
    dist.all_reduce(tensor, group=group)
    return [tensor, dist.get_rank(group), dist.get_world_size(group), dist.get_process_group_ranks(group)]


@since("2.15")
def split(rank, size):
    # Rank order inside a part is the list's; a rank in no part gets no group.
    parts = [[1, 0], list(range(2, size))] if size > 2 else [[1, 0]]
    group = dist.split_group(split_ranks=parts, group_desc="part")
    return [_summed(rank, group), group.group_desc, dist.get_backend(group)]


@since("2.15")
def split_leaves_some_out(rank, size):
    group = dist.split_group(split_ranks=[[0]], timeout=timedelta(minutes=1))
    return _summed(rank, group) if rank == 0 else group == dist.GroupMember.NON_GROUP_MEMBER


@since("2.15")
def split_twice(rank, size):
    whole = dist.split_group(split_ranks=[list(reversed(range(size)))])
    # Ranks are the parent's: its rank 0 is the world's last rank.
    part = dist.split_group(parent_pg=whole, split_ranks=[[0, 1]])
    dist.barrier(whole)
    return _summed(rank, part) if size - 1 - rank < 2 else None


@body
def split_refuses(rank, size):
    return [
        error_of(lambda: dist.split_group(split_ranks=[])),
        error_of(lambda: dist.split_group(split_ranks=[[0, 0]])),
    ]


@since("2.15")
def what_a_backend_can(rank, size):
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    names = ("splitting", "coalescing", "shrinking", "window", "completion_hooks", "abort_hooks")
    return {name: getattr(backend, f"supports_{name}") for name in names}


@body
def what_gloo_cannot(rank, size):
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    tensor = torch.ones(2)
    return [
        error_of(lambda: dist.shrink_group([size - 1])),
        error_of(backend.suspend),
        error_of(backend.resume),
        error_of(backend.memory_stats),
        error_of(lambda: backend.allocate_tensor(4, dtype=torch.float32, device=torch.device("cpu"))),
        error_of(lambda: dist.gather_single(tensor, torch.empty(2 * size) if rank == 0 else None)),
        error_of(lambda: dist.distributed_c10d._new_window(tensor)),
    ]


@body
def sub_groups_by_size(rank, size):
    if size % 2:
        return error_of(lambda: dist.new_subgroups(2))
    mine, every = dist.new_subgroups(2)
    return [_summed(rank, mine), len(every)]


@body
def sub_groups_by_list(rank, size):
    mine, every = dist.new_subgroups_by_enumeration([[0], list(range(1, size))])
    return [_summed(rank, mine), len(every)]


@body
def sub_groups_by_their_members(rank, size):
    members = [member for member in (rank // 2 * 2, rank // 2 * 2 + 1) if member < size]
    groups = [dist.new_group(members, use_local_synchronization=True) for _ in range(2)]
    return [_summed(rank, group) for group in groups]


@body
def objects_in_sub_groups(rank, size):
    members = [size - 1, 0]
    group = dist.new_group(members)
    if rank not in members:
        return None
    me = dist.get_rank(group)
    gathered = [None] * 2
    dist.all_gather_object(gathered, {"rank": rank}, group=group)
    shared = [rank, "x" * rank]
    dist.broadcast_object_list(shared, group_src=1, group=group)
    collected = [None] * 2 if me == 1 else None
    dist.gather_object(("from", rank), collected, group_dst=1, group=group)
    scattered = [None]
    dist.scatter_object_list(scattered, ["a", "b"] if me == 0 else None, group_src=0, group=group)
    return [gathered, shared, collected, scattered, me]


@body
def ranks_of_sub_groups(rank, size):
    group = dist.new_group([size - 1, 0])
    if rank not in (0, size - 1):
        return error_of(lambda: dist.get_group_rank(group, 0))
    return [
        dist.get_group_rank(group, rank),
        dist.get_global_rank(group, 1),
    ]


@body
def destroyed_group(rank, size):
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group(group)
    return error_of(lambda: dist.all_reduce(torch.ones(1), group=group))
