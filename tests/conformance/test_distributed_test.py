"""PyTorch's own tests of process groups pass in the simulation. `make conformance` compares them with real Gloo, runs
all of them as `nccl` on simulated GPUs, and both with 4 ranks."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from suite import all_tests, run, start_nccl, start_ours

# Number of tests that pass on real Gloo of torch 2.15.0 with 2 ranks and no GPU; the others are skipped.
PASS_ON_GLOO = 90


def test_two_ranks(tmp_path: Path) -> None:
    outcomes = run(all_tests(), 2, start_ours, tmp_path)
    failed = {test: outcome.reason for test, outcome in outcomes.items() if outcome.kind == "failed"}
    assert not failed
    assert Counter(outcome.kind for outcome in outcomes.values())["ok"] >= PASS_ON_GLOO


# Tests of collectives and messages of GPU tensors, and of gradients in float16.
AS_NCCL = ("_cuda", "_nccl", "SyncBatchNorm", "with_amp")

# Number of these tests that pass with 2 ranks; PyTorch skips the others.
PASS_AS_NCCL = 46


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")
def test_as_nccl(tmp_path: Path) -> None:
    outcomes = run([test for test in all_tests() if any(part in test for part in AS_NCCL)], 2, start_nccl, tmp_path)
    failed = {test: outcome.reason for test, outcome in outcomes.items() if outcome.kind == "failed"}
    assert not failed
    assert Counter(outcome.kind for outcome in outcomes.values())["ok"] == PASS_AS_NCCL
