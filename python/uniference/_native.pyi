"""The Rust extension, as Python sees it. Times are integer picoseconds of virtual time, sizes are bytes."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, final, overload

from torch import Tensor

def cli(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit code."""

def carry_out(
    argv: Sequence[str], progress: Callable[[float, int], object] | None = None
) -> tuple[int, str, tuple[os.PathLike[str], str] | None]:
    """Carries out `uniference replay` or `uniference workload ... --run` inside this process; `argv` begins with the command's name.

    `progress` is called ten times a second at most, with the virtual time in seconds and the number of operations that have completed.
    What it raises, and what the handler of a signal raises meanwhile, ends the simulation.

    Returns the command's exit code, what it would have written to standard error, and of a simulation that has come to its end the
    folder of its results and the text of its report.
    """

def die_with_parent() -> None:
    """The kernel kills this process when its parent dies; if that has already happened, it ends at once."""

def attach_gpus(own: int, gpus: Sequence[Mapping[str, Any]], link: int = 0, communication: int = 0) -> None:
    """Gives this process the simulated GPUs of its host (`Gpu` of `crates/host/src/live/phantom.rs`), of which `own` is its rank's.

    `link` is the address of what the library of them writes to, `communication` of what it communicates by (`Link` and `Communication` of
    `crates/protocol/src/phantom.rs`); without a link all that is launched has ended at once, without the other there are no communicators.
    """

def open_memory() -> None:
    """From here on processes of the same user may write into this one's memory."""

def write_memory(process: int, pieces: Sequence[tuple[int, int, int]]) -> None:
    """Copies pieces of this process's memory into that of another one: of each where it lies here and there, and its length.

    Raises:
        OSError: There is no such memory, or no such process of this user.
    """

