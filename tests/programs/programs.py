"""Owns the comparison of other people's programs under torchrun with real Gloo, under `uniference run`, and on
simulated GPUs.

Usage: programs.py [--only TEXT]. Prints a table, and ends with 1 if a program's results differ from Gloo's, or if it
fails on either. Programs of packages run as they are shipped; for a package that ships only a library, a short script
in this folder calls it, and `examples/` has programs after PyTorch's examples.
"""

import argparse
import functools
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import distributions
from pathlib import Path

HERE = Path(__file__).parent

# Folder of packages that are incompatible with the others.
APART = Path(sys.prefix) / "apart"

# Packages with an environment of their own, because they need another version of torch; and the interpreter of each.
OWN = {name: HERE.parents[1] / f".venv-{name}/bin/python" for name in ("vllm", "sglang")}

TIMEOUT_S = 600

# Exit code of a program that exceeds the time limit, the same as that of the command `timeout`.
_TOO_LONG = 124

_NUMBER = re.compile(r"-?\d[\d.]*(?:e[-+]?\d+)?|nan|inf")
_CLOSE = functools.partial(math.isclose, rel_tol=1e-5)

# Packages that look for a hub, or a GPU, are told that none exists.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
_WITHOUT_GPU = {"ACCELERATE_USE_CPU": "true"}


@dataclass(frozen=True)
class Program:
    """A program to run: its package, and its arguments."""

    package: str
    arguments: tuple[str, ...]
    ranks: int = 2
    on_cpu: bool = True
    """Whether it runs without a GPU, so that real Gloo can run it."""
    on_gpu: bool = True
    """Whether it is also run on simulated GPUs."""
    launcher: tuple[str, ...] = ()
    """Launcher of its own package that starts it on simulated GPUs; empty: none."""
    asserts: bool = False
    """Whether it checks its results itself, and prints none."""
    draws: bool = False
    """Whether its weights are drawn on its device: those of GPUs differ, so the program only has to succeed."""
    without_values: bool = False
    """Whether its tensors are too large to be computed on this machine, and its results do not depend on them."""
    as_one: tuple[str, ...] | None = None
    """Its arguments on one simulated GPU alone, whose results are the same except for rounding."""
    one_program: bool = False
    """Whether it is started once, and starts a process for each GPU itself."""
    apart: bool = False
    """Whether its package is among the incompatible ones."""

    @property
    def interpreter(self) -> Path:
        """The interpreter that runs it."""
        return OWN.get(self.package, Path(sys.executable))

    @property
    def environment(self) -> dict[str, str]:
        """Its environment variables, in place of the user's."""
        if not self.apart:
            return ENVIRONMENT
        paths = {"PATH": APART / "bin", "PYTHONPATH": APART}
        first = {name: f"{path}{os.pathsep}{os.environ.get(name, '')}" for name, path in paths.items()}
        # Compiled extensions are kept next to the packages.
        return ENVIRONMENT | first | {"TORCH_EXTENSIONS_DIR": str(APART / "extensions")}

    @property
    def title(self) -> str:
        """Its title in the table."""
        words = (*self.launcher, *self.arguments)
        return " ".join(argument.removeprefix(f"{HERE}/") for argument in words if argument != "-m")


def _script(name: str, on_cpu: bool = True) -> Program:
    """A test of accelerate that its users are told to launch."""
    module = f"accelerate.test_utils.scripts.{name}"
    return Program("accelerate", ("-m", module), on_cpu=on_cpu, on_gpu=not on_cpu, asserts=True)


def _file(package: str, name: str, *arguments: str, ranks: int = 2, **traits: bool) -> Program:
    return Program(package, (str(HERE / name), *arguments), ranks, **traits)


_ACCELERATE = ("test_script", "test_sync", "test_ops")
_ACCELERATE_ON_GPUS = ("test_ddp_comm_hook", "test_distributed_data_loop", "test_merge_weights")

# The launcher requests as many processes as there are ranks.
_ACCELERATE_LAUNCH = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2")

_LIBRARIES = {
    "transformers": "transformers_trainer",
    "accelerate": "accelerate_loop",
    "lightning": "lightning_fabric",
    "pytorch-ignite": "ignite_trainer",
    "fairscale": "fairscale_sharded",
    "torchvision": "torchvision_resnet",
    "peft": "peft_adapters",
    "megatron-core": "megatron_layers",
}

