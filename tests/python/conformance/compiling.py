"""Programs with collectives that the inductor compiles: its output needs a C++ compiler."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from body import body, sample
from layers import full, model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def _gradients(net, rank):
    net(sample(rank, 6, 12)).pow(2).mean().backward()
    return [full(parameter.grad) for parameter in net.parameters()]


@body
def functional_collectives(rank, size):
    group = dist.group.WORLD

    def work(x):
        gathered = functional.all_gather_single(x * 2 + 1, 0, group)
        summed = functional.all_reduce(gathered.sin().cos(), "sum", group)
        return functional.reduce_scatter_single(summed * gathered, "sum", 0, group)

    torch._dynamo.reset()
    return torch.compile(work, fullgraph=True)(sample(rank, 4, 3))


@body
def collectives_in_place(rank, size):
    def work(x):
        x = x.relu() + 1
        dist.all_reduce(x)
        output = x.new_empty(size * x.shape[0], x.shape[1])
        dist.all_gather_into_tensor(output, x.tanh())
        return output * 2

    torch._dynamo.reset()
    return torch.compile(work, fullgraph=True)(sample(rank, 2, 3))


@body
def data_parallel(rank, size):
    torch._dynamo.reset()
    net = nn.parallel.DistributedDataParallel(model())
    compiled = torch.compile(net)
    compiled(sample(rank, 6, 12)).pow(2).mean().backward()
    return [parameter.grad for parameter in net.parameters()]


@body
def tensor_parallel(rank, size):
    torch._dynamo.reset()
    net = parallelize_module(
        model(), init_device_mesh("cpu", (size,)), {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    return _gradients(torch.compile(net), 0)


@body
def sharded_layers(rank, size):
    """Blocks that are compiled first and then sharded, as in torchtitan."""
    torch._dynamo.reset()
    net = model()
    for layer in net[::2]:
        layer.compile()
        fully_shard(layer)
    fully_shard(net)
    return _gradients(net, rank)
