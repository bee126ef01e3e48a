"""Owns the return value of a communication call: its wait in virtual time, and the delivery of its data.

`base` issues the operations. Data is delivered when the program learns that the operation is complete
(`wait`, `is_completed`, a future), on the thread that learns it.
"""

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import Work as TorchWork
from torch.autograd import Variable

from uniference._native import Channel
from uniference.backends.arena import Arena
from uniference.backends.connections import Connections
from uniference.backends.profiling import Event
from uniference.backends.reduction import Reduction
from uniference.patches import names
from uniference.program.lines import user_line
from uniference.rank import values
from uniference.rank.charging import uncharged
from uniference.rank.clock import picoseconds


class Operation:
    """One operation in the engine, and the destination of its data."""

    __slots__ = ("_arena", "_group_size", "_reduction", "handle", "outputs", "peer")

    def __init__(
        self,
        arena: Arena,
        handle: int,
        outputs: Sequence[Tensor],
        reduction: Reduction | None = None,
        group_size: int = 1,
    ) -> None:
        self.handle = handle
        self.outputs = outputs
        self.peer: int | None = None
        self._arena = arena
        self._reduction = reduction
        self._group_size = group_size

    def deliver(self, channel: Channel) -> None:
        """Carries out the reduction, if this rank was chosen to reduce, and fetches the outputs. The operation must be
        complete."""
        reduction = self._reduction
        if reduction is not None and not reduction.is_native and (folds := channel.folds(self.handle)):
            for into, other, nbytes in folds:
                view = self._arena.view
                reduction.combine(view(into, nbytes, reduction.dtype), view(other, nbytes, reduction.dtype))
            channel.folded(self.handle)
        self.peer, lacks_values = channel.deliver(self.handle, self.outputs)
        if lacks_values:
            values.mark_uncomputed(self.outputs)
        elif reduction is not None:
            reduction.finish(self.outputs, self._group_size)


_numbers = itertools.count()

# Works that the program may never wait for, in order of issue.
_in_flight: dict[int, "Work"] = {}

# The works in `_in_flight` by the handles of their operations.
_in_flight_by_handle: dict[int, "Work"] = {}

# Complete operations of works in flight that no wait has delivered: the work's number and the handle. It is a heap, so
# the search for operations issued before a work does not visit later ones.
_over: list[tuple[int, int]] = []

# Complete operations that belong to no work in flight, because their work may be created later.
_over_elsewhere: set[int] = set()


