"""Owns a rank's membership in a process group: the translation of c10d's calls to operations of the engine, common to
all libraries.

The backend's subclass has the behaviour of one library (`gloo`, `nccl`). The engine decides when an operation
completes, `arena` holds its bytes, and `reduction` combines elements. The base class and its method names are those of
torch's `torch/csrc/distributed/c10d/py/PyBackend.hpp`.
"""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar, NoReturn, Self

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from uniference._native import Channel
from uniference.backends.arena import Arena
from uniference.backends.connections import Connections
from uniference.backends.profiling import Event, begin
from uniference.backends.reduction import Reduction, Unsupported, dtype_name, reduction_name
from uniference.backends.work import Ended, Operation, Work, deliver_earlier
from uniference.program.lines import user_line
from uniference.rank import capture, values
from uniference.rank.charging import uncharged
from uniference.rank.clock import picoseconds

Shape = int | Sequence[int] | tuple[Sequence[int], Sequence[int]]

# Arguments of `Channel.collective` for a collective.
_Call = tuple[int, str, str, str | None, int | None, Shape, Sequence[Tensor] | None]


def _call(method: str) -> Callable[..., Work]:
    """The method that torch calls for a collective, carried out by `method`. Its last argument holds the call's
    options."""

    def call(self: "SimulatedBackend", /, *args: Any) -> Work:
        channel = self.channel
        channel.enter()
        try:
            work: Work = getattr(self, method)(*args)
            return work
        except Unsupported as error:
            return self._failed(RuntimeError(*error.args), args[-1])
        finally:
            channel.leave()

    checked: Any = call
    checked.is_uncharged = True
    return call


