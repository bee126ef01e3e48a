"""Owns the profiles of the CPUs that are part of a calibration: `uniference profile` runs once for each kind of CPU.

The command `uniference profile` runs on the machine that has the CPU; rank 0 adds the measurements to its machine's
database, and a line to the file of measurements: the ranks with the CPU, and the highest rates that it reached.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True)
class _Found:
    """Result of one profile: its duration, the command's output, and the database that it wrote."""

    seconds: float
    rates: dict[str, Any]
    database: bytes


def profile(name: str, database: Path, measurements: Path, program: Path | None = None) -> None:
    """Profiles CPUs; all ranks call it, each with its CPU's name. Each name is profiled on the first rank that has it,
    unless `measurements` has it already; the other ranks wait."""
    rank = dist.get_rank()
    names = [""] * dist.get_world_size()
    dist.all_gather_object(names, name)
    shared: list[Any] = [_known(measurements, database) if rank == 0 else None]
    dist.broadcast_object_list(shared)
    for each in dict.fromkeys(names):
        ranks = [other for other, its in enumerate(names) if its == each]
        if (each, ranks) in shared[0]:
            continue
        if rank == 0:
            print(f"profiling {each} on rank {ranks[0]}", file=sys.stderr, flush=True)
        found = [_profile(each, program) if rank == ranks[0] else None]
        dist.broadcast_object_list(found, ranks[0])
        if found[0] is None:
            # The failed rank has printed the reason.
            sys.exit(2)
        if rank == 0:
            _keep(found[0], database)
            with measurements.open("a") as file:
                file.write(json.dumps(_line(each, ranks, found[0], database)) + "\n")


def _profile(name: str, program: Path | None) -> _Found | None:
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "operators.sqlite")
        options = ("--device", name, "--device-db", str(written), "--out", f"{folder}/run", "--json")
        begin = time.perf_counter()
        said = _run("profile", *options, *([str(program)] if program else []))
        return None if said is None else _Found(time.perf_counter() - begin, json.loads(said), written.read_bytes())


def _keep(found: _Found, database: Path) -> None:
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        file.write(found.database)
        file.flush()
        if _run("devices", "import", file.name, "--device-db", str(database)) is None:
            sys.exit(2)


def _run(*words: str) -> str | None:
    """Output of the command; None: it failed, and has printed why."""
    command = [sys.executable, "-m", "uniference", *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, end="", file=sys.stderr, flush=True)
        return None
    return done.stdout


def _line(name: str, ranks: list[int], found: _Found, database: Path) -> dict[str, Any]:
    rates = {key: found.rates[key] for key in ("peak_flops", "memory_bandwidth")}
    device = {"name": name, "database": str(database), **rates}
    return {"operation": "profile", "ranks": ranks, "bytes": 0, "seconds": [found.seconds], "device": device}


def _known(measurements: Path, database: Path) -> list[tuple[str, list[int]]]:
    """CPUs whose operators are in the database, by the lines of the file: the names, and the ranks with each."""
    if not (measurements.exists() and database.exists()):
        return []
    lines = [line for line in measurements.read_text().splitlines() if line.endswith("}")]
    rows = [row for row in map(json.loads, lines) if row["operation"] == "profile"]
    return [(row["device"]["name"], row["ranks"]) for row in rows if row["device"]["database"] == str(database)]
