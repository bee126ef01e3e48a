"""Owns a simulated GPU's random numbers: a state of its own beside the CPU's, so that seeding one leaves the other alone.

The numbers are those of torch's CPU generator, not of CUDA's Philox, so they differ from a real GPU's. As there, the state is a seed
and an offset of 8 bytes each, and a draw depends on nothing else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional, init

_STEP = 4  # the offset of Philox is a multiple of it

_MIX = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: seeds of neighbouring draws lie far apart


class GpuRandom:
    """The generator of one GPU: one of `torch.cuda.default_generators`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._seed = torch.default_generator.initial_seed()
        self._offset = 0

    def manual_seed(self, seed: int) -> "GpuRandom":
        self._seed, self._offset = int(seed) % 2**64, 0
        return self

    def initial_seed(self) -> int:
        return self._seed

    def seed(self) -> int:
        return self.manual_seed(torch.seed())._seed

    def get_state(self) -> Tensor:
        halves = [half.to_bytes(8, "little") for half in (self._seed, self._offset)]
        return torch.tensor(list(b"".join(halves)), dtype=torch.uint8)

    def set_state(self, state: Tensor) -> None:
        content = bytes(state.tolist())
        if len(content) != 16:
            raise RuntimeError("RNG state is wrong size")
        self._seed, self._offset = (int.from_bytes(half, "little") for half in (content[:8], content[8:]))

    @property
    def offset(self) -> int:
        return self._offset

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Inside, torch's default generator draws this GPU's numbers."""
        default = torch.default_generator
        kept = default.get_state()
        default.manual_seed((self._seed + self._offset * _MIX) % 2**63)
        try:
            yield
        finally:
            self._offset += _STEP
            default.set_state(kept)


_t: Any = torch.Tensor

DRAWS = frozenset(
    {
        torch.rand,
        torch.randn,
        torch.randint,
        torch.randperm,
        torch.normal,
        torch.bernoulli,
        torch.multinomial,
        torch.poisson,
    }
    | {torch.rand_like, torch.randn_like, torch.randint_like, torch.dropout, torch.rrelu}
    | {_t.normal_, _t.uniform_, _t.random_, _t.bernoulli, _t.bernoulli_, _t.exponential_, _t.cauchy_, _t.geometric_}
    | {_t.log_normal_, _t.multinomial}
    | {functional.dropout, functional.alpha_dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d}
    | {functional.feature_alpha_dropout, functional.gumbel_softmax, functional.rrelu}
    | {functional.multi_head_attention_forward, functional.scaled_dot_product_attention}
    | {init.normal_, init.uniform_, init.trunc_normal_, init.kaiming_uniform_, init.kaiming_normal_}
    | {init.xavier_uniform_, init.xavier_normal_, init.orthogonal_, init.sparse_}
)
"""Functions that draw from the default generator, if they are not given another."""
