"""Owns NVIDIA GPUs on a machine that has none: scripts written for them run, with torch's CPU kernels, on the rank's simulated device.

In the order of a rank's start: `wanted` decides whether there are any, then `placement` keeps account of which tensors are on them,
`runtime` answers for torch.cuda, with `streams`, `amp`, `normalization` and `randomness`. Without them, the first use of CUDA says what to
do.
"""

import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import BackendConfig
from torch.overrides import _get_current_function_mode_stack
from torch.utils import checkpoint

from uniference._native import Channel
from uniference.backends.base import SimulatedBackend
from uniference.backends.work import Operation
from uniference.cuda import amp, normalization, real
from uniference.cuda.placement import CPU, DefaultDevice, Devices, Placement
from uniference.cuda.runtime import Cuda
from uniference.cuda.streams import Runtime
from uniference.cuda.wanted import needs_gpu
from uniference.patches import gpus

__all__ = ["install", "wanted"]


def wanted(argv: Sequence[str], module: bool) -> bool:
    """Whether this rank is to have GPUs. If not, and the machine has none either, the first use of CUDA says what to do."""
    wish = os.environ.get("UNIFERENCE_CUDA", "auto")
    if torch.cuda.is_available():
        real.install()
        return False
    if wish == "yes" or (wish == "auto" and needs_gpu(argv, module)):
        return True
    gpus.CUDA["_lazy_init"].replace(_no_gpu)
    return False


def install(channel: Channel, device: str, memory: int | None, settle: Callable[[], None]) -> None:
    """Puts the GPUs of this rank in place, as many as its host has ranks.

    `device` is its name in the cluster file, `memory` its bytes; None: what this machine has. `settle` waits for the communication that
    the rank has started.
    """
    devices = Devices(int(os.environ["LOCAL_WORLD_SIZE"]), device)
    cuda = Cuda(channel, devices, memory or _this_machines_memory(), Runtime(devices, channel.now, settle))
    cuda.install()
    amp.install()
    normalization.install()
    # The compiler asks the CUDA driver itself; what it would compile runs uncompiled, with the same values.
    gpus.NO_COMPILER.replace(True)
    _keep_allocations_here()
    _keep_hashes_here()
    _keep_what_comes_from_the_host(devices)
    _keep_checkpoints(devices)
    gpus.DEVICE_CONTEXT.replace(DefaultDevice)
    _keep_out_of_the_process_group()
    _keep_groups_whole()
    _keep_recomputation_even()

    def mode() -> Placement:
        return Placement(devices, cuda.random)

    _enter_in_backward(mode)
    _enter_in_dtensors(mode)
    _enter_in_operators(mode)
    _enter_in_every_thread(mode)


def _no_gpu() -> NoReturn:
    raise RuntimeError(
        "the program uses CUDA, but the simulated devices are not GPUs and this machine has none\n"
        "hint: simulate GPUs with --cuda"
    )


def _this_machines_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _keep_allocations_here() -> None:
    """torch's C++ code allocates on a GPU by itself, for a barrier for example."""

    def empty(
        size: Any,
        *,
        dtype: Any = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: Any = None,
        memory_format: Any = None,
    ) -> Tensor:
        return torch.empty(size, dtype=dtype, device="cpu", memory_format=memory_format or torch.contiguous_format)

    def empty_strided(
        size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
    ) -> Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device="cpu")

    gpus.ALLOCATIONS.implement("empty.memory_format", empty, "CUDA")
    gpus.ALLOCATIONS.implement("empty_strided", empty_strided, "CUDA")


def _keep_hashes_here() -> None:
    """What object collectives log of their bytes at TORCH_DISTRIBUTED_DEBUG=DETAIL is a hash that torch leaves to the GPU."""
    gpus.HASH_TENSORS.replace(lambda tensors: hash(tuple(bytes(tensor.untyped_storage()) for tensor in tensors)))


def _keep_what_comes_from_the_host(devices: Devices) -> None:
    """Makers of CPU tensors that no function mode sees."""
    for name in gpus.HOST_TENSORS:
        name.wrap(lambda make: _marked(make, devices))


