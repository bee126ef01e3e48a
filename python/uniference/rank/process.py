"""Owns a rank's process from the fork to its end: environment, output, the order in which its parts are installed, and
its exit.

Time, the process group, the store and imports are installed by their own modules; the engine decides when the rank may
continue.
"""

import contextlib
import faulthandler
import os
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from uniference._native import Channel
from uniference.backends import groups, native, work
from uniference.program import execution, ranges
from uniference.rank import (
    capture,
    children,
    clock,
    debugging,
    gpus,
    imports,
    launching,
    meta,
    refusals,
    spawning,
    store,
    values,
)


@dataclass(frozen=True)
class Task:
    """The program and the identity of a rank."""

    rank: int
    world_size: int
    argv: Sequence[str]
    module: bool
    env: Mapping[str, str]
    cwd: str | None
    local_rank: int
    local_world_size: int
    group_rank: int
    group_world_size: int
    device: str
    memory: int | None
    cores: int | None
    gpus: Sequence[Mapping[str, Any]]
    lends: bool
    """Whether this process is the only program of the run, and uses the GPUs of all ranks."""
    debugged: bool
    input: bool
    """Whether the rank's standard input is a file or a pipe that the driver passes."""

    @staticmethod
    def from_command(command: Mapping[str, Any]) -> "Task":
        """Parses the zygote's `fork` command."""
        rank, world_size = command["rank"], command["world_size"]
        return Task(
            rank=rank,
            world_size=world_size,
            argv=[os.fsdecode(word.encode("latin-1")) for word in command["argv"]],
            module=command.get("module", False),
            env=command.get("env", {}),
            cwd=command.get("cwd"),
            local_rank=command.get("local_rank", 0),
            local_world_size=command.get("local_world_size", 1),
            group_rank=command.get("group_rank", rank),
            group_world_size=command.get("group_world_size", world_size),
            device=command.get("device", "device"),
            memory=command.get("memory"),
            cores=command.get("cores"),
            gpus=command.get("gpus", []),
            lends=command.get("lends", False),
            debugged=command.get("debug_rank") == rank,
            input=command.get("input", False),
        )

    @property
    def threads(self) -> int:
        """Number of threads that torch uses for an operator, unless the program sets another one."""
        return min(self.cores or 1, len(os.sched_getaffinity(0)))

    def environment(self) -> dict[str, str]:
        """The variables that torchrun sets (torch/distributed/elastic/agent/server/local_elastic_agent.py, torch 2.15);
        only `OMP_NUM_THREADS` if the rank lends its GPUs."""
        if self.lends:
            return {"OMP_NUM_THREADS": str(self.threads)}
        numbers = {
            "RANK": self.rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_world_size,
            "GROUP_RANK": self.group_rank,
            "GROUP_WORLD_SIZE": self.group_world_size,
            "ROLE_RANK": self.rank,
            "ROLE_WORLD_SIZE": self.world_size,
            "MASTER_PORT": 29500,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "OMP_NUM_THREADS": self.threads,
        }
        names = {
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        return {name: str(value) for name, value in numbers.items()} | names


def run(task: Task, control: int) -> NoReturn:
    """Runs the program in this freshly forked process, and ends the process."""
    channel = Channel.adopt(control, task.rank, task.world_size)
    _prepare_process(task)
    number, stacks = channel.stacks
    # The number of threads is set only now: the zygote keeps it at 1, because threads do not survive a fork.
    torch.set_num_threads(task.threads)
    faulthandler.register(number, stacks, all_threads=True)
    # A process that is killed by a fault, for example by a kernel that writes past its tensors, prints its stacks. A
    # process that aborts has printed its reason already.
    if not faulthandler.is_enabled():
        faulthandler.enable()
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
    for part in (clock, imports, meta):
        part.install(channel)
    # The only program of a run communicates as it would on one machine: with torch's own stores, Gloo on the kernel's
    # sockets, and NCCL on the simulated GPU library.
    if not task.lends:
        for part in (store, work, refusals, spawning, launching):
            part.install(channel)
    ranges.watch(channel)
    # A library of simulated GPUs counts their memory itself.
    capture.install(channel, values.limit(), task.device, None if task.gpus else task.memory)
    # NCCL is torch's own on simulated GPUs, on top of the simulated GPU library.
    if not task.lends:
        groups.Backends(channel).install(without={"nccl"} if task.gpus else set())
    debugging.install(channel, task.debugged, task.input)
    gpus.install(channel, task.local_rank, task.gpus)
    children.hand_on(channel, task.device, task.local_rank, task.gpus, task.lends)
    if not task.lends:
        native.install(channel)
    process = os.getpid()
    capture.count_python_calls(channel)
    channel.start()
    code = execution.run(task.argv, task.module)
    if os.getpid() != process:
        # A forked copy of the program has returned from the script: it ends as any forked process would.
        execution.tidy_up()
        _flush()
        os._exit(code)
    # The rank finishes when its script has returned: the cleanup of its process is not charged.
    channel.enter()
    execution.tidy_up()
    _flush()
    try:
        channel.finish(code == 0)
    except RuntimeError:  # the program has closed the connection, and the driver has noticed
        code = code or 1
    # `os._exit` and not `sys.exit`, because the zygote's frames are below this one on the stack.
    os._exit(code)


def _prepare_process(task: Task) -> None:
    os.environ.update(task.environment())
    os.environ.update(task.env)
    children.mark_rank()
    if task.cwd is not None:
        os.chdir(task.cwd)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # Separate processes would have different seeds; forked ranks would share the zygote's, which came from the system's
    # entropy.
    random.seed(task.rank)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(task.rank)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # The program may have closed the stream, or its reader may have exited.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
