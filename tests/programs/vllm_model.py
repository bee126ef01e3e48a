"""Owns the common parts of programs with vLLM: the environment, the folders of models, and the arguments of its engine.

Imported before vLLM. Each rank is a worker of vLLM's `external_launcher`, as under torchrun, with its engine in its own
process; weights are dummies, so a model consists only of its `config.json`.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from shapes import SHAPES

# Variables that a user of simulated GPUs sets, before vLLM is imported.
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_USE_V2_MODEL_RUNNER="0",
    VLLM_USE_FLASHINFER_SAMPLER="0",
    VLLM_USE_DEEP_GEMM="0",
    VLLM_NO_USAGE_STATS="1",
)


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with options for the model and its execution."""
    words = argparse.ArgumentParser(description=description)
    words.add_argument("shape", nargs="?", default="tiny", choices=SHAPES)
    words.add_argument(
        "--graphs", choices=("PIECEWISE", "FULL_AND_PIECEWISE"), help="compile, and launch graphs; else all is eager"
    )
    words.add_argument(
        "--expert-parallel",
        action="store_true",
        help="each rank has some of the experts as a whole, not a part of each",
    )
    return words


def kept(shape: str) -> Path:
    """The permanent folder of a model, because vLLM recompiles a model in another folder, also in another rank."""
    config = json.dumps(SHAPES[shape])
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "uniference" / "models" / shape
    folder.mkdir(parents=True, exist_ok=True)
    # Written to a temporary file first, because other ranks may be reading the folder.
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        file.write(config)
    os.replace(file.name, folder / "config.json")
    return folder


def engine(words: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `LLM` and `EngineArgs`, for a model sharded over all ranks."""
    ranks = int(os.environ["WORLD_SIZE"])
    return {
        "model": str(kept(words.shape)),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enforce_eager": words.graphs is None,
        "compilation_config": {} if words.graphs is None else {"cudagraph_mode": words.graphs},
        "tensor_parallel_size": ranks,
        "enable_expert_parallel": words.expert_parallel,
        "distributed_executor_backend": "external_launcher" if ranks > 1 else None,
        "seed": 0,
    }
