"""Owns the way of tensors' bytes into and out of the memory that all ranks share; what they mean is `process_group`'s business.

Bytes are copied below torch: no dispatcher, so no mode, autograd graph or version counter of the program's ever sees it,
just as with a real backend.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from uniference._native import Channel


class Arena:
    """One rank's view of the shared memory."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._memory = channel.arena()
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def stage(self, tensors: Sequence[Tensor]) -> int:
        """Copies tensors, one after the other, into fresh room; returns its offset."""
        sources = [_contiguous(tensor) for tensor in tensors]
        offset = self._channel.stage(sum(source.nbytes for source in sources))
        address = self._base + offset
        for source in sources:
            if source.nbytes:
                ctypes.memmove(address, source.data_ptr(), source.nbytes)
                address += source.nbytes
        return offset

    def fetch(self, pieces: Sequence[tuple[int, int]], outputs: Sequence[Tensor]) -> None:
        """Copies pieces (offset, nbytes), one after the other, into the outputs, one after the other."""
        buffers = [
            out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
            for out in outputs
        ]
        self._fill([(buffer.data_ptr(), buffer.nbytes) for buffer in buffers if buffer.nbytes], pieces)
        for out, buffer in zip(outputs, buffers, strict=True):
            if buffer is not out:
                out.data.copy_(buffer)

    def view(self, offset: int, nbytes: int, dtype: torch.dtype) -> Tensor:
        """A part of the arena as a flat tensor, not a copy. `nbytes` is not 0."""
        return torch.frombuffer(self._memory, dtype=dtype, count=nbytes // dtype.itemsize, offset=offset)

    def _fill(self, targets: Sequence[tuple[int, int]], pieces: Sequence[tuple[int, int]]) -> None:
        """Copies pieces into targets (address, nbytes); their borders need not coincide, their sums must."""
        expected, got = sum(n for _, n in targets), sum(n for _, n in pieces)
        assert expected == got, f"rank {self._channel.rank}: {expected} bytes of output, {got} bytes of data"
        rest = iter(pieces)
        offset = left = 0
        for address, wanted in targets:
            while wanted:
                if not left:
                    offset, left = next(rest)
                    continue
                count = min(left, wanted)
                ctypes.memmove(address, self._base + offset, count)
                address, offset, left, wanted = address + count, offset + count, left - count, wanted - count


def _contiguous(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = tensor.resolve_conj()
    return tensor.resolve_neg().contiguous()
