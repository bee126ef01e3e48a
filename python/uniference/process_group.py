"""Owns the process group that a program's `init_process_group` gets: it turns c10d's calls into operations of the engine.

When an operation completes is the engine's business, how its bytes travel `arena`'s, and how elements are combined `reduction`'s.
The base class and its method names are torch 2.15's `torch/csrc/distributed/c10d/py/PyBackend.hpp`.
"""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, Concatenate, NoReturn, ParamSpec

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.distributed.distributed_c10d import Backend as BackendNames
from torch.nn.parallel import DistributedDataParallel

from uniference import gloo, monitored_barrier, sparse
from uniference._charging import uncharged
from uniference._native import Channel
from uniference._site import user_line
from uniference.arena import Arena
from uniference.profiling import Event, begin
from uniference.reduction import Reduction, dtype_name, reduction_name
from uniference.work import (
    Ended,
    Failed,
    Operation,
    Pairs,
    Work,
    connection_closed,
    deliver_earlier,
    picoseconds,
    timed_out,
)

Shape = int | Sequence[int] | tuple[Sequence[int], Sequence[int]]

# What a collective is to the engine, as `Channel.collective` takes it.
_Call = tuple[int, str, str, str | None, int | None, Shape, Sequence[Tensor] | None]

# The defaults of torch 2.15 are no events in virtual time: where nothing else is left to happen, that is a deadlock. NCCL's own is the
# second one; where it is made beside Gloo it gets the first.
_DEFAULT_TIMEOUT, _NCCL_TIMEOUT = timedelta(minutes=30), timedelta(minutes=10)

# Above every tag of a program's, which have 32 bits.
_MONITOR_TAGS = 1 << 40


_P = ParamSpec("_P")


def _failing_as_gloo(
    method: Callable[Concatenate["SimulatedBackend", _P], Work],
) -> Callable[Concatenate["SimulatedBackend", _P], Work]:
    """Of a method whose last argument are its options: what Gloo finds out as it carries an operation out, the wait for it raises."""

    @wraps(method)
    def call(self: "SimulatedBackend", /, *args: _P.args, **kwargs: _P.kwargs) -> Work:
        try:
            return method(self, *args, **kwargs)
        except gloo.Unsupported as error:
            opts: Any = args[-1]
            if not (self._is_gloo and opts.asyncOp):
                raise RuntimeError(*error.args) from None
            return Failed(self.channel, RuntimeError(*error.args))

    return call


