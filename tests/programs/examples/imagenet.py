"""After `imagenet/main.py --dummy` of PyTorch's examples: a small ResNet, loader workers, meters with reductions, a
resumed checkpoint."""

import os
import tempfile
import time

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler


class FakeImages(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 16, 16, generator=generator), index % 10


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x):
        y = torch.relu_(self.norms[0](self.first(x)))
        return torch.relu_(self.norms[1](self.second(y)) + x)


def resnet():
    stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    return nn.Sequential(stem, Block(8), Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n):
        self.sum += value * n
        self.count += n

    def all_reduce(self, device):
        total = torch.tensor([self.sum, self.count], dtype=torch.float32, device=device)
        dist.all_reduce(total, dist.ReduceOp.SUM, async_op=False)
        self.sum, self.count = total.tolist()

    @property
    def average(self):
        return self.sum / self.count


def accuracy(output, target, topk=(1, 5)):
    with torch.no_grad():
        _, predicted = output.topk(max(topk), 1, True, True)
        correct = predicted.t().eq(target.view(1, -1).expand(max(topk), -1))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True) * (100.0 / target.size(0)) for k in topk]


def train(loader, model, criterion, optimizer, device):
    losses, seconds = Meter(), Meter()
    model.train()
    end = time.time()
    for images, target in loader:
        images, target = images.to(device, non_blocking=True), target.to(device, non_blocking=True)
        loss = criterion(model(images), target)
        losses.update(loss.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.update(time.time() - end, 1)
        end = time.time()
    return losses.average


def validate(loader, model, device):
    top1, top5 = Meter(), Meter()
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            if torch.cuda.is_available():
                images, target = images.cuda(device, non_blocking=True), target.cuda(device, non_blocking=True)
            first, fifth = accuracy(model(images), target)
            top1.update(first[0].item(), images.size(0))
            top5.update(fifth[0].item(), images.size(0))
    top1.all_reduce(device)
    top5.all_reduce(device)
    return [round(top1.average, 3), round(top5.average, 3)]


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpu = int(os.environ["LOCAL_RANK"])
    cuda = torch.cuda.is_available()
    dist.init_process_group(backend="nccl" if cuda else "gloo", init_method="env://", world_size=size, rank=rank)
    torch.manual_seed(3)
    device = torch.device("cuda", gpu) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(gpu)
        cudnn.benchmark = True
    model = resnet().to(device)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[gpu] if cuda else None)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.1)

    data = FakeImages()
    sampler, held_out = DistributedSampler(data), DistributedSampler(data, shuffle=False, drop_last=True)
    options = {"batch_size": 8, "num_workers": 2, "pin_memory": cuda}
    loader = DataLoader(data, sampler=sampler, persistent_workers=True, **options)
    checks = DataLoader(data, sampler=held_out, **options)
    # Samples that do not divide evenly are evaluated by every rank.
    rest = DataLoader(Subset(data, range(len(held_out) * size, len(data))), **options) if len(data) % size else None

    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, src=0)
    path, results = os.path.join(folder[0], "checkpoint.pth.tar"), []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        results.append(train(loader, model, criterion, optimizer, device))
        results.append([validate(each, model, device) for each in (checks, rest) if each is not None])
        scheduler.step()
        if rank == 0:
            state = {"epoch": epoch + 1, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"scheduler": scheduler.state_dict()}, path)
    dist.barrier()
    checkpoint = torch.load(path, map_location=f"cuda:{gpu}" if cuda else None)
    model.load_state_dict(checkpoint["state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    print("RESULT", rank, results, checkpoint["epoch"], validate(checks, model, device))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
