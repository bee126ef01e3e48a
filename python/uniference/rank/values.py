"""Owns which tensors have no values: with `--values small` or `none`, operators on large tensors are costed but not
computed.

The C++ part marks the memory of such tensors; an element that was not computed reads as zero.
"""

import os
from collections.abc import Sequence

from torch import Tensor

from uniference.rank import capture

VARIABLE = "UNIFERENCE_VALUES"
"""Environment variable of a rank: largest number of elements of tensors whose operators are computed; unset: any
number."""


def limit() -> int | None:
    """Largest number of elements of tensors whose operators are computed; `None`: any number."""
    text = os.environ.get(VARIABLE)
    return None if text is None else int(text)


def are_absent(tensors: Sequence[Tensor]) -> bool:
    """Whether communication of these tensors moves only their sizes: one tensor has no values or is above the limit of its type."""
    library = capture.library() if VARIABLE in os.environ else None
    if library is None:
        return False
    return any(library.is_uncomputed(tensor) or library.is_large(tensor) for tensor in tensors)


def mark_uncomputed(tensors: Sequence[Tensor]) -> None:
    """Marks tensors whose received values were not computed by the sender."""
    library = capture.library()
    assert library is not None, "only the C++ part leaves values uncomputed"
    for tensor in tensors:
        library.mark_uncomputed(tensor)
