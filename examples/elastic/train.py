"""Data-parallel training that goes on when a rank is gone: the others form a new group, and take the step again.

    torchrun --nproc-per-node 4 train.py          # nobody goes: as usual
    uniference run --cluster boards.toml train.py # rank 2 crashes

No checkpoint is needed, as all ranks have the same weights. Who is left finds out in the store: every rank that has seen
the failure signs in, and the first of them closes the list after some seconds.
"""

import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store
from torch.profiler import record_function


def main() -> None:
    """Trains, and prints the loss now and then."""
    parser = argparse.ArgumentParser(description="Training that survives the loss of ranks.")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--patience", type=float, default=5.0, help="seconds in which all who are left sign in (default 5)"
    )
    options = parser.parse_args()
    me = int(os.environ["RANK"])
    members = list(range(int(os.environ["WORLD_SIZE"])))
    dist.init_process_group("gloo")
    # Outlives the groups.
    store = _get_default_store()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = 0
    while step < options.steps:
        loss = None
        # The error holds the group that has failed: regrouped behind this block, its connections close.
        with record_function("step"), contextlib.suppress(RuntimeError):
            loss = gradients(model, step, members.index(me), len(members))
        if loss is None:
            with record_function("recovery"):
                members = regrouped(store, me, members, options.patience)
            if me == members[0]:
                print(f"step {step}: going on with ranks {members}", flush=True)
            continue
        optimizer.step()
        if me == members[0] and step % 10 == 9:
            print(f"step {step}: loss {loss:.6f}", flush=True)
        step += 1
    if me == members[0]:
        print(f"ended with {len(members)} ranks")
    # A group that has lost a member cannot be taken down in order.
    os._exit(0)


def gradients(model: nn.Module, step: int, place: int, ranks: int) -> float:
    """Leaves the gradients of the step's whole batch, of which each rank computes an equal part. Returns its loss."""
    draw = torch.Generator().manual_seed(step)
    inputs = torch.randn(240, 64, generator=draw)
    mine = inputs.tensor_split(ranks)[place]
    model.zero_grad()
    loss = F.mse_loss(model(mine), mine.roll(1, dims=1), reduction="sum") / inputs.numel()
    loss.backward()
    parts = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    total = torch.cat([*parts, loss.detach().view(1)])
    dist.all_reduce(total)
    # Only now is anything changed: until here, a step can be taken again.
    for parameter, part in zip(model.parameters(), total[:-1].split([len(part) for part in parts]), strict=True):
        parameter.grad = part.view_as(parameter)
    return float(total[-1])


def regrouped(store: Store, me: int, members: list[int], patience: float) -> list[int]:
    """A new group of those who are left, after one was lost."""
    generation = f"after {members}"
    # Others may wait for this rank: without its connections they see the failure, too.
    dist.destroy_process_group()
    store.set(f"{generation}/{me}", "here")
    if store.add(f"{generation}/first", 1) == 1:
        time.sleep(patience)
        left = [member for member in members if store.check([f"{generation}/{member}"])]
        store.set(f"{generation}/left", ",".join(map(str, left)))
    left = [int(member) for member in store.get(f"{generation}/left").decode().split(",")]
    new = PrefixStore(f"{generation}/group", store)
    dist.init_process_group("gloo", store=new, rank=left.index(me), world_size=len(left))
    return left


if __name__ == "__main__":
    main()
