"""SGLang's own benchmark of one batch, with its model sharded over all ranks: `sglang_batch.py [SHAPE] [--graphs]
[options of SGLang]`.

With one rank this is `python -m sglang.benchmark.one_batch`. With several, that module would start a process for each
rank; this program instead runs in each rank the function of those processes. Weights are dummies, and the tokenizer,
which the benchmark loads and does not use, has no words.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import sglang_model  # noqa: F401  (first of all)
from sglang.benchmark import one_batch
from sglang.srt.server_args import PortArgs, ServerArgs
from sglang.srt.utils import custom_op
from shapes import SHAPES
from tokenizers import Tokenizer, models

# Called directly, SGLang's operators are kernels whose tensors are unknown; as under a profiler, they are called
# through torch.
custom_op._profiling = lambda: True


def write_model(folder: Path, shape: str) -> None:
    (folder / "config.json").write_text(json.dumps(SHAPES[shape]))
    Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')


def rank_of_several() -> None:
    """Runs `one_batch.main` for several ranks, without starting processes."""
    words = argparse.ArgumentParser()
    ServerArgs.add_cli_args(words)
    one_batch.BenchArgs.add_cli_args(words)
    arguments = words.parse_args()
    server, bench = ServerArgs.from_cli_args(arguments), one_batch.BenchArgs.from_cli_args(arguments)
    graphs = {"decode": {"max_bs": max(bench.batch_size)}}
    one_batch.declare_resolution(server, "benchmark.one_batch", cuda_graph_config=graphs)
    server.resolve_once()
    one_batch._set_envs_and_config(server)
    ports = PortArgs.init_new(server)
    one_batch.latency_test(server, ports, bench, int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", nargs="?", default="tiny", choices=SHAPES)
    parser.add_argument("--graphs", action="store_true", help="decode by CUDA graphs; else all is eager")
    arguments, others = parser.parse_known_args()
    ranks = int(os.environ["WORLD_SIZE"])
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), arguments.shape)
        sys.argv[1:] = [
            *("--model-path", folder, "--load-format", "dummy", "--skip-tokenizer-init", "--result-filename", ""),
            *("--attention-backend", "fa3", "--sampling-backend", "pytorch"),
            *("--cuda-graph-backend-prefill", "disabled"),
            *(() if arguments.graphs else ("--cuda-graph-backend-decode", "disabled")),
            *("--tp-size", str(ranks), "--nccl-port", "29600"),
            *("--batch-size", "4", "--input-len", "32", "--output-len", "8"),
            *others,
        ]
        rank_of_several() if ranks > 1 else one_batch.cli_main()
    print("RESULT", os.environ["RANK"], "done")


if __name__ == "__main__":
    main()