class Work(TorchWork):
    """One call of the program: its operations in the engine. The call is complete when all operations are."""

    def __init__(
        self,
        channel: Channel,
        name: str,
        operations: Sequence[Operation],
        timeout: timedelta | None,
        connections: Connections,
        events: Sequence[Event] = (),
    ) -> None:
        """`timeout` is the group's timeout; None: the work never waits. `connections` provides the errors of failed
        operations."""
        super().__init__()
        self.channel = channel
        self._name = name
        self.operations = list(operations)
        self._open = {operation.handle: operation for operation in operations}
        self._timeout = timeout
        self.events = list(events)
        self._connections = connections
        self._future: torch.futures.Future[list[Tensor]] | None = None
        self._error: RuntimeError | None = None
        self._number = next(_numbers)
        self._delivering = threading.Lock()

    def track(self) -> None:
        """From now on, waits for other works also deliver this work, in case the program never waits for it."""
        _in_flight[self._number] = self
        if len(_in_flight) == 1:
            self.channel.has_in_flight(True)
        for operation in self.operations:
            handle = operation.handle
            _in_flight_by_handle[handle] = self
            if handle in _over_elsewhere:
                _over_elsewhere.discard(handle)
                heapq.heappush(_over, (self._number, handle))

    def forget(self) -> None:
        """Removes this work from the works in flight: its operations were delivered, or belong to another work now."""
        if _in_flight.pop(self._number, None) is not None:
            for operation in self.operations:
                _in_flight_by_handle.pop(operation.handle, None)
            if not _in_flight:
                self.channel.has_in_flight(False)
                if _in_flight:  # another thread has added one meanwhile
                    self.channel.has_in_flight(True)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if self._open:
            self._block(timeout or None)
        if self._future is not None:
            self._resolve()
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        if not self._poll():
            return False
        self._resolve()
        return True

    def is_success(self) -> bool:
        return not self._open and self._error is None

    def exception(self) -> Any:
        return self._error

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[Tensor]:
        return [out for operation in self.operations for out in operation.outputs]

    def source_rank(self) -> int:
        self.wait()
        peer = self.operations[0].peer
        if peer is None:
            raise RuntimeError(
                "sourceRank() may only be called on work objects that correspond to a recv or recv-from-any call."
            )
        return peer

    _source_rank = source_rank

    def get_future(self) -> Any:
        if _probe.asking:
            _probe.found = self
            return _ANSWER
        if self._future is None:
            self._future = torch.futures.Future()
            if self._open:
                _unresolved[self._number] = self
                _finish_with_backward(self)
            else:
                self._resolve()
        return self._future

    def finish(self) -> None:
        """Waits without returning a result."""
        self.wait()

    def deliver_complete(self, handles: Sequence[int]) -> None:
        """Delivers this work's operations among the complete `handles`."""
        for handle in handles:
            if (operation := self._open.get(handle)) is not None:
                self._deliver(operation)

    def open_handles(self) -> list[int]:
        """Handles of the operations that are not known to be complete."""
        return list(self._open)

    @uncharged
    def _poll(self) -> bool:
        while self._open:
            operation = next(iter(self._open.values()))
            if not self.channel.poll(operation.handle):
                return False
            self._deliver(operation)
        return True

    @uncharged
    def _block(self, timeout: timedelta | None) -> None:
        """`timeout` is the caller's own."""
        limit = timeout if timeout is not None else self._timeout
        ticks = picoseconds(limit) if limit is not None else None
        complete = self.channel.wait(self.open_handles(), ticks, False, user_line())
        if complete is None:
            assert limit is not None
            error = self._connections.timed_out(self._name, limit, timeout is not None)
            if self._connections.closed:
                self._give_up(error)
            raise error
        self.deliver_complete(complete)
        deliver_earlier(self.channel, self._number)

    def _give_up(self, error: RuntimeError) -> None:
        """Makes every later query of this work fail with `error`."""
        with self._delivering:
            self._error = self._connections.error_from_now_on(self._name, error)
            for handle in self._open:
                self.channel.release(handle)
                _over_elsewhere.discard(handle)
            self._open.clear()
        self.forget()

    def _deliver(self, operation: Operation) -> None:
        """Delivers an operation once: the first thread delivers, and the others wait for it."""
        with self._delivering:
            if operation.handle not in self._open:
                return
            _over_elsewhere.discard(operation.handle)
            if (peer := self.channel.closed_by(operation.handle)) is not None:
                # After a failure, the call's other operations are not waited for.
                self._error = self._connections.closed_by(peer)
                self._open.clear()
            if self._error is None:
                try:
                    operation.deliver(self.channel)
                finally:
                    # The operation counts as delivered even if its last step has failed (for example an average of
                    # integers): only this call raises the error.
                    del self._open[operation.handle]
            if self._open:
                return
        self.forget()
        while self.events:
            self.events.pop().end()

    def _resolve(self) -> None:
        """Completes the future and runs its callbacks. They are the program's code, so their time is charged."""
        if self._future is not None and not self._open and not _is_done(self._future):
            _unresolved.pop(self._number, None)
            if self._error is None:
                self._future.set_result(self.result())
            else:
                self._future.set_exception(self._error)  # type: ignore[arg-type]  # torch's stub says a result


class Ended(Work):
    """The Work of a call that was complete before it returned."""

    def __init__(self, channel: Channel, outputs: Sequence[Tensor]) -> None:
        TorchWork.__init__(self)
        self.channel = channel
        self.operations = []
        self._open = {}
        self._outputs = outputs
        self._future = None
        self._error = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def result(self) -> list[Tensor]:
        return list(self._outputs)


class Failed(Ended):
    """The Work of a call that failed before it reached the engine: waits for it raise the error."""

    def __init__(self, channel: Channel, error: RuntimeError) -> None:
        super().__init__(channel, [])
        self._error = error

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if self._future is not None:
            self._resolve()
        assert self._error is not None
        raise self._error


