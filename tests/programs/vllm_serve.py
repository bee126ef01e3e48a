"""Serves requests with vLLM's own scheduler in virtual time: `vllm_serve.py [SHAPE] (--rate R | --concurrency N) [options]`.

With `--rate` requests arrive as a Poisson process, whatever the server does (open loop); with `--concurrency` the next one arrives when
one has ended (closed loop). The engine is in the rank's process and driven step by step; a token is there when `step()` returns.
With several ranks all run the same engine, whose decisions follow from which requests it was given before which step: of an open
loop rank 0 says so, where they arrive, of a closed loop it follows from the tokens.

Rank 0 names two ranges for each request, which show in traces and reports: `first token`, which is its TTFT, and `further tokens`.
"""

import argparse
import csv
import math
import os
import random
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
import vllm_model
from shapes import SHAPES
from torch.cuda import nvtx
from vllm import EngineArgs, SamplingParams
from vllm.distributed.parallel_state import get_world_group
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.llm_engine import LLMEngine

PERCENTILES = (50, 90, 99)


@dataclass
class Request:
    """One request; times are seconds since serving began."""

    number: int
    prompt: list[int]
    output: int
    # Of an open loop when it arrives, of a closed loop when it has arrived.
    arrival: float = 0.0
    tokens: list[float] = field(default_factory=list)
    # The range that goes on.
    range: int | None = None

    def arrives(self) -> None:
        self._enters("first token")

    def gets(self, tokens: int, now: float) -> None:
        """Tokens that are there now."""
        if not self.tokens:
            self._enters("further tokens")
        self.tokens += [now] * tokens

    def ends(self) -> None:
        self._enters(None)

    def _enters(self, name: str | None) -> None:
        if self.range is not None:
            nvtx.range_end(self.range)
        self.range = nvtx.range_start(name) if name and is_first() else None

    @property
    def first_token(self) -> float:
        """TTFT."""
        return self.tokens[0] - self.arrival

    @property
    def each_token(self) -> float:
        """TPOT: the mean time from one token to the next. NaN of a single token."""
        return (self.tokens[-1] - self.tokens[0]) / (len(self.tokens) - 1) if len(self.tokens) > 1 else math.nan

    @property
    def end_to_end(self) -> float:
        """From its arrival to its last token."""
        return self.tokens[-1] - self.arrival


