"""Owns Mooncake's transfer engine of simulated GPUs: the module `mooncake.engine`, by which servers of language models write keys and
values into memory of GPUs that other servers use.

A write takes the simulated network's time from one GPU to the other, and its destination takes no part, as of RDMA. Values are copied from
process to process, unless they lie in memory of a GPU so large that its tensors have none (`values`).
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

# In the run's store: how many engines there are, and beside it the place of each.
_ENGINES = b"uniference/mooncake"

# Each engine of a run has a number of its own, by which it is known whatever its host is called.
_FIRST_PORT = 15000

# No element is larger.
_LARGEST_ELEMENT = 8


class _Place(NamedTuple):
    """Where an engine is."""

    rank: int
    process: int
    machine: str


class TransferEngine:
    """Mooncake's class of this name, as far as servers write with it. Methods that return a number return 0, or -1 if it does not work."""

    channel: ClassVar[Channel]
    is_of_device: ClassVar[Callable[[int], int]]
    """Whether memory there is a GPU's."""

    def __init__(self) -> None:
        self._port = 0
        self._rank: int | None = None
        self._registered: dict[int, int] = {}
        self._peers: dict[str, _Place] = {}

    @uncharged
    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str) -> int:
        """Whatever the protocol and the network card, the run's network is what carries data."""
        open_memory()
        self._port = _FIRST_PORT + self.channel.store_add(_ENGINES, 1) - 1
        self._publish()
        return 0

    def get_rpc_port(self) -> int:
        """The number by which others know this engine, behind the name of its host."""
        return self._port

    @uncharged
    def register_memory(self, buffer_addr: int, capacity: int) -> int:
        """Only what is registered can be written from."""
        # The process is another rank's once it has used that one's GPU.
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
        """Blocks until the data is there."""
        return self.batch_transfer_sync_write(target_hostname, [buffer], [peer_buffer_address], [length])

    @uncharged
    def batch_transfer_sync_write(
        self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int], lengths: Sequence[int]
    ) -> int:
        """The same with several pieces, which go one after the other, as one stream of data."""
        try:
            # Its memory is known by now, so that it stays where it is.
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
        """Whether that engine can be reached."""
        try:
            self._find(target_hostname)
        except ValueError:
            return -1
        return 0

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Mooncake's TransferEngine.{name} is not simulated: only its synchronous writes are")

    def _publish(self) -> None:
        """Says where the engine is."""
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
        """Whether data there can have been computed.

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
        """Lets as much time pass as it takes.

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
    """Finds the package and its module, whether Mooncake is installed or not: its engine would find no network card."""

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
    """From here on Mooncake's engine is that of simulated GPUs. Nothing is imported for that."""
    TransferEngine.channel, TransferEngine.is_of_device = channel, is_of_device
    sys.meta_path.insert(0, _Finder())
