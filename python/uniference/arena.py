"""Owns what tensors look like below torch: as memory that bytes are copied from and to, and as views of the arena that all ranks share.

Bytes are copied below torch: no dispatcher, so no mode, autograd graph or version counter of the program's ever sees it,
just as with a real backend. What they mean is `process_group`'s business.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from uniference._native import Channel


def contiguous(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same elements, each tensor's in its own order and one after the other."""
    return [tensor if _is_plain(tensor) else tensor.resolve_conj().resolve_neg().contiguous() for tensor in tensors]


def memory(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """(address, bytes) of contiguous tensors. Valid while they are kept."""
    return [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors]


class Arena:
    """One rank's view of the shared memory."""

    def __init__(self, channel: Channel) -> None:
        self._memory = channel.arena()

    def view(self, offset: int, nbytes: int, dtype: torch.dtype) -> Tensor:
        """A part of the arena as a flat tensor, not a copy. `nbytes` is not 0."""
        return torch.frombuffer(self._memory, dtype=dtype, count=nbytes // dtype.itemsize, offset=offset)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
