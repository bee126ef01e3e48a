"""Serves requests with vLLM's own scheduler in virtual time: `vllm_serve.py [SHAPE] (--rate R | --concurrency N)
[options]`.

With `--rate` requests arrive as a Poisson process, independently of the server (open loop); with `--concurrency` the
next one arrives when one has ended (closed loop). The engine is in the rank's process and driven step by step; a
token's time is when `step()` returns. With several ranks all run the same engine, whose decisions follow from the
requests that it received before each step. In an open loop rank 0, where requests arrive, announces their number; in a
closed loop it follows from the tokens.

Rank 0 names two ranges for each request, which show in traces and reports: `first token`, which is its TTFT, and
`further tokens`.
"""

import argparse
import os
import time
from collections.abc import Iterable, Sequence
from itertools import islice

import loads
import torch
import vllm_model
from loads import Arrivals, Frontend, Request, is_first
from shapes import SHAPES
from vllm import EngineArgs, SamplingParams
from vllm.distributed.parallel_state import get_world_group
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.llm_engine import LLMEngine


class Server:
    """An engine, its requests, and its clock."""

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
        """Runs a step of the engine; returns the requests that have ended."""
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
        """Serves until all arriving requests have been answered."""
        given = 0
        arrivals = Arrivals(requests, lambda: self.now) if is_first() else None
        while given < len(requests) or self.served:
            if arrivals and not self.served:
                # Other ranks wait in `agreed` for rank 0's number.
                arrivals.wait(given)
            arrived = agreed(arrivals.count if arrivals else 0)
            for request in requests[given:arrived]:
                self.add(request)
            given = arrived
            if self.served:
                self.step()

    def closed_loop(self, requests: Sequence[Request], words: argparse.Namespace, until: Iterable[Request]) -> None:
        """Keeps `words.concurrency` requests running until those in `until` have ended; the remaining ones are
        aborted."""
        waiting, awaited = iter(requests), {request.number for request in until}
        frontend, entering = Frontend(words.frontend, lambda: self.now), words.concurrency
        while awaited:
            for request in islice(waiting, entering):
                frontend.enters(request)
            if is_first() and not self.served:
                frontend.wait()
            # If the frontend takes no time, all ranks know which requests have passed: all that have entered.
            passed = agreed(frontend.passed()) if words.frontend and frontend.inside else len(frontend.inside)
            for request in frontend.take(passed):
                self.add(request)
            ended = self.step()
            awaited -= {request.number for request in ended}
            entering = len(ended)
        self.engine.abort_request(list(self.served))


def agreed(arrived: int) -> int:
    """Rank 0's number of arrived requests, on every rank."""
    if int(os.environ["WORLD_SIZE"]) == 1:
        return arrived
    said = torch.tensor([arrived])
    torch.distributed.broadcast(said, src=0, group=get_world_group().cpu_group)
    return int(said)


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = vllm_model.parser(__doc__)
    loads.add(parser)
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
    words = parser.parse_args()
    loads.check(parser, words)
    return words


def main() -> None:
    words = arguments()
    load = loads.load(words, SHAPES[words.shape]["vocab_size"])
    given = EngineArgs(
        **vllm_model.engine(words),
        max_model_len=words.max_model_len or load.longest,
        max_num_batched_tokens=words.max_batched_tokens,
        max_num_seqs=words.max_sequences,
        enable_prefix_caching=words.prefix_caching,
        async_scheduling=False if words.synchronous else None,
        disable_log_stats=True,
        **({} if words.gpu_memory_utilization is None else {"gpu_memory_utilization": words.gpu_memory_utilization}),
    )
    engine = LLMEngine.from_engine_args(given, usage_context=UsageContext.OPENAI_API_SERVER)
    server = Server(engine)
    if words.concurrency:
        for requests, awaited in load.phases(words):
            server.closed_loop(requests, words, until=awaited)
    else:
        server.open_loop(load.all)
    if is_first():
        loads.report(load, words)
    print("RESULT", os.environ["RANK"], "generated", sum(len(request.tokens) for request in load.counted))


if __name__ == "__main__":
    main()
