//! Owns the stream of operators that a rank's capture writes: the operators, launches and allocations of the program
//! between its calls.
//!
//! The work and the cost of operators belong to `uniference-costs`. The writer is `cpp/stream.h`; everything between it
//! and this module passes the bytes on as they are. Tags and other numbers are those of `uniference_abi::entries`.
//!
//! # The format
//!
//! Numbers are unsigned, of 64 bits, in LEB128; *integers* are signed ones in zigzag. A text is its length in bytes and that many bytes of
//! UTF-8; what is not UTF-8 is replaced. The stream of a rank is a sequence of entries without anything between them, and each begins with
//! a number, its tag:
//!
//! | tag | entry | fields |
//! |---|---|---|
//! | 0 | definition | text: name (`aten::add.Tensor`, or without an overload `aten::mm`); number of arguments; arguments; number of results; results |
//! | 1 | site | text: `path:line`; text: qualified name of the function |
//! | 2 | allocated | allocation; number: bytes |
//! | 3 | freed | allocation |
//! | 4 | memory kind | allocation; byte: 1 parameter, 2 gradient, 3 optimizer, 4 buffer |
//! | 5 | answered | line; text: name of the operator that read a value which was not computed |
//! | 6 | restart | (none) |
//! | 7 | timed | number: nanoseconds from the operator before (or from the program's turn) to the next execution; number: nanoseconds of that |
//! | 8 | kernel | text: name |
//! | 9 | launch | number: kernel; number: stream; number: flags; number: bytes of memory that its arguments name, 0: not known |
//! | 10 | copy | number: stream; number: kind; number: bytes; number: flags |
//! | 11 | record | number: event; number: stream |
//! | 12 | wait | number: stream; number: event |
//! | 13 | capture | number: stream; number: graph, or 0 where it ends |
//! | 14 | graph launch | number: graph; number: stream |
//! | 15 | host function | number: stream |
//! | 16 | allocated on the GPU | allocation; number: bytes |
//! | 17 | reserved | number: bytes |
//! | 18 | context | number: bytes |
//! | 19 | autograd | number: 1 if autograd records executions, else 0 |
//! | 20 | read by the call | allocation |
//! | 21 | written by the call | allocation |
//! | 22 | launch number | number: the launch's |
//! | 23 | captured call | number: stream; number: 1 if it starts with the previous call, else 0 |
//! | 24 | resumption | number: graph; number: stream |
//! | 25 | integers | number: buffer; number of integers; integers |
//! | 26 | reading | number: argument; number: buffer; number of integers |
//! | 27 | process | number: process |
//! | 28 | external record | number: event; number: stream |
//! | 29 | external wait | number: stream; number: event |
//! | 30 | Python calls | number of calls |
//! | 31 | version 11 | (none) |
//! | 32 + d | execution of definition d | line; for each tensor of the definition an allocation |
//!
//! Definitions of a rank are numbered from 0 and its sites from 1 in the order of their entries; site 0 is an unknown
//! line. A line is the number `2 * site`, plus 1 in the backward pass. The tensors of a definition are those of its
//! arguments in order, lists flattened, then those of its results.
//!
//! An allocation is an integer: its difference to the allocation named before, in any entry. A *restart* sets the allocation
//! named before to 0; each thread's part of a slice begins with a restart. Allocation 0 is memory that is not tracked.
//!
//! *Reserved* is the memory of the rank's GPU that torch's allocator has reserved from this entry on; *context* is the memory
//! of the GPU that the CUDA context and libraries use. *Autograd* applies to the executions that follow, until the thread's
//! part ends; at its beginning autograd does not record. Entries 20 and 21 come last in a slice: the call that ends the slice
//! reads or writes the allocation. A *launch number*, from 1, names the launch, copy or graph launch that follows; the rank
//! uses it to ask for virtual times (`uniference_protocol::messages::LaunchId`).
//!
//! A *captured call* is a call of a process group on a stream in capture: a graph launch starts the nodes before the call,
//! and a *resumption*, which follows when the rank has made the call, starts the nodes behind it. *Integers* are the values
//! of a buffer in a GPU's memory from this entry on; the rank numbers its buffers from 1. A *reading* belongs to the
//! execution that follows: the argument at that place, where each tensor of a Triton kernel's lists has a place, holds that
//! many integers of the buffer, as they are when the execution runs; if the execution is captured, whenever the graph is
//! launched. The entries after a *process* entry were written by that process of the rank, at most 127; a stream begins with
//! process 0, the rank's own. Each process numbers its definitions, sites, kernels, allocations, streams, events, graphs,
//! buffers and launches by itself; processes other than 0 number streams, events, graphs and buffers below 2^24. *External*
//! events lie outside of the graph that a stream in capture belongs to: each launch of the graph records them, or waits for
//! them. *Python calls* counts the functions of the program that have begun, and the generators that have resumed, on the
//! thread since its previous entry of this tag. Imports of modules and the simulator's own functions do not count. The entry
//! is only written if the run asks for it.
//!
//! Entries 8 to 15 are work on streams of simulated GPUs. Kernels of a rank are numbered from 1 in the order of their
//! entries; the rank numbers its streams, events and graphs below 2^31. Stream 0 is the default stream; it does not
//! synchronise with other streams by itself: for streams made without `cudaStreamNonBlocking`, the rank writes records and
//! waits. An operator's launches come before its execution. Flags of a launch are a sum of
//! [`LAUNCH_INSIDE`](uniference_abi::entries::LAUNCH_INSIDE) and the like; kinds of copies are numbers of [`CopyKind`]. Work
//! on a stream between both entries of its capture belongs to the graph, as does work on a stream that has waited for an event
//! recorded on a stream in capture.
//!
//! The stream of a record of version 11 or older begins with entry 31. It has no entries 16 to 30: such an entry is entry 4
//! with allocation 0 (entries 16, 20 and 21: the allocation; the integer for the allocation is read in any case), then the
//! byte `tag - 11`, then the fields. Executions have the tags 16 + d.
//!
//! An argument is a byte and its fields:
//!
//! | byte | argument | fields |
//! |---|---|---|
//! | 0 | none | |
//! | 1, 2 | false, true | |
//! | 3 | an integer | integer |
//! | 4 | a floating-point number; its value does not tell definitions apart | |
//! | 5 | a text | text |
//! | 6 | a list of integers, or of flags as 0 and 1 | number of integers; integers |
//! | 7 | a tensor | tensor |
//! | 8 | a list of tensors | number of elements; each 0 for none, or 7 and a tensor |
//! | 9 | anything else | |
//! | 10 | the names of the arguments before it, in the order of the schema: the last argument of operators that are not part of torch | text: names, separated by commas |
//!
//! A tensor is a byte for the type of its elements (`c10::ScalarType`), a byte for where it is (`c10::DeviceType`), a byte that is 1 if the
//! operator writes to it, the number of its dimensions, its sizes (numbers) and its strides (integers, in elements). The arguments of
//! operators that only make one view have integers written as 9.
//!
//! A slice of the stream, as one call of the rank sends it, ends at the end of an entry; definitions, sites and kernels come first in it.

mod decode;
mod definition;
mod encode;
mod numbers;

#[cfg(test)]
mod tests;

pub(crate) use decode::VERSION_11;
pub use decode::{
    Autograd, BACKWARD, Decoder, Entry, Invalid, LaunchFlags, Level, Line, Problem, Reading, SourceLine, StreamEntry,
    dictionary_length,
};
pub use definition::{Argument, Definition, Place, ScalarType, Tensor};
pub use encode::{Encoder, of_process, with_lines};
pub use uniference_abi::entries::{CopyKind, MemoryKind};
