"""Owns the measurements of a network for its calibration: durations of operations of every kind and size, among these
ranks.

An ordinary program for torchrun, the testbed or `uniference run`: `python -m uniference.real.probe --out FILE`.
`uniference calibrate` and `benches/accuracy` evaluate the figures. Each line of FILE is a case: the operation, the
duration of each repetition in seconds, and how late each rank started it. Cases that FILE already holds are not
measured again. With `--like FILE` the cases of another file are repeated, with the same number of repetitions and the
same delays of ranks, to compare a prediction with a measurement.
"""

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from uniference.real import processors

PINGPONG_SIZES = (1, 1 << 10, 1 << 12, 1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
FULL_SIZES = (1 << 3, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
# With more ranks than this only some pairs are measured: rank 0 with each, and neighbours.
_MOST_FOR_ALL_PAIRS = 6
_T = TypeVar("_T")
# Pause between two repetitions, in which the leftover work of the first ends.
_PAUSE_S = 0.004
# If repetitions are too close together, they are made again at twice the distance, up to this one.
_LONGEST_PERIOD_S = 2.0


@dataclass(frozen=True)
class Case:
    """One operation of one size among some ranks; `bytes` is the size of a message, or of the tensor that each rank
    passes."""

    operation: str
    ranks: tuple[int, ...]
    bytes: int
    # Whether the operation is measured over new connections.
    cold: bool = False


@dataclass
class Taken:
    """Seconds of each repetition, of the slowest rank; and for each repetition how late each rank was, if all share one
    clock."""

    seconds: list[float]
    late: list[list[float]] = field(default_factory=list)

    @property
    def overtook(self) -> bool:
        """Whether most repetitions were too close together: they began later than planned."""
        return bool(self.late) and median(map(max, self.late)) > _PAUSE_S


class Probe:
    """This rank's part of the measurements."""

    def __init__(self, repetitions: int, budget_s: float) -> None:
        self._rank = dist.get_rank()
        self._size = dist.get_world_size()
        self._repetitions = repetitions
        self._budget_s = budget_s
        self._device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        self._group: dist.ProcessGroup | None = None
        hosts: list[tuple[str, int]] = [("", 0)] * self._size
        dist.all_gather_object(hosts, _host())
        self._hosts = hosts
        self._one_clock = len({kernel for kernel, _ in hosts}) == 1
        self._latest(0.0)
        # Time in which all ranks learn of an instant before it comes.
        self._notice_s = 0.002 + 2 * self._latest(-_timed(lambda: self._latest(0.0)), smallest=True)

    def is_local(self, case: Case) -> bool:
        """Whether all ranks of the case are on one host."""
        return len({self._hosts[rank] for rank in case.ranks}) == 1

    def measure(self, case: Case, like: Taken | None = None) -> Taken:
        """Measures a case; all ranks call it with the same case. `like`: repeats that measurement's number of
        repetitions and delays."""
        dist.barrier()
        if case.operation in _PAIRS:
            return Taken(self._in_step(case) if self._rank in case.ranks else [])
        if case.cold:
            return self._gather([self._cold(case, late) for late in self._plan(like, self._repetitions)])
        run = _OPERATIONS[case.operation](self, case)
        run()
        estimate = self._latest(_timed(run))
        plan = self._plan(like, self._count(estimate + _PAUSE_S))
        if like:
            # A repetition is planned to begin only after the previous one has ended, however long the predicted
            # duration is.
            return self._gather([self._at(self._instant(), 0.0, run, late) for late in plan])
        # Agreeing on an instant for each repetition would need more time than the operation.
        period = 1.25 * estimate + _PAUSE_S
        while True:
            begin = self._instant()
            taken = self._gather([self._at(begin, number * period, run, late) for number, late in enumerate(plan)])
            if not taken.overtook or period > _LONGEST_PERIOD_S:
                return taken
            period *= 2

    def _in_step(self, case: Case) -> list[float]:
        """Repetitions of an operation that itself keeps the ranks in step, one immediately after the other."""
        run = _OPERATIONS[case.operation](self, case)
        run()
        count = self._agree(self._count(_timed(run)), case)
        pause = _PAUSE_S if case.operation == "solo" else 0.0
        return [_timed(run, pause) for _ in range(count)]

    def _cold(self, case: Case, late: float) -> tuple[float, float]:
        group = dist.new_group()
        assert isinstance(group, dist.ProcessGroup)
        self._group = group
        try:
            return self._at(self._instant(), 0.0, _OPERATIONS[case.operation](self, case), late)
        finally:
            self._group = None
            dist.destroy_process_group(group)

    def _plan(self, like: Taken | None, count: int) -> list[float]:
        """Planned delay of this rank, by repetition."""
        if like is None:
            return [0.0] * count
        return [late[self._rank] for late in like.late] or [0.0] * len(like.seconds)

    def _count(self, estimate: float) -> int:
        return min(5 * self._repetitions, max(self._repetitions, int(self._budget_s / estimate)))

    def _instant(self) -> float | None:
        """Instant at which all ranks begin; None: they have no common clock."""
        return self._latest(time.perf_counter()) + self._notice_s if self._one_clock else None

    def _at(self, begin: float | None, after: float, run: Callable[[], object], late: float) -> tuple[float, float]:
        """Duration on this rank in seconds, and the delay of its start; without an instant, the operation starts after
        a barrier."""
        if begin is None:
            dist.barrier()
            return _timed(run), 0.0
        instant = begin + after
        time.sleep(max(instant + late - time.perf_counter(), 0.0))
        begun = time.perf_counter()
        return _timed(run), begun - instant

    def _latest(self, value: float, smallest: bool = False) -> float:
        """Maximum of all ranks' values; with `smallest`, the negative of the minimum."""
        shared = torch.tensor([value], dtype=torch.float64, device=self._device)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return -float(shared) if smallest else float(shared)

    def _gather(self, taken: list[tuple[float, float]]) -> Taken:
        mine = torch.tensor(taken, dtype=torch.float64, device=self._device)
        of_all = [torch.zeros_like(mine) for _ in range(self._size)]
        dist.all_gather(of_all, mine)
        seconds, late = torch.stack(of_all).unbind(-1)
        return Taken(seconds.amax(0).tolist(), late.T.tolist() if self._one_clock else [])

    def _agree(self, count: int, case: Case) -> int:
        """The number of the case's first rank, on every rank."""
        first, *others = case.ranks
        number = torch.tensor([count], device=self._device)
        if self._rank == first:
            for other in others:
                dist.send(number, other)
        else:
            dist.recv(number, first)
        return int(number)

    def _tensor(self, case: Case, parts: int = 1) -> Tensor:
        """A tensor of 4-byte floats of about the case's size, divisible into `parts` equal parts."""
        return torch.zeros(max(case.bytes // 4 // parts, 1) * parts, dtype=torch.float32, device=self._device)

    def compute(self, case: Case) -> Callable[[], object]:
        """A few operators of a small transformer, on this rank's device alone."""
        width = 256
        x = torch.randn(64, width, device=self._device)
        weight = torch.randn(4 * width, width, device=self._device)

        def run() -> None:
            hidden = torch.nn.functional.gelu(torch.nn.functional.linear(x, weight))
            out = torch.nn.functional.layer_norm(hidden @ weight, (width,))
            float(torch.softmax(out @ out.T, -1).sum())

        return run

    def solo(self, case: Case) -> Callable[[], object]:
        """A collective of a group of one rank: the library's cost without any message, from idle threads."""
        group = dist.new_group(case.ranks, use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup)
        data = torch.zeros(1, device=self._device)
        return lambda: dist.all_reduce(data, group=group)

    def round_trip(self, case: Case) -> Callable[[], object]:
        """A round trip over a plain TCP connection: the network's time without the library."""
        first, second = case.ranks
        peer = _connect(self._rank == first, first, second)

        def run() -> None:
            if self._rank == first:
                peer.sendall(b"?")
                peer.recv(1)
            else:
                peer.recv(1)
                peer.sendall(b"!")

        return run

    def pingpong(self, case: Case) -> Callable[[], object]:
        return self._there_and_back(case, case.bytes)

    def ping(self, case: Case) -> Callable[[], object]:
        """A ping-pong whose answer is one byte: shows the bandwidth of one direction."""
        return self._there_and_back(case, 1)

    def _there_and_back(self, case: Case, back: int) -> Callable[[], object]:
        data = torch.zeros(case.bytes, dtype=torch.uint8, device=self._device)
        answer = data[:back]
        first, second = case.ranks

        def run() -> None:
            if self._rank == first:
                dist.send(data, second)
                dist.recv(answer, second)
            else:
                dist.recv(data, first)
                dist.send(answer, first)

        return run

    def one_way(self, case: Case) -> Callable[[], object]:
        group = self._group
        data = torch.zeros(case.bytes, dtype=torch.uint8, device=self._device)
        first, second = case.ranks[:2]
        return lambda: (
            dist.send(data, second, group=group)
            if self._rank == first
            else dist.recv(data, first, group=group)
            if self._rank == second
            else None
        )

    def two_isends(self, case: Case) -> Callable[[], object]:
        group = self._group
        data = [torch.zeros(case.bytes, dtype=torch.uint8, device=self._device) for _ in range(2)]
        first, second = case.ranks[:2]

        def run() -> None:
            call, peer = (dist.isend, second) if self._rank == first else (dist.irecv, first)
            if self._rank in (first, second):
                for work in [call(tensor, peer, group=group) for tensor in data]:
                    assert work is not None
                    work.wait()

        return run

    def incast(self, case: Case) -> Callable[[], object]:
        group = self._group
        data = [torch.zeros(case.bytes, dtype=torch.uint8, device=self._device) for _ in range(self._size)]

        def run() -> None:
            if self._rank != 0:
                dist.send(data[0], 0, group=group)
                return
            for work in [dist.irecv(data[peer], peer, group=group) for peer in range(1, self._size)]:
                assert work is not None
                work.wait()

        return run

    def all_reduce(self, case: Case) -> Callable[[], object]:
        group = self._group
        data = self._tensor(case)
        return lambda: dist.all_reduce(data, group=group)

    def broadcast(self, case: Case) -> Callable[[], object]:
        group = self._group
        data = self._tensor(case)
        return lambda: dist.broadcast(data, 0, group=group)

    def reduce(self, case: Case) -> Callable[[], object]:
        group = self._group
        data = self._tensor(case)
        return lambda: dist.reduce(data, 0, group=group)

    def all_gather(self, case: Case) -> Callable[[], object]:
        group = self._group
        data = self._tensor(case)
        gathered = [torch.zeros_like(data) for _ in range(self._size)]
        return lambda: dist.all_gather(gathered, data, group=group)

    def all_gather_into_tensor(self, case: Case) -> Callable[[], object]:
        group = self._group
        data = self._tensor(case)
        gathered = data.repeat(self._size)
        return lambda: dist.all_gather_into_tensor(gathered, data, group=group)

    def reduce_scatter(self, case: Case) -> Callable[[], object]:
        group = self._group
        data = list(self._tensor(case, self._size).chunk(self._size))
        result = torch.zeros_like(data[0])
        return lambda: dist.reduce_scatter(result, data, group=group)

    def reduce_scatter_tensor(self, case: Case) -> Callable[[], object]:
        group = self._group
        data = self._tensor(case, self._size)
        result = data[: data.numel() // self._size].clone()
        return lambda: dist.reduce_scatter_tensor(result, data, group=group)

    def all_to_all_single(self, case: Case) -> Callable[[], object]:
        group = self._group
        data = self._tensor(case, self._size)
        result = torch.zeros_like(data)
        return lambda: dist.all_to_all_single(result, data, group=group)

    def gather(self, case: Case) -> Callable[[], object]:
        group = self._group
        data = self._tensor(case)
        gathered = [torch.zeros_like(data) for _ in range(self._size)] if self._rank == 0 else None
        return lambda: dist.gather(data, gathered, 0, group=group)

    def scatter(self, case: Case) -> Callable[[], object]:
        group = self._group
        data = self._tensor(case)
        parts = [torch.zeros_like(data) for _ in range(self._size)] if self._rank == 0 else None
        return lambda: dist.scatter(data, parts, 0, group=group)

    def barrier(self, case: Case) -> Callable[[], object]:
        group = self._group
        return lambda: dist.barrier(group=group)


def _timed(run: Callable[[], object], pause: float = 0.0) -> float:
    """Duration of a call in seconds, after a pause."""
    time.sleep(pause)
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _host() -> tuple[str, int]:
    """Identifiers of the kernel, whose ranks share a clock, and of its network namespace, whose ranks have no link
    between them."""
    kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return kernel, os.stat("/proc/self/ns/net").st_ino


def _connect(serves: bool, first: int, second: int) -> socket.socket:
    """A connection between two ranks, at the address by which the first reaches rank 0's host."""
    store = dist.distributed_c10d._get_default_store()
    key = f"probe/{first}/{second}"
    if not serves:
        host, port = store.get(key).decode().split()
        peer = socket.create_connection((host, int(port)))
    else:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
            route.connect((os.environ["MASTER_ADDR"], 9))
            host = route.getsockname()[0]
        with socket.create_server((host, 0)) as listener:
            store.set(key, f"{host} {listener.getsockname()[1]}")
            peer, _ = listener.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


# Operations that are also measured over new connections: one of each kind of traffic. Connecting takes longer than the
# operation.
_COLD = ("one_way", "all_reduce", "broadcast", "all_gather_into_tensor", "all_to_all_single")
# Operations that keep their ranks in step, and for which the first rank's times count.
_PAIRS = ("pingpong", "ping", "round_trip", "compute", "solo")
_OPERATIONS: dict[str, Callable[[Probe, Case], Callable[[], object]]] = {
    "compute": Probe.compute,
    "solo": Probe.solo,
    "round_trip": Probe.round_trip,
    "pingpong": Probe.pingpong,
    "ping": Probe.ping,
    "one_way": Probe.one_way,
    "two_isends": Probe.two_isends,
    "incast": Probe.incast,
    "all_reduce": Probe.all_reduce,
    "broadcast": Probe.broadcast,
    "reduce": Probe.reduce,
    "all_gather": Probe.all_gather,
    "all_gather_into_tensor": Probe.all_gather_into_tensor,
    "reduce_scatter": Probe.reduce_scatter,
    "reduce_scatter_tensor": Probe.reduce_scatter_tensor,
    "all_to_all_single": Probe.all_to_all_single,
    "gather": Probe.gather,
    "scatter": Probe.scatter,
    "barrier": Probe.barrier,
}


def cases(words: argparse.Namespace, size: int) -> Iterator[Case]:
    """The cases among `size` ranks."""
    pairs = list(combinations(range(size), 2))
    if size > _MOST_FOR_ALL_PAIRS:
        pairs = [pair for pair in pairs if pair[0] == 0 or pair[1] == pair[0] + 1]
    if words.plain:
        yield from (Case("compute", (rank,), 0) for rank in range(size))
        yield from (Case("solo", (rank,), 0) for rank in range(size))
        yield from (Case("round_trip", pair, 1) for pair in pairs)
    for pair in pairs:
        yield from (Case("pingpong", pair, count) for count in words.pingpong_sizes)
        for count in sorted(words.pingpong_sizes)[-1:]:
            yield from (Case("ping", one_way, count) for one_way in (pair, pair[::-1]))
    if words.probe == "full":
        everybody = tuple(range(size))
        for operation in [name for name in _OPERATIONS if name not in _PAIRS]:
            for cold, sizes in ((False, words.sizes), (True, words.cold_sizes)):
                if cold and operation not in _COLD:
                    continue
                if operation != "barrier":
                    yield from (Case(operation, everybody, count, cold) for count in sizes)
                elif sizes:
                    yield Case(operation, everybody, 0, cold)


def main() -> None:
    """Measures the missing cases."""
    words = _parser().parse_args()
    if words.backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(words.backend)
    rank = dist.get_rank()
    like = _shared(lambda: _of_groups(_read(words.like)) if words.like else {})
    known = _shared(lambda: list(_read(words.out)))
    wanted = list(like or cases(words, dist.get_world_size()))
    missing = [case for case in wanted if case not in known]
    if words.profile is not None:
        processors.profile(words.profile, words.device_db, words.out, words.program)
    probe = Probe(words.repetitions, words.budget)
    for number, case in enumerate(missing):
        if rank == 0:
            print(f"\r{number}/{len(missing)} {case.operation} {case.bytes} B  ", end="", file=sys.stderr, flush=True)
        taken = [probe.measure(case, like.get(case))]
        dist.broadcast_object_list(taken, case.ranks[0])
        if rank == 0:
            with words.out.open("a") as file:
                file.write(json.dumps({**asdict(case), "local": probe.is_local(case), **asdict(taken[0])}) + "\n")
    if rank == 0:
        print(f"\r{len(missing)} cases measured, {len(wanted) - len(missing)} known      ", file=sys.stderr)
    dist.destroy_process_group()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--probe", choices=("pingpong", "full"), default="pingpong")
    parser.add_argument(
        "--plain", action="store_true", help="also measure compute and plain sockets, which simulated ranks cannot"
    )
    parser.add_argument("--like", type=Path, help="measure the cases of this file, except those of pairs and devices")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument(
        "--budget",
        type=float,
        default=0.3,
        help="time limit per case in seconds, once it has the minimum number of repetitions",
    )
    parser.add_argument("--profile", help="profile this rank's processor, under this name")
    parser.add_argument("--device-db", type=Path, help="database on rank 0's machine that the operators go to")
    parser.add_argument("--program", type=Path, help="profile this program, in place of operators of many shapes")
    parser.add_argument("--pingpong-sizes", type=int, nargs="*", default=PINGPONG_SIZES)
    parser.add_argument("--sizes", type=int, nargs="*", default=FULL_SIZES)
    parser.add_argument(
        "--cold-sizes",
        type=int,
        nargs="*",
        default=(),
        help="message sizes that are also measured over new connections",
    )
    return parser


def _shared(read: Callable[[], _T]) -> _T:
    """The value that rank 0 reads, on every rank."""
    value: list[Any] = [read() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(value)
    result: _T = value[0]
    return result


def _read(path: Path) -> dict[Case, Taken]:
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return {
        Case(row["operation"], tuple(row["ranks"]), row["bytes"], row.get("cold", False)): Taken(
            row["seconds"], row.get("late", [])
        )
        for row in rows
    }


def _of_groups(taken: dict[Case, Taken]) -> dict[Case, Taken]:
    return {case: its for case, its in taken.items() if case.operation in _OPERATIONS and case.operation not in _PAIRS}


if __name__ == "__main__":
    main()
