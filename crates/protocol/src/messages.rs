//! Owns the messages between a rank's process and the driver.
//!
//! `client` and `driver` act on the messages. Messages carry no tensors, only offsets of tensors in the arena.
//!
//! Each task (thread) of a rank has its own stream socket. A task writes batches of [`Op`]s; only the last one of a
//! batch may ask for an answer ([`Op::asks`]), and the task then reads exactly one [`Answer`]. A blocking collective is
//! therefore one round trip, and an asynchronous collective needs none: its message is sent with the task's next
//! request. A frame is its length (u32, little endian) and a postcard value.

use serde::{Deserialize, Serialize};
use uniference_sim::ids::Site;
use uniference_sim::program::{Call, DType, Mark, NcclSettings, Outcome, ReduceOp, StoreOp, StoreValue};
use uniference_sim::time::{SimDuration, SimTime};

/// Number that a rank gives an operation before the engine has numbered it.
pub type LocalHandle = u32;

/// An offset in the arena, in bytes.
pub type Offset = u64;

/// Sequence number in [`Op::Group`] of the group of two ranks in which the first one writes into the memory of the
/// second.
pub const WRITES: u32 = u32::MAX;

/// Message of a task to the driver. Durations are virtual time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// The next line of this rank's line table: the n-th of these is `Site(n)`.
    Site(String),
    /// The program's work since the last call.
    Compute(ComputeSlice),
    /// Dictionary entries of one of the rank's processes: the operators that a number stands for from now on, in all
    /// tasks of the process, because threads may name an operator that another thread ran first. The entries apply at
    /// once.
    Dictionary {
        /// The process of the rank; 0: the one that the driver started.
        process: u32,
        /// Number of bytes of entries that the process has sent before. Threads of a process that a rank has started
        /// send entries on several wires; the rank's process orders them, so the driver receives them in order.
        at: u64,
        /// The entries, as written by the process's capture.
        entries: Vec<u8>,
    },
    /// This task is a thread of that process of the rank, which has its own numbers of operators, streams, events,
    /// launches and ranges. Without this message, the task is a thread of process 0.
    Process(u32),
    /// Number by which the process refers to this thread in marks, whichever thread sends the mark: [`Mark::Enter`].
    Thread(u32),
    /// First part of the operators of this task's next slice, if they are too long for one message.
    Operators(Vec<u8>),
    /// An operation of a process group starts.
    Issue {
        /// The rank's own number of the operation.
        handle: LocalHandle,
        /// The operation and its arguments.
        call: Call,
        /// Range of the arena that holds the staged input; `None`: the operation has no input.
        staged: Option<ArenaBlock>,
        /// Whether the input has been copied to that range; otherwise [`Op::Filled`] follows.
        filled: bool,
        /// Stream of the rank's device that the operation is on; `None`: on no stream.
        stream: Option<OnStream>,
        /// The user's line.
        site: Site,
    },
    /// A named range opens or closes.
    Mark(Mark),
    /// The input that is staged at this offset has been copied. The message applies at once, also from a task that
    /// waits.
    Filled(Offset),
    /// The rank has fetched the data of an operation, or does not want it.
    Release(LocalHandle),
    /// This rank, which the driver picked for the folds of an operation, has done them.
    Folded(LocalHandle),
    /// Announces that the rank is about to create a process group:
    /// [`Request::NameGroup`](uniference_sim::program::Request::NameGroup).
    NameGroup {
        /// Name by which the members of the group find each other.
        name: String,
        /// Number of members.
        members: u32,
        /// Text of the call that creates the group.
        call: String,
        /// User's line of the call.
        site: Site,
    },
    /// The rank closes its connections in a group.
    Close(u32),
    /// The rank aborts its outstanding operations in a group.
    Abort(u32),
    /// The program has ended.
    Exit(Outcome),
    /// This machine has no memory for one of the program's tensors, and the process ends. The message applies at once,
    /// from any thread.
    LacksMemory(Lack),
    /// The program has run an operator or kernel whose values are not computed, as the text says, and the run is to end
    /// then (`--strict-values`). The process ends. The message applies at once, from any thread.
    LacksValues(String),
    /// A warning for the user. The message applies at once, from any thread.
    Warn(String),
    /// Asks for the first turn: [`Answer::Go`].
    Start,
    /// Asks to sleep: [`Answer::Go`].
    Sleep(Span),
    /// Asks for the clock: [`Answer::Now`].
    Now,
    /// Clock request of a process that a rank has started, to the rank's process: [`Answer::Now`], of which only the
    /// clock counts. The driver does not receive it.
    Look,
    /// Asks for [`Answer::Over`] after this long; another thread may end the pause earlier.
    Pause(Span),
    /// Asks for [`Answer::Go`] once another thread of the rank's processes may have acted, or after a short pause: the
    /// task has no work until then.
    Yield,
    /// Asks for a group's number: [`Answer::Group`].
    Group {
        /// Members of the group, in order.
        ranks: Vec<u32>,
        /// Number of groups with just these members that this rank has named before.
        sequence: u32,
        /// NCCL settings that the program makes for the group; `None` if it makes none.
        settings: Option<NcclSettings>,
        /// Whether messages of the group leave only once their receives are posted.
        rendezvous: bool,
    },
    /// Asks which operations are complete, once all or any of them are: [`Answer::Complete`] or [`Answer::TimedOut`].
    Wait {
        /// The operations, by the rank's own numbers.
        handles: Vec<LocalHandle>,
        /// Whether the first that is complete ends the wait.
        any: bool,
        /// The longest time that the task waits.
        timeout: Option<SimDuration>,
        /// Whether the data of the only operation may come before the answer: [`Answer::Ahead`].
        ahead: bool,
        /// The user's line.
        site: Site,
    },
    /// Carries out an operation of the store: [`Answer::Store`] or [`Answer::TimedOut`].
    Store {
        /// The operation of the store.
        operation: StoreOp,
        /// The longest time that the task waits.
        timeout: Option<SimDuration>,
        /// The user's line.
        site: Site,
    },
    /// Asks to continue when work of the rank's device has ended: [`Answer::Go`].
    Synchronize {
        /// The work to wait for.
        work: DeviceWork,
        /// The user's line.
        site: Site,
    },
    /// Asks whether work of the rank's device has ended: [`Answer::Ended`].
    Query {
        /// The work in question.
        work: DeviceWork,
        /// The user's line.
        site: Site,
    },
    /// Asks to continue as a task of this rank, whose GPU the task's process uses from now on: [`Answer::Moved`]. Only
    /// if one program uses the GPUs of all ranks.
    Moves(u32),
    /// Asks for the times of numbered launches that have ended and that no earlier answer contained: [`Answer::Times`].
    Times,
    /// Asks for the time between two events of the device: [`Answer::Elapsed`].
    Elapsed {
        /// The first event.
        from: u32,
        /// The second event.
        to: u32,
        /// The user's line.
        site: Site,
    },
    /// Asks to continue once the compute that the task has reported is over: [`Answer::Go`].
    Settle,
    /// User's line at which the task is; it applies to the task's next operation without a line of its own.
    At(Site),
}

