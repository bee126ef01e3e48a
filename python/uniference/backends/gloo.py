"""Owns the behaviour that is specific to Gloo, as in ProcessGroupGloo of torch 2.15
(`torch/csrc/distributed/c10d/ProcessGroupGloo.cpp`): refused arguments, sparse tensors, the monitored barrier, and
error messages.

Torch's own checks in Python precede these. Ranks are the group's.
"""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from uniference.backends import monitored_barrier, sparse
from uniference.backends.base import SimulatedBackend, blocks
from uniference.backends.connections import Connections
from uniference.backends.reduction import Unsupported, reduction_name
from uniference.backends.work import Ended, Failed, Work
from uniference.rank.charging import uncharged
from uniference.rank.clock import picoseconds

# Names of element types as C++ prints them.
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

# Element types that ProcessGroupGloo supports; complex numbers travel as pairs of these.
_DTYPES = frozenset(
    {torch.float32, torch.float64, torch.float16, torch.bfloat16}
    | {torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool}
)

# First tag of the monitored barrier's messages: larger than every tag of a program, which has 32 bits.
_MONITOR_TAGS = 1 << 40

# Source location in the error messages of Gloo in torch 2.15's wheels. Programs search for the words, some for the
# space before them.
_SOURCE = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp"

# Gloo's messages name the peer's socket: each simulated rank has one port, counted from the start of Linux's default
# range.
_FIRST_PORT = 32768


class Pairs(Connections):
    """Gloo's connections of one process group. All are closed after an operation has timed out, and none can be used
    again."""

    def check(self) -> None:
        if self.closed:
            raise _pairs_closed()

    def timed_out(self, name: str, limit: timedelta, callers: bool = False) -> RuntimeError:
        """If only the timeout of a caller's wait has expired, the collective continues; any other timeout closes the
        pairs (Gloo's connections)."""
        waits_for = name if name in ("send", "recv") else "recv"
        if callers and name != waits_for:
            return RuntimeError("Operation timed out!")
        self._close()
        milliseconds = limit // timedelta(milliseconds=1)
        return RuntimeError(
            f"{_SOURCE}/unbound_buffer.cc:78] Timed out waiting {milliseconds}ms for {waits_for} operation to complete"
        )

    def _close(self) -> None:
        """Ends this rank's outstanding operations in the group. Members that wait for this rank, now or later, get an
        error."""
        self.abort()
        self._channel.close(self._group)

    def closed_by(self, peer: int) -> RuntimeError:
        if self.closed and peer == self._channel.rank:
            return _pairs_closed()
        return RuntimeError(
            f"{_SOURCE}/pair.cc:561] Connection closed by peer [127.0.0.1]:{_FIRST_PORT + peer}. "
            "This is typically caused by a remote worker crashing. "
            "Check the logs of the remote worker before reporting an error. GLHF! \U0001f3d6\ufe0f"
        )

    def error_from_now_on(self, name: str, error: RuntimeError) -> RuntimeError:
        """A collective keeps its error; a message gets its connection's error."""
        return _pairs_closed() if name in ("send", "recv") else error


