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

    `progress` is called ten times a second at most, with the virtual time in seconds and the number of completed
    operations. An exception of `progress`, or of a signal's handler during the call, ends the simulation.

    Returns the command's exit code, its standard error, and for a simulation that reached its end the run folder and
    the text of its report.
    """

def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent dies; if the parent is already dead, the process ends at
    once."""

def attach_gpus(own: int, gpus: Sequence[Mapping[str, Any]], link: int = 0, communication: int = 0) -> None:
    """Gives this process the simulated GPUs of its host (`Gpu` of `crates/host/src/live/phantom.rs`), of which `own` is
    its rank's.

    `link` is the address of the structure through which the simulated GPU library records launches, `communication` of
    the one through which it communicates (`Link` and `Communication` of `crates/abi/src/gpus.rs`). Without a
    link all launched work completes at once; without `communication` there are no communicators.
    """

def open_memory() -> None:
    """Allows processes of the same user to write into this process's memory from now on."""

def write_memory(process: int, pieces: Sequence[tuple[int, int, int]]) -> None:
    """Copies pieces of this process's memory into another process's memory; each piece is source address, destination
    address, length.

    Raises:
        OSError: The memory does not exist, or this user has no such process.
    """

class TritonKernel:
    """A Triton kernel that is interpreted on this process's memory.

    Args:
        text: The kernel's TTIR, Triton's intermediate representation.

    Raises:
        ValueError: The text is no TTIR, or contains an unsupported operation.
    """

    def __init__(self, text: str) -> None: ...
    def __len__(self) -> int:
        """Number of the kernel's arguments."""

    def written(self) -> list[int] | None:
        """Positions of the arguments that the kernel may write to. `None`: all."""

    def run(
        self, arguments: Sequence[int | float], grid: tuple[int, int, int], uncomputed: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Runs all programs of the grid, one after the other.

        Args:
            arguments: Values; for a tensor its address.
            grid: Number of programs along each axis.
            uncomputed: Address ranges, from and up to, of values that were not computed.

        Returns:
            Address ranges of written values that may depend on uncomputed ones.

        Raises:
            RuntimeError: The arguments do not match the kernel.
        """

    def work(
        self, arguments: Sequence[int | float], grid: tuple[int, int, int], memory: Sequence[tuple[int, int]]
    ) -> tuple[Sequence[int], Sequence[int], int, int, Sequence[tuple[int, int]]] | None:
        """Work of all programs of the grid together. Nothing is written.

        Args:
            arguments: Values; for a tensor its address.
            grid: Number of programs along each axis.
            memory: Address ranges, from and up to, of the tensors' storages: no more bytes of a storage are counted
            than it has.

        Returns:
            Floating-point operations of GEMMs: in 8 bits, in 16, in 32 as TF32, and in 32; scalar operations of up to
            32 bits, and of 64; bytes read and written, each counted once; and address ranges, from and up to, of the
            integers that these figures depend on. `None`: the figures depend on values that are not available, such as
            floating-point numbers, or the kernel does not seem to end.
        """

def combines(reduce: str, dtype: str) -> bool:
    """Whether the channel itself reduces elements of this type, with the same bits as torch."""

MEMORY_KINDS: dict[str, int]
"""Numbers of the kinds of memory in the stream of captured operators, by name."""

def check_capture(address: int) -> None:
    """Raises `RuntimeError` if the C++ library, whose table of functions is at `address`, was built from other sources."""

def scalar_type(name: str) -> int:
    """Returns the number of a dtype in torch's C++ code (`c10::ScalarType`), by its name without `torch.`."""

def set_libraries(beginnings: Sequence[str], python: str) -> None:
    """Sets the code that is not the user's: files whose names have one of these beginnings, and the standard library's
    folder `python`, except the packages that are installed in that folder."""

def user_line() -> str:
    """The user's line that is being executed, as "path:line"."""

@final
class ClockServer:
    """Serves this host's time (CLOCK_MONOTONIC) over encrypted connections to hosts that know `token`, until the object
    is deleted."""

    def __init__(self, addresses: Sequence[str], token: bytes) -> None:
        """Listens at a free port of each address. Raises OSError, with the address as its file name, if an address
        belongs to another machine."""

    @property
    def addresses(self) -> list[str]:
        """Addresses of the listening sockets, as "HOST:PORT": one for each given address."""

    def expect(self, names: Sequence[str]) -> None:
        """Allows hosts of these names to read the clock from now on, each of them once."""

    def wait(self, timeout_s: float) -> str | None:
        """Name of the next host that has finished reading the clock; None after the timeout."""

def read_clock(address: str, token: bytes, name: str, rounds: int) -> tuple[int, int, int]:
    """Compares this host's clock with the clock that is served at `address` ("HOST:PORT"), for the host `name`.

    Returns, in nanoseconds, the time by this host's clock, the other clock's lead at that time, and the error bound of
    the lead. Raises ConnectionError if the clock cannot be read now, ValueError if the other side is of another
    version.
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
    """A signal, and the descriptor to which the signal's handler writes the stacks of all threads."""

    captures: bool
    """Whether the driver wants to know which operators this rank runs."""
    is_inside: bool
    """Whether the calling thread does the simulator's work and not the program's, as it also does before `start`."""

    @staticmethod
    def adopt(fd: int, rank: int, world_size: int) -> Channel:
        """Adopts this rank's socket and the shared arena, in a freshly forked rank. Compute is not yet measured."""
    @staticmethod
    def of_child() -> Channel | None:
        """The channel of a child process of a rank, if this extension was loaded before the C library.

        The process communicates only with itself.
        """
    arena_descriptor: int | None
    """The descriptor of the file that holds the ranks' data, if this process has it."""

    def lend(self) -> None:
        """Marks this process as the only program of the run, which owns the GPUs of all ranks."""
    def borrow(self, arena: str) -> None:
        """Marks this process as started by the only program of the run, whose arena is the file `arena`; the process
        belongs to the rank whose GPU it uses first."""
    def start(self) -> None:
        """Marks the start of the script: compute is measured and charged from now on."""
    def finish(self, ok: bool) -> None:
        """Marks the end of the script and sends outstanding requests; call it once, from the main thread."""
    def lacks_memory(self, wanted: int, available: int, line: str) -> None:
        """Reports that the program needs `wanted` bytes for a tensor and this machine has only `available`: the driver
        ends the run.

        The caller ends the process.
        """
    def lacks_values(self, text: str) -> None:
        """Reports an operator or kernel whose values are not computed, described by `text`: the driver ends the run.

        The caller ends the process.
        """
    def enter(self) -> None:
        """Marks this thread's work as the simulator's until the matching `leave`: none of its time is charged.
        Nests."""
    def leave(self) -> None: ...
    def capture(self, functions: int) -> None:
        """From here on the program's operators are those that the C++ library captures; call it once, before `start`.

        `functions` is the address that `uniference_capture_functions` of `cpp/capture.cpp` returns.
        """
    def available_memory(self) -> int:
        """The address of a function that returns the free bytes of this machine's memory; the largest number means
        unknown."""
    def calls(self) -> tuple[int, int, int, int]:
        """What the C++ backend carries out collectives with (`uniference_backend_begin` of `cpp/capture.cpp`): addresses of the client
        and of three functions. One that did not end well it asks Python for: `run` then returns how it has ended.
        """
    def communication(self, functions: int) -> int:
        """Returns the address of the table by which simulated GPUs communicate, which stays; `functions` as in `capture`."""
    def device_link(self, functions: int) -> int:
        """Returns the address of the `Link` (`crates/abi/src/gpus.rs`) by which simulated GPUs write down work on streams and
        ask about it, which stays; `functions` as in `capture`."""
    def has_in_flight(self, some: bool) -> None:
        """Whether there are operations that later waits deliver: then the C++ backend tells Python of the end of each of its calls."""

    # Time
    def now(self) -> int:
        """The rank's clock. The call blocks until the engine's time has reached the clock, and costs the rank 1 us."""
    def sleep(self, duration: int) -> None: ...
    def begin_range(self, name: str) -> int:
        """Begins a named range of the thread; returns the range's number. Calls for ranges cost nothing and do not
        block."""
    def end_range(self, number: int) -> None:
        """Ends thread range `number`. Any thread may call this."""
    def open_range(self, name: str) -> int:
        """Begins a named range that may overlap others; returns the range's number."""
    def close_range(self, number: int) -> None:
        """Ends rank range `number`. Any thread may call this."""

    def warn(self, text: str) -> None:
        """Adds a warning to the report; repeated texts are listed once. Costs nothing and does not block."""

    # Operations. `site` is the user's line as "path:line". Each returns a handle.
    def group(self, ranks: Sequence[int], nccl: bool = False, rendezvous: bool = False) -> int:
        """Names a process group by its members, in order. Groups of the same ranks are counted by the channel.

        With `nccl` the settings of NCCL in the environment apply to the group. With `rendezvous` the group's messages wait for their
        receives even if the cluster's backend would send them at once.
        """
    def name_group(self, name: str, members: int, call: str, site: str) -> None:
        """Announces that this rank is about to create a process group of `members` ranks by `call`, whose members find
        each other by `name`. The run ends with an error if another rank has used the name with another call, except if
        both groups have one member."""
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
        """Combines `collective`, `wait` and `deliver`, for elements that `combines` accepts. Without `output` the
        result replaces the input. Returns whether the call ended before the timeout; the rank that has closed a
        connection, so that the call failed; and whether a sender's values were not computed, in which case the output
        is unchanged."""
    def send(self, group: int, to: int, tag: int, input: Sequence[Tensor], has_values: bool, site: str) -> int:
        """Issues a send of `input`; only of its size if it has no values."""
    def recv(self, group: int, source: int | None, tag: int, nbytes: int, site: str) -> int: ...
    def write(self, to: int, nbytes: int, site: str) -> int:
        """Issues a write of `nbytes` into the memory of another rank of the world, which is not involved. Only the size
        counts."""
    def wait(self, handles: Sequence[int], timeout: int | None, any: bool, site: str) -> list[int] | None:
        """Blocks until all (any) of the handles are complete; returns the complete ones, or None after `timeout`.

        A handle that was once returned as complete stays complete: waiting for it again is free.
        """
    def take_over(self) -> list[int]:
        """Complete or failed operations that the driver has announced and no wait has reported; each once.

        The call costs no virtual time and sends the driver nothing.
        """
    def poll(self, handle: int) -> bool:
        """Whether the operation is complete. Costs 1 us if it is not."""
    def folds(self, handle: int) -> list[tuple[int, int, int]]:
        """Pending folds of a complete reduction that the channel cannot combine (`combines`): (destination, source,
        nbytes) in the arena.

        Do destination = destination op source for each fold, in order, then call `folded`: the other members wait for
        it, so do nothing else in between. The list is empty unless this rank was chosen to reduce for the group. Each
        fold is returned once.
        """
    def folded(self, handle: int) -> None:
        """Marks the folds as done: the other members may read the result."""
    def deliver(self, handle: int, output: Sequence[Tensor]) -> tuple[int | None, bool]:
        """Copies the data of a complete operation to `output`, reduces it if necessary, and forgets the operation.

        Nothing is written if this rank receives nothing. Returns the group rank whose data a receive has got, and
        whether the sender's values were not computed.
        """
    def closed_by(self, handle: int) -> int | None:
        """World rank that has closed a connection, so that a complete operation has failed; the operation is then
        forgotten.

        None: the operation has not failed, and can be delivered.
        """
    def release(self, handle: int) -> None:
        """Forgets an operation, complete or not: its error has been raised, and its data is not needed any more."""
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
        """The whole shared arena, writable. It is sparse and far larger than memory: only touched pages use memory."""

# Chakra execution traces: public as `uniference.chakra`.

_Default = TypeVar("_Default")

class TraceError(ValueError):
    """A file is not a valid trace, or a trace cannot be written; the message says what is wrong, where, and what to do.

    Errors of the operating system about a file are `OSError`s.
    """

@final
class Attributes:
    """The attributes of a node or of a trace, by name, in the order of the file.

    A mapping whose values are bool, int, float, str, bytes, lists of one of these, or None for an attribute without a
    value. The schema has several types of integers: assigning keeps the attribute's type and raises OverflowError if
    the type cannot hold the value. A value of another kind replaces the type. A new int is an `int64`, or a `uint64` if
    only that type can hold it, a float a `double`. If the file has an attribute twice, the first one with a value
    counts; assigning removes the others.
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
        """The type of an attribute, in the form that `set` accepts; None if the attribute has no value."""
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

    Times are in microseconds. `inputs` and `outputs` are None or `(values, shapes, types)`, each as Python's `repr`
    writes it. Dependencies are tuples of ids: assign a new tuple to change them. Nodes of a reader are the caller's:
    changing a node does not change the reader's file.
    """

    id: int
    name: str
    type: int
    """A `NodeType`; a plain number, so that types of later versions of the schema are kept."""
    start_time_micros: int
    duration_micros: int
    """Assigning it removes the attribute `uniference_duration_ps`, which the traces of Uniference have and which takes
    precedence."""
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
        """Whether the node runs on the CPU. False if the trace does not say."""
    @property
    def num_ops(self) -> int | None:
        """Number of floating-point operations. This and the following attributes accept any integer type, and are None
        if the trace lacks them."""
    @property
    def tensor_size(self) -> int | None:
        """Bytes that a compute or memory node moves."""
    @property
    def comm_type(self) -> int | None:
        """A `CommType`."""
    @property
    def comm_size(self) -> int | None:
        """Bytes; for an all-gather, the size of each rank's shard."""
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
    """The header of a trace: `ChakraProtoMsg.GlobalMetadata`."""

    version: str
    def __init__(self, version: str = "1.0.0", attr: Mapping[str, Any] | None = None) -> None: ...
    @property
    def attr(self) -> Attributes: ...

@final
class TraceReader:
    """Iterates over the nodes of a trace in the order of the file, one in memory at a time.

    Raises TraceError, on opening or while iterating, if the file is no trace, truncated or damaged.
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
    """Writes a trace node by node. The file gets its name when `close` succeeds, at the latest at the end of a `with`
    block; a block that ends by an exception leaves no file, and replaces none.

    The same nodes give the same bytes, compressed or not. Raises TraceError for a second node with the same id.
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
    """Gives a trace's nodes in an order in which they can be carried out: a node is issuable once all nodes that it
    depends on, data and control, are complete. Dependencies on nodes that the file lacks count as met.

    At most 65,536 nodes are held that have been read and not given out; more only if nodes depend on nodes further on
    in the file. Raises TraceError if the trace cannot be read, two nodes have the same id, or nodes depend on each
    other in a cycle.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None: ...
    @property
    def metadata(self) -> Metadata: ...
    def has_nodes(self) -> bool:
        """Whether any node is not complete."""
    def next_issuable(self) -> Node | None:
        """The issuable node with the lowest id; None if no node is issuable until another node is complete."""
    def push_back(self, id: int) -> None:
        """Makes an issued node issuable again. Raises KeyError for a node that is not issued."""
    def lookup(self, id: int) -> Node:
        """A node that is issued and not complete; KeyError for any other."""
    def complete(self, id: int) -> None:
        """Marks an issued node as complete: nodes that only waited for it become issuable. Raises KeyError for a node
        that is not issued."""
