"""Data-parallel training that continues after the loss of a rank: the others form a new group, and repeat the step.

    torchrun --nproc-per-node 4 train.py          # no rank crashes
    uniference run --cluster boards.toml train.py # rank 2 crashes

No checkpoint is needed, as all ranks have the same weights. The store shows which ranks are left: every rank that has
seen the failure signs in, and the first of them closes the list after some seconds.
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
    """Trains, and prints the loss every ten steps."""
    parser = argparse.ArgumentParser(description="Training that survives the loss of ranks.")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--patience", type=float, default=5.0, help="seconds in which all who are left sign in (default 5)"
    )
    options = parser.parse_args()
    me = int(os.environ["RANK"])
    members = list(range(int(os.environ["WORLD_SIZE"])))
    dist.init_process_group("gloo")
    # The store outlives the groups.
    store = _get_default_store()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = 0
    while step < options.steps:
        loss = None
        # The error refers to the failed group, so it is released before regrouping, and the group's connections close.
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
    # A group that has lost a member cannot be destroyed in order.
    os._exit(0)


def gradients(model: nn.Module, step: int, place: int, ranks: int) -> float:
    """Computes the gradients of the step's whole batch, an equal part on each rank. Returns the loss."""
    draw = torch.Generator().manual_seed(step)
    inputs = torch.randn(240, 64, generator=draw)
    mine = inputs.tensor_split(ranks)[place]
    model.zero_grad()
    loss = F.mse_loss(model(mine), mine.roll(1, dims=1), reduction="sum") / inputs.numel()
    loss.backward()
    parts = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    total = torch.cat([*parts, loss.detach().view(1)])
    dist.all_reduce(total)
    # Gradients change only after this line: until then, a step can be repeated.
    for parameter, part in zip(model.parameters(), total[:-1].split([len(part) for part in parts]), strict=True):
        parameter.grad = part.view_as(parameter)
    return float(total[-1])


def regrouped(store: Store, me: int, members: list[int], patience: float) -> list[int]:
    """Forms a new group of the remaining ranks, after one was lost."""
    generation = f"after {members}"
    # Others may wait for this rank: once its connections close, they see the failure, too.
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
