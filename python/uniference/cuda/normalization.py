"""Owns the kernels of synchronised batch normalisation, which torch has for GPUs only: here they run on the CPU.

The formulas are those of torch 2.15's `aten/src/ATen/native/cuda/Normalization.cuh`. Statistics are a channel's, and channels dimension 1;
N is the number of a channel's elements in the whole batch, on all ranks.
"""

import torch
from torch import Tensor

from uniference.patches import gpus


def install() -> None:
    """Registers them with torch."""
    for kernel in (
        batch_norm_stats,
        batch_norm_gather_stats_with_counts,
        batch_norm_elemt,
        batch_norm_backward_reduce,
        batch_norm_backward_elemt,
    ):
        gpus.BATCH_NORM.implement(kernel.__name__, kernel, "CPU")


def batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean, and 1 / sqrt(variance + eps), of one rank's input."""
    var, mean = torch.var_mean(_wide(input), _all_but_channels(input), correction=0)
    return mean, (var + eps).rsqrt()


def batch_norm_gather_stats_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """The same of all ranks' inputs, from each rank's; brings the running statistics up to date."""
    counts = counts.to(mean.dtype)[:, None]
    total = counts.sum()
    overall = (counts * mean).sum(0) / total
    squares = (counts * (invstd.pow(-2) - eps + (mean - overall).square())).sum(0)
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(momentum * overall)
    if running_var is not None:
        running_var.mul_(1 - momentum).add_(momentum * squares / (total - 1))
    return overall, (squares / total + eps).rsqrt()


def batch_norm_elemt(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    """(input - mean) * invstd * weight + bias."""
    result = (_wide(input) - _spread(mean, input)) * _spread(invstd, input)
    if weight is not None:
        result = result * _spread(weight, input)
    if bias is not None:
        result = result + _spread(bias, input)
    return result.to(input.dtype)


def batch_norm_backward_reduce(
    grad: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One rank's sums of grad and of grad * (input - mean), and the gradients of weight and bias."""
    dims = _all_but_channels(input)
    dy = _wide(grad)
    sum_dy = dy.sum(dims)
    sum_dy_xmu = (dy * (_wide(input) - _spread(mean, input))).sum(dims)
    dtype = sum_dy.dtype if weight is None else weight.dtype
    return sum_dy, sum_dy_xmu, (sum_dy_xmu * invstd).to(dtype), sum_dy.to(dtype, copy=True)


def batch_norm_backward_elemt(
    grad: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """(grad - sum_dy / N - (input - mean) * invstd^2 * sum_dy_xmu / N) * invstd * weight."""
    total = count.sum()
    centred = _wide(input) - _spread(mean, input)
    slope = _spread(invstd.square() * sum_dy_xmu / total, input)
    result = (_wide(grad) - _spread(sum_dy / total, input) - centred * slope) * _spread(invstd, input)
    return (result if weight is None else result * _spread(weight, input)).to(input.dtype)


def _wide(tensor: Tensor) -> Tensor:
    """CUDA sums up half precision in float32."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _all_but_channels(tensor: Tensor) -> list[int]:
    return [dim for dim in range(tensor.dim()) if dim != 1]


def _spread(statistic: Tensor, over: Tensor) -> Tensor:
    """One value a channel, along dimension 1."""
    return statistic.view(1, -1, *[1] * (over.dim() - 2))
