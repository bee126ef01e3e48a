"""Other people's programs that need only torch: `make programs` runs all programs."""

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from programs import PROGRAMS, Outcome, Program, compare, judge

SHORT = ("examples/fsdp2.py", "generate.py --tensor-parallel")


@pytest.mark.parametrize("title", SHORT)
def test_program(title: str, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = [program for program in PROGRAMS if program.title == title]
    if importlib.util.find_spec(program.package) is None:
        pytest.skip(f"{program.package} is not installed: `make programs` does that")
    # The exit code and the results are those under torchrun.
    assert compare(program), capsys.readouterr().out


GOOD, OTHER, SILENT, FAILED = (
    Outcome(0, ("RESULT 1",), ""),
    Outcome(0, ("RESULT 2",), ""),
    Outcome(0, (), ""),
    Outcome(1, (), ""),
)
NEAR = Outcome(0, ("RESULT 1.000001",), "")


@pytest.mark.parametrize(
    ("sides", "verdict"),
    [
        ({"Gloo": GOOD, "ours": GOOD, "GPUs": GOOD}, "same"),
        ({"Gloo": GOOD, "ours": GOOD, "GPUs": OTHER}, "differs"),
        ({"Gloo": GOOD, "ours": FAILED}, "fails"),
        ({"Gloo": FAILED, "ours": GOOD}, "fails on Gloo"),
        ({"Gloo": FAILED, "ours": FAILED}, "fails on Gloo"),
        ({"Gloo": SILENT, "ours": SILENT}, "no results"),
        ({"GPUs": GOOD}, "runs"),
        ({"GPUs": FAILED}, "fails"),
        ({"GPUs": NEAR, "one GPU": GOOD}, "as one GPU"),
        ({"GPUs": OTHER, "one GPU": GOOD}, "differs"),
        ({"GPUs": GOOD, "one GPU": FAILED}, "fails"),
        ({"GPUs": SILENT, "one GPU": SILENT}, "no results"),
    ],
)
def test_verdict(sides: dict[str, Outcome], verdict: str) -> None:
    # A program that failed on Gloo, or printed no results, does not count as equal.
    assert judge(Program("some", ()), sides) == verdict