class TritonKernel:
    """A kernel of Triton that is run on this process's memory.

    Args:
        text: Its TTIR, Triton's intermediate representation.

    Raises:
        ValueError: It is no TTIR, or has something in it that is not known here.
    """

    def __init__(self, text: str) -> None: ...
    def __len__(self) -> int:
        """How many arguments it takes."""

    def written(self) -> list[int] | None:
        """The places of arguments that it may write to. `None`: all."""

    def run(
        self, arguments: Sequence[int | float], grid: tuple[int, int, int], absent: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Runs all programs of the grid, one after the other.

        Args:
            arguments: Of a tensor its address.
            grid: How many programs there are along each axis.
            absent: Addresses, from and up to, of values that were not computed.

        Returns:
            Addresses of what was written that may depend on them.

        Raises:
            RuntimeError: The arguments are not those of the kernel.
        """

    def work(
        self, arguments: Sequence[int | float], grid: tuple[int, int, int], memory: Sequence[tuple[int, int]]
    ) -> tuple[Sequence[int], Sequence[int], int, int, Sequence[tuple[int, int]]] | None:
        """What all programs of the grid do together. Nothing is written.

        Args:
            arguments: Of a tensor its address.
            grid: How many programs there are along each axis.
            memory: Addresses, from and up to, of what the tensors lie in: of it no more is accessed than there is.

        Returns:
            Floating-point operations of products of matrices: of numbers of 8 bits, of 16, of 32 as TF32, and of 32; operations on single
            numbers of up to 32 bits, and of 64; bytes that are read and written, each once; and addresses, from and up to, of integers that
            decide all this. `None`: what is not there decides it, as numbers of floating point, or the kernel does not seem to end.
        """

def combines(reduce: str, dtype: str) -> bool:
    """Whether the channel combines such elements itself, with torch's bits."""

def set_libraries(beginnings: Sequence[str], python: str) -> None:
    """Sets the code that is not the user's: files whose names have one of these beginnings, and the standard library's folder
    `python`, except the packages that are installed in it."""

def user_line() -> str:
    """The user's line that is being executed, as "path:line"."""

@final
class ClockServer:
    """Tells this host's time (CLOCK_MONOTONIC) over encrypted connections to hosts that know `token`, while it lives."""

    def __init__(self, addresses: Sequence[str], token: bytes) -> None:
        """Listens at a free port of each address. Raises OSError, with the address as its file name, for one of another machine."""

    @property
    def addresses(self) -> list[str]:
        """Where it listens, as "HOST:PORT": one for each address that it was given."""

    def expect(self, names: Sequence[str]) -> None:
        """From here on hosts of these names may read the clock, each of them once."""

    def wait(self, timeout_s: float) -> str | None:
        """The next host that has read all that it wanted; None: there was none in time."""

def read_clock(address: str, token: bytes, name: str, rounds: int) -> tuple[int, int, int]:
    """Compares this host's clock with the one that is served at `address` ("HOST:PORT"), for the host of this name.

    Returns, in nanoseconds, the time by this host's clock, how much more the other clock showed then, and by how much that may be wrong.
    Raises ConnectionError if the clock cannot be read now, ValueError if the other side is of another version.
    """

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

    captures: bool
    """Whether the driver wants to know which operators this rank runs."""
    is_inside: bool
    """Whether the calling thread does our work and not the program's, as it also does before `start`."""

    @staticmethod
    def adopt(fd: int, rank: int, world_size: int) -> Channel:
        """Takes over this rank's socket and the shared arena, in a freshly forked rank. Compute is not yet measured."""
    @staticmethod
    def of_relative() -> Channel | None:
        """That of a process which a rank has started, where this extension was loaded before the C library.

        Its communication is with itself alone.
        """
    arena_descriptor: int | None
    """The descriptor of the file in which the ranks' data is, if this process has it."""

    def lend(self) -> None:
        """This is the only program, with the GPUs of all ranks."""
    def borrow(self, arena: str) -> None:
        """This process was started by such a program, whose ranks' data is in this file: it is of the rank whose GPU it uses first."""
    def start(self) -> None:
        """The script's first statement comes next: from here on compute is measured and charged."""
    def finish(self, ok: bool) -> None:
        """The script has ended. Sends what is outstanding; call it once, from the main thread."""
    def lacks_memory(self, wanted: int, available: int, line: str) -> None:
        """This machine has only `available` of the bytes that the program wants for a tensor: the driver ends the run.

        The caller ends the process.
        """
    def lacks_values(self, text: str) -> None:
        """The program has run an operator or kernel whose values are not computed, as `text` says: the driver ends the run.

        The caller ends the process.
        """
    def enter(self) -> None:
        """From here to the matching `leave` this thread does our work, not the program's: none of its time is charged. Nests."""
    def leave(self) -> None: ...
    def capture(self, take: int, inside: int, thread: int, log: int, compiling: int) -> None:
        """From here on the program's operators are those that the C++ extension writes down; call it once, before `start`.

        The arguments are the addresses of `uniference_capture_take`, `_inside`, `_thread`, `_log` and `_is_compiling`
        (`cpp/capture.cpp`), in a library that stays.
        """
    def available_memory(self) -> int:
        """The address of a function that says how many bytes of this machine's memory are left; the largest number: it is not known."""
    def calls(self) -> tuple[int, int, int, int]:
        """What the C++ backend carries out collectives with (`uniference_backend_begin` of `cpp/capture.cpp`): addresses of the client
        and of three functions. One that did not end well it asks Python for: `run` then returns how it has ended.
        """
    def communication(self, combine: int, scale: int, site: int, is_large: int) -> int:
        """The address of what a library of simulated GPUs communicates by. It stays; the others are addresses of the functions
        `uniference_capture_combine`, `_scale`, `_site` and `_is_large` of `cpp/capture.cpp`."""
    def device_link(self, launches: int) -> int:
        """The address of the `Link` (`crates/protocol/src/phantom.rs`) by which a library of simulated GPUs writes down what a program
        hands to streams, and asks about them. It stays; `launches` is what `uniference_capture_launches` of `cpp/capture.cpp` has returned.
        """
    def has_in_flight(self, some: bool) -> None:
        """Whether there are operations that later waits deliver: then the C++ backend tells Python of the end of each of its calls."""
    def operators(self, slice: bytes) -> None:
        """The program has run these operators on this thread, for which there is no extension.

        The bytes are those that `crates/formats/src/operators/mod.rs` describes, definitions and sites first. They belong to the
        compute before the thread's next call.
        """

    # Time
    def now(self) -> int:
        """The rank's clock. Holds the rank until the engine's time has reached it, and costs it 1 us."""
    def sleep(self, duration: int) -> None: ...
    def begin_range(self, name: str) -> int:
        """Begins a named range of the thread; returns the range's number. Calls for ranges cost nothing and do not block."""
    def end_range(self, number: int) -> None:
        """Ends thread range `number`. Any thread may call this."""
    def open_range(self, name: str) -> int:
        """Begins a named range that may overlap others; returns the range's number."""
    def close_range(self, number: int) -> None:
        """Ends rank range `number`. Any thread may call this."""

    def warn(self, text: str) -> None:
        """Puts a warning into the report, once however often it is said. Costs nothing and does not block."""

    # Operations. `site` is the user's line as "path:line". Each returns a handle.
    def group(self, ranks: Sequence[int], nccl: bool = False, rendezvous: bool = False) -> int:
        """Names a process group by its members, in order. Counts the groups of the same ranks itself.

        With `nccl` the settings of NCCL in the environment apply to the group. With `rendezvous` the group's messages wait for their
        receives even if the cluster's backend would send them at once.
        """
    def name_group(self, name: str, call: str, site: str) -> None:
        """Announces that this rank is about to create a process group by `call`, whose members find each other by `name`. The run ends
        with an error if another rank has used the name with another call."""
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
    ) -> tuple[bool, int | None, bool]:
        """`collective`, `wait` and `deliver` in one, of elements that `combines` names. Without `output` it
        replaces the input. Returns whether it was in time, who has closed its end of a connection: then it has failed; and whether a
        sender's values were not computed: then the output is as it was."""
    def send(self, group: int, to: int, tag: int, input: Sequence[Tensor], has_values: bool, site: str) -> int:
        """Issues a send of `input`; of its size alone if it has no values."""
    def recv(self, group: int, source: int | None, tag: int, nbytes: int, site: str) -> int: ...
    def write(self, to: int, nbytes: int, site: str) -> int:
        """Issues a write of so many bytes into the memory of another rank of the world, which takes no part. Only their number counts."""
    def wait(self, handles: Sequence[int], timeout: int | None, any: bool, site: str) -> list[int] | None:
        """Blocks until all (any) of the handles are complete; returns those that are, or None after `timeout`.

        A handle that was once returned as complete stays complete: waiting for it again is free.
        """
    def take_over(self) -> list[int]:
        """Operations that are complete or have failed, as answers up to now have said, and that no wait has reported; each once.

        It costs no virtual time and asks the driver nothing.
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
    def deliver(self, handle: int, output: Sequence[Tensor]) -> tuple[int | None, bool]:
        """Copies the data of a complete operation to `output`, combines it where it has to be, and forgets the operation.

        Nothing is written if this rank receives nothing. Returns from which group rank a receive has its data.
        """
    def closed_by(self, handle: int) -> int | None:
        """Which rank of the world has closed a connection, so that a complete operation has failed; it is then forgotten.

        None: it has not failed, and can be delivered.
        """
    def release(self, handle: int) -> None:
        """Forgets an operation, complete or not: its error has been raised, and nobody will ask for its data."""
    def abort(self, group: int) -> None:
        """Aborts a group on this rank: the rank's outstanding and future operations in the group fail, and name this rank as the cause."""
    def close(self, group: int) -> None:
        """Closes this rank's connections of a group. Other ranks get an error only if this rank has aborted the group or a rank crashed."""

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

