"""Offline generation with vLLM by a model with random weights, sharded over all ranks: `vllm_generate.py [SHAPE]
[--graphs MODE]`.

Lengths come from the request: no token ends a sequence.
"""

import os
import time

import vllm_model
from vllm import LLM, SamplingParams


def main() -> None:
    parser = vllm_model.parser(__doc__)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=16)
    arguments = parser.parse_args()
    llm = LLM(**vllm_model.engine(arguments), max_model_len=4096)
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
