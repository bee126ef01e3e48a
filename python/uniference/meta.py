"""Owns communication of tensors without data, which torch would skip in silence: on the device `meta`, or under `FakeTensorMode`.

Torch itself runs collectives on such tensors to learn shapes, as it compiles, exports or plans something; these take part in no run, here
as on a cluster, and are let through to torch's own kernels (`torch/distributed/_meta_registrations.py`, `_functional_collectives.py`).
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed._functional_collectives as functional
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.distributed import _meta_registrations
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from uniference._native import Channel

_TORCH = os.path.dirname(torch.__file__) + os.sep

# Where torch works with shapes alone, by files and functions (None: all) that stand on the stack then.
_PLANS: dict[str, frozenset[str] | None] = {
    _TORCH + os.path.join(*path): names
    for path, names in {
        ("fx", "experimental", "proxy_tensor.py"): None,
        ("fx", "passes", "fake_tensor_prop.py"): None,
        ("fx", "passes", "shape_prop.py"): None,
        ("export", "_trace.py"): None,
        ("_functorch", "_aot_autograd", "collect_metadata_analysis.py"): None,
        ("distributed", "tensor", "_sharding_prop.py"): None,
        ("distributed", "pipelining", "stage.py"): frozenset(
            {"_forward_metadata_inference", "_backward_metadata_inference"}
        ),
    }.items()
}

# Estimators of memory and time: their modes run a program without its data.
_ESTIMATORS = _TORCH + os.path.join("distributed", "_tools", "")

# Without a kernel of torch's own for tensors without data.
_WITHOUT_KERNEL = (
    "allreduce_coalesced_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "reduce_scatter_tensor_coalesced_",
)

# Operators of these modules that communicate, and torch's functions that stand in for them where there is no data.
_FUNCTIONAL: dict[str, Callable[..., Any]] = {
    "all_reduce": functional._all_reduce_meta,
    "all_reduce_": functional._all_reduce__meta,
    "all_reduce_coalesced": functional._all_reduce_coalesced_meta,
    "all_reduce_coalesced_": functional._all_reduce_coalesced__meta,
    "isend": functional._isend_meta,
    "irecv": functional._irecv_meta,
    "batch_p2p_ops": functional._batch_p2p_ops_meta,
    "all_gather_into_tensor_out": functional._all_gather_into_tensor_out_native_meta,
    "all_gather_into_tensor": functional._all_gather_into_tensor_native_meta,
    "all_gather_into_tensor_coalesced": functional._all_gather_into_tensor_coalesced_native_meta,
    "reduce_scatter_tensor": functional._reduce_scatter_tensor_native_meta,
    "reduce_scatter_tensor_out": functional._reduce_scatter_tensor_out_native_meta,
    "reduce_scatter_tensor_coalesced": functional._reduce_scatter_tensor_coalesced_native_meta,
    "all_to_all_single": functional._all_to_all_single_meta,
    "broadcast": functional._broadcast_meta,
    "broadcast_": functional._broadcast__meta,
}
_AUTOGRAD = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")

_libraries: list[torch.library.Library] = []


def install(_channel: Channel) -> None:
    """Puts a kernel that refuses in front of each of torch's."""
    for name, kernel in _meta_registrations._META_FUNCTIONS.items():
        _register("c10d", name, kernel)
    for name in _WITHOUT_KERNEL:
        _register("c10d", name, _unsupported(name))
    for name, kernel in _FUNCTIONAL.items():
        _register("_c10d_functional", name, kernel)
    for name in _AUTOGRAD:
        _register("_c10d_functional_autograd", name, _FUNCTIONAL[name])


def _register(namespace: str, name: str, kernel: Callable[..., Any]) -> None:
    library: Any = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]

    def checked(*args: Any, **kwargs: Any) -> Any:
        if not _is_planning():
            raise RuntimeError(
                f"{namespace}::{name} of a tensor without data: on the device meta, or under FakeTensorMode, nothing would be "
                "communicated, and the run would lack its time\n"
                "hint: communicate tensors with data, as of torch.empty() outside of FakeTensorMode; their values do not matter"
            )
        return kernel(*args, **kwargs)

    library.impl(name, checked, "Meta", allow_override=True)
    _libraries.append(library)


def _unsupported(name: str) -> Callable[..., Any]:
    def kernel(*_args: Any, **_kwargs: Any) -> Any:
        raise UnsupportedOperatorException(getattr(torch.ops.c10d, name).default)

    return kernel


def _is_planning() -> bool:
    """Whether it is torch, and not the program, that wants to know what a collective would return."""
    if torch.compiler.is_compiling() or TracingContext.try_get() is not None or get_proxy_mode() is not None:
        return True
    frame = sys._getframe()
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        names = _PLANS.get(file, frozenset())
        if names is None or name in names or file.startswith(_ESTIMATORS):
            return True
        frame = frame.f_back  # type: ignore[assignment]  # mypy takes the first frame's type, which is never None
    return False
