"""After `multigpu_torchrun.py` and `multigpu.py` of PyTorch's tutorial on DistributedDataParallel: a Trainer that keeps
a snapshot.

Usage: ddp_series.py EPOCHS [--spawn]; with `--spawn` the program starts its own ranks, one per GPU.
"""

import argparse
import os
import tempfile

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed import broadcast_object_list, destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

CUDA = torch.cuda.is_available()


class Numbers(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(0)
        self.data = [(torch.rand(20, generator=generator), torch.rand(1, generator=generator)) for _ in range(size)]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


class Trainer:
    def __init__(self, rank, snapshot_path):
        torch.manual_seed(1)
        self.rank = rank
        self.place = rank if CUDA else "cpu"
        self.model = torch.nn.Linear(20, 1).to(self.place)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        data = Numbers(256)
        self.loader = DataLoader(data, batch_size=32, pin_memory=CUDA, shuffle=False, sampler=DistributedSampler(data))
        self.epochs_run = 0
        self.path = snapshot_path
        if os.path.exists(self.path):
            snapshot = torch.load(self.path, map_location=f"cuda:{rank}" if CUDA else "cpu")
            self.model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
            print(f"resuming at epoch {self.epochs_run}")
        self.model = DDP(self.model, device_ids=[rank] if CUDA else None)

    def train(self, epochs):
        for epoch in range(self.epochs_run, epochs):
            self.loader.sampler.set_epoch(epoch)
            for source, targets in self.loader:
                self.optimizer.zero_grad()
                loss = F.mse_loss(self.model(source.to(self.place)), targets.to(self.place))
                loss.backward()
                self.optimizer.step()
            if self.rank == 0:
                torch.save({"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}, self.path)
        return loss.item()


def work(rank, epochs):
    folder = [tempfile.mkdtemp()]
    broadcast_object_list(folder, src=0)
    path = f"{folder[0]}/snapshot.pt"
    losses = [Trainer(rank, path).train(epochs)]
    torch.distributed.barrier()
    # The second trainer resumes from the snapshot.
    losses.append(Trainer(rank, path).train(epochs + 1))
    print("RESULT", rank, losses)
    destroy_process_group()


def spawned(rank, world_size, epochs):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    if CUDA:
        torch.cuda.set_device(rank)
    init_process_group(backend="nccl" if CUDA else "gloo", rank=rank, world_size=world_size)
    work(rank, epochs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("epochs", type=int)
    parser.add_argument("--spawn", action="store_true")
    args = parser.parse_args()
    if args.spawn:
        world_size = torch.cuda.device_count() if CUDA else 2
        mp.spawn(spawned, args=(world_size, args.epochs), nprocs=world_size, join=True)
        return
    rank = int(os.environ["LOCAL_RANK"])
    if CUDA:
        torch.cuda.set_device(rank)
    init_process_group(backend="nccl" if CUDA else "gloo")
    work(rank, args.epochs)


if __name__ == "__main__":
    main()
