"""Checkpoints that are loaded with another number of ranks; and attention that is sharded along the sequence."""

import contextlib
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import torch.nn.functional as F
from body import body, error_of, sample
from layers import full, model
from torch import nn
from torch.distributed import _symmetric_memory as symmetric_memory
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel, implicit_replication


def _folder():
    names = [tempfile.mkdtemp()]
    dist.broadcast_object_list(names, src=0)
    return names[0]


def _sharded(mesh, seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 5))
    for layer in net[::2]:
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


@body
def fewer_ranks_load_a_checkpoint(rank, size):
    folder, everyone = _folder(), init_device_mesh("cpu", (size,))
    fewer = DeviceMesh("cpu", list(range(size - 1)))
    checkpoint.save({"model": _sharded(everyone, 1).state_dict()}, checkpoint_id=folder)
    dist.barrier()
    if rank == size - 1:
        return None
    state = {"model": _sharded(fewer, 2).state_dict()}
    checkpoint.load(state, checkpoint_id=folder, process_group=fewer.get_group())
    return [[value.to_local(), value.full_tensor()] for value in state["model"].values()]


@body
def one_process_loads_a_checkpoint(rank, size):
    folder = _folder()
    checkpoint.save({"model": _sharded(init_device_mesh("cpu", (size,)), 1).state_dict()}, checkpoint_id=folder)
    dist.barrier()
    if rank:
        return None
    whole = {"model": nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 5)).state_dict()}
    checkpoint.load(whole, checkpoint_id=folder, no_dist=True)
    dcp_to_torch_save(folder, f"{folder}/whole.pt")
    return [list(whole["model"].values()), list(torch.load(f"{folder}/whole.pt")["model"].values())]


@body
def other_layouts_load_a_checkpoint(rank, size):
    folder, mesh = _folder(), init_device_mesh("cpu", (size,))
    whole = sample(5, 7, 11)
    checkpoint.save({"t": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=folder)
    dist.barrier()
    loaded = {"t": distribute_tensor(torch.zeros(7, 11), mesh, [Shard(1)])}
    checkpoint.load(loaded, checkpoint_id=folder)
    return [loaded["t"].to_local(), loaded["t"].full_tensor()]


@body
def fsdp1_states_of_shards(rank, size):
    """States that each rank saves, loads again, and trains on."""

    def made():
        cpu = torch.device("cpu")
        net = FullyShardedDataParallel(model(), device_mesh=init_device_mesh("cpu", (size,)), device_id=cpu)
        return net, torch.optim.Adam(net.parameters(), lr=0.01)

    def step(net, optimizer, seed):
        optimizer.zero_grad()
        net(sample(seed, 6, 12)).pow(2).mean().backward()
        optimizer.step()

    kinds = (StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(), ShardedOptimStateDictConfig())
    net, optimizer = made()
    step(net, optimizer, rank)
    FullyShardedDataParallel.set_state_dict_type(net, *kinds)
    weights, moments = net.state_dict(), FullyShardedDataParallel.optim_state_dict(net, optimizer)
    kept = [full(value) for value in weights.values()]
    other, other_optimizer = made()
    FullyShardedDataParallel.set_state_dict_type(other, *kinds)
    other.load_state_dict(weights)
    loaded = FullyShardedDataParallel.optim_state_dict_to_load(other, other_optimizer, moments)
    other_optimizer.load_state_dict(loaded)
    step(other, other_optimizer, rank + 9)
    return [kept, [full(value) for value in other.state_dict().values()]]


@body
def operations_on_shards(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    left, right = (distribute_tensor(sample(cut, 12, 12), mesh, [Shard(cut)]) for cut in range(2))
    bias = distribute_tensor(sample(3, 12, 12), mesh, [Replicate()])
    partial = DTensor.from_local(sample(rank, 12, 12), mesh, [Partial()])
    products = (left @ right, right @ left, torch.addmm(bias, left, left), left.t() @ right, left + partial)
    others = (
        F.layer_norm(left, (12,)),
        F.gelu(right),
        torch.cat([left, left], 1),
        left.max(),
        left.var(0),
        torch.topk(left, 3, 1).values,
        torch.linalg.vector_norm(partial),
        left[2:5],
        left.cumsum(0),
    )
    with implicit_replication():
        mixed = left * torch.arange(12.0)
    return [[str(t.placements), full(t)] for t in (*products, *others, mixed)]


@body
def attention_along_the_sequence(rank, size):
    """Context parallel. On a CPU torch refuses parts of it with an error."""
    mesh = init_device_mesh("cpu", (size,))
    query, key, value = (sample(n, 2, 2, 8 * size, 4) for n in range(3))

    def attention():
        with context_parallel(mesh, buffers=(query, key, value), buffer_seq_dims=(2, 2, 2)):
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    with contextlib.suppress(Exception):
        return attention()
    return error_of(attention)


@body
def symmetric_memory_of_a_group(rank, size):
    """Symmetric memory, which asynchronous tensor parallel needs; CPUs have none."""
    return error_of(lambda: symmetric_memory.get_symm_mem_workspace(dist.group.WORLD.group_name, 64)) != "no error"
