"""Tensor parallelism: each rank has a part of every layer's matrices, and two all-reduces per layer sum results.

A prompt is read at once, then tokens are generated one by one. Run it on eight boards on Wi-Fi:

uniference run --cluster wifi.toml serve.py
"""

import torch
import torch.distributed as dist
from torch.profiler import record_function

LAYERS, HIDDEN, PROMPT, TOKENS = 8, 1024, 128, 16


class Layer(torch.nn.Module):
    """A rank's shards of two matrices of attention and two of a feed-forward network."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(HIDDEN, HIDDEN // parts, bias=False)
        self.out = torch.nn.Linear(HIDDEN // parts, HIDDEN, bias=False)
        self.up = torch.nn.Linear(HIDDEN, 4 * HIDDEN // parts, bias=False)
        self.down = torch.nn.Linear(4 * HIDDEN // parts, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer of a decoder, without its softmax: the example is about communication."""
        attended: torch.Tensor = self.out(torch.tanh(self.mix(x)))
        dist.all_reduce(attended)
        x = x + attended
        fed: torch.Tensor = self.down(torch.relu(self.up(x)))
        dist.all_reduce(fed)
        return x + fed


@torch.inference_mode()
def main() -> None:
    """Reads a prompt, and generates tokens."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[Layer(dist.get_world_size()) for _ in range(LAYERS)])
    with record_function("prefill"):
        model(torch.randn(PROMPT, HIDDEN))
    for _ in range(TOKENS):
        with record_function("decode"):
            model(torch.randn(1, HIDDEN))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
