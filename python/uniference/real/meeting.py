"""Owns the synchronization of the ranks of a real run: their shared store, their common starting instant, and their
clocks.

Under torchrun the store is the agent's. Otherwise rank 0 serves a store at MASTER_ADDR and MASTER_PORT, and tells torch
that the store exists, so that the program's own `init_process_group` uses it.
"""

import ipaddress
import os
import socket
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import PrefixStore, TCPStore

from uniference.real import clocks
from uniference.real.recording import now

# Environment variable with the address at which rank 0's clock is served, if the user sets one.
CLOCK_ADDRESS = "UNIFERENCE_CLOCK_ADDRESS"
_AGENT = "TORCHELASTIC_USE_AGENT_STORE"
_PATIENCE = timedelta(minutes=30)
# Seconds in which the store must accept a connection.
_SILENCE_S = 10
# Time between the announcement of the starting instant and the instant.
_NOTICE_NS = 50_000_000
# The last part of a wait for an instant polls the clock.
_SPIN_NS = 2_000_000


class Meeting:
    """This rank's connection to the other ranks."""

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.host = _host()
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._serves = os.environ.get(_AGENT) != "True" and self.rank == 0
        self._server = TCPStore(address, port, None, self._serves, _PATIENCE, wait_for_workers=False)
        os.environ[_AGENT] = "True"
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = PrefixStore(f"uniference/{attempt}", self._server)
        self._place = (address, port)
        self.readings: list[dict[str, int]] = []

    def gather(self, key: str, value: str) -> list[str]:
        """Every rank's value, in order of rank. Blocks until all ranks have set one."""
        self._store.set(f"{key}/{self.rank}", value)
        return [self._store.get(f"{key}/{rank}").decode() for rank in range(self.world_size)]

    def compare_clocks(self, name: str) -> None:
        """Compares the clock of one rank per host with rank 0's; the other ranks of the host share the result."""
        hosts = self.gather(f"{name}/host", self.host)
        others = sorted(set(hosts) - {hosts[0]})
        if self.rank == 0 and others:
            self._serve(name, others)
        if self.host in others:
            self._read(name, first=hosts.index(self.host) == self.rank)

    def _serve(self, name: str, others: list[str]) -> None:
        """Serves the clock at the addresses by which the other hosts reach this one, or at the user's address, and at
        no others."""
        seen = {self._store.get(f"{name}/seen/{host}").decode() for host in others}
        wanted = os.environ.get(CLOCK_ADDRESS)
        bound = {address: wanted or address for address in seen}
        key, places = clocks.new_key(), sorted(set(bound.values()))
        server = clocks.Server(places, key, others)
        listening = dict(zip(places, server.addresses, strict=True))
        self._store.set(f"{name}/key", key.hex())
        for address, at in bound.items():
            host, _, port = listening[at].rpartition(":")
            everywhere = ipaddress.ip_address(host.strip("[]")).is_unspecified
            reached = (f"[{address}]" if ":" in address else address) if everywhere else host
            self._store.set(f"{name}/clock/{address}", f"{reached}:{port}")
        server.serve()

    def _read(self, name: str, first: bool) -> None:
        key = f"{name}/reading/{self.host}"
        if first:
            seen = self._address_of_first()
            self._store.set(f"{name}/seen/{self.host}", seen)
            address = self._store.get(f"{name}/clock/{seen}").decode()
            secret = bytes.fromhex(self._store.get(f"{name}/key").decode())
            reading = asdict(clocks.read(address, secret, self.host))
            self._store.set(key, ",".join(str(reading[field]) for field in ("at_ns", "offset_ns", "error_ns")))
        at, offset, error = map(int, self._store.get(key).split(b","))
        self.readings.append({"at_ns": at, "offset_ns": offset, "error_ns": error})

    def _address_of_first(self) -> str:
        """This host's address on its route to rank 0's host: that of its connection to the store there, independent of
        the meaning of MASTER_ADDR on other hosts."""
        with socket.create_connection(self._place, timeout=_SILENCE_S) as store:
            return str(store.getpeername()[0])

    def start_together(self) -> int:
        """Returns at the same instant on every rank; returns that instant in this rank's clock."""
        self.gather("ready", "")
        if self.rank == 0:
            self._store.set("start", str(now() + _NOTICE_NS))
        offset = self.readings[-1]["offset_ns"] if self.readings else 0
        start = int(self._store.get("start")) - offset
        time.sleep(max(start - now() - _SPIN_NS, 0) / 1e9)
        while now() < start:
            pass
        return start

    def leave(self) -> None:
        """Blocks until no rank needs this rank's store any more."""
        self.gather("left", "")
        if self.rank != 0:
            self._store.set(f"gone/{self.rank}", "")
        elif self._serves:
            self._store.wait([f"gone/{rank}" for rank in range(1, self.world_size)])


def _host() -> str:
    """An identifier of the kernel: ranks with the same kernel share a clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
