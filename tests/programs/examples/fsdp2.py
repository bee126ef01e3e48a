"""After PyTorch's FSDP2 examples: a Transformer from the meta device, prefetching, mixed precision, checkpoints of full
tensors."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
BROADCAST = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Transformer(nn.Module):
    def __init__(self, vocabulary=64, width=32, heads=4, count=4):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(count))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def reset_parameters(self):
        # Every rank fills its shard by the elements' positions in the full parameter, so any device gives the same
        # values.
        for parameter in self.parameters():
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            with torch.no_grad():
                count = torch.arange(local.numel(), dtype=torch.float32).view(local.shape)
                local.copy_(torch.sin(count * 0.37) * 0.1)


def sharded(mixed):
    with torch.device("meta"):
        model = Transformer()
    options = (
        {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)} if mixed else {}
    )
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    assert all(isinstance(module, FSDPModule) for module in (model, *model.layers))
    assert all(isinstance(p, DTensor) and p.placements == (Shard(0),) for p in model.parameters())
    for at, layer in enumerate(model.layers):
        layer.set_modules_to_forward_prefetch(list(model.layers[at + 1 : at + 3]))
        layer.set_modules_to_backward_prefetch(list(reversed(model.layers[max(0, at - 2) : at])))
    return model


def train(model, optimizer, device, steps):
    generator, losses = torch.Generator().manual_seed(dist.get_rank()), []
    for _ in range(steps):
        model.unshard()
        tokens = torch.randint(0, 64, (4, 12), generator=generator).to(device)
        loss = model(tokens).float().pow(2).mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((loss.item(), norm.full_tensor().item()))
    return losses


def main():
    rank = int(os.environ["LOCAL_RANK"])
    if torch.accelerator.is_available():
        device = torch.device(f"{torch.accelerator.current_accelerator()}:{rank}")
        torch.accelerator.set_device_index(rank)
    else:
        device = torch.device("cpu")
    backend = torch.distributed.get_default_backend_for_device(device)
    torch.distributed.init_process_group(backend=backend, device_id=device if device.type != "cpu" else None)
    results = []
    for mixed in (False, True):
        model = sharded(mixed)
        model.to_empty(device=device)
        model.reset_parameters()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        results.append(train(model, optimizer, device, 3))
        folder = [tempfile.mkdtemp()]
        dist.broadcast_object_list(folder, src=0)
        path = os.path.join(folder[0], "state.pt")
        state = {"model": get_model_state_dict(model, options=WHOLE)}
        state["optimizer"] = get_optimizer_state_dict(model, optimizer, options=WHOLE)
        if rank == 0:
            torch.save(state, path)
        dist.barrier()
        other = sharded(mixed)
        other.to_empty(device=device)
        optimizer = torch.optim.Adam(other.parameters(), lr=1e-2)
        state = torch.load(path, mmap=True, weights_only=True, map_location="cpu") if rank == 0 else {}
        set_model_state_dict(other, state.get("model", {}), options=BROADCAST)
        set_optimizer_state_dict(other, optimizer, state.get("optimizer", {}), options=BROADCAST)
        results.append(train(other, optimizer, device, 2))
    print("RESULT", rank, results)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
