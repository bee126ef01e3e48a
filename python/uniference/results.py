"""Owns results of a run, as Python programs see them: figures, events as tables, and the view in a notebook.

`docs/reference/report.md` defines the figures, `docs/reference/events.md` the columns of events. Attributes of rows are
generated from `crates/formats/src/report/columns.rs`, by `UPDATE_DOCUMENTATION=1 cargo nextest run -p
uniference-formats columns`; figures that a report lacks are None.
"""

import html
import importlib
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

if TYPE_CHECKING:
    import pandas
    import polars

    from uniference.plots import Plots

_Row = TypeVar("_Row")

MOST_SHOWN = 20
"""Number of rows of a table that a notebook shows."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """The figures of one rank. Compute + exposed communication + idle = makespan."""

    # Columns of ranks, generated.
    rank: int
    """Rank in the world."""
    device: str
    """Name of the device on which the rank ran."""
    finish_ps: int | None = None
    """Virtual time at which the rank's script returned; null if it did not return. Unit: ps."""
    crash_ps: int | None = None
    """Virtual time of a crash that the cluster file planned; absent if the rank did not crash. Unit: ps."""
    compute_s: float
    """Time in which the rank computed while its communication was not exposed. Unit: s."""
    exposed_comm_s: float
    """Exposed communication: the rank was blocked in a communication call and nothing computed, or an operation was
    in progress on a CUDA stream of its GPU and no kernel ran on any stream. Unit: s."""
    late_peer_s: float
    """The part of `exposed_comm_s` before a peer had entered the operation: for a send or receive, before the other
    side had called it. Unit: s."""
    no_data_s: float = 0.0
    """The part of `late_peer_s` in receives: the peer had not issued the send. Reports of earlier versions lack it.
    The terminal shows it if it is at least 1 % of the run on some rank. Unit: s."""
    idle_s: float
    """The other time: sleep, waits for the store, and time after the rank's finish. Unit: s."""
    bytes_sent: int
    """Payload that the rank sent over links, algorithm steps included. Unit: B."""
    bytes_received: int
    """Payload that the rank received over links, algorithm steps included. Unit: B."""
    wire_bytes_sent: int
    """Bytes that the rank sent, with headers and control messages. Unit: B."""
    energy_j: float | None = None
    """Energy of the rank's device from the start to the end of the run; absent if the device's power is unknown.
    Unit: J."""
    # End of columns.

    def __repr__(self) -> str:
        end = "crashed" if self.finish_ps is None else f"finished at {self.finish_ps / 1e12:.6g} s"
        return f"<Rank {self.rank} on {self.device!r}: {end}>"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """The sum of all calls of one operation in one process group, over all members."""

    # Columns of operations, generated.
    operation: str
    """Name of the operation: `all_reduce`, `send`."""
    group: int
    """Number of the process group; groups are numbered in the order in which the program first names them."""
    count: int
    """Number of calls, each member counted."""
    bytes: int
    """Sizes of the tensors that the members named in the calls. Unit: B."""
    time_s: float
    """Time from the issue of the calls to their completion; on CUDA streams from the time at which the stream
    reached the operation. If any call of the row was on a CUDA stream, only those calls count. Unit: s."""
    exposed_s: float
    """Exposed communication: ranks were blocked for the operation and nothing computed; on CUDA streams the part of
    `time_s` in which no kernel ran on any stream of the GPU. Unit: s."""
    ranks: int | None = None
    """Number of ranks that called the operation on CUDA streams. This column and the next four are absent if no rank
    did."""
    kernel_s: float | None = None
    """The part of `time_s` after all members had entered the operation. Unit: s."""
    overlapped_s: float | None = None
    """The part of `kernel_s` in which a kernel ran on another CUDA stream of the GPU. Unit: s."""
    late_peer_s: float | None = None
    """The part of `exposed_s` before all members had entered the operation. Unit: s."""
    bus_bandwidth: float | None = None
    """Bus bandwidth over `kernel_s`, as nccl-tests define it. Unit: B/s."""
    exposed_share: float | None = None
    """`exposed_s` as a fraction of the time of all ranks, which is the makespan times the number of ranks; absent if
    the makespan is 0."""
    # End of columns.

    def __repr__(self) -> str:
        return f"<Operation {self.operation} of group {self.group}: {self.count} calls, {self.bytes} B, {self.time_s:.6g} s>"


