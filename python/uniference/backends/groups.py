"""Owns the creation of process groups: the backends that are registered with torch, and the members of each group.

`base` and its subclasses implement the groups' operations.
"""

from collections import Counter
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import wraps
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed.distributed_c10d import Backend as BackendNames
from torch.nn.parallel import DistributedDataParallel

from uniference._native import Channel
from uniference.backends.arena import Arena
from uniference.backends.base import SimulatedBackend
from uniference.backends.gloo import Gloo
from uniference.backends.nccl import Nccl
from uniference.patches import names
from uniference.program.lines import user_line
from uniference.rank.charging import uncharged
from uniference.rank.store import EngineStore

# Simulated libraries, and other libraries that torch knows: every other name is refused with a message that says so.
_SIMULATED: dict[str, type[SimulatedBackend]] = {backend.NAME: backend for backend in (Gloo, Nccl)}
_REFUSED = ("mpi", "ucc", "xccl")


def _name_backend_in_log() -> None:
    """DistributedDataParallel's log reads the backend's fields by the group's type, which is CUSTOM for simulated
    groups."""
    original = names.DDP_LOG.original

    def logging_data(self: DistributedDataParallel) -> dict[str, Any]:
        name = dist.get_backend(self.process_group)
        return {**original(self), "backend_name": name, **(_SIMULATED[name].ddp_log() if name in _SIMULATED else {})}

    names.DDP_LOG.replace(logging_data)


def _split_among_members() -> None:
    """Leaves ranks outside of a split's groups out of `split_group`: C++ asks a Python backend for its part of the
    split even if the rank is in none, and does not accept None.

    Torch's own NCCL must join such a split, because the ranks in it wait for all of the parent.
    """
    original = names.SPLIT_GROUP.current

    def split_group(self: dist.ProcessGroup, ranks: list[int], *args: Any, **kwargs: Any) -> dist.ProcessGroup | None:
        if self.rank() not in ranks:
            device = self.bound_device_id
            nccl: Any = self._get_backend(device) if device is not None else None
            if hasattr(nccl, "perform_nocolor_split"):
                nccl.perform_nocolor_split(device)
            return None
        group: dist.ProcessGroup = original(self, ranks, *args, **kwargs)
        return group

    names.SPLIT_GROUP.replace(split_group)


def _name_groups(channel: Channel) -> None:
    """Announces the name and the members of each group that a rank is about to create: two groups with one name are a
    program error.

    Members of a group find each other in the store by the group's name, which is a counter of each rank. A rank that
    leaves out a call of `new_group`, or calls it with other ranks, therefore meets the members of another group
    (decision 0064).
    """
    original = names.NEW_GROUP.current
    # Number of calls of init_process_group by store and world size: each call makes a new world, whose groups are numbered anew.
    worlds: Counter[tuple[str, int]] = Counter()
    world = ""

    def say(name: str, ranks: list[int], backend: Any) -> None:
        libraries = ",".join(sorted(str(backend).lower().split(",")))
        channel.enter()
        try:
            channel.name_group(name, len(ranks), f'new_group({list(ranks)}, backend="{libraries}")', user_line())
        finally:
            channel.leave()

    @wraps(original)
    def new_group(
        size: int,
        rank: int | None,
        ranks: list[int],
        backend: Any,
        store: Any,
        name: str,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        nonlocal world
        if isinstance(store, EngineStore):
            where = f"{store.root}{store.prefix}"
            if not ranks:
                worlds[where, size] += 1
                world = f"{size}.{worlds[where, size]}"
            elif rank is not None:
                say(f"{where}{world}/{name}", ranks, backend)
        return original(size, rank, ranks, backend, store, name, *args, **kwargs)

    names.NEW_GROUP.replace(new_group)


class Backends:
    """Creates this process's groups, in place of torch's own backends."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._arena = Arena(channel)
        # References to all backends, because C++ does not keep a Python backend alive.
        self._alive: list[SimulatedBackend] = []
        # Simulation rank of each rank of the program's world; the program may have made a new world without some ranks.
        self._world = list(range(channel.world_size))

    def install(self, without: AbstractSet[str] = frozenset()) -> None:
        """Registers the backends with torch, except those in `without`, which stay torch's own."""
        self._is_nccl_torchs_own = "nccl" in without
        for name in (name for name in (*_SIMULATED, *_REFUSED) if name not in without):
            BackendNames.register_backend(
                name,
                self._creator(name, _SIMULATED.get(name)),
                extended_api=True,
                devices=["cpu", "cuda"],
                # The type GLOO would make DistributedDataParallel's logger cast the group to ProcessGroupGloo.
                _backend_type=dist.ProcessGroup.BackendType.CUSTOM,
            )
        _name_backend_in_log()
        _split_among_members()
        _name_groups(self.channel)

    def _creator(self, name: str, library: type[SimulatedBackend] | None) -> Callable[[Any, Any], SimulatedBackend]:
        def create(opts: Any, backend_options: Any) -> SimulatedBackend:
            if library is None:
                raise RuntimeError(
                    f'the backend "{name}" cannot be simulated\n'
                    'hint: pass "gloo" or "nccl" to init_process_group, and choose the simulated backend with --backend'
                )
            # As in torch, Gloo groups have no options.
            if library is Nccl and backend_options is not None:
                self.channel.warn(
                    "pg_options have no effect on process groups of CPU tensors with the backend nccl; "
                    "docs/reference/settings.md lists the environment variables that have one"
                )
            return self._create(library, opts)

        return create

    @uncharged
    def _create(self, library: type[SimulatedBackend], opts: Any) -> SimulatedBackend:
        if opts.enable_reconfigure:
            raise RuntimeError(
                "reconfigurable process groups (enable_reconfigure) cannot be simulated\n"
                "hint: create a new group of the remaining members with new_group or split_group"
            )
        members = list(opts.global_ranks_in_group)
        if not members:
            self._meet(opts)
        ranks = [self._world[member] for member in members] or self._world
        backend = library(
            self.channel,
            self._arena,
            ranks,
            opts.group_rank,
            opts.timeout,
            opts.group_id,
            members,
            is_beside_nccl=self._is_nccl_torchs_own,
        )
        self._alive.append(backend)
        return backend

    def _meet(self, opts: Any) -> None:
        """Finds the members of a new world. Ranks that continue without crashed ones renumber themselves."""
        mine, size = (self.channel.rank, opts.group_rank), opts.group_size
        if size == self.channel.world_size and mine[0] == mine[1]:
            self._world = list(range(size))
            return
        if not 0 <= opts.group_rank < size <= self.channel.world_size:
            self._refuse(opts)
        # As with Gloo, the members find each other through the store that the program passes.
        key = f"uniference/{opts.group_id}"
        opts.store.set(f"{key}/{opts.group_rank}", str(self.channel.rank))
        self._world = [int(opts.store.get(f"{key}/{member}")) for member in range(size)]
        if self._world[opts.group_rank] != self.channel.rank:
            self._refuse(opts)

    def _refuse(self, opts: Any) -> NoReturn:
        raise RuntimeError(
            f"init_process_group got rank {opts.group_rank} and world size {opts.group_size}, "
            f"but this is rank {self.channel.rank} of {self.channel.world_size}\n"
            "hint: take rank and world_size from the environment variables RANK and WORLD_SIZE"
        )
