"""Asynchronous tensor parallel: PyTorch's compiler overlaps GEMMs with the communication of their parts, through
symmetric memory.

On one GPU it is the same network without communication.
"""

import os

import torch
import torch._inductor.config
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS, ROWS, WIDTH = 3, 64, 32


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (SIZE,))
    # Drawn on the host, so that all ranks have the same numbers.
    torch.manual_seed(0)
    network, batches = Network(), torch.randn(STEPS, ROWS, WIDTH)
    network.cuda()
    if SIZE > 1:
        rows = {"up": ColwiseParallel(input_layouts=Shard(0)), "down": RowwiseParallel(output_layouts=Shard(0))}
        parallelize_module(network, mesh, rows)
        torch._inductor.config._micro_pipeline_tp = True
    compiled = torch.compile(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    losses = []
    for batch in batches:
        loss = compiled(batch.chunk(SIZE)[RANK].cuda()).square().sum() / ROWS
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        losses.append(round(whole.item(), 4))
    if RANK == 0:
        print("RESULT", losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
