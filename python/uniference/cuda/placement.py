"""Owns where tensors are: on the CPU, or on a simulated GPU, whose memory is this machine's.

A tensor of a simulated GPU is a CPU tensor to torch's kernels. Its place is a mark on its storage, so views, parameters and whatever
autograd saves share it; a function mode marks what comes out of a call as its inputs are. A storage without a mark, as torch's C++ code
makes them, is on the rank's home GPU: in a program for GPUs nearly everything is. What torch.cuda answers is `runtime`'s business.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._device
from torch import Tensor
from torch._C import _len_torch_function_stack
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors as _constructors

from uniference.cuda.randomness import DRAWS, GpuRandom

CPU = -1
"""The place of a tensor in host memory; a GPU's place is its index."""

_HOST = torch.device("cpu")

# A tensor as it is printed, up to where its device stands.
_CONTENTS = re.compile(r"(tensor\((?:.*\]|[^,)]*))", re.DOTALL)

Call = Callable[..., Any]


class Devices:
    """The GPUs that one rank sees, and which of them it uses."""

    def __init__(self, count: int, kind: str) -> None:
        """`kind` is what the cluster file calls the rank's device, for messages."""
        self.count = count
        self.kind = kind
        self.current = 0
        self.home = 0
        self._settled = False

    def select(self, index: int) -> None:
        """The program's current GPU from now on. The first one that it selects is its home."""
        self.current = self.checked(index)
        if not self._settled:
            self._settled, self.home = True, index

    def checked(self, index: int) -> int:
        """The index, if there is such a GPU."""
        if 0 <= index < self.count:
            return index
        has = "1 GPU" if self.count == 1 else f"{self.count} GPUs"
        raise torch.AcceleratorError(
            f"CUDA error: invalid device ordinal: cuda:{index} does not exist, the host of this rank has {has}\n"
            "hint: use LOCAL_RANK as the index; `host` and `per_host` in the cluster file place several devices on one host"
        )

    def place(self, device: Any) -> int | None:
        """The place that a `device` argument names; None: a device that is not simulated (meta)."""
        if isinstance(device, int):
            return self.checked(device)
        named = torch.device(device) if isinstance(device, str) else device
        if named.type == "cuda":
            return self.current if named.index is None else self.checked(named.index)
        if named.type == "cpu":
            return CPU
        if named.type == "meta":
            return None
        raise RuntimeError(
            f"device {named} is not simulated\nhint: the simulated devices are cpu and cuda:0 to cuda:{self.count - 1}"
        )

    def gpu(self, device: Any) -> int:
        """The index of the GPU that an argument of torch.cuda names; None is the current one."""
        place = self.current if device is None else self.place(device)
        if place is None or place == CPU:
            raise ValueError(f"Expected a cuda device, but got: {device}")
        return place

    def device(self, place: int) -> torch.device:
        """How the program knows the place."""
        return _HOST if place == CPU else torch.device("cuda", place)

    def of(self, tensor: Tensor) -> int:
        """Where a tensor is."""
        return self.of_storage(_storage(tensor))

    def of_storage(self, storage: Any) -> int:
        """Where a storage is; None is the home."""
        place: int = getattr(storage, "_place", self.home)
        return place

    def knows(self, tensor: Tensor) -> bool:
        """Whether the tensor has been marked."""
        return hasattr(_storage(tensor), "_place")

    def mark(self, result: Any, place: int) -> Any:
        """Notes where the tensors of a call's result are."""
        for tensor in _tensors((result,)):
            storage = _storage(tensor)
            if storage is not None and self.of_storage(storage) != place:
                storage._place = place
        return result