@dataclass(frozen=True, kw_only=True)
class Phase:
    """All named ranges (`torch.profiler.record_function`) of one name that one rank has opened and closed."""

    # Columns of phases, generated.
    name: str
    """Name of the ranges in the program."""
    rank: int
    """Rank in the world."""
    count: int
    """Number of ranges. A range that is still open when the rank ends does not count; a warning names it."""
    total_s: float
    """Sum of the durations of the ranges. Unit: s."""
    p50_s: float
    """Median duration of the ranges. Unit: s."""
    p90_s: float
    """90th percentile of the durations, with linear interpolation. Unit: s."""
    p99_s: float
    """99th percentile of the durations, with linear interpolation. Unit: s."""
    compute_s: float | None = None
    """The part of `total_s` in which the rank computed, as in `ranks`; absent in real runs. Unit: s."""
    exposed_comm_s: float | None = None
    """The part of `total_s` in which the rank's communication was exposed, as in `ranks`; absent in real runs.
    Unit: s."""
    kernels_s: float | None = None
    """Durations of kernels and copies that were launched in the ranges, whenever they ran; absent if the ranges
    launched no work on CUDA streams. Unit: s."""
    communication_s: float | None = None
    """Durations of process-group operations that were launched in the ranges on CUDA streams, each counted from the
    time at which all members had entered. Unit: s."""
    # End of columns.


@dataclass(frozen=True, kw_only=True)
class Link:
    """The traffic of one link of the network."""

    # Columns of links, generated.
    link: str
    """Name of the link, such as `a.0 -> switch`."""
    bandwidth: float
    """Maximum rate, headers included, without changes by `[[network.change]]`. Unit: B/s."""
    messages: int
    """Number of messages with payload that passed the link, algorithm steps included; control messages are not
    counted."""
    wire_bytes: int
    """Bytes of the messages, headers included. Unit: B."""
    utilization: float
    """`wire_bytes` as a fraction of the bytes that the link could have carried in the makespan; more than 1 only if
    `[[network.change]]` makes the link faster."""
    # End of columns.


@dataclass(frozen=True, kw_only=True)
class PathPart:
    """A part of the critical path: the chain of events that the end of the run depended on."""

    # Columns of critical_path, generated.
    kind: str
    """Kind of time: `compute`, `bandwidth`, `latency` and so on."""
    rank: int | None = None
    """The rank whose time it is; absent for times of a link, or of several ranks."""
    link: str | None = None
    """The link that limited the messages, or if none did, the slowest link of their routes; absent for times of a
    rank."""
    name: str | None = None
    """Name of the operation, or of the computed operator or range."""
    line: str | None = None
    """Line of the program, as `path:line`; absent if it is unknown."""
    seconds: float
    """Length of the part. Unit: s."""
    share: float
    """Length of the part as a fraction of the makespan."""
    # End of columns.


