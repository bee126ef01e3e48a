"""Owns the all-reduce of sparse tensors, as ProcessGroupGloo of torch 2.15 implements it: three all-gathers, and a sum
in order of rank.

Unlike Gloo's, the call blocks, because the sizes of the second and third gather are in the data of the first.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# gather(lengths, input) -> the members' tensors, `lengths[rank]` elements each.
Gather = Callable[[Sequence[int], Tensor], Sequence[Tensor]]

# The length of Gloo's metadata: sparse dimensions, dense dimensions, number of elements, and the sizes.
_METADATA = 9


def all_reduce(tensors: Sequence[Tensor], size: int, gather: Gather) -> None:
    """Writes the sum over all `size` members into the tensors."""
    total = tensors[0].detach()
    for other in tensors[1:]:
        total = total + other
    result = _sum(total.coalesce(), size, gather)
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(result)


def _sum(mine: Tensor, size: int, gather: Gather) -> Tensor:
    metadata = torch.zeros(_METADATA, dtype=torch.int64)
    about = (mine.sparse_dim(), mine.dense_dim(), mine._nnz(), *mine.shape)
    if len(about) > _METADATA:
        raise RuntimeError(f"sparse tensors with more than {_METADATA - 3} dimensions cannot be reduced")
    metadata[: len(about)] = torch.tensor(about)
    everyone = [row.tolist() for row in gather([_METADATA] * size, metadata)]
    if len({row[0] for row in everyone}) > 1:
        raise RuntimeError("Sparse dimensions do not match")
    if len({tuple(row[3:]) for row in everyone}) > 1:
        raise RuntimeError("Sizes do not match")
    counts = [row[2] for row in everyone]
    each = mine.values().shape[1:]
    indices = gather([mine.sparse_dim() * count for count in counts], mine.indices())
    values = gather([each.numel() * count for count in counts], mine.values())
    parts = [
        torch.sparse_coo_tensor(index.view(mine.sparse_dim(), count), value.view(count, *each), mine.shape)
        for index, value, count in zip(indices, values, counts, strict=True)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total.coalesce()