class SimulatedBackend(c10d.Backend):
    """One rank's membership in one process group. Ranks and roots are the group's, as c10d passes them."""

    NAME: ClassVar[str]
    """Name of the library in programs."""

    CONNECTIONS: ClassVar[type[Connections]]
    """Class of a group's connections."""

    DEFAULT_TIMEOUTS: ClassVar[tuple[timedelta, ...]]
    """Torch's default timeouts for groups of this library. They do not expire in virtual time: if no other event is
    left, the run ends with a deadlock."""

    KEEPS_FIRST: ClassVar[bool] = False
    """Whether the library's minimum and maximum keep the first operand if neither is less than the other (zeros of both
    signs, NaN)."""

    WAITS_FOR_RECEIVES: ClassVar[bool] = False
    """Whether every message of the library, even a short one, is sent only once its receive is posted."""

    # Whether the run has warned that a backend's operations are costed as NCCL's.
    _has_warned: ClassVar[bool] = False

    # Reductions without a factor, by kind and type, that have passed the checks.
    _checked_reductions: ClassVar[dict[tuple[int, torch.dtype], Reduction]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._checked_reductions = {}

    def __init__(
        self,
        channel: Channel,
        arena: Arena,
        ranks: Sequence[int],
        rank: int,
        timeout: timedelta,
        group_name: str,
        members: Sequence[int] = (),
        *,
        is_beside_nccl: bool = False,
    ) -> None:
        """`ranks` are the members' ranks in the simulation, in order; `members` are their ranks in the program, if it
        has renumbered them.

        With `is_beside_nccl` NCCL carries out the group's operations on GPUs, and this backend the operations on CPUs.
        """
        super().__init__(rank, len(ranks))
        self.channel = channel
        self._arena = arena
        self._ranks = list(ranks)
        self._rank = rank
        self._size = len(ranks)
        self._timeout = timeout
        rendezvous = is_beside_nccl and self.WAITS_FOR_RECEIVES
        self._group = channel.group(ranks, nccl=self.NAME == "nccl", rendezvous=rendezvous)
        self._pid = os.getpid()
        self.is_beside_nccl = is_beside_nccl
        self._is_other_backend = os.environ.get("UNIFERENCE_DEFAULT_BACKEND", self.NAME) != self.NAME
        self._sequence = 0
        # Works issued in the current batch, since `start_coalescing`; None outside of a batch.
        self._batch: list[Work] | None = None
        self._connections = self.CONNECTIONS(channel, self._group, rank)
        self._options = c10d.Backend.Options(self.NAME, timeout)
        self._options.global_ranks_in_group = list(members or ranks)
        self._options.group_name = group_name  # type: ignore[assignment]

    # Attributes and methods that a library's subclass defines, in addition to the calls that it overrides

    @classmethod
    def ddp_log(cls) -> dict[str, Any]:
        """Fields of DistributedDataParallel's log for a group of this library."""
        return {}

    def _check_reduction(self, name: str, dtype: torch.dtype) -> None:
        """Raises if the library has no reduction `name` of such elements, although torch has."""

    def _check_elements(self, kind: str, dtype: torch.dtype) -> None:
        """Raises if a collective of this kind does not support such elements."""

    def _failed(self, error: RuntimeError, opts: Any) -> Work:
        """Return value of a call whose operation the library cannot carry out; the base class raises the error at
        once."""
        raise error from None

    def _title(self, kind: str, peer: str) -> str:
        """Title of a message in a profiler."""
        return kind

    def _refuse_peer(self, peer: int, hint: str) -> NoReturn:
        """Raises for a message to or from a rank outside of the group."""
        raise ValueError(f"rank {peer} is out of range for a group of size {self._size}\n{hint}")

    # Values that `native` hands to the C++ backend in front of this one

    @property
    def group(self) -> int:
        """The channel's number of the group."""
        return self._group

    @property
    def timeout(self) -> timedelta:
        """Timeout of operations that have no timeout of their own."""
        return self._timeout

    @property
    def is_simulated(self) -> bool:
        """Whether this run simulates the library."""
        return not self._is_other_backend

    # Values that torch asks about the group

    def getBackendName(self) -> str:
        return self.NAME

    def name(self) -> str:
        return self.NAME

    @property
    def options(self) -> c10d.Backend.Options:
        return self._options

    # All of these methods are overridden, because those of the C++ base class would call the Python backend again
    # without end.

    @property
    def supports_coalescing(self) -> bool:
        return False

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

    # Groups derived from this one. Ranks are this group's; `_derived` makes a group of ranks of the simulation.

    @uncharged
    def split(self, _store: c10d.Store, ranks: list[int], opts: c10d.Backend.Options) -> Self:
        return self._derived([self._ranks[rank] for rank in ranks], ranks.index(self._rank), opts)

    @uncharged
    def merge(self, store: c10d.Store, opts: c10d.Backend.Options, rank: int, size: int) -> Self:
        store.set(str(rank), str(self.channel.rank))
        return self._derived([int(store.get(str(member))) for member in range(size)], rank, opts)

    def perform_nocolor_split(self, _device: torch.device) -> None:
        """Joins a split in which this rank is in no part: a no-op, because no rank waits for it."""

    def _derived(self, ranks: Sequence[int], rank: int, opts: c10d.Backend.Options) -> Self:
        return type(self)(self.channel, self._arena, ranks, rank, opts._timeout, opts.group_name)

    # Collectives that combine elements

    def _all_reduce(self, tensors: list[Tensor], opts: c10d.AllreduceOptions) -> Work:
        reduction = self._reduction(opts, tensors)
        return self._collective("all_reduce", opts, _elements(tensors), tensors, tensors, reduction=reduction)

    def _all_reduce_coalesced(self, tensors: list[Tensor], opts: c10d.AllreduceCoalescedOptions) -> Work:
        reduction = self._reduction(opts, tensors)
        return self._collective("all_reduce", opts, _elements(tensors), tensors, tensors, reduction=reduction)

    def _reduce(self, tensors: list[Tensor], opts: c10d.ReduceOptions) -> Work:
        root = self._root("reduce", opts.rootRank)
        outputs = tensors if root == self._rank else []
        reduction = self._reduction(opts, tensors)
        return self._collective("reduce", opts, _elements(tensors), tensors, outputs, reduction=reduction, root=root)

    def _reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: c10d.ReduceScatterOptions
    ) -> Work:
        self._check_list("reduce_scatter", inputs[0])
        reduction = self._reduction(opts, outputs)
        return self._collective("reduce_scatter", opts, blocks(inputs[0]), inputs[0], outputs[:1], reduction=reduction)

    def _reduce_scatter_single(self, output: Tensor, input: Tensor, opts: c10d.ReduceScatterOptions) -> Work:
        if output.numel() * self._size != input.numel():
            raise ValueError("input tensor must be the same size as output size times world size")
        reduction = self._reduction(opts, [output])
        return self._collective("reduce_scatter", opts, output.numel(), [input], [output], reduction=reduction)

    def _reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: c10d.ReduceScatterOptions
    ) -> Work:
        opts.asyncOp = True  # the reductions run concurrently; the merged work waits for all
        pairs = zip(outputs, inputs, strict=True)
        return self._merged("reduce_scatter", [self._reduce_scatter_single(out, put, opts) for out, put in pairs])

    # Collectives that move elements

    def _broadcast(self, tensors: list[Tensor], opts: c10d.BroadcastOptions) -> Work:
        root = self._root("broadcast", opts.rootRank)
        inputs = tensors if root == self._rank else None
        return self._collective("broadcast", opts, _elements(tensors), inputs, tensors, root=root)

    def _all_gather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: c10d.AllgatherOptions, title: str | None = None
    ) -> Work:
        self._check_list("all_gather", outputs[0])
        return self._collective("all_gather", opts, blocks(outputs[0]), inputs[:1], outputs[0], title=title)

    def _all_gather_single(self, output: Tensor, input: Tensor, opts: c10d.AllgatherOptions) -> Work:
        if input.numel() * self._size != output.numel():
            raise ValueError("output tensor size must be equal to world_size times input tensor size")
        return self._collective("all_gather", opts, input.numel(), [input], [output])

    def _all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: c10d.AllgatherOptions
    ) -> Work:
        opts.asyncOp = True
        pairs = zip(outputs, inputs, strict=True)
        return self._merged("all_gather", [self._all_gather_single(out, put, opts) for out, put in pairs])

    def _all_gather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: c10d.AllgatherOptions
    ) -> Work:
        # outputs[rank][i] receives inputs[i] of that rank.
        opts.asyncOp = True
        pairs = zip(zip(*outputs, strict=True), inputs, strict=True)
        events = self._event("all_gather", inputs)
        works = [self._all_gather([list(out)], [put], opts, title="") for out, put in pairs]
        return self._merged("all_gather", works, events)

    def _gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: c10d.GatherOptions) -> Work:
        root = self._root("gather", opts.rootRank)
        received = outputs[0] if root == self._rank else []
        if root == self._rank:
            self._check_list("gather", received)
        return self._collective("gather", opts, inputs[0].numel(), inputs, received, root=root)

    def _scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: c10d.ScatterOptions) -> Work:
        root = self._root("scatter", opts.rootRank)
        sent = inputs[0] if root == self._rank else None
        if sent is not None:
            self._check_list("scatter", sent)
        return self._collective("scatter", opts, outputs[0].numel(), sent, outputs, root=root)

    def _all_to_all(self, outputs: list[Tensor], inputs: list[Tensor], opts: c10d.AllToAllOptions) -> Work:
        for tensors in (inputs, outputs):
            self._check_list("all_to_all", tensors)
        shape = ([t.numel() for t in inputs], [t.numel() for t in outputs])
        return self._collective("all_to_all", opts, shape, inputs, outputs)

    def _all_to_all_single(
        self, output: Tensor, input: Tensor, received: list[int], sent: list[int], opts: c10d.AllToAllOptions
    ) -> Work:
        shape = (self._split(input, sent), self._split(output, received))
        return self._collective("all_to_all", opts, shape, [input], [output])

    def _barrier(self, opts: c10d.BarrierOptions) -> Work:
        return self._collective("barrier", opts, 0, None, [])

    def monitored_barrier(self, opts: c10d.BarrierOptions, wait_all_ranks: bool = False) -> None:
        raise RuntimeError(f"Backend {self.NAME} does not support monitoredBarrier")

    # Point to point

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

    def _send(self, tensors: Sequence[Tensor], to: int, tag: int, events: Sequence[Event]) -> Work:
        has_values = not values.are_absent(tensors)
        capture.note_call(self.channel, tensors, ())
        handle = self.channel.send(self._group, to, tag, tensors, has_values, user_line())
        return self._issued("send", [Operation(self._arena, handle, [])], events)

    def _receive(self, tensors: list[Tensor], source: int | None, tag: int, events: Sequence[Event]) -> Work:
        nbytes = sum(tensor.nbytes for tensor in tensors)
        capture.note_call(self.channel, (), tensors)
        handle = self.channel.recv(self._group, source, tag, nbytes, user_line())
        return self._issued("recv", [Operation(self._arena, handle, tensors)], events)

    def _check_message(self, tensors: Sequence[Tensor], peer: int | None, tag: int) -> None:
        self._check(tensors)
        if tag < 0:
            raise RuntimeError("Tag must be nonnegative")
        if peer is not None and not 0 <= peer < self._size:
            self._refuse_peer(peer, f"hint: the group has the ranks 0 to {self._size - 1}")

    # Batches: all operations issued between the two calls form one Work, if the library supports it

    def start_coalescing(self) -> None:
        raise RuntimeError(f"Backend {self.NAME} does not implement startCoalescing")

    def end_coalescing(self) -> Work:
        raise RuntimeError(f"Backend {self.NAME} does not implement endCoalescing")

    # Passing a call to the engine

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
        carried = inputs or outputs
        if carried:
            self._check_elements(kind, carried[0].dtype)
        capture.note_call(self.channel, inputs or (), outputs)
        name = reduction.name if reduction is not None else None
        if inputs is not None and values.are_absent(inputs):
            inputs = None
        sent = reduction.prepare(inputs) if reduction is not None and inputs is not None else inputs
        dtype = dtype_name(carried[0].dtype) if carried else "uint8"
        call = (self._group, kind, dtype, name, root, shape, sent)
        is_native = reduction is None or reduction.is_native
        if not opts.asyncOp and self._batch is None and is_native and not events:
            return self._run(call, outputs, reduction, self._limit(opts.timeout))
        handle = self.channel.collective(*call, user_line())
        operation = Operation(self._arena, handle, outputs, reduction, self._size)
        return self._issued(kind, [operation], events, opts.timeout)

    def _run(
        self, call: _Call, outputs: Sequence[Tensor], reduction: Reduction | None, limit: timedelta | None
    ) -> Work:
        """Issues, waits for and delivers an operation in one round trip to the driver. Only for callers that wait at
        once, in programs without another operation in flight."""
        _, kind, _, _, _, _, sent = call
        ticks = picoseconds(limit) if limit is not None else None
        in_place = sent is outputs
        in_time, closed_by, lacks_values = self.channel.run(*call, None if in_place else outputs, ticks, user_line())
        if not in_time:
            assert limit is not None
            raise self._connections.timed_out(kind, limit)
        if closed_by is not None:
            raise self._connections.closed_by(closed_by)
        if lacks_values:
            values.mark_uncomputed(outputs)
        elif reduction is not None:
            reduction.finish(outputs, self._size)
        deliver_earlier(self.channel)
        return Ended(self.channel, outputs)

    def _event(self, title: str, inputs: Sequence[Tensor]) -> Sequence[Event]:
        return begin(self.NAME, title, inputs)

    def _issued(
        self, kind: str, operations: list[Operation], events: Sequence[Event], timeout: timedelta | None = None
    ) -> Work:
        work = Work(self.channel, kind, operations, self._limit(timeout), self._connections, events)
        if self._batch is not None:
            self._batch.append(work)
        elif kind != "recv":
            work.track()
        return work

    def _merged(self, name: str, works: Sequence[Work], events: Sequence[Event] = ()) -> Work:
        operations = [operation for work in works for operation in work.operations]
        all_events = [*events, *(event for work in works for event in work.events)]
        merged = Work(self.channel, name, operations, self._limit(None), self._connections, all_events)
        for work in works:
            work.forget()
        merged.track()
        return merged

    def _reduction(self, opts: Any, tensors: Sequence[Tensor]) -> Reduction:
        """The reduction that a call requests; the library may refuse it."""
        op, dtype = opts.reduceOp, tensors[0].dtype
        # A call carries either a ReduceOp or a bare RedOpType; only the former has PREMUL_SUM's factor.
        kind = getattr(op, "op", op).value
        known = self._checked_reductions.get((kind, dtype))
        if known is None:
            name = reduction_name(op)
            self._check_reduction(name, dtype)
            known = Reduction(name, op.factor if name == "premul_sum" else None, dtype, self.KEEPS_FIRST)
            if name != "premul_sum":
                self._checked_reductions[kind, dtype] = known
        return known

    def _limit(self, timeout: timedelta | None) -> timedelta | None:
        """The timeout that the program has set. A negative value is torch's mark for an unset timeout."""
        chosen = self._timeout if timeout is None or timeout.days < 0 else timeout
        return None if chosen in self.DEFAULT_TIMEOUTS else chosen

    def _root(self, name: str, root: int) -> int:
        if not 0 <= root < self._size:
            raise RuntimeError(f"ProcessGroup{self.NAME.capitalize()}::{name}: invalid root rank: {root}")
        return root

    def _split(self, tensor: Tensor, sizes: Sequence[int]) -> list[int]:
        """Elements for, or from, each rank. `sizes` counts rows; if it is empty, all ranks have equally many."""
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

    def _check_list(self, call: str, tensors: Sequence[Tensor]) -> None:
        if len(tensors) != self._size:
            raise ValueError(
                f"{call}: got a list of {len(tensors)} tensors in a group of size {self._size}\n"
                "hint: the list must have one tensor per rank of the group"
            )

    def _check(self, tensors: Sequence[Tensor]) -> None:
        # The backend's name is checked in operations and not at the group's creation, because init_process_group()
        # without a backend name creates a group of each kind.
        if self._is_other_backend and not self.is_beside_nccl:
            raise RuntimeError(
                f'the program requests the backend "{self.NAME}", which this run does not simulate\n'
                "hint: choose one with --backend nccl, --backend gloo or --backend ideal"
            )
        if self._is_other_backend and not SimulatedBackend._has_warned:
            SimulatedBackend._has_warned = True
            self.channel.warn(
                f"operations of {self.NAME} are costed as those of nccl, the backend of this cluster of GPUs: "
                f'if most of the communication is by {self.NAME}, put backend = "{self.NAME}" into the cluster file'
            )
        if os.getpid() != self._pid:
            raise RuntimeError(
                "a forked child process of a rank cannot communicate\n"
                "hint: call torch.distributed only from the process that `uniference run` started"
            )
        self._connections.check()
        for tensor in tensors:
            if not (tensor.is_cpu or tensor.is_cuda) or tensor.layout is not torch.strided:
                raise RuntimeError(
                    f"a {tensor.layout} tensor on {tensor.device} cannot be communicated; only dense tensors on CPU or GPU are supported\n"
                    "hint: move it with `.cpu()`, or `.to_dense()`"
                )

    # Torch's names of the collectives. A library's subclass overrides the methods that carry them out.

    allreduce = _call("_all_reduce")
    allreduce_coalesced = _call("_all_reduce_coalesced")
    reduce = _call("_reduce")
    reduce_scatter = _call("_reduce_scatter")
    reduce_scatter_single = _call("_reduce_scatter_single")
    reduce_scatter_single_coalesced = _call("_reduce_scatter_single_coalesced")
    broadcast = _call("_broadcast")
    allgather = _call("_all_gather")
    all_gather_single = _call("_all_gather_single")
    all_gather_single_coalesced = _call("_all_gather_single_coalesced")
    allgather_coalesced = _call("_all_gather_coalesced")
    gather = _call("_gather")
    scatter = _call("_scatter")
    alltoall = _call("_all_to_all")
    all_to_all_single = _call("_all_to_all_single")
    barrier = _call("_barrier")


def _elements(tensors: Sequence[Tensor]) -> int:
    return tensors[0].numel() if len(tensors) == 1 else sum(tensor.numel() for tensor in tensors)


def blocks(tensors: Sequence[Tensor]) -> Shape:
    """The shape argument for a list with one tensor per rank."""
    sizes = [tensor.numel() for tensor in tensors]
    return sizes[0] if len(set(sizes)) == 1 else sizes
