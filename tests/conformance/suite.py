"""Owns the runs of PyTorch's own `DistributedTest`: under real Gloo, under `uniference run`, and as `nccl` on simulated
GPUs.

Usage: suite.py [--ranks 2 4] [--only TEXT...] [--only-nccl | --no-nccl] [--keep FOLDER]. Prints a table, and ends with
1 if a test that passes on Gloo fails in the simulation. For `nccl` there is no real library to compare with: it lists
the passing tests, and the reason for each other one. `cases.py` is the program of one rank.
"""

import argparse
import ast
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

CASES = Path(__file__).with_name("cases.py")

# Seconds without a note of any rank after which a batch counts as hung, even on a busy machine. Gloo's own timeout is
# 60 s; the longest test on simulated GPUs takes a minute with 2 ranks and four with 4.
STALL_S = 600.0

# From best to worst.
_WORSE = ("skipped", "ok", "failed")

Start = Callable[[int, Path], subprocess.Popen[bytes]]


@dataclass(frozen=True)
class Outcome:
    """Outcome of one test: ok, skipped or failed."""

    kind: str
    reason: str = ""


def run(tests: Sequence[str], size: int, start: Start, folder: Path) -> dict[str, Outcome]:
    """Runs tests in as few processes as possible.

    A test that fails ends its process. The test is tried once more as the first one of a new process, so that no
    earlier test can be the cause.
    """
    done: dict[str, Outcome] = {}
    left = list(tests)
    while left:
        plan = folder / f"batch{len(list(folder.iterdir()))}"
        plan.mkdir()
        (plan / "tests").write_text("\n".join(left))
        error = _finish(start(size, plan), plan)
        outcomes = _read(plan, size, error)
        passed = {test: outcome for test, outcome in outcomes.items() if outcome.kind != "failed"}
        failed = {test: outcome for test, outcome in outcomes.items() if outcome.kind == "failed"}
        first = left[0]
        done |= passed
        done |= {test: outcome for test, outcome in failed.items() if test == first}
        assert done.keys() & set(left) or failed, f"no test was run: {error}"
        left = [test for test in failed if test != first] + [t for t in left if t not in done and t not in failed]
    return done


def _finish(process: subprocess.Popen[bytes], plan: Path) -> str:
    """Waits for a batch; returns what it wrote on its standard error."""
    last, noted = time.monotonic(), -1
    while process.poll() is None:
        time.sleep(0.05)
        size = sum(path.stat().st_size for path in plan.glob("rank*.jsonl"))
        if size != noted:
            last, noted = time.monotonic(), size
        if time.monotonic() - last > STALL_S:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return (plan / "stderr").read_text(errors="replace")


def _read(plan: Path, size: int, error: str) -> dict[str, Outcome]:
    """Each test's outcome: the worst of all ranks."""
    outcomes: dict[str, Outcome] = {}
    for rank in range(size):
        for test, outcome in _read_rank(plan / f"rank{rank}.jsonl", error).items():
            worst = max(outcomes.get(test, outcome), outcome, key=lambda each: _WORSE.index(each.kind))
            outcomes[test] = worst
    return outcomes


def _read_rank(path: Path, error: str) -> dict[str, Outcome]:
    """Outcomes of one rank. A test that was started and did not end has failed, with the batch's `error`."""
    notes = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {
        note["test"]: Outcome(note["outcome"], note["reason"])
        if note["outcome"] != "started"
        else Outcome("failed", error)
        for note in notes
    }


def start_ours(size: int, plan: Path) -> subprocess.Popen[bytes]:
    """Starts a batch under `uniference run`."""
    options = ["--ranks", str(size), "--backend", "gloo", "--compute", "none", "--out", str(plan / "out")]
    command = [sys.executable, "-m", "uniference", "run", *options, str(CASES), str(plan)]
    return _popen(command, plan, {})


def start_nccl(size: int, plan: Path) -> subprocess.Popen[bytes]:
    """Starts a batch as `nccl` on simulated GPUs of one host."""
    cluster = plan / "cluster.toml"
    cluster.write_text(
        f'backend = "nccl"\n[[device]]\nname = "gpu"\nmodel = "h100-sxm"\ncount = {size}\nhost = "server"\n[network]\n'
    )
    options = ["--cluster", str(cluster), "--cuda", "--compute", "model", "--out", str(plan / "out")]
    command = [sys.executable, "-m", "uniference", "run", *options, str(CASES), str(plan)]
    # The tests expect the profiler events of this PyTorch class, `nccl:all_reduce`. The other class's events lack the
    # prefix.
    return _popen(command, plan, {"BACKEND": "nccl", "TORCH_DIST_USE_NCCL2": "0"})


