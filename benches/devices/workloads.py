"""Owns published training steps that are predicted as generated jobs: their parameters, and the command of each."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from .section import Row, Section, read

# The command line of the package of this repository.
COMMAND: Sequence[str] = (sys.executable, "-m", "uniference")


Options = dict[str, str | int | bool]
# Time limit of a job's simulation, in seconds.
PATIENCE = 300


@dataclass(frozen=True)
class Cluster:
    """Servers with GPUs, each GPU with a NIC of its own."""

    model: str
    count: int
    fabric: str
    link: str
    # Factor of the operators' durations, from the rows of single kernels.
    slowdown: float = 1.0
    # Further keys of the devices, and of the backend.
    device: str = ""
    backend: str = ""

    def text(self) -> str:
        """The text of a cluster file."""
        return f"""\
[backend]
name = "nccl"
{self.backend}
[[device]]
name = "gpu"
count = {self.count}
model = "{self.model}"
memory = "1 TiB"
slowdown = {self.slowdown}
{self.device}
[network]
preset = "rail"
per_server = {min(self.count, 8)}
fabric = "{self.fabric}"
link = "{self.link}"
"""


@dataclass(frozen=True)
class Job:
    """A training step that was measured."""

    name: str
    group: str
    cluster: Cluster
    # Options of `uniference workload llama`; flags have the value True.
    options: Options
    measured: float
    # Conversion of a step's seconds to the unit of the source.
    unit: Callable[[float], float] = field(default=lambda seconds: seconds)
    fitted: bool = False

    def predict(self, path: Path) -> Row | None:
        """Runs the job; `path` is the folder of its cluster file and its results. `None`: the simulation exceeds the
        time limit."""
        path.mkdir(parents=True, exist_ok=True)
        cluster = path / "cluster.toml"
        cluster.write_text(self.cluster.text())
        words = [*COMMAND, "workload", "llama", "--run", "--json", "--cluster", cluster, "--out", path / "run"]
        for option, value in self.options.items():
            words += [f"--{option}"] if value is True else [f"--{option}", str(value)]
        try:
            done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return None
        if done.returncode:
            raise RuntimeError(f"{self.name}\n{' '.join(map(str, words))}\n{done.stderr}")
        predicted = self.unit(float(json.loads(done.stdout)["makespan_s"]))
        return Row(self.name, self.measured, predicted, self.group, self.fitted)


def section(title: str, text: str, jobs: Iterable[Job], out: Path, others: Mapping[str, str] | None = None) -> Section:
    """Predicts all jobs, several at a time."""
    folders, jobs = (out / f"{number}" for number in count()), list(jobs)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        rows = list(pool.map(Job.predict, jobs, folders))
    late = ", ".join(job.name for job, row in zip(jobs, rows, strict=True) if row is None)
    if late:
        text += f" Not simulated within {PATIENCE} s, and left out: {late}."
    return Section(title, text, [row for row in rows if row is not None], others or {})


def sections(out: Path, few: bool) -> list[Section]:
    """Sections of all sources of this file."""
    sources = [vtrain, megatron, llama_405b, torchtitan, llm_foundry, megatron_llama]
    return [source(out / source.__name__, few) for source in sources]


def a100(ranks: int, slowdown: float = 1.0, backend: str = "") -> Cluster:
    """Servers of eight A100 (80 GB), as in all sources."""
    return Cluster("a100-sxm-80gb", ranks, "nvlink3", "infiniband_hdr", slowdown, backend=backend)


def h100(ranks: int, slowdown: float, device: str = "") -> Cluster:
    """Servers of eight H100."""
    return Cluster("h100-sxm", ranks, "nvlink4", "infiniband_ndr", slowdown, device)


# vTrain


VTRAIN = """\
Source: [vTrain](https://github.com/VIA-Research/vTrain) at f8dda847 (MIT), `data/ground_truth_single.csv`: milliseconds of
a step of Megatron-LM (GPT, 16 heads, sequences of 1,024, vocabulary 51,200, float16) on one server of 8 A100. Predicted
with unfused attention, dropout, gradients summed after the last backward pass. Chosen on a coarse grid for the 32 steps of 24 layers in two
micro-batches without pipeline that are one replica, or 8 of one rank: 80 us of the host for an operator, 400 us before
each collective, no `slowdown`. The times of the source are linear in the number of layers and micro-batches to four
digits, so other rows repeat these; those with 8 tensor-parallel ranks and few tokens are host-bound in a way that is not
modelled."""


def vtrain(out: Path, few: bool) -> Section:
    """All steps of the source."""
    jobs: list[Job] = []
    for row in read("vtrain.csv"):
        hidden, layers, heads, tp, dp, pp, batch, micro = (int(value) for value in list(row.values())[:8])
        options = gpt(layers, hidden, heads, 1024) | {
            **{"tp": tp, "dp": dp, "pp": pp, "batch": batch, "micro-batch": micro, "dtype": "float16"},
            **{"attention": "unfused", "dropout": True, "gradient-bytes": 2, "no-gradient-overlap": True},
            "host-time": "80 us",
        }
        alone = tp * dp * pp == max(tp, 8 if tp == 1 else 1) and pp == 1 and (dp == 1 or tp == 1)
        fitted = alone and layers == 24 and batch == 2 * dp * micro
        name = f"h {hidden}, {layers} layers, tp {tp} dp {dp} pp {pp}, {batch} x {micro}"
        cluster = a100(tp * dp * pp, 1.0, 'call = "400 us"')
        group = "pp 1" if pp == 1 else "pp 2, 4"
        jobs.append(Job(name, group, cluster, options, float(row["ms"]), lambda seconds: 1e3 * seconds, fitted))
    jobs = jobs[:: 97 if few else 1]
    return section("Megatron-LM on one server (vTrain)", VTRAIN, jobs, out, {"pp 1": "vTrain, all rows: 8.37"})


def gpt(layers: int, hidden: int, heads: int, sequence: int, vocabulary: int = 51200) -> Options:
    """The options of a GPT."""
    return {
        **{"layers": layers, "hidden": hidden, "heads": heads, "kv-heads": heads, "ffn": 4 * hidden},
        **{"vocab": vocabulary, "seq": sequence, "mlp": "gelu", "tied-embeddings": True},
        "learned-positions": sequence,
    }


# Megatron-LM's papers


MEGATRON = """\
Sources: table 1 of Narayanan et al., "Efficient large-scale language model training on GPU clusters using
Megatron-LM" (SC 2021): TFLOP/s of a GPU by their equation 3, with full recomputation; micro-batches as in
Megatron-LM's `run_table_1.sh`. Table 5 of Korthikanti et al., "Reducing activation recomputation in large
transformer models" (2022): seconds of a step with full recomputation, and with sequence parallelism and selective
recomputation. A100 (80 GB), 8 InfiniBand HDR NICs per server, vocabulary 51,200, sequences of 2,048, float16,
unfused attention, dropout. Fitted: `slowdown` 0.86 on the first two rows. Assumed: two or three model chunks per
stage where the sources use an interleaved schedule without stating their number, gradients of 4 bytes summed after
the last backward pass."""

# Billions of parameters, heads, hidden, layers, tp, pp, GPUs, batch, TFLOP/s per GPU; micro-batch, model chunks per
# stage.
SC21 = [
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137, 16, 1),
    (3.6, 32, 3072, 30, 2, 1, 64, 512, 138, 16, 1),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142, 16, 1),
    (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135, 8, 1),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138, 4, 2),
    (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140, 2, 3),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148, 2, 2),
    (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155, 1, 2),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163, 1, 3),
    (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163, 1, 2),
]
# Billions of parameters, heads, hidden, layers, pp, GPUs, batch, micro-batch, pieces, seconds: full, and
# sequence-parallel selective recomputation.
RECOMPUTATION = [
    (22, 64, 6144, 48, 1, 8, 4, 4, 1, 1.42, 1.10),
    (175, 96, 12288, 96, 8, 64, 64, 1, 3, 18.13, 13.75),
    (530, 128, 20480, 105, 35, 280, 280, 1, 3, 49.05, 37.83),
    (1008, 160, 25600, 128, 64, 512, 512, 1, 1, 94.42, 71.49),
]


def megatron(out: Path, few: bool) -> Section:
    """Rows of both tables."""
    old: Options = {"attention": "unfused", "dropout": True, "no-gradient-overlap": True, "dtype": "float16"}
    jobs: list[Job] = []
    for size, heads, hidden, layers, tp, pp, gpus, batch, rate, micro, pieces in SC21:
        parallel: Options = {"tp": tp, "pp": pp, "dp": gpus // tp // pp, "batch": batch, "micro-batch": micro}
        options = gpt(layers, hidden, heads, 2048) | old | parallel | {"recompute": "full"} | interleaved(pieces)
        # Equation 3: 96 B s l h^2 (1 + s / 6h + V / 16 l h).
        flops = 96 * batch * 2048 * layers * hidden**2 * (1 + 2048 / 6 / hidden + 51200 / 16 / layers / hidden)
        unit = flops_per_gpu(flops, gpus)
        jobs.append(Job(f"{size} B on {gpus}", "SC 2021, TFLOP/s", a100(gpus, 0.86), options, rate, unit, gpus < 128))
    for size, heads, hidden, layers, pp, gpus, batch, micro, pieces, full, selective in RECOMPUTATION:
        parallel = {"tp": 8, "pp": pp, "batch": batch, "micro-batch": micro}
        base = gpt(layers, hidden, heads, 2048) | old | parallel | interleaved(pieces)
        modes: dict[str, tuple[float, Options]] = {
            "full": (full, {}),
            "selective": (selective, {"sequence-parallel": True}),
        }
        for mode, (seconds, more) in modes.items():
            options = base | {"recompute": mode} | more
            jobs.append(Job(f"{size} B on {gpus}, {mode}", f"2022, {mode}, s", a100(gpus, 0.86), options, seconds))
    return section("Megatron-LM's papers", MEGATRON, jobs[::6] if few else jobs, out)


def interleaved(pieces: int) -> Options:
    """The interleaved schedule with `pieces` model chunks per stage."""
    return {"virtual-stages": pieces} if pieces > 1 else {}


def flops_per_gpu(flops: float, gpus: int) -> Callable[[float], float]:
    """Converts seconds to TFLOP/s per GPU."""
    return lambda seconds: flops / seconds / gpus / 1e12


def tokens_per_gpu(tokens: float, gpus: int) -> Callable[[float], float]:
    """Converts seconds to tokens per second and GPU."""
    return lambda seconds: tokens / seconds / gpus


# Llama 3 405B


LLAMA_405B = """\
Source: "The Llama 3 herd of models" (2024), table 4: utilization of 989 TFLOP/s in bfloat16. Model operations are 3
(2 N + 2 L s h) per token. Nothing is fitted. Assumed: four model chunks per stage (the paper does not state their
number), optimizer states sharded, flash attention, causal without masks of documents, 8 NICs of 400 Gbps per server."""


def llama_405b(out: Path, few: bool) -> Section:
    """The three rows of the table."""
    jobs: list[Job] = []
    for gpus, context, data, sequence, batch, published in [
        (8192, 1, 64, 8192, 2048, 43),
        (16384, 1, 128, 8192, 2048, 41),
        (16384, 16, 8, 131072, 128, 38),
    ]:
        options = llama("405B", sequence) | {
            **{"tp": 8, "cp": context, "pp": 16, "dp": data, "batch": batch, "sequence-parallel": True, "zero": 1},
            "virtual-stages": 4,
        }
        flops = 3 * (2 * 403.75e9 + 2 * 126 * sequence * 16384) * batch * sequence
        unit = flops_per_gpu(flops / 989e12 * 1e14, gpus)
        name = f"{gpus} GPUs, sequences of {sequence}"
        jobs.append(Job(name, "utilization, %", h100(gpus, 1.0), options, published, unit))
    return section("Llama 3 405B", LLAMA_405B, jobs[:1] if few else jobs, out)


def llama(size: str, sequence: int) -> Options:
    """The options of a Llama 3 of 8, 70 or 405 billion parameters."""
    layers, hidden, heads, ffn = {
        "8B": (32, 4096, 32, 14336),
        "70B": (80, 8192, 64, 28672),
        "405B": (126, 16384, 128, 53248),
    }[size]
    return {"layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn, "seq": sequence}


# torchtitan


TORCHTITAN = """\
Source: [torchtitan](https://github.com/pytorch/torchtitan) at b5bcd76c and 4b3f2e41 (BSD-3-Clause), its benchmarks
and `performance.md`: tokens per second and GPU. The H100s are parts with 96 GB of HBM2e (2.4 TB/s) and 500 W, except
`H100-94GB` and H200 rows. Fitted: `slowdown` 1.25 on the first row. FSDP is `--zero 3`; with a pipeline `--zero 2`.
"SAC" is predicted as `--recompute selective`, which computes less again. Async tensor parallelism is not modelled,
and the database has no rows of FP8 GEMMs with a single scale, nor of attention with as many queries."""


def torchtitan(out: Path, few: bool) -> Section:
    """Every throughput of the source."""
    jobs: list[Job] = []
    for row in read("torchtitan.csv"):
        words = row["parallelism"]
        degree = {key: int(size) for key, size in re.findall(r"(FSDP|TP|PP|CP)(\d+)", words)}
        tp, pp, cp, dp = (degree.get(key, 1) for key in ("TP", "PP", "CP", "FSDP"))
        gpus, sequence = int(row["gpus"]), int(row["sequence"])
        local = int(re.match(r"local(\d+)", row["batch"])[1])  # type: ignore[index]
        batch = local * dp
        kernels = "compiled" if "compile" in words else "eager"
        options = llama(row["model"].split("-")[1], sequence) | {
            **{"tp": tp, "cp": cp, "pp": pp, "dp": dp, "batch": batch, "micro-batch": 1 if pp > 1 else local},
            **{"zero": 2 if pp > 1 else 3, "kernels": kernels, "recompute": "selective" if "SAC" in words else "full"},
        }
        if tp > 1:
            options["sequence-parallel"] = True
        if "interleaved" in words:
            options["virtual-stages"] = 2
        if row["dtype"].startswith("fp8"):
            options["float8"] = True
        if row["hardware"].startswith("H200"):
            cluster = Cluster("h200", gpus, "nvlink4", "infiniband_ndr", 1.25)
        else:
            memory = "2.4 TB/s" if "96GB" in row["hardware"] else "3.35 TB/s"
            cluster = h100(gpus, 1.25, f'memory_bandwidth = "{memory}"')
        name = f"{row['model']} on {gpus}: {words}, {sequence}, {row['dtype']}"
        group = "float8" if "float8" in options else "bf16, compiled" if kernels == "compiled" else "bf16, eager"
        unit = tokens_per_gpu(batch * sequence, gpus)
        jobs.append(Job(name, group, cluster, options, float(row["tokens_per_s_per_gpu"]), unit, not jobs))
    return section("torchtitan", TORCHTITAN, jobs[:2] if few else jobs, out, {"bf16, eager": "Phantora: 2.9"})


# llm-foundry

FOUNDRY = """\
Source: [llm-foundry](https://github.com/mosaicml/llm-foundry) at 8c8dd48f (Apache-2.0), its benchmarks of training:
tokens per second and GPU, MPT models (GPT with biases, vocabulary 50,368) under FSDP on H100 (80 GB), software of
2023; rows of more than 32 GPUs are left out, as no rank stands for others there. Predicted with flash attention,
eager kernels, full recomputation where the source has it. Fitted: `slowdown` 1.31 on the row of 7 B on 8 GPUs with
sequences of 2,048."""

# Hidden, heads, layers.
MPT = {
    "MPT-760m": (1536, 12, 24),
    "MPT-1b": (2048, 16, 24),
    "MPT-3b": (2560, 20, 32),
    "MPT-7b": (4096, 32, 32),
    "MPT-13b": (5120, 40, 40),
}


def llm_foundry(out: Path, few: bool) -> Section:
    """Every throughput of the source on H100."""
    jobs: list[Job] = []
    for row in read("llm_foundry.csv"):
        if int(row["gpus"]) > 32:
            continue
        hidden, heads, layers = MPT[row["model"]]
        gpus, sequence = int(row["gpus"]), int(row["sequence"])
        batch, micro = (int(value) for value in re.match(r"global(\d+) micro(\d+)", row["batch"]).groups())  # type: ignore[union-attr]
        options = gpt(layers, hidden, heads, sequence, 50368) | {
            **{"dp": gpus, "batch": batch, "micro-batch": micro, "kernels": "eager", "gradient-bytes": 2},
            **{"zero": 3 if "FULL_SHARD" in row["parallelism"] else 2},
            "recompute": "full" if row["parallelism"].endswith("AC") else "none",
        }
        if row["dtype"] == "amp_fp8":
            options["float8"] = True
        name = f"{row['model']} on {gpus}, {batch} x {sequence}, {row['parallelism']} {row['dtype']}"
        group = "float8" if "float8" in options else "760 M" if row["model"] == "MPT-760m" else "1 B to 13 B"
        fitted = row["model"] == "MPT-7b" and gpus == 8 and sequence == 2048
        unit = tokens_per_gpu(batch * sequence, gpus)
        jobs.append(Job(name, group, h100(gpus, 1.31), options, float(row["tokens_per_s_per_gpu"]), unit, fitted))
    return section("llm-foundry", FOUNDRY, jobs[::20] if few else jobs, out)


# Megatron-LM's Llama

MEGATRON_LLAMA = """\
Source: [Megatron-LM](https://github.com/NVIDIA/Megatron-LM) at d98e8a64, the README of its Llama example: tokens per
second and GPU, FP8 (hybrid), H100. Nothing is fitted."""


def megatron_llama(out: Path, few: bool) -> Section:
    """The three rows of the table."""
    jobs: list[Job] = []
    for row in read("megatron_llama.csv"):
        degree = {
            key: int(size)
            for key, size in re.findall(r"(TP|PP|CP|VP|GBS|MBS)(\d+)", f"{row['parallelism']} {row['batch']}")
        }
        tp, pp, cp = (degree.get(key, 1) for key in ("TP", "PP", "CP"))
        gpus, sequence = int(row["gpus"]), int(row["sequence"])
        options = llama(row["model"].split("-")[1].upper(), sequence) | {
            **{"tp": tp, "cp": cp, "pp": pp, "dp": gpus // tp // pp // cp, "batch": degree["GBS"]},
            **{"micro-batch": degree["MBS"], "zero": 1, "float8": True, **interleaved(degree.get("VP", 1))},
        }
        if tp > 1:
            options["sequence-parallel"] = True
        unit = tokens_per_gpu(degree["GBS"] * sequence, gpus)
        name = f"{row['model']} on {gpus}: {row['parallelism']}"
        jobs.append(Job(name, "FP8", h100(gpus, 1.0), options, float(row["tokens_per_s_per_gpu"]), unit))
    return section("Megatron-LM's Llama 3", MEGATRON_LLAMA, jobs[:1] if few else jobs, out)
