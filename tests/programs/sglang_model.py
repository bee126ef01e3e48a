"""Owns what the programs with SGLang share: the environment that SGLang finds. Imported before SGLang."""

import os
import sys

# What a user of simulated GPUs sets, before SGLang is imported.
os.environ.update(
    SGLANG_ENABLE_JIT_DEEPGEMM="0",
    SGLANG_IS_FLASHINFER_AVAILABLE="0",
    # The second version wants memory that the NVLink switches write to; the first does without.
    SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2="0",
    # It compiles kernels with ninja and nvcc, which are packages of its environment.
    CUDA_HOME=os.path.join(sys.prefix, "cuda"),
    PATH=os.pathsep.join((os.path.join(sys.prefix, "bin"), os.environ["PATH"])),
)