_VLLM = ("vllm_generate.py",)
_LOAD = ("--count", "4", "--input", "32", "--output", "8")
_SERVED = ("--concurrency", "2", "--count", "4", "--input", "32", "--output", "8", "--brief")

# Layouts of the Megatron-core GPT, each with its number of ranks. The program requests GPUs everywhere.
_MEGATRON = (
    (2, "--tp", "2", "--sp"),
    (4, "--tp", "2", "--sp", "--pp", "2"),
    (4, "--pp", "2", "--virtual", "2", "--overlap"),
    (2, "--experts", "4", "--ep", "2"),
    (4, "--experts", "4", "--ep", "2", "--tp", "2", "--sp"),
)


def _megatron(ranks: int, *arguments: str) -> Program:
    script = str(HERE / "megatron_gpt.py")
    experts = arguments[:2] if arguments[0] == "--experts" else ()
    return Program("megatron-core", (script, *arguments), ranks, on_cpu=False, as_one=(script, *experts))


_ASYNCHRONOUS = (str(HERE / "examples/async_tensor_parallel.py"),)
_TITAN = ("torchtitan", "titan.py", "--debug.seed", "1")
_STAGES = ("--parallelism.pipeline_parallel_degree", "2")

PROGRAMS = (
    _file("torch", "examples/ddp_series.py", "2"),
    _file("torch", "examples/imagenet.py"),
    _file("torch", "examples/mingpt.py"),
    _file("torch", "examples/mingpt.py", "--amp", on_cpu=False),
    _file("torch", "examples/fsdp1.py"),
    _file("torch", "examples/fsdp2.py"),
    _file("torch", "examples/tensor_parallel.py", ranks=4),
    # PyTorch has symmetric memory only for GPUs.
    Program("torch", _ASYNCHRONOUS, on_cpu=False, as_one=_ASYNCHRONOUS),
    _file("torch", "examples/float8.py"),
    _file("torch", "examples/streams.py"),
    *(_script(name) for name in _ACCELERATE),
    # On CPUs these fail: they give DDP device numbers, join uneven inputs and save FSDP's state, which accelerate
    # supports only on GPUs.
    *(_script(name, on_cpu=False) for name in _ACCELERATE_ON_GPUS),
    _file("transformers", "generate.py", on_gpu=False),
    _file("transformers", "generate.py", "--tensor-parallel", on_gpu=False),
    _file("lightning", "lightning_ddp.py", on_gpu=False),
    *(_file(package, "libraries.py", name) for package, name in _LIBRARIES.items()),
    _file("transformers", "libraries.py", "transformers_batches"),
    Program("accelerate", (str(HERE / "libraries.py"), "accelerate_loop"), launcher=_ACCELERATE_LAUNCH),
    *(_megatron(ranks, *arguments) for ranks, *arguments in _MEGATRON),
    # Its FSDP2 multiplies before it reduces, which Gloo does not support.
    _file(*_TITAN, on_cpu=False),
    _file(*_TITAN, "--parallelism.tensor_parallel_degree", "2", draws=True),
    _file(*_TITAN, *_STAGES, draws=True),
    _file(*_TITAN, *_STAGES, "--parallelism.pipeline_parallel_schedule", "Interleaved1F1B", draws=True),
    _file(*_TITAN, "--parallelism.context_parallel_degree", "2", on_cpu=False),
    _file(*_TITAN, "--model.converters", "quantize.linear.float8", on_cpu=False),
    _file(*_TITAN, "--compile.enable", on_cpu=False),
    _file("torchtune", "tune.py", apart=True),
    # torch does not clip gradients on several meshes together.
    _file("torchtune", "tune.py", "tensor_parallel_dim=2", "clip_grad_norm=null", ranks=4, apart=True),
    *(_file("deepspeed", "libraries.py", name, apart=True) for name in ("deepspeed_zero", "deepspeed_offload")),
    # Its GPU kernels are its own.
    _file("torchrec", "libraries.py", "torchrec_sharded", on_gpu=False, apart=True),
    # It supports no CPUs, and has kernels of its own.
    *(_file("vllm", *_VLLM, ranks=ranks, on_cpu=False, without_values=True) for ranks in (1, 2)),
    *(
        _file("vllm", *_VLLM, "--graphs", "FULL_AND_PIECEWISE", ranks=ranks, on_cpu=False, without_values=True)
        for ranks in (1, 2)
    ),
    # MoE layers, MLA, and weights in 8 bits.
    *(
        _file("vllm", *_VLLM, shape, ranks=ranks, on_cpu=False, without_values=True)
        for shape in ("tiny-experts-fp8", "tiny-latent-fp8")
        for ranks in (1, 2)
    ),
    _file("vllm", *_VLLM, "tiny-experts-fp8", "--expert-parallel", on_cpu=False, without_values=True),
    *(_file("vllm", "vllm_serve.py", *_SERVED, ranks=ranks, on_cpu=False, without_values=True) for ranks in (1, 2)),
    _file("vllm", "vllm_server.py", *_LOAD, ranks=1, on_cpu=False, without_values=True),
    _file(
        "vllm", "vllm_server.py", *_LOAD, "--tensor-parallel", "2", on_cpu=False, without_values=True, one_program=True
    ),
    _file("vllm", "vllm_server.py", *_LOAD, "--apart", on_cpu=False, without_values=True, one_program=True),
    # It compiles kernels at their first use. Several ranks would wait for each other outside of virtual time.
    *(
        _file("sglang", "sglang_batch.py", *words, ranks=1, on_cpu=False, without_values=True)
        for words in ((), ("--graphs",), ("tiny-experts-fp8",), ("tiny-latent-fp8", "--graphs"))
    ),
    _file("sglang", "sglang_serve.py", *_SERVED, ranks=1, on_cpu=False, without_values=True),
    _file("sglang", "sglang_server.py", *_LOAD, ranks=1, on_cpu=False, without_values=True),
    _file(
        "sglang",
        "sglang_server.py",
        *_LOAD,
        "--tensor-parallel",
        "2",
        on_cpu=False,
        without_values=True,
        one_program=True,
    ),
    _file("sglang", "sglang_server.py", *_LOAD, "--apart", on_cpu=False, without_values=True, one_program=True),
)


