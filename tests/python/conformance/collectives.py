"""The nine collectives: plain, asynchronous, functional; types, sizes, layouts, reductions, and the errors for wrong arguments."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from body import body, error_of, sample

SIZES = (0, 1, 3, 17, 1000, 70_001)
REDUCED_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
)


@body
def all_reduce_sizes(rank, size):
    tensors = [sample(rank, n) for n in SIZES[1:]]
    for tensor in tensors:
        dist.all_reduce(tensor)
    return tensors


@body
def large_tensors(rank, size):
    # More than a megabyte, so that data is copied concurrently with other members' calls. The second round reuses arena
    # blocks of the first.
    results = []
    for _ in range(2):
        reduced, sent = sample(rank, 300_001), sample(rank, 300_001)
        dist.all_reduce(reduced)
        dist.broadcast(sent, 1)
        gathered = torch.empty(size * 300_001)
        dist.all_gather_into_tensor(gathered, reduced + sent)
        half = sample(rank, 300_001, dtype=torch.float16)
        dist.all_reduce(half)
        results += [reduced, sent, gathered, half]
    return results


@body
def all_reduce_dtypes(rank, size):
    tensors = [sample(rank, 33, dtype=dtype) for dtype in (*REDUCED_DTYPES, torch.complex64, torch.complex128)]
    for tensor in tensors:
        dist.all_reduce(tensor)
    return tensors


@body
def all_reduce_operations(rank, size):
    op = dist.ReduceOp
    results = []
    for reduce in (op.SUM, op.AVG, op.PRODUCT, op.MIN, op.MAX):
        tensor = sample(rank, 5, 7)
        dist.all_reduce(tensor, op=reduce)
        results.append(tensor)
    for reduce in (op.BAND, op.BOR, op.BXOR, op.MIN, op.MAX, op.PRODUCT):
        for dtype in (torch.int32, torch.int64, torch.uint8, torch.bool):
            tensor = sample(rank, 19, dtype=dtype)
            dist.all_reduce(tensor, op=reduce)
            results.append(tensor)
    return results


@body
def all_reduce_errors(rank, size):
    op = dist.ReduceOp
    return [
        error_of(lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16))),
        error_of(lambda: dist.all_reduce(torch.ones(2), op=op.BAND)),
        error_of(lambda: dist.all_reduce(torch.ones(2, dtype=torch.complex64), op=op.MAX)),
        error_of(lambda: dist.all_reduce(torch.ones(2), op=dist._make_nccl_premul_sum(2.0))),
        error_of(lambda: dist.reduce(torch.ones(2), dst=size + 3)),
        error_of(lambda: dist.broadcast(torch.ones(2), src=size + 3)),
    ]


@body
def non_contiguous(rank, size):
    # Integers, because Gloo reduces such a tensor in the order of memory, the simulation in the tensor's order.
    reduced = sample(rank, 6, 8, dtype=torch.int64).t()
    dist.all_reduce(reduced)
    sent = sample(rank, 6, 8).t()
    dist.broadcast(sent, 0)
    expanded = sample(rank, 4, 1).expand(4, 4).contiguous()[:, 1:3]
    gathered = [torch.zeros(2, 4).t() for _ in range(size)]
    dist.all_gather(gathered, expanded.contiguous())
    return [reduced, sent, gathered]


@body
def reduce(rank, size):
    results = []
    for root in range(size):
        for n in SIZES[1:]:
            tensor = sample(rank, n)
            dist.reduce(tensor, dst=root)
            # Other members' tensors are undefined afterwards.
            results.append(tensor if rank == root else None)
    return results


@body
def broadcast(rank, size):
    results = []
    for root in range(size):
        for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16):
            tensor = sample(rank, 29, dtype=dtype)
            dist.broadcast(tensor, src=root)
            results.append(tensor)
    return results


@body
def all_gather(rank, size):
    results = []
    for n in SIZES:
        outputs = [torch.full((n,), -1.0) for _ in range(size)]
        dist.all_gather(outputs, sample(rank, n))
        single = torch.empty(size * n)
        dist.all_gather_into_tensor(single, sample(rank, n))
        results.append([outputs, single])
    complex_outputs = [torch.empty(3, dtype=torch.complex64) for _ in range(size)]
    dist.all_gather(complex_outputs, sample(rank, 3, dtype=torch.complex64))
    stacked = torch.empty(size, 4)
    dist.all_gather_into_tensor(stacked, sample(rank, 1, 4))
    return [results, complex_outputs, stacked]


@body
def all_gather_errors(rank, size):
    uneven = [torch.zeros(1 + i) for i in range(size)]
    return [
        error_of(lambda: dist.all_gather(uneven, torch.ones(1))),
        error_of(lambda: dist.all_gather([torch.zeros(2)] * size, torch.ones(2, dtype=torch.int32))),
        error_of(lambda: dist.all_gather_into_tensor(torch.empty(size * 2 + 1), torch.ones(2))),
    ]


@body
def reduce_scatter(rank, size):
    results = []
    for n in SIZES[1:]:
        output = torch.empty(n, dtype=torch.int64)
        # Integers, because Gloo implements the list form as one all-reduce per block, which reduces in another order.
        dist.reduce_scatter(output, [sample(rank + i, n, dtype=torch.int64) for i in range(size)])
        single = torch.empty(n)
        dist.reduce_scatter_tensor(single, sample(rank, size * n))
        results.append([output, single])
    return results


@body
def reduce_scatter_uneven(rank, size):
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, [sample(rank, i + 1) for i in range(size)])
    return output


@body
def all_to_all(rank, size):
    results = []
    for n in SIZES:
        outputs = [torch.empty(n) for _ in range(size)]
        dist.all_to_all(outputs, [sample(rank * size + i, n) for i in range(size)])
        single = torch.empty(size * n)
        dist.all_to_all_single(single, sample(rank, size * n))
        results.append([outputs, single])
    return results


@body
def all_to_all_uneven(rank, size):
    # Rank r sends r + i rows to rank i.
    sent = [rank + i for i in range(size)]
    received = [i + rank for i in range(size)]
    output = torch.empty(sum(received), 3, dtype=torch.int64)
    dist.all_to_all_single(output, sample(rank, sum(sent), 3, dtype=torch.int64), received, sent)
    lists = [torch.empty(4) for _ in range(size)]
    dist.all_to_all(lists, [sample(rank + i, 4) for i in range(size)])
    return [output, lists]


@body
def all_to_all_errors(rank, size):
    wrong = [1] * size
    return [
        error_of(lambda: dist.all_to_all_single(torch.empty(size), torch.empty(size + 1), None, wrong)),
        error_of(lambda: dist.all_to_all_single(torch.empty(2 * size + 1), torch.empty(2 * size + 1)))
        if size > 1
        else "",
    ]


@body
def gather_and_scatter(rank, size):
    results = []
    for root in range(size):
        gathered = [torch.empty(5) for _ in range(size)] if rank == root else None
        dist.gather(sample(rank, 5), gathered, dst=root)
        scattered = torch.empty(4)
        dist.scatter(scattered, [sample(i, 4) for i in range(size)] if rank == root else None, src=root)
        results.append([gathered, scattered])
    return results


@body
def barriers(rank, size):
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    dist.monitored_barrier()
    return work.is_completed()


@body
def coalesced(rank, size):
    reduced = [sample(rank, 4), sample(rank + 1, 9)]
    with dist._coalescing_manager():
        for tensor in reduced:
            dist.all_reduce(tensor)
    gathered = [torch.empty(size * 3), torch.empty(size * 2)]
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(gathered[0], sample(rank, 3))
        dist.all_gather_into_tensor(gathered[1], sample(rank, 2))
    scattered = [torch.empty(3), torch.empty(2)]
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(scattered[0], sample(rank, size * 3))
        dist.reduce_scatter_tensor(scattered[1], sample(rank, size * 2))
    return [reduced, gathered, scattered]


@body
def functional_collectives(rank, size):
    group = dist.group.WORLD
    return [
        functional.all_reduce(sample(rank, 6), "sum", group) + 0,
        functional.all_reduce(sample(rank, 6), "avg", group) + 0,
        functional.all_gather_single(sample(rank, 2, 3), 0, group) + 0,
        functional.all_gather_single(sample(rank, 2, 3), 1, group) + 0,
        functional.reduce_scatter_single(sample(rank, 2 * size, 3), "sum", 0, group) + 0,
        functional.broadcast(sample(rank, 5), 0, group) + 0,
        functional.all_to_all_single(sample(rank, 2 * size), None, None, group) + 0,
        [t + 0 for t in functional.all_reduce_coalesced([sample(rank, 3), sample(rank, 4)], "sum", group)],
    ]


@body
def functional_gradients(rank, size):
    group = dist.group.WORLD
    weight = sample(rank, 4, 4).requires_grad_()
    gathered = functional.all_gather_single_autograd(weight, 0, group)
    scattered = functional.reduce_scatter_single_autograd(gathered * (rank + 1), "sum", 0, group)
    scattered.pow(2).sum().backward()
    return [scattered.detach() + 0, weight.grad]


@body
def reduce_scatter_equal_floats(rank, size):
    output = torch.empty(7)
    dist.reduce_scatter(output, [sample(rank + i, 7) for i in range(size)])
    return output


@body
def sparse_all_reduce(rank, size):
    results = []
    for shape, kept in (((6,), 4), ((4, 3), 2), ((5, 2), 0)):
        dense = sample(rank, *shape)
        tensor = (dense * (torch.arange(dense.numel()).reshape(shape) % (rank + 2) < kept)).to_sparse()
        dist.all_reduce(tensor)
        tensor = tensor.coalesce()
        results += [tensor.indices(), tensor.values()]
    hybrid = sample(rank, 4, 3).to_sparse(1)
    dist.all_reduce(hybrid)
    return [*results, hybrid.coalesce().indices(), hybrid.coalesce().values()]
