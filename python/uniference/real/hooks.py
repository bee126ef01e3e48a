"""Owns the observation of torch in a real run: issue and completion of operations, and blocking of threads.

The program's process groups stay torch's own. Operations are observed by the hooks of `ProcessGroup`, which c10d calls
around each of them, from every caller: Python, the reducer of DistributedDataParallel, functional collectives. Waits
are observed in `Work.wait`, in the operator `wait_tensor`, and at the end of a backward pass, where the reducer waits
in C++.

Limitations: `monitored_barrier` (it bypasses the hooks), tags, and the split sizes of `all_to_all_single` are not
observed.
"""

import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch._C._distributed_c10d import Work
from torch.autograd import Variable

from uniference.patches import names
from uniference.program import ranges
from uniference.real.recording import Recording, now

# An arbitrary number that no other hook uses.
_HOOK = 0x756E69

_KINDS = {
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "all_reduce",
    "REDUCE": "reduce",
    "BROADCAST": "broadcast",
    "ALLGATHER": "all_gather",
    "ALLGATHER_BASE": "all_gather",
    "ALLGATHER_COALESCED": "all_gather",
    "ALLGATHER_INTO_TENSOR_COALESCED": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "REDUCE_SCATTER_BASE": "reduce_scatter",
    "REDUCE_SCATTER_TENSOR_COALESCED": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
    "GATHER": "gather",
    "SCATTER": "scatter",
    "BARRIER": "barrier",
    "SEND": "send",
    "RECV": "recv",
}


