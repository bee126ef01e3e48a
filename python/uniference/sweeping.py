"""Owns the Python interface of `uniference sweep`: a sweep as keyword arguments, and its results as data frames.

`docs/reference/sweep-file.md` defines the keys.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from uniference.results import imported
from uniference.simulation import SimulationError, _arguments, _new_directory, _run

if TYPE_CHECKING:
    import pandas
    import polars


@dataclass(frozen=True)
class Sweep:
    """The results of a sweep: a row for each trial. `docs/reference/sweep-file.md` describes the columns."""

    directory: Path
    """Folder of the tables, of the page of charts, and of a folder for each trial."""
    output: str
    """Output of the command: the number of runs and of replays, and why trials failed."""

    def __repr__(self) -> str:
        return f"<Sweep in {os.fspath(self.directory)!r}>"

    def to_pandas(self) -> "pandas.DataFrame":
        """The results as a pandas data frame. Raises ImportError without pandas and pyarrow."""
        imported("pyarrow")
        frame: pandas.DataFrame = imported("pandas").read_parquet(self.directory / "results.parquet")
        return frame

    def to_polars(self) -> "polars.DataFrame":
        """The results as a polars data frame. Raises ImportError without polars."""
        frame: polars.DataFrame = imported("polars").read_parquet(self.directory / "results.parquet")
        return frame


def sweep(
    file: str | os.PathLike[str] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    on: Literal["here", "ray"] = "here",
    retry: bool = False,
    **keys: Any,
) -> Sweep:
    """Runs a program or a generated job at many points.

    `file` is a sweep file. Without a file, `keys` are the file's keys and tables, with paths relative to the current
    folder: `sweep(program="train.py", arguments={"batch": [8, 16]}, options={"ranks": [2, 4], "compute": "model"})`,
    where `program` may be a script's path. `out` is the sweep folder, by default the first free
    `uniference-out/<name>-<n>`; if the folder holds an unfinished run of the same sweep, that sweep is resumed. `jobs`
    trials are carried out at once, on this machine or on a Ray cluster. With `retry`, failed trials are carried out
    again.

    A failed trial is a row with its error. Raises SimulationError if all trials fail, or if the sweep's description is
    invalid. KeyboardInterrupt ends the sweep; finished trials are kept.
    """
    if (file is None) == (not keys):
        raise ValueError("give either a sweep file or its keys, as in sweep(program=..., options=...)")
    if isinstance(keys.get("program"), str | os.PathLike):
        keys["program"] = {"script": os.fspath(keys["program"])}
    name = Path(file).stem if file is not None else str(keys.get("name", "sweep"))
    directory = Path(out) if out is not None else _new_directory(name)
    text = None if file is not None else "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in keys.items())
    words = ["sweep", "-" if file is None else os.fspath(file)]
    words += _arguments({"out": directory, "jobs": jobs, "on": on, "retry": retry})
    exit_code, printed, said = _run(words, given=text)
    if exit_code != 0:
        if out is None:
            with contextlib.suppress(OSError):  # a folder with files stays: they tell why the sweep failed
                directory.rmdir()
        raise SimulationError(exit_code, said.strip())
    return Sweep(directory=directory, output=printed + said)


def _toml(value: Any) -> str:
    """A value in TOML syntax."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(str(key))} = {_toml(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, list | tuple | range):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | os.PathLike):
        return json.dumps(os.fspath(value), ensure_ascii=False)
    raise TypeError(f"{value!r} is no value of a sweep file: give numbers, texts, booleans, lists and dicts of them")