class SimulatedBackend(c10d.Backend):
    """One rank's membership in one process group. Ranks and roots are the group's, as c10d passes them."""

    def __init__(
        self,
        channel: Channel,
        arena: Arena,
        name: str,
        ranks: Sequence[int],
        rank: int,
        timeout: timedelta,
        group_name: str,
        members: Sequence[int] = (),
    ) -> None:
        """`ranks` are the members' in the simulation, in order; `members` what the program calls them, where it has renumbered them."""
        super().__init__(rank, len(ranks))
        self.channel = channel
        self._arena = arena
        self._name = name
        self._is_gloo = name == "gloo"
        self._ranks = list(ranks)
        self._rank = rank
        self._size = len(ranks)
        self._timeout = timeout
        self._group = channel.group(ranks)
        self._pid = os.getpid()
        self._is_other_backend = name != os.environ.get("UNIFERENCE_DEFAULT_BACKEND", name)
        self._sequence = 0
        self._barriers = 0
        self._batch: list[Work] | None = None
        self._pairs = Pairs(channel, self._group) if self._is_gloo else None
        self._options = c10d.Backend.Options(name, timeout)
        self._options.global_ranks_in_group = list(members or ranks)
        self._options.group_name = group_name  # type: ignore[assignment]

    # What torch asks about the group

    def getBackendName(self) -> str:
        return self._name

    def name(self) -> str:
        return self._name

    @property
    def options(self) -> c10d.Backend.Options:
        return self._options

    # Each is answered here: what C++ asks of a Python backend it would otherwise ask the Python backend again, for ever.

    @property
    def supports_coalescing(self) -> bool:
        return self._name == "nccl"

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supports_shrinking(self) -> bool:
        return False

    @property
    def supports_reconfigure(self) -> bool:
        return False

    @property
    def supports_window(self) -> bool:
        return False

    @property
    def _supports_time_estimate(self) -> bool:
        return False

    def supports_tensor_alloc(self, device: int) -> bool:  # type: ignore[override]  # torch's stub says a device
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def get_error(self) -> c10d.ErrorType:
        return c10d.ErrorType.SUCCESS

    def eager_connect_single_device(self, device: torch.device | None) -> None:
        pass

    def abort(self) -> None:
        pass

    @uncharged
    def shutdown(self) -> None:
        self.channel.close(self._group)

    # Groups out of this one. Ranks are this group's; `_create` makes a group of global ranks.

    @uncharged
    def split(self, _store: c10d.Store, ranks: list[int], opts: c10d.Backend.Options) -> "SimulatedBackend":
        return self._derived([self._ranks[rank] for rank in ranks], ranks.index(self._rank), opts)

    @uncharged
    def merge(self, store: c10d.Store, opts: c10d.Backend.Options, rank: int, size: int) -> "SimulatedBackend":
        store.set(str(rank), str(self.channel.rank))
        return self._derived([int(store.get(str(member))) for member in range(size)], rank, opts)

    def perform_nocolor_split(self, _device: torch.device) -> None:
        """Takes part in a split without being in any part: nobody waits for that here."""

    def _derived(self, ranks: Sequence[int], rank: int, opts: c10d.Backend.Options) -> "SimulatedBackend":
        return SimulatedBackend(self.channel, self._arena, self._name, ranks, rank, opts._timeout, opts.group_name)

    # Collectives that combine elements

    @uncharged
    @_failing_as_gloo
    def allreduce(self, tensors: list[Tensor], opts: c10d.AllreduceOptions) -> Work:
        if self._is_gloo and tensors[0].layout is torch.sparse_coo:
            return self._sparse_all_reduce(tensors, opts)
        return self._all_reduce(tensors, opts)

    def _sparse_all_reduce(self, tensors: list[Tensor], opts: c10d.AllreduceOptions) -> Work:
        if self._reduction(opts, tensors).name != "sum":
            raise RuntimeError(
                "ProcessGroupGloo::allreduce: unsupported reduction operation "
                "(allreduce of sparse tensors only works with ReduceOp.SUM)"
            )
        events = self._event("sparse_all_reduce", tensors)

        def gather(lengths: Sequence[int], mine: Tensor) -> Sequence[Tensor]:
            outputs = [mine.new_empty(length) for length in lengths]
            self._collective("all_gather", opts, _blocks(outputs), [mine], outputs, title="").wait()
            return outputs

        sparse.all_reduce(tensors, self._size, gather)
        for event in events:
            event.end()
        return Ended(self.channel, tensors)

    @uncharged
    @_failing_as_gloo
    def allreduce_coalesced(self, tensors: list[Tensor], opts: c10d.AllreduceCoalescedOptions) -> Work:
        if self._is_gloo:
            gloo.check_written(tensors)
        return self._all_reduce(tensors, opts)

    def _all_reduce(self, tensors: list[Tensor], opts: c10d.AllreduceOptions) -> Work:
        reduction = self._reduction(opts, tensors)
        return self._collective("all_reduce", opts, _elements(tensors), tensors, tensors, reduction=reduction)

    @uncharged
    @_failing_as_gloo
    def reduce(self, tensors: list[Tensor], opts: c10d.ReduceOptions) -> Work:
        root = self._root("reduce", opts.rootRank)
        self._check_complex("reduce", opts, tensors)
        outputs = tensors if root == self._rank else []
        reduction = self._reduction(opts, tensors)
        return self._collective("reduce", opts, _elements(tensors), tensors, outputs, reduction=reduction, root=root)

    @uncharged
    @_failing_as_gloo
    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: c10d.ReduceScatterOptions
    ) -> Work:
        return self._reduce_scatter(outputs[0], inputs[0], opts)

    def _reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], opts: c10d.ReduceScatterOptions) -> Work:
        self._check_complex("all_reduce", opts, [output])
        if self._is_gloo:
            gloo.check_reduce_scatter(output, inputs, self._rank, self._size)
        self._check_list("reduce_scatter", inputs)
        reduction = self._reduction(opts, [output])
        # Gloo reduces a list in another order than one tensor, also if its blocks are equal.
        shape = [tensor.numel() for tensor in inputs] if self._is_gloo else _blocks(inputs)
        return self._collective("reduce_scatter", opts, shape, inputs, [output], reduction=reduction)

    @uncharged
    @_failing_as_gloo
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: c10d.ReduceScatterOptions) -> Work:
        return self._reduce_scatter_single(output, input, opts)

    def _reduce_scatter_single(self, output: Tensor, input: Tensor, opts: c10d.ReduceScatterOptions) -> Work:
        self._check_complex("all_reduce", opts, [output])
        if self._is_gloo:
            gloo.check_reduce_scatter_single(output, input, self._rank, self._size)
        if output.numel() * self._size != input.numel():
            raise ValueError("input tensor must be the same size as output size times world size")
        reduction = self._reduction(opts, [output])
        return self._collective("reduce_scatter", opts, output.numel(), [input], [output], reduction=reduction)

    @uncharged
    @_failing_as_gloo
    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: c10d.ReduceScatterOptions
    ) -> Work:
        opts.asyncOp = True  # side by side: whoever asks for all waits for all
        pairs = zip(outputs, inputs, strict=True)
        return self._merged("reduce_scatter", [self._reduce_scatter_single(out, put, opts) for out, put in pairs])

    # Collectives that move elements

    @uncharged
    @_failing_as_gloo
    def broadcast(self, tensors: list[Tensor], opts: c10d.BroadcastOptions) -> Work:
        root = self._root("broadcast", opts.rootRank)
        inputs = tensors if root == self._rank else None
        return self._collective("broadcast", opts, _elements(tensors), inputs, tensors, root=root)

    @uncharged
    @_failing_as_gloo
    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: c10d.AllgatherOptions) -> Work:
        return self._all_gather(outputs[0], inputs[0], opts)

    def _all_gather(
        self, outputs: Sequence[Tensor], input: Tensor, opts: c10d.AllgatherOptions, title: str | None = None
    ) -> Work:
        if self._is_gloo:
            gloo.check_all_gather(outputs, input, self._size)
        self._check_list("all_gather", outputs)
        return self._collective("all_gather", opts, _blocks(outputs), [input], outputs, title=title)

    @uncharged
    @_failing_as_gloo
    def all_gather_single(self, output: Tensor, input: Tensor, opts: c10d.AllgatherOptions) -> Work:
        return self._all_gather_single(output, input, opts)

    def _all_gather_single(self, output: Tensor, input: Tensor, opts: c10d.AllgatherOptions) -> Work:
        if self._is_gloo and not self._gathers(output, input):
            gloo.check_all_gather(output.chunk(self._size), input, self._size)
        if input.numel() * self._size != output.numel():
            raise ValueError("output tensor size must be equal to world_size times input tensor size")
        return self._collective("all_gather", opts, input.numel(), [input], [output])

    def _gathers(self, output: Tensor, input: Tensor) -> bool:
        """Whether the output's rows are those of as many inputs as the group has members."""
        rows = (input.size(0) * self._size, *input.shape[1:]) if input.dim() else None
        return output.shape == rows and output.dtype == input.dtype

    @uncharged
    @_failing_as_gloo
    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: c10d.AllgatherOptions
    ) -> Work:
        if self._is_gloo and not all(map(self._gathers, outputs, inputs)):
            parts = zip(*(output.chunk(self._size) for output in outputs), strict=False)
            gloo.check_all_gather_coalesced(list(parts), inputs, self._size)
        opts.asyncOp = True
        pairs = zip(outputs, inputs, strict=True)
        return self._merged("all_gather", [self._all_gather_single(out, put, opts) for out, put in pairs])

    @uncharged
    @_failing_as_gloo
    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: c10d.AllgatherOptions
    ) -> Work:
        # outputs[rank][i] receives inputs[i] of that rank.
        if self._is_gloo:
            gloo.check_all_gather_coalesced(outputs, inputs, self._size)
        opts.asyncOp = True
        pairs = zip(zip(*outputs, strict=True), inputs, strict=True)
        events = self._event("all_gather", inputs)
        return self._merged("all_gather", [self._all_gather(out, put, opts, title="") for out, put in pairs], events)

    @uncharged
    @_failing_as_gloo
    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: c10d.GatherOptions) -> Work:
        root = self._root("gather", opts.rootRank)
        received = outputs[0] if root == self._rank else []
        if root == self._rank:
            if self._is_gloo:
                gloo.check_blocks("gather", "output", received, inputs[0], self._size)
            self._check_list("gather", received)
        return self._collective("gather", opts, inputs[0].numel(), inputs, received, root=root)

    @uncharged
    @_failing_as_gloo
    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: c10d.ScatterOptions) -> Work:
        root = self._root("scatter", opts.rootRank)
        sent = inputs[0] if root == self._rank else None
        if sent is not None:
            if self._is_gloo:
                gloo.check_blocks("scatter", "input", sent, outputs[0], self._size)
            self._check_list("scatter", sent)
        return self._collective("scatter", opts, outputs[0].numel(), sent, outputs, root=root)

    @uncharged
    @_failing_as_gloo
    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: c10d.AllToAllOptions) -> Work:
        if self._is_gloo:
            gloo.check_all_to_all(outputs, inputs, self._size)
        for tensors in (inputs, outputs):
            self._check_list("all_to_all", tensors)
        shape = ([t.numel() for t in inputs], [t.numel() for t in outputs])
        return self._collective("all_to_all", opts, shape, inputs, outputs)

    @uncharged
    @_failing_as_gloo
    def all_to_all_single(
        self, output: Tensor, input: Tensor, received: list[int], sent: list[int], opts: c10d.AllToAllOptions
    ) -> Work:
        if self._is_gloo:
            gloo.check_all_to_all_single(output, input, received, sent)
        shape = (self._split(input, sent), self._split(output, received))
        return self._collective("all_to_all", opts, shape, [input], [output])

    @uncharged
    def barrier(self, opts: c10d.BarrierOptions) -> Work:
        return self._collective("barrier", opts, 0, None, [])

    @uncharged
    def monitored_barrier(self, opts: c10d.BarrierOptions, wait_all_ranks: bool = False) -> None:
        self._check(())
        timeout = opts.timeout if opts.timeout >= timedelta(0) else self._timeout
        tag = _MONITOR_TAGS + 2 * self._barriers
        self._barriers += 1
        monitored_barrier.run(self, tag, tag + 1, timeout, wait_all_ranks)

    # Point to point

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

    @uncharged
    def send(self, tensors: list[Tensor], to: int, tag: int) -> Work:
        self._check_message(tensors, to, tag)
        return self._send(tensors, to, tag, self._event(self._title("send", f"->{to}"), tensors))

    @uncharged
    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Work:
        self._check_message(tensors, source, tag)
        return self._receive(tensors, source, tag, self._event(self._title("recv", f"<-{source}"), tensors))

    @uncharged
    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        self._check_message(tensors, None, tag)
        return self._receive(tensors, None, tag, self._event("recvAnySource", tensors))

    def _title(self, kind: str, peer: str) -> str:
        return f"{kind} {self._rank}{peer}" if self._name == "nccl" else kind

    def _send(self, tensors: Sequence[Tensor], to: int, tag: int, events: Sequence[Event]) -> Work:
        handle = self.channel.send(self._group, to, tag, tensors, user_line())
        return self._issued("send", [Operation(self._arena, handle, [])], events)

    def _receive(self, tensors: list[Tensor], source: int | None, tag: int, events: Sequence[Event]) -> Work:
        handle = self.channel.recv(self._group, source, tag, _nbytes(tensors), user_line())
        return self._issued("recv", [Operation(self._arena, handle, tensors)], events)

    # Batches: everything issued between the two calls is one Work

    def start_coalescing(self) -> None:
        self._check_coalescing("startCoalescing")
        self._batch = []

    def end_coalescing(self) -> Work:
        self._check_coalescing("endCoalescing")
        works, self._batch = self._batch or [], None
        return self._merged("batch", works)

    # How a call reaches the engine

    def _collective(
        self,
        kind: str,
        opts: Any,
        shape: Shape,
        inputs: Sequence[Tensor] | None,
        outputs: Sequence[Tensor],
        *,
        reduction: Reduction | None = None,
        root: int | None = None,
        title: str | None = None,
    ) -> Work:
        self._check(outputs)
        if inputs is not None and inputs is not outputs:
            self._check(inputs)
        events = self._event(kind if title is None else title, outputs if kind == "broadcast" else inputs or ())
        self._sequence += 1
        if self._is_gloo and (carried := inputs or outputs):
            # Its gather does not take complex numbers for pairs of real ones, nor does `all_to_all_single`.
            gloo.check_dtype(carried[0].dtype, complex_too=kind != "gather")
        name = reduction.name if reduction is not None else None
        sent = reduction.prepare(inputs) if reduction is not None and inputs is not None else inputs
        call = (self._group, kind, _dtype_name(inputs or outputs), name, root, shape, sent)
        is_native = reduction is None or reduction.is_native
        if not opts.asyncOp and self._batch is None and is_native and not events:
            return self._run(call, outputs, reduction, self._limit(opts.timeout))
        handle = self.channel.collective(*call, user_line())
        operation = Operation(self._arena, handle, outputs, reduction, self._size)
        return self._issued(kind, [operation], events, opts.timeout)

    def _run(
        self, call: _Call, outputs: Sequence[Tensor], reduction: Reduction | None, limit: timedelta | None
    ) -> Work:
        """For a caller that waits anyway, and for a program that looks at nothing else meanwhile: one way there and back."""
        _, kind, _, _, _, _, sent = call
        ticks = picoseconds(limit) if limit is not None else None
        in_time, closed_by = self.channel.run(*call, None if sent is outputs else outputs, ticks, user_line())
        if not in_time:
            assert limit is not None
            raise timed_out(kind, self._pairs, limit)
        if closed_by is not None:
            raise connection_closed(closed_by, gloo=self._pairs is not None)
        if reduction is not None:
            reduction.finish(outputs, self._size)
        deliver_earlier(self.channel)
        return Ended(self.channel, outputs)

    def _event(self, title: str, inputs: Sequence[Tensor]) -> Sequence[Event]:
        return begin(self._name, title, inputs)

    def _issued(
        self, kind: str, operations: list[Operation], events: Sequence[Event], timeout: timedelta | None = None
    ) -> Work:
        work = Work(self.channel, kind, operations, self._limit(timeout), events, self._pairs)
        if self._batch is not None:
            self._batch.append(work)
        elif kind != "recv":
            work.track()
        return work

    def _merged(self, name: str, works: Sequence[Work], events: Sequence[Event] = ()) -> Work:
        operations = [operation for work in works for operation in work.operations]
        all_events = [*events, *(event for work in works for event in work.events)]
        merged = Work(self.channel, name, operations, self._limit(None), all_events, self._pairs)
        for work in works:
            work.forget()
        merged.track()
        return merged

    def _reduction(self, opts: Any, tensors: Sequence[Tensor]) -> Reduction:
        return Reduction.of(opts.reduceOp, tensors[0].dtype, self._name)

    def _limit(self, timeout: timedelta | None) -> timedelta | None:
        """The time-out the program itself has asked for. torch marks an unset one by a negative value."""
        chosen = self._timeout if timeout is None or timeout.days < 0 else timeout
        is_default = chosen == _DEFAULT_TIMEOUT or (self._name == "nccl" and chosen == _NCCL_TIMEOUT)
        return None if is_default else chosen

    def _root(self, name: str, root: int) -> int:
        if not 0 <= root < self._size:
            raise RuntimeError(f"ProcessGroup{self._name.capitalize()}::{name}: invalid root rank: {root}")
        return root

    def _split(self, tensor: Tensor, sizes: Sequence[int]) -> list[int]:
        """Elements for, or from, each rank. `sizes` counts rows; empty: as many for each."""
        rows = tensor.size(0) if tensor.dim() else 1
        if not sizes:
            if rows % self._size:
                raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
            return [tensor.numel() // self._size] * self._size
        if len(sizes) != self._size:
            raise RuntimeError("Number of tensor splits not equal to group size")
        if min(sizes) < 0:
            raise RuntimeError("Split sizes must be non-negative")
        if sum(sizes) != rows:
            raise RuntimeError("Split sizes doesn't match total dim 0 size")
        return [size * (tensor.numel() // rows if rows else 0) for size in sizes]

    def _check_complex(self, call: str, opts: Any, tensors: Sequence[Tensor]) -> None:
        if self._is_gloo:
            gloo.check_complex(call, reduction_name(opts.reduceOp), tensors[0].dtype)

    def _check_list(self, call: str, tensors: Sequence[Tensor]) -> None:
        if len(tensors) != self._size:
            raise ValueError(
                f"{call}: a list of {len(tensors)} tensors in a group of {self._size} ranks\n"
                "hint: the list has one tensor for each rank of the group"
            )

    def _check_message(self, tensors: Sequence[Tensor], peer: int | None, tag: int) -> None:
        self._check(tensors)
        if tag < 0:
            raise RuntimeError("Tag must be nonnegative")
        if self._is_gloo:
            gloo.check_message(tensors)
        if peer is None or 0 <= peer < self._size:
            if self._is_gloo and peer == self._rank:
                raise RuntimeError("state_ >= CONNECTED. 1 vs 4. Pair is not connected ")
            return
        hint = f"hint: the group has the ranks 0 to {self._size - 1}"
        if not self._is_gloo:
            raise ValueError(f"there is no rank {peer} in a group of {self._size} ranks\n{hint}")
        # Gloo looks for the peer's address until its time is up.
        if (limit := self._limit(None)) is not None:
            self.channel.sleep(picoseconds(limit))
        milliseconds = self._timeout // timedelta(milliseconds=1)
        raise dist.DistStoreError(
            f"wait timeout after {milliseconds}ms, keys: /{self._options.group_name}/{self._rank}/{peer}\n{hint}"
        )

    def _check_coalescing(self, method: str) -> None:
        if not self.supports_coalescing:
            raise RuntimeError(f"Backend {self._name} does not implement {method}")

    def _check(self, tensors: Sequence[Tensor]) -> None:
        # Here and not where the group is made: init_process_group() without a name makes one of each kind.
        if self._is_other_backend:
            raise RuntimeError(
                f'the program asks for the backend "{self._name}", which this run does not simulate\n'
                "hint: choose one with --backend nccl, --backend gloo or --backend ideal"
            )
        if os.getpid() != self._pid:
            raise RuntimeError(
                "a process that a rank has forked cannot communicate\n"
                "hint: call torch.distributed from the process that `uniference run` has started"
            )
        if self._pairs is not None:
            self._pairs.check()
        for tensor in tensors:
            if not (tensor.is_cpu or tensor.is_cuda) or tensor.layout is not torch.strided:
                raise RuntimeError(
                    f"a {tensor.layout} tensor on {tensor.device} cannot be communicated: only dense tensors on CPU or GPU can\n"
                    "hint: move it with `.cpu()`, or `.to_dense()`"
                )


def _elements(tensors: Sequence[Tensor]) -> int:
    return tensors[0].numel() if len(tensors) == 1 else sum(tensor.numel() for tensor in tensors)


def _nbytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _blocks(tensors: Sequence[Tensor]) -> Shape:
    """The shape of a list with one tensor a rank."""
    sizes = [tensor.numel() for tensor in tensors]
    return sizes[0] if len(set(sizes)) == 1 else sizes


def _dtype_name(tensors: Sequence[Tensor]) -> str:
    return dtype_name(tensors[0].dtype) if tensors else "uint8"


def _name_backend_in_log() -> None:
    """DistributedDataParallel's log takes the backend's fields from the group's type, which is CUSTOM here."""
    original: Any = DistributedDataParallel._get_ddp_logging_data

    def logging_data(self: DistributedDataParallel) -> dict[str, Any]:
        name = dist.get_backend(self.process_group)
        return {**original(self), "backend_name": name, **(_gloo_log() if name == "gloo" else {})}

    DistributedDataParallel._get_ddp_logging_data = logging_data  # type: ignore[method-assign]


def _split_among_members() -> None:
    """C++ asks a Python backend for its part of a split also where it is in none, and takes no None for an answer."""
    original: Any = dist.ProcessGroup.split_group

    def split_group(self: dist.ProcessGroup, ranks: list[int], *args: Any, **kwargs: Any) -> dist.ProcessGroup | None:
        return original(self, ranks, *args, **kwargs) if self.rank() in ranks else None

    dist.ProcessGroup.split_group = split_group  # type: ignore[method-assign,assignment]


def _gloo_log() -> dict[str, Any]:
    """As torch/csrc/distributed/c10d/logger.cpp writes it, with ProcessGroupGloo's default number of threads."""
    variables = ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT")
    return {"gloo_num_threads": 2} | {name.lower(): os.environ.get(name, "N/A") for name in variables}


class Backends:
    """Makes this process's groups, in the place of torch's own backends.

    Carries `gloo` and `nccl`; any other name is refused with a message that says so.
    """

    CARRIED = ("gloo", "nccl")
    REFUSED = ("mpi", "ucc", "xccl")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._arena = Arena(channel)
        # C++ does not keep a Python backend alive.
        self._alive: list[SimulatedBackend] = []
        # Which rank of the simulation each rank of the program's world is: it may have made a new world without some of them.
        self._world = list(range(channel.world_size))

    def install(self) -> None:
        """Registers with torch."""
        for name in self.CARRIED + self.REFUSED:
            BackendNames.register_backend(
                name,
                self._creator(name),
                extended_api=True,
                devices=["cpu", "cuda"],
                # The type GLOO would have DistributedDataParallel's logger cast the group to ProcessGroupGloo.
                _backend_type=dist.ProcessGroup.BackendType.CUSTOM,
            )
        _name_backend_in_log()
        _split_among_members()

    def _creator(self, name: str) -> Callable[[Any, Any], SimulatedBackend]:
        def create(opts: Any, _backend_options: Any) -> SimulatedBackend:
            if name in self.REFUSED:
                raise RuntimeError(
                    f'the backend "{name}" cannot be simulated\n'
                    'hint: pass "gloo" or "nccl" to init_process_group, and choose the simulated backend with --backend'
                )
            return self._create(name, opts)

        return create

    @uncharged
    def _create(self, name: str, opts: Any) -> SimulatedBackend:
        if opts.enable_reconfigure:
            raise RuntimeError(
                "a process group whose members change (enable_reconfigure) cannot be simulated\n"
                "hint: make a new group of the members that go on, with new_group or split_group"
            )
        members = list(opts.global_ranks_in_group)
        if not members:
            self._meet(opts)
        ranks = [self._world[member] for member in members] or self._world
        backend = SimulatedBackend(
            self.channel, self._arena, name, ranks, opts.group_rank, opts.timeout, opts.group_id, members
        )
        self._alive.append(backend)
        return backend

    def _meet(self, opts: Any) -> None:
        """Finds out who the members of a new world are. Ranks that go on without the others number themselves anew."""
        mine, size = (self.channel.rank, opts.group_rank), opts.group_size
        if size == self.channel.world_size and mine[0] == mine[1]:
            self._world = list(range(size))
            return
        if not 0 <= opts.group_rank < size <= self.channel.world_size:
            self._refuse(opts)
        # As Gloo's members do, they meet through the store that the program gives them.
        key = f"uniference/{opts.group_id}"
        opts.store.set(f"{key}/{opts.group_rank}", str(self.channel.rank))
        self._world = [int(opts.store.get(f"{key}/{member}")) for member in range(size)]
        if self._world[opts.group_rank] != self.channel.rank:
            self._refuse(opts)

    def _refuse(self, opts: Any) -> NoReturn:
        raise RuntimeError(
            f"rank {self.channel.rank} of {self.channel.world_size} cannot be rank {opts.group_rank} of {opts.group_size}\n"
            "hint: take rank and world_size from the environment variables RANK and WORLD_SIZE"
        )
