"""Layers above collectives: DistributedDataParallel, DTensor, tensor parallel, FSDP2."""

import torch
from body import body, sample
from torch import nn
from torch.distributed._composable.fsdp import fully_shard
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 3))


def train(net, rank, steps=3):
    """Gradients of the last step, and the weights after it."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        net(sample(rank + 10 * step, 6, 12)).pow(2).mean().backward()
        optimizer.step()
    return [[full(p.grad) for p in net.parameters()], [full(p) for p in net.parameters()]]


def full(tensor):
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach()


@body
def data_parallel(rank, size):
    return train(DistributedDataParallel(model()), rank)


@body
def data_parallel_many_buckets(rank, size):
    return train(DistributedDataParallel(model(), bucket_cap_mb=0.0005, gradient_as_bucket_view=True), rank)


@body
def data_parallel_unused(rank, size):
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = model(), nn.Linear(3, 3)

        def forward(self, x):
            return self.used(x)

    net = DistributedDataParallel(Branch(), find_unused_parameters=True)
    net(sample(rank, 6, 12)).sum().backward()
    return [p.grad for p in net.parameters()]


@body
def data_parallel_hook(rank, size):
    net = DistributedDataParallel(model())
    net.register_comm_hook(None, bf16_compress_hook)
    return train(net, rank)


@body
def data_parallel_static_graph(rank, size):
    return train(DistributedDataParallel(model(), static_graph=True), rank)


@body
def data_parallel_no_sync(rank, size):
    net = DistributedDataParallel(model())
    with net.no_sync():
        net(sample(rank, 6, 12)).sum().backward()
    net(sample(rank + 5, 6, 12)).sum().backward()
    return [p.grad for p in net.parameters()]


@body
def dtensor(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(3)
    whole = torch.randn(8, 12)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    columns = sharded.redistribute(mesh, [Shard(1)])
    replicated = columns.redistribute(mesh, [Replicate()])
    product = sharded.t() @ sharded
    return [
        sharded.to_local(),
        columns.to_local(),
        replicated.to_local(),
        product.full_tensor(),
        sharded.sum().full_tensor(),
    ]


@body
def tensor_parallel(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    net = model()
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train(net, rank=0)


@body
def fully_sharded(rank, size):
    net = model()
    mesh = init_device_mesh("cpu", (size,))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return train(net, rank)
