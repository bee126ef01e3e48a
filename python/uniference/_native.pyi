"""The Rust extension, as Python sees it. Times are integer picoseconds of virtual time, sizes are bytes."""

from collections.abc import Sequence
from typing import final

from torch import Tensor

def cli(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit code."""

def die_with_parent() -> None:
    """The kernel kills this process when its parent dies; if that has already happened, it ends at once."""

def combines(reduce: str, dtype: str) -> bool:
    """Whether the channel combines such elements itself, with torch's bits."""

def set_libraries(beginnings: Sequence[str]) -> None:
    """From here on code in files whose names begin so is not the user's."""

def user_line() -> str:
    """The user's line that is being executed, as "path:line"."""

@final
class Channel:
    """This rank's connection to the engine.

    Safe to use from every thread; each thread that makes a call is a task of its own to the engine. The interpreter's lock is
    released while a call blocks. If the run ends, a blocked call never returns: the process is ended from outside.
    """

    rank: int
    world_size: int
    stacks: tuple[int, int]
    """A signal, and the descriptor that all threads' stacks are to be written to when it comes."""

    @staticmethod
    def adopt(fd: int, rank: int, world_size: int) -> Channel:
        """Takes over this rank's socket and the shared arena, in a freshly forked rank. Compute is not yet measured."""
    def start(self) -> None:
        """The script's first statement comes next: from here on compute is measured and charged."""
    def finish(self, ok: bool) -> None:
        """The script has ended. Sends what is outstanding; call it once, from the main thread."""
    def enter(self) -> None:
        """From here to the matching `leave` this thread does our work, not the program's: none of its time is charged. Nests."""
    def leave(self) -> None: ...

    # Time
    def now(self) -> int:
        """The rank's clock. Holds the rank until the engine's time has reached it, and costs it 1 us."""
    def sleep(self, duration: int) -> None: ...
    def mark(self, name: str | None) -> None:
        """Opens a named range, or closes (None) the one opened last. Costs nothing and does not block."""

    # Operations. `site` is the user's line as "path:line". Each returns a handle.
    def group(self, ranks: Sequence[int]) -> int:
        """Names a process group by its members, in order. Counts the groups of the same ranks itself."""
    def collective(
        self,
        group: int,
        kind: str,
        dtype: str,
        reduce: str | None,
        root: int | None,
        shape: int | Sequence[int] | tuple[Sequence[int], Sequence[int]],
        input: Sequence[Tensor] | None,
        site: str,
    ) -> int:
        """Issues a collective and copies its input (None: this rank contributes nothing).

        `kind`: all_reduce reduce broadcast all_gather reduce_scatter all_to_all gather scatter barrier. `shape` in elements: one
        int is `Shape::Even`, a list `Shape::Blocks`, a pair of lists `Shape::Pairs` (crates/sim/src/program.rs).
        """
    def run(
        self,
        group: int,
        kind: str,
        dtype: str,
        reduce: str | None,
        root: int | None,
        shape: int | Sequence[int] | tuple[Sequence[int], Sequence[int]],
        input: Sequence[Tensor] | None,
        output: Sequence[Tensor] | None,
        timeout: int | None,
        site: str,
    ) -> tuple[bool, int | None]:
        """`collective`, `wait` and `deliver` in one, of elements that `combines` names. Without `output` it
        replaces the input. Returns whether it was in time, and who has closed its end of a connection: then it has failed."""
    def send(self, group: int, to: int, tag: int, input: Sequence[Tensor], site: str) -> int: ...
    def recv(self, group: int, source: int | None, tag: int, nbytes: int, site: str) -> int: ...
    def wait(self, handles: Sequence[int], timeout: int | None, any: bool, site: str) -> list[int] | None:
        """Blocks until all (any) of the handles are complete; returns those that are, or None after `timeout`.

        A handle that was once returned as complete stays complete: waiting for it again is free.
        """
    def poll(self, handle: int) -> bool:
        """Is it complete? Costs 1 us if it is not."""
    def folds(self, handle: int) -> list[tuple[int, int, int]]:
        """Of a complete reduction that the channel cannot combine (`combines`): (destination, source, nbytes) in the arena.

        First do destination = destination op source for each of these, in order, then call `folded`: the others wait for it, so
        nothing else comes in between. Empty unless this rank was picked to reduce for the group. Handed out once.
        """
    def folded(self, handle: int) -> None:
        """The folds are done: the other members may read."""
    def deliver(self, handle: int, output: Sequence[Tensor]) -> int | None:
        """Copies the data of a complete operation to `output`, combines it where it has to be, and forgets the operation.

        Nothing is written if this rank receives nothing. Returns from which group rank a receive has its data.
        """
    def closed_by(self, handle: int) -> int | None:
        """Which rank of the world has closed a connection, so that a complete operation has failed; it is then forgotten.

        None: it has not failed, and can be delivered.
        """
    def release(self, handle: int) -> None:
        """Forgets an operation, complete or not: its error has been raised, and nobody will ask for its data."""
    def close(self, group: int) -> None:
        """This rank closes its connections of a group: once a rank has crashed, others hear of it."""

    # Store. Blocking operations return None after `timeout`.
    def store_set(self, key: bytes, value: bytes) -> None: ...
    def store_get(self, key: bytes, timeout: int | None, site: str) -> bytes | None: ...
    def store_add(self, key: bytes, amount: int) -> int: ...
    def store_append(self, key: bytes, value: bytes) -> None: ...
    def store_compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes: ...
    def store_wait(self, keys: Sequence[bytes], timeout: int | None, site: str) -> bool:
        """False after `timeout`."""
    def store_check(self, keys: Sequence[bytes]) -> bool: ...
    def store_delete(self, key: bytes) -> bool: ...
    def store_count(self, prefix: bytes) -> int: ...
    def store_list(self, prefix: bytes) -> list[bytes]: ...
    def store_queue_push(self, key: bytes, value: bytes) -> None: ...
    def store_queue_pop(self, key: bytes, block: bool, timeout: int | None, site: str) -> bytes | None: ...
    def store_queue_length(self, key: bytes) -> int: ...
    def arena(self) -> memoryview:
        """The whole shared arena, writable: sparse, far larger than memory, touched pages count only."""
