"""Sharded models: every pipeline schedule of torch, meshes and slices, DTensor, checkpoints, compilation."""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from body import body, error_of, sample
from layers import full, model
from torch import nn
from torch.distributed import _symmetric_memory as symmetric_memory
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.experimental import local_map
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


def _layers(count):
    torch.manual_seed(9)
    return [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(count)]


def _loss(output, target):
    return (output - target).pow(2).mean()


def _run(schedule, rank, first, last, steps=2):
    """Losses and outputs, on the ranks that have them."""
    batch, target = sample(50, 8 * 2, 6), sample(60, 8 * 2, 6)
    losses, results = [], []
    for _ in range(steps):
        output = schedule.step(
            *([batch] if first else []), target=target if last else None, losses=losses if last else None
        )
        results.append(output.detach() if last else None)
    return [results, [loss.detach() for loss in losses]]


def _gradients(modules):
    return [parameter.grad for module in modules for parameter in module.parameters()]


@body
def one_stage_a_rank(rank, size):
    results = []
    for kind in (ScheduleGPipe, Schedule1F1B):
        module = _layers(size)[rank]
        stage = PipelineStage(module, rank, size, torch.device("cpu"))
        schedule = kind(stage, n_microbatches=2 * size, loss_fn=_loss) if size != 3 else kind(stage, 4, loss_fn=_loss)
        results.append([_run(schedule, rank, rank == 0, rank == size - 1), _gradients([module])])
    return results


def _several_stages(kind, mine, rank, size):
    layers = _layers(2 * size)
    stages = [PipelineStage(layers[index], index, 2 * size, torch.device("cpu")) for index in mine]
    microbatches = 2 * size if size != 3 else 6
    if size == 3:
        return None  # 16 rows do not divide by 6
    schedule = kind(stages, microbatches, loss_fn=_loss)
    last = 2 * size - 1 in mine
    return [_run(schedule, rank, 0 in mine, last), _gradients([layers[index] for index in mine])]


@body
def several_stages_a_rank(rank, size):
    kinds = (ScheduleInterleaved1F1B, ScheduleLoopedBFS, ScheduleInterleavedZeroBubble)
    return [_several_stages(kind, (rank, rank + size), rank, size) for kind in kinds]


@body
def stages_in_a_v(rank, size):
    kinds = (ScheduleZBVZeroBubble, ScheduleDualPipeV)
    return [_several_stages(kind, (rank, 2 * size - 1 - rank), rank, size) for kind in kinds]


@body
def pipeline_from_one_model(rank, size):
    from torch.distributed.pipelining import SplitPoint, pipeline

    net = nn.Sequential(*_layers(size))
    points = {str(index): SplitPoint.BEGINNING for index in range(1, size)}
    pipe = pipeline(net, mb_args=(torch.zeros(4, 6),), split_spec=points)
    stage = pipe.build_stage(rank, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4)
    output = schedule.step(*([sample(3, 16, 6)] if rank == 0 else []))
    return output.detach() if rank == size - 1 else None


@body
def slices_of_a_mesh(rank, size):
    shape = (2, 2) if size == 4 else (1, size)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("outer", "inner"))
    flat = mesh["outer", "inner"]._flatten("all")
    results = [mesh.get_coordinate(), mesh.mesh, flat.size(), mesh["inner"].get_local_rank()]
    for part in (mesh["outer"], mesh["inner"], flat):
        tensor = sample(rank, 3)
        dist.all_reduce(tensor, group=part.get_group())
        results.append(tensor)
    return [*results, DeviceMesh.from_group(dist.group.WORLD, "cpu").mesh]


@body
def tensors_on_a_mesh(rank, size):
    shape = (2, 2) if size == 4 else (1, size)
    mesh = init_device_mesh("cpu", shape)
    torch.manual_seed(3)
    whole, other = torch.randn(8, 12), torch.randn(12, 8)
    left = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    right = distribute_tensor(other, mesh, [Replicate(), Shard(0)])
    product = left @ right
    partial = DTensor.from_local(sample(rank, 4), mesh, [Partial(), Partial()])
    return [
        left.to_local(),
        product.full_tensor(),
        product.redistribute(mesh, [Shard(1), Replicate()]).to_local(),
        partial.full_tensor(),
        torch.softmax(left, 1).full_tensor(),
        left.redistribute(mesh, [Shard(1), Shard(0)]).to_local(),
        left.mean().full_tensor(),
    ]


