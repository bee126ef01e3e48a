"""Owns how far the clocks of two hosts are apart, found by many small exchanges over a plain TCP connection.

The exchange with the shortest round trip says most: the other clock was read between its two ends, so the middle is wrong by half of
it at most (Cristian 1989, Probabilistic clock synchronization). That clocks also run at different speeds shows when it is done twice.
"""

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

from uniference.real.recording import now

ROUNDS = 200

_TIME = struct.Struct("!q")


@dataclass(frozen=True)
class Reading:
    """At `at_ns` of this host's clock, the reference clock showed `offset_ns` more, or less by up to `error_ns`."""

    at_ns: int
    offset_ns: int
    error_ns: int


def serve(listener: socket.socket, clients: int, clock: Callable[[], int] = now) -> None:
    """Tells this host's time to so many clients, one after the other."""
    for _ in range(clients):
        peer, _ = listener.accept()
        with peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while peer.recv(1):
                peer.sendall(_TIME.pack(clock()))


def read(address: tuple[str, int], rounds: int = ROUNDS, clock: Callable[[], int] = now) -> Reading:
    """Compares this host's clock with the one served at `address`."""
    best: Reading | None = None
    with socket.create_connection(address) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(rounds):
            sent = clock()
            peer.sendall(b"?")
            (there,) = _TIME.unpack(_receive(peer, _TIME.size))
            received = clock()
            middle = (sent + received) // 2
            reading = Reading(middle, there - middle, (received - sent + 1) // 2)
            if best is None or reading.error_ns < best.error_ns:
                best = reading
    assert best is not None, "there is at least one round"
    return best


def _receive(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = peer.recv(size - len(data))
        if not chunk:
            raise ConnectionError("the reference clock has gone")
        data += chunk
    return data
