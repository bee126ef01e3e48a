"""Owns hints for errors of torch that end a program in a simulated run.

Errors that this package raises contain their own hints.
"""

from collections.abc import Callable

held_on_gpu: Callable[[], str] | None = None
"""Describes the memory allocated on the rank's simulated GPU, by kind."""

_CAPACITY = " has a total capacity of"
_FIT = "`uniference fit` says how much memory each rank needs; `memory` in the cluster file is what its device has"
_KERNELS = "custom GPU kernels are not simulated; run the program's CPU code path with --no-cuda"

_GPUS = (
    "a rank has as many GPUs as its host has devices: `host` and `per_host` in the cluster file put several on one host"
)

_HINTS = (
    ("Device index value", _GPUS),
    ("invalid device ordinal", _GPUS),
    # Out-of-memory messages: torch's for a GPU, the C++ library's for a device, and NCCL's for its own buffers.
    (_CAPACITY, _FIT),
    ("Cuda failure 2 'out of memory'", _FIT),
    (
        "Default process group has not been initialized",
        "call init_process_group() first, and do not use torch.distributed after destroy_process_group()",
    ),
    (
        "from the 'MPS' backend",
        "the device mps is not simulated; use the CPU, or simulated NVIDIA GPUs (--cuda)",
    ),
    (
        "Torch not compiled with XPU",
        "the device xpu is not simulated; use the CPU, or simulated NVIDIA GPUs (--cuda)",
    ),
    # Messages of libraries that check a kernel's tensors (fbgemm, PyTorch's guide to extensions), and of Triton, which
    # looks for the driver.
    ("must be a GPU or MTIA tensor", _KERNELS),
    ("must be a CUDA tensor", _KERNELS),
    ("libcuda.so cannot found", _KERNELS),
)


def hint(error: BaseException) -> str | None:
    """The hint for `error`, if there is one."""
    try:
        message = str(error)
    except Exception:  # a program's own class may fail
        return None
    found = next((text for part, text in _HINTS if part in message), None)
    is_gpu_full = _CAPACITY in message and message.startswith("CUDA out of memory")
    return f"{held_on_gpu()} {found}" if is_gpu_full and held_on_gpu else found
