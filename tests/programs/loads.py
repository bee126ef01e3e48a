"""Owns the requests that a program gives to an engine in its own process: which there are, when they arrive, how long they take, and what
is said of that.

Rank 0 names two ranges for each request, which show in traces and reports: `first token`, which is its TTFT, and `further tokens`.
"""

import argparse
import csv
import math
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch.cuda import nvtx

PERCENTILES = (50, 90, 99)
COLUMNS = ("request", "arrival_s", "prompt", "tokens", "ttft_ms", "tpot_ms", "end_to_end_ms")


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


class Arrivals(threading.Thread):
    """Lets requests of an open loop arrive while the engine is at work. `now` says how long it serves."""

    def __init__(self, requests: Sequence[Request], now: Callable[[], float]) -> None:
        super().__init__(name="arrivals", daemon=True)
        self.requests, self.now = requests, now
        self.count, self.changed = 0, threading.Condition()
        self.start()

    def run(self) -> None:
        for request in self.requests:
            time.sleep(max(request.arrival - self.now(), 0))
            request.arrives()
            with self.changed:
                self.count += 1
                self.changed.notify()

    def wait(self, given: int) -> None:
        """Until more than these have arrived."""
        with self.changed:
            self.changed.wait_for(lambda: self.count > given)


class Frontend:
    """The processes before the engine, through which a request of a closed loop comes: they take `seconds` for each, one after the other.
    `now` says how long the engine serves."""

    def __init__(self, seconds: float, now: Callable[[], float]) -> None:
        self.seconds, self.now = seconds, now
        # With the time at which it has come through.
        self.inside: deque[tuple[float, Request]] = deque()
        self.free = 0.0

    def enters(self, request: Request) -> None:
        request.arrival = self.now()
        request.arrives()
        self.free = max(self.free, request.arrival) + self.seconds
        self.inside.append((self.free, request))

    def passed(self) -> int:
        """How many have come through."""
        now = self.now()
        return sum(at <= now for at, _ in self.inside)

    def take(self, count: int) -> list[Request]:
        return [self.inside.popleft()[1] for _ in range(count)]

    def wait(self) -> None:
        """Until the next one has come through."""
        if self.inside:
            time.sleep(max(self.inside[0][0] - self.now(), 0))


def is_first() -> bool:
    return os.environ["RANK"] == "0"


def add(parser: argparse.ArgumentParser) -> None:
    """What the command line says of requests."""
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
    parser.add_argument(
        "--frontend",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="with --concurrency: what the processes before the engine take for each request, one after the other (default 0)",
    )
    parser.add_argument("--input", type=int, default=1024, help="tokens of a prompt (default 1024)")
    parser.add_argument("--output", type=int, default=128, help="tokens generated for it (default 128)")
    parser.add_argument(
        "--spread", type=float, default=0.0, help="draw lengths log-normally: standard deviation of their logarithm"
    )
    parser.add_argument("--seed", type=int, default=0, help="of arrivals, lengths and prompts (default 0)")
    parser.add_argument("--ttft", type=float, default=500.0, help="objective for goodput, in ms (default 500)")
    parser.add_argument("--tpot", type=float, default=50.0, help="objective for goodput, in ms (default 50)")
    parser.add_argument("--requests", type=Path, metavar="FILE", help="write a table of the requests that count")
    parser.add_argument("--brief", action="store_true", help="print no line for each request")


def check(parser: argparse.ArgumentParser, words: argparse.Namespace) -> None:
    """Ends the program if what was said contradicts itself."""
    if words.drain and not words.concurrency:
        parser.error("--drain needs --concurrency: an open loop does not wait for what has ended")
    if words.frontend and not words.concurrency:
        parser.error("--frontend needs --concurrency: of an open loop it is said when requests arrive at the engine")
    drawn = [
        name
        for name in ("count", "warmup", "input", "output", "spread")
        if getattr(words, name) != parser.get_default(name)
    ]
    if words.arrivals and drawn:
        parser.error(f"--{drawn[0]} says what to draw: with --arrivals the table says which requests there are")


@dataclass
class Load:
    """The requests, in the order in which they arrive."""

    # Those that do not count.
    before: list[Request]
    counted: list[Request]
    # Of a closed loop that is not drained: these go on beside the last ones that count.
    after: list[Request]

    @property
    def all(self) -> list[Request]:
        return [*self.before, *self.counted, *self.after]

    @property
    def longest(self) -> int:
        """Tokens of a prompt and its answer."""
        return max(len(request.prompt) + request.output for request in self.all)

    def phases(self, words: argparse.Namespace) -> list[tuple[list[Request], list[Request]]]:
        """Of a closed loop: the requests of each phase, and those that must have ended for the next one to begin."""
        if words.drain:
            return [(phase, phase) for phase in (self.before, self.counted) if phase]
        return [(self.all, self.counted)]


def load(words: argparse.Namespace, vocabulary: int) -> Load:
    """What the command line asks for. Prompts have tokens below `vocabulary`."""
    if words.arrivals:
        return Load([], listed(words.arrivals, words, vocabulary), [])
    total = words.warmup + words.count
    requests = draw(total + (0 if words.drain else words.concurrency or 0), words, vocabulary)
    return Load(requests[: words.warmup], requests[words.warmup : total], requests[total:])


def draw(count: int, words: argparse.Namespace, vocabulary: int) -> list[Request]:
    """Requests with distinct prompts: with prefix caching, too, none finds its prompt in the cache."""
    # Arrivals and lengths are the same whatever else is drawn.
    gaps, lengths, texts = (random.Random(f"{words.seed} {name}") for name in ("gaps", "lengths", "texts"))
    arrival, requests = 0.0, []
    for number in range(count):
        arrival += gaps.expovariate(words.rate) if words.rate else 0.0
        prompt, output = (drawn(lengths, mean, words.spread) for mean in (words.input, words.output))
        requests.append(Request(number, texts.choices(range(vocabulary), k=prompt), output, arrival))
    return requests


def listed(file: Path, words: argparse.Namespace, vocabulary: int) -> list[Request]:
    """The requests of a table, with prompts that are drawn."""
    texts = random.Random(f"{words.seed} texts")
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


def row(request: Request) -> list[str]:
    times = (request.first_token, request.each_token, request.end_to_end)
    return [
        f"{request.number}",
        f"{request.arrival:.6f}",
        f"{len(request.prompt)}",
        f"{len(request.tokens)}",
        *(f"{1e3 * seconds:.3f}" for seconds in times),
    ]


def report(load: Load, words: argparse.Namespace) -> None:
    """Each request that counts, and all of them together; also as a table, if one was asked for."""
    counted = load.counted
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
    tokens = sum(began < at <= ended for request in load.all for at in request.tokens)
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
    if words.requests:
        with words.requests.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *(row(request) for request in counted)])
