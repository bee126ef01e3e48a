"""Owns the measurements that a network is known by: how long operations of every kind and size take, among these ranks.

An ordinary program for torchrun, the testbed or `uniference run`: `python -m uniference.real.probe --out FILE`. What follows from the
figures is the business of `uniference calibrate` and of `benches/accuracy.py`. Each line of FILE is a case: what was done, and how long
each repetition took, in seconds. Cases that FILE already holds are not measured again.
"""

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

PINGPONG_SIZES = (1, 1 << 10, 1 << 12, 1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
FULL_SIZES = (1 << 3, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
# Above so many ranks only some pairs are measured: rank 0 with each, and neighbours.
_MOST_FOR_ALL_PAIRS = 6


@dataclass(frozen=True)
class Case:
    """One operation of one size among some ranks; `bytes` are those of a message, or of the tensor that each rank passes."""

    operation: str
    ranks: tuple[int, ...]
    bytes: int


class Probe:
    """This rank's part of the measurements."""

    def __init__(self, repetitions: int, budget_s: float) -> None:
        self._rank = dist.get_rank()
        self._size = dist.get_world_size()
        self._repetitions = repetitions
        self._budget_s = budget_s
        self._device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")

    def measure(self, case: Case) -> list[float]:
        """Seconds of each repetition; all ranks call it with the same case. Of collectives, the latest rank's."""
        operation = _OPERATIONS[case.operation]
        taken: list[float] = []
        dist.barrier()
        if self._rank in case.ranks:
            run = operation(self, case)
            run()
            start = time.perf_counter()
            run()
            count = min(
                5 * self._repetitions,
                max(self._repetitions, int(self._budget_s / (time.perf_counter() - start + 1e-9))),
            )
            count = self._agree(count, case)
            for _ in range(count):
                if case.operation not in _PAIRS:
                    dist.barrier()
                start = time.perf_counter()
                run()
                taken.append(time.perf_counter() - start)
        if case.operation in _PAIRS:
            return taken
        times = torch.tensor(taken, dtype=torch.float64, device=self._device)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        return [float(value) for value in times]

    def _agree(self, count: int, case: Case) -> int:
        """As many on every rank: as the first of them says."""
        first, *others = case.ranks
        number = torch.tensor([count], device=self._device)
        if self._rank == first:
            for other in others:
                dist.send(number, other)
        else:
            dist.recv(number, first)
        return int(number)

    def _tensor(self, case: Case, parts: int = 1) -> Tensor:
        """Bytes, or 4-byte floats where they can be cut into so many parts of them."""
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

    def round_trip(self, case: Case) -> Callable[[], object]:
        """Over a plain TCP connection: what the network takes, without the library."""
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
        data = torch.zeros(case.bytes, dtype=torch.uint8, device=self._device)
        first, second = case.ranks

        def run() -> None:
            if self._rank == first:
                dist.send(data, second)
                dist.recv(data, second)
            else:
                dist.recv(data, first)
                dist.send(data, first)

        return run

    def one_way(self, case: Case) -> Callable[[], object]:
        data = torch.zeros(case.bytes, dtype=torch.uint8, device=self._device)
        first, second = case.ranks[:2]
        return lambda: (
            dist.send(data, second) if self._rank == first else dist.recv(data, first) if self._rank == second else None
        )

    def two_isends(self, case: Case) -> Callable[[], object]:
        data = [torch.zeros(case.bytes, dtype=torch.uint8, device=self._device) for _ in range(2)]
        first, second = case.ranks[:2]

        def run() -> None:
            call, peer = (dist.isend, second) if self._rank == first else (dist.irecv, first)
            if self._rank in (first, second):
                for work in [call(tensor, peer) for tensor in data]:
                    assert work is not None
                    work.wait()

        return run

    def incast(self, case: Case) -> Callable[[], object]:
        data = [torch.zeros(case.bytes, dtype=torch.uint8, device=self._device) for _ in range(self._size)]

        def run() -> None:
            if self._rank != 0:
                dist.send(data[0], 0)
                return
            for work in [dist.irecv(data[peer], peer) for peer in range(1, self._size)]:
                assert work is not None
                work.wait()

        return run

    def all_reduce(self, case: Case) -> Callable[[], object]:
        data = self._tensor(case)
        return lambda: dist.all_reduce(data)

    def broadcast(self, case: Case) -> Callable[[], object]:
        data = self._tensor(case)
        return lambda: dist.broadcast(data, 0)

    def reduce(self, case: Case) -> Callable[[], object]:
        data = self._tensor(case)
        return lambda: dist.reduce(data, 0)

    def all_gather(self, case: Case) -> Callable[[], object]:
        data = self._tensor(case)
        gathered = [torch.zeros_like(data) for _ in range(self._size)]
        return lambda: dist.all_gather(gathered, data)

    def all_gather_into_tensor(self, case: Case) -> Callable[[], object]:
        data = self._tensor(case)
        gathered = data.repeat(self._size)
        return lambda: dist.all_gather_into_tensor(gathered, data)

    def reduce_scatter(self, case: Case) -> Callable[[], object]:
        data = list(self._tensor(case, self._size).chunk(self._size))
        result = torch.zeros_like(data[0])
        return lambda: dist.reduce_scatter(result, data)

    def reduce_scatter_tensor(self, case: Case) -> Callable[[], object]:
        data = self._tensor(case, self._size)
        result = data[: data.numel() // self._size].clone()
        return lambda: dist.reduce_scatter_tensor(result, data)

    def all_to_all_single(self, case: Case) -> Callable[[], object]:
        data = self._tensor(case, self._size)
        result = torch.zeros_like(data)
        return lambda: dist.all_to_all_single(result, data)

    def gather(self, case: Case) -> Callable[[], object]:
        data = self._tensor(case)
        gathered = [torch.zeros_like(data) for _ in range(self._size)] if self._rank == 0 else None
        return lambda: dist.gather(data, gathered, 0)

    def scatter(self, case: Case) -> Callable[[], object]:
        data = self._tensor(case)
        parts = [torch.zeros_like(data) for _ in range(self._size)] if self._rank == 0 else None
        return lambda: dist.scatter(data, parts, 0)

    def barrier(self, case: Case) -> Callable[[], object]:
        return lambda: dist.barrier()


def _connect(serves: bool, first: int, second: int) -> socket.socket:
    """A connection between two ranks, on the address by which the first reaches rank 0's host."""
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


# Their ranks keep step by themselves, and the first one's times count.
_PAIRS = ("pingpong", "round_trip", "compute")
_OPERATIONS: dict[str, Callable[[Probe, Case], Callable[[], object]]] = {
    "compute": Probe.compute,
    "round_trip": Probe.round_trip,
    "pingpong": Probe.pingpong,
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


def cases(probe: str, plain: bool, size: int, pingpong: Sequence[int], others: Sequence[int]) -> Iterator[Case]:
    """What is measured among `size` ranks; with `plain`, what simulated ranks cannot measure too: devices and sockets."""
    pairs = list(combinations(range(size), 2))
    if size > _MOST_FOR_ALL_PAIRS:
        pairs = [pair for pair in pairs if pair[0] == 0 or pair[1] == pair[0] + 1]
    if plain:
        yield from (Case("compute", (rank,), 0) for rank in range(size))
        yield from (Case("round_trip", pair, 1) for pair in pairs)
    for pair in pairs:
        yield from (Case("pingpong", pair, count) for count in pingpong)
    if probe == "full":
        everybody = tuple(range(size))
        for operation in [name for name in _OPERATIONS if name not in _PAIRS]:
            sizes = others if operation != "barrier" else [0]
            yield from (Case(operation, everybody, count) for count in sizes)


def main() -> None:
    """Measures what is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--probe", choices=("pingpong", "full"), default="pingpong")
    parser.add_argument("--plain", action="store_true", help="devices and plain sockets too")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument(
        "--budget", type=float, default=0.3, help="seconds that a case may take, if it has its repetitions"
    )
    parser.add_argument("--pingpong-sizes", type=int, nargs="+", default=PINGPONG_SIZES)
    parser.add_argument("--sizes", type=int, nargs="+", default=FULL_SIZES)
    words = parser.parse_args()
    if words.backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(words.backend)
    rank = dist.get_rank()
    wanted = list(cases(words.probe, words.plain, dist.get_world_size(), words.pingpong_sizes, words.sizes))
    known = [_read(words.out) if rank == 0 else []]
    dist.broadcast_object_list(known)
    missing = [case for case in wanted if case not in known[0]]
    probe = Probe(words.repetitions, words.budget)
    for number, case in enumerate(missing):
        if rank == 0:
            print(f"\r{number}/{len(missing)} {case.operation} {case.bytes} B  ", end="", file=sys.stderr, flush=True)
        taken = [probe.measure(case)]
        dist.broadcast_object_list(taken, case.ranks[0])
        if rank == 0:
            with words.out.open("a") as file:
                file.write(json.dumps({**asdict(case), "seconds": taken[0]}) + "\n")
    if rank == 0:
        print(f"\r{len(missing)} cases measured, {len(wanted) - len(missing)} known      ", file=sys.stderr)
    dist.destroy_process_group()


def _read(path: Path) -> list[Case]:
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return [Case(row["operation"], tuple(row["ranks"]), row["bytes"]) for row in rows]


if __name__ == "__main__":
    main()
