"""Owns one rank's part of pipelined decoding: it receives, computes and sends, micro-batch after micro-batch.

Any number of ranks may shard the stage's matrices: `choose` picks tokens from the logits that the stage has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from llama import Config, Llama


@dataclass(frozen=True)
class Neighbours:
    """The peers of a stage's rank; for the first stage `before` is the last one, as tokens return."""

    before: int
    after: int


@torch.inference_mode()
def generate(
    model: Llama,
    ranks: Neighbours,
    micro_batches: list[list[list[int]]],
    tokens: int,
    choose: Callable[[Tensor], list[int]],
) -> list[list[list[int]]]:
    """Decodes greedily. Returns the answers, by micro-batch and text, on the first and on the last stage.

    With as many micro-batches as stages, all stages work at once: each has one micro-batch.
    """
    memories = [[model.remember() for _ in texts] for texts in micro_batches]
    answers: list[list[list[int]]] = [[[] for _ in texts] for texts in micro_batches]
    alone = model.first and model.last
    sent: list[dist.Work | None] = []
    for step in range(tokens):
        for texts, memory, answer in zip(micro_batches, memories, answers, strict=True):
            with record_function("prefill" if step == 0 else "decode"):
                counts = [len(text) if step == 0 else 1 for text in texts]
                if model.first and step == 0:
                    x = torch.tensor(list(chain(*texts)))
                elif model.first:
                    if not alone:
                        _keep(answer, _received(torch.empty(len(texts), dtype=torch.long), ranks.before).tolist())
                    x = torch.tensor([text[-1] for text in answer])
                else:
                    x = _received(torch.empty(sum(counts), model.config.hidden), ranks.before)
                out = model(x, memory, counts)
                if model.last:
                    newest = choose(out)
                    _keep(answer, newest)
                    out = torch.tensor(newest)
                if not alone:
                    sent.append(dist.isend(out, ranks.after))
    if model.first and not alone:
        for texts, answer in zip(micro_batches, answers, strict=True):
            _keep(answer, _received(torch.empty(len(texts), dtype=torch.long), ranks.before).tolist())
    for work in sent:
        if work is not None:
            work.wait()
    return answers


def _keep(answers: list[list[int]], newest: list[int]) -> None:
    for answer, token in zip(answers, newest, strict=True):
        answer.append(token)


def _received(buffer: Tensor, source: int) -> Tensor:
    dist.recv(buffer, source)
    return buffer


def shares(total: int, parts: int) -> list[int]:
    """A number as a sum of parts that are as equal as possible, larger ones first."""
    return [total // parts + (index < total % parts) for index in range(parts)]


def balanced(config: Config, stages: int) -> list[int]:
    """Layers of each stage, so that all stages read equally much: the last one also has the head."""
    if stages == 1:
        return [config.layers]
    attention = 2 * config.hidden * (config.heads + config.kv_heads) * config.head
    head = round(config.vocabulary * config.hidden / (attention + 3 * config.hidden * config.ffn))
    last = max((config.layers + head) // stages - head, 1)
    return [*shares(config.layers - last, stages - 1), last]


def dealt(texts: list[list[int]], count: int) -> list[list[list[int]]]:
    """Texts in `count` micro-batches that are as equal as possible, in order."""
    rest = iter(texts)
    return [[next(rest) for _ in range(share)] for share in shares(len(texts), count)]
