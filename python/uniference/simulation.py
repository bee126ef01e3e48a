"""Owns the Python face of `uniference run`, `replay`, `workload`, `explain`, `whatif` and `diff`.

A run is started as a process of its own, because it starts others and adopts what they leave behind, which is no business of the
caller's; replays and generated jobs are carried out inside this process.

What the options mean is the command's business, and what the figures mean the report's (`docs/reference/report.md`).
"""

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from uniference import _native

_T = TypeVar("_T")


class SimulationError(Exception):
    """The simulation did not come to its end.

    `exit_code` as of the command: 1 the program failed, 2 wrong usage or configuration, 3 deadlock or mismatch, 70 a bug of
    the simulator, 129, 130 and 143 ended by a signal. `message` is what it has written on its standard error.
    """

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message or f"uniference ended with exit code {exit_code}")
        self.exit_code = exit_code
        self.message = message


@dataclass(frozen=True)
class Rank:
    """The figures of one rank. Compute + exposed communication + idle = makespan."""

    rank: int
    """Rank in the world."""
    device: str
    """Name of the device on which it ran."""
    finish_ps: int | None
    """Virtual time at which its script returned, in picoseconds; None if it crashed."""
    compute_s: float
    """Time during which it computed, in seconds of virtual time as all following times."""
    exposed_comm_s: float
    """Time during which it was blocked in a communication call and nothing computed."""
    late_peer_s: float
    """The part of `exposed_comm_s` before a peer had entered the operation."""
    no_data_s: float
    """The part of `late_peer_s` in receives whose sender had not yet called the send."""
    idle_s: float
    """The rest: sleep, waiting for the store, and the time after its finish."""
    bytes_sent: int
    """Payload that it sent over links, the steps of algorithms included."""
    bytes_received: int
    """Payload that it received over links."""
    wire_bytes_sent: int
    """Bytes that it sent, with headers and control messages."""

    def __repr__(self) -> str:
        end = "crashed" if self.finish_ps is None else f"finished at {self.finish_ps / 1e12:.6g} s"
        return f"<Rank {self.rank} on {self.device!r}: {end}>"


@dataclass(frozen=True)
class Operation:
    """The sum of all calls of one operation in one process group, over all members."""

    operation: str
    """Name of the operation, such as `all_reduce`."""
    group: int
    """Number of the process group, in the order in which the program first names them."""
    count: int
    """Number of calls, each member counted."""
    bytes: int
    """Sizes of the tensors that the members named in the calls."""
    time_s: float
    """Seconds from issue to completion."""
    exposed_s: float
    """Seconds during which ranks were blocked for it and nothing computed."""

    def __repr__(self) -> str:
        return f"<Operation {self.operation} of group {self.group}: {self.count} calls, {self.bytes} B, {self.time_s:.6g} s>"


@dataclass(frozen=True)
class Phase:
    """All named ranges (`torch.profiler.record_function`) of one name that one rank has opened and closed."""

    name: str
    """As the program calls it."""
    rank: int
    """Rank in the world."""
    count: int
    """How many there were."""
    total_s: float
    """Seconds from their beginnings to their ends, together."""
    p50_s: float
    """Seconds that half of them took at most."""
    p90_s: float
    """Seconds that 90 % of them took at most."""
    p99_s: float
    """Seconds that 99 % of them took at most."""
    compute_s: float | None = None
    """The part of `total_s` in which the rank computed; None in real runs."""
    exposed_comm_s: float | None = None
    """The part of `total_s` in which it was blocked in a communication call and nothing computed; None in real runs."""


@dataclass(frozen=True)
class PathPart:
    """A part of the critical path, which is what the run had to wait for until it ended."""

    kind: str
    """`compute`, `bandwidth`, `latency` and so on."""
    seconds: float
    """How much of the makespan it is."""
    share: float
    """The same as a fraction."""
    rank: int | None = None
    """The rank whose time it is; None where it is a link's."""
    link: str | None = None
    """The link with the least bandwidth on the messages' route; None where it is a rank's time."""
    name: str | None = None
    """What was computed, or the operation."""
    line: str | None = None
    """The line of the program, as `path:line`; None if it is not known."""


@dataclass(frozen=True)
class Run:
    """The result of a simulation that has come to its end."""

    directory: Path
    """The folder of the report, the program record, the trace and the ranks' output."""
    report: dict[str, Any]
    """The content of `report.json`."""
    output: str
    """What the ranks printed, on both streams."""

    def __repr__(self) -> str:
        """One line: the report itself has hundreds, and the output any number."""
        named = re.match(r'name = (".*")$', self.report["manifest"]["cluster"], re.MULTILINE)
        cluster = json.loads(named[1]) if named else "a cluster"
        ranks = len(self.report["ranks"])
        return f"<Run: makespan {self.makespan:.6g} s, {ranks} ranks, {cluster!r}, in {os.fspath(self.directory)!r}>"

    @property
    def makespan(self) -> float:
        """Seconds of virtual time until the last rank has finished."""
        return float(self.report["makespan_s"])

    @property
    def ranks(self) -> list[Rank]:
        """The figures of each rank, in order of rank."""
        return [_from_report(Rank, row) for row in self.report["ranks"]]

    @property
    def operations(self) -> list[Operation]:
        """The figures of each operation of each process group, in the order of the report."""
        return [_from_report(Operation, row) for row in self.report["operations"]]

    @property
    def phases(self) -> list[Phase]:
        """How long the program's named ranges took, by name and rank."""
        return [_from_report(Phase, row) for row in self.report.get("phases", [])]

    @property
    def critical_path(self) -> list[PathPart]:
        """The longest parts of the critical path; empty where the causes of events are not known."""
        path = self.report.get("critical_path", {"parts": []})
        return [_from_report(PathPart, row) for row in path["parts"]]


