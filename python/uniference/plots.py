"""Owns plots of a run with matplotlib (`pip install 'uniference[plot]'`).

Each method draws into `ax`, or into a new figure, and returns the axes, so the caller can set titles, colours and
sizes. Times are in seconds of virtual time.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from uniference.results import Run, imported

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Plots"]

# Colours that can also be told apart in greyscale.
COLORS = {"compute": "#4c78a8", "exposed communication": "#e45756", "idle": "#bab0ac", "operation": "#f58518"}
MOST_BARS = 32
"""Number of links or operations that are drawn: those with the largest values."""
RESOLUTION = 1000
"""Number of time bins of the timeline."""


class Plots:
    """Plots of one run. Each raises ImportError without matplotlib, and ValueError if the run lacks the plotted
    data."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<Plots of {self._run!r}: timeline, ranks, operations, links, phases, memory, critical_path>"

    def timeline(self, ax: "Axes | None" = None) -> "Axes":
        """Activity of each rank over time: compute above, exposed communication below. The paler a bin is drawn, the
        smaller is the fraction of the bin's time with that activity.

        Needs the run's events (`record="ops"`), and polars.
        """
        polars = imported("polars")
        spans = {
            "compute": self._run.events("computed").to_polars(["rank", "start_ps", "at_ps"]),
            "exposed communication": self._run.events("waited")
            .to_polars(["rank", "start_ps", "at_ps", "exposed_ps"])
            .filter(polars.col("exposed_ps") > 0),
        }
        ranks, makespan = len(self._run.ranks), self._run.makespan
        axes = _axes(ax, height=1.0 + 0.25 * min(ranks, 64))
        colors, patches = imported("matplotlib.colors"), imported("matplotlib.patches")
        for number, (name, frame) in enumerate(spans.items()):
            shades = colors.LinearSegmentedColormap.from_list(name, [(1.0, 1.0, 1.0, 0.0), COLORS[name]])
            for (rank,), rows in frame.group_by("rank", maintain_order=True):
                start, end = (rows[column].to_numpy() / 1e12 for column in ("start_ps", "at_ps"))
                top = rank - 0.4 + 0.4 * number
                axes.imshow(
                    _busy(start, end, makespan)[None, :],
                    extent=(0, makespan, top + 0.4, top),
                    cmap=shades,
                    vmin=0,
                    vmax=1,
                    aspect="auto",
                    interpolation="nearest",
                )
        axes.set(xlabel="virtual time (s)", ylabel="rank", xlim=(0, makespan), ylim=(ranks - 0.5, -0.5))
        if ranks <= MOST_BARS:
            axes.set_yticks(range(ranks))
        shown = [patches.Patch(color=COLORS[name], label=name) for name in spans]
        axes.legend(handles=shown, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
        return axes

    def ranks(self, ax: "Axes | None" = None) -> "Axes":
        """Compute, exposed communication and idle time of each rank; on every rank the parts add up to the makespan."""
        ranks = self._run.ranks
        axes, below = _axes(ax), [0.0] * len(ranks)
        for name, attribute in (
            ("compute", "compute_s"),
            ("exposed communication", "exposed_comm_s"),
            ("idle", "idle_s"),
        ):
            times = [getattr(rank, attribute) for rank in ranks]
            axes.bar([rank.rank for rank in ranks], times, bottom=below, label=name, color=COLORS[name])
            below = [low + time for low, time in zip(below, times, strict=True)]
        axes.set(xlabel="rank", ylabel="time (s)")
        axes.legend()
        return axes

    def operations(self, ax: "Axes | None" = None) -> "Axes":
        """Time of each operation of each process group, summed over all members, and the exposed part of it."""
        rows = sorted(self._run.operations, key=lambda row: -row.time_s)[:MOST_BARS]
        names = [f"{row.operation} ({row.count}x, group {row.group})" for row in rows]
        axes = _bars(ax, names, [row.time_s for row in rows], "time", COLORS["operation"])
        axes.barh(range(len(rows)), [row.exposed_s for row in rows], height=0.4, label="exposed", color="#e45756")
        axes.set_xlabel("time of all members (s)")
        axes.legend()
        return axes

    def links(self, ax: "Axes | None" = None) -> "Axes":
        """Utilization of each link: bytes carried over the link's capacity in the makespan."""
        rows = sorted(self._required(self._run.links, "links", 'record="ops"'), key=lambda row: -row.utilization)
        rows = rows[:MOST_BARS]
        axes = _bars(ax, [row.link for row in rows], [100 * row.utilization for row in rows], None, COLORS["compute"])
        axes.set_xlabel("bytes that were carried / bandwidth x makespan (%)")
        return axes

    def phases(self, ax: "Axes | None" = None) -> "Axes":
        """Total duration of the program's named ranges: for each name, of the rank with the longest total."""
        longest: dict[str, Any] = {}
        for row in self._required(self._run.phases, "named ranges", "torch.profiler.record_function"):
            if row.name not in longest or row.total_s > longest[row.name].total_s:
                longest[row.name] = row
        rows = sorted(longest.values(), key=lambda row: -row.total_s)[:MOST_BARS]
        names = [f"{row.name} ({row.count}x, rank {row.rank})" for row in rows]
        axes = _bars(ax, names, [row.total_s for row in rows], None, COLORS["operation"])
        axes.set_xlabel("time (s)")
        return axes

    def memory(self, ax: "Axes | None" = None) -> "Axes":
        """Peak memory of each rank, by kind, in GiB."""
        rows = self._required(self._run.report.get("memory", []), "figures of memory", 'compute="model"')
        kinds = list(dict.fromkeys(row["kind"] for row in rows if row["kind"] != "host"))
        ranks = sorted({row["rank"] for row in rows})
        held = {(row["rank"], row["kind"]): row["peak_bytes"] / 2**30 for row in rows}
        axes, below = _axes(ax), [0.0] * len(ranks)
        for kind in kinds:
            sizes = [held.get((rank, kind), 0.0) for rank in ranks]
            axes.bar(ranks, sizes, bottom=below, label=kind.replace("_", " "))
            below = [low + size for low, size in zip(below, sizes, strict=True)]
        axes.set(xlabel="rank", ylabel="memory at the peak (GiB)")
        axes.legend()
        return axes

    def critical_path(self, ax: "Axes | None" = None) -> "Axes":
        """The longest parts of the critical path."""
        rows = self._required(self._run.critical_path, "critical path", 'record="ops"')
        names = []
        for row in rows:
            place = row.link or (f"rank {row.rank}" if row.rank is not None else "")
            line = f", {row.line.rpartition('/')[2]}" if row.line else ""
            names.append(f"{row.kind} {place} {row.name if row.name not in (None, row.kind) else ''}{line}")
        axes = _bars(ax, names, [row.seconds for row in rows], None, COLORS["compute"])
        axes.set_xlabel("time on the critical path (s)")
        return axes

    def _required(self, rows: Sequence[Any], what: str, how: str) -> Sequence[Any]:
        if not rows:
            raise ValueError(f"the run has no {what}\nhint: they come with {how}")
        return rows


def _busy(start: Any, end: Any, makespan: float) -> Any:
    """Fraction of each time bin that is covered by at least one interval."""
    import numpy

    order = numpy.argsort(start)
    # Intervals of several threads that overlap count once.
    start, end = start[order], numpy.maximum.accumulate(end[order])
    start = numpy.maximum(start, numpy.concatenate([[0.0], end[:-1]]))
    lasts = numpy.maximum(end - start, 0.0)
    total = numpy.cumsum(lasts)
    moments = numpy.stack([start, end], axis=1).ravel()
    passed = numpy.stack([total - lasts, total], axis=1).ravel()
    edges = numpy.linspace(0.0, makespan, RESOLUTION + 1)
    return numpy.diff(numpy.interp(edges, moments, passed, left=0.0)) / (makespan / RESOLUTION)


def _axes(ax: "Axes | None", height: float = 3.6) -> "Axes":
    if ax is not None:
        return ax
    _, axes = imported("matplotlib.pyplot").subplots(figsize=(8, height), layout="constrained")
    drawn: Axes = axes
    return drawn


def _bars(ax: "Axes | None", names: Sequence[str], values: Sequence[float], label: str | None, color: str) -> "Axes":
    """Horizontal bars, the first on top."""
    axes = _axes(ax, height=1.2 + 0.3 * len(names))
    axes.barh(range(len(names)), values, label=label, color=color)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    return axes
