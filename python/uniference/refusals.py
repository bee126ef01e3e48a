"""Owns what cannot be simulated and says so when a program asks for it, rather than letting real traffic escape."""

import os
import sys
from typing import Any, NoReturn

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import rpc

from uniference._native import Channel


def install(_channel: Channel) -> None:
    """Refuses RPC, and turns the debug level DETAIL into INFO."""
    if dist.rpc.is_available():
        rpc.init_rpc = _init_rpc
    _limit_debug_level()


def _init_rpc(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError(
        "torch.distributed.rpc cannot be simulated: it talks over real connections\n"
        "hint: use collectives or send and recv of torch.distributed"
    )


def _limit_debug_level() -> None:
    """DETAIL wraps every group in one of real Gloo, whose traffic would be neither simulated nor timed."""
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        print("warning: TORCH_DISTRIBUTED_DEBUG=DETAIL is not simulated: taken as INFO", file=sys.stderr)
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"
    c10d.set_debug_level_from_env()
