"""Prints the best caption of each picture, by the two towers of a CLIP (Radford et al., arXiv:2103.00020).

    torchrun --nproc-per-node 2 embed.py --pictures 4 --captions 6

Rank 0 has pictures and captions. With `--split towers` each rank has one tower: rank 0 embeds the pictures, rank 1 the
captions. With `--split data` both have both towers, and half of the pictures and of the captions. Weights are drawn
from the tower's own seed, so they do not depend on the tower's rank.
"""

import argparse
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import record_function

PIXELS, CONTEXT, VOCABULARY = 224, 77, 49408


@dataclass(frozen=True)
class Shape:
    """Sizes of both towers."""

    patch: int
    width: int
    layers: int
    text_width: int
    text_layers: int
    joint: int
    """Elements of an embedding."""


SHAPES = {"vit-b-32": Shape(32, 768, 12, 512, 12, 512), "vit-l-14": Shape(14, 1024, 24, 768, 12, 768)}
"""Published in table 20 of arXiv:2103.00020. Heads have 64 elements, feed-forward networks four times the width."""


class Block(nn.Module):
    """Attention and feed-forward network, each after its norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        """`x`: (batch, tokens, width)."""
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, -1, 64)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2))
        fed = self.up(self.norm(x))
        # CLIP's own approximation of GELU.
        result: Tensor = x + self.down(fed * torch.sigmoid(1.702 * fed))
        return result


class Pictures(nn.Module):
    """The tower for pictures: a vision transformer, which reads squares of pixels."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.squares = nn.Conv2d(3, shape.width, shape.patch, shape.patch, bias=False)
        self.whole = nn.Parameter(shape.width**-0.5 * torch.randn(shape.width))
        self.places = nn.Parameter(shape.width**-0.5 * torch.randn((PIXELS // shape.patch) ** 2 + 1, shape.width))
        self.first, self.last = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.blocks = nn.ModuleList(Block(shape.width) for _ in range(shape.layers))
        self.joint = nn.Linear(shape.width, shape.joint, bias=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """(batch, 3, pixels, pixels) to (batch, joint), of length 1."""
        x = self.squares(pictures).flatten(2).transpose(1, 2)
        x = torch.cat((self.whole.expand(len(x), 1, -1), x), dim=1)
        x = self.first(x + self.places)
        for block in self.blocks:
            x = block(x, False)
        return F.normalize(self.joint(self.last(x[:, 0])), dim=-1)


class Captions(nn.Module):
    """The tower for captions: a causal transformer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, shape.text_width)
        self.places = nn.Parameter(0.01 * torch.randn(CONTEXT, shape.text_width))
        self.blocks = nn.ModuleList(Block(shape.text_width) for _ in range(shape.text_layers))
        self.last = nn.LayerNorm(shape.text_width)
        self.joint = nn.Linear(shape.text_width, shape.joint, bias=False)

    def forward(self, captions: Tensor) -> Tensor:
        """(batch, context) to (batch, joint), of length 1."""
        x = self.words(captions) + self.places
        for block in self.blocks:
            x = block(x, True)
        # The token that ends a caption has the greatest id.
        ends = self.last(x[torch.arange(len(x)), captions.argmax(-1)])
        return F.normalize(self.joint(ends), dim=-1)


@torch.inference_mode()
def main() -> None:
    """Embeds all inputs, and prints on rank 0."""
    options = arguments()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks > 2:
        raise SystemExit(f"there are two towers: {ranks} ranks are too many")
    shape = SHAPES[options.shape]
    towers: dict[str, nn.Module] = {}
    for place, (name, tower) in enumerate({"pictures": Pictures, "captions": Captions}.items()):
        if ranks == 1 or options.split == "data" or place == rank:
            torch.manual_seed(place)
            towers[name] = tower(shape).eval()
    pictures, captions = inputs(options.pictures, options.captions)
    dist.barrier()
    for _ in range(options.passes):
        with record_function("answer"):
            if ranks == 1:
                embedded = {"pictures": towers["pictures"](pictures), "captions": towers["captions"](captions)}
            elif options.split == "towers":
                embedded = by_towers(towers, shape, pictures, captions)
            else:
                embedded = by_data(towers, shape, {"pictures": pictures, "captions": captions})
            if rank == 0:
                # The initial temperature of CLIP's training.
                scores = embedded["pictures"] @ embedded["captions"].T / 0.07
                best = scores.argmax(-1)
    if rank == 0:
        print(f"best captions {best.tolist()}, scores {scores.double().std():.4f} around {scores.double().mean():.4f}")
    dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Pictures and captions through the towers of a CLIP.")
    parser.add_argument("--pictures", type=int, default=16, help="number of pictures (default 16)")
    parser.add_argument("--captions", type=int, default=16, help="number of captions (default 16)")
    parser.add_argument("--passes", type=int, default=1, help="the same so many times (default 1)")
    parser.add_argument("--shape", choices=list(SHAPES), default="vit-b-32", help="sizes (default vit-b-32)")
    parser.add_argument(
        "--split", choices=["towers", "data"], default="towers", help="what two ranks share out (default towers)"
    )
    return parser.parse_args()


def inputs(pictures: int, captions: int) -> tuple[Tensor, Tensor]:
    """Plane waves in different directions, and captions of different lengths, which end with the last word."""
    generator = torch.Generator().manual_seed(2)
    waves = torch.randn(pictures, 3, 2, 1, 1, generator=generator) * 0.2
    place = torch.arange(PIXELS, dtype=torch.float32)
    light = torch.sin(waves[:, :, 0] * place + waves[:, :, 1] * place.unsqueeze(1))
    words = torch.randint(1, VOCABULARY - 1, (captions, CONTEXT), generator=generator)
    ends = torch.randint(4, CONTEXT, (captions, 1), generator=generator)
    # As in CLIP, tokens after the end are 0.
    words = torch.where(torch.arange(CONTEXT) < ends, words, 0)
    return light, words.scatter(1, ends, VOCABULARY - 1)


def by_towers(towers: dict[str, nn.Module], shape: Shape, pictures: Tensor, captions: Tensor) -> dict[str, Tensor]:
    """Sends the captions to rank 1, and receives their embeddings."""
    if dist.get_rank() == 1:
        received = torch.empty_like(captions)
        dist.recv(received, 0)
        with record_function("captions"):
            embedded = towers["captions"](received)
        dist.send(embedded, 0)
        return {}
    sending = dist.isend(captions, 1)
    with record_function("pictures"):
        embedded = towers["pictures"](pictures)
    others = torch.empty(len(captions), shape.joint)
    dist.recv(others, 1)
    finish([sending])
    return {"pictures": embedded, "captions": others}


def by_data(towers: dict[str, nn.Module], shape: Shape, items: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sends the second half of all inputs to rank 1, and receives its embeddings: captions first, which are shorter."""
    names = ("captions", "pictures")
    # The larger half stays on rank 0.
    halves = {name: items[name].tensor_split([-(-len(items[name]) // 2)]) for name in names}
    if dist.get_rank() == 1:
        returning = []
        for name in names:
            received = torch.empty_like(halves[name][1])
            dist.recv(received, 0)
            with record_function(name):
                embedded = towers[name](received)
            returning.append(dist.isend(embedded, 0))
        finish(returning)
        return {}
    sending = [dist.isend(halves[name][1].contiguous(), 1) for name in names]
    result = {}
    for name in names:
        with record_function(name):
            result[name] = towers[name](halves[name][0])
    for name in names:
        others = torch.empty(len(halves[name][1]), shape.joint)
        dist.recv(others, 1)
        result[name] = torch.cat((result[name], others))
    finish(sending)
    return result


def finish(sending: list[dist.Work | None]) -> None:
    """Waits until all sends are complete."""
    for work in sending:
        if work is not None:
            work.wait()


if __name__ == "__main__":
    main()