@dataclass(frozen=True)
class Outcome:
    """Exit code, results and errors of a program."""

    code: int
    results: tuple[str, ...]
    error: str

    @property
    def kind(self) -> str:
        """The outcome in words for the table."""
        return {0: "ok", _TOO_LONG: "too long"}.get(self.code, f"exit {self.code}")


def under_gloo(program: Program, folder: Path) -> Outcome:
    """Runs the program as its users start it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    logs = folder / "logs"
    torchrun = ("-m", "torch.distributed.run", f"--nproc-per-node={program.ranks}", f"--master-port={port}")
    # Separate logs, because ranks that write to one pipe interleave their lines.
    done = _run(
        (program.interpreter, *torchrun, "--redirects=3", f"--log-dir={logs}", *program.arguments),
        folder,
        program.environment | _WITHOUT_GPU,
    )
    return _outcome(done, "".join(path.read_text() for path in sorted(logs.glob("**/stdout.log"))))


def under_us(program: Program, folder: Path, gpus: bool) -> Outcome:
    """Runs the program in virtual time; with `gpus`, on simulated GPUs of one host."""
    cluster = folder / "cluster.toml"
    backend, model = ("nccl", 'model = "h100-sxm"\n') if gpus else ("gloo", "")
    cluster.write_text(
        f'backend = "{backend}"\n[[device]]\nname = "gpu"\n{model}count = {program.ranks}\nhost = "server"\n[network]\n'
    )
    options = (
        "--cluster",
        str(cluster),
        "--cuda" if gpus else "--no-cuda",
        *(["--one-program"] if program.one_program else []),
        "--compute",
        "model" if gpus else "none",
        "--values",
        "small" if program.without_values else "all",
        "--out",
        f"{folder}/out",
    )
    started = (*(program.launcher if gpus else ()), *program.arguments)
    environment = program.environment | ({} if gpus else _WITHOUT_GPU)
    done = _run((program.interpreter, "-m", "uniference", "run", *options, *started), folder, environment)
    if done.returncode == 0 and program.one_program:
        return _replayed(program, folder, _outcome(done, done.stdout))
    return _outcome(done, done.stdout)


def _replayed(program: Program, folder: Path, outcome: Outcome) -> Outcome:
    """The same outcome, if the replay of the run's record has the same events."""
    out, again = folder / "out", folder / "again"
    done = _run((program.interpreter, "-m", "uniference", "replay", str(out), "--out", str(again)), folder, {})
    if done.returncode:
        return replace(outcome, code=done.returncode, error=done.stderr)
    digests = [json.loads(path.joinpath("report.json").read_text())["digest"] for path in (out, again)]
    return outcome if digests[0] == digests[1] else replace(outcome, code=1, error=f"replayed differently: {digests}")


