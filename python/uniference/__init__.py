"""Runs PyTorch Distributed programs in virtual time on a simulated cluster.

`simulate`, `replay`, `workload`, `explain`, `whatif` and `diff` are the commands for programs that want their figures; nothing here is
needed inside a simulated program.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uniference.simulation import (
        Operation,
        PathPart,
        Phase,
        Rank,
        Run,
        SimulationError,
        diff,
        explain,
        replay,
        simulate,
        whatif,
        workload,
    )

__all__ = [
    "Operation",
    "PathPart",
    "Phase",
    "Rank",
    "Run",
    "SimulationError",
    "diff",
    "explain",
    "replay",
    "simulate",
    "whatif",
    "workload",
]


def __dir__() -> list[str]:
    """The public names too, imported or not."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Imports what is here when it is asked for: the command and the ranks can do without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from uniference import simulation

    # Kept, so that the next look finds it without us.
    globals()[name] = value = getattr(simulation, name)
    return value