def deliver_earlier(channel: Channel, before: int | None = None) -> None:
    """Delivers complete operations that were issued before work `before`. Real backends write results without a wait,
    and a program may rely on that."""
    if not _in_flight:
        return
    for handle in channel.take_over():
        if (owner := _in_flight_by_handle.get(handle)) is not None:
            heapq.heappush(_over, (owner._number, handle))
        else:
            _over_elsewhere.add(handle)
    earlier: dict[int, Work] = {}
    while _over and (before is None or _over[0][0] < before):
        _, handle = heapq.heappop(_over)
        if (owner := _in_flight_by_handle.get(handle)) is not None and handle in owner._open:
            earlier[handle] = owner
    if earlier:
        for handle in channel.wait(list(earlier), 0, True, user_line()) or []:
            earlier[handle].deliver_complete([handle])


class _Probe(threading.local):
    asking = False
    found: Work | None = None


# Torch wraps a Python Work in a C++ holder that forwards only `wait` and `get_future`. Therefore `get_future` also
# identifies the Work, if `_probe` asks for it.
_probe = _Probe()
_ANSWER: torch.futures.Future[list[Tensor]] = torch.futures.Future()
_ANSWER.set_result([])

# Works whose futures the program holds: a wait for any of these futures completes every work whose operations are
# complete.
_unresolved: dict[int, Work] = {}

# Futures that DistributedDataParallel will block on at the end of the next backward pass: return values of a hook on
# its buffers.
_promised: list[Any] = []

_is_done = names.FUTURE_DONE.original
_wait_for = names.FUTURE_WAIT.original


def _behind(work: TorchWork) -> Work | None:
    """The Python Work behind torch's holder, if there is one."""
    _probe.asking = True
    try:
        work.get_future()
    except RuntimeError:
        return None
    finally:
        _probe.asking = False
        found, _probe.found = _probe.found, None
    return found


def _forwarding(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: TorchWork, *args: Any) -> Any:
        work = _behind(self)
        return original(self, *args) if work is None else getattr(work, name)(*args)

    method.__name__ = name
    return method


def _finish_with_backward(work: Work) -> None:
    """Completes a future before C++ code blocks on it without calling Python.

    DistributedDataParallel's reducer does so in a callback at the end of a backward pass. The reducer queues that
    callback after it has requested the last bucket's future, so this function's callback runs first. With a static
    graph, the first pass requests its futures inside such a callback, when no further callback can be queued; the
    future is then completed at once.
    """
    try:
        Variable._execution_engine.queue_callback(work.finish)
    except RuntimeError:
        return  # no backward pass is running: waits for the future go through Python
    while _promised:
        Variable._execution_engine.queue_callback(_promised.pop().wait)
    if torch._C._current_autograd_node() is None:
        work.wait()


def _install_promises() -> None:
    original = names.POST_BACKWARD_FUTURES.original

    def promise(self: c10d.Reducer, futures: list[Any]) -> None:
        _promised.extend(futures)
        original(self, futures)

    names.POST_BACKWARD_FUTURES.replace(promise)


def settle() -> None:
    """Waits for all issued works."""
    for work in tuple(_in_flight.values()):
        work.wait()


def install(channel: Channel) -> None:
    """Connects torch's Work and Future classes to the simulated works."""
    for name, method in names.WORK_METHODS.items():
        method.replace(_forwarding(name, method.original))

    def wait(self: Any) -> Any:
        while not _is_done(self) and _unresolved:
            works = list(_unresolved.values())
            channel.enter()
            try:
                owners = {handle: work for work in works for handle in work.open_handles()}
                complete = channel.wait(list(owners), None, True, user_line())
                assert complete is not None, "a wait without a time-out has timed out"
                for handle in complete:
                    owners[handle].deliver_complete([handle])
            finally:
                channel.leave()
            for work in works:
                work._resolve()
        return _wait_for(self)

    def done(self: Any) -> bool:
        for work in tuple(_unresolved.values()):
            work.is_completed()
        is_done: bool = _is_done(self)
        return is_done

    _install_promises()
    names.FUTURE_WAIT.replace(wait)
    names.FUTURE_DONE.replace(done)