class Server:
    """An engine, the requests that it has, and its clock."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.served: dict[str, Request] = {}
        self.began = time.perf_counter()

    @property
    def now(self) -> float:
        return time.perf_counter() - self.began

    def add(self, request: Request) -> None:
        lengths = SamplingParams(
            temperature=0,
            ignore_eos=True,
            max_tokens=request.output,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self.served[str(request.number)] = request
        self.engine.add_request(str(request.number), {"prompt_token_ids": request.prompt}, lengths)

    def step(self) -> list[Request]:
        """A step of the engine; which requests have ended with it."""
        outputs = self.engine.step()
        now, ended = self.now, []
        for output in outputs:
            request = self.served[output.request_id]
            request.gets(len(output.outputs[0].token_ids), now)
            if output.finished:
                request.ends()
                ended.append(self.served.pop(output.request_id))
        return ended

    def open_loop(self, requests: Sequence[Request]) -> None:
        """Until all that arrive have been answered."""
        given = 0
        arrivals = Arrivals(self, requests) if is_first() else None
        while given < len(requests) or self.served:
            if arrivals and not self.served:
                # Other ranks wait below for what rank 0 says.
                arrivals.wait(given)
            arrived = agreed(arrivals.count if arrivals else 0)
            for request in requests[given:arrived]:
                self.add(request)
            given = arrived
            if self.served:
                self.step()

    def closed_loop(self, requests: Sequence[Request], concurrency: int, until: Iterable[Request]) -> None:
        """With `concurrency` requests at any time, until those have ended; what then goes on is aborted."""
        waiting, awaited = iter(requests), {request.number for request in until}
        entering = concurrency
        while awaited:
            for request in islice(waiting, entering):
                request.arrival = self.now
                request.arrives()
                self.add(request)
            ended = self.step()
            awaited -= {request.number for request in ended}
            entering = len(ended)
        self.engine.abort_request(list(self.served))


class Arrivals(threading.Thread):
    """Lets requests arrive while the engine is at work."""

    def __init__(self, server: Server, requests: Sequence[Request]) -> None:
        super().__init__(name="arrivals", daemon=True)
        self.server, self.requests = server, requests
        self.count, self.changed = 0, threading.Condition()
        self.start()

    def run(self) -> None:
        for request in self.requests:
            time.sleep(max(request.arrival - self.server.now, 0))
            request.arrives()
            with self.changed:
                self.count += 1
                self.changed.notify()

    def wait(self, given: int) -> None:
        """Until more than these have arrived."""
        with self.changed:
            self.changed.wait_for(lambda: self.count > given)


def agreed(arrived: int) -> int:
    """What rank 0 says, where they arrive."""
    if int(os.environ["WORLD_SIZE"]) == 1:
        return arrived
    said = torch.tensor([arrived])
    torch.distributed.broadcast(said, src=0, group=get_world_group().cpu_group)
    return int(said)


def is_first() -> bool:
    return os.environ["RANK"] == "0"


def draw(count: int, words: argparse.Namespace) -> list[Request]:
    """Requests with distinct prompts: with prefix caching, too, none finds its prompt in the cache."""
    # Arrivals and lengths are the same whatever else is drawn.
    gaps, lengths, texts = (random.Random(f"{words.seed} {name}") for name in ("gaps", "lengths", "texts"))
    vocabulary, arrival, requests = SHAPES[words.shape]["vocab_size"], 0.0, []
    for number in range(count):
        arrival += gaps.expovariate(words.rate) if words.rate else 0.0
        prompt, output = (drawn(lengths, mean, words.spread) for mean in (words.input, words.output))
        requests.append(Request(number, texts.choices(range(vocabulary), k=prompt), output, arrival))
    return requests


def listed(file: Path, words: argparse.Namespace) -> list[Request]:
    """The requests of a table, with prompts that are drawn."""
    texts, vocabulary = random.Random(f"{words.seed} texts"), SHAPES[words.shape]["vocab_size"]
    with file.open(newline="") as rows:
        return [
            Request(
                number,
                texts.choices(range(vocabulary), k=int(row["prompt"])),
                int(row["tokens"]),
                float(row["arrival_s"]),
            )
            for number, row in enumerate(csv.DictReader(rows))
        ]


def drawn(source: random.Random, mean: int, spread: float) -> int:
    """A length: `mean`, or log-normal with this mean and this standard deviation of the logarithm."""
    return max(round(mean * math.exp(source.gauss(-(spread**2) / 2, spread))), 1) if spread else mean


def percentile(values: Iterable[float], part: int) -> float:
    """The smallest value that `part` of 100 do not exceed. NaN if there is none."""
    ordered = sorted(value for value in values if not math.isnan(value))
    return ordered[max(math.ceil(len(ordered) * part / 100), 1) - 1] if ordered else math.nan


def mean(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


COLUMNS = ("request", "arrival_s", "prompt", "tokens", "ttft_ms", "tpot_ms", "end_to_end_ms")


def row(request: Request) -> list[str]:
    times = (request.first_token, request.each_token, request.end_to_end)
    return [
        f"{request.number}",
        f"{request.arrival:.6f}",
        f"{len(request.prompt)}",
        f"{len(request.tokens)}",
        *(f"{1e3 * seconds:.3f}" for seconds in times),
    ]


def report(counted: Sequence[Request], requests: Sequence[Request], words: argparse.Namespace) -> None:
    """Each request that counts, and all of them together."""
    if not words.brief:
        print(" ".join(f"{name:>13}" for name in COLUMNS))
        for request in counted:
            print(" ".join(f"{cell:>13}" for cell in row(request)))
    print(f"{'':<8} {'mean':>10} " + " ".join(f"{f'p{part}':>10}" for part in PERCENTILES))
    measures = {
        "TTFT ms": [1e3 * request.first_token for request in counted],
        "TPOT ms": [1e3 * request.each_token for request in counted],
        "E2E ms": [1e3 * request.end_to_end for request in counted],
    }
    for name, values in measures.items():
        figures = (mean(values), *(percentile(values, part) for part in PERCENTILES))
        print(f"{name:<8} " + " ".join(f"{figure:>10.3f}" for figure in figures))
    began, ended = min(request.arrival for request in counted), max(request.tokens[-1] for request in counted)
    took = ended - began
    # Also those of requests that do not count themselves: the server was busy with them.
    tokens = sum(began < at <= ended for request in requests for at in request.tokens)
    print(f"throughput {len(counted) / took:.3f} requests/s, {tokens / took:.1f} tokens/s generated, in {took:.3f} s")
    good = sum(
        # Of a single token there is no next one to wait for.
        1e3 * request.first_token <= words.ttft and not 1e3 * request.each_token > words.tpot
        for request in counted
    )
    print(
        f"goodput {good / took:.3f} requests/s: {good} of {len(counted)} with TTFT <= {words.ttft:g} ms "
        f"and TPOT <= {words.tpot:g} ms"
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = vllm_model.parser(__doc__)
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--rate", type=float, help="requests a second, a Poisson process")
    load.add_argument("--concurrency", type=int, help="requests at any time, a new one when one has ended")
    load.add_argument(
        "--arrivals",
        type=Path,
        metavar="FILE",
        help="those of a table with the columns arrival_s, prompt and tokens, as --requests writes it: all of them count",
    )
    parser.add_argument("--count", type=int, default=64, help="requests that count (default 64)")
    parser.add_argument("--warmup", type=int, default=0, help="requests before these, which do not count (default 0)")
    parser.add_argument(
        "--drain",
        action="store_true",
        help="with --concurrency: requests that count begin when all before them have ended, as load generators do",
    )
    parser.add_argument("--input", type=int, default=1024, help="tokens of a prompt (default 1024)")
    parser.add_argument("--output", type=int, default=128, help="tokens generated for it (default 128)")
    parser.add_argument(
        "--spread", type=float, default=0.0, help="draw lengths log-normally: standard deviation of their logarithm"
    )
    parser.add_argument("--seed", type=int, default=0, help="of arrivals, lengths and prompts (default 0)")
    parser.add_argument("--ttft", type=float, default=500.0, help="objective for goodput, in ms (default 500)")
    parser.add_argument("--tpot", type=float, default=50.0, help="objective for goodput, in ms (default 50)")
    parser.add_argument("--max-batched-tokens", type=int, help="tokens of a step (default: vLLM's, as of its server)")
    parser.add_argument("--max-sequences", type=int, help="requests of a step (default: vLLM's, as of its server)")
    parser.add_argument(
        "--max-model-len", type=int, help="tokens of a sequence (default: of the longest request, prompt and answer)"
    )
    parser.add_argument("--gpu-memory-utilization", type=float, help="part of a GPU's memory (default: vLLM's)")
    parser.add_argument("--synchronous", action="store_true", help="schedule a step when the one before has ended")
    parser.add_argument(
        "--prefix-caching",
        action="store_true",
        help="keep prompts for later ones (all prompts are distinct, so none is found)",
    )
    parser.add_argument("--requests", type=Path, metavar="FILE", help="write a table of the requests that count")
    parser.add_argument("--brief", action="store_true", help="print no line for each request")
    words = parser.parse_args()
    if words.drain and not words.concurrency:
        parser.error("--drain needs --concurrency: an open loop does not wait for what has ended")
    drawn = [
        name
        for name in ("count", "warmup", "input", "output", "spread")
        if getattr(words, name) != parser.get_default(name)
    ]
    if words.arrivals and drawn:
        parser.error(f"--{drawn[0]} says what to draw: with --arrivals the table says which requests there are")
    return words


def main() -> None:
    words = arguments()
    if words.arrivals:
        requests = listed(words.arrivals, words)
        before, counted = [], requests
    else:
        total = words.warmup + words.count
        # In a closed loop some go on beside the last ones that count, unless it is drained.
        requests = draw(total + (0 if words.drain else words.concurrency or 0), words)
        before, counted = requests[: words.warmup], requests[words.warmup : total]
    longest = max(len(request.prompt) + request.output for request in requests)
    given = EngineArgs(
        **vllm_model.engine(words),
        max_model_len=words.max_model_len or longest,
        max_num_batched_tokens=words.max_batched_tokens,
        max_num_seqs=words.max_sequences,
        enable_prefix_caching=words.prefix_caching,
        async_scheduling=False if words.synchronous else None,
        disable_log_stats=True,
        **({} if words.gpu_memory_utilization is None else {"gpu_memory_utilization": words.gpu_memory_utilization}),
    )
    engine = LLMEngine.from_engine_args(given, usage_context=UsageContext.OPENAI_API_SERVER)
    server = Server(engine)
    if not words.concurrency:
        server.open_loop([*before, *counted])
    elif words.drain:
        for phase in (before, counted):
            server.closed_loop(phase, words.concurrency, until=phase)
    else:
        server.closed_loop(requests, words.concurrency, until=counted)
    if is_first():
        report(counted, requests, words)
        if words.requests:
            with words.requests.open("w", newline="") as file:
                csv.writer(file).writerows([COLUMNS, *(row(request) for request in counted)])
    print("RESULT", os.environ["RANK"], "generated", sum(len(request.tokens) for request in counted))


if __name__ == "__main__":
    main()
