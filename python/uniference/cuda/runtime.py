"""Owns what `torch.cuda` and `torch.accelerator` answer on a simulated GPU.

Where tensors are is `placement`'s business, streams and events are `streams`'. What needs a real GPU raises, and says so.
"""

import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn

import torch

from uniference._native import Channel
from uniference.cuda import streams
from uniference.cuda.placement import Devices
from uniference.cuda.randomness import GpuRandom
from uniference.cuda.streams import CudaEvent, Event, Runtime, Stream, StreamContext
from uniference.patches import gpus

CAPABILITY = (8, 0)
"""The compute capability that programs are told: enough for bfloat16, so that they take the way that a data centre's GPU takes."""

_MULTIPROCESSORS = 108  # of the GPU with this capability, NVIDIA's A100


def refusal(what: str) -> RuntimeError:
    """Something only real CUDA can do."""
    return RuntimeError(
        f"{what} requires a real NVIDIA GPU; simulated GPUs run torch's CPU kernels\n"
        "hint: skip it in the simulation, for example if torch.cuda.get_device_name() contains `simulated`"
    )


def refused(what: str) -> Callable[..., NoReturn]:
    """A function that raises the refusal."""

    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise refusal(what)

    return refuse


def refused_class(what: str) -> type:
    """A class that cannot be made."""
    return type(what.rpartition(".")[2], (), {"__init__": refused(what)})