@body
def local_functions_on_a_mesh(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(3)
    whole = torch.randn(4 * size, 3)
    scaled = local_map(lambda t: t * 2, out_placements=[Shard(0)], in_placements=([Shard(0)],), device_mesh=mesh)
    return scaled(distribute_tensor(whole, mesh, [Shard(0)])).full_tensor()


@body
def sequence_and_loss_parallel(rank, size):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(12), nn.Linear(12, 24), nn.Linear(24, 12)

        def forward(self, x):
            return self.down(torch.relu(self.up(self.norm(x))))

    torch.manual_seed(4)
    net, head = Block(), nn.Linear(12, 24)
    mesh = init_device_mesh("cpu", (size,))
    parallelize_module(
        net,
        mesh,
        {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Replicate()),
        },
    )
    parallelize_module(head, mesh, ColwiseParallel(use_local_output=False))
    # Each rank's own part of the sequence.
    output = head(net(sample(rank, 2, 6, 12)))
    target = torch.arange(2 * 6 * size) % 24
    with loss_parallel():
        loss = nn.functional.cross_entropy(output.flatten(0, 1), target)
        loss.backward()
    return [full(loss), full(net.up.weight.grad), full(head.weight.grad)]


@body
def modules_on_a_mesh(rank, size):
    net = distribute_module(model(), init_device_mesh("cpu", (size,)))
    output = net(distribute_tensor(sample(0, 4, 12), init_device_mesh("cpu", (size,)), [Replicate()]))
    return output.full_tensor().detach()


@body
def symmetric_memory_is_refused(rank, size):
    return error_of(lambda: symmetric_memory.rendezvous(symmetric_memory.empty(4, device="cpu"), dist.group.WORLD)) != (
        "no error"
    )


def _folder():
    names = [tempfile.mkdtemp()]
    dist.broadcast_object_list(names, src=0)
    return names[0]


def _sharded(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 5))
    for layer in net[::2]:
        fully_shard(layer)
    fully_shard(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    net(sample(seed, 4, 12)).sum().backward()
    optimizer.step()
    return net, optimizer


@body
def checkpoints(rank, size):
    results = []
    for asynchronously in (False, True):
        folder = _folder()
        net, optimizer = _sharded(1)
        weights, state = get_state_dict(net, optimizer)
        content = {"model": weights, "optimizer": state, "step": 7}
        if asynchronously:
            checkpoint.async_save(content, checkpoint_id=folder).result()
        else:
            checkpoint.save(content, checkpoint_id=folder)
        dist.barrier()
        other, other_optimizer = _sharded(2)
        weights, state = get_state_dict(other, other_optimizer)
        content = {"model": weights, "optimizer": state, "step": 0}
        checkpoint.load(content, checkpoint_id=folder)
        set_state_dict(other, other_optimizer, model_state_dict=content["model"], optim_state_dict=content["optimizer"])
        results.append([content["step"], [full(parameter) for parameter in other.parameters()]])
    return results


@body
def compiled(rank, size):
    group = dist.group.WORLD

    def work(x):
        gathered = functional.all_gather_single(x * 2, 0, group)
        return functional.all_reduce(gathered.sin(), "sum", group) + 1

    results = []
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        results.append(torch.compile(work, backend=backend, fullgraph=True)(sample(rank, 4, 3)))
    return results


@body
def compiled_in_place(rank, size):
    def work(x):
        x = x + 1
        dist.all_reduce(x)
        output = torch.empty(size * x.shape[0], x.shape[1])
        dist.all_gather_into_tensor(output, x)
        return output * 2

    torch._dynamo.reset()
    return torch.compile(work, backend="aot_eager", fullgraph=True)(sample(rank, 2, 3))


@body
def compiled_data_parallel(rank, size):
    torch._dynamo.reset()
    net = nn.parallel.DistributedDataParallel(model())
    compiled_net = torch.compile(net, backend="aot_eager")
    compiled_net(sample(rank, 6, 12)).sum().backward()
    return [parameter.grad for parameter in net.parameters()]
