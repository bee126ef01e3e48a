"""After PyTorch's FSDP examples (MNIST and T5): wrapping by size or by layer, timing with CUDA events, activation
checkpoints."""

import functools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullStateDictConfig,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

CUDA = torch.cuda.is_available()
BF16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, 1), nn.Conv2d(8, 8, 3, 1)
        self.fc1, self.fc2 = nn.Linear(8 * 5 * 5, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.conv2(torch.relu(self.conv1(x)))), 2)
        return nn.functional.log_softmax(self.fc2(torch.relu(self.fc1(torch.flatten(x, 1)))), dim=1)


def encoder():
    return nn.Sequential(*(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(2)))


def mnist(rank, device):
    torch.manual_seed(1)
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=1000)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2)) if CUDA else (None, None)
    model = FSDP(Net().to(device), auto_wrap_policy=policy, device_id=device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    generator, results = torch.Generator().manual_seed(rank), []
    if CUDA:
        start.record()
    for _ in range(3):
        sums = torch.zeros(2).to(rank if CUDA else "cpu")
        images = torch.randn(6, 1, 14, 14, generator=generator).to(device)
        target = torch.randint(0, 10, (6,), generator=generator).to(device)
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(images), target, reduction="sum")
        loss.backward()
        optimizer.step()
        sums[0] += loss.item()
        sums[1] += len(images)
        dist.all_reduce(sums, op=dist.ReduceOp.SUM)
        results.append((sums[0] / sums[1]).item())
    if CUDA:
        end.record()
        torch.cuda.synchronize()
        assert start.elapsed_time(end) > 0
    dist.barrier()
    return results, sorted((name, value.double().sum().item()) for name, value in model.state_dict().items())


def transformer(rank, device):
    torch.manual_seed(2)
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer})
    results = []
    for options in (
        {"mixed_precision": BF16, "sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
        {"cpu_offload": CPUOffload(offload_params=CUDA), "backward_prefetch": BackwardPrefetch.BACKWARD_POST},
        {"limit_all_gathers": True, "forward_prefetch": True, "backward_prefetch": BackwardPrefetch.BACKWARD_PRE},
    ):
        model = FSDP(encoder(), auto_wrap_policy=policy, device_id=device, **options)
        apply_activation_checkpointing(
            model,
            checkpoint_wrapper_fn=functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
            check_fn=lambda module: isinstance(module, nn.TransformerEncoderLayer),
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        for step in range(2):
            tokens = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(10 * step + rank)).to(device)
            loss = model(tokens).float().pow(2).mean()
            loss.backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            results.append(loss.item())
        whole = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole):
            state = model.state_dict()
        assert all(value.device.type == "cpu" for value in state.values())
        assert bool(state) == (rank == 0)
        results.append(sum(value.double().sum().item() for value in state.values()))
    return results


def main():
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if CUDA else "gloo")
    print("RESULT", rank, mnist(rank, device), transformer(rank, device))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
