"""Owns programs that torchrun starts (`torch.distributed.run`, `elastic_launch`, and their callers, such as `accelerate
launch`).

The run's ranks exist already: if the launcher requests as many workers, each rank continues as one of its workers.
`spawning` handles programs that start their own ranks without torchrun.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.launcher import api

from uniference._native import Channel
from uniference.patches import names
from uniference.program import execution

# Interpreter option that torchrun passes.
_UNBUFFERED = "-u"


def install(channel: Channel) -> None:
    """Replaces torch's agent, which would start processes."""

    def launch_agent(
        config: api.LaunchConfig,
        entrypoint: Callable[..., Any] | str | None,
        args: Sequence[Any],
        *_server: Any,
        **_options: Any,
    ) -> dict[int, Any]:
        wanted = config.max_nodes * config.nproc_per_node
        if wanted != channel.world_size:
            ranks = "1 rank" if wanted == 1 else f"{wanted} ranks"
            raise RuntimeError(
                f"the launcher requests {ranks}, but this run has {channel.world_size}\n"
                f"hint: use `uniference run --ranks {wanted}`, or run the script without its launcher; "
                "the environment variables of torchrun are set for it"
            )
        if callable(entrypoint):
            return {channel.rank: entrypoint(*args)}
        _execute(entrypoint, args)
        return {channel.rank: None}

    names.LAUNCH_AGENT.replace(launch_agent)


def _execute(command: str | None, args: Sequence[str]) -> None:
    """Runs the Python program of a worker's command line in this process."""
    if command is None or not os.path.basename(command).startswith("python"):
        raise RuntimeError(
            f"the launcher would start {command}, which is not a Python interpreter\n"
            "hint: pass the Python script or module of the ranks to `uniference run`"
        )
    rest = list(args)
    while rest[:1] == [_UNBUFFERED]:
        rest.pop(0)
    module = rest[:1] == ["-m"]
    sys.argv[:] = rest[1:] if module else rest
    execution.execute(sys.argv[0], module)
