//! Owns the stream of operators that a rank's capture writes: what the program ran between its calls, and the memory that came and went.
//!
//! What an operator does and costs is `uniference-devices`' business. Writers are `cpp/stream.h` and
//! `python/uniference/rank/capture.py`; everything between them and this module passes the bytes on as they are.
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
//! | 4 | kind | allocation; byte: 1 parameter, 2 gradient, 3 optimizer, 4 buffer; of memory of a GPU also 5 to 7, and number: bytes; 8 and number: 0 or 1; 9 or 10; 11 and number: a launch's; 12 to 19: below |
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
//! | 16 + d | execution of definition d | line; for each tensor of the definition an allocation |
//!
//! Definitions of a rank are numbered from 0 and its sites from 1 in the order of their entries; site 0 is a line that is not known. A line is
//! the number `2 * site`, plus 1 in the backward pass. The tensors of a definition are those of its arguments in order, lists flattened,
//! then those of its results.
//!
//! An allocation is an integer: the difference to the allocation that was named before, in whichever entry. A *restart* makes that one 0
//! again: each thread's part of a slice begins with one. Allocation 0 is memory that is not tracked.
//!
//! Of kind 5 is an allocation on a simulated GPU, and comes with this entry instead of entry 2. Kinds 6 and 7 are levels, and name allocation 0: the
//! memory of the rank's GPU that torch's allocator has reserved from here on, and what the context and libraries take there beside it. Kind 8 is no
//! memory at all, and names allocation 0: with 1, autograd records the executions from here on, for a backward pass to come; with 0, and from
//! the beginning of a thread's part on, it does not. Kinds 9 and 10 come last in a slice: the call that ends it reads this allocation, or writes it.
//! Kind 11 is no memory, and names allocation 0: the launch, copy or graph launch that follows has this number, from 1, by which the rank asks for its
//! times (`uniference_protocol::messages::LaunchId`). Kinds 12 to 19 are no memory either, and name allocation 0, kind 16 the one before:
//!
//! | kind | entry | fields |
//! |---|---|---|
//! | 12 | captured call | number: stream; number: 1 if it starts with the one before it, else 0 |
//! | 13 | resumption | number: graph; number: stream |
//! | 14 | integers | number: buffer; number of integers; integers |
//! | 15 | reading | number: argument; number: buffer; number: how many |
//! | 16 | process | number: process |
//! | 17 | external record | number: event; number: stream |
//! | 18 | external wait | number: stream; number: event |
//! | 19 | calls of Python | number: how many |
//!
//! A *captured call* is one of a process group on a stream in capture: when the graph is launched, what comes before the call starts, and what comes
//! behind it with the *resumption*, which follows when the rank has made the call. *Integers* are what lies in a buffer of a GPU's memory from here
//! on, numbered by the rank from 1. A *reading* belongs to the execution that follows: the argument of that place has so many of a buffer's integers,
//! as they are when it runs, where each tensor of the lists of a kernel of Triton has a place, and where it is captured, whenever the graph is
//! launched. What follows a *process* was written by that one of the rank's processes, at most 127; a stream begins with process 0, the rank's own.
//! Each process numbers its definitions, sites, kernels, allocations, streams, events, graphs, buffers and launches by itself, and streams, events,
//! graphs and buffers below 2^24 if it is not process 0. *External* are events outside of the graph that a stream in capture belongs to: they are
//! recorded, or waited for, whenever that is launched. *Calls of Python* are how many functions of the program have begun on the thread, or
//! generators gone on, since its entry before of this kind; the imports of modules and the simulator's own functions do not count. There are none
//! unless the run has asked for them.
//!
//! Entries 8 to 15 are what a program with simulated GPUs hands to their streams. Kernels of a rank are numbered from 1 in the order of their
//! entries; streams, events and graphs have the numbers that the rank gives them, below 2^31. Stream 0 is the default stream; the others do not
//! synchronise with it by themselves: for one that does, as those made without `cudaStreamNonBlocking`, the rank writes records and waits. What
//! an operator launches comes before its execution. Flags are a sum: 1 launched by the operator whose execution follows, 2 costs the host no
//! time, 4 a kernel that does nothing but last, for nanoseconds in place of the bytes. Kinds of copies are: 0 from pageable memory of the host to the device, 1 from pinned memory, 2 and 3 the same back, 4 within a
//! device, 5 between devices, 6 a value into memory of the device. What is handed to a stream between both entries of its capture belongs
//! to the graph, and so what is handed to streams that have waited for an event recorded meanwhile on a stream in capture.
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

pub use decode::{
    Autograd, BACKWARD, CopyKind, Decoder, Entry, Invalid, LaunchFlags, Level, Line, MemoryKind, Problem, Reading,
    SourceLine, StreamEntry, dictionary_length,
};
pub use definition::{Argument, Definition, Place, ScalarType, Tensor};
pub use encode::{Encoder, of_process, with_lines};

/// Tags of entries.
mod tag {
    pub(super) const DEFINITION: u64 = 0;
    pub(super) const SITE: u64 = 1;
    pub(super) const ALLOCATED: u64 = 2;
    pub(super) const FREED: u64 = 3;
    pub(super) const KIND: u64 = 4;
    pub(super) const ANSWERED: u64 = 5;
    pub(super) const RESTART: u64 = 6;
    pub(super) const TIMED: u64 = 7;
    pub(super) const KERNEL: u64 = 8;
    pub(super) const LAUNCH: u64 = 9;
    pub(super) const COPY: u64 = 10;
    pub(super) const RECORD: u64 = 11;
    pub(super) const WAIT: u64 = 12;
    pub(super) const CAPTURE: u64 = 13;
    pub(super) const GRAPH_LAUNCH: u64 = 14;
    pub(super) const HOST_FUNCTION: u64 = 15;
    /// And from here on executions.
    pub(super) const EXECUTION: u64 = 16;
}

/// Kinds of entries that are not of [`MemoryKind`]. A number follows those of a GPU, of bytes, and [`kind::RECORDED`], and
/// a launch's [`kind::NUMBER`]; several follow those from [`kind::CALL`] on.
mod kind {
    pub(super) const ALLOCATED: u8 = 5;
    pub(super) const RESERVED: u8 = 6;
    pub(super) const CONTEXT: u8 = 7;
    pub(super) const RECORDED: u8 = 8;
    pub(super) const READ: u8 = 9;
    pub(super) const WRITTEN: u8 = 10;
    pub(super) const NUMBER: u8 = 11;
    pub(super) const CALL: u8 = 12;
    pub(super) const RESUMPTION: u8 = 13;
    pub(super) const INTEGERS: u8 = 14;
    pub(super) const READING: u8 = 15;
    pub(super) const PROCESS: u8 = 16;
    pub(super) const EXTERNAL_RECORD: u8 = 17;
    pub(super) const EXTERNAL_WAIT: u8 = 18;
    pub(super) const PYTHON_CALLS: u8 = 19;
}

/// Bytes that arguments begin with.
mod argument {
    pub(super) const NONE: u8 = 0;
    pub(super) const FALSE: u8 = 1;
    pub(super) const TRUE: u8 = 2;
    pub(super) const INT: u8 = 3;
    pub(super) const FLOAT: u8 = 4;
    pub(super) const TEXT: u8 = 5;
    pub(super) const INTS: u8 = 6;
    pub(super) const TENSOR: u8 = 7;
    pub(super) const TENSORS: u8 = 8;
    pub(super) const OTHER: u8 = 9;
}