def _storage(tensor: Tensor) -> Any:
    """The marked object: the same for all views of one memory. None: the tensor has none of its own."""
    if tensor.layout is not torch.strided:
        return _storage(tensor._values()) if tensor.layout is torch.sparse_coo else None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    """The tensors in a call's arguments or results, also in lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(tuple(value.values()))


class Placement(TorchFunctionMode):
    """Sends every call to the CPU, and keeps account of where its results are."""

    def __init__(self, devices: Devices, random: Callable[[int], GpuRandom]) -> None:
        """`random` is a GPU's generator."""
        super().__init__()
        self.devices = devices
        self._random = random
        self._special = _special(self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        special = self._special.get(func)
        if special is not None:
            return special(func, *args, **kwargs)
        if kwargs.get("device") is not None and func is not torch.device:
            return self._made(func, args, kwargs, self.devices.place(kwargs["device"]))
        return self.followed(func, args, kwargs)

    def followed(self, func: Call, args: Any, kwargs: Any) -> Any:
        """A call whose results are where its inputs are. Without inputs that is the CPU, or the default device."""
        place = self._inputs(args, kwargs)
        if place == CPU and func in _constructors():
            place = self._default()
        result = self._call(func, args, kwargs, place)
        return result if place == self.devices.home else self.devices.mark(result, place)

    def _inputs(self, args: Any, kwargs: Any) -> int:
        """Scalars on the CPU mix with tensors on a GPU."""
        place = CPU
        for tensor in _tensors((*args, *kwargs.values())) if kwargs else _tensors(args):
            place = self.devices.of(tensor)
            if place != CPU:
                break
        return place

    def _default(self) -> int:
        """Where `torch.set_default_device` wants new tensors."""
        chosen = torch.utils._device.CURRENT_DEVICE
        place = CPU if chosen is None else self.devices.place(chosen)
        return CPU if place is None else place

    def _made(self, func: Call, args: Any, kwargs: Any, place: int | None) -> Any:
        if place is None:
            return func(*args, **kwargs)
        kwargs = {**kwargs, "device": _HOST}
        if place != CPU and kwargs.get("pin_memory"):
            raise RuntimeError("Only dense CPU tensors can be pinned")
        kwargs.pop("pin_memory", None)
        return self.devices.mark(self._call(func, args, kwargs, place), place)

    def _call(self, func: Call, args: Any, kwargs: Any, place: int) -> Any:
        if func not in DRAWS or place == CPU or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        with self._random(place).drawing():
            return func(*args, **kwargs)

    # Calls that are about devices

    def _to(self, func: Call, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        target, args, kwargs = self._target(args, kwargs)
        if target is None:
            return self.followed(func, (tensor, *args), kwargs)
        if target != self.devices.of(tensor):
            kwargs["copy"] = True
        return self.devices.mark(func(tensor, *args, **kwargs), target)

    def _target(self, args: Any, kwargs: Any) -> tuple[int | None, Any, Any]:
        """Where `to` is asked to move, and its arguments with the CPU in that place."""
        first = args[0] if args else None
        if isinstance(first, Tensor):
            return self.devices.of(first), (_HOST, first.dtype, *args[1:]), dict(kwargs)
        if isinstance(first, str | int | torch.device):
            place = self.devices.place(first)
            return place, (first if place is None else _HOST, *args[1:]), dict(kwargs)
        if isinstance(other := kwargs.get("other"), Tensor):
            rest = {name: value for name, value in kwargs.items() if name != "other"}
            return self.devices.of(other), (_HOST, other.dtype), rest
        if kwargs.get("device") is None:
            return None, args, kwargs
        place = self.devices.place(kwargs["device"])
        return place, args, kwargs if place is None else {**kwargs, "device": _HOST}

    def _cuda(self, _func: Call, tensor: Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        return self._to(torch.Tensor.to, tensor, "cuda" if device is None else device, **kwargs)

    def _cpu(self, _func: Call, tensor: Tensor, **kwargs: Any) -> Any:
        return self._to(torch.Tensor.to, tensor, _HOST, **kwargs)

    def _device(self, func: Call, tensor: Tensor, *args: Any) -> Any:
        real = func(tensor, *args)
        return self.devices.device(self.devices.of(tensor)) if real == _HOST else real

    def _is_cuda(self, _func: Call, tensor: Tensor, *_args: Any) -> bool:
        return tensor.device == _HOST and self.devices.of(tensor) != CPU

    def _is_cpu(self, _func: Call, tensor: Tensor, *_args: Any) -> bool:
        return tensor.device == _HOST and self.devices.of(tensor) == CPU

    def _get_device(self, _func: Call, tensor: Tensor) -> int:
        return self.devices.of(tensor)

    def _pin_memory(self, _func: Call, tensor: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        if self.devices.of(tensor) != CPU:
            raise RuntimeError(
                f"cannot pin '{self._type(torch.Tensor.type, tensor)}' only dense CPU tensors can be pinned"
            )
        pinned = self.devices.mark(tensor.clone(), CPU)
        _storage(pinned)._pinned = True
        return pinned  # type: ignore[no-any-return]

    def _is_pinned(self, _func: Call, tensor: Tensor, *_args: Any, **_kwargs: Any) -> bool:
        return getattr(_storage(tensor), "_pinned", False)

    def _type(self, func: Call, tensor: Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            name: str = func(tensor)
            return name.replace("torch.", "torch.cuda.", 1) if self.devices.of(tensor) != CPU else name
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            return self._cuda(func, func(tensor, dtype.replace("torch.cuda.", "torch.", 1), *args, **kwargs))
        return self.followed(func, (tensor, dtype, *args), kwargs)

    def _repr(self, func: Call, tensor: Tensor, **kwargs: Any) -> str:
        text: str = func(tensor, **kwargs)
        place = self.devices.of(tensor)
        if place == CPU or tensor.device != _HOST:
            return text
        return _CONTENTS.sub(rf"\1, device='{self.devices.device(place)}'", text, count=1)

    def _on_cpu(self, func: Call, *args: Any, **kwargs: Any) -> Any:
        """Its argument is none of a tensor's: a device, or a descriptor of one."""
        return func(*args, **kwargs)


def _special(mode: Placement) -> dict[Any, Call]:
    """The calls that are about devices, by torch's function."""
    t: Any = torch.Tensor
    table: dict[Any, Call] = {
        t.to: mode._to,
        t.cuda: mode._cuda,
        t.cpu: mode._cpu,
        t.device.__get__: mode._device,
        t.is_cuda.__get__: mode._is_cuda,
        t.is_cpu.__get__: mode._is_cpu,
        t.get_device: mode._get_device,
        torch.get_device: mode._get_device,
        t.pin_memory: mode._pin_memory,
        t.is_pinned: mode._is_pinned,
        t.type: mode._type,
        t.__repr__: mode._repr,
        torch.device: mode._on_cpu,
    }
    return table


class DefaultDevice(torch.utils._device.DeviceContext):
    """`with torch.device(...)`, which lies above the placement, and `torch.set_default_device`, which torch puts below all modes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _constructors() and kwargs.get("device") is None:
            above = _len_torch_function_stack() > 0
            kwargs["device"] = self.device if above or self.device.type == "meta" else _HOST
        return func(*args, **kwargs)
