"""Owns what is added to an error of torch's own that ends a program: what to do about it in a simulated run.

Errors that this package raises have their hint with them.
"""

_KERNELS = "kernels of a library's own for GPUs need a real one: let the program take its way for CPUs, with --no-cuda"

_HINTS = (
    (
        "Default process group has not been initialized",
        "call init_process_group() before, and nothing of torch.distributed after destroy_process_group()",
    ),
    (
        "from the 'MPS' backend",
        "ranks compute on the CPU, or on simulated NVIDIA GPUs (--cuda): there is no device mps",
    ),
    (
        "Torch not compiled with XPU",
        "ranks compute on the CPU, or on simulated NVIDIA GPUs (--cuda): there is no device xpu",
    ),
    # As libraries check a kernel's tensors (fbgemm, and PyTorch's guide to extensions), and Triton looks for the driver.
    ("must be a GPU or MTIA tensor", _KERNELS),
    ("must be a CUDA tensor", _KERNELS),
    ("libcuda.so cannot found", _KERNELS),
)


def hint(error: BaseException) -> str | None:
    """What to do about `error`, if that is known."""
    try:
        message = str(error)
    except Exception:  # a program's own class may fail
        return None
    return next((text for part, text in _HINTS if part in message), None)
