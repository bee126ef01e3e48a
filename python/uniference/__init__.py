"""Runs PyTorch Distributed programs in virtual time on a simulated cluster.

`simulate`, `replay`, `workload`, `sweep`, `explain`, `whatif`, `diff`, `compare`, `fit` and `calibrate` are the commands for programs
that want their figures, `load` reads those of an earlier run; nothing here is needed inside a simulated program.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uniference.results import (
        Answer,
        Events,
        Link,
        Operation,
        PathPart,
        Phase,
        Rank,
        Run,
        Table,
        load,
    )
    from uniference.simulation import (
        SimulationError,
        calibrate,
        compare,
        diff,
        explain,
        fit,
        replay,
        simulate,
        whatif,
        workload,
    )
    from uniference.sweeping import Sweep, sweep

__all__ = [
    "Answer",
    "Events",
    "Link",
    "Operation",
    "PathPart",
    "Phase",
    "Rank",
    "Run",
    "SimulationError",
    "Sweep",
    "Table",
    "calibrate",
    "compare",
    "diff",
    "explain",
    "fit",
    "load",
    "replay",
    "simulate",
    "sweep",
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
    from uniference import results, simulation, sweeping

    # Kept, so that the next look finds it without us.
    module = next(module for module in (results, sweeping, simulation) if hasattr(module, name))
    globals()[name] = value = getattr(module, name)
    return value
