"""Owns the program that `bridge.py` measures: communication calls between marks of the beginning and the end of a
measurement.

It reads no clock but its own CPU time: the process that reads the marks adds timestamps, in host time.

    uniference run --ranks N bridge_program.py CASE...

A case is OPERATION:BYTES:ROUNDS with the output's bytes (operations: see `ROUNDS`), or `memory`. In `captured` and
`bare`, a round is three operators without communication, with the run's capture and without it.
"""

import contextlib
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

WARM_UP = 10

Round = Callable[[], object]


def cpu_seconds() -> float:
    """CPU time of this process on the host. `time.process_time` would return the time charged to the program."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def copy(tensor: Tensor) -> Round:
    """No communication: the copy rate of the first rank's memory."""
    other = torch.ones_like(tensor)
    return (lambda: None) if dist.get_rank() else (lambda: other.copy_(tensor))


def all_gather(tensor: Tensor) -> Round:
    part = tensor.chunk(dist.get_world_size())[dist.get_rank()].clone()
    return lambda: dist.all_gather_into_tensor(tensor, part)


def send(tensor: Tensor) -> Round:
    """Every rank sends or receives one message."""
    rank = dist.get_rank()
    return (lambda: dist.recv(tensor, rank - 1)) if rank % 2 else (lambda: dist.send(tensor, rank + 1))


def operators(tensor: Tensor) -> Round:
    """A GEMM, an activation and a sum, so small that call overhead dominates."""
    a = torch.ones(8, 8)
    return lambda: (a @ a).relu_().add_(a)


@contextlib.contextmanager
def past_the_capture() -> Iterator[None]:
    """Excludes the capture's dispatch key for operators."""
    torch._C._dispatch_tls_set_dispatch_key_excluded("Fake", True)
    yield
    torch._C._dispatch_tls_set_dispatch_key_excluded("Fake", False)


ROUNDS: dict[str, Callable[[Tensor], Round]] = {
    "copy": copy,
    "all_reduce": lambda tensor: lambda: dist.all_reduce(tensor),
    "broadcast": lambda tensor: lambda: dist.broadcast(tensor, 0),
    "all_gather": all_gather,
    "send": send,
    "captured": operators,
    "bare": operators,
}


def measure(case: str) -> None:
    """Prints marks at the beginning and the end of a case's rounds, then a rank's mean CPU seconds."""
    operation, nbytes, count = case.split(":")
    round_ = ROUNDS[operation](torch.zeros(int(nbytes) // 4))
    for _ in range(min(WARM_UP, int(count))):
        round_()
    dist.barrier()
    mark("begin")
    before = cpu_seconds()
    with past_the_capture() if operation == "bare" else contextlib.nullcontext():
        for _ in range(int(count)):
            round_()
    used = torch.tensor([cpu_seconds() - before], dtype=torch.float64)
    dist.barrier()
    mark("end")
    dist.all_reduce(used)
    mark(f"cpu {used.item() / dist.get_world_size()}")


def memory() -> None:
    """Mean private and proportional memory of the ranks, in KiB, once all have communicated."""
    dist.all_reduce(torch.ones(1))
    fields = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    private = kib(fields["Private_Clean"]) + kib(fields["Private_Dirty"])
    shares = torch.tensor([private, kib(fields["Pss"])], dtype=torch.float64)
    dist.all_reduce(shares)
    mark("memory {} {}".format(*(shares / dist.get_world_size()).tolist()))


def kib(field: str) -> int:
    return int(field.split()[0])


def mark(text: str) -> None:
    if dist.get_rank() == 0:
        print("@", text, flush=True)


def main() -> None:
    dist.init_process_group("gloo")
    for case in sys.argv[1:]:
        if case == "memory":
            memory()
        else:
            measure(case)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
