"""Rendezvous: stores that a program creates itself, and sends and receives in every mixture."""

import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from body import body, error_of, sample


def _shared(value):
    """Rank 0's value, on every rank."""
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def _everything(store, rank, size):
    """Every call of a store, ending with an empty store."""
    results = []
    store.set(f"rank{rank}", str(rank))
    store.wait([f"rank{i}" for i in range(size)], timedelta(minutes=1))
    results += [store.get(f"rank{i}") for i in range(size)]
    dist.barrier()
    store.add("sum", rank + 1)
    dist.barrier()
    results += [store.add("sum", 0), store.check(["sum", "rank0"]), store.check(["sum", "nothing"])]
    dist.barrier()
    results += [store.delete_key(f"rank{rank}"), store.delete_key("nothing")]
    dist.barrier()
    if rank == 0:
        results += [store.compare_set("new", "", "first"), store.compare_set("new", "first", "second")]
        results += [store.compare_set("new", "other", "third"), store.get("new")]
    dist.barrier()
    return results


@body
def tcp_store(rank, size):
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    port = _shared(store.port if store else None)
    store = store or dist.TCPStore("localhost", port, is_master=False, wait_for_workers=False)
    results = _everything(store, rank, size)
    if rank == 0:
        store.append("log", "a")
        store.append("log", "b")
        store.multi_set(["one", "two"], [b"\x001", b"2"])
        results += [store.get("log"), store.multi_get(["one", "two"]), store.num_keys(), sorted(store.list_keys())]
        results += [store.has_extended_api(), store.clone().get("log"), store.host, isinstance(store, dist.Store)]
    dist.barrier()
    return results


@body
def tcp_store_of_a_known_number(rank, size):
    port = _shared(dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False).port if rank == 0 else None)
    store = dist.TCPStore("localhost", port + 1, size, rank == 0, timeout=timedelta(minutes=1))
    store.set("key", "value")
    results = [store.get("key"), store.timeout]
    # Wait until all ranks have read, because the server ends with rank 0's store.
    dist.barrier()
    return results


@body
def file_store(rank, size):
    path = _shared(str(Path(tempfile.mkdtemp()) / "store") if rank == 0 else None)
    store = dist.FileStore(path, size)
    results = [_everything(store, rank, size), Path(store.path).name]
    dist.barrier()
    return results


@body
def hash_store(rank, size):
    store = dist.PrefixStore("mine", dist.HashStore())
    store.set("key", str(rank))
    store.append("key", "!")
    return [store.get("key"), store.add("count", 5), store.check(["nothing"]), store.delete_key("key")]


@body
def prefixes(rank, size):
    base = dist.distributed_c10d._get_default_store()
    outer = dist.PrefixStore("outer", base)
    inner = dist.PrefixStore("inner", outer)
    if rank == 0:
        inner.set("key", "value")
        dist.PrefixStore("other", outer).set("key", "another")
    results = [inner.get("key"), outer.get("inner/key"), dist.PrefixStore("outer/inner", base).get("key")]
    return [*results, outer.get("other/key"), inner.underlying_store is outer]


@body
def queues(rank, size):
    store = dist.PrefixStore("queues", dist.distributed_c10d._get_default_store())
    store.set_timeout(timedelta(milliseconds=100))
    results = [error_of(lambda: store.queue_pop(f"empty{rank}", block=False))[:40]]
    store.set_timeout(timedelta(minutes=1))
    if rank == 0:
        results += [sorted(store.queue_pop("answers") for _ in range(size - 1)), store.queue_len("answers")]
    else:
        store.queue_push("answers", f"from {rank}")
    dist.barrier()
    return results


@body
def mixed_batch(rank, size):
    """Messages between all pairs, several tensors per pair: messages of one pair keep their order."""
    others = [other for other in range(size) if other != rank]
    received = {other: [torch.empty(3), torch.empty(2, 2)] for other in others}
    receives = [dist.P2POp(dist.irecv, tensor, other) for other in others for tensor in received[other]]
    sends = [
        dist.P2POp(dist.isend, sample(10 * rank + other, *shape), other) for other in others for shape in ((3,), (2, 2))
    ]
    for work in dist.batch_isend_irecv([*sends, *receives]):
        work.wait()
    return received


@body
def batch_in_a_sub_group(rank, size):
    group = dist.new_group([size - 1, 0])
    if rank not in (0, size - 1):
        return None
    received = torch.empty(4)
    peer = 1 - dist.get_rank(group)
    operations = [
        dist.P2POp(dist.isend, sample(rank, 4), group=group, group_peer=peer, tag=7),
        dist.P2POp(dist.irecv, received, group=group, group_peer=peer, tag=7),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return received


@body
def batch_refuses(rank, size):
    return [
        error_of(lambda: dist.batch_isend_irecv([])),
        error_of(lambda: dist.P2POp(dist.all_reduce, torch.ones(1), 0)),
        error_of(lambda: dist.send(torch.ones(1), rank)),
    ]


@body
def any_source_with_tags(rank, size):
    if rank != 0:
        works = [dist.isend(sample(rank + tag, 3), 0, tag=tag) for tag in (5, 6)]
        for work in works:
            work.wait()
        dist.barrier()
        return None
    received = []
    for tag in (6, 5):
        for _ in range(size - 1):
            tensor = torch.empty(3)
            source = dist.recv(tensor, tag=tag)
            received.append((tag, source, tensor))
    dist.barrier()
    return sorted(received, key=lambda entry: entry[:2])


@body
def asynchronous_any_source(rank, size):
    if rank == 0:
        tensors = [torch.empty(2) for _ in range(size - 1)]
        works = [dist.irecv(tensor, tag=3) for tensor in tensors]
        for work in works:
            work.wait()
        dist.barrier()
        return sorted(tensor.tolist() for tensor in tensors)
    dist.isend(sample(rank, 2), 0, tag=3).wait()
    dist.barrier()
    return None


@body
def non_contiguous_messages(rank, size):
    sent, received = sample(rank, 4, 6).t(), torch.zeros(6, 4)
    work = dist.irecv(received, (rank - 1) % size)
    sending = error_of(lambda: dist.send(sent.contiguous(), (rank + 1) % size))
    work.wait()
    return [sending, received]