def _run(
    command: tuple[str | Path, ...], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | environment | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, error = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        # The whole group is killed, because its ranks hold the pipes, too.
        os.killpg(process.pid, signal.SIGKILL)
        output, error = process.communicate()
        return subprocess.CompletedProcess(command, _TOO_LONG, output, error)
    return subprocess.CompletedProcess(command, process.returncode, output, error)


def _outcome(done: subprocess.CompletedProcess[str], printed: str) -> Outcome:
    # Uniference puts the rank in front of a line.
    results = sorted(line[line.index("RESULT") :] for line in printed.splitlines() if "RESULT" in line)
    return Outcome(done.returncode, tuple(results), done.stderr)


@functools.cache
def on_one_gpu(program: Program) -> Outcome:
    """The outcome on one GPU, with which several layouts are compared."""
    with tempfile.TemporaryDirectory() as folder:
        return under_us(program, Path(folder), gpus=True)


def compare(program: Program) -> bool:
    """Prints a line of the table; False if the program has failed anywhere, Gloo included, or its results differ from
    Gloo's."""
    sides: dict[str, Outcome] = {}
    for name in ("Gloo", "ours", "GPUs"):
        if program.on_gpu if name == "GPUs" else program.on_cpu:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder)
                sides[name] = under_gloo(program, path) if name == "Gloo" else under_us(program, path, name == "GPUs")
    if program.as_one is not None:
        sides["one GPU"] = on_one_gpu(replace(program, arguments=program.as_one, ranks=1, as_one=None))
    verdict = judge(program, sides)
    kinds = " ".join(f"{sides[name].kind if name in sides else '-':<8}" for name in ("Gloo", "ours", "GPUs"))
    print(f"{program.title:<66} {_version(program.package):<22} {kinds} {verdict}", flush=True)
    if verdict in ("same", "as one GPU", "runs"):
        return True
    for name, outcome in sides.items():
        print(f"--- {name}: {outcome.kind}\n", *outcome.results, outcome.error.strip()[-2000:], sep="\n", flush=True)
    return False


def judge(program: Program, sides: Mapping[str, Outcome]) -> str:
    """`same`, `as one GPU` or `runs` (nothing to compare with) if all is well; otherwise the failure, Gloo's own
    first."""
    real = sides.get("Gloo")
    ours = {name: outcome for name, outcome in sides.items() if name != "Gloo"}
    if real is not None and real.code:
        return "fails on Gloo"
    if any(outcome.code for outcome in ours.values()):
        return "fails"
    if not program.asserts and not all(outcome.results for outcome in sides.values()):
        return "no results"
    if "one GPU" in sides:
        return "as one GPU" if _alike(sides["GPUs"].results, sides["one GPU"].results) else "differs"
    if real is None:
        return "runs"
    compared = (outcome for name, outcome in ours.items() if name == "ours" or not program.draws)
    return "same" if all(outcome.results == real.results for outcome in compared) else "differs"


def _alike(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether all numbers are equal except for float32 rounding of sums in another order, over a few steps."""
    numbers, expected = ([float(number) for number in _NUMBER.findall(" ".join(lines))] for lines in (some, others))
    return len(numbers) == len(expected) and all(map(_CLOSE, numbers, expected))


def _version(package: str) -> str:
    paths = [str(APART), *sys.path]
    if package in OWN:
        paths = [str(path) for path in OWN[package].parents[1].glob("lib/python*/site-packages")]
    found = next(iter(distributions(name=package, path=paths)), None)
    return f"{package} {found.version if found else '(not installed)'}"


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="other people's programs, under torchrun and under uniference")
    parser.add_argument("--only", default="", help="run the programs whose titles contain this text")
    arguments = parser.parse_args()
    print(f"{'program':<66} {'package':<22} {'Gloo':<8} {'ours':<8} {'GPUs':<8}")
    chosen = [program for program in PROGRAMS if arguments.only in program.title]
    for package in {program.package for program in chosen if not program.interpreter.exists()}:
        print(f"{package} is left out: its environment is made by `make programs-{package}`", flush=True)
    chosen = [program for program in chosen if program.interpreter.exists()]
    return 0 if all([compare(program) for program in chosen]) else 1


if __name__ == "__main__":
    sys.exit(main())
