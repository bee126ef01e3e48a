"""PyTorch's own tests of process groups pass on ours. The comparison with real Gloo, and with 4 ranks, is `make conformance`."""

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from suite import all_tests, run, start_ours

# What passes on real Gloo of torch 2.15.0 with 2 ranks and no GPU; the others are skipped.
PASS_ON_GLOO = 90


def test_two_ranks(tmp_path: Path) -> None:
    outcomes = run(all_tests(), 2, start_ours, tmp_path)
    failed = {test: outcome.reason for test, outcome in outcomes.items() if outcome.kind == "failed"}
    assert not failed
    assert Counter(outcome.kind for outcome in outcomes.values())["ok"] >= PASS_ON_GLOO
