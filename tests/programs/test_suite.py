"""The part of other people's programs that needs no more than torch: `make programs` runs them all."""

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from programs import PROGRAMS, compare

SHORT = ("examples/fsdp2.py", "generate.py --tensor-parallel")


@pytest.mark.parametrize("title", SHORT)
def test_program(title: str, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = [program for program in PROGRAMS if program.title == title]
    if importlib.util.find_spec(program.package) is None:
        pytest.skip(f"{program.package} is not installed: `make programs` does that")
    # It ends as under torchrun, and prints the same results.
    assert compare(program), capsys.readouterr().out
    assert " ok " in capsys.readouterr().out
