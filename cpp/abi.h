// Owns the numbers and structures that C++ shares with Rust. Generated from crates/abi: change the source there, then run
// UNIFERENCE_WRITE=1 cargo test -p uniference-abi

#pragma once

#include <cstddef>
#include <cstdint>

namespace uniference {
namespace shared {

// The tag of an execution of definition 0; definition d has the tag `EXECUTION + d`.
constexpr static const uint64_t EXECUTION = 32;

// Launch flag: the operator whose execution follows launches the kernel or copy.
constexpr static const uint32_t LAUNCH_INSIDE = 1;

// Launch flag: the launch costs the host no time, as a node of a graph.
constexpr static const uint32_t LAUNCH_FREE = 2;

// Launch flag: the kernel only waits, for a number of nanoseconds that the entry has in place of bytes.
constexpr static const uint32_t LAUNCH_SPINS = 4;

// [`Call::reduction`] of an operation that does not reduce.
constexpr static const uint8_t NO_REDUCTION = 255;

// [`Call::timeout`] of a call without a timeout.
constexpr static const uint64_t NO_TIMEOUT = UINT64_MAX;

// The number with which an entry begins.
enum class Tag : uint8_t {
  Definition = 0,
  Site = 1,
  Allocated = 2,
  Freed = 3,
  MemoryKind = 4,
  Answered = 5,
  Restart = 6,
  Timed = 7,
  Kernel = 8,
  Launch = 9,
  Copy = 10,
  Record = 11,
  Wait = 12,
  Capture = 13,
  GraphLaunch = 14,
  HostFunction = 15,
  AllocatedOnGpu = 16,
  Reserved = 17,
  Context = 18,
  Autograd = 19,
  ReadByCall = 20,
  WrittenByCall = 21,
  LaunchNumber = 22,
  CapturedCall = 23,
  Resumption = 24,
  Integers = 25,
  Reading = 26,
  Process = 27,
  ExternalRecord = 28,
  ExternalWait = 29,
  PythonCalls = 30,
  // The stream is one of a program record of version 11 or older: entries of the tags 16 to 30 are entries of the tag
  // [`Tag::MemoryKind`] there, and executions begin at 16.
  Version11 = 31,
};

// The byte with which an argument begins.
enum class ArgumentTag : uint8_t {
  None = 0,
  False = 1,
  True = 2,
  Int = 3,
  Float = 4,
  Text = 5,
  Ints = 6,
  Tensor = 7,
  Tensors = 8,
  Other = 9,
  Names = 10,
};

// The kind of data that an allocation holds, as the program's objects say.
enum class MemoryKind : uint8_t {
  Parameter = 1,
  Gradient = 2,
  Optimizer = 3,
  Buffer = 4,
};

// The memories that a copy reads and writes.
enum class CopyKind : uint8_t {
  // From the host's pageable memory to a device.
  PageableToDevice = 0,
  // From the host's pinned memory to a device.
  PinnedToDevice = 1,
  // From a device to the host's pageable memory.
  DeviceToPageable = 2,
  // From a device to the host's pinned memory.
  DeviceToPinned = 3,
  // Within a device.
  Within = 4,
  // Between two devices.
  Peer = 5,
  // A value into a device's memory (`cudaMemset`).
  Set = 6,
};

// The operation of a call. Collectives have the numbers of `uniference_sim::program::CollectiveKind`.
enum class Operation : uint8_t {
  AllReduce = 0,
  Reduce = 1,
  Broadcast = 2,
  AllGather = 3,
  ReduceScatter = 4,
  AllToAll = 5,
  Gather = 6,
  Scatter = 7,
  Barrier = 8,
  Send = 9,
  Recv = 10,
};

// The result of a collective that its caller waits for.
enum class CallOutcome : uint32_t {
  // The collective is complete, and its data has been delivered.
  Complete = 0,
  // The collective has ended otherwise; the Python backend reports how.
  Report = 1,
  // Nothing has happened; the Python backend carries the collective out.
  Decline = 2,
};

// Memory of the program.
struct Memory {
  // Address of the first byte.
  size_t address;
  // Number of bytes.
  size_t bytes;
};

// UTF-8 text that the caller owns.
struct Text {
  // Address of the first byte.
  const uint8_t *data;
  // Number of bytes.
  size_t length;
};

// A call of a process group, as one member makes it.
struct Call {
  // Number of the operation: [`Operation`].
  uint8_t operation;
  // Type of an element.
  uint8_t dtype;
  // The reduction, or [`NO_REDUCTION`].
  uint8_t reduction;
  // Whether this member's input moves data (1) or only its size (0).
  uint8_t has_values;
  // Number of the group.
  uint32_t group;
  // The root, or the peer of a message, as a member of the group; -1 if the operation has none.
  int32_t peer;
  // The carrier of a call on a stream: 0 NCCL; 1 a kernel of the program that reads other GPUs' memory in one shot; 2 one
  // that does so in two.
  uint32_t kernel;
  // Number of elements that each member sends to each other member (all-gather, gather, all-to-all), or that each member
  // receives (other operations).
  uint64_t elements;
  // Data that this member sends.
  Memory input;
  // Memory for data that this member receives; empty for calls on streams, whose output is copied by
  // [`crate::gpus::Communication::deliver`].
  Memory output;
  // The program's line of a call that its caller waits for; empty for calls on streams.
  Text site;
  // Timeout in picoseconds of a call that its caller waits for, or [`NO_TIMEOUT`].
  uint64_t timeout;
  // Number of the stream of a call on a stream.
  uint32_t stream;
  // 0: the call starts with the previous call on its stream, as both belong to one group of calls; else 1.
  uint32_t first;
  // The launch's number, as in [`crate::gpus::Link::number`]; 0: its times are not needed.
  uint64_t number;
};

// Functions by which work on streams of simulated GPUs enters the stream of operators. Streams, events, graphs and
// kernels are numbers; [`crate::gpus::Link`] documents each function.
struct Launches {
  uint32_t (*kernel)(const uint8_t *name, size_t length);
  void (*launch)(uint32_t kernel, uint32_t stream, uint32_t flags, uint64_t bytes);
  void (*copy)(uint32_t stream, uint32_t kind, uint64_t bytes, uint32_t flags);
  void (*record)(uint32_t event, uint32_t stream);
  void (*wait_event)(uint32_t stream, uint32_t event);
  void (*external_record)(uint32_t event, uint32_t stream);
  void (*external_wait)(uint32_t stream, uint32_t event);
  void (*capture)(uint32_t stream, uint32_t graph);
  void (*graph_launch)(uint32_t graph, uint32_t stream);
  void (*captured_call)(uint32_t stream, uint32_t with_previous);
  void (*graph_resume)(uint32_t graph, uint32_t stream);
  void (*host_function)(uint32_t stream);
  void (*number)(uint64_t number);
  // Number of the operator that this thread runs, from 1; 0 outside of operators.
  uint64_t (*running_operator)();
  // Whether no operator launches the kernel: 1, else 0.
  int32_t (*launches)(const uint8_t *name, size_t length);
};

// The C++ library's functions. Its exported function `uniference_capture_functions` returns their address, which stays
// valid.
struct Functions {
  // [`crate::CAPTURE_VERSION`].
  uint32_t version;
  // Hands over the entries that this thread and the dictionary have gained since the last call; the bytes stay valid
  // until the thread's next call. Returns the capture's own time on this thread since then in nanoseconds.
  uint64_t (*take)(const uint8_t **data, size_t *length);
  // Begins (1) or ends (-1) work of the simulator on this thread, which is not captured.
  void (*inside)(int32_t change);
  // Begins the capture on a new thread of the program.
  void (*thread)();
  // Number of the log to which this thread writes; `written`: whether the log has entries.
  uint64_t (*log)(int32_t *written);
  // Whether this thread compiles the program: 1, else 0.
  int32_t (*is_compiling)();
  // Combines `bytes` bytes of elements with others in place, by torch's kernels. `reduction` and `dtype` are numbers of
  // `c10d::ReduceOp::RedOpType` and `c10::ScalarType`.
  void (*combine)(uint32_t reduction, uint32_t dtype, size_t into, size_t from, uint64_t bytes);
  // Multiplies elements by a factor in the precision of their type; integers are rounded towards zero.
  void (*scale)(uint32_t dtype, size_t at, uint64_t bytes, double factor);
  // Whether communication of `elements` elements of a type moves only their size, and no data: 1, else 0.
  int32_t (*is_large)(uint64_t elements, uint32_t dtype);
  // The program's line that this thread executes as UTF-8, which stays valid; empty outside of the program.
  void (*site)(const uint8_t **data, size_t *length);
  // Functions for work on streams.
  Launches launches;
};

// Layouts of the structures in Rust.
static_assert(sizeof(Text) == 16 && alignof(Text) == 8);
static_assert(offsetof(Text, data) == 0);
static_assert(offsetof(Text, length) == 8);
static_assert(sizeof(Memory) == 16 && alignof(Memory) == 8);
static_assert(offsetof(Memory, address) == 0);
static_assert(offsetof(Memory, bytes) == 8);
static_assert(sizeof(Call) == 96 && alignof(Call) == 8);
static_assert(offsetof(Call, operation) == 0);
static_assert(offsetof(Call, dtype) == 1);
static_assert(offsetof(Call, reduction) == 2);
static_assert(offsetof(Call, has_values) == 3);
static_assert(offsetof(Call, group) == 4);
static_assert(offsetof(Call, peer) == 8);
static_assert(offsetof(Call, kernel) == 12);
static_assert(offsetof(Call, elements) == 16);
static_assert(offsetof(Call, input) == 24);
static_assert(offsetof(Call, output) == 40);
static_assert(offsetof(Call, site) == 56);
static_assert(offsetof(Call, timeout) == 72);
static_assert(offsetof(Call, stream) == 80);
static_assert(offsetof(Call, first) == 84);
static_assert(offsetof(Call, number) == 88);
static_assert(sizeof(Launches) == 120 && alignof(Launches) == 8);
static_assert(offsetof(Launches, kernel) == 0);
static_assert(offsetof(Launches, launch) == 8);
static_assert(offsetof(Launches, copy) == 16);
static_assert(offsetof(Launches, record) == 24);
static_assert(offsetof(Launches, wait_event) == 32);
static_assert(offsetof(Launches, external_record) == 40);
static_assert(offsetof(Launches, external_wait) == 48);
static_assert(offsetof(Launches, capture) == 56);
static_assert(offsetof(Launches, graph_launch) == 64);
static_assert(offsetof(Launches, captured_call) == 72);
static_assert(offsetof(Launches, graph_resume) == 80);
static_assert(offsetof(Launches, host_function) == 88);
static_assert(offsetof(Launches, number) == 96);
static_assert(offsetof(Launches, running_operator) == 104);
static_assert(offsetof(Launches, launches) == 112);
static_assert(sizeof(Functions) == 200 && alignof(Functions) == 8);
static_assert(offsetof(Functions, version) == 0);
static_assert(offsetof(Functions, take) == 8);
static_assert(offsetof(Functions, inside) == 16);
static_assert(offsetof(Functions, thread) == 24);
static_assert(offsetof(Functions, log) == 32);
static_assert(offsetof(Functions, is_compiling) == 40);
static_assert(offsetof(Functions, combine) == 48);
static_assert(offsetof(Functions, scale) == 56);
static_assert(offsetof(Functions, is_large) == 64);
static_assert(offsetof(Functions, site) == 72);
static_assert(offsetof(Functions, launches) == 80);

}  // namespace shared
}  // namespace uniference
