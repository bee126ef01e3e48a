"""Owns how far the clocks of two hosts are apart, found by many small exchanges over a plain TCP connection.

The exchange with the shortest round trip says most: the other clock was read between its two ends, so the middle is wrong by half of
it at most (Cristian 1989, Probabilistic clock synchronization). That clocks also run at different speeds shows when it is done twice.

Anybody on the network may connect. Both ends show first that they know the key of the run, which is never sent: each answers the other's
random challenge with its HMAC. A connection that does not, or says nothing, ends without any other's having to wait for it.
"""

import contextlib
import errno
import hashlib
import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from uniference.real.recording import now

ROUNDS = 200
# How long one end waits for a word of the other, and for all of an introduction.
SILENCE_S = 10
# How long the server waits for all clients, and a client for the server.
PATIENCE_S = 60.0
# So many connections may not have introduced themselves yet: with one more the oldest of them ends.
_MOST_STRANGERS = 64

_TIME = struct.Struct("!q")
_CHALLENGE_BYTES = 32
_ANSWER_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Reading:
    """At `at_ns` of this host's clock, the reference clock showed `offset_ns` more, or less by up to `error_ns`."""

    at_ns: int
    offset_ns: int
    error_ns: int


def new_key() -> bytes:
    """For one server and its clients."""
    return secrets.token_bytes(32)


class Server:
    """Tells this host's time to whoever knows `key`, at each of the listeners, which it closes."""

    def __init__(self, listeners: Sequence[socket.socket], key: bytes, clock: Callable[[], int] = now) -> None:
        self._listeners, self._key, self._clock = listeners, key, clock
        self._served = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, None] = {}  # in the order in which they came

    def serve(self, clients: int, patience_s: float = PATIENCE_S) -> None:
        """Until so many clients have read the time. Raises TimeoutError if they have not by `patience_s`."""
        acceptors = [
            threading.Thread(target=self._accept, args=(listener,), daemon=True) for listener in self._listeners
        ]
        for acceptor in acceptors:
            acceptor.start()
        deadline = time.monotonic() + patience_s
        try:
            for served in range(clients):
                if not self._served.acquire(timeout=max(deadline - time.monotonic(), 0)):
                    raise TimeoutError(
                        f"{clients - served} of {clients} hosts have not synchronized their clocks with this host within "
                        f"{patience_s:.0f} s\nhint: make sure that all hosts reach {' and '.join(map(_shown, self._listeners))} by TCP, "
                        "or give an address that they can reach with --clock-address"
                    )
        finally:
            for listener in self._listeners:
                # This wakes the acceptor, which closing alone does not.
                listener.shutdown(socket.SHUT_RDWR)
                listener.close()
            for acceptor in acceptors:
                acceptor.join()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.EBADF):  # it is closed: all have come
                    return
                time.sleep(0.01)  # no descriptors are left, or the peer has gone already
                continue
            with self._lock:
                oldest = next(iter(self._strangers)) if len(self._strangers) >= _MOST_STRANGERS else None
                self._strangers[peer] = None
                if oldest is not None:
                    del self._strangers[oldest]
                    with contextlib.suppress(OSError):  # it may have hung up
                        oldest.shutdown(socket.SHUT_RDWR)
            threading.Thread(target=self._attend, args=(peer,), daemon=True).start()

    def _attend(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer:  # a stranger, or a client that will come again
            try:
                _introduce(peer, self._key, b"server", b"client")
            finally:
                with self._lock:
                    self._strangers.pop(peer, None)
            while (word := peer.recv(1)) == b"?":
                peer.sendall(_TIME.pack(self._clock()))
            if word == b".":
                self._served.release()


def read(
    address: tuple[str, int],
    key: bytes,
    rounds: int = ROUNDS,
    clock: Callable[[], int] = now,
    patience_s: float = PATIENCE_S,
) -> Reading:
    """Compares this host's clock with the one served at `address`.

    Raises ConnectionError or TimeoutError if nobody who knows `key` is there within `patience_s`."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return _read(address, key, rounds, clock)
        except OSError as error:
            if time.monotonic() >= deadline:
                raise ConnectionError(
                    f"cannot read the clock of rank 0's host at {address[0]} port {address[1]}: {error}\n"
                    "hint: make sure that this host can reach it by TCP, or give an address that it can reach with --clock-address"
                ) from None
            time.sleep(0.2)


def _read(address: tuple[str, int], key: bytes, rounds: int, clock: Callable[[], int]) -> Reading:
    best: Reading | None = None
    with socket.create_connection(address, timeout=SILENCE_S) as peer:
        _introduce(peer, key, b"client", b"server")
        for _ in range(rounds):
            sent = clock()
            peer.sendall(b"?")
            (there,) = _TIME.unpack(_receive(peer, _TIME.size))
            received = clock()
            middle = (sent + received) // 2
            reading = Reading(middle, there - middle, (received - sent + 1) // 2)
            if best is None or reading.error_ns < best.error_ns:
                best = reading
        # The server counts those who have read all that they wanted.
        peer.sendall(b".")
    assert best is not None, "there is at least one round"
    return best


def _introduce(peer: socket.socket, key: bytes, me: bytes, other: bytes) -> None:
    """Shows that this end knows the key, and has the other end show it. The roles are part of the answers: none can be sent back."""
    deadline = time.monotonic() + SILENCE_S
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.settimeout(SILENCE_S)
    mine = secrets.token_bytes(_CHALLENGE_BYTES)
    peer.sendall(mine)
    theirs = _receive(peer, _CHALLENGE_BYTES, deadline)
    peer.sendall(_answer(key, me, theirs, mine))
    if not hmac.compare_digest(_receive(peer, _ANSWER_BYTES, deadline), _answer(key, other, mine, theirs)):
        raise ConnectionError("the peer does not have the key of this run")
    # From here on the kernel keeps the time: Python's own time-outs ask it twice for every word.
    peer.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        peer.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", SILENCE_S, 0))


def _answer(key: bytes, role: bytes, challenge: bytes, own: bytes) -> bytes:
    return hmac.digest(key, role + challenge + own, "sha256")


def _receive(peer: socket.socket, size: int, deadline: float | None = None) -> bytes:
    data = b""
    while len(data) < size:
        if deadline is not None:
            # Who sends a byte now and then does not keep its connection.
            peer.settimeout(max(deadline - time.monotonic(), 1e-3))
        chunk = peer.recv(size - len(data))
        if not chunk:
            raise ConnectionError("the peer has closed the connection")
        data += chunk
    return data


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{host} port {port}"
