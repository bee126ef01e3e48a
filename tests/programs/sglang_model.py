"""Owns the common environment of programs with SGLang. Imported before SGLang."""

import os
import sys

# Variables that a user of simulated GPUs sets, before SGLang is imported.
os.environ.update(
    SGLANG_ENABLE_JIT_DEEPGEMM="0",
    SGLANG_IS_FLASHINFER_AVAILABLE="0",
    # The second version needs memory that the NVLink switches write to; the first does not.
    SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2="0",
    # SGLang compiles kernels with ninja and nvcc, which are packages of its environment.
    CUDA_HOME=os.path.join(sys.prefix, "cuda"),
    PATH=os.pathsep.join((os.path.join(sys.prefix, "bin"), os.environ["PATH"])),
)
