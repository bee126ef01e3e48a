"""Owns a rank's GPUs: simulated ones, this machine's real ones, or none.

A library below torch's own CUDA code simulates GPUs (`crates/phantom`). It was loaded before torch and has
had no devices until now.
"""

import ctypes
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import torch

from uniference import _native
from uniference._native import Channel
from uniference.backends.base import SimulatedBackend
from uniference.backends.gloo import Gloo
from uniference.backends.nccl import Nccl
from uniference.patches import names
from uniference.program import hints
from uniference.rank import capture, host_work, kernels, mooncake


def install(channel: Channel, own: int, gpus: Sequence[Mapping[str, Any]]) -> None:
    """Gives the process the simulated GPUs of its host, of which `own` is this rank's; if there are none, the process
    gets the machine's own GPUs."""
    if gpus:
        _attach(channel, own, gpus)
    elif torch.cuda.is_available():
        _wait_for_real_ones()
    else:
        names.LAZY_INIT.replace(_none)


def _attach(channel: Channel, own: int, gpus: Sequence[Mapping[str, Any]]) -> None:
    library = capture.library()
    if library is None:
        raise RuntimeError(
            f"simulated GPUs require Uniference's C++ library for torch {torch.__version__}, which was not built\n"
            "hint: install g++ and run `make setup` again, or install a wheel that was built for this version of torch"
        )
    _turn_flight_recorder_off()
    _stand_in_for_files()
    link, communication = library.device_link(channel), library.communication(channel)
    _native.attach_gpus(own, gpus, link, communication)
    process = ctypes.CDLL(None)
    kernels.install(channel, library)
    host_work.install(channel, library)
    functions = (
        *("launch", "wait_for_data", "is_captured", "compute", "withhold"),
        *("clear", "is_untouched", "reads", "launches_block"),
    )
    library.begin_cpu_reference(*(_address(process, f"uniference_phantom_{name}") for name in functions))
    is_of_device = process.uniference_phantom_is_of_device
    is_of_device.argtypes = [ctypes.c_void_p]
    mooncake.install(channel, is_of_device)
    library.count_gpu_memory(
        *(_address(process, name) for name in ("uniference_phantom_own", "uniference_phantom_taken"))
    )
    hints.held_on_gpu = library.held_on_gpu
    if capture.UNLIMITED in os.environ:
        process.uniference_phantom_lend()


def _stand_in_for_files() -> None:
    """Redirects files of NVIDIA's libraries, which programs open from packages by `ctypes`. The real libraries find no
    GPU; the simulated ones have the same names.

    Libraries inside a wheel have names such as `libcudart.3eda8113.so.13`, because auditwheel renames them.
    """
    folder = Path(os.environ["UNIFERENCE_PHANTOM_PRELOAD"]).parent / "named"
    ours = {path.name: str(path) for path in folder.iterdir()}

    def opens_ours(original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def open_library(self: ctypes.CDLL, name: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(name, str | os.PathLike) and os.path.isabs(name):
                plain = re.sub(r"[.-][0-9a-f]{8}(?=\.so)", "", os.path.basename(name))
                name = ours.get(plain, name)
            original(self, name, *args, **kwargs)

        return open_library

    names.OPEN_LIBRARY.wrap(opens_ours)


def _turn_flight_recorder_off() -> None:
    """Disables the flight recorder, unless the user has configured it: it reads the clock in each collective, for which
    all threads of the rank would have to wait."""
    if not {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"} & os.environ.keys():
        os.environ["TORCH_FR_BUFFER_SIZE"] = "0"


def _address(process: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(process, name), ctypes.c_void_p).value or 0


def _wait_for_real_ones() -> None:
    """Makes clocks and communication wait for the work of real GPUs. The wait is the program's, so it is charged."""
    for clock in names.CLOCKS:
        clock.wrap(_after_the_gpu)
    for backend in (SimulatedBackend, Gloo, Nccl):
        for name, method in tuple(vars(backend).items()):
            if getattr(method, "is_uncharged", False):  # entry points that programs call
                setattr(backend, name, _after_the_gpu(method))


def _after_the_gpu(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def synchronised(*args: Any) -> Any:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        return function(*args)

    return synchronised


def _none() -> NoReturn:
    raise RuntimeError(
        "the program uses CUDA, but the simulated devices are not GPUs and this machine has none\n"
        "hint: simulate GPUs with --cuda"
    )
