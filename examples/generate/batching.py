"""Owns requests and continuous batching: the batch of each pass of a model, and the times of each request.

After every pass requests enter and leave the batch (iteration-level scheduling: Yu et al., Orca, OSDI 2022). It does
not depend on the model's sharding: `choose` picks tokens from a rank's logits.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise

import torch
from torch import Tensor
from torch.profiler import record_function

from llama import Llama, Memory


@dataclass
class Request:
    """A prompt with its arrival, its answer and its times, in seconds after the server's start."""

    number: int
    arrival: float
    prompt: list[int]
    tokens: int
    """Length of the answer, even if an end token comes earlier."""
    begun: float = 0.0
    answer: list[int] = field(default_factory=list)
    known: list[float] = field(default_factory=list)
    """Time at which each token of the answer was known."""
    memory: Memory | None = None

    @property
    def queueing(self) -> float:
        """Seconds from the arrival to the pass that reads the prompt."""
        return self.begun - self.arrival

    @property
    def first_token(self) -> float:
        """Seconds from the arrival to the first token (TTFT)."""
        return self.known[0] - self.arrival

    @property
    def each_token(self) -> float:
        """Mean seconds per token after the first (TPOT)."""
        return (self.known[-1] - self.known[0]) / max(self.tokens - 1, 1)

    @property
    def end_to_end(self) -> float:
        """Seconds from the arrival to the last token."""
        return self.known[-1] - self.arrival

    @property
    def pause(self) -> float:
        """The longest time in seconds between two tokens."""
        return max((later - earlier for earlier, later in pairwise(self.known)), default=0.0)

    @property
    def done(self) -> bool:
        """Whether the answer has all its tokens."""
        return len(self.answer) == self.tokens


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """The first arrivals of a Poisson process of `rate` per second. Another rate only changes the time scale."""
    draw = random.Random(seed)
    return [at / rate for at in accumulate(draw.expovariate(1.0) for _ in range(count))]


def serve(
    model: Llama,
    requests: Sequence[Request],
    most: int,
    choose: Callable[[Tensor], list[int]],
    agreed: Callable[[int], int] | None = None,
    follows: bool = False,
) -> None:
    """Serves requests in the order of their arrival, at most `most` at a time.

    A pass reads the prompts of new requests, and one token of each of the others. This rank's clock decides how many
    requests enter, unless several ranks have agreed; a rank that follows does not wait for arrivals itself.
    """
    start = time.perf_counter()
    waiting, running = list(requests), list[Request]()
    while waiting or running:
        if not running and not follows:
            time.sleep(max(waiting[0].arrival - (time.perf_counter() - start), 0.0))
        now = time.perf_counter() - start
        entering = sum(request.arrival <= now for request in waiting[: most - len(running)])
        if agreed is not None:
            entering = agreed(entering)
        if not running and not entering:
            continue
        for request in waiting[:entering]:
            request.begun, request.memory = now, model.remember()
        running, waiting = running + waiting[:entering], waiting[entering:]
        with record_function("pass with prompts" if entering else "pass"):
            step(model, running, choose)
        running = left(running, time.perf_counter() - start)


def left(batch: Sequence[Request], now: float) -> list[Request]:
    """Records the time of the newest tokens. Complete requests leave the batch."""
    for request in batch:
        request.known.append(now)
        if request.done:
            request.memory = None
    return [request for request in batch if not request.done]


@torch.inference_mode()
def step(model: Llama, batch: Sequence[Request], choose: Callable[[Tensor], list[int]]) -> None:
    """One pass, which generates the next token of each request of the batch."""
    texts = [request.answer[-1:] or request.prompt for request in batch]
    memories = [request.memory for request in batch if request.memory is not None]
    newest = choose(model(torch.tensor(list(chain(*texts))), memories, [len(text) for text in texts]))
    for request, token in zip(batch, newest, strict=True):
        request.answer.append(token)
