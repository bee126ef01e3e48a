"""Owns what cannot be simulated and says so when a program asks for it, rather than letting real traffic escape.

What processes that a rank starts may do is `children`'s business.
"""

import sys
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed import distributed_c10d, rpc

from uniference._native import Channel


def install(_channel: Channel) -> None:
    """Refuses RPC, and the groups of real Gloo that the debug level DETAIL would wrap around every group."""
    if dist.rpc.is_available():
        rpc.init_rpc = _init_rpc
    distributed_c10d._create_process_group_wrapper = _create_process_group_wrapper


def _init_rpc(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError(
        "torch.distributed.rpc cannot be simulated: it talks over real connections\n"
        "hint: use collectives or send and recv of torch.distributed"
    )


def _create_process_group_wrapper(wrapped_pg: Any, *_args: Any, **_kwargs: Any) -> Any:
    """The wrapper compares what the members call, over connections of its own. The engine does that anyway."""
    print(
        "warning: TORCH_DISTRIBUTED_DEBUG=DETAIL does not wrap groups here: mismatching calls are found without it",
        file=sys.stderr,
    )
    return wrapped_pg