class Gloo(SimulatedBackend):
    """Simulates ProcessGroupGloo."""

    NAME = "gloo"
    CONNECTIONS = Pairs
    KEEPS_FIRST = True
    DEFAULT_TIMEOUTS = (timedelta(minutes=30),)
    WAITS_FOR_RECEIVES = True

    # Number of monitored barriers so far.
    _barriers = 0

    @classmethod
    def ddp_log(cls) -> dict[str, Any]:
        """Fields as torch/csrc/distributed/c10d/logger.cpp writes them, with ProcessGroupGloo's default number of
        threads."""
        variables = ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT")
        return {"gloo_num_threads": 2} | {name.lower(): os.environ.get(name, "N/A") for name in variables}

    def _failed(self, error: RuntimeError, opts: Any) -> Work:
        # Errors that Gloo finds during an asynchronous operation are raised by the wait for it.
        if opts.asyncOp:
            return Failed(self.channel, error)
        raise error from None

    def _check_reduction(self, name: str, dtype: torch.dtype) -> None:
        if name == "premul_sum":
            raise Unsupported("Cannot use ReduceOp.PREMUL_SUM with Gloo")
        _check_dtype(dtype)

    def _check_elements(self, kind: str, dtype: torch.dtype) -> None:
        # Gloo's gather and `all_to_all_single` do not support complex numbers. Its send and recv accept any type.
        _check_dtype(dtype, complex_too=kind != "gather")

    def _check_complex(self, call: str, opts: Any, tensor: Tensor) -> None:
        """Raises for complex numbers in other reductions than sums. The odd character in the message is Gloo's."""
        if tensor.dtype.is_complex and reduction_name(opts.reduceOp) not in ("sum", "avg", "premul_sum"):
            raise RuntimeError(f"{call} does not support\x03on complex tensors")

    # Collectives that combine elements

    def _all_reduce(self, tensors: list[Tensor], opts: c10d.AllreduceOptions) -> Work:
        if tensors[0].layout is not torch.sparse_coo:
            return super()._all_reduce(tensors, opts)
        if self._reduction(opts, tensors).name != "sum":
            raise RuntimeError(
                "ProcessGroupGloo::allreduce: unsupported reduction operation "
                "(allreduce of sparse tensors only works with ReduceOp.SUM)"
            )
        events = self._event("sparse_all_reduce", tensors)

        def gather(lengths: Sequence[int], mine: Tensor) -> Sequence[Tensor]:
            outputs = [mine.new_empty(length) for length in lengths]
            self._collective("all_gather", opts, blocks(outputs), [mine], outputs, title="").wait()
            return outputs

        sparse.all_reduce(tensors, self._size, gather)
        for event in events:
            event.end()
        return Ended(self.channel, tensors)

    def _all_reduce_coalesced(self, tensors: list[Tensor], opts: c10d.AllreduceCoalescedOptions) -> Work:
        # Gloo writes the results with a torch operator, which must not write in place if autograd forbids it.
        if torch.is_grad_enabled() and any(tensor.requires_grad and tensor.is_leaf for tensor in tensors):
            raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
        return super()._all_reduce_coalesced(tensors, opts)

    def _reduce(self, tensors: list[Tensor], opts: c10d.ReduceOptions) -> Work:
        self._root("reduce", opts.rootRank)
        self._check_complex("reduce", opts, tensors[0])
        return super()._reduce(tensors, opts)

    def _reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: c10d.ReduceScatterOptions
    ) -> Work:
        output, row = outputs[0], inputs[0]
        self._check_complex("all_reduce", opts, output)
        if len(row) != self._size:
            raise RuntimeError("invalid input tensor list size, must be world size")
        # Gloo checks only the block that the rank itself receives.
        mine = row[self._rank]
        if output.shape != mine.shape:
            self._check_failed("outputs[0].sizes().vec() == inputs[0][i].sizes().vec()", _plain(output), _plain(mine))
        reduction = self._reduction(opts, [output])
        # Gloo's reduce-scatter of a list of tensors reduces in another order than that of a single tensor, even if all
        # blocks have the same size.
        shape = [tensor.numel() for tensor in row]
        return self._collective("reduce_scatter", opts, shape, row, [output], reduction=reduction)

    def _reduce_scatter_single(self, output: Tensor, input: Tensor, opts: c10d.ReduceScatterOptions) -> Work:
        self._check_complex("all_reduce", opts, output)
        if output.dtype != input.dtype:
            self._check_failed("outputTensors[i].dtype() == inputTensors[i].dtype()", _type(output), _type(input))
        # The input must have as many times the output's rows as the group has members.
        if output.dim() and input.dim() and output.size(0) * self._size != input.size(0):
            rows = str(output.size(0) * self._size), str(input.size(0))
            self._check_failed("outputShape[0] * worldSize == inputShape[0]", *rows)
        return super()._reduce_scatter_single(output, input, opts)

    # Collectives that move elements

    def _all_gather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: c10d.AllgatherOptions, title: str | None = None
    ) -> Work:
        self._check_all_gather(outputs[0], inputs[0])
        return super()._all_gather(outputs, inputs, opts, title)

    def _all_gather_single(self, output: Tensor, input: Tensor, opts: c10d.AllgatherOptions) -> Work:
        if not self._gathers(output, input):
            self._check_all_gather(output.chunk(self._size), input)
        return super()._all_gather_single(output, input, opts)

    def _all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: c10d.AllgatherOptions
    ) -> Work:
        if not all(map(self._gathers, outputs, inputs)):
            parts = zip(*(output.chunk(self._size) for output in outputs), strict=False)
            self._check_all_gather_coalesced(list(parts), inputs)
        return super()._all_gather_single_coalesced(outputs, inputs, opts)

    def _all_gather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: c10d.AllgatherOptions
    ) -> Work:
        self._check_all_gather_coalesced(outputs, inputs)
        return super()._all_gather_coalesced(outputs, inputs, opts)

    def _gathers(self, output: Tensor, input: Tensor) -> bool:
        """Whether the output has as many times the input's rows as the group has members."""
        rows = (input.size(0) * self._size, *input.shape[1:]) if input.dim() else None
        return output.shape == rows and output.dtype == input.dtype

    def _check_all_gather(self, outputs: Sequence[Tensor], input: Tensor) -> None:
        """Raises unless each member has one output of the input's type and shape."""
        if len(outputs) != self._size:
            expected = f"(expected length {self._size}, got {len(outputs)})"
            raise RuntimeError(f"ProcessGroupGloo::allgather: invalid output tensor list at index 0 {expected}")
        _check_alike("allgather", outputs, input)

    def _check_all_gather_coalesced(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
        """Raises unless `outputs[rank][i]` is like `inputs[i]`."""
        call = "ProcessGroupGloo::allgather_coalesced"
        if len(outputs) != self._size:
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

    def _gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: c10d.GatherOptions) -> Work:
        if self._root("gather", opts.rootRank) == self._rank:
            self._check_blocks("gather", "output", outputs[0], inputs[0])
        return super()._gather(outputs, inputs, opts)

    def _scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: c10d.ScatterOptions) -> Work:
        if self._root("scatter", opts.rootRank) == self._rank:
            self._check_blocks("scatter", "input", inputs[0], outputs[0])
        return super()._scatter(outputs, inputs, opts)

    def _check_blocks(self, call: str, which: str, blocks: Sequence[Tensor], like: Tensor) -> None:
        """Checks the root's list for a gather or scatter."""
        if len(blocks) != self._size:
            raise RuntimeError(
                f"ProcessGroupGloo::{call}: Incorrect {which} list size {len(blocks)}. "
                f"{which.capitalize()} list size should be {self._size}, same as size of the process group."
            )
        _check_alike(call, blocks, like)

    def _all_to_all(self, outputs: list[Tensor], inputs: list[Tensor], opts: c10d.AllToAllOptions) -> Work:
        # One tensor for each member, all of one shape.
        for which, tensors in (("input", inputs), ("output", outputs)):
            if len(tensors) != self._size:
                message = f"{which} tensor list size {len(tensors)} does not match world size {self._size}"
                raise RuntimeError(f"ProcessGroupGloo::alltoall: {message}")
        for tensors in (inputs, outputs):
            _check_alike("alltoall", tensors, tensors[0])
        if inputs[0].shape != outputs[0].shape:
            raise RuntimeError("ProcessGroupGloo::alltoall: input and output tensors must have the same size")
        return super()._all_to_all(outputs, inputs, opts)

    def _all_to_all_single(
        self, output: Tensor, input: Tensor, received: list[int], sent: list[int], opts: c10d.AllToAllOptions
    ) -> Work:
        # Gloo copies memory in storage order. Numbers of rows are checked for every backend.
        if not _is_whole(output) or not _is_whole(input):
            raise ValueError("Tensors must be contiguous")
        if not received and not sent:
            for tensor in (output, input):
                tensor.size(0)  # a scalar has none, and torch says so
            if output.numel() != input.numel() or output.dtype != input.dtype:
                raise RuntimeError("in->size == out->size. ")
        _check_dtype(input.dtype, complex_too=False)
        return super()._all_to_all_single(output, input, received, sent, opts)

    # The monitored barrier, and the group's methods for it

    @uncharged
    def monitored_barrier(self, opts: c10d.BarrierOptions, wait_all_ranks: bool = False) -> None:
        self._check(())
        timeout = opts.timeout if opts.timeout >= timedelta(0) else self._timeout
        tag = _MONITOR_TAGS + 2 * self._barriers
        self._barriers += 1
        monitored_barrier.run(self, tag, tag + 1, timeout, wait_all_ranks)

    @property
    def group_rank(self) -> int:
        return self._rank

    @property
    def group_size(self) -> int:
        return self._size

    def post(self, to: int, tag: int, value: int) -> Work:
        return self._send([torch.tensor([value])], to, tag, [])

    def collect(self, source: int, tag: int) -> tuple[Work, Callable[[], int]]:
        number = torch.zeros(1, dtype=torch.int64)
        return self._receive([number], source, tag, []), lambda: int(number.item())

    # Point to point

    def _check_message(self, tensors: Sequence[Tensor], peer: int | None, tag: int) -> None:
        # A message is sent from, and received into, the memory of one dense tensor.
        if any(tensor.layout is torch.strided and not tensor.is_contiguous() for tensor in tensors):
            raise RuntimeError("input tensor has to be contiguous")
        super()._check_message(tensors, peer, tag)
        if peer == self._rank:
            raise RuntimeError("state_ >= CONNECTED. 1 vs 4. Pair is not connected ")

    def _refuse_peer(self, peer: int, hint: str) -> NoReturn:
        # Gloo looks the peer's address up until the timeout expires, so the call lasts as long.
        if (limit := self._limit(None)) is not None:
            self.channel.sleep(picoseconds(limit))
        milliseconds = self._timeout // timedelta(milliseconds=1)
        raise dist.DistStoreError(
            f"wait timeout after {milliseconds}ms, keys: /{self._options.group_name}/{self._rank}/{peer}\n{hint}"
        )

    def _check_failed(self, expression: str, left: str, right: str) -> NoReturn:
        raise RuntimeError(f"[rank{self._rank}]:Check failed: {expression} ({left} vs. {right}). \n")


def _pairs_closed() -> RuntimeError:
    """Gloo's message for the use of connections that were closed after a timeout."""
    return RuntimeError("Application timeout caused pair closure")


def _check_dtype(dtype: torch.dtype, complex_too: bool = True) -> None:
    """Raises the error of Gloo's collectives for unsupported element types."""
    if dtype not in _DTYPES and not (complex_too and dtype.is_complex):
        raise Unsupported("Invalid scalar type")


def _is_whole(tensor: Tensor) -> bool:
    """Whether the tensor's elements are contiguous in memory, in channels-last order or not."""
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def _check_alike(call: str, tensors: Sequence[Tensor], like: Tensor) -> None:
    for index, tensor in enumerate(tensors):
        if (tensor.dtype, tensor.layout) != (like.dtype, like.layout):
            expected = f"(expected {_options(like)}, got {_options(tensor)})"
            raise RuntimeError(f"ProcessGroupGloo::{call}: invalid tensor type at index {index} {expected}")
        if tensor.shape != like.shape:
            expected = f"(expected {_shape(like)}, got {_shape(tensor)})"
            raise RuntimeError(f"ProcessGroupGloo::{call}: invalid tensor size at index {index} {expected}")


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
