"""Owns the work of one rank in a run of PyTorch's own `DistributedTest`: some of its tests, one after the other, in one
process.

Usage: cases.py PLAN, where PLAN is a folder with `tests`, one name per line; each rank writes `rank<r>.jsonl` to that
folder. The module works under `uniference run` and under real Gloo alike. `suite.py` starts both, and continues after a
failed test, which ends this process.
"""

import json
import os
import sys
import traceback
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

PLAN = Path(sys.argv[1])
RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])

# The tests' module reads these when it is imported.
os.environ.setdefault("BACKEND", "gloo")
os.environ["TEMP_DIR"] = str(PLAN)

# With torchvision, tests for GPUs train a ResNet-50 on pictures of a million pixels: an hour on CPUs. The tests have
# other models, too.
sys.modules["torchvision"] = None  # type: ignore[assignment]

import torch.distributed as dist  # noqa: E402 - after the environment is set
from torch.testing._internal import common_utils  # noqa: E402
from torch.testing._internal.common_distributed import TEST_SKIPS  # noqa: E402
from torch.testing._internal.distributed import distributed_test as theirs  # noqa: E402

_SKIPPED = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}


class Case(theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):
    """PyTorch's tests. Ranks are processes already, so none are spawned."""


def main() -> int:
    """Returns the exit code: 0 unless a test has failed."""
    with open(PLAN / f"rank{RANK}.jsonl", "w", buffering=1) as log:
        for test in (PLAN / "tests").read_text().split():
            _note(log, test, "started")
            outcome, reason = _run(test)
            _note(log, test, outcome, reason)
            if outcome == "failed":
                return 1
    return 0


def _note(log: TextIO, test: str, outcome: str, reason: str = "") -> None:
    log.write(json.dumps({"test": test, "outcome": outcome, "reason": reason}) + "\n")


def _run(test: str) -> tuple[str, str]:
    skipped = getattr(getattr(Case, test), "__unittest_skip_why__", None)
    if skipped is not None:
        return "skipped", skipped
    try:
        with _group(test):
            common_utils.set_rng_seed()
            getattr(_case(test), test)()
            theirs.Barrier.sync()
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as end:
        return ("skipped", _SKIPPED[end.code]) if end.code in _SKIPPED else ("failed", f"exit code {end.code}")
    except BaseException:
        return "failed", traceback.format_exc()
    return "ok", ""


def _case(test: str) -> Any:
    """Creates a test case as TestDistBackend._run does."""
    case = Case(test)
    case.rank = RANK
    case.file_name = str(PLAN / test / "init")
    case.skip_return_code_checks = []
    return case


@contextmanager
def _group(test: str) -> Iterator[None]:
    """The process group of one test, and a folder of its own."""
    folder = PLAN / test
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    os.environ["TEMP_DIR"] = str(folder)
    theirs.Barrier.barrier_id = 0
    seconds = theirs.CUSTOM_PG_TIMEOUT.get(test, theirs.default_pg_timeout)
    dist.init_process_group(
        os.environ["BACKEND"],
        init_method=f"file://{folder / 'init'}",
        world_size=SIZE,
        rank=RANK,
        timeout=timedelta(seconds=seconds),
    )
    try:
        theirs.Barrier.sync()
        yield
    finally:
        if sys.exc_info()[0] in (None, unittest.SkipTest, SystemExit) and dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