def start_gloo(size: int, plan: Path) -> subprocess.Popen[bytes]:
    """Starts a batch under real Gloo."""
    return _popen([sys.executable, __file__, "--gloo", str(size), str(plan)], plan, {})


def _popen(command: Sequence[str], plan: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    with open(plan / "stderr", "wb") as stderr, open(plan / "stdout", "wb") as stdout:
        return subprocess.Popen(
            command, stdout=stdout, stderr=stderr, cwd=plan, env=os.environ | env, start_new_session=True
        )


def _fork_gloo(size: int, plan: Path) -> int:
    """Forks the ranks from one process that has torch loaded; ends all of them if one fails."""
    torch.set_num_threads(1)
    pids = [_fork_rank(rank, size, plan) for rank in range(size)]
    alive, code = set(pids), 0
    while alive:
        pid, status = os.wait()
        alive.discard(pid)
        if status and not code:
            code = 1
            for other in alive:
                os.kill(other, signal.SIGKILL)
    return code


def _fork_rank(rank: int, size: int, plan: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
        sys.argv = [str(CASES), str(plan)]
        runpy.run_path(str(CASES), run_name="__main__")
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stderr.flush()
        os._exit(code)


def all_tests() -> list[str]:
    """Names of PyTorch's tests, parsed from the source, because importing the module requires an environment of its
    own."""
    source = Path(torch.__file__).parent / "testing/_internal/distributed/distributed_test.py"
    classes = (node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.ClassDef))
    base = next(node for node in classes if node.name == "_DistTestBase")
    names = {node.name for node in ast.walk(base) if isinstance(node, ast.FunctionDef)}
    return sorted(name for name in names if name.startswith("test_"))


def compare(size: int, tests: Sequence[str], folder: Path) -> bool:
    """Prints the table of one number of ranks; False if the simulation fails a test that Gloo passes."""
    sides: dict[str, dict[str, Outcome]] = {}
    for name, start in (("gloo", start_gloo), ("ours", start_ours)):
        directory = folder / f"{name}{size}"
        directory.mkdir(parents=True)
        sides[name] = run(tests, size, start, directory)
    real, ours = sides["gloo"], sides["ours"]
    print(f"{f'{size} ranks':<78} {'Gloo':<8} ours")
    for test in tests:
        if {real[test].kind, ours[test].kind} != {"skipped"}:
            print(f"{test:<78} {real[test].kind:<8} {ours[test].kind}")
    wrong = [test for test in tests if real[test].kind == "ok" and ours[test].kind != "ok"]
    for test in wrong:
        print(f"\n--- {test}: {ours[test].kind} on ours\n{ours[test].reason.strip()[-3000:]}")
    for name, outcomes in sides.items():
        print(f"{size} ranks, {name}: {dict(sorted(Counter(outcome.kind for outcome in outcomes.values()).items()))}")
    return not wrong


def _in_short(outcome: Outcome) -> str:
    """The reason why a test was skipped, or its error."""
    lines = outcome.reason.strip().splitlines()
    errors = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|error|Exception)\b.*:", line)]
    return (errors or lines or [""])[-1]


def show_nccl(size: int, tests: Sequence[str], folder: Path) -> None:
    """Prints the tests that pass as `nccl`, and for each other test the reason."""
    directory = folder / f"nccl{size}"
    directory.mkdir(parents=True)
    outcomes = run(tests, size, start_nccl, directory)
    print(f"{f'{size} ranks as nccl':<78} ours")
    for test, outcome in sorted(outcomes.items(), key=lambda item: (item[1].kind, item[0])):
        print(f"{test:<78} {outcome.kind:<8} {_in_short(outcome)[:160]}", flush=True)
    print(f"{size} ranks, nccl: {dict(sorted(Counter(outcome.kind for outcome in outcomes.values()).items()))}")


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="PyTorch's DistributedTest under real Gloo and under uniference")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", nargs="+", default=[""], help="run the tests whose names contain one of these texts")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--only-nccl", action="store_true", help="leave the comparison with Gloo out")
    part.add_argument("--no-nccl", action="store_true", help="leave the list of what passes as nccl out")
    parser.add_argument("--keep", type=Path, help="write the batches to this new folder and keep it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        tests = [test for test in all_tests() if any(text in test for text in arguments.only)]
        results = [] if arguments.only_nccl else [compare(size, tests, folder) for size in arguments.ranks]
        for size in () if arguments.no_nccl else arguments.ranks:
            show_nccl(size, tests, folder)
    return 0 if all(results) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--gloo"]:
        sys.exit(_fork_gloo(int(sys.argv[2]), Path(sys.argv[3])))
    sys.exit(main())
