"""Functional collectives: every one of `_functional_collectives`, the operators below them, and their gradients."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from body import body, error_of, sample, since


def _name():
    return dist.group.WORLD.group_name


@body
def every_reduction(rank, size):
    operations = ("sum", "avg", "product", "min", "max")
    floats = [functional.all_reduce(sample(rank, 6), op, dist.group.WORLD) + 0 for op in operations]
    bits = [
        functional.all_reduce(sample(rank, 6, dtype=torch.int32), op, dist.group.WORLD) + 0
        for op in ("band", "bor", "bxor")
    ]
    return [floats, bits]


@body
def groups_of_every_kind(rank, size):
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    tensor = sample(rank, 4)
    groups = [dist.group.WORLD, list(range(size)), mesh, (mesh, 0), _name()]
    return [functional.all_reduce(tensor, "sum", group) + 0 for group in groups]


@body
def coalesced(rank, size):
    world, shapes = dist.group.WORLD, ((3,), (2, 2))
    inputs = [sample(rank, *shape) for shape in shapes]
    scattered = [sample(rank, 2 * size, 2), sample(rank, size)]
    return [
        [t + 0 for t in functional.all_reduce_coalesced(inputs, "sum", world)],
        [t + 0 for t in functional.all_gather_single_coalesced(inputs, world)],
        [t + 0 for t in functional.reduce_scatter_single_coalesced(scattered, "sum", [0, 0], world)],
    ]


@body
def uneven_all_to_all(rank, size):
    sent = [rank + i for i in range(size)]
    tensor = sample(rank, sum(sent), 2)
    return functional.all_to_all_single(tensor, sent, sent, dist.group.WORLD) + 0


@body
def permuted(rank, size):
    target = [(i + 1) % size for i in range(size)]
    return functional.permute_tensor(sample(rank, 5), target, dist.group.WORLD) + 0


@body
def scattered_along_any_dimension(rank, size):
    tensor = sample(rank, 2, 3 * size)
    gathered = functional.all_gather_single(sample(rank, 2, 3), 1, dist.group.WORLD) + 0
    return [functional.reduce_scatter_single(tensor, "avg", 1, dist.group.WORLD) + 0, gathered]


@body
def operators(rank, size):
    ops, name, wait = torch.ops._c10d_functional, _name(), torch.ops._c10d_functional.wait_tensor
    tensor, wide = sample(rank, 4), sample(rank, 2 * size)
    split = [2] * size
    output = torch.empty(4 * size)
    results = [
        ops.all_reduce(tensor, "sum", name),
        ops.all_gather_into_tensor(tensor, size, name),
        ops.reduce_scatter_tensor(wide, "sum", size, name),
        ops.all_to_all_single(wide, split, split, name),
        ops.broadcast(tensor, 0, name),
        ops.all_gather_into_tensor_out(tensor, size, name, out=output),
    ]
    many = [
        *ops.all_reduce_coalesced([tensor, wide], "max", name),
        *ops.all_gather_into_tensor_coalesced([tensor, wide], size, name),
        *ops.reduce_scatter_tensor_coalesced([wide, wide * 2], "sum", size, name),
    ]
    return [wait(t) for t in results + many] + [output]


@body
def operators_in_place(rank, size):
    ops, name, wait = torch.ops._c10d_functional, _name(), torch.ops._c10d_functional.wait_tensor
    reduced, sent, many = sample(rank, 4), sample(rank, 4), [sample(rank, 2), sample(rank, 3)]
    wait(ops.all_reduce_(reduced, "sum", name))
    wait(ops.broadcast_(sent, size - 1, name))
    waiting = ops.all_reduce_coalesced_(many, "sum", name)
    if hasattr(ops, "wait_tensors"):  # since torch 2.15
        ops.wait_tensors(waiting)
    else:
        [wait(tensor) for tensor in waiting]
    return [reduced, sent, many]


@body
def waited_for_in_another_order(rank, size):
    ops = torch.ops._c10d_functional
    tensors = [ops.all_reduce(sample(rank + i, 3), "sum", _name()) for i in range(5)]
    return [ops.wait_tensor(tensor) for tensor in reversed(tensors)]


@body
def views_of_asynchronous_results(rank, size):
    pending = functional.all_reduce(sample(rank, 2, 3), "sum", dist.group.WORLD)
    return [type(pending).__name__, pending.view(6)[2:].t() + 0, pending.wait()]


def _gradient(function, *shape, rank):
    tensor = sample(rank, *shape).requires_grad_()
    output = function(tensor) * 1.0
    (output * (rank + 1)).sum().backward()
    return [output.detach() + 0, tensor.grad]


@body
def gradients(rank, size):
    world = dist.group.WORLD
    even = [2] * size
    return [
        _gradient(lambda t: functional.all_gather_single_autograd(t, 0, world), 2, 3, rank=rank),
        _gradient(lambda t: functional.reduce_scatter_single_autograd(t, "sum", 0, world), 2 * size, 3, rank=rank),
        _gradient(lambda t: functional.all_to_all_single_autograd(t, even, even, world), 2 * size, 3, rank=rank),
        _gradient(lambda t: functional.all_reduce(t, "sum", world), 3, rank=rank),
    ]


@since("2.15")
def gradient_of_a_maximum(rank, size):
    return _gradient(lambda t: functional.all_reduce(t, "max", dist.group.WORLD), 3, rank=rank)


@body
def older_gradients(rank, size):
    """torch.distributed.nn.functional, the interface before the functional collectives."""
    results = [
        _gradient(lambda t: differentiable.all_reduce(t), 3, rank=rank),
        _gradient(lambda t: differentiable.broadcast(t, 0), 3, rank=rank),
        # Other members' results of a reduce are undefined.
        _gradient(lambda t: differentiable.reduce(t, 0), 3, rank=rank)[rank != 0 :],
        _gradient(lambda t: torch.cat(differentiable.all_gather(t)), 3, rank=rank),
        _gradient(lambda t: torch.cat(differentiable.gather(t, 0)), 3, rank=rank),
        _gradient(lambda t: differentiable.scatter([t * i for i in range(size)], 0), 3, rank=rank),
        _gradient(lambda t: differentiable.reduce_scatter(torch.empty(1), list(t.split(1))), size, rank=rank),
        _gradient(
            lambda t: torch.cat(differentiable.all_to_all([torch.empty(1)] * size, list(t.split(1)))), size, rank=rank
        ),
        _gradient(lambda t: differentiable.all_to_all_single(torch.empty(size), t), size, rank=rank),
    ]
    return results


@body
def wrong_arguments(rank, size):
    world = dist.group.WORLD
    return [
        error_of(lambda: functional.all_reduce(torch.ones(2), "no such", world)),
        error_of(lambda: functional.reduce_scatter_single(torch.ones(size + 1), "sum", 0, world)) if size > 1 else "",
    ]
