"""Runs PyTorch Distributed programs in virtual time on a simulated cluster.

`simulate`, `replay`, `workload`, `sweep`, `explain`, `whatif`, `diff`, `compare`, `fit` and `calibrate` run the
commands of the same names and return their figures as Python objects; `load` reads an earlier run. Simulated programs
need none of this package.
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
    """All public names, imported or not."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Imports public names on first use, because the command and the ranks do not need them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from uniference import results, simulation, sweeping

    # The name is stored in the module, so later accesses do not call this function.
    module = next(module for module in (results, sweeping, simulation) if hasattr(module, name))
    globals()[name] = value = getattr(module, name)
    return value
