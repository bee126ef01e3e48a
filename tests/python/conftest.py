"""Common fixtures of the Python tests."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from harness import start  # noqa: F401 - a fixture

# One thread, because tests fork this process, and a thread pool does not survive a fork.
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-sizes", action="store_true", help="compare every part with real Gloo on 2, 3 and 4 ranks")
