"""Sends tokens to experts on other ranks, which a router chooses for them, and back (expert parallelism).

    torchrun --nproc-per-node 4 experts.py --tokens 512

Each rank has an equal part of the experts of every layer and its own tokens. A rank's load depends on the values: each
layer has two all-to-alls of unequal blocks, and before them an all-to-all of their sizes. The frequency of words in the
text follows Zipf's law. Equal tokens go to equal experts, so some ranks get more tokens than others.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import record_function

WIDTH, INNER, EXPERTS, CHOSEN, LAYERS, WORDS = 256, 1024, 8, 2, 4, 4096


class Layer(nn.Module):
    """An MoE layer: a router, which all ranks have, and this rank's experts."""

    bias: Tensor

    def __init__(self, ranks: int, rank: int) -> None:
        super().__init__()
        # All ranks draw all experts, so that an expert's weights do not depend on its rank.
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        up, down = (torch.randn(EXPERTS, a, b) * a**-0.5 for a, b in ((WIDTH, INNER), (INNER, WIDTH)))
        mine = slice(rank * EXPERTS // ranks, (rank + 1) * EXPERTS // ranks)
        self.up, self.down = nn.Parameter(up[mine].clone()), nn.Parameter(down[mine].clone())
        # Added to scores only to choose experts, not to weigh their results (DeepSeek-V3, arXiv:2412.19437).
        self.register_buffer("bias", torch.zeros(EXPERTS))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`x`: (tokens, width). Returns the output, and the number of tokens that each expert gets from this rank."""
        scores = F.normalize(self.router(x), dim=-1).softmax(-1)
        experts = (scores + self.bias).topk(CHOSEN, dim=-1).indices
        weights = scores.gather(1, experts)
        order = experts.flatten().argsort(stable=True)
        counts = experts.flatten().bincount(minlength=EXPERTS)
        back = self.exchanged(x[order // CHOSEN], counts)
        out = torch.zeros_like(x).index_add(0, order // CHOSEN, back * weights.flatten()[order].unsqueeze(1))
        return x + out, counts

    def exchanged(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Results of the experts for rows in the order of their experts."""
        ranks = dist.get_world_size()
        with record_function("dispatch"):
            arriving = torch.empty_like(counts)
            dist.all_to_all_single(arriving, counts)
            leaving_sizes = counts.view(ranks, -1).sum(1).tolist()
            arriving_sizes = arriving.view(ranks, -1).sum(1).tolist()
            received = torch.empty(sum(arriving_sizes), WIDTH)
            dist.all_to_all_single(received, rows, arriving_sizes, leaving_sizes)
        with record_function("experts"):
            # Rows arrive by rank, and sorted by expert from each rank.
            of = torch.arange(len(self.up)).repeat(ranks).repeat_interleave(arriving)
            made = torch.empty_like(received)
            for expert, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
                (mine,) = torch.nonzero(of == expert, as_tuple=True)
                made[mine] = F.silu(received[mine] @ up) @ down
        with record_function("combine"):
            back = torch.empty_like(rows)
            dist.all_to_all_single(back, made, leaving_sizes, arriving_sizes)
        return back


@torch.inference_mode()
def main() -> None:
    """Runs several passes; with --balance, overloaded experts are gradually chosen less often."""
    parser = argparse.ArgumentParser(description="Layers of experts, cut over ranks.")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of all ranks together (default 1024)")
    parser.add_argument("--passes", type=int, default=8, help="forward passes, of new tokens each (default 8)")
    parser.add_argument("--balance", action="store_true", help="steer the router towards equal loads, without a loss")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if options.tokens % ranks or EXPERTS % ranks:
        raise SystemExit(f"{ranks} ranks do not divide {options.tokens} tokens and {EXPERTS} experts")
    torch.manual_seed(0)
    words = F.normalize(torch.randn(WORDS, WIDTH), dim=-1)
    layers = [Layer(ranks, rank) for _ in range(LAYERS)]
    frequency = 1 / torch.arange(1, WORDS + 1, dtype=torch.float64)
    mine = options.tokens // ranks
    dist.barrier()
    for step in range(options.passes):
        ids = torch.multinomial(frequency, options.tokens, replacement=True)[rank * mine : (rank + 1) * mine]
        x, loads = words[ids], []
        with record_function("pass"):
            for layer in layers:
                x, counts = layer(x)
                dist.all_reduce(counts)
                loads.append(counts)
                if options.balance:
                    layer.bias += 0.002 * (counts.float().mean() - counts).sign()
        total = x.double().sum()
        dist.all_reduce(total)
        if rank == 0:
            by_rank = torch.stack(loads).view(LAYERS, ranks, -1).sum(2).float()
            busiest = (by_rank.max(1).values / by_rank.mean(1)).mean()
            print(
                f"pass {step}: busiest rank {busiest:.3f} times the mean, sum {total:.4f}, experts {loads[0].tolist()}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
