"""Owns communication of tensors without data, which torch would skip silently: on the device `meta`, or under
`FakeTensorMode`.

Torch itself runs collectives on such tensors to infer shapes, when it compiles, exports or plans; as on a cluster,
these do not communicate and are passed to torch's own kernels (`torch/distributed/_meta_registrations.py`,
`_functional_collectives.py`).
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.distributed import _meta_registrations
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from uniference._native import Channel
from uniference.patches import names
from uniference.patches.registry import Operators

_TORCH = os.path.dirname(torch.__file__) + os.sep

# Code of torch that works with shapes only, by file and functions (None: all) on the stack.
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

# Operators for which torch has no kernel on tensors without data.
_WITHOUT_KERNEL = (
    "allreduce_coalesced_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "reduce_scatter_tensor_coalesced_",
)


def install(_channel: Channel) -> None:
    """Puts a kernel that refuses the program's calls in front of each of torch's kernels."""
    for name, kernel in _meta_registrations._META_FUNCTIONS.items():
        _guard(names.C10D, name, kernel)
    for name in _WITHOUT_KERNEL:
        _guard(names.C10D, name, _unsupported(name))
    for name in names.C10D_FUNCTIONAL.names:
        _guard(names.C10D_FUNCTIONAL, name, names.META_KERNELS[name].current)
    for name in names.C10D_AUTOGRAD.names:
        _guard(names.C10D_AUTOGRAD, name, names.META_KERNELS[name].current)


def _guard(operators: Operators, name: str, kernel: Callable[..., Any]) -> None:
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not _is_planning():
            raise RuntimeError(
                f"{operators.namespace}::{name} was called with a tensor without data (device meta, or FakeTensorMode), which cannot be "
                "communicated or simulated\n"
                "hint: use tensors with data, for example from torch.empty() outside of FakeTensorMode; their values do not matter"
            )
        return kernel(*args, **kwargs)

    operators.implement(name, checked, "Meta", allow_override=True)


def _unsupported(name: str) -> Callable[..., Any]:
    def kernel(*_args: Any, **_kwargs: Any) -> Any:
        raise UnsupportedOperatorException(getattr(torch.ops.c10d, name).default)

    return kernel


def _is_planning() -> bool:
    """Whether torch, and not the program, asks for the result's shape."""
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