def simulate(
    script: str | os.PathLike[str],
    args: Sequence[str] = (),
    cluster: str | os.PathLike[str] | None = None,
    *,
    module: bool = False,
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Run:
    """Runs a program on a simulated cluster.

    `cluster` is a cluster file; `options` are those of `uniference run` with underscores for hyphens: `ranks=4`,
    `bandwidth="1 Gbps"`, `compute="none"`. A list gives an option several times, True one without a value. With `module`, `script`
    is a module's name. `out` is the folder for the results, by default the first free `uniference-out/<script>-<n>`.

    Raises SimulationError if the program fails, or cannot be run to its end.
    """
    directory = Path(out) if out is not None else _new_directory(Path(script).stem)
    command = [sys.executable, "-m", "uniference", "run", "--json"]
    command += _arguments({"cluster": cluster, "out": directory, **options})
    command += (["-m"] if module else []) + [os.fspath(script), *args]
    with TemporaryDirectory() as scratch, open(Path(scratch) / "output", "w+") as output:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output, text=True, check=False
        )
        output.seek(0)
        printed = output.read()
    if done.returncode != 0:
        if out is None:
            with contextlib.suppress(OSError):  # what is in it tells how it has failed
                directory.rmdir()
        raise SimulationError(done.returncode, printed.strip())
    return Run(directory=directory, report=json.loads(done.stdout), output=printed)


def replay(
    run: "str | os.PathLike[str] | Run",
    cluster: str | os.PathLike[str] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Run:
    """Carries out a run again without its program, or execution traces, inside this process.

    `run` is a run, the folder of its results, or what else `uniference replay` takes; `options` are those of `uniference replay`, as
    for `simulate`.

    Raises SimulationError if it cannot be carried out to its end.
    """
    return _carry_out(["replay", *_arguments({"cluster": cluster, "out": out, **options}), "--", _source(run)])


def workload(
    kind: str,
    cluster: str | os.PathLike[str] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Run:
    """Runs a generated job, for example `workload("llama", ranks=8, tp=8, batch=1)`, inside this process.

    `options` are those of `uniference workload`, as for `simulate`.

    Raises SimulationError if it cannot be carried out to its end.
    """
    return _carry_out(["workload", kind, "--run", *_arguments({"cluster": cluster, "out": out, **options})])


def explain(run: "str | os.PathLike[str] | Run", **options: Any) -> dict[str, Any]:
    """The critical path of a run: the object that `uniference explain --json` prints.

    `run` and `options` are as for `replay`; with `path=True` it lists the spans of the path, too.

    Raises SimulationError if the run cannot be explained.
    """
    return _answer(["explain", *_arguments(options), "--", _source(run)])


def whatif(run: "str | os.PathLike[str] | Run", **options: Any) -> dict[str, Any]:
    """What a run would take with something about it changed: the object that `uniference whatif --json` prints.

    `options` are the changes, as in `whatif(run, set="network.latency=0", free="all_gather")`; without any a table of many is made.

    Raises SimulationError if the run or a change cannot be simulated.
    """
    return _answer(["whatif", *_arguments(options), "--", _source(run)])


def diff(first: "str | os.PathLike[str] | Run", second: "str | os.PathLike[str] | Run") -> dict[str, Any]:
    """By what the critical paths of two runs differ: the object that `uniference diff --json` prints.

    Raises SimulationError if one of them cannot be explained.
    """
    return _answer(["diff", "--", _source(first), _source(second)])


def _source(run: "str | os.PathLike[str] | Run") -> str:
    return os.fspath(run.directory if isinstance(run, Run) else run)


def _answer(words: Sequence[str]) -> dict[str, Any]:
    """What a command prints as JSON."""
    command = [sys.executable, "-m", "uniference", words[0], "--json", *words[1:]]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SimulationError(done.returncode, done.stderr.strip())
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _carry_out(words: Sequence[str]) -> Run:
    """Carries out a command that needs no other process."""
    exit_code, said, results = _native.carry_out(["uniference", *words])
    if results is None:
        raise SimulationError(exit_code, said.strip())
    directory, report = results
    return Run(directory=Path(directory), report=json.loads(report), output=said)


def _new_directory(name: str) -> Path:
    """As the command chooses it; a report does not say where it lies. It is made here, so that no other run takes the same."""
    parent = Path("uniference-out")
    parent.mkdir(exist_ok=True)
    for n in itertools.count(1):
        with contextlib.suppress(FileExistsError):
            (parent / f"{name}-{n}").mkdir()
            return parent / f"{name}-{n}"
    raise AssertionError("numbers do not end")


def _arguments(options: dict[str, Any]) -> list[str]:
    """Options as the command line has them; None is left out."""
    arguments: list[str] = []
    for name, given in options.items():
        for value in given if isinstance(given, list | tuple) else [given]:
            if value is None or value is False:
                continue
            arguments.append("--" + name.replace("_", "-"))
            if value is not True:
                arguments.append(os.fspath(value) if isinstance(value, os.PathLike) else str(value))
    return arguments


def _from_report(kind: type[_T], row: dict[str, Any]) -> _T:
    # What a report leaves out has the default.
    return kind(**{field.name: row[field.name] for field in fields(kind) if field.name in row})  # type: ignore[arg-type]
