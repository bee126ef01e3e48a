"""Owns `monitored_barrier` as ProcessGroupGloo of torch 2.15 implements it: the messages, their timeouts, and the rank
that the error names.

Its messages are ordinary sends and receives of the process group.
"""

import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Protocol

from uniference._native import Channel
from uniference.backends.work import Work

_PASSED, _FAILED = 0, 1
_CLOSED = "Connection closed by peer. This is typically caused by a remote worker crashing."


class Group(Protocol):
    """The process group's methods that the barrier uses. Ranks are the group's."""

    @property
    def channel(self) -> Channel: ...
    @property
    def group_rank(self) -> int: ...
    @property
    def group_size(self) -> int: ...
    def post(self, to: int, tag: int, value: int) -> Work:
        """Sends one number."""

    def collect(self, source: int, tag: int) -> tuple[Work, Callable[[], int]]:
        """Receives one number. Returns the Work, and a function that returns the number once the Work is complete."""


def run(group: Group, ask: int, answer: int, timeout: timedelta, wait_all_ranks: bool) -> None:
    """Runs the barrier. `ask` and `answer` are tags that are reserved for it in the group. Only rank 0 enforces the
    timeout."""
    if group.group_rank:
        _reach(group, ask, answer)
        return
    outcome = _FAILED
    try:
        _monitor(group, {rank: group.collect(rank, ask)[0] for rank in _others(group)}, timeout, wait_all_ranks)
        outcome = _PASSED
    finally:
        # Gloo closes its connections on failure. In the simulation the other ranks learn of the failure from the answer
        # that they wait for.
        for rank in _others(group):
            group.post(rank, answer, outcome)


def _others(group: Group) -> range:
    return range(1, group.group_size)


def _reach(group: Group, ask: int, answer: int) -> None:
    sent = group.post(0, ask, group.group_rank)
    received, outcome = group.collect(0, answer)
    try:
        sent.wait()
        received.wait()
        if outcome() == _FAILED:
            raise RuntimeError(_CLOSED)
    except RuntimeError as error:
        message = (
            f"Rank {group.group_rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
            "from rank 0. Please check rank 0 logs for faulty rank."
        )
        raise RuntimeError(f"{message}\n Original exception: \n{error}") from None


def _monitor(group: Group, arrivals: Mapping[int, Work], timeout: timedelta, wait_all_ranks: bool) -> None:
    milliseconds = timeout // timedelta(milliseconds=1)
    start = group.channel.now()
    passed: list[int] = []
    for rank, arrival in arrivals.items():
        try:
            left = timeout if wait_all_ranks else _left(group, start, timeout, passed)
            arrival.wait(left)
            passed.append(rank)
        except RuntimeError as error:
            message = f"[Rank 0]: Rank {rank} failed to pass monitoredBarrier in {milliseconds} ms"
            if not wait_all_ranks:
                raise RuntimeError(f"{message}\n Original exception: \n{error}") from None
            print(message, file=sys.stderr)
    if failed := [str(rank) for rank in arrivals if rank not in passed]:
        raise RuntimeError(f"[Rank 0]: Ranks {', '.join(failed)} failed to pass monitoredBarrier in {milliseconds} ms")


def _left(group: Group, start: int, timeout: timedelta, passed: list[int]) -> timedelta:
    """Remainder of the timeout."""
    left = timeout - timedelta(microseconds=(group.channel.now() - start) // 1_000_000)
    if left > timedelta(0):
        return left
    ranks = ", ".join(map(str, passed))
    raise RuntimeError(
        f"Rank 0 timed out in monitoredBarrier after {timeout // timedelta(milliseconds=1)} ms.\n"
        + (
            f"Successfully processed ranks: {ranks}"
            if passed
            else "No ranks successfully processed in monitoredBarrier."
        )
    )