class Table(Sequence[_Row], Generic[_Row]):
    """Rows of one kind, as a sequence that becomes a data frame on request.

    >>> ranks = uniference.load("ring").ranks
    >>> len(ranks), ranks[0].device
    (4, 'device.0')
    >>> ranks.to_pandas().bytes_sent.sum() == 4 * 3 * 65536 * 4
    np.True_
    """

    def __init__(self, kind: type[_Row], rows: Sequence[_Row]) -> None:
        self._kind = kind
        self._rows = list(rows)

    @overload
    def __getitem__(self, index: int) -> _Row: ...
    @overload
    def __getitem__(self, index: slice) -> "Table[_Row]": ...
    def __getitem__(self, index: int | slice) -> "_Row | Table[_Row]":
        if isinstance(index, slice):
            return Table(self._kind, self._rows[index])
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        return self._rows == (other._rows if isinstance(other, Table) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        first = f", first {self._rows[0]!r}" if self._rows else ""
        return f"<Table of {self._kind.__name__}: {len(self)} rows{first}>"

    def _repr_html_(self) -> str:
        return table_in_html(self._columns(), [_values(row) for row in self._rows])

    def _columns(self) -> list[str]:
        return [field.name for field in fields(self._kind)]  # type: ignore[arg-type]

    def to_pandas(self) -> "pandas.DataFrame":
        """The table as a pandas data frame, with a column for each attribute. Raises ImportError without pandas."""
        # Unknown values become NaN, even in columns without any known value.
        rows = [[math.nan if value is None else value for value in _values(row)] for row in self._rows]
        frame: pandas.DataFrame = imported("pandas").DataFrame(rows, columns=self._columns())
        return frame

    def to_polars(self) -> "polars.DataFrame":
        """The table as a polars data frame, with a column for each attribute. Raises ImportError without polars."""
        rows = [_values(row) for row in self._rows]
        frame: polars.DataFrame = imported("polars").DataFrame(
            rows, schema=self._columns(), orient="row", infer_schema_length=None
        )
        return frame


class Events:
    """All events of one kind: a table in Parquet files, whose columns `docs/reference/events.md` describes.

    Times are integers in picoseconds of virtual time, sizes in bytes.
    """

    def __init__(self, kind: str, parts: Sequence[Path]) -> None:
        self.kind = kind
        """`computed`, `waited`, `completed` and so on."""
        self.parts = list(parts)
        """The Parquet files, in the order of the simulation."""

    def __repr__(self) -> str:
        return f"<Events {self.kind!r}: {len(self.parts)} parts in {os.fspath(self.parts[0].parent)!r}>"

    def to_pandas(self, columns: Sequence[str] | None = None) -> "pandas.DataFrame":
        """The events as a pandas data frame, with all columns or the given ones. Raises ImportError without pandas and
        pyarrow."""
        imported("pyarrow")
        chosen = None if columns is None else list(columns)
        frame: pandas.DataFrame = imported("pandas").read_parquet(self.parts[0].parent, columns=chosen)
        return frame

    def to_polars(self, columns: Sequence[str] | None = None) -> "polars.DataFrame":
        """The events as a polars data frame, with all columns or the given ones. Raises ImportError without polars."""
        chosen = None if columns is None else list(columns)
        frame: polars.DataFrame = imported("polars").read_parquet(self.parts, columns=chosen)
        return frame


class Answer(dict[str, Any]):
    """The object that a command prints with `--json`. The lists in it become data frames on request.

    >>> uniference.explain("ring").to_pandas("kinds").columns.tolist()
    ['name', 'seconds', 'share']
    """

    def to_pandas(self, key: str) -> "pandas.DataFrame":
        """The list named `key`, with a row for each of its objects. Raises ImportError without pandas, KeyError if
        there is no such list."""
        frame: pandas.DataFrame = imported("pandas").DataFrame(self._list(key))
        return frame

    def to_polars(self, key: str) -> "polars.DataFrame":
        """The list named `key` as a polars data frame. Raises ImportError without polars, KeyError if there is no such
        list."""
        frame: polars.DataFrame = imported("polars").DataFrame(self._list(key), infer_schema_length=None)
        return frame

    def _list(self, key: str) -> list[dict[str, Any]]:
        if not isinstance(self.get(key), list):
            lists = [name for name, value in self.items() if isinstance(value, list)]
            raise KeyError(f"{key!r} is none of the lists: {', '.join(lists)}")
        rows: list[dict[str, Any]] = self[key]
        return rows

    def _repr_html_(self) -> str:
        parts = []
        for name, value in self.items():
            # A single object becomes a table of one row.
            listed = [value] if isinstance(value, dict) else value
            if isinstance(listed, list) and listed and all(isinstance(row, dict) for row in listed):
                columns = list(dict.fromkeys(column for row in listed for column in row))
                rows = [[row.get(column) for column in columns] for row in listed]
                parts.append(f"<h4>{html.escape(name)}</h4>{table_in_html(columns, rows)}")
            elif isinstance(listed, list):
                parts += [f"<div><b>{html.escape(name)}</b>: {html.escape(str(entry))}</div>" for entry in listed]
            else:
                parts.append(f"<div><b>{html.escape(name)}</b>: {html.escape(_shown(name, value))}</div>")
        return "".join(parts)


@dataclass(frozen=True)
class Run:
    """The result of a simulation or of a real run. `failure` is None if the program finished."""

    directory: Path
    """The folder of the report, the program record, the trace and the ranks' output."""
    report: dict[str, Any]
    """The content of `report.json`."""
    output: str
    """Output of the ranks: standard output and standard error."""

    def __repr__(self) -> str:
        """One line, because the report has hundreds of lines and the output any number."""
        ranks = len(self.report["ranks"])
        return (
            f"<Run: makespan {self.makespan:.6g} s, {ranks} ranks, {self._cluster!r}, in {os.fspath(self.directory)!r}>"
        )

    @property
    def failure(self) -> str | None:
        """Error with which the program failed, as the command printed it; all figures then end at the failure. None if
        it finished."""
        return self.report.get("failure")

    @property
    def makespan(self) -> float:
        """Seconds of virtual time until the last rank has finished."""
        return float(self.report["makespan_s"])

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval in seconds that should contain the real makespan with a probability of 95 %; None if nothing is
        known of the errors."""
        interval = self.report.get("interval")
        return interval and (interval["low_s"], interval["high_s"])

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the figures."""
        return list(self.report["warnings"])

    @property
    def ranks(self) -> Table[Rank]:
        """The figures of each rank, in order of rank."""
        return self._table(Rank, "ranks")

    @property
    def operations(self) -> Table[Operation]:
        """The figures of each operation of each process group, in the order of the report."""
        return self._table(Operation, "operations")

    @property
    def phases(self) -> Table[Phase]:
        """Durations of the program's named ranges, by name and rank."""
        return self._table(Phase, "phases")

    @property
    def links(self) -> Table[Link]:
        """Links that carried at least one message; empty with `record="summary"`, in folded runs and in real runs."""
        return self._table(Link, "links")

    @property
    def critical_path(self) -> Table[PathPart]:
        """The longest parts of the critical path; empty if the causes of events are not known."""
        path = self.report.get("critical_path", {"parts": []})
        return Table(PathPart, [_from_report(PathPart, row) for row in path["parts"]])

    def events(self, kind: str) -> Events:
        """All events of one kind: `computed`, `issued`, `completed`, `waited`, `marked`, `message` and so on.

        >>> waited = uniference.load("ring").events("waited").to_pandas(["rank", "exposed_ps"])
        >>> (waited.groupby("rank").exposed_ps.sum() / 1e12).round(6).tolist()
        [0.009201, 0.009201, 0.009201, 0.009201]

        Raises ValueError if the run has none: a run with `record="summary"` has no events, and `message` needs
        `record="full"`.
        """
        parts = sorted((self.directory / "events" / kind).glob("*.parquet"))
        if not parts:
            there = sorted(folder.name for folder in (self.directory / "events").glob("*") if any(folder.iterdir()))
            hint = f"there are {', '.join(there)}" if there else 'run it with record="ops" or record="full"'
            if there and kind == "message":
                hint = 'run it with record="full"'
            raise ValueError(f"{os.fspath(self.directory)} has no events of kind {kind!r}\nhint: {hint}")
        return Events(kind, parts)

    @property
    def plot(self) -> "Plots":
        """Plots of the run with matplotlib, as in `run.plot.timeline()`."""
        from uniference.plots import Plots

        return Plots(self)

    @property
    def _cluster(self) -> str:
        named = re.match(r'name = (".*")$', self.report["manifest"]["cluster"], re.MULTILINE)
        return json.loads(named[1]) if named else "a cluster"

    def _table(self, kind: type[_Row], name: str) -> Table[_Row]:
        return Table(kind, [_from_report(kind, row) for row in self.report.get(name, [])])

    def _repr_html_(self) -> str:
        between = f" ({seconds(self.interval[0])} to {seconds(self.interval[1])})" if self.interval else ""
        parts = [
            f"<div><b>makespan {seconds(self.makespan)}</b>{between} on {html.escape(self._cluster)}, "
            f"{len(self.ranks)} ranks &middot; <code>{html.escape(os.fspath(self.directory))}</code></div>"
        ]
        parts += [f"<div>warning: {html.escape(warning)}</div>" for warning in self.warnings]
        columns = ["rank", "device", "compute_s", "exposed_comm_s", "late_peer_s", "idle_s", "bytes_sent"]
        rows = [[getattr(rank, column) for column in columns] for rank in self.ranks]
        bars = [_bar(rank, self.makespan) for rank in self.ranks]
        parts.append(table_in_html([*columns, ""], rows, bars))
        if self.critical_path:
            path = [
                [f"{100 * part.share:.1f} %", part.kind, _of(part), part.name, part.line]
                for part in self.critical_path[:5]
            ]
            parts.append(table_in_html(["of the makespan", "kind", "of", "in", "line"], path))
        return "".join(parts)


def load(folder: str | os.PathLike[str]) -> Run:
    """Reads a run folder, as written by `simulate`, `replay` and `workload`, and by the commands `run` and `launch`.

    >>> uniference.load("ring").makespan
    0.009201...

    Raises FileNotFoundError if the folder has no report, ValueError if the report cannot be read.
    """
    directory = Path(folder)
    path = directory / "report.json"
    try:
        report = json.loads(path.read_text())
    except FileNotFoundError:
        hint = "give a run folder of `uniference run`, `replay`, `workload --run` or `launch`"
        raise FileNotFoundError(f"{os.fspath(directory)} has no report.json\nhint: {hint}") from None
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)} is not a report: {error}") from None
    if not isinstance(report, dict) or report.get("version") not in (1, 2):
        raise ValueError(f"{os.fspath(path)} is not a report of version 1 or 2")
    logs = sorted(directory.glob("rank-*.log"), key=lambda log: int(log.stem.removeprefix("rank-")))
    return Run(directory=directory, report=report, output="".join(log.read_text(errors="replace") for log in logs))


