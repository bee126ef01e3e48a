"""Trains a small network with data parallelism: each rank has its own samples, and gradients are averaged.

torchrun --nproc-per-node 2 ddp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    """Fits y = sin(x), and prints the loss over all samples, which is the same on every rank."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.linspace(-3, 3, 512).unsqueeze(1)
    samples = TensorDataset(x, torch.sin(x))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(samples)
    batches = DataLoader(samples, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for inputs, targets in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(x), torch.sin(x)).item()
    print(f"rank {dist.get_rank()}: loss {loss:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
