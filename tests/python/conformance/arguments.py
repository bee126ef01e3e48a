"""Calls of every operation with wrong, unusual or extreme arguments: the result, or the exception with its message,
must be Gloo's.

Cases without a reproducible answer of real Gloo are left out: those in which it crashes, or waits until its timeout.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from body import body, sample

Case = Callable[[dist.ProcessGroup], Any]
Cases = dict[str, Case]

# Parts of messages that name an address, or a line of the library's source.
_PLACES = re.compile(
    r"(?<=support)[^ ]*(?=on complex)|\(\[[\d.]+\]:.*\)|0x[0-9a-f]+|\[[^\]]*\.(cc|cpp|h):\d+\] ?|at [^ ]*\.(cc|cpp|h):\d+"
)


def outcome(case: Case, group: Any) -> Any:
    """The case's result, or its exception: the type, and the part of the message about the call."""
    try:
        return case(group)
    except Exception as error:
        # The rest of the message is the library's own stack, or the list of torch's operators.
        message = re.split(
            r"\nException raised from|' is only available for these backends|  This usually means", str(error)
        )[0]
        return f"{type(error).__name__}: {_PLACES.sub('', message).rstrip()}"


def outcomes(cases: Cases) -> dict[str, Any]:
    """Outcomes of all cases. A case that fails on any rank may have broken its group: the next case gets a new one."""
    results, group = {}, None
    for name, case in cases.items():
        if group is None:
            group = dist.new_group(timeout=timedelta(seconds=20))
        results[name] = outcome(case, group)
        failed = torch.tensor([isinstance(results[name], str)], dtype=torch.uint8)
        dist.all_reduce(failed, dist.ReduceOp.MAX)
        if failed.item():
            dist.destroy_process_group(group)
            group = None
    return results


def waited(work: Any, *results: Any) -> Any:
    """The results of an asynchronous call, or the exception of its wait."""
    try:
        return [work.wait(), *(result.to_dense() for result in results)]
    except Exception as error:
        return f"wait: {type(error).__name__}: {error}"


# Each operation on a tensor `t`, as programs call it; the functions return the written tensors.


def all_reduce(t: Any, g: Any) -> Any:
    dist.all_reduce(t, group=g)
    return t.to_dense()


def all_reduce_later(t: Any, g: Any) -> Any:
    return waited(dist.all_reduce(t, group=g, async_op=True), t)


def all_reduce_coalesced(t: Any, g: Any) -> Any:
    dist.all_reduce_coalesced([t, t.clone()], group=g)
    return t


def broadcast(t: Any, g: Any) -> Any:
    dist.broadcast(t, 0, group=g)
    return t


def reduce(t: Any, g: Any) -> Any:
    dist.reduce(t, 0, group=g)
    # Other members' tensors are undefined.
    return t if g.rank() == 0 else None


def all_gather(t: Any, g: Any) -> Any:
    outputs = [torch.zeros_like(t) for _ in range(g.size())]
    dist.all_gather(outputs, t, group=g)
    return outputs


def all_gather_coalesced(t: Any, g: Any) -> Any:
    outputs = [[torch.zeros_like(t)] for _ in range(g.size())]
    dist.all_gather_coalesced(outputs, [t], group=g)
    return outputs


def all_gather_into_tensor(t: Any, g: Any) -> Any:
    output = torch.cat([torch.zeros_like(t)] * g.size())
    dist.all_gather_into_tensor(output, t, group=g)
    return output


def reduce_scatter(t: Any, g: Any) -> Any:
    output = torch.zeros_like(t)
    dist.reduce_scatter(output, [t.clone() for _ in range(g.size())], group=g)
    return output


def reduce_scatter_tensor(t: Any, g: Any) -> Any:
    output = torch.zeros_like(t)
    dist.reduce_scatter_tensor(output, torch.cat([t] * g.size()), group=g)
    return output


