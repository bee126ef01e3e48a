"""Trains a small language model on all ranks, averaging gradients at every step (DDP) or weights less often (DiLoCo).

    torchrun --nproc-per-node 4 train.py --method diloco --inner 20

DiLoCo (Douillard et al., arXiv:2311.08105): each rank does inner AdamW steps on its samples; then the ranks
average their changes of the weights, and an outer step of Nesterov momentum moves the common weights by the average.
"""

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

TEXT = (Path(__file__).resolve().parents[2] / "LICENSE-APACHE").read_text()
WIDTH, CONTEXT, BATCH = 64, 32, 16


class Model(nn.Module):
    """A transformer of two layers over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(128, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 128)

    def forward(self, ids: Tensor) -> Tensor:
        """(texts, tokens) to (texts, tokens, 128)."""
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        logits: Tensor = self.head(self.layers(self.embedding(ids) + self.places.weight, mask=mask, is_causal=True))
        return logits


def main() -> None:
    """Trains, and prints the loss on text that no rank has seen."""
    parser = argparse.ArgumentParser(description="Data-parallel training, by DDP or DiLoCo.")
    parser.add_argument("--method", choices=["ddp", "diloco"], default="ddp")
    parser.add_argument("--steps", type=int, default=100, help="steps of each rank (default 100)")
    parser.add_argument("--inner", type=int, default=20, help="steps between two averages, of DiLoCo (default 20)")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    start = {"ddp": ddp, "diloco": diloco}[options.method]
    start(model, batches(dist.get_rank()), options.steps, options.inner)
    with torch.no_grad():
        losses = torch.stack([loss(model, batch) for batch, _ in zip(batches(1000), range(8), strict=False)])
    if dist.get_rank() == 0:
        print(f"loss {losses.mean().item():.6f}")
    dist.destroy_process_group()


def batches(seed: int) -> Iterator[Tensor]:
    """Pieces of the text, one token longer than the model's input."""
    data = torch.tensor(list(TEXT.encode("ascii")))
    draw = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,), generator=draw).tolist()
        yield torch.stack([data[start : start + CONTEXT + 1] for start in starts])


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    """The mean cross-entropy of the next byte."""
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def ddp(model: Model, data: Iterator[Tensor], steps: int, _inner: int) -> None:
    """Averages gradients at every step."""
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        with record_function("step"):
            optimizer.zero_grad()
            loss(replica, next(data)).backward()
            optimizer.step()


def diloco(model: Model, data: Iterator[Tensor], steps: int, inner: int) -> None:
    """Averages weights every `inner` steps."""
    common = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    outer = torch.optim.SGD(common.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    for step in range(1, steps + 1):
        with record_function("step"):
            optimizer.zero_grad()
            loss(model, next(data)).backward()
            optimizer.step()
        if step % inner == 0 or step == steps:
            with record_function("outer step"):
                moved = torch.cat([(a - b).detach().flatten() for a, b in pairs(common, model)])
                dist.all_reduce(moved)
                parts = (moved / dist.get_world_size()).split([a.numel() for a, _ in pairs(common, model)])
                for (weight, _), part in zip(pairs(common, model), parts, strict=True):
                    weight.grad = part.view_as(weight)
                outer.step()
                model.load_state_dict(common.state_dict())


def pairs(first: nn.Module, second: nn.Module) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Pairs of the parameters of two models with equal layers."""
    return list(zip(first.parameters(), second.parameters(), strict=True))


if __name__ == "__main__":
    main()