# Chakra execution traces: public as `uniference.chakra`.

_Default = TypeVar("_Default")

class TraceError(ValueError):
    """A file is no trace, or cannot be one; the message says what is wrong, where, and what to do.

    What the operating system says about a file is an `OSError`.
    """

@final
class Attributes:
    """The attributes of a node or of a trace, by name, in the order of the file.

    A mapping whose values are bool, int, float, str, bytes, lists of one of these, or None for an attribute without a value. The
    schema has several types of integers: assigning keeps the type that an attribute has and raises OverflowError where it cannot
    hold the value. A value of another kind replaces the type. A new int is an `int64`, or a `uint64` where only that holds it, a
    float a `double`. Of attributes that are in the file twice, the first that has a value counts; assigning removes the others.
    """

    def __len__(self) -> int: ...
    def __contains__(self, name: str) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, name: str) -> Any:
        """Raises KeyError if there is no attribute of this name."""
    def __setitem__(self, name: str, value: Any) -> None: ...
    def __delitem__(self, name: str) -> None: ...
    def set(self, name: str, value: Any, type: str) -> None:
        """Assigns with a type of the schema's `AttributeProto`, by its name without `_val`: `uint64`, `float_list`."""
    def type_of(self, name: str) -> str | None:
        """The type of an attribute, as `set` takes it; None if it has no value."""
    @overload
    def get(self, name: str) -> Any: ...
    @overload
    def get(self, name: str, default: _Default) -> Any | _Default: ...
    def keys(self) -> list[str]: ...
    def values(self) -> list[Any]: ...
    def items(self) -> list[tuple[str, Any]]: ...
    def update(self, other: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None: ...

@final
class Node:
    """One operation of one rank: `ChakraProtoMsg.Node`.

    Times are in microseconds. `inputs` and `outputs` are None or `(values, shapes, types)`, each as Python's `repr` writes it.
    Dependencies are tuples of ids: assign a new one to change them. Nodes of a reader are the caller's: changing one does not
    change its file.
    """

    id: int
    name: str
    type: int
    """A `NodeType`; a plain number, so that those of later versions of the schema survive."""
    start_time_micros: int
    duration_micros: int
    """Assigning it removes the attribute `uniference_duration_ps`, which the traces of Uniference have and which would count first."""
    inputs: tuple[str, str, str] | None
    outputs: tuple[str, str, str] | None
    @property
    def data_deps(self) -> tuple[int, ...]: ...
    @data_deps.setter
    def data_deps(self, ids: Iterable[int]) -> None: ...
    @property
    def ctrl_deps(self) -> tuple[int, ...]: ...
    @ctrl_deps.setter
    def ctrl_deps(self, ids: Iterable[int]) -> None: ...
    def __init__(
        self,
        id: int,
        name: str,
        type: int,
        *,
        data_deps: Iterable[int] = (),
        ctrl_deps: Iterable[int] = (),
        start_time_micros: int = 0,
        duration_micros: int = 0,
        inputs: tuple[str, str, str] | None = None,
        outputs: tuple[str, str, str] | None = None,
        attr: Mapping[str, Any] | None = None,
    ) -> None: ...
    @property
    def attr(self) -> Attributes:
        """The attributes themselves, not a copy."""
    @property
    def is_cpu_op(self) -> bool:
        """Whether it runs on the host's processor. False where the trace does not say."""
    @property
    def num_ops(self) -> int | None:
        """Floating-point operations; like the following, of any type of integer, and None where the trace does not say."""
    @property
    def tensor_size(self) -> int | None:
        """Bytes that a compute or memory node moves."""
    @property
    def comm_type(self) -> int | None:
        """A `CommType`."""
    @property
    def comm_size(self) -> int | None:
        """Bytes; of an all-gather, each rank's shard."""
    @property
    def comm_src(self) -> int | None: ...
    @property
    def comm_dst(self) -> int | None: ...
    @property
    def comm_tag(self) -> int | None: ...
    @property
    def pg_name(self) -> str | None:
        """The name of the process group; None for all ranks."""
    def copy(self) -> Node: ...

@final
class Metadata:
    """What a trace says about itself: `ChakraProtoMsg.GlobalMetadata`."""

    version: str
    def __init__(self, version: str = "1.0.0", attr: Mapping[str, Any] | None = None) -> None: ...
    @property
    def attr(self) -> Attributes: ...

@final
class TraceReader:
    """Iterates over the nodes of a trace in the order of the file, one in memory at a time.

    Raises TraceError, here or while iterating, where the file is no trace, cut short or damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None: ...
    @property
    def metadata(self) -> Metadata: ...
    def close(self) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Node: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class TraceWriter:
    """Writes a trace node by node. The file has its name once `close` has succeeded, at the latest at the end of a `with` block; a
    block that an exception ends leaves no file, and replaces none.

    The same nodes give the same bytes, compressed or not. Raises TraceError for a second node of the same id.
    """

    def __init__(
        self, path: str | os.PathLike[str], metadata: Metadata | None = None, *, gzip: bool = False
    ) -> None: ...
    def write(self, node: Node) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class Feeder:
    """Gives a trace's nodes in an order in which they can be carried out: a node is issuable once all nodes that it depends on,
    data and control, are complete. Dependencies on nodes that the file does not have count as met.

    At most 65,536 nodes are held that have been read and not given out; more only where nodes depend on nodes that stand further on
    in the file. Raises TraceError where the trace cannot be read, two nodes have one id, or nodes depend on each other in a cycle.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None: ...
    @property
    def metadata(self) -> Metadata: ...
    def has_nodes(self) -> bool:
        """Whether any node is not complete."""
    def next_issuable(self) -> Node | None:
        """The issuable node with the lowest id; None while there is none until another node is complete."""
    def push_back(self, id: int) -> None:
        """Makes an issued node issuable again. Raises KeyError for a node that is not issued."""
    def lookup(self, id: int) -> Node:
        """A node that is issued and not complete; KeyError for any other."""
    def complete(self, id: int) -> None:
        """An issued node is done: nodes that only waited for it become issuable. Raises KeyError for a node that is not issued."""
