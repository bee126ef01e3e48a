"""Training in float8 under DDP: GEMMs of tensors that are scaled by their largest element, forward and backward, as in
torchao."""

import os

import torch
import torch.distributed as dist
from torch import nn


def scaled(tensor, kind):
    """The tensor in float8, and the factor that restores its scale."""
    largest = tensor.abs().max().float().clamp(min=1e-12)
    scale = torch.finfo(kind).max / largest
    return (tensor.float() * scale).to(kind), scale.reciprocal()


def product(a, b, kinds=(torch.float8_e4m3fn, torch.float8_e4m3fn)):
    """a @ b, with the second matrix column-major in memory, as GPUs require."""
    (a, of_a), (b, of_b) = scaled(a.contiguous(), kinds[0]), scaled(b.t().contiguous(), kinds[1])
    return torch._scaled_mm(a, b.t(), scale_a=of_a, scale_b=of_b, out_dtype=torch.bfloat16)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight):
        ctx.save_for_backward(rows, weight)
        return product(rows, weight.t())

    @staticmethod
    def backward(ctx, outer):
        rows, weight = ctx.saved_tensors
        kinds = (torch.float8_e5m2, torch.float8_e4m3fn)
        return product(outer, weight, kinds), product(outer.t(), rows, kinds)


class Linear(nn.Linear):
    def forward(self, rows):
        return Product.apply(rows, self.weight)


def main():
    rank = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)
    net = nn.Sequential(Linear(32, 64, bias=False), nn.GELU(), Linear(64, 16, bias=False)).bfloat16().to(device)
    net = nn.parallel.DistributedDataParallel(net, device_ids=[rank] if on_gpu else None)
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.5), []
    for step in range(6):
        rows = torch.randn(48, 32, generator=torch.Generator().manual_seed(10 * step + rank)).bfloat16().to(device)
        loss = (net(rows) - rows[:, :16]).float().pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    print("RESULT", rank, losses, net.module[2].weight.float().sum(0).tolist()[:4])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