class Cuda:
    """The functions of `torch.cuda`, for one rank."""

    def __init__(self, channel: Channel, devices: Devices, memory: int, runtime: Runtime) -> None:
        self._channel = channel
        self._devices = devices
        self._memory = memory
        self._runtime = runtime
        self._random = [GpuRandom(torch.device("cuda", index)) for index in range(devices.count)]

    # Devices

    def device_count(self) -> int:
        return self._devices.count

    def current_device(self) -> int:
        return self._devices.current

    def set_device(self, device: Any) -> None:
        if not isinstance(device, int) or device >= 0:
            self._devices.select(self._devices.gpu(device))

    def exchange_device(self, index: int) -> int:
        before = self._devices.current
        if index >= 0:
            self._devices.current = self._devices.checked(index)
        return before

    def get_device_name(self, device: Any = None) -> str:
        self._devices.gpu(device)
        return f"{self._devices.kind} (simulated)"

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        self._devices.gpu(device)
        return CAPABILITY

    def get_device_properties(self, device: Any = None) -> Any:
        major, minor = self.get_device_capability(device)
        return types.SimpleNamespace(
            name=self.get_device_name(device),
            major=major,
            minor=minor,
            total_memory=self._memory,
            multi_processor_count=_MULTIPROCESSORS,
            warp_size=32,
            is_integrated=False,
            is_multi_gpu_board=False,
        )

    # Streams

    def current_stream(self, device: Any = None) -> Stream:
        return self._runtime.current()

    def set_stream(self, stream: Stream | None) -> None:
        if stream is not None:
            self._runtime.stream = stream

    def synchronize(self, device: Any = None) -> None:
        self._runtime.settle()

    # Memory: not accounted yet

    def nothing_allocated(self, *_args: Any, **_kwargs: Any) -> int:
        _warn_of_memory()
        return 0

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        _warn_of_memory()
        return self._memory, self._memory

    # Random numbers

    def random(self, device: Any = None) -> GpuRandom:
        """The generator of a GPU."""
        return self._random[self._devices.gpu(device)]

    def manual_seed(self, seed: int) -> None:
        self.random().manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        for generator in self._random:
            generator.manual_seed(seed)

    def get_rng_state(self, device: Any = "cuda") -> torch.Tensor:
        return self.random(device).get_state()

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._random]

    def set_rng_state(self, state: torch.Tensor, device: Any = "cuda") -> None:
        self.random(device).set_state(state)

    def set_rng_state_all(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self._random, states, strict=False):
            generator.set_state(state)

    def initial_seed(self) -> int:
        return self.random().initial_seed()

    # NVTX ranges show in the trace

    def range_push(self, message: str) -> int:
        self._channel.mark(message)
        return 0

    def range_pop(self) -> int:
        self._channel.mark(None)
        return 0

    @contextmanager
    def range(self, message: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        self.range_push(message.format(*args, **kwargs))
        try:
            yield
        finally:
            self.range_pop()

    def generator(self) -> type:
        """`torch.Generator`, which makes none for CUDA without a GPU."""

        class Generator(torch._C.Generator):
            def __new__(cls, device: Any = "cpu") -> Any:
                return super().__new__(cls, device="cpu")  # type: ignore[call-arg]

        return Generator

    def install(self) -> None:
        """Takes torch.cuda's place."""
        for names, answers in ((gpus.CUDA, self._cuda()), (gpus.ACCELERATOR, self._accelerator())):
            for name, value in answers.items():
                names[name].replace(value if isinstance(value, type | bool | tuple) else _function(value, name))
        # torch.accelerator.memory imports nothing from its parent, but programs may import it.
        for count in gpus.MEMORY_COUNTS.values():
            count.replace(self.nothing_allocated)
        for name, nvtx in gpus.NVTX.items():
            nvtx.replace(_nothing if name == "mark" else getattr(self, name))
        gpus.RECORD_STREAM.replace(_nothing)  # its arguments are checked before any mode sees it
        for name, kind in (("Generator", self.generator()), ("Stream", Stream), ("Event", Event)):
            gpus.CLASSES[name].replace(kind)
        streams.install(self._runtime)

    def _cuda(self) -> dict[str, Any]:
        own: tuple[str, ...] = (
            "device_count",
            "current_device",
            "set_device",
            "get_device_name",
            "get_device_capability",
            "get_device_properties",
        )
        own += (
            "current_stream",
            "set_stream",
            "synchronize",
            "mem_get_info",
            "manual_seed",
            "manual_seed_all",
            "get_rng_state",
        )
        own += ("get_rng_state_all", "set_rng_state", "set_rng_state_all", "initial_seed")
        return (
            {name: getattr(self, name) for name in own}
            | dict.fromkeys(gpus.MEMORY_COUNTS, self.nothing_allocated)
            | dict.fromkeys(_NO_EFFECT, _nothing)
            | {name: refused(f"torch.cuda.{name}") for name in _REFUSED}
            | {name: refused_class(f"torch.cuda.{name}") for name in _REFUSED_CLASSES}
            | {
                "_initialized": True,
                "default_generators": tuple(self._random),
                "_exchange_device": self.exchange_device,
                "_maybe_exchange_device": self.exchange_device,
                "_is_in_bad_fork": lambda: False,
                "is_available": lambda: True,
                "is_initialized": lambda: True,
                "is_bf16_supported": lambda including_emulation=True: True,
                "is_current_stream_capturing": lambda: False,
                "can_device_access_peer": lambda _device, _peer: True,
                "default_stream": self.current_stream,
                "seed": lambda: self.manual_seed(torch.seed()),
                "seed_all": lambda: self.manual_seed_all(torch.seed()),
                "memory_stats": _no_statistics,
                "Stream": Stream,
                "Event": CudaEvent,
                "StreamContext": StreamContext,
                "stream": StreamContext,
                "cudart": _Cudart,
            }
        )

    def _accelerator(self) -> dict[str, Any]:
        @contextmanager
        def device_index(device: int | None) -> Iterator[None]:
            before = self.exchange_device(-1 if device is None else device)
            try:
                yield
            finally:
                self.exchange_device(before)

        return dict.fromkeys(_ACCELERATOR_MEMORY, self.nothing_allocated) | {
            "is_available": lambda: True,
            "device_count": self.device_count,
            "current_accelerator": lambda check_available=False: torch.device("cuda"),
            "current_device_index": self.current_device,
            "current_device_idx": self.current_device,
            "set_device_index": self.set_device,
            "set_device_idx": self.set_device,
            "get_device_capability": lambda device=None: {"supported_dtypes": set()},
            "current_stream": self.current_stream,
            "set_stream": self.set_stream,
            "synchronize": self.synchronize,
            "device_index": device_index,
            "empty_cache": _nothing,
            "reset_peak_memory_stats": _nothing,
            "reset_accumulated_memory_stats": _nothing,
            "memory_stats": _no_statistics,
            "get_memory_info": self.mem_get_info,
        }


class _Cudart:
    """`torch.cuda.cudart()`: programs bracket with it what a profiler is to see."""

    def cudaProfilerStart(self) -> int:
        return 0

    cudaProfilerStop = cudaProfilerStart

    def __getattr__(self, name: str) -> NoReturn:
        raise refusal(f"torch.cuda.cudart().{name}")


_ACCELERATOR_MEMORY = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")

# What `torch.cuda.memory_stats` counts: in three pools, in none, and as single numbers.
_POOLED = "allocation segment active inactive_split allocated_bytes reserved_bytes active_bytes inactive_split_bytes requested_bytes"
_WHOLE = "oversize_allocations oversize_segments"
_EVENTS = (
    "num_alloc_retries num_ooms num_sync_all_streams num_device_alloc num_device_free num_oom_rejections max_split_size"
)

_NO_EFFECT: tuple[str, ...] = (
    "init",
    "_lazy_init",
    "empty_cache",
    "ipc_collect",
    "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
)
_NO_EFFECT += (
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "set_per_process_memory_fraction",
    "set_sync_debug_mode",
)

_REFUSED: tuple[str, ...] = (
    "graph",
    "make_graphed_callables",
    "graph_pool_handle",
    "caching_allocator_alloc",
    "caching_allocator_delete",
)
_REFUSED += (
    "memory_snapshot",
    "memory_summary",
    "current_blas_handle",
    "current_solver_handle",
    "get_stream_from_external",
    "_sleep",
)
_REFUSED += (
    "utilization",
    "temperature",
    "power_draw",
    "clock_rate",
    "memory_usage",
    "list_gpu_processes",
    "use_mem_pool",
)
_REFUSED_CLASSES = ("CUDAGraph", "MemPool", "ExternalStream", "CUDAPluggableAllocator", "GreenContext")


def _function(value: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function of its own for each name: torch's compiler keeps tables of them."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return value(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    return function


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def _no_statistics(*_args: Any, **_kwargs: Any) -> dict[str, int]:
    """All that the allocator of real CUDA counts, at 0: programs look single numbers up."""
    _warn_of_memory()
    counted = [f"{name}.{pool}" for name in _POOLED.split() for pool in ("all", "large_pool", "small_pool")]
    metrics = [
        f"{name}.{metric}"
        for name in (*counted, *_WHOLE.split())
        for metric in ("current", "peak", "allocated", "freed")
    ]
    return dict.fromkeys(sorted((*metrics, *_EVENTS.split())), 0)


@cache
def _warn_of_memory() -> None:
    warnings.warn("the memory of simulated GPUs is not tracked; torch.cuda reports 0 bytes in use", stacklevel=3)