def all_to_all(t: Any, g: Any) -> Any:
    outputs = [torch.zeros_like(t) for _ in range(g.size())]
    dist.all_to_all(outputs, [t.clone() for _ in range(g.size())], group=g)
    return outputs


def all_to_all_single(t: Any, g: Any) -> Any:
    output = torch.zeros_like(t)
    dist.all_to_all_single(output, t, group=g)
    return output


def gather(t: Any, g: Any) -> Any:
    outputs = [torch.zeros_like(t) for _ in range(g.size())] if g.rank() == 0 else None
    dist.gather(t, outputs, 0, group=g)
    return outputs


def scatter(t: Any, g: Any) -> Any:
    output = torch.zeros_like(t)
    dist.scatter(output, [t.clone() for _ in range(g.size())] if g.rank() == 0 else None, 0, group=g)
    return output


def message(t: Any, g: Any) -> Any:
    if g.rank() > 1:
        return None
    if g.rank() == 0:
        dist.send(t, group=g, group_dst=1)
        return t
    received = torch.zeros_like(t)
    return [dist.recv(received, group=g, group_src=0), received]


def from_anyone(t: Any, g: Any) -> Any:
    if g.rank() > 1:
        return None
    if g.rank() == 0:
        dist.send(t, group=g, group_dst=1, tag=3)
        return t
    received = torch.zeros_like(t)
    return [dist.recv(received, group=g, tag=3), received]


