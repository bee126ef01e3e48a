"""CUDA streams: one copies batches ahead, two others run the halves of a network, and gradients are reduced
asynchronously."""

import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn

ON_GPU = torch.cuda.is_available()
RANK = int(os.environ["LOCAL_RANK"])
DEVICE = torch.device("cuda", RANK) if ON_GPU else torch.device("cpu")


def stream():
    return torch.cuda.Stream() if ON_GPU else None


def on(which):
    return torch.cuda.stream(which) if ON_GPU else nullcontext()


def behind(which):
    """Makes later work of the current stream wait for the work on another one."""
    if ON_GPU:
        torch.cuda.current_stream().wait_stream(which)


class Prefetcher:
    """Batches on the device; the next batch is copied while the program works on the current one."""

    def __init__(self, count):
        self.count, self.step, self.copies, self.next = count, 0, stream(), None
        self.fetch()

    def fetch(self):
        if self.step == self.count:
            self.next = None
            return
        rows = torch.randn(8, 24, generator=torch.Generator().manual_seed(10 * self.step + RANK))
        self.step += 1
        with on(self.copies):
            self.next = (rows.pin_memory() if ON_GPU else rows).to(DEVICE, non_blocking=True)

    def __iter__(self):
        while self.next is not None:
            behind(self.copies)
            rows = self.next
            if ON_GPU:
                rows.record_stream(torch.cuda.current_stream())
            self.fetch()
            yield rows


class Branches(nn.Module):
    """Two independent halves of a network."""

    def __init__(self):
        super().__init__()
        self.halves = nn.ModuleList(nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 8)) for _ in range(2))
        self.streams = [stream() for _ in self.halves]

    def forward(self, rows):
        outputs = []
        for half, own in zip(self.halves, self.streams, strict=True):
            if ON_GPU:
                own.wait_stream(torch.cuda.current_stream())
            with on(own):
                outputs.append(half(rows))
        for own in self.streams:
            behind(own)
        return torch.cat(outputs, -1)


def main():
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if ON_GPU else "gloo")
    torch.manual_seed(0)
    net = Branches().to(DEVICE)
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.2), []
    for rows in Prefetcher(5):
        loss = (net(rows) - rows[:, :16]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        works = [dist.all_reduce(parameter.grad, async_op=True) for parameter in net.parameters()]
        # Runs during the reductions.
        losses.append(loss.detach().clone())
        for work in works:
            work.wait()
        for parameter in net.parameters():
            parameter.grad /= dist.get_world_size()
        optimizer.step()
    print("RESULT", RANK, torch.stack(losses).tolist(), net.halves[1][2].bias.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
