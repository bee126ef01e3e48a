"""Owns the comparison of the clocks of a real run's hosts: one host serves its clock, the others read it. `_native`
implements the protocol."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from uniference import _native

ROUNDS = 200
# Seconds that the server waits for all clients, and a client for the server.
PATIENCE_S = 60.0
# Seconds between two checks for signals during a wait.
_TICK_S = 0.1


@dataclass(frozen=True)
class Reading:
    """At `at_ns` of this host's clock, the reference clock was ahead by `offset_ns`, with an error of up to
    `error_ns`."""

    at_ns: int
    offset_ns: int
    error_ns: int


def new_key() -> bytes:
    """A new key for one server and its clients."""
    return secrets.token_bytes(32)


class Server:
    """Serves this host's time to the named clients who know `key`. Raises ConnectionError if it cannot listen at an
    address."""

    def __init__(self, addresses: Sequence[str], key: bytes, clients: Sequence[str]) -> None:
        try:
            self._server = _native.ClockServer(addresses, key)
        except OSError as error:
            raise ConnectionError(
                f"cannot serve the clock of rank 0's host at {error.filename}, the address by which other hosts reach it: "
                f"{error.strerror}\n"
                "hint: give an address of that host that the other hosts can reach with --clock-address"
            ) from None
        self._server.expect(clients)
        self._clients = clients
        self.addresses = self._server.addresses

    def serve(self, patience_s: float = PATIENCE_S) -> None:
        """Serves until all clients have read the time. Raises TimeoutError if some have not after `patience_s`."""
        missing = set(self._clients)
        deadline = time.monotonic() + patience_s
        while missing:
            missing.discard(self._server.wait(_TICK_S) or "")
            if missing and time.monotonic() >= deadline:
                raise TimeoutError(
                    f"{len(missing)} of {len(self._clients)} hosts have not synchronized their clocks with this host within "
                    f"{patience_s:.0f} s\n"
                    f"hint: make sure that all hosts reach {' and '.join(self.addresses)} by TCP, "
                    "or give an address that they can reach with --clock-address"
                )


def read(address: str, key: bytes, name: str, rounds: int = ROUNDS, patience_s: float = PATIENCE_S) -> Reading:
    """Compares this host's clock with the one served at `address` ("HOST:PORT"), as the client of this name.

    Raises ConnectionError if no server with this `key` is reachable within `patience_s`, or at once if the server is of
    another version.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return Reading(*_native.read_clock(address, key, name, rounds))
        except ValueError as error:
            raise ConnectionError(f"cannot read the clock of rank 0's host at {address}: {error}") from None
        except ConnectionError as error:
            if time.monotonic() >= deadline:
                raise ConnectionError(
                    f"cannot read the clock of rank 0's host at {address}: {error}\n"
                    "hint: make sure that this host can reach it by TCP, or give an address that it can reach with --clock-address"
                ) from None
            time.sleep(0.2)
