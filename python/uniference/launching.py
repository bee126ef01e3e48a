"""Owns programs that torchrun starts (`torch.distributed.run`, `elastic_launch`, and what calls them, as `accelerate launch` does).

The run's ranks are there already: a launcher that asks for as many lets each of them go on as one of its workers. Programs that start their
own ranks without torchrun are `spawning`'s business.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.launcher import api

from uniference import program
from uniference._native import Channel

# What torchrun gives the interpreter itself.
_UNBUFFERED = "-u"


def install(channel: Channel) -> None:
    """Puts this in the place of torch's agent, which would start processes."""

    def launch_agent(
        config: api.LaunchConfig,
        entrypoint: Callable[..., Any] | str | None,
        args: Sequence[Any],
        *_server: Any,
        **_options: Any,
    ) -> dict[int, Any]:
        wanted = config.max_nodes * config.nproc_per_node
        if wanted != channel.world_size:
            raise RuntimeError(
                f"the launcher asks for {wanted} ranks, and this run has {channel.world_size}\n"
                f"hint: give `uniference run` --ranks {wanted}, or the script without its launcher: "
                "it finds torchrun's environment there"
            )
        if callable(entrypoint):
            return {channel.rank: entrypoint(*args)}
        _execute(entrypoint, args)
        return {channel.rank: None}

    api.launch_agent = launch_agent


def _execute(command: str | None, args: Sequence[str]) -> None:
    """Runs the Python program that a worker's command line names, in this process."""
    if command is None or not os.path.basename(command).startswith("python"):
        raise RuntimeError(
            f"the launcher would start {command}, which is no Python interpreter\n"
            "hint: give `uniference run` the Python script or module that the ranks are to run"
        )
    rest = list(args)
    while rest[:1] == [_UNBUFFERED]:
        rest.pop(0)
    module = rest[:1] == ["-m"]
    sys.argv[:] = rest[1:] if module else rest
    program.execute(sys.argv[0], module)