def seconds(time: float) -> str:
    """A duration with a readable unit: `12.3 ms`."""
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)) if abs(time) >= s), ("ns", 1e-9))
    return f"{time / size:.4g} {unit}" if time else "0"


def table_in_html(columns: Sequence[str], rows: Sequence[Sequence[Any]], bars: Sequence[str] = ()) -> str:
    """An HTML table of the first `MOST_SHOWN` rows. `bars` is a last column of ready HTML."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = []
    for number, row in enumerate(rows[:MOST_SHOWN]):
        cells = "".join(
            f"<td>{html.escape(_shown(name, value))}</td>" for name, value in zip(columns, row, strict=False)
        )
        body.append(f"<tr>{cells}{f'<td>{bars[number]}</td>' if bars else ''}</tr>")
    more = len(rows) - len(body)
    rest = f"<div>and {more} more rows</div>" if more else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>{rest}"


def _of(part: PathPart) -> str | None:
    """The link or the rank whose time a part of the critical path is; None if it is the time of several ranks."""
    return part.link if part.link or part.rank is None else f"rank {part.rank}"


def _bar(rank: Rank, makespan: float) -> str:
    """A rank's compute, exposed communication and idle time as one bar, drawn to scale."""
    widths = (("#4c78a8", rank.compute_s), ("#e45756", rank.exposed_comm_s), ("#bab0ac", rank.idle_s))
    title = f"compute {seconds(rank.compute_s)}, exposed {seconds(rank.exposed_comm_s)}, idle {seconds(rank.idle_s)}"
    pieces = "".join(
        f'<span style="display:inline-block;height:0.8em;background:{color};width:{120 * time / makespan:.1f}px"></span>'
        for color, time in widths
        if makespan > 0
    )
    return f'<span title="{title}" style="white-space:nowrap">{pieces}</span>'


def _shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return seconds(value) if name.endswith("_s") or name == "seconds" else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return str(value)


def _values(row: Any) -> list[Any]:
    return list(asdict(row).values())


def imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(f"this requires {name}\nhint: pip install {name}") from None


def _from_report(kind: type[_Row], row: dict[str, Any]) -> _Row:
    # Attributes that the report lacks keep their defaults.
    return kind(**{field.name: row[field.name] for field in fields(kind) if field.name in row})  # type: ignore[arg-type]
