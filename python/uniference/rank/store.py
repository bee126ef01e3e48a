"""Owns the key-value stores of a program: `TCPStore` and `FileStore` are views of the engine's store, in virtual time.

Torch's rendezvous handlers (`env://`, `tcp://`, `file://`) are unchanged: they create one of these stores. A
`HashStore` is local to its process and stays torch's. The engine decides when a key becomes visible.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from uniference._native import Channel
from uniference.patches import names
from uniference.program.lines import user_line
from uniference.rank import rehearsal
from uniference.rank.charging import uncharged
from uniference.rank.clock import picoseconds

# Default timeouts of torch 2.15 (Store::kDefaultTimeout, Gloo and NCCL process groups): they are no events in virtual
# time, but deadlocks.
_DEFAULT_TIMEOUTS = (timedelta(minutes=5), timedelta(minutes=30), timedelta(minutes=10))


class EngineStore(c10d.Store):
    """The keys of the engine's store that start with `root`: one store of the program. Keys of this view start with
    `prefix`, too."""

    channel: ClassVar[Channel]

    def __init__(self, root: str, prefix: str, timeout: timedelta) -> None:
        super().__init__()
        self.root = root
        self.prefix = prefix
        self._timeout = timeout
        _alive.append(self)

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    @uncharged
    def set(self, key: str, value: str | bytes) -> None:
        self.channel.store_set(self._key(key), _bytes(value))
        self._speak_for_absent(key, _bytes(value))

    @uncharged
    def get(self, key: str) -> bytes:
        value = self.channel.store_get(self._key(key), _limit(self._timeout), user_line())
        if value is None:
            return self._timed_out([key], self._timeout)  # type: ignore[no-any-return]
        self._speak_for_absent(key, value)
        return value

    @uncharged
    def add(self, key: str, value: int) -> int:
        return self.channel.store_add(self._key(key), value)

    @uncharged
    def append(self, key: str, value: str | bytes) -> None:
        self.channel.store_append(self._key(key), _bytes(value))

    @uncharged
    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        return self.channel.store_compare_set(self._key(key), _bytes(expected_value), _bytes(desired_value))

    @uncharged
    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        limit = self._timeout if timeout is None else timeout
        if not self.channel.store_wait(self._keys(keys), _limit(limit), user_line()):
            self._timed_out(keys, limit)

    @uncharged
    def check(self, keys: list[str]) -> bool:
        return self.channel.store_check(self._keys(keys))

    @uncharged
    def delete_key(self, key: str) -> bool:
        return self.channel.store_delete(self._key(key))

    @uncharged
    def num_keys(self) -> int:
        return self.channel.store_count(self.root.encode())

    @uncharged
    def list_keys(self) -> list[str]:
        start = self._key("")
        return [key[len(start) :].decode() for key in self.channel.store_list(start)]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        return True

    @uncharged
    def queue_push(self, key: str, value: str | bytes) -> None:
        self.channel.store_queue_push(self._key(key), _bytes(value))

    @uncharged
    def queue_pop(self, key: str, block: bool = True) -> bytes:
        value = self.channel.store_queue_pop(self._key(key), block, _limit(self._timeout), user_line())
        if value is not None:
            return value
        if block:
            self._timed_out([key], self._timeout)
        raise dist.QueueEmptyError("queue is empty")

    @uncharged
    def queue_len(self, key: str) -> int:
        return self.channel.store_queue_length(self._key(key))

    def clone(self) -> "EngineStore":
        return EngineStore(self.root, self.prefix, self._timeout)

    # C++ calls these methods by their C++ names.
    getNumKeys = num_keys
    deleteKey = delete_key

    def _key(self, key: str) -> bytes:
        return f"{self.root}{self.prefix}{key}".encode()

    def _keys(self, keys: Sequence[str]) -> list[bytes]:
        return [self._key(key) for key in keys]

    def _speak_for_absent(self, key: str, value: bytes) -> None:
        for name, said in rehearsal.members(f"{self.prefix}{key}", value):
            self.channel.store_set(name, said)

    def _timed_out(self, keys: Sequence[str], timeout: timedelta) -> Any:
        milliseconds = timeout // timedelta(milliseconds=1)
        shown = ", ".join(f"/{self.prefix}{key}" for key in keys)
        raise dist.DistStoreError(f"wait timeout after {milliseconds}ms, keys: {shown}")


class TCPStore(EngineStore):
    """Stores with the same port are one store; the host is ignored, because a host may have several names."""

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = timedelta(seconds=300),
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> None:
        self._host = host_name
        self._port = port or self._free_port()
        super().__init__(f"tcp/{self._port}/", "", timeout)
        if world_size is not None and world_size > 0 and wait_for_workers:
            self._meet(world_size)

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        return self._port

    @classmethod
    def _free_port(cls) -> int:
        """A free port for the request of port 0, counted from the start of Linux's default range."""
        return 32767 + cls.channel.store_add(b"ports", 1)

    def _meet(self, world_size: int) -> None:
        """Blocks until `world_size` workers have joined."""
        if self.add("init/workers", 1) % rehearsal.workers(world_size) == 0:
            self.set("init/all", "")
        self.wait(["init/all"])


class FileStore(EngineStore):
    """Stores of the same file name are one store; the file itself is not touched."""

    def __init__(self, path: str, numWorkers: int = -1) -> None:
        super().__init__(f"file/{os.path.realpath(path)}/", "", timedelta(seconds=300))
        self._path = path

    def delete_key(self, key: str) -> bool:
        """Returns True whether the key existed or not, as the real store does."""
        super().delete_key(key)
        return True

    deleteKey = delete_key

    @property
    def path(self) -> str:
        return self._path


class PrefixStore(EngineStore):
    """A part of another store. Torch's own class does not forward queues of a Python store."""

    def __new__(cls, prefix: str, store: c10d.Store) -> Any:
        return super().__new__(cls) if isinstance(store, EngineStore) else _TorchPrefixStore(prefix, store)

    def __init__(self, prefix: str, store: EngineStore) -> None:
        super().__init__(store.root, f"{store.prefix}{prefix}/", store.timeout)
        self._underlying = store

    @property
    def underlying_store(self) -> EngineStore:
        return self._underlying


_TorchPrefixStore = c10d.PrefixStore

# References to all stores, because C++ does not keep a Python store alive.
_alive: list[EngineStore] = []


def install(channel: Channel) -> None:
    """Replaces the stores' classes in torch's modules."""
    EngineStore.channel = channel
    rehearsal.install()
    replacements = {store.__name__: store for store in (TCPStore, FileStore, PrefixStore)}
    for name in names.STORES:
        name.replace(replacements[name.attribute])


def _limit(timeout: timedelta) -> int | None:
    return None if timeout in _DEFAULT_TIMEOUTS else picoseconds(timeout)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
