"""Owns the comparison of other people's programs under torchrun with real Gloo and under `uniference run`.

Usage: suite.py [--ranks N] [--only TEXT]. Prints a table, and ends with 1 if a program that runs on Gloo gives something else here.
Programs of packages run as they are shipped; where a package ships only a library, a few lines beside this file call it.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).parent
TIMEOUT_S = 600

# Packages that look for a GPU, a hub or a tracker are told that there is none.
ENVIRONMENT = {"ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


@dataclass(frozen=True)
class Program:
    """What is run: a package, and the arguments that start one of its programs."""

    package: str
    arguments: tuple[str, ...]

    @property
    def title(self) -> str:
        """How the table calls it."""
        return " ".join(argument.removeprefix(f"{HERE}/") for argument in self.arguments if argument != "-m")


def _module(package: str, name: str) -> Program:
    return Program(package, ("-m", name))


def _file(package: str, name: str, *arguments: str) -> Program:
    return Program(package, (str(HERE / name), *arguments))


_ACCELERATE = ("test_script", "test_sync", "test_ops", "test_distributed_data_loop", "test_ddp_comm_hook")

PROGRAMS = (
    *(_module("accelerate", f"accelerate.test_utils.scripts.{name}") for name in _ACCELERATE),
    _file("transformers", "generate.py"),
    _file("transformers", "generate.py", "--tensor-parallel"),
    _file("lightning", "lightning_ddp.py"),
)


@dataclass(frozen=True)
class Outcome:
    """How a program has ended, and what it says its results are."""

    code: int
    results: tuple[str, ...]
    error: str

    @property
    def kind(self) -> str:
        """For the table."""
        return "ok" if self.code == 0 else f"exit {self.code}"


def under_gloo(program: Program, ranks: int, folder: Path) -> Outcome:
    """As its users start it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = ("-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={port}")
    return _run((*torchrun, *program.arguments), folder)


def under_us(program: Program, ranks: int, folder: Path) -> Outcome:
    """The same, in virtual time."""
    options = ("--ranks", str(ranks), "--backend", "gloo", "--compute", "none", "--out", str(folder / "out"))
    return _run(("-m", "uniference", "run", *options, *program.arguments), folder)


def _run(arguments: tuple[str, ...], folder: Path) -> Outcome:
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    lines = done.stdout.splitlines()
    # Both launchers may put a rank in front of a line.
    results = sorted(line[line.index("RESULT") :] for line in lines if "RESULT" in line)
    return Outcome(done.returncode, tuple(results), done.stderr)


def compare(program: Program, ranks: int) -> bool:
    """Prints a line of the table; False if the program runs on Gloo and gives something else here."""
    with tempfile.TemporaryDirectory() as folder:
        real, ours = under_gloo(program, ranks, Path(folder)), under_us(program, ranks, Path(folder))
    same = (real.code, real.results) == (ours.code, ours.results)
    verdict = "same" if same else "different results" if real.code == ours.code else "differs"
    print(f"{program.title:<62} {_version(program.package):<22} {real.kind:<8} {ours.kind:<8} {verdict}", flush=True)
    wrong = real.code == 0 and not same
    if wrong:
        print(ours.error.strip()[-2000:], flush=True)
    return not wrong


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} (not installed)"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="other people's programs, under torchrun and under uniference")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="", help="run the programs whose titles contain this text")
    arguments = parser.parse_args()
    print(f"{f'{arguments.ranks} ranks':<62} {'package':<22} {'Gloo':<8} {'ours':<8}")
    chosen = [program for program in PROGRAMS if arguments.only in program.title]
    return 0 if all([compare(program, arguments.ranks) for program in chosen]) else 1


if __name__ == "__main__":
    sys.exit(main())
