"""Sub-groups, stores and object collectives."""

import torch
import torch.distributed as dist
from body import body, error_of, sample
from torch.distributed.device_mesh import init_device_mesh


@body
def names(rank, size):
    group = dist.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("cpu"))
    return [
        dist.get_backend(),
        backend.name(),
        backend.supports_coalescing,
        backend.size(),
        backend.rank(),
    ]


@body
def new_groups(rank, size):
    results = []
    for members in ([0, 1], [0, size - 1], list(range(size))):
        group = dist.new_group(sorted(set(members)))
        if rank in members:
            tensor = sample(rank, 6)
            dist.all_reduce(tensor, group=group)
            results.append([tensor, dist.get_rank(group), dist.get_world_size(group)])
    return results


@body
def local_synchronization(rank, size):
    # Every rank creates one group, because otherwise the names of later groups would differ between ranks.
    members = [member for member in (rank // 2 * 2, rank // 2 * 2 + 1) if member < size]
    group = dist.new_group(members, use_local_synchronization=True)
    tensor = sample(rank, 4)
    dist.all_reduce(tensor, group=group)
    return tensor


@body
def roots_are_global(rank, size):
    group = dist.new_group([size - 1, 0])
    if rank not in (0, size - 1):
        return None
    tensor = sample(rank, 3)
    dist.broadcast(tensor, src=size - 1, group=group)
    return tensor


@body
def mesh(rank, size):
    grid = init_device_mesh("cpu", (1, size), mesh_dim_names=("data", "model"))
    tensor = sample(rank, 5)
    dist.all_reduce(tensor, group=grid["model"].get_group())
    return [tensor, grid.get_coordinate()]


@body
def two_devices(rank, size):
    group = dist.new_group(backend="cpu:gloo,cuda:gloo")
    tensor = sample(rank, 5)
    dist.all_reduce(tensor, group=group)
    return tensor


@body
def objects(rank, size):
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    shared = [rank, "from", None] if rank == 0 else [None] * 3
    dist.broadcast_object_list(shared, src=0)
    collected = [None] * size if rank == 0 else None
    dist.gather_object((rank, [rank]), collected, dst=0)
    scattered = [None]
    dist.scatter_object_list(scattered, [f"for {i}" for i in range(size)] if rank == 0 else None, src=0)
    return [gathered, shared, collected, scattered]


@body
def store(rank, size):
    store = dist.PrefixStore("test", dist.distributed_c10d._get_default_store())
    if rank == 0:
        store.set("key", "value")
        store.set("binary", b"\x00\xff")
    results = [store.get("key"), store.get("binary")]
    dist.barrier()
    store.add("count", rank + 1)
    dist.barrier()
    results += [store.add("count", 0), store.check(["key"]), store.check(["nothing"])]
    if rank == 0:
        results += [store.compare_set("key", "value", "other"), store.compare_set("key", "value", "third")]
        results += [store.delete_key("binary"), store.delete_key("binary")]
        store.append("log", "a")
        store.append("log", "b")
        results += [store.get("log"), store.multi_get(["key", "log"])]
        store.queue_push("queue", b"first")
        store.queue_push("queue", b"second")
        results += [store.queue_len("queue"), store.queue_pop("queue"), store.queue_pop("queue")]
    dist.barrier()
    return results


@body
def own_tcp_store(rank, size):
    ports = [None]
    if rank == 0:
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        ports = [store.port]
    dist.broadcast_object_list(ports, src=0)
    if rank != 0:
        store = dist.TCPStore("localhost", ports[0], is_master=False, wait_for_workers=False)
    store.set(f"rank{rank}", str(rank))
    store.wait([f"rank{i}" for i in range(size)])
    result = [store.get(f"rank{i}") for i in range(size)]
    dist.barrier()
    return [isinstance(store, dist.Store), result]


@body
def destroyed_group(rank, size):
    """A destroyed group remains usable through old references; calls that need its name fail."""
    group = dist.new_group()
    dist.destroy_process_group(group)
    tensor = sample(rank, 4)
    dist.all_reduce(tensor, group=group)
    by_name = [
        lambda: dist.broadcast(tensor, 0, group=group),
        lambda: dist.get_backend(group),
        lambda: dist.all_gather_object([None] * size, rank, group=group),
        lambda: dist.get_rank(group),
        lambda: dist.destroy_process_group(group),
    ]
    return [tensor, group.rank(), [error_of(call).partition("<")[0] for call in by_name]]
