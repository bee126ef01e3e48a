"""Federated averaging (McMahan et al., AISTATS 2017): a server, and clients of which some are slow or crash.

    torchrun --nproc-per-node 7 rounds.py --deadline 20

Each round the server, rank 0, sends the weights to all remaining clients. A client trains on data of its own, marks in
the store that it has finished, and sends its weights if the server requests them: it requests those of the clients that
finished before the deadline, at least one, and averages them. Late clients train again in the next round.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store, _get_default_store
from torch.profiler import record_function

FEATURES, CLASSES, SAMPLES = 32, 10, 512


@torch.no_grad()
def main() -> None:
    """Trains, and prints the round's clients and the accuracy on the server."""
    parser = argparse.ArgumentParser(description="Federated averaging with a deadline.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=4, help="epochs of a client in a round (default 4)")
    parser.add_argument("--deadline", type=float, default=1e9, help="seconds for a round (default: wait for all)")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, CLASSES))
    store = _get_default_store()
    if dist.get_rank() == 0:
        serve(model, store, options.rounds, options.deadline)
    else:
        follow(model, store, options.rounds, options.epochs)
    # A process group that lacks a member cannot be destroyed in order.
    os._exit(0)


def serve(model: nn.Module, store: Store, rounds: int, deadline: float) -> None:
    """The server's rounds."""
    there = list(range(1, dist.get_world_size()))
    for number in range(rounds):
        began = time.perf_counter()
        with record_function("round"):
            there = [client for client in there if told(client, flat(model))]
            done = finished(store, number, there, began + deadline)
            arrived: list[Tensor] = []
            for client in list(there):
                if told(client, torch.tensor([float(client in done)])):
                    if client in done:
                        arrived.append(torch.empty_like(flat(model)))
                        dist.recv(arrived[-1], client)
                else:
                    there.remove(client)
            assign(model, torch.stack(arrived).mean(0))
        took = time.perf_counter() - began
        print(f"round {number}: clients {done} of {there}, accuracy {accuracy(model):.4f}")
        print(f"round {number} took {took:.3f} s", flush=True)


def told(client: int, what: Tensor) -> bool:
    """Sends a tensor to a client; False if the client has crashed."""
    try:
        dist.send(what, client)
    except RuntimeError:
        return False
    return True


def finished(store: Store, number: int, clients: list[int], deadline: float) -> list[int]:
    """The finished clients, when all have finished or at the deadline; at least one."""
    while True:
        done = [client for client in clients if store.check([f"{number}/{client}"])]
        if len(done) == len(clients) or (done and time.perf_counter() >= deadline):
            return done
        time.sleep(0.05)


def follow(model: nn.Module, store: Store, rounds: int, epochs: int) -> None:
    """A client's rounds."""
    rank = dist.get_rank()
    inputs, targets = samples(rank, skewed=True)
    weights, wanted = flat(model), torch.zeros(1)
    for number in range(rounds):
        dist.recv(weights, 0)
        assign(model, weights)
        with record_function("train"), torch.enable_grad():
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for _ in range(epochs):
                for part in torch.arange(SAMPLES).split(32):
                    optimizer.zero_grad()
                    F.cross_entropy(model(inputs[part]), targets[part]).backward()
                    optimizer.step()
        store.set(f"{number}/{rank}", "done")
        dist.recv(wanted, 0)
        if wanted.item():
            dist.send(flat(model), 0)


def samples(seed: int, skewed: bool) -> tuple[Tensor, Tensor]:
    """Noisy points around ten centres; a client has mostly points of some classes."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(99))
    shares = torch.ones(CLASSES)
    if skewed:
        shares[torch.arange(3 * seed, 3 * seed + 3) % CLASSES] = 10
    targets = torch.multinomial(shares, SAMPLES, replacement=True, generator=draw)
    return centres[targets] + 1.5 * torch.randn(SAMPLES, FEATURES, generator=draw), targets


def accuracy(model: nn.Module) -> float:
    """Accuracy on points that no client has, equally many of each class."""
    inputs, targets = samples(1000, skewed=False)
    right: Tensor = model(inputs).argmax(1) == targets
    return right.double().mean().item()


def flat(model: nn.Module) -> Tensor:
    """All weights in one tensor."""
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def assign(model: nn.Module, weights: Tensor) -> None:
    """Copies all weights from one tensor."""
    nn.utils.vector_to_parameters(weights, model.parameters())


if __name__ == "__main__":
    main()
