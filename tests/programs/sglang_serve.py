"""Serves requests with SGLang's own scheduler in virtual time: `sglang_serve.py [SHAPE] (--rate R | --concurrency N)
[options]`.

With `--rate` requests arrive as a Poisson process, independently of the scheduler (open loop); with `--concurrency` the
next one arrives when one has ended (closed loop). Each rank is one of the server's schedulers, with its event loop.
`Socket`, in rank 0, replaces the processes that receive requests and turn tokens into text: a token's time is when the
scheduler would send it to them. Options that are not listed are SGLang's.
"""

import argparse
import os
import pickle
import sys
import tempfile
import time
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path

import loads
import sglang_batch  # first of all
import zmq
from loads import Arrivals, Frontend, Load, Request, is_first
from sglang.srt.entrypoints.engine import _set_envs_and_config
from sglang.srt.managers.io_struct import (
    BaseBatchReq,
    BaseReq,
    BatchTokenIDOutput,
    ShutdownReq,
    TokenizedGenerateReqInput,
)
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.ipc_channels import SchedulerIpcChannels
from sglang.srt.managers.scheduler_components.output_sender import SenderWrapper
from sglang.srt.runtime_context import SpawnRanks, publish, spawn_world_rank
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import PortArgs, ServerArgs, prepare_server_args
from shapes import SHAPES


class ClosedLoop:
    """Keeps `words.concurrency` requests running at any time, phase after phase."""

    def __init__(self, load: Load, words: argparse.Namespace, now: Callable[[], float]) -> None:
        self.concurrency, self.frontend = words.concurrency, Frontend(words.frontend, now)
        self.phases = deque(load.phases(words))
        self.waiting: deque[Request] = deque()
        self.awaited: set[int] = set()

    @property
    def is_over(self) -> bool:
        return not self.phases and not self.awaited

    def next(self) -> Request | None:
        """The next request for the scheduler; None if there is none now."""
        if not self.awaited and self.phases:
            requests, until = self.phases.popleft()
            self.waiting, self.awaited = deque(requests), {request.number for request in until}
            self._enter(self.concurrency)
        return self.frontend.take(1)[0] if self.frontend.passed() else None

    def ended(self, request: Request) -> None:
        self.awaited.discard(request.number)
        self._enter(1)

    def _enter(self, count: int) -> None:
        for _ in range(min(count, len(self.waiting))):
            self.frontend.enters(self.waiting.popleft())

    def wait(self) -> None:
        """Blocks until there is a next request."""
        self.frontend.wait()


class OpenLoop:
    """Requests arrive independently of the scheduler."""

    def __init__(self, load: Load, now: Callable[[], float]) -> None:
        self.requests, self.now = load.all, now
        self.given = self.answered = 0
        self.arrivals: Arrivals | None = None

    @property
    def is_over(self) -> bool:
        return self.answered == len(self.requests)

    def next(self) -> Request | None:
        """The next request that has arrived; None if there is none now."""
        self.arrivals = self.arrivals or Arrivals(self.requests, self.now)
        if self.given == self.arrivals.count:
            return None
        self.given += 1
        return self.requests[self.given - 1]

    def ended(self, request: Request) -> None:
        self.answered += 1

    def wait(self) -> None:
        """Blocks until the next request arrives."""
        if self.arrivals and self.given < len(self.requests):
            self.arrivals.wait(self.given)


