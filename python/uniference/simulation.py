"""Owns the Python functions that run the commands: simulations, and questions about their results.

`uniference run` is started as a child process, because it starts processes and adopts orphaned ones, which must not
happen in the caller's process. Replays and generated jobs are carried out inside this process.

The command line defines the options, `uniference.results` the results.
"""

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from uniference import _native, showing
from uniference.results import Answer, Run


class SimulationError(Exception):
    """The simulation failed before its end.

    `exit_code` is the command's: 1 the program failed, 2 wrong usage or configuration, 3 deadlock or mismatch, 70 a bug
    of the simulator, 129, 130 and 143 ended by a signal. `message` is the command's standard error.
    """

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message or f"uniference ended with exit code {exit_code}")
        self.exit_code = exit_code
        self.message = message


def simulate(
    script: str | os.PathLike[str],
    args: Sequence[str] = (),
    cluster: str | os.PathLike[str] | None = None,
    *,
    module: bool = False,
    out: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Run:
    """Runs a program on a simulated cluster.

    >>> run = uniference.simulate("ring.py", ranks=4, bandwidth="1 Gbps", latency="100 us", compute="none", out="ring")
    >>> run
    <Run: makespan 0.00920... s, 4 ranks, ... in 'ring'>

    `cluster` is a cluster file, or a named cluster such as "dgx-h100:8"; `options` are those of `uniference run` with
    underscores for hyphens: `ranks=4`, `bandwidth="1 Gbps"`, `compute="none"`. A list gives an option several times,
    True gives an option without a value. With `module`, `script` is a module's name. `out` is the run folder, by
    default the first free `uniference-out/<script>-<n>`. `progress` shows the progress of the run; it is on by default
    in notebooks.

    Raises SimulationError if the program fails, or cannot be run to its end. KeyboardInterrupt ends the run and all its processes.
    """
    directory = Path(out) if out is not None else _new_directory(Path(script).stem)
    words = _arguments({"cluster": cluster, "out": directory, "quiet": True, **options})
    words += (["-m"] if module else []) + [os.fspath(script), *args]
    exit_code, report, printed = _run(["run", "--json", *words], _wanted(progress))
    if exit_code != 0:
        if out is None:
            with contextlib.suppress(OSError):  # a folder with files stays: they tell why the run failed
                directory.rmdir()
        raise SimulationError(exit_code, printed.strip())
    return Run(directory=directory, report=json.loads(report), output=printed)


def replay(
    run: "str | os.PathLike[str] | Run",
    cluster: str | os.PathLike[str] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Run:
    """Replays a recorded run without its program, or execution traces, inside this process.

    >>> faster = uniference.replay("ring", set="network.bandwidth=*4", out="faster")
    >>> round(uniference.load("ring").makespan / faster.makespan, 1)
    2.0

    `run` is a run, a run folder, or any other input of `uniference replay`; `options` are those of `uniference replay`,
    as for `simulate`.

    Raises SimulationError if the replay does not reach its end.
    """
    words = _arguments({"cluster": cluster, "out": out, **options})
    return _carry_out(["replay", *words, "--", _source(run)], _wanted(progress))


def workload(
    kind: str,
    cluster: str | os.PathLike[str] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Run:
    """Runs a generated job, for example `workload("llama", ranks=8, tp=8, batch=1)`, inside this process.

    `options` are those of `uniference workload`, as for `simulate`.

    Raises SimulationError if the job does not reach its end.
    """
    words = _arguments({"cluster": cluster, "out": out, **options})
    return _carry_out(["workload", kind, "--run", *words], _wanted(progress))


def explain(run: "str | os.PathLike[str] | Run", **options: Any) -> Answer:
    """The critical path of a run: the object that `uniference explain --json` prints. Times are in seconds.

    >>> path = uniference.explain("ring")
    >>> path["kinds"][0]["name"], round(path["kinds"][0]["share"], 2)
    ('bandwidth', 0.72)

    `run` and `options` are as for `replay`; with `path=True` the answer also lists the spans of the path.

    Raises SimulationError if the run cannot be explained.
    """
    return _answer(["explain", *_arguments(options), "--", _source(run)])


def whatif(run: "str | os.PathLike[str] | Run", **options: Any) -> Answer:
    """The makespan of a run under changed conditions: the object that `uniference whatif --json` prints. Times are in
    seconds.

    >>> table = uniference.whatif("ring").to_pandas("changes")
    >>> table.options[0]
    ['--free', 'send']

    `options` are the changes, as in `whatif(run, set="network.latency=0", free="all_gather")`; without options the
    answer is a table of many changes.

    Raises SimulationError if the run or a change cannot be simulated.
    """
    return _answer(["whatif", *_arguments(options), "--", _source(run)])


def diff(first: "str | os.PathLike[str] | Run", second: "str | os.PathLike[str] | Run") -> Answer:
    """Differences between the critical paths of two runs: the object that `uniference diff --json` prints. Times are in
    seconds.

    >>> uniference.diff("ring", "faster")["kinds"][0]["name"]
    'bandwidth'

    Raises SimulationError if one of the runs cannot be explained.
    """
    return _answer(["diff", "--", _source(first), _source(second)])


def compare(predicted: "str | os.PathLike[str] | Run", real: "str | os.PathLike[str] | Run") -> Answer:
    """The error of a prediction against a real run, or against any other run of the same program: the object that
    `uniference compare --json` prints. Times are in seconds, errors are fractions.

    >>> uniference.compare("ring", "faster")["makespan"]["error"]
    1.012...

    Raises SimulationError if the two runs have no operation in common.
    """
    return _answer(["compare", "--", _source(predicted), _source(real)])


def fit(
    script: str | os.PathLike[str],
    args: Sequence[str] = (),
    cluster: str | os.PathLike[str] | None = None,
    *,
    module: bool = False,
    **options: Any,
) -> Answer:
    """Whether a program fits the memory of its devices: the object that `uniference fit --json` prints. Sizes are in bytes.

    >>> uniference.fit("ring.py", cluster="boards.toml")["fits"]
    True

    Raises SimulationError if the answer is unknown.
    """
    words = _arguments({"cluster": cluster, **options}) + (["-m"] if module else []) + [os.fspath(script), *args]
    # The command exits with 1 if the program does not fit.
    return _answer(["fit", *words], also=1)


def calibrate(out: str | os.PathLike[str] = "cluster.toml", **options: Any) -> Answer:
    """Measures a network and writes a cluster file that reproduces it: the object that `uniference calibrate --json` prints.

    `options` are those of `uniference calibrate`, as for `simulate`: `nnodes=2, node_rank=0, master_addr="10.0.0.1"` on
    each of two machines, or `testbed=True, cluster=FILE`; `fit=FILE` fits existing measurements, without measuring.

    Raises SimulationError if the network cannot be measured or the measurements cannot be fitted.
    """
    return _answer(["calibrate", *_arguments({"out": out, **options})])


def _source(run: "str | os.PathLike[str] | Run") -> str:
    return os.fspath(run.directory if isinstance(run, Run) else run)


def _wanted(progress: bool | None) -> bool:
    """Whether to show progress; by default only in notebooks."""
    return showing.is_notebook() if progress is None else progress


def _run(words: Sequence[str], progress: bool = False, given: str | None = None) -> tuple[int, str, str]:
    """Runs a command with `given` as its standard input. Returns its exit code, standard output and standard error."""
    command = [sys.executable, "-m", "uniference", *words]
    # Files and not pipes: processes that the command has started may keep a pipe open after the command's end.
    with TemporaryDirectory() as scratch:
        paths = [Path(scratch) / stream for stream in ("stdout", "stderr")]
        with open(paths[0], "w") as stdout, open(paths[1], "w") as stderr:
            stdin = None if given is None else Path(scratch) / "stdin"
            if stdin is not None and given is not None:
                stdin.write_text(given)
            exit_code = showing.run(command, stdout, stderr, progress, stdin)
        printed, said = (path.read_text(errors="replace") for path in paths)
        return exit_code, printed, said


def _answer(words: Sequence[str], also: int = 0) -> Answer:
    """The JSON object that a command prints, if the command ends with exit code 0 or `also`."""
    exit_code, printed, said = _run([words[0], "--json", *words[1:]])
    if exit_code not in (0, also) or not printed:
        raise SimulationError(exit_code, said.strip())
    return Answer(json.loads(printed))


def _carry_out(words: Sequence[str], progress: bool) -> Run:
    """Carries out a command inside this process. KeyboardInterrupt ends it."""
    display = showing.Display()

    def show(virtual_s: float, operations: int) -> None:
        display.show(f"{virtual_s:.6g} s simulated, {operations} operations")

    try:
        exit_code, said, results = _native.carry_out(["uniference", *words], show if progress else None)
    finally:
        display.clear()
    if results is None:
        raise SimulationError(exit_code, said.strip())
    directory, report = results
    return Run(directory=Path(directory), report=json.loads(report), output=said)


def _new_directory(name: str) -> Path:
    """Creates the folder that the command would choose. The report does not name the folder, so it is chosen and
    created before the command starts, and no other run uses it."""
    parent = Path("uniference-out")
    parent.mkdir(exist_ok=True)
    for n in itertools.count(1):
        with contextlib.suppress(FileExistsError):
            (parent / f"{name}-{n}").mkdir()
            return parent / f"{name}-{n}"
    raise AssertionError("numbers do not end")


def _arguments(options: dict[str, Any]) -> list[str]:
    """Options as words of the command line; None and False are left out."""
    arguments: list[str] = []
    for name, given in options.items():
        for value in given if isinstance(given, list | tuple) else [given]:
            if value is None or value is False:
                continue
            arguments.append("--" + name.replace("_", "-"))
            if value is not True:
                arguments.append(os.fspath(value) if isinstance(value, os.PathLike) else str(value))
    return arguments
