"""Every element type with every reduction, layouts and empty tensors; coalesced calls; calls from several threads."""

import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from body import body, error_of, sample

OPERATIONS = tuple(
    getattr(dist.ReduceOp, name) for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
)
DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
)


def _values(rank, count, dtype):
    source = torch.float32 if dtype.is_floating_point else torch.int64
    return sample(rank, count, dtype=dtype if dtype.is_complex or dtype is torch.bool else source).to(dtype)


def _outcome(call, output):
    """The bytes of a call's result, or its error."""
    error = error_of(call)
    if error != "no error":
        # torch prints the numbers of these operations as control characters.
        return "no complex tensors" if "complex tensors" in error else error
    return output if output.dtype is torch.bool else output.view(torch.uint8)


@body
def all_reduce_everything(rank, size):
    results = {}
    for dtype in DTYPES:
        for op in OPERATIONS:
            tensor = _values(rank, 5, dtype)
            results[f"{dtype} {op}"] = _outcome(lambda t=tensor, o=op: dist.all_reduce(t, op=o), tensor)
    return results


@body
def reduce_everything(rank, size):
    results = {}
    for dtype in DTYPES:
        for op in OPERATIONS:
            tensor = _values(rank, 5, dtype)
            outcome = _outcome(lambda t=tensor, o=op: dist.reduce(t, dst=0, op=o), tensor)
            # Other members' tensors are undefined afterwards.
            results[f"{dtype} {op}"] = outcome if rank == 0 else None
    return results


@body
def reduce_scatter_everything(rank, size):
    results = {}
    for dtype in DTYPES:
        for op in OPERATIONS:
            output, tensor = torch.zeros(4, dtype=dtype), _values(rank, 4 * size, dtype)
            results[f"{dtype} {op}"] = _outcome(
                lambda out=output, t=tensor, o=op: dist.reduce_scatter_single(out, t, op=o), output
            )
    return results


@body
def move_everything(rank, size):
    results = {}
    for dtype in DTYPES:
        sent, gathered = _values(rank, 3, dtype), torch.zeros(3 * size, dtype=dtype)
        parts = [torch.zeros(3, dtype=dtype) for _ in range(size)]
        wide = _values(rank, size, dtype)
        swapped, scattered = torch.zeros(size, dtype=dtype), torch.zeros(3, dtype=dtype)
        results[str(dtype)] = [
            _outcome(lambda a=gathered, b=sent: dist.all_gather_single(a, b), gathered),
            _outcome(lambda a=parts, b=sent: dist.all_gather(a, b), parts[-1]),
            _outcome(lambda a=swapped, b=wide: dist.all_to_all_single(a, b), swapped),
            _outcome(lambda a=scattered, b=parts: dist.scatter(a, b if rank == 0 else None), scattered),
            _outcome(lambda a=parts, b=sent: dist.gather(b, a if rank == 0 else None), parts[-1]),
            _outcome(lambda a=sent: dist.broadcast(a, size - 1), sent),
        ]
    return results


@body
def empty_tensors(rank, size):
    nothing, parts = torch.empty(0), [torch.empty(0) for _ in range(size)]
    calls = {
        "all_reduce": lambda: dist.all_reduce(nothing),
        "reduce": lambda: dist.reduce(nothing, 0),
        "broadcast": lambda: dist.broadcast(nothing, 0),
        "all_gather": lambda: dist.all_gather(parts, nothing),
        "all_gather_single": lambda: dist.all_gather_single(torch.empty(0), nothing),
        "gather": lambda: dist.gather(nothing, parts if rank == 0 else None),
        "scatter": lambda: dist.scatter(nothing, parts if rank == 0 else None),
        "reduce_scatter": lambda: dist.reduce_scatter(nothing, parts),
        "reduce_scatter_single": lambda: dist.reduce_scatter_single(torch.empty(0), nothing),
        "all_to_all": lambda: dist.all_to_all(parts, parts),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.empty(0), nothing),
    }
    return {name: error_of(call) for name, call in calls.items()}


