"""The pytest plugin, as a project's own tests use it."""

from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest

from uniference.testing import assert_makespan

pytest_plugins = ["pytester"]

# Gloo's ring of two on an ideal network: each rank sends half of the tensor twice.
SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.zeros(250_000))
dist.destroy_process_group()
"""
TESTS = """
import pytest
from uniference.testing import assert_makespan

OPTIONS = {"ranks": 2, "backend": "ideal", "bandwidth": "8 Gbps", "latency": "10 us"}


def test_exact(uniference_run):
    # 2 (0.5 MB / 1 GB/s + 10 us)
    run = uniference_run("script.py", compute="none", **OPTIONS)
    assert_makespan(run, "1.02 ms")
    assert_makespan(run, at_most=1.02e-3)
    assert run.directory.name == "uniference-1"
    assert uniference_run("script.py", compute="none", **OPTIONS).directory.name == "uniference-2"


def test_too_slow(uniference_run):
    assert_makespan(uniference_run("script.py", compute="none", **OPTIONS), at_most="1 ms")


def test_measured(uniference_run):
    run = uniference_run("script.py", **OPTIONS)
    assert_makespan(run, at_most="1 h", allow_measured=True)
    with pytest.raises(ValueError, match="differs from run to run\\nhint: "):
        assert_makespan(run, at_most="1 h")
"""


def test_a_project_tests_its_programs(pytester: pytest.Pytester) -> None:
    (pytester.path / "script.py").write_text(SCRIPT)
    pytester.makepyfile(TESTS)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(
        [
            "*AssertionError: the makespan is 1.02 ms, more than 1 ms (+2.0 %)",
            "*49.0 % bandwidth of device.0 -> switch in all_reduce at *script.py:6",
        ]
    )


def test_pytest_finds_the_plugin() -> None:
    assert [entry.value for entry in entry_points(group="pytest11", name="uniference")] == ["uniference.testing"]


def run(makespan: float) -> SimpleNamespace:
    return SimpleNamespace(makespan=makespan, report={"manifest": {"compute": "none"}}, critical_path=[])


@pytest.mark.parametrize("options", [{"expected": "1.5 s"}, {"expected": 1.6, "rel": 0.1}, {"at_most": "1500 ms"}])
def test_what_holds_passes(options: dict) -> None:
    assert_makespan(run(1.5), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expected": "1.4 s"}, "the makespan is 1.5 s, not 1.4 s (+7.1 %)"),
        ({"expected": 2, "rel": 0.1}, "the makespan is 1.5 s, not 2 s within 10 % (-25.0 %)"),
        ({"at_most": "1499999 us"}, "the makespan is 1.5 s, more than 1.5 s (+0.0 %)"),
        ({"expected": 0}, "the makespan is 1.5 s, not 0 ns"),
    ],
)
def test_what_does_not_hold_fails(options: dict, message: str) -> None:
    with pytest.raises(AssertionError) as failure:
        assert_makespan(run(1.5), **options)
    assert str(failure.value) == message


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"expected": 1, "at_most": 2},
        {"at_most": 1, "rel": 0.1},
        {"expected": "1"},
        {"expected": "1 day"},
        {"at_most": -1},
    ],
)
def test_questions_without_sense_are_refused(options: dict) -> None:
    with pytest.raises(ValueError, match=r"hint:|give either|belongs to"):
        assert_makespan(run(1.5), **options)


def test_a_fixture_runs_where_the_test_is(tmp_path: Path, uniference_run: object) -> None:
    assert callable(uniference_run)
    assert not list(tmp_path.iterdir())
