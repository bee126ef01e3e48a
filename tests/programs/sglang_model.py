"""Owns what the programs with SGLang share: the environment that SGLang finds, and shapes of models. Imported before SGLang."""

import os
import sys
from typing import Any

# What a user of simulated GPUs sets, before SGLang is imported.
os.environ.update(
    SGLANG_ENABLE_JIT_DEEPGEMM="0",
    SGLANG_IS_FLASHINFER_AVAILABLE="0",
    # It compiles kernels with ninja and nvcc, which are packages of its environment.
    CUDA_HOME=os.path.join(sys.prefix, "cuda"),
    PATH=os.pathsep.join((os.path.join(sys.prefix, "bin"), os.environ["PATH"])),
)

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "dtype": "bfloat16",
    "tie_word_embeddings": False,
}

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": _LLAMA
    | {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1024,
    },
    "8b": _LLAMA
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "qwen3-32b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
    },
}