@body
def views(rank, size):
    """Dense views. For a view with gaps, Gloo uses the contiguous memory from its first element, the simulation the
    view's elements."""
    whole = sample(rank, 8, 6)
    dist.all_reduce(whole[2:5])
    dist.broadcast(whole[5:, :].view(-1), size - 1)
    dist.all_reduce(whole[0, 0])
    channels_last = sample(rank, 2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    dist.broadcast(channels_last, 0)
    return [whole, channels_last]


@body
def conjugates(rank, size):
    tensor = sample(rank, 4, dtype=torch.complex64)
    gathered = [torch.empty(4, dtype=torch.complex64) for _ in range(size)]
    return [error_of(lambda: dist.all_gather(gathered, tensor.conj().resolve_conj())), gathered]


@body
def coalesced_asynchronously(rank, size):
    reduced = [sample(rank, 4), sample(rank + 1, 9)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in reduced:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    gathered = [torch.empty(size * 3), torch.empty(size * 2)]
    with dist._coalescing_manager(async_ops=True) as later:
        for output, count in zip(gathered, (3, 2), strict=True):
            dist.all_gather_single(output, sample(rank, count))
    later.wait()
    manager.wait()
    return [reduced, gathered]


@body
def coalesced_refuses_a_mixture(rank, size):
    def mixed():
        with dist._coalescing_manager():
            dist.all_reduce(torch.ones(2))
            dist.all_gather_single(torch.empty(2 * size), torch.ones(2))

    # The message names the two types in varying order.
    return error_of(mixed)[:80]


@body
def coalesced_of_old(rank, size):
    """The calls that preceded the coalescing manager."""
    reduced = [sample(rank, 3), sample(rank, 2, 2)]
    dist.all_reduce_coalesced(reduced)
    gathered = [[torch.empty(3), torch.empty(2, 2)] for _ in range(size)]
    dist.all_gather_coalesced(gathered, [sample(rank, 3), sample(rank, 2, 2)])
    return [reduced, gathered]


@body
def threads_with_groups_of_their_own(rank, size):
    groups = [dist.new_group() for _ in range(3)]
    tensors = [sample(rank + i, 50) for i in range(3)]

    def work(index):
        for _ in range(5):
            dist.all_reduce(tensors[index], group=groups[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tensors


@body
def thread_waits_for_what_another_has_issued(rank, size):
    tensor = sample(rank, 6)
    work = dist.all_reduce(tensor, async_op=True)
    thread = threading.Thread(target=work.wait)
    thread.start()
    thread.join()
    work.wait()
    return [tensor, work.is_completed()]


@body
def thread_sends_while_the_main_one_receives(rank, size):
    received = torch.empty(4)
    thread = threading.Thread(target=dist.send, args=(sample(rank, 4), (rank + 1) % size))
    thread.start()
    dist.recv(received, (rank - 1) % size)
    thread.join()
    return received


@body
def chains_of_futures(rank, size):
    first = dist.all_reduce(sample(rank, 3), async_op=True).get_future()
    second = first.then(lambda done: dist.all_reduce(done.value()[0] * 2, async_op=True).get_future().wait()[0])
    third = second.then(lambda done: done.value() + 1)
    failing = first.then(lambda done: 1 // 0)
    return [third.wait(), error_of(failing.wait), first.done(), third.value()]


@body
def futures_of_every_call(rank, size):
    parts = [torch.empty(2) for _ in range(size)]
    works = [
        dist.all_gather(parts, sample(rank, 2), async_op=True),
        dist.broadcast(sample(rank, 2), 0, async_op=True),
        dist.all_to_all_single(torch.empty(size), sample(rank, size), async_op=True),
        dist.scatter(torch.empty(2), [sample(i, 2) for i in range(size)] if rank == 0 else None, async_op=True),
    ]
    return [work.get_future().wait() for work in works]


@body
def time_outs_of_a_group(rank, size):
    group = dist.new_group(timeout=timedelta(minutes=2))
    dist.set_timeout(timedelta(minutes=3), group)
    tensor = sample(rank, 2)
    dist.all_reduce(tensor, group=group)
    dist.all_reduce(tensor, group=group, async_op=True).wait(timedelta(minutes=1))
    return tensor
