"""Data parallel training: communication hooks, uneven inputs, local SGD, ZeRO, FSDP1 and FSDP2, hybrid sharding."""

import torch
import torch.distributed as dist
from body import body, error_of, sample
from layers import full, model, train
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

CPU = torch.device("cpu")


def _steps(net, optimizer, rank, steps=3):
    for step in range(steps):
        optimizer.zero_grad()
        net(sample(rank + 10 * step, 6, 12)).pow(2).mean().backward()
        optimizer.step()


def _weights(net):
    return [full(parameter).float() for parameter in net.parameters()]


@body
def compressed_gradients(rank, size):
    results = []
    for hook in (default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook, default_hooks.allreduce_hook):
        net = DistributedDataParallel(model(), bucket_cap_mb=0.001)
        net.register_comm_hook(None, hook)
        results.append(train(net, rank))
    return results


@body
def power_sgd(rank, size):
    net = DistributedDataParallel(model())
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.1
    )
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(net, rank, steps=5)


@body
def static_graph_with_buckets(rank, size):
    net = DistributedDataParallel(model(), static_graph=True, bucket_cap_mb=0.0005, gradient_as_bucket_view=True)
    return train(net, rank, steps=4)


@body
def uneven_inputs(rank, size):
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with net.join():
        _steps(net, optimizer, rank, steps=2 + rank)
    return _weights(net)


@body
def uneven_inputs_and_zero(rank, size):
    net = DistributedDataParallel(model(), bucket_cap_mb=0.001)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    with Join([net, optimizer]):
        _steps(net, optimizer, rank, steps=2 + rank % 2)
    return _weights(net)


@body
def zero(rank, size):
    results = []
    for overlap in (False, True):
        net = DistributedDataParallel(model())
        optimizer = ZeroRedundancyOptimizer(
            net.parameters(), torch.optim.AdamW, parameters_as_bucket_view=overlap, lr=0.01
        )
        _steps(net, optimizer, rank)
        optimizer.consolidate_state_dict(to=0)
        state = optimizer.state_dict()["state"] if rank == 0 else {}
        results.append([_weights(net), {key: value["exp_avg"] for key, value in state.items()}])
    return results


@body
def zero_in_the_backward_pass(rank, size):
    """ZeRO with overlap: torch refuses it on Gloo."""
    net = DistributedDataParallel(model(), gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1)
    return error_of(lambda: hook_with_zero_step(default_hooks.allreduce_hook, net, optimizer))


@body
def local_sgd(rank, size):
    net = DistributedDataParallel(model())
    group, _ = dist.new_subgroups_by_enumeration([[member] for member in range(size)])
    net.register_comm_hook(PostLocalSGDState(None, group, start_localSGD_iter=2), post_localSGD_hook)
    averager = PeriodicModelAverager(period=2, warmup_steps=2)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), averager)
    _steps(net, optimizer, rank, steps=6)
    return _weights(net)


@body
def hierarchical_averages(rank, size):
    from collections import OrderedDict

    if size != 4:
        return None
    net = model()
    averager = HierarchicalModelAverager(OrderedDict([(2, 2), (4, 4)]), warmup_steps=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(5):
        _steps(net, optimizer, rank + step, steps=1)
        averager.average_parameters(net.parameters())
    return _weights(net)


@body
def buffers_are_broadcast(rank, size):
    net = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    torch.manual_seed(5)
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    wrapped = DistributedDataParallel(net)
    for step in range(3):
        wrapped(sample(rank + step, 6, 12)).sum().backward()
    return [buffer.clone() for buffer in net.buffers()]


@body
def synchronized_batch_norm(rank, size):
    """SyncBatchNorm: torch supports it only on accelerators, and raises an error that says so."""
    net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    return error_of(lambda: net(sample(rank, 6, 4)))


def _fsdp1(net, **options):
    return FullyShardedDataParallel(
        net, device_id=CPU, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), use_orig_params=True, **options
    )


@body
def fsdp1(rank, size):
    results = []
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        net = _fsdp1(model(), sharding_strategy=strategy)
        _steps(net, torch.optim.SGD(net.parameters(), lr=0.1), rank)
        with FullyShardedDataParallel.summon_full_params(net):
            results.append([parameter.detach().clone() for parameter in net.parameters()])
    return results


@body
def fsdp1_state(rank, size):
    net = _fsdp1(model())
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    _steps(net, optimizer, rank)
    with FullyShardedDataParallel.state_dict_type(net, StateDictType.FULL_STATE_DICT):
        weights = net.state_dict()
        state = FullyShardedDataParallel.optim_state_dict(net, optimizer)
    norm = net.clip_grad_norm_(0.1)
    return [dict(weights), {name: value["exp_avg"] for name, value in state["state"].items()}, norm]


@body
def fsdp1_hybrid(rank, size):
    if size % 2:
        return None
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    net = _fsdp1(model(), sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)
    _steps(net, torch.optim.SGD(net.parameters(), lr=0.1), rank)
    with FullyShardedDataParallel.summon_full_params(net):
        return [parameter.detach().clone() for parameter in net.parameters()]


@body
def fsdp1_mixed_precision(rank, size):
    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    net = _fsdp1(model(), mixed_precision=precision)
    _steps(net, torch.optim.SGD(net.parameters(), lr=0.1), rank)
    with FullyShardedDataParallel.summon_full_params(net):
        return [parameter.detach().clone() for parameter in net.parameters()]


def _fsdp2(net, **options):
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    fully_shard(net, **options)
    return net


@body
def fsdp2_mixed_precision(rank, size):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = _fsdp2(model(), mesh=init_device_mesh("cpu", (size,)), mp_policy=policy, reshard_after_forward=False)
    return train(net, rank)


@body
def fsdp2_hybrid(rank, size):
    if size % 2:
        return None
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    return train(_fsdp2(model(), mesh=mesh), rank)


@body
def fsdp2_accumulates_and_clips(rank, size):
    net = _fsdp2(model(), mesh=init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for step in range(4):
        net.set_requires_gradient_sync(step % 2 == 1)
        net(sample(rank + step, 6, 12)).pow(2).mean().backward()
        if step % 2:
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    return [_weights(net), full(norm)]


@body
def fsdp2_and_tensor_parallel(rank, size):
    if size != 4:
        return None
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    net = model()
    parallelize_module(net, mesh["model"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in net[:3:2]:
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(net, mesh=mesh["data"])
    return train(net, rank // 2)


@body
def replicated(rank, size):
    from torch.distributed._composable.replicate import replicate

    net = model()
    replicate(net)
    return train(net, rank)


@body
def ddp_awaits_what_a_hook_on_buffers_returns(rank, size):
    """Futures for which only the reducer waits, in C++ and at the end of the backward pass."""
    from torch.nn.parallel.distributed import _BufferCommHookLocation

    net = nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4))
    ddp = DistributedDataParallel(net)
    state = {name: buffer for name, buffer in net.named_buffers() if buffer.is_floating_point()}

    def share(_ddp, _named):
        return [dist.all_reduce(buffer, async_op=True).get_future() for buffer in state.values()]

    ddp._register_buffer_comm_hook(ddp, share, _BufferCommHookLocation.POST_FORWARD)
    for step in range(2):
        ddp(sample(rank + step, 6, 12)).pow(2).sum().backward()
    return [state, net[0].weight.grad]
