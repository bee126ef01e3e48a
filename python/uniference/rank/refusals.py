"""Owns refusals of features that cannot be simulated: an error on use, instead of real traffic.

`children` has the restrictions of processes that a rank starts.
"""

import sys
from typing import Any, NoReturn

from torch.distributed import rpc

from uniference._native import Channel
from uniference.patches import names


def install(_channel: Channel) -> None:
    """Refuses RPC, and the groups of real Gloo that the debug level DETAIL would wrap around every group."""
    if rpc.is_available():
        names.INIT_RPC.replace(_init_rpc)
    names.CREATE_WRAPPER.replace(_create_process_group_wrapper)


def _init_rpc(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError(
        "torch.distributed.rpc cannot be simulated, because it uses real connections\n"
        "hint: use the collectives or send and recv of torch.distributed"
    )


def _create_process_group_wrapper(wrapped_pg: Any, *_args: Any, **_kwargs: Any) -> Any:
    """Replaces the wrapper that compares the members' calls over its own connections. The engine compares the calls in
    any case."""
    print(
        "warning: TORCH_DISTRIBUTED_DEBUG=DETAIL does not wrap simulated process groups; mismatches are detected without it",
        file=sys.stderr,
    )
    return wrapped_pg
