"""Owns Mooncake's transfer engine for simulated GPUs: the module `mooncake.engine`, with which inference servers write
their KV cache into GPU memory of other servers.

A write costs the simulated network's time between the two GPUs, and its destination is not involved, as in RDMA. Values
are copied between the processes, unless they lie in GPU memory of a tensor so large that it has no values (`values`).
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

from uniference._native import Channel, open_memory, write_memory
from uniference.program.lines import user_line
from uniference.rank import values
from uniference.rank.charging import uncharged

# Prefix of keys in the run's store: the number of engines, and the address of each.
_ENGINES = b"uniference/mooncake"

# Each engine of a run has a unique port, which identifies the engine independently of its host's name.
_FIRST_PORT = 15000

# Size of the largest element type in bytes.
_LARGEST_ELEMENT = 8


class _Place(NamedTuple):
    """The location of an engine."""

    rank: int
    process: int
    machine: str


class TransferEngine:
    """Mooncake's class of this name, with the methods that servers use for writing. Methods that return a number return
    0, or -1 on failure."""

    channel: ClassVar[Channel]
    is_of_device: ClassVar[Callable[[int], int]]
    """Whether an address is in GPU memory."""

    def __init__(self) -> None:
        self._port = 0
        self._rank: int | None = None
        self._registered: dict[int, int] = {}
        self._peers: dict[str, _Place] = {}

    @uncharged
    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str) -> int:
        """Accepts any protocol and NIC: the simulated network carries the data."""
        open_memory()
        self._port = _FIRST_PORT + self.channel.store_add(_ENGINES, 1) - 1
        self._publish()
        return 0

    def get_rpc_port(self) -> int:
        """The port that identifies this engine, after the name of its host."""
        return self._port

    @uncharged
    def register_memory(self, buffer_addr: int, capacity: int) -> int:
        """Registers memory; only registered memory can be written from."""
        # The rank is looked up here, because the process may have moved to another rank in the meantime, by using that
        # rank's GPU.
        if self._rank != self.channel.rank:
            self._publish()
        self._registered[buffer_addr] = capacity
        return 0

    def unregister_memory(self, buffer_addr: int) -> int:
        return 0 if self._registered.pop(buffer_addr, None) is not None else -1

    def batch_register_memory(self, buffer_addresses: Sequence[int], capacities: Sequence[int]) -> int:
        return max(map(self.register_memory, buffer_addresses, capacities), default=0)

    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        return min(map(self.unregister_memory, buffer_addresses), default=0)

    def transfer_sync_write(self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int) -> int:
        """Blocks until the data is written."""
        return self.batch_transfer_sync_write(target_hostname, [buffer], [peer_buffer_address], [length])

    @uncharged
    def batch_transfer_sync_write(
        self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int], lengths: Sequence[int]
    ) -> int:
        """Writes several pieces one after the other, as one connection stream."""
        try:
            # The destination's registered memory does not change any more, so its location is cached.
            to = self._peers.get(target_hostname) or self._find(target_hostname)
            self._peers[target_hostname] = to
            pieces = list(zip(buffers, peer_buffer_addresses, lengths, strict=True))
            valued = [piece for piece in pieces if self._has_values(*piece)]
            if valued and to.machine != _machine():
                raise ValueError(f"{target_hostname} is on another machine, where values cannot be written to")
            self._carry(to, sum(lengths))
            write_memory(to.process, valued)
        except (OSError, ValueError) as error:
            print(f"uniference: a write of Mooncake's to {target_hostname} has failed: {error}", file=sys.stderr)
            return -1
        return 0

    def send_probe(self, target_hostname: str) -> int:
        """Whether the other engine can be reached."""
        try:
            self._find(target_hostname)
        except ValueError:
            return -1
        return 0

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Mooncake's TransferEngine.{name} is not simulated: only its synchronous writes are")

    def _publish(self) -> None:
        """Publishes the engine's location in the run's store."""
        self._rank = self.channel.rank
        place = _Place(self._rank, os.getpid(), _machine())
        self.channel.store_set(_key(self._port), " ".join(map(str, place)).encode())

    def _find(self, target_hostname: str) -> _Place:
        _, _, port = target_hostname.rpartition(":")
        known = self.channel.store_check([_key(port)]) and self.channel.store_get(_key(port), None, user_line())
        if not known:
            raise ValueError("there is no such engine in this run")
        rank, process, machine = known.decode().split(" ")
        return _Place(int(rank), int(process), machine)

    def _has_values(self, buffer: int, peer_buffer_address: int, length: int) -> bool:
        """Whether the data in this memory may have values.

        Raises:
            ValueError: The memory was not registered.
        """
        for begins, capacity in self._registered.items():
            if begins <= buffer and buffer + length <= begins + capacity:
                most = values.limit()
                is_small = most is None or capacity <= most * _LARGEST_ELEMENT
                return is_small or not TransferEngine.is_of_device(buffer)
        raise ValueError(f"{length} bytes at {buffer:#x} were not registered")

    def _carry(self, to: _Place, nbytes: int) -> None:
        """Lets the transfer's time pass.

        Raises:
            ValueError: The other rank has crashed.
        """
        if to.rank == self.channel.rank:
            return
        line = user_line()
        handle = self.channel.write(to.rank, nbytes, line)
        self.channel.wait([handle], None, False, line)
        closed_by = self.channel.closed_by(handle)
        self.channel.release(handle)
        if closed_by is not None:
            raise ValueError(f"rank {closed_by} has closed the connection")


def _key(port: int | str) -> bytes:
    return b"%s/%s" % (_ENGINES, str(port).encode())


def _machine() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class _Finder(MetaPathFinder, Loader):
    """Finds the package and its module, whether Mooncake is installed or not: Mooncake's own engine would find no
    NIC."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name == "mooncake.engine" or (name == "mooncake" and not _is_installed(name)):
            return ModuleSpec(name, self, is_package=name == "mooncake")
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "mooncake.engine":
            module.TransferEngine = TransferEngine  # type: ignore[attr-defined]


def _is_installed(name: str) -> bool:
    finders = (finder for finder in sys.meta_path if not isinstance(finder, _Finder))
    return any(finder.find_spec(name, None) is not None for finder in finders)


def install(channel: Channel, is_of_device: Callable[[int], int]) -> None:
    """Replaces Mooncake's engine by the one for simulated GPUs from now on. Mooncake is not imported if the program
    does not import it."""
    TransferEngine.channel, TransferEngine.is_of_device = channel, is_of_device
    sys.meta_path.insert(0, _Finder())
