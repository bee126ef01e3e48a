"""Owns the program of `gpus.py`: operators on tiny tensors in four ways, and launches, in alternating blocks.

It prints a line with the host CPU time of each block; a block ends when the device is idle, so that its buffered
launches have been handed over.

    uniference run --cuda --ranks 1 gpu_program.py ROUNDS PAIRS
"""

import contextlib
import ctypes
import resource
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

Round = Callable[[], object]

# Ratio of FakeTensorMode's time to the others', by which its rounds are reduced.
FEWER = 20


def cpu_seconds() -> float:
    """Host CPU seconds of this process, over all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def past_the_capture() -> Iterator[None]:
    """Lets operators bypass the dispatch key of the capture, on this thread and on autograd's."""
    torch._C._dispatch_tls_set_dispatch_key_excluded("Fake", True)
    yield
    torch._C._dispatch_tls_set_dispatch_key_excluded("Fake", False)


class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of operators below autograd."""

    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen += 1
        return func(*args, **kwargs or {})


def operators(device: str) -> dict[str, Round]:
    """A round of each kind. With gradients it includes the backward pass."""
    a, b = torch.ones(16, 16, device=device), torch.ones(16, 16, device=device)
    weight, bias = torch.ones(16, device=device), torch.zeros(16, device=device)
    heads = torch.ones(1, 2, 16, 16, device=device)
    forward: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
        "add": (torch.add, (a, b)),
        "mm": (torch.mm, (a, b)),
        "layer_norm": (lambda x, w, b: functional.layer_norm(x, (16,), w, b), (a, weight, bias)),
        "attention": (functional.scaled_dot_product_attention, (heads, heads.clone(), heads.clone())),
    }
    rounds: dict[str, Round] = {}
    for name, (function, inputs) in forward.items():
        rounds[name] = without_gradients(function, inputs)
        rounds[f"{name}, gradients"] = with_gradients(function, inputs)
    return rounds


def without_gradients(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Round:
    return lambda: function(*inputs)


def with_gradients(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Round:
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    gradient = torch.ones_like(function(*leaves))
    return lambda: torch.autograd.grad(function(*leaves), leaves, gradient)


def launches() -> dict[str, tuple[Round, Round]]:
    """Calls of the CUDA library, each with an empty function of the library that has the same arguments."""
    library = ctypes.CDLL(None)
    nothing = library.__cudaRegisterFatBinaryEnd

    class Dim3(ctypes.Structure):
        _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]

    one, null, size = Dim3(1, 1, 1), ctypes.c_void_p(), ctypes.c_size_t
    function = ctypes.c_void_p(ctypes.addressof(one))
    library.__cudaRegisterFunction(None, function, None, b"launched", -1, None, None, None, None, None)
    kernel = (function, one, one, null, size(0), null)
    memory = torch.empty(64, device="cuda")
    filled = (ctypes.c_void_p(memory.data_ptr()), ctypes.c_int(0), size(4), null)
    assert library.cudaLaunchKernel(*kernel) == 0 == library.cudaMemsetAsync(*filled)
    return {
        "kernel": (lambda: nothing(*kernel), lambda: library.cudaLaunchKernel(*kernel)),
        "memset": (lambda: (nothing(*filled), memory)[0], lambda: library.cudaMemsetAsync(*filled)),
    }


def block(rounds: int, round_: Round) -> float:
    """CPU seconds of so many rounds."""
    torch.cuda.synchronize()
    before = cpu_seconds()
    for _ in range(rounds):
        round_()
    torch.cuda.synchronize()
    return cpu_seconds() - before


def say(*words: object) -> None:
    print("@", *words, flush=True)


def main() -> None:
    rounds, pairs = int(sys.argv[1]), int(sys.argv[2])
    on_cpu, on_gpu = operators("cpu"), operators("cuda")
    fake = FakeTensorMode()
    with fake:
        faked = operators("cuda")
    for name in on_gpu:
        with Count() as count:  # type: ignore[no-untyped-call]
            on_gpu[name]()
        for _ in range(pairs):
            with past_the_capture():
                cpu = block(rounds, on_cpu[name]) / rounds
                bare = block(rounds, on_gpu[name]) / rounds
                with fake:
                    pretended = block(max(rounds // FEWER, 1), faked[name]) / max(rounds // FEWER, 1)
            say("begin")
            simulated = block(rounds, on_gpu[name]) / rounds
            say("operator", name.replace(" ", "_"), count.seen, cpu, pretended, bare, simulated)
    for name, (nothing, launch) in launches().items():
        for _ in range(pairs):
            bare = block(rounds, nothing) / rounds
            say("begin")
            say("launch", name, 1, bare, block(rounds, launch) / rounds)


if __name__ == "__main__":
    main()
