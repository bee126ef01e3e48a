"""Performance tests of distributed programs, exact and without a cluster: a pytest plugin, which pytest finds by
itself.

`uniference_run` is a fixture that simulates a program. `assert_makespan` checks the run's makespan against a limit.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from uniference.results import Run

__all__ = ["assert_makespan", "uniference_run"]

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}


@pytest.fixture
def uniference_run(tmp_path: Path) -> "Callable[..., Run]":
    """Simulates programs as `uniference.simulate` does, with a separate run folder for each run of the test.

    `uniference_run("train.py", cluster="cluster.toml", compute="model")` returns a `Run`; arguments are those of
    `simulate`.
    """
    from uniference.simulation import simulate

    runs = 0

    def run(script: str | Path, args: Sequence[str] = (), cluster: str | Path | None = None, **options: Any) -> "Run":
        nonlocal runs
        runs += 1
        options.setdefault("out", tmp_path / f"uniference-{runs}")
        return simulate(script, args, cluster, **options)

    return run


def assert_makespan(
    run: "Run",
    expected: float | str | None = None,
    *,
    at_most: float | str | None = None,
    rel: float = 0.0,
    allow_measured: bool = False,
) -> None:
    """Fails the test if the makespan differs from `expected`, or exceeds `at_most`; the message lists the longest parts
    of the critical path.

    Times are seconds, or texts with a unit: `"30 ms"`. With `rel=0.01` the makespan may be 1 % away from `expected`;
    without `rel` it may differ by the rounding error of a figure with six digits. Simulated times are equal on every
    machine unless compute was measured on it: such runs are refused unless `allow_measured` is set.

    Raises AssertionError if the makespan is outside the limit, ValueError if the arguments make no sense.
    """
    __tracebackhide__ = True
    if (expected is None) == (at_most is None):
        raise ValueError("give either the expected makespan or at_most")
    if rel < 0 or (rel and expected is None):
        raise ValueError("rel must be at least 0, and belongs to an expected makespan")
    if "measured" in str(run.report["manifest"].get("compute", "")) and not allow_measured:
        raise ValueError(
            "compute was measured on this machine, so the makespan differs from run to run\n"
            'hint: pass compute="model" (with devices that have a model), compute="none" or compute="from=RUN" to uniference_run, '
            "or allow_measured=True to assert_makespan"
        )
    makespan = run.makespan
    if expected is not None:
        wanted = _seconds(expected)
        if abs(makespan - wanted) <= max(rel, 0.5e-5) * abs(wanted):
            return
        limit = f"not {_shown(wanted)}" + (f" within {100 * rel:g} %" if rel else "")
    else:
        wanted = _seconds(at_most)
        if makespan <= wanted:
            return
        limit = f"more than {_shown(wanted)}"
    change = f" ({100 * (makespan / wanted - 1):+.1f} %)" if wanted else ""
    raise AssertionError("\n".join([f"the makespan is {_shown(makespan)}, {limit}{change}", *_path(run)]))


def _path(run: "Run") -> list[str]:
    """The longest parts of the critical path, one per line."""
    lines = []
    for part in run.critical_path[:5]:
        place = part.link or (f"rank {part.rank}" if part.rank is not None else None)
        words = [
            part.kind,
            f"of {place}" if place else "",
            f"in {part.name}" if part.name not in (None, part.kind) else "",
        ]
        words += [f"at {part.line}"] if part.line else []
        lines.append(f"  {100 * part.share:4.1f} % {' '.join(filter(None, words))}")
    return lines


def _seconds(time: float | str | None) -> float:
    if isinstance(time, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([a-z]+)\s*", time)
        if match is None or match[2] not in _UNITS:
            raise ValueError(
                f'{time!r} is no time\nhint: give seconds, or a text with a unit of {", ".join(_UNITS)}, as in "30 ms"'
            )
        return float(match[1]) * _UNITS[match[2]]
    if time is None or not time >= 0:
        raise ValueError(f"{time!r} is no time\nhint: give seconds, at least 0")
    return float(time)


def _shown(time: float) -> str:
    unit, size = next(((unit, _UNITS[unit]) for unit in ("s", "ms", "us") if time >= _UNITS[unit]), ("ns", 1e-9))
    return f"{time / size:.6g} {unit}"