class Socket:
    """Stands in for the scheduler's sockets to and from the server's other processes. Messages are pickled, as on the
    real sockets."""

    def __init__(self, load: Load, words: argparse.Namespace) -> None:
        self.loop = ClosedLoop(load, words, self.now) if words.concurrency else OpenLoop(load, self.now)
        self.served: dict[str, Request] = {}
        self.began: float | None = None
        self.has_ended = False

    def now(self) -> float:
        """Seconds since the first request for messages."""
        if self.began is None:
            self.began = time.perf_counter()
        return time.perf_counter() - self.began

    def recv_pyobj(self, flags: int) -> BaseReq:
        """The next message to the scheduler."""
        if self.loop.is_over and not self.has_ended:
            self.has_ended = True
            return ShutdownReq()
        request = None if self.has_ended else self.loop.next()
        if request is None:
            raise zmq.Again
        self.served[str(request.number)] = request
        message: TokenizedGenerateReqInput = pickle.loads(pickle.dumps(tokenized(request)))
        return message

    def send_pyobj(self, message: BaseReq | BaseBatchReq, flags: int, protocol: int) -> None:
        """Handles a message of the scheduler."""
        output = pickle.loads(pickle.dumps(message, protocol))
        if not isinstance(output, BatchTokenIDOutput):
            return
        now = self.now()
        for number, count, reason in zip(
            output.rids or (), output.completion_tokens, output.finished_reasons, strict=True
        ):
            request = self.served[number]
            request.gets(count - len(request.tokens), now)
            if reason is not None:
                request.ends()
                del self.served[number]
                self.loop.ended(request)

    def maybe_sleep(self) -> None:
        """Called if the scheduler has nothing to do."""
        self.loop.wait()


class Nobody:
    """A socket that receives no messages."""

    def recv_pyobj(self, flags: int) -> BaseReq:
        raise zmq.Again


class RankScheduler(Scheduler):
    """A scheduler that uses the given socket, if there is one."""

    def __init__(self, server: ServerArgs, ports: PortArgs, socket: Socket | None) -> None:
        self.socket = socket
        super().__init__(server, ports)

    def init_ipc_channels(self, port_args: PortArgs) -> None:
        self.ipc_channels = SchedulerIpcChannels(
            recv_from_tokenizer=self.socket,
            recv_from_rpc=self.socket and Nobody(),
            send_to_tokenizer=SenderWrapper(self.socket),
            send_to_detokenizer=SenderWrapper(self.socket),
            send_metrics_from_scheduler=None,
        )
        self.recv_from_tokenizer = self.socket
        self.load_snapshot_writer = None

    def init_idle_sleeper(self) -> None:
        self.idle_sleeper = self.socket


def tokenized(request: Request) -> TokenizedGenerateReqInput:
    """The request as the receiving process passes it to the scheduler."""
    lengths = SamplingParams(temperature=0, max_new_tokens=request.output, ignore_eos=True)
    lengths.normalize(None)
    return TokenizedGenerateReqInput(
        rid=str(request.number),
        input_text=None,
        input_ids=array("q", request.prompt),
        input_embeds=None,
        mm_inputs=None,
        token_type_ids=None,
        sampling_params=lengths,
        return_logprob=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=None,
        stream=True,
    )


def serve(server: ServerArgs, socket: Socket | None) -> None:
    """Runs one of the server's schedulers until the socket ends it."""
    gpu, rank = int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"])
    server.resolve_once()
    _set_envs_and_config(server)
    place = SpawnRanks(world_rank=spawn_world_rank(server, tp_rank=rank, pp_rank=0), gpu_id=gpu)
    publish(server, role="scheduler", ranks=place)
    RankScheduler(server, PortArgs.init_new(server), socket).run_event_loop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", nargs="?", default="tiny", choices=SHAPES)
    parser.add_argument("--graphs", action="store_true", help="decode by CUDA graphs; else all is eager")
    loads.add(parser)
    words, others = parser.parse_known_args()
    loads.check(parser, words)
    load = loads.load(words, SHAPES[words.shape]["vocab_size"])
    with tempfile.TemporaryDirectory() as folder:
        sglang_batch.write_model(Path(folder), words.shape)
        options = [
            *("--model-path", folder, "--load-format", "dummy", "--skip-tokenizer-init", "--disable-radix-cache"),
            *("--attention-backend", "fa3", "--sampling-backend", "pytorch", "--sleep-on-idle"),
            *("--cuda-graph-backend-prefill", "disabled"),
            *(() if words.graphs else ("--cuda-graph-backend-decode", "disabled")),
            *("--tp-size", os.environ["WORLD_SIZE"], "--nccl-port", "29600"),
            # SGLang reserves two tokens of the context.
            *("--context-length", str(load.longest + 2)),
            *others,
        ]
        serve(prepare_server_args(options), Socket(load, words) if is_first() else None)
    if is_first():
        loads.report(load, words)
    print("RESULT", os.environ["RANK"], "done")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