class Hooks:
    """Observes torch in this process."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._handles = itertools.count()
        self._groups: dict[c10d.ProcessGroup, int] = {}
        # Operations that may still be waited for, by the identity of their Work. The reference makes torch return the
        # same object again.
        self._works: dict[int, _Issued] = {}
        # The same operations by the storage of a result, for `wait_tensor`.
        self._results: dict[int, _Issued] = {}
        # Handles of operations without a Work of their own, which the next Work represents together.
        self._coalesced: list[int] = []
        self._thread = _Thread()

    def install(self) -> None:
        """Observes every process group and every wait from now on."""
        self._watch_groups()
        self._watch_works()
        self._watch_tensors()
        for name in names.BLOCKING:
            name.wrap(lambda function: self._blocking(function, "store"))
        names.SLEEP.wrap(lambda sleep: self._blocking(sleep, "sleep"))
        ranges.watch(self._recording)

    # Operations

    def _watch_groups(self) -> None:
        register = names.REGISTER_GROUP.original

        def register_and_watch(pg: c10d.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            opened: dict[int, _Issued] = {}
            pg.register_pre_hook(_HOOK, lambda op: self._issued(pg, op, opened))
            pg.register_post_hook(_HOOK, lambda op: self._started(op, opened))
            return register(pg, *args, **kwargs)

        names.REGISTER_GROUP.replace(register_and_watch)

    def _issued(self, pg: c10d.ProcessGroup, op: Any, opened: dict[int, "_Issued"]) -> None:
        at = now()
        kind = _KINDS.get(op.name.name)
        if kind is not None:
            handle = next(self._handles)
            inputs, outputs = op.input_tensors, op.output_tensors
            dtype, shape = _describe(kind, op.name.name, inputs, outputs, pg.size())
            group, task, site = self._group(pg, at), self._recording.task(), self._recording.site()
            self._recording.add("i", at, task, handle, group, kind, dtype, shape, op.root, site)
            results = [_storage(tensor) for tensor in outputs or inputs] if op.async_op else []
            opened[op.op_id] = issued = _Issued(handle, results)
            self._note_backward(issued)
        self._recording.charge(at)

    def _group(self, pg: c10d.ProcessGroup, at: int) -> int:
        known = self._groups.get(pg)
        if known is None:
            known = self._groups[pg] = len(self._groups)
            self._recording.add("g", at, known, c10d.get_process_group_ranks(pg))
        return known

    def _started(self, op: Any, opened: dict[int, "_Issued"]) -> None:
        at = now()
        issued = opened.pop(op.op_id, None)
        if issued is not None and op.work is None:
            self._coalesced.append(issued.handle)
        elif issued is not None:
            self._keep(op.work, issued)
            if op.async_op:
                self._report_completion(issued)
        self._recording.charge(at)

    def _keep(self, work: Work, issued: "_Issued") -> None:
        issued.work = work
        self._works[id(work)] = issued
        self._results.update(dict.fromkeys(issued.results, issued))

    def _forget(self, issued: "_Issued") -> None:
        self._works.pop(id(issued.work), None)
        for storage in issued.results:
            if self._results.get(storage) is issued:
                del self._results[storage]

    def _report_completion(self, issued: "_Issued") -> None:
        def complete(_: object) -> None:
            at = now()
            self._recording.add("d", at, issued.handle, None)
            self._recording.charge(at)

        assert issued.work is not None
        # Gloo has no futures for point-to-point messages, so only waits notice their completion.
        with contextlib.suppress(RuntimeError):
            issued.work.get_future().add_done_callback(complete)

    # Waits

    def _watch_works(self) -> None:
        completion = names.WORK_METHODS["is_completed"]
        wait, is_completed, end_coalescing = (
            names.WORK_WAIT.original,
            completion.original,
            names.END_COALESCING.original,
        )

        def recorded_wait(work: Work, *args: Any, **kwargs: Any) -> bool:
            issued = self._works.get(id(work))
            with _Blocked(self, "communication", [issued.handle] if issued else []):
                result: bool = wait(work, *args, **kwargs)
            if issued:
                self._forget(issued)
                self._note_peer(work, issued.handle)
            return result

        def recorded_poll(work: Work) -> bool:
            result: bool = is_completed(work)
            issued = self._works.get(id(work)) if result else None
            if issued:
                self._forget(issued)
                self._recording.add("d", now(), issued.handle, None)
            return result

        def recorded_end(pg: c10d.ProcessGroup, *args: Any) -> Work:
            work: Work = end_coalescing(pg, *args)
            handles, self._coalesced = self._coalesced, []
            # One operation represents the batch, because all its operations complete together.
            if handles and work is not None:
                self._keep(work, _Issued(handles[-1], []))
            return work

        names.WORK_WAIT.replace(recorded_wait)
        completion.replace(recorded_poll)
        names.END_COALESCING.replace(recorded_end)

    def _note_peer(self, work: Work, handle: int) -> None:
        """Records the source of a receive from any rank; other operations have no source."""
        with contextlib.suppress(RuntimeError):
            self._recording.add("d", now(), handle, work._source_rank())

    def _watch_tensors(self) -> None:
        """Observes `wait_tensor`, which waits for the operation that produces a tensor. Torch's kernel still does the
        waiting."""
        get_kernel: Any = torch.library.get_kernel
        for key in ("CPU", "CUDA"):
            kernel = get_kernel("_c10d_functional::wait_tensor", key)
            names.WAIT_TENSOR.implement("wait_tensor", self._waiting_kernel(kernel), key, with_keyset=True)

    def _waiting_kernel(self, kernel: Any) -> Callable[[Any, Tensor], Tensor]:
        def wait_tensor(keyset: Any, tensor: Tensor) -> Tensor:
            issued = self._results.get(_storage(tensor))
            if issued is not None and issued.work is not None:
                # The wait is in Python, because torch's kernel would block threads that report completions in Python.
                issued.work.wait()
            result: Tensor = kernel.call_boxed(keyset, tensor)
            return result

        return wait_tensor

    def _note_backward(self, issued: "_Issued") -> None:
        """Records the reducer's wait at the end of a backward pass: the reducer queues a callback after its last
        bucket, between two callbacks of this module."""
        if torch._C._current_autograd_node() is None:
            return
        if not self._thread.backward:
            Variable._execution_engine.queue_callback(self._backward_is_over)
        self._thread.backward.append(issued)

    def _backward_is_over(self) -> None:
        waiting, self._thread.backward = self._thread.backward, []
        blocked = _Blocked(self, "communication", [issued.handle for issued in waiting])

        def end() -> None:
            blocked.__exit__()
            for issued in waiting:
                self._forget(issued)

        blocked.__enter__()
        Variable._execution_engine.queue_callback(end)

    def _blocking(self, function: Callable[..., Any], reason: str) -> Callable[..., Any]:
        def blocking(*args: Any, **kwargs: Any) -> Any:
            with _Blocked(self, reason, []):
                return function(*args, **kwargs)

        return blocking


@dataclass
class _Issued:
    """An operation that may still be waited for."""

    handle: int
    results: Sequence[int]
    work: Work | None = None


class _Thread(threading.local):
    def __init__(self) -> None:
        # Operations issued in the current backward pass.
        self.backward: list[_Issued] = []
        self.blocked = False


class _Blocked:
    """An interval in which a thread is blocked. Nested intervals are part of the outer one."""

    def __init__(self, hooks: Hooks, reason: str, handles: Sequence[int]) -> None:
        self._hooks = hooks
        self._reason = reason
        self._handles = handles
        self._inner = hooks._thread.blocked

    def __enter__(self) -> None:
        self._hooks._thread.blocked = True
        self._start = now()

    def __exit__(self, *error: object) -> None:
        if self._inner:
            return
        end = now()
        self._hooks._thread.blocked = False
        recording = self._hooks._recording
        recording.add("w", self._start, end, recording.task(), self._reason, list(self._handles), recording.site())
        recording.charge(end)


def _describe(kind: str, name: str, inputs: list[Tensor], outputs: list[Tensor], size: int) -> tuple[str, Any]:
    """Element type and shape in the form of simulated runs: see `SimulatedBackend`."""
    tensors = inputs or outputs
    dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else "uint8"
    sent, received = [t.numel() for t in inputs], [t.numel() for t in outputs]
    if kind in ("send", "recv"):
        return dtype, sum(t.nbytes for t in tensors)
    if kind == "barrier":
        return "uint8", 0
    if name == "ALLTOALL_BASE":
        return dtype, (_cut(sum(sent), size), _cut(sum(received), size))
    if kind == "all_to_all":
        return dtype, (sent, received)
    if name == "REDUCE_SCATTER":
        return dtype, sent
    if kind in ("reduce_scatter", "scatter"):
        return dtype, sum(received)
    if name == "ALLGATHER" and len(set(received)) > 1:
        return dtype, received
    return dtype, sum(sent)


def _cut(elements: int, size: int) -> list[int]:
    """Splits elements over ranks as evenly as possible."""
    return [elements // size + (rank < elements % size) for rank in range(size)]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else 0