impl Answer {
    /// Stands for a group's number in the answer to a process of a rank if another process communicates for the rank.
    pub const NO_GROUP: u32 = u32::MAX;
}

impl Op {
    /// Whether the operation is more than an empty part of a dictionary.
    pub fn says_something(&self) -> bool {
        !matches!(self, Op::Dictionary { entries, .. } if entries.is_empty())
    }

    /// Whether the task waits for an [`Answer`] after this operation.
    pub fn asks(&self) -> bool {
        use Op::*;
        matches!(
            self,
            Start
                | Sleep(_)
                | Now
                | Look
                | Pause(_)
                | Yield
                | Group { .. }
                | Wait { .. }
                | Store { .. }
                | Synchronize { .. }
                | Query { .. }
                | Moves(_)
                | Times
                | Elapsed { .. }
                | Settle
        )
    }
}

/// A range of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaBlock {
    /// Offset of the range's first byte.
    pub at: Offset,
    /// Size in bytes.
    pub bytes: u64,
}

/// Place of a rank's communication on a stream of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnStream {
    /// The stream's number in the rank.
    pub stream: u32,
    /// Whether the operation starts together with the operation issued before it on the stream, because both are of one
    /// NCCL group call.
    pub with_previous: bool,
    /// Number by which the rank later queries the operation's times, if the times are needed.
    pub number: Option<u64>,
}

/// Number by which a rank queries the times of work on a stream. Numbers are the rank's own, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LaunchId {
    /// The launch; 0: the launch of the graph that is being captured, whose number is not known yet.
    pub launch: u64,
    /// The number of a graph's node, given when it was captured; 0 outside a graph.
    pub node: u64,
}

impl LaunchId {
    /// The number of the work itself, in a graph or not.
    pub fn leaf(self) -> u64 {
        if self.node > 0 { self.node } else { self.launch }
    }
}

/// Times of work on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchTimes {
    /// The rank's number of the work.
    pub id: LaunchId,
    /// Virtual time at which the host launched the work.
    pub launched: SimTime,
    /// Virtual time at which the device began the work.
    pub began: SimTime,
    /// Virtual time at which the device had completed the work.
    pub ended: SimTime,
}

/// Work that a program has handed to its device. Streams and events have the rank's own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceWork {
    /// All work of a stream.
    Stream(u32),
    /// All work before an event, as it was recorded last.
    Event {
        /// The event's number.
        event: u32,
        /// Number of records of the event, including those of threads that have not reported them yet.
        records: u32,
    },
    /// All work of the device.
    Device,
}

/// Work of a program between two calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ComputeSlice {
    /// Compute time measured on the host of the simulation; 0 if compute is not measured.
    pub measured: SimDuration,
    /// The operators of the slice, as written by the process's capture.
    pub operators: Vec<u8>,
}

/// Memory that a machine lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lack {
    /// Requested bytes.
    pub wanted: u64,
    /// Available bytes.
    pub available: u64,
    /// The program's line; empty if unknown.
    pub line: String,
}