def batch(t: Any, g: Any) -> Any:
    received, to = torch.zeros_like(t), (g.rank() + 1) % g.size()
    come_from = (g.rank() - 1) % g.size()
    ops = [
        dist.P2POp(dist.isend, t, group=g, group_peer=to),
        dist.P2POp(dist.irecv, received, group=g, group_peer=come_from),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return received


def functional_all_reduce(t: Any, g: Any) -> Any:
    return functional.all_reduce(t, "sum", g) + 0


def functional_all_gather(t: Any, g: Any) -> Any:
    return functional.all_gather_single(t, 0, g) + 0


def functional_reduce_scatter(t: Any, g: Any) -> Any:
    return functional.reduce_scatter_single(torch.cat([t] * g.size()), "sum", 0, g) + 0


def functional_broadcast(t: Any, g: Any) -> Any:
    return functional.broadcast(t, 0, g) + 0


def functional_all_to_all(t: Any, g: Any) -> Any:
    return functional.all_to_all_single(t, None, None, g) + 0


OPERATIONS = (
    *(all_reduce, all_reduce_later, all_reduce_coalesced, broadcast, reduce, all_gather, all_gather_coalesced),
    *(all_gather_into_tensor, reduce_scatter, reduce_scatter_tensor, all_to_all, all_to_all_single, gather, scatter),
    *(message, from_anyone, batch, functional_all_reduce, functional_all_gather, functional_reduce_scatter),
    *(functional_broadcast, functional_all_to_all),
)


def tensors(rank: int, size: int) -> dict[str, Callable[[], Any]]:
    """Substitutes for a tensor, by name. Each has as many rows as the group has members."""
    dtypes = [torch.bool, torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.complex64, torch.complex128]
    odd = [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]
    made: dict[str, Callable[[], Any]] = {
        f"{str(dtype).removeprefix('torch.')}": lambda dtype=dtype: sample(rank, size, 2, dtype=dtype)
        for dtype in dtypes
    }
    made |= {
        f"{str(dtype).removeprefix('torch.')}": lambda dtype=dtype: torch.ones(size, 2, dtype=torch.uint8).to(dtype)
        for dtype in odd
    }
    return made | {
        "None": lambda: None,
        "a number": lambda: 3.0,
        "a text": lambda: "tensor",
        "a list": lambda: [sample(rank, size)],
        "no elements": lambda: torch.empty(0),
        "no columns": lambda: torch.empty(size, 0),
        "a scalar": lambda: torch.tensor(1.5 + rank),
        "transposed": lambda: sample(rank, 2, size).t(),
        "channels last": lambda: sample(rank, size, 2, 2, 2).to(memory_format=torch.channels_last),
        "sparse": lambda: sample(rank, size, 2).to_sparse(),
        "sparse rows": lambda: sample(rank, size, 2).to_sparse_csr(),
        "conjugate": lambda: sample(rank, size, 2, dtype=torch.complex64).conj(),
        "negative": lambda: torch.imag(sample(rank, size, 2, dtype=torch.complex64).conj()),
        "a parameter": lambda: torch.nn.Parameter(sample(rank, size, 2)),
        "with a gradient": lambda: sample(rank, size, 2).requires_grad_() * 2,
        "quantised": lambda: torch.quantize_per_tensor(sample(rank, size, 2), 0.1, 0, torch.qint8),
    }


def _of_tensors(operation: Callable[[Any, Any], Any], rank: int, size: int) -> dict[str, Any]:
    made = tensors(rank, size).items()
    return outcomes(
        {
            name: lambda g, make=make: operation(make(), g)
            for name, make in made
            if (operation.__name__, name) not in LEFT_OUT
        }
    )


# Cases in which Gloo waits until its timeout, or returns meaningless results.
LEFT_OUT = {
    ("message", "conjugate"),
    ("from_anyone", "conjugate"),
    ("from_anyone", "no elements"),
    ("from_anyone", "no columns"),
    ("reduce", "conjugate"),
    # Autograd rejects how Gloo writes the parts of its output.
    ("all_gather_into_tensor", "a parameter"),
    ("all_gather_into_tensor", "with a gradient"),
}


for _operation in OPERATIONS:

    @body
    def _every_tensor(rank: int, size: int, operation: Any = _operation) -> Any:
        return _of_tensors(operation, rank, size)

    globals()[f"{_operation.__name__}_of_every_tensor"] = _every_tensor

del _every_tensor


def _lists(make: Callable[[], torch.Tensor], other: Callable[[], torch.Tensor], size: int) -> dict[str, Any]:
    """Substitutes for a list of one tensor per member, by name."""
    return {
        "None": lambda: None,
        "no tensors": lambda: [],
        "one less": lambda: [make() for _ in range(size - 1)],
        "one more": lambda: [make() for _ in range(size + 1)],
        "a tensor": make,
        "a tuple": lambda: tuple(make() for _ in range(size)),
        "a None in it": lambda: [None, *(make() for _ in range(size - 1))],
        "a number in it": lambda: [1.5, *(make() for _ in range(size - 1))],
        "one tensor several times": lambda: [make()] * size,
        "another shape": lambda: [other() for _ in range(size)],
        "another shape first": lambda: [other(), *(make() for _ in range(size - 1))],
        "another shape last": lambda: [*(make() for _ in range(size - 1)), other()],
        "another type": lambda: [make().double() for _ in range(size)],
        "another type last": lambda: [*(make() for _ in range(size - 1)), make().double()],
        "the same elements in another shape": lambda: [make().reshape(-1, 1) for _ in range(size)],
        "sparse": lambda: [make().to_sparse() for _ in range(size)],
        "sparse last": lambda: [*(make() for _ in range(size - 1)), make().to_sparse()],
        "without elements": lambda: [make()[:0] for _ in range(size)],
        "transposed": lambda: [torch.stack([make(), make()], 1)[:, 0] for _ in range(size)],
    }


def _of_lists(operation: Callable[[Any, Any], Any], size: int, zeros: bool, *left_out: str) -> dict[str, Any]:
    def make() -> torch.Tensor:
        return torch.zeros(3) if zeros else torch.arange(3.0) + 1

    lists = _lists(make, lambda: torch.zeros(5) if zeros else torch.arange(5.0), size)
    return outcomes(
        {name: lambda g, make=make: operation(make(), g) for name, make in lists.items() if name not in left_out}
    )


def _returning(written: Any, _none: Any) -> Any:
    return written


@body
def all_gather_into_lists(rank: int, size: int) -> Any:
    return _of_lists(lambda out, g: _returning(out, dist.all_gather(out, sample(rank, 3), group=g)), size, True)


@body
def all_gather_coalesced_into_lists(rank: int, size: int) -> Any:
    def call(out: Any, g: Any) -> Any:
        dist.all_gather_coalesced(out, [sample(rank, 3)], group=g)
        return out

    def nested(out: Any, g: Any) -> Any:
        return call([[t] for t in out] if isinstance(out, list) else out, g)

    return _of_lists(nested, size, True)


@body
def all_reduce_coalesced_of_lists(rank: int, size: int) -> Any:
    return _of_lists(lambda lst, g: _returning(lst, dist.all_reduce_coalesced(lst, group=g)), size, False)


@body
def reduce_scatter_of_lists(rank: int, size: int) -> Any:
    def call(put: Any, g: Any) -> Any:
        output = torch.zeros(3)
        dist.reduce_scatter(output, put, group=g)
        return output

    # Gloo checks only the block that the rank itself receives: the other ranks would wait.
    return _of_lists(call, size, False, "another shape first", "another shape last", "sparse", "sparse last")


# Cases that the root accepts, and in which it would wait for the others.
_FITTING = ("one tensor several times", "transposed")


@body
def gather_into_lists(rank: int, size: int) -> Any:
    """Gather at the root alone, which rejects a wrong list at once: the other ranks do not call it."""

    def call(out: Any, g: Any) -> Any:
        return dist.gather(torch.full((3,), rank + 1.0), out, 0, group=g) if rank == 0 else None

    return _of_lists(call, size, True, *_FITTING)


@body
def gather_into_lists_of_others(rank: int, size: int) -> Any:
    def call(out: Any, g: Any) -> Any:
        return dist.gather(torch.ones(3), out, 0, group=g) if rank else None

    return _of_lists(call, size, True, "None", "no tensors")


@body
def scatter_of_lists(rank: int, size: int) -> Any:
    """Scatter at the root alone."""

    def call(put: Any, g: Any) -> Any:
        return dist.scatter(torch.zeros(3), put, 0, group=g) if rank == 0 else None

    return _of_lists(call, size, False, *_FITTING)


@body
def all_to_all_of_lists(rank: int, size: int) -> Any:
    def call(put: Any, g: Any) -> Any:
        outputs = [torch.zeros(3) for _ in range(size)]
        dist.all_to_all(outputs, put, group=g)
        return outputs

    return _of_lists(call, size, False)


@body
def all_to_all_into_lists(rank: int, size: int) -> Any:
    def call(out: Any, g: Any) -> Any:
        dist.all_to_all(out, [torch.ones(3) for _ in range(size)], group=g)
        return out

    return _of_lists(call, size, True)


@body
def tensors_that_do_not_fit(rank: int, size: int) -> Any:
    ones, zeros = torch.ones, torch.zeros
    return outcomes(
        {
            "gather into more": lambda g: dist.all_gather_into_tensor(zeros(3 * size + 1), ones(3), group=g),
            "gather into less": lambda g: dist.all_gather_into_tensor(zeros(3 * size - 1), ones(3), group=g),
            "gather into another type": lambda g: dist.all_gather_into_tensor(
                zeros(3 * size).double(), ones(3), group=g
            ),
            "gather into nothing": lambda g: dist.all_gather_into_tensor(zeros(0), ones(3), group=g),
            "gather nothing": lambda g: dist.all_gather_into_tensor(zeros(0), zeros(0), group=g),
            "gather stacked": lambda g: dist.all_gather_into_tensor(zeros(size, 3), ones(3), group=g),
            "gather into rows": lambda g: dist.all_gather_into_tensor(zeros(3, size), ones(3), group=g),
            "gather scalars": lambda g: dist.all_gather_into_tensor(zeros(size), torch.tensor(1.0), group=g),
            "gather a list": lambda g: dist.all_gather_into_tensor([zeros(3)], ones(3), group=g),
            "scatter more": lambda g: dist.reduce_scatter_tensor(zeros(3), ones(3 * size + 1), group=g),
            "scatter less": lambda g: dist.reduce_scatter_tensor(zeros(3), ones(3 * size - 1), group=g),
            "scatter another type": lambda g: dist.reduce_scatter_tensor(zeros(3), ones(3 * size).double(), group=g),
            "scatter nothing": lambda g: dist.reduce_scatter_tensor(zeros(0), zeros(0), group=g),
            "scatter stacked": lambda g: dist.reduce_scatter_tensor(zeros(3), ones(size, 3), group=g),
            "coalesced types": lambda g: dist.all_reduce_coalesced([ones(2), ones(2).double()], group=g),
            "coalesced, one sparse": lambda g: dist.all_reduce_coalesced([ones(2), ones(2).to_sparse()], group=g),
        }
    )


@body
def split_sizes(rank: int, size: int) -> Any:
    def call(rows: int, sent: Any, received: Any) -> Case:
        def case(g: Any) -> Any:
            output = torch.zeros(rows, 2)
            dist.all_to_all_single(output, sample(rank, rows, 2), received, sent, group=g)
            return output

        return case

    even, rows = [2] * size, 2 * size
    wrong: dict[str, Any] = {
        "one less": [2] * (size - 1),
        "one more": [2] * (size + 1),
        "too few rows": [1] * size,
        "too many rows": [3] * size,
        "no sizes": [],
        "below zero": [rows + 1, -1, *[0] * (size - 2)],
        "fractions": [2.0] * size,
        "texts": ["2"] * size,
        "a number": 2,
        "a tensor": torch.tensor(even),
    }
    cases = {f"sent: {name}": call(rows, sizes, even) for name, sizes in wrong.items()}
    cases |= {f"received: {name}": call(rows, even, sizes) for name, sizes in wrong.items()}
    others = {
        "rows that cannot be divided": call(rows + 1, None, None),
        "no rows": call(0, [0] * size, [0] * size),
        "types": lambda g: dist.all_to_all_single(torch.zeros(rows).double(), torch.ones(rows), group=g),
        "elements": lambda g: dist.all_to_all_single(torch.zeros(rows), torch.ones(rows, 2), group=g),
        "lists": lambda g: dist.all_to_all_single([torch.zeros(rows)], [torch.ones(rows)], group=g),
    }
    return outcomes(cases | others)


@body
def reductions(rank: int, size: int) -> Any:
    """Reductions that do not support the element type."""
    names = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR", "PREMUL_SUM")
    dtypes = (torch.float32, torch.bfloat16, torch.int32, torch.int16, torch.bool, torch.complex64)
    operations = (
        all_reduce_by,
        all_reduce_later_by,
        reduce_by,
        reduce_scatter_by,
        reduce_scatter_tensor_by,
        all_reduce_coalesced_by,
    )
    # Gloo divides an integer by the group's size on every rank, even on ranks that receive nothing: all ranks fail.
    left_out = {(reduce_by, "AVG", dtype) for dtype in dtypes if not (dtype.is_floating_point or dtype.is_complex)}
    cases: Cases = {
        f"{operation.__name__} {name} {dtype}": lambda g, op=operation, name=name, dtype=dtype: op(
            getattr(dist.ReduceOp, name), sample(rank, size, dtype=dtype), g
        )
        for operation in operations
        for name in names
        for dtype in dtypes
        if (operation, name, dtype) not in left_out
    }
    others = {"None": None, "a text": "sum", "a number": 0, "UNUSED": dist.ReduceOp.RedOpType}
    cases |= {name: lambda g, op=op: all_reduce_by(op, sample(rank, 2), g) for name, op in others.items()}
    return outcomes(cases)


def all_reduce_by(op: Any, t: Any, g: Any) -> Any:
    dist.all_reduce(t, op, group=g)
    return t


def all_reduce_later_by(op: Any, t: Any, g: Any) -> Any:
    return waited(dist.all_reduce(t, op, group=g, async_op=True), t)


def all_reduce_coalesced_by(op: Any, t: Any, g: Any) -> Any:
    dist.all_reduce_coalesced([t], op, group=g)
    return t


def reduce_by(op: Any, t: Any, g: Any) -> Any:
    dist.reduce(t, 0, op, group=g)
    return t if g.rank() == 0 else None


def reduce_scatter_by(op: Any, t: Any, g: Any) -> Any:
    output = torch.zeros_like(t)
    dist.reduce_scatter(output, [t.clone() for _ in range(g.size())], op, group=g)
    return output


def reduce_scatter_tensor_by(op: Any, t: Any, g: Any) -> Any:
    output = torch.zeros_like(t)
    dist.reduce_scatter_tensor(output, torch.cat([t] * g.size()), op, group=g)
    return output


@body
def ranks(rank: int, size: int) -> Any:
    """Invalid peers and roots. Every member passes the same root; a message is only called by its sender, or its
    receiver."""
    one = torch.ones
    cases: Cases = {}
    for name, other in {
        "below zero": -1,
        "behind the last": size,
        "far behind": 2**31,
        "a text": "0",
        "none": None,
    }.items():
        cases |= {
            f"send to {name}": lambda g, r=other: dist.send(one(2), r, group=g),
            f"send to group's {name}": lambda g, r=other: dist.send(one(2), group=g, group_dst=r),
            f"isend to {name}": lambda g, r=other: dist.isend(one(2), group=g, group_dst=r).wait(),
            f"receive from {name}": lambda g, r=other: dist.recv(one(2), -2 if r is None else r, group=g),
            f"receive from group's {name}": lambda g, r=other: dist.recv(
                one(2), group=g, group_src=-2 if r is None else r
            ),
            f"group.send to {name}": lambda g, r=other: g.send([one(2)], r, 0).wait(),
            f"group.recv from {name}": lambda g, r=other: g.recv([one(2)], r, 0).wait(),
            f"broadcast from {name}": lambda g, r=other: dist.broadcast(one(2), r, group=g),
            f"broadcast from group's {name}": lambda g, r=other: dist.broadcast(one(2), group=g, group_src=r),
            f"reduce to {name}": lambda g, r=other: dist.reduce(one(2), r, group=g),
            f"reduce to group's {name}": lambda g, r=other: dist.reduce(one(2), group=g, group_dst=r),
            f"gather to {name}": lambda g, r=other: dist.gather(one(2), None, 9 if r is None else r, group=g),
            f"gather to group's {name}": lambda g, r=other: dist.gather(
                one(2), None, group=g, group_dst=9 if r is None else r
            ),
            f"scatter from {name}": lambda g, r=other: dist.scatter(one(2), None, 9 if r is None else r, group=g),
            f"scatter from group's {name}": lambda g, r=other: dist.scatter(
                one(2), None, group=g, group_src=9 if r is None else r
            ),
            f"an operation with {name}": lambda g, r=other: str(
                dist.P2POp(dist.isend, one(2), group=g, group_peer=r).group_peer
            ),
            f"objects from {name}": lambda g, r=other: dist.broadcast_object_list([1], r, group=g),
            f"functional broadcast from {name}": lambda g, r=other: functional.broadcast(one(2), r, g) + 0,
            f"permute to {name}": lambda g, r=other: functional.permute_tensor(one(2), [r] * size, g) + 0,
            f"group of {name}": lambda g, r=other: str(type(dist.new_group([0, r]))),
        }
    for name, tag in {"below zero": -1, "a text": "1", "none": None, "above 32 bits": 2**32}.items():
        cases |= {
            f"send with tag {name}": lambda g, tag=tag: dist.send(one(2), group=g, group_dst=1 - g.rank() % 2, tag=tag)
        }
    cases |= {
        "send to oneself": lambda g: dist.send(one(2), group=g, group_dst=g.rank()),
        "receive from oneself": lambda g: dist.recv(one(2), group=g, group_src=g.rank()),
        "both": lambda g: dist.send(one(2), 0, group=g, group_dst=0),
    }
    late = ("send to group's", "isend to", "receive from group's", "group.send to", "group.recv from")
    # Gloo waits for the peer until its timeout, or crashes.
    left_out = {f"{call} {name}" for call in late for name in ("below zero", "behind the last")}
    left_out |= {"permute to below zero", "receive from group's none"}
    return outcomes({name: case for name, case in cases.items() if name not in left_out})


@body
def groups(rank: int, size: int) -> Any:
    """Substitutes for the group."""
    one = torch.ones
    destroyed = dist.new_group()
    dist.destroy_process_group(destroyed)
    others = {"no member": dist.GroupMember.NON_GROUP_MEMBER, "a text": "group", "a list": [0], "destroyed": destroyed}
    calls: dict[str, Any] = {
        "all_reduce": lambda g: dist.all_reduce(one(2), group=g),
        "broadcast": lambda g: dist.broadcast(one(2), 0, group=g),
        "reduce": lambda g: dist.reduce(one(2), 0, group=g),
        "all_gather": lambda g: dist.all_gather([one(2)] * size, one(2), group=g),
        "all_gather_into_tensor": lambda g: dist.all_gather_into_tensor(one(2 * size), one(2), group=g),
        "reduce_scatter": lambda g: dist.reduce_scatter(one(2), [one(2)] * size, group=g),
        "gather": lambda g: dist.gather(one(2), None, 1 - rank, group=g) if size == 2 else None,
        "scatter": lambda g: dist.scatter(one(2), None, 1 - rank, group=g) if size == 2 else None,
        "all_to_all": lambda g: dist.all_to_all([one(2)] * size, [one(2)] * size, group=g),
        "barrier": lambda g: dist.barrier(group=g),
        "send": lambda g: dist.send(one(2), (rank + 1) % size, group=g),
        "recv": lambda g: dist.recv(one(2), (rank + 1) % size, group=g),
        "get_rank": lambda g: dist.get_rank(g),
        "get_world_size": lambda g: dist.get_world_size(g),
        "objects": lambda g: dist.all_gather_object([None] * size, 1, group=g),
        "functional": lambda g: functional.all_reduce(one(2), "sum", g) + 0,
    }
    cases = {
        f"{call}, {name}": lambda _, call=operation, other=other: call(other)
        for name, other in others.items()
        for call, operation in calls.items()
        if name != "destroyed" or call not in ("send", "recv", "functional")
    }
    return outcomes(cases)


@body
def coalescing(rank: int, size: int) -> Any:
    one = torch.ones

    def manager(device: Any, *operations: Case) -> Case:
        def case(g: Any) -> Any:
            with dist._coalescing_manager(group=g, device=device, async_ops=False):
                for operation in operations:
                    operation(g)
            return "done"

        return case

    def reduce_all(g: Any) -> Any:
        return dist.all_reduce(one(2), group=g)

    def gather_all(g: Any) -> Any:
        return dist.all_gather_into_tensor(one(2 * size), one(2), group=g)

    cpu = torch.device("cpu")
    cases = {
        "by device": manager(cpu, reduce_all),
        "by device, nothing": manager(cpu),
        "nothing": manager(None),
        "reductions": manager(None, reduce_all, reduce_all),
        "gathers": manager(None, gather_all, gather_all),
        "by hand": lambda g: g._start_coalescing(cpu),
        "ended by hand": lambda g: g._end_coalescing(cpu),
    }
    return outcomes(cases)
