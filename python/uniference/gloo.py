"""Owns what ProcessGroupGloo of torch 2.15 refuses of a call's arguments, in its words (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp).

torch's own checks in Python come before these. Ranks are the group's.
"""

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

# As C++ prints an element type.
_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.int64: "long",
    torch.int32: "int",
    torch.int16: "short",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "bool",
    torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
}
_LAYOUTS = {torch.strided: "Strided", torch.sparse_coo: "Sparse", torch.sparse_csr: "SparseCsr"}

# What ProcessGroupGloo has code for, and complex numbers as pairs of these.
_DTYPES = frozenset(
    {torch.float32, torch.float64, torch.float16, torch.bfloat16}
    | {torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool}
)


class Unsupported(RuntimeError):
    """What Gloo says of an operation once it carries it out: of an asynchronous one when the program waits for it."""


def check_dtype(dtype: torch.dtype, complex_too: bool = True) -> None:
    """Raises what Gloo's collectives do of elements that they do not carry. Its send and recv carry any."""
    if dtype not in _DTYPES and not (complex_too and dtype.is_complex):
        raise Unsupported("Invalid scalar type")


def check_all_gather(outputs: Sequence[Tensor], input: Tensor, size: int) -> None:
    """One output of the input's type and shape for each member."""
    if len(outputs) != size:
        expected = f"(expected length {size}, got {len(outputs)})"
        raise RuntimeError(f"ProcessGroupGloo::allgather: invalid output tensor list at index 0 {expected}")
    _check_alike("allgather", outputs, input)


def check_all_gather_coalesced(outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], size: int) -> None:
    """`outputs[rank][i]` is like `inputs[i]`."""
    call = "ProcessGroupGloo::allgather_coalesced"
    if len(outputs) != size:
        raise RuntimeError(f"{call}: output lists should be equal to world size")
    for row in outputs:
        if len(row) != len(inputs):
            raise RuntimeError(f"{call}: invalid output size: (expected length {len(inputs)}, got {len(row)})")
        for index, (output, input) in enumerate(zip(row, inputs, strict=True)):
            if output.shape != input.shape:
                expected = f"(expected length {_shape(input)}, got {_shape(output)})"
                raise RuntimeError(f"{call}: invalid size of output tensor at index {index} {expected}")
            if output.type() != input.type():
                expected = f"(expected {input.type()}, got {output.type()})"
                raise RuntimeError(f"{call}: invalid tensor type at index {index} {expected}")


def check_blocks(call: str, which: str, blocks: Sequence[Tensor], like: Tensor, size: int) -> None:
    """The root's list for a gather or scatter."""
    if len(blocks) != size:
        raise RuntimeError(
            f"ProcessGroupGloo::{call}: Incorrect {which} list size {len(blocks)}. "
            f"{which.capitalize()} list size should be {size}, same as size of the process group."
        )
    _check_alike(call, blocks, like)


def check_reduce_scatter(output: Tensor, inputs: Sequence[Tensor], rank: int, size: int) -> None:
    """It looks at the block that the rank itself receives."""
    if len(inputs) != size:
        raise RuntimeError("invalid input tensor list size, must be world size")
    mine = inputs[rank]
    if output.shape != mine.shape:
        _check_failed(rank, "outputs[0].sizes().vec() == inputs[0][i].sizes().vec()", _plain(output), _plain(mine))


def check_reduce_scatter_single(output: Tensor, input: Tensor, rank: int, size: int) -> None:
    """The input has as many times the output's rows as the group has members."""
    if output.dtype != input.dtype:
        expression = "outputTensors[i].dtype() == inputTensors[i].dtype()"
        _check_failed(rank, expression, _type(output), _type(input))
    if output.dim() and input.dim() and output.size(0) * size != input.size(0):
        expression = "outputShape[0] * worldSize == inputShape[0]"
        _check_failed(rank, expression, str(output.size(0) * size), str(input.size(0)))


def check_all_to_all(outputs: Sequence[Tensor], inputs: Sequence[Tensor], size: int) -> None:
    """One tensor for each member, all of one shape."""
    for which, tensors in (("input", inputs), ("output", outputs)):
        if len(tensors) != size:
            message = f"{which} tensor list size {len(tensors)} does not match world size {size}"
            raise RuntimeError(f"ProcessGroupGloo::alltoall: {message}")
    for tensors in (inputs, outputs):
        _check_alike("alltoall", tensors, tensors[0])
    if inputs[0].shape != outputs[0].shape:
        raise RuntimeError("ProcessGroupGloo::alltoall: input and output tensors must have the same size")


def check_all_to_all_single(output: Tensor, input: Tensor, received: Sequence[int], sent: Sequence[int]) -> None:
    """Gloo takes the memory as it lies. Numbers of rows are checked for every backend."""
    if not _is_whole(output) or not _is_whole(input):
        raise ValueError("Tensors must be contiguous")
    if not received and not sent:
        for tensor in (output, input):
            tensor.size(0)  # a scalar has none, and torch says so
        if output.numel() != input.numel() or output.dtype != input.dtype:
            raise RuntimeError("in->size == out->size. ")
    check_dtype(input.dtype, complex_too=False)


def check_message(tensors: Sequence[Tensor]) -> None:
    """A message is sent from, and received into, the memory of one dense tensor."""
    for tensor in tensors:
        if tensor.layout is torch.strided and not tensor.is_contiguous():
            raise RuntimeError("input tensor has to be contiguous")


def check_complex(call: str, name: str, dtype: torch.dtype) -> None:
    """Complex numbers are only added up. The odd character is Gloo's."""
    if dtype.is_complex and name not in ("sum", "avg", "premul_sum"):
        raise RuntimeError(f"{call} does not support\x03on complex tensors")


def check_written(tensors: Sequence[Tensor]) -> None:
    """What Gloo writes with an operator of torch's, it may not write where autograd forbids it."""
    if torch.is_grad_enabled() and any(tensor.requires_grad and tensor.is_leaf for tensor in tensors):
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")


def _is_whole(tensor: Tensor) -> bool:
    """Whether its elements lie one after the other, channels last or not."""
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def _check_alike(call: str, tensors: Sequence[Tensor], like: Tensor) -> None:
    for index, tensor in enumerate(tensors):
        if (tensor.dtype, tensor.layout) != (like.dtype, like.layout):
            expected = f"(expected {_options(like)}, got {_options(tensor)})"
            raise RuntimeError(f"ProcessGroupGloo::{call}: invalid tensor type at index {index} {expected}")
        if tensor.shape != like.shape:
            expected = f"(expected {_shape(like)}, got {_shape(tensor)})"
            raise RuntimeError(f"ProcessGroupGloo::{call}: invalid tensor size at index {index} {expected}")


def _check_failed(rank: int, expression: str, left: str, right: str) -> NoReturn:
    raise RuntimeError(f"[rank{rank}]:Check failed: {expression} ({left} vs. {right}). \n")


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"


def _plain(tensor: Tensor) -> str:
    return " ".join(map(str, tensor.shape))


def _type(tensor: Tensor) -> str:
    return _TYPES.get(tensor.dtype, str(tensor.dtype))


def _options(tensor: Tensor) -> str:
    layout = _LAYOUTS.get(tensor.layout, str(tensor.layout))
    return (
        f"TensorOptions(dtype={_type(tensor)}, device={tensor.device}, layout={layout}, "
        "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))"
    )
