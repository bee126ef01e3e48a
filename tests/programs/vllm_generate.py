"""Offline generation with vLLM by a Llama with random weights, cut across all ranks: `vllm_generate.py [SHAPE] [--graphs MODE]`.

Each rank is a worker of vLLM's `external_launcher`, as under torchrun, with its engine in its own process. Lengths come from the request.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

# What a user of simulated GPUs sets, before vLLM is imported.
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_USE_V2_MODEL_RUNNER="0",
    VLLM_USE_FLASHINFER_SAMPLER="0",
    VLLM_ALLREDUCE_USE_SYMM_MEM="0",
    VLLM_ALLREDUCE_USE_FLASHINFER="0",
    VLLM_NO_USAGE_STATS="1",
)

from vllm import LLM, SamplingParams

# Hidden size, of the feed-forward part, layers, heads, heads of keys and values, entries of the vocabulary.
SHAPES = {
    "tiny": (256, 512, 2, 4, 2, 1024),
    "8b": (4096, 14336, 32, 32, 8, 128256),
    "70b": (8192, 28672, 80, 64, 8, 128256),
}
NAMES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", nargs="?", default="tiny", choices=SHAPES)
    parser.add_argument(
        "--graphs", choices=("PIECEWISE", "FULL_AND_PIECEWISE"), help="compile, and launch graphs; else all is eager"
    )
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=16)
    arguments = parser.parse_args()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        **dict(zip(NAMES, SHAPES[arguments.shape], strict=True)),
    }
    ranks = int(os.environ["WORLD_SIZE"])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        llm = LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=arguments.graphs is None,
            compilation_config={} if arguments.graphs is None else {"cudagraph_mode": arguments.graphs},
            max_model_len=4096,
            tensor_parallel_size=ranks,
            distributed_executor_backend="external_launcher" if ranks > 1 else None,
            # It would use memory of other ranks' GPUs, which is not simulated; NCCL does the same.
            disable_custom_all_reduce=True,
            seed=0,
        )
    prompts = [{"prompt_token_ids": list(range(5, 5 + arguments.prompt))} for _ in range(arguments.batch)]
    lengths = SamplingParams(temperature=0, ignore_eos=True, max_tokens=arguments.tokens, detokenize=False)
    began = time.perf_counter()
    outputs = llm.generate(prompts, lengths, use_tqdm=False)
    print("tokens a second", arguments.batch * arguments.tokens / (time.perf_counter() - began))
    cache = llm.llm_engine.vllm_config.cache_config
    print("RESULT", os.environ["RANK"], "KV cache tokens", cache.num_gpu_blocks * cache.block_size)
    print("RESULT", os.environ["RANK"], "generated", [len(output.outputs[0].token_ids) for output in outputs])


if __name__ == "__main__":
    main()
