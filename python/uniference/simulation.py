"""Owns the Python face of `uniference run`: starts it as a process and reads the report it leaves behind.

What the options mean is the command's business, and what the figures mean the report's (`docs/report.md`).
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

_T = TypeVar("_T")


class SimulationError(Exception):
    """The simulation did not come to its end.

    `exit_code` as of the command: 1 the program failed, 2 wrong usage or configuration, 3 deadlock or mismatch, 70 a bug of
    the simulator, 129, 130 and 143 ended by a signal. `message` is what it has written on its standard error.
    """

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message or f"uniference run ended with exit code {exit_code}")
        self.exit_code = exit_code
        self.message = message


@dataclass(frozen=True)
class Rank:
    """One rank's figures. Compute + exposed communication + idle = makespan."""

    rank: int
    device: str
    finish_ps: int | None
    """None: it has crashed."""
    compute_s: float
    exposed_comm_s: float
    late_peer_s: float
    no_data_s: float
    idle_s: float
    bytes_sent: int
    bytes_received: int
    wire_bytes_sent: int

    def __repr__(self) -> str:
        end = "crashed" if self.finish_ps is None else f"finished at {self.finish_ps / 1e12:.6g} s"
        return f"<Rank {self.rank} on {self.device!r}: {end}>"


@dataclass(frozen=True)
class Operation:
    """The sum of all calls of one operation in one process group; times in seconds."""

    operation: str
    group: int
    count: int
    bytes: int
    time_s: float
    exposed_s: float

    def __repr__(self) -> str:
        return f"<Operation {self.operation} of group {self.group}: {self.count} calls, {self.bytes} B, {self.time_s:.6g} s>"


@dataclass(frozen=True)
class Run:
    """A simulation that has come to its end."""

    directory: Path
    """Where the report, the program record, the trace and the ranks' output lie."""
    report: dict[str, Any]
    """The whole `report.json`."""
    output: str
    """What the ranks have printed, on both streams."""

    def __repr__(self) -> str:
        """One line: the report itself has hundreds, and the output any number."""
        named = re.match(r'name = (".*")$', self.report["manifest"]["cluster"], re.MULTILINE)
        cluster = json.loads(named[1]) if named else "a cluster"
        ranks = len(self.report["ranks"])
        return f"<Run: makespan {self.makespan:.6g} s, {ranks} ranks, {cluster!r}, in {os.fspath(self.directory)!r}>"

    @property
    def makespan(self) -> float:
        """Virtual seconds until the last rank has finished."""
        return float(self.report["makespan_s"])

    @property
    def ranks(self) -> list[Rank]:
        """In order of rank."""
        return [_from_report(Rank, row) for row in self.report["ranks"]]

    @property
    def operations(self) -> list[Operation]:
        """As in the report's table."""
        return [_from_report(Operation, row) for row in self.report["operations"]]


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
    return kind(**{field.name: row[field.name] for field in fields(kind)})  # type: ignore[arg-type]