/// Source of the duration of a rank's compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compute {
    /// The rank measures its compute.
    Measured,
    /// The driver models the cost of operators.
    Modelled,
    /// Compute takes no time, and the rank does not report it.
    None,
}

/// Duration or end of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Span {
    /// Duration.
    For(SimDuration),
    /// End, by the rank's clock.
    Until(SimTime),
}

impl Span {
    /// Duration of the sleep for a rank whose clock shows `now`.
    pub fn from(self, now: SimTime) -> SimDuration {
        match self {
            Span::For(span) => span,
            Span::Until(then) => then.max(now).since(now),
        }
    }
}

/// Messages that a task writes at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Ticket of the wire that a new thread of the rank opens (only on the main task's wire).
    pub opens_task: Option<u64>,
    /// The task's operations, in order.
    pub ops: Vec<Op>,
    /// Set if no thread of the rank's process runs any more. A process with one thread sends it with each request. A
    /// process with several threads sends it with the last message of each thread and with the dictionary; without such
    /// messages, the process sends it alone on the main task's socket.
    pub quiet: Option<Quiet>,
}

/// State in which all threads of a rank's process wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quiet {
    /// Number of messages that carry this state; some of them may still be on their way on other sockets.
    pub parts: u32,
    /// Whether a thread waits for an event from outside the process.
    pub outside: bool,
}

/// Message of the driver to a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The rank's clock.
    pub now: SimTime,
    /// The rank's clock when the task made its request.
    pub asked: SimTime,
    /// Staged regions of this rank that are no longer needed.
    pub freed: Vec<Offset>,
    /// Communication of this rank that is complete or has failed, in order of completion, without the operations in
    /// earlier replies.
    pub over: Vec<LocalHandle>,
    /// Groups in which an operation of this rank has failed because another rank closed a connection, without the
    /// groups in earlier replies.
    pub failed: Vec<u32>,
    /// The answer to the task's request.
    pub answer: Answer,
}

/// The answer to a request of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the questions say it
pub enum Answer {
    Go,
    /// The task now belongs to the rank of [`Op::Moves`].
    Moved,
    /// The rank's clock, and its compute time up to now.
    Now(SimTime, SimDuration),
    /// The pause is over.
    Over,
    Group(u32),
    /// The complete operations in the order of the request, each with its data. A task carries out the folds in its
    /// answer before it makes another request.
    Complete(Vec<(LocalHandle, Fetched)>),
    /// Data of the operation that the task waits for, sent before the answer, which contains the data again.
    Ahead(Fetched),
    TimedOut,
    Store(StoreValue),
    Ended(bool),
    /// Picoseconds; `None`: one of the two events has not happened.
    Elapsed(Option<i64>),
    /// Times in order of the ends of launches; with `more`, further launches have ended.
    Times {
        launches: Vec<LaunchTimes>,
        more: bool,
    },
}

/// Location of the data of a complete operation, for one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fetched {
    /// Concatenation of these pieces is the output.
    pub pieces: Vec<OutputPart>,
    /// (destination, source, bytes): reductions to carry out in this order before the pieces are valid.
    pub folds: Vec<(Offset, Offset, u64)>,
    /// Reduction and element type, if [`Kernel`](crate::memory::Kernel) can combine the elements.
    pub kernel: Option<(ReduceOp, DType)>,
    /// Group rank of the sender, for a receive.
    pub peer: Option<u32>,
    /// Rank of the world that has closed its end of a connection; there is no data.
    pub closed_by: Option<u32>,
    /// Whether data is missing because a sender's values were not computed; only sizes have moved.
    pub lacks_values: bool,
}

/// A part of an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPart {
    /// Offset of the piece's first byte.
    pub offset: Offset,
    /// Size in bytes.
    pub bytes: u64,
    /// Offset of a second operand: the piece is the element-wise combination of both ranges. `None`: the piece is the
    /// range at `offset`.
    pub other: Option<Offset>,
}

impl OutputPart {
    /// Removes the piece's first `bytes`.
    pub fn skip(&mut self, bytes: u64) {
        self.offset += bytes;
        self.bytes -= bytes;
        self.other = self.other.map(|other| other + bytes);
    }

    /// Whether `next` continues this piece.
    pub fn joins(&self, next: &OutputPart) -> bool {
        let ends = |offset: Offset| offset + self.bytes;
        ends(self.offset) == next.offset && self.other.map(ends) == next.other
    }
}

/// First message of the driver on a rank's main wire, after the [`Hello`](crate::hello::Hello)s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// Whether the program's compute is measured and sent, and whether its operators are.
    pub compute: Compute,
    /// Number of the rank's threads that compute at once on its device; at least 1.
    pub cores: u32,
    /// Size of the whole arena.
    pub arena_bytes: u64,
    /// Part of the arena in which this rank stages its inputs: offset and size.
    pub staging: (Offset, u64),
    /// Bytes of the staging part that may stay touched but unused before their pages are given back.
    pub retain_bytes: u64,
    /// The driver's CPU, if it is pinned to one.
    pub processor: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_questions_are_answered() {
        assert!(Op::Now.asks() && Op::Start.asks());
        assert!(!Op::Release(0).asks() && !Op::Exit(Outcome::Ok).asks());
    }
}
