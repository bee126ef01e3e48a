"""Owns views of the arena, the shared memory of all ranks, for torch's kernels; the channel copies all other bytes
itself."""

import torch
from torch import Tensor

from uniference._native import Channel


class Arena:
    """One rank's view of the shared memory."""

    def __init__(self, channel: Channel) -> None:
        self._memory = channel.arena()

    def view(self, offset: int, nbytes: int, dtype: torch.dtype) -> Tensor:
        """A view of a part of the arena as a flat tensor, without a copy. `nbytes` is not 0."""
        return torch.frombuffer(self._memory, dtype=dtype, count=nbytes // dtype.itemsize, offset=offset)