def _marked(make: Callable[..., Any], devices: Devices) -> Callable[..., Any]:
    def made(*args: Any, **kwargs: Any) -> Any:
        tensor = make(*args, **kwargs)
        return tensor if devices.knows(tensor) else devices.mark(tensor, CPU)

    return made


def _keep_checkpoints(devices: Devices) -> None:
    """A file says where its tensors were; `map_location` is about that."""

    def where(storage: Any) -> str | None:
        place = devices.of_storage(getattr(storage, "_untyped_storage", storage))
        return None if place == CPU else f"cuda:{place}"

    def restore(storage: Any, location: str) -> Any:
        if not location.startswith("cuda"):
            return None
        place = devices.place(location)
        getattr(storage, "_untyped_storage", storage)._place = place
        return storage

    torch.serialization.register_package(0, where, restore)


def _keep_out_of_the_process_group() -> None:
    """There a tensor of a GPU is what it is to torch: one on the CPU."""
    inside: tuple[tuple[Any, tuple[str, ...]], ...] = (
        (SimulatedBackend, ("_check", "_collective", "_send", "_receive")),
        (Operation, ("deliver",)),
    )
    for owner, names in inside:
        for name in names:
            setattr(owner, name, _without_modes(getattr(owner, name)))


def _keep_groups_whole() -> None:
    """A group for GPUs must carry tensors on the CPU, which those of a GPU are to torch's C++ code."""
    original = gpus.BACKEND_CONFIG.original

    def init(self: BackendConfig, backend: Any) -> None:
        original(self, backend)
        if (carrier := self.device_backend_map.get("cuda")) is not None:
            self.device_backend_map = dict.fromkeys(("cpu", "cuda"), carrier)

    gpus.BACKEND_CONFIG.replace(init)


def _keep_recomputation_even() -> None:
    """What a checkpoint notes of a tensor inside an operator, where no mode is active, is compared with what it sees outside."""
    extractors = checkpoint._allowed_determinism_checks_to_fns
    for name, extract in extractors.items():
        extractors[name] = _without_modes(extract)


def _without_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    def plain(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return plain


def _enter_in_every_thread(mode: Callable[[], Placement]) -> None:
    """Function modes are a thread's own."""
    original = gpus.BOOTSTRAP.original

    def run(self: threading.Thread) -> None:
        with mode():
            original(self)

    mode().__enter__()  # type: ignore[no-untyped-call]
    gpus.BOOTSTRAP.replace(run)


def _enter_in_backward(mode: Callable[[], Placement]) -> None:
    """torch calls `Tensor.backward` without the modes that have seen the call; the program's hooks run inside."""
    gpus.BACKWARD.wrap(lambda run: _entering(run, mode))


def _enter_in_dtensors(mode: Callable[[], Placement]) -> None:
    """What torch does in Python for an operator on DTensors, it does without modes; these ask for the device of a mesh."""
    gpus.DTENSOR_DISPATCH.wrap(lambda dispatch: _entering(dispatch, mode))
    gpus.FROM_LOCAL.wrap(lambda make: staticmethod(_entering(make, mode)))


def _enter_in_operators(mode: Callable[[], Placement]) -> None:
    """Nor are there modes in the operators that a program defines in Python; its kernels go by where their tensors are."""
    original = gpus.LIBRARY_IMPL.original

    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> None:
        whole = fn is torch.library.fallthrough_kernel or dispatch_key == "Meta"
        original(self, op_name, fn if whole else _entering(fn, mode), dispatch_key, **options)

    gpus.LIBRARY_IMPL.replace(impl)


def _entering(function: Callable[..., Any], mode: Callable[[], Placement]) -> Callable[..., Any]:
    """The function in a mode, if it is in none yet."""
    modes: Any = _get_current_function_mode_stack

    @functools.wraps(function)
    def entered(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(active, Placement) for active in modes()):
            return function(*args, **kwargs)
        with mode():
            return function(*args, **kwargs)

    return entered
