"""After `fsdp_tp_example.py` of PyTorch's examples: tensor and sequence parallel inside a host, FSDP across hosts."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.w2 = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class SelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (w(x).view(batch, length, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(mixed.transpose(1, 2).contiguous().view(batch, length, -1))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention, self.feed_forward = SelfAttention(width, heads), FeedForward(width)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Model(nn.Module):
    def __init__(self, vocabulary=48, width=32, heads=4, count=2):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(count))
        self.norm, self.output = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def parallelized(model, mesh):
    parallelize_module(
        model,
        mesh,
        {
            "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    for layer in model.layers:
        plan = {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
        plan |= {"attention": gathered, "feed_forward": gathered}
        plan |= dict.fromkeys(("attention.wq", "attention.wk", "attention.wv"), ColwiseParallel())
        plan |= dict.fromkeys(("feed_forward.w1", "feed_forward.w3"), ColwiseParallel())
        plan |= dict.fromkeys(("attention.wo", "feed_forward.w2"), RowwiseParallel(output_layouts=Shard(1)))
        layer.attention.heads //= mesh.size()
        parallelize_module(layer, mesh, plan)
    return model


def main():
    world_size = int(os.environ["WORLD_SIZE"])
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh(DEVICE, (world_size // 2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = parallelized(Model().to(DEVICE), mesh["tp"])
    if world_size > 2:
        options = {} if DEVICE == "cuda" else {"device_id": torch.device("cpu")}
        model = FSDP(model, device_mesh=mesh["dp"], use_orig_params=True, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=True)
    losses = []
    for step in range(4):
        torch.manual_seed(step + mesh["dp"].get_local_rank())
        tokens = torch.randint(48, (4, 8)).to(DEVICE)
        loss = model(tokens).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print("RESULT", dist.get_rank(), losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
