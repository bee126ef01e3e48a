"""After minGPT-ddp of PyTorch's examples: a character-level GPT under DistributedDataParallel, in mixed precision on a
GPU (`--amp`)."""

import math
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, random_split
from torch.utils.data.distributed import DistributedSampler

TEXT = "the quick brown fox jumps over the lazy dog. " * 12
BLOCK = 16


class Characters(Dataset):
    def __init__(self):
        characters = sorted(set(TEXT))
        self.index = {character: number for number, character in enumerate(characters)}

    def __len__(self):
        return (len(TEXT) - BLOCK) // 4

    def __getitem__(self, at):
        chunk = [self.index[character] for character in TEXT[4 * at : 4 * at + BLOCK + 1]]
        return torch.tensor(chunk[:-1]), torch.tensor(chunk[1:])


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        mask = ~torch.tril(torch.ones(BLOCK, BLOCK, dtype=torch.bool))
        self.register_buffer("mask", mask)

    def forward(self, x):
        return self.attention(x, x, x, attn_mask=self.mask[: x.size(1), : x.size(1)], need_weights=False)[0]


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, vocabulary, width=32, heads=4, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(1, BLOCK, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith("mlp.2.weight"):
                nn.init.normal_(parameter, mean=0.0, std=0.02 / math.sqrt(2 * layers))

    def forward(self, tokens, targets):
        logits = self.head(self.layers(self.tokens(tokens) + self.places[:, : tokens.size(1)]))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def main():
    dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    local = int(os.environ["LOCAL_RANK"])
    place, amp = (local if torch.cuda.is_available() else "cpu"), "--amp" in sys.argv
    if torch.cuda.is_available():
        torch.cuda.set_device(local)
    torch.manual_seed(0)
    data = Characters()
    training, held_out = random_split(data, [len(data) - 20, 20])
    model = GPT(len(data.index)).to(place)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    model = DDP(model, device_ids=[local] if torch.cuda.is_available() else None)
    losses = []
    for epoch in range(2):
        for part, training_now in ((training, True), (held_out, False)):
            sampler = DistributedSampler(part)
            sampler.set_epoch(epoch)
            for tokens, targets in DataLoader(
                part, batch_size=10, pin_memory=torch.cuda.is_available(), sampler=sampler
            ):
                tokens, targets = tokens.to(place), targets.to(place)
                autocast = torch.amp.autocast(device_type="cuda", dtype=torch.float16, enabled=amp)
                with torch.set_grad_enabled(training_now), autocast:
                    _, loss = model(tokens, targets)
                losses.append(loss.item())
                if training_now:
                    optimizer.zero_grad(set_to_none=True)
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
    print("RESULT", dist.get_rank(), losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
