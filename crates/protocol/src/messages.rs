//! Owns what a rank's process and the driver say to each other, and how it lies on a socket.
//!
//! What the words lead to is `client`'s and `driver`'s business; tensors never travel here, only where they lie in the arena.
//!
//! Each task (thread) of a rank has a stream socket of its own. A task writes batches of [`Op`]s; only the last of a batch may ask
//! for an answer ([`Op::asks`]), and the task then reads exactly one [`Answer`]. So a blocking collective is one round trip, and an
//! asynchronous one is none: it travels with the next question. A frame is its length (u32, little endian) and a postcard value.

use serde::{Deserialize, Serialize};
use uniference_sim::ids::Site;
use uniference_sim::program::{Call, DType, Mark, NcclSettings, Outcome, ReduceOp, StoreOp, StoreValue};
use uniference_sim::time::{SimDuration, SimTime};

/// The name that a rank gives an operation before the engine has numbered it.
pub type LocalHandle = u32;

/// An offset in the arena, in bytes.
pub type Offset = u64;

/// In place of how many groups of just these ranks were named before: the one in which the first writes into the memory of the second.
pub const WRITES: u32 = u32::MAX;

/// What a task says to the driver. Durations are virtual time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// The next line of this rank's table of lines: the n-th of these is `Site(n)`.
    Site(String),
    /// What the program has done since the call before.
    Compute(Slice),
    /// What operators of one of the rank's processes name by number from here on, on all of its tasks: each of several threads may name what another
    /// one was the first to run. It counts at once.
    Dictionary {
        /// The process of the rank; 0: the one that the driver started.
        process: u32,
        /// How many bytes the process has said before. Threads of a process that a rank has started say them on several wires, of which the rank's process
        /// puts them in order; to the driver they come in order.
        at: u64,
        /// The entries, as the process's capture has written them down.
        entries: Vec<u8>,
    },
    /// This task is a thread of that process of the rank, which numbers its operators, streams, events, launches and ranges by itself; else of process 0.
    Process(u32),
    /// Number by which the process refers to this thread in marks, whichever thread sends the mark: [`Mark::Enter`].
    Thread(u32),
    /// The beginning of the operators of the slice that is said next by this task, where they are too long for one message.
    Operators(Vec<u8>),
    /// An operation of a process group starts.
    Issue {
        /// The rank's own name of the operation.
        handle: LocalHandle,
        /// The operation, and what it is called with.
        call: Call,
        /// The part of the arena that its input was staged in; `None`: it has no input.
        staged: Option<Room>,
        /// The input has been copied there; otherwise [`Op::Filled`] follows.
        filled: bool,
        /// The stream of the rank's device that it is on; `None`: it is on none.
        stream: Option<OnStream>,
        /// The user's line.
        site: Site,
    },
    /// A named range opens or closes.
    Mark(Mark),
    /// The input that was announced to be staged there now is. It counts at once, also from a task that waits.
    Filled(Offset),
    /// The data of an operation was fetched, or is not wanted.
    Release(LocalHandle),
    /// The folds of an operation, which this rank was picked for, are done.
    Folded(LocalHandle),
    /// Announces that the rank is about to create a process group:
    /// [`Request::NameGroup`](uniference_sim::program::Request::NameGroup).
    NameGroup {
        /// Name by which the members of the group find each other.
        name: String,
        /// Text of the call that creates the group.
        call: String,
        /// User's line of the call.
        site: Site,
    },
    /// The rank closes its connections of a group.
    Close(u32),
    /// The rank aborts what it has outstanding in a group.
    Abort(u32),
    /// The program has ended.
    Exit(Outcome),
    /// This machine has no memory for a tensor of the program's, so its process ends. It counts at once, from any thread.
    LacksMemory(Lack),
    /// The program has run an operator or kernel whose values are not computed, as the text says, and the run is to end
    /// then (`--strict-values`). The process ends. It counts at once, from any thread.
    LacksValues(String),
    /// Something that the user should know. It counts at once, from any thread.
    Warn(String),
    /// Asks for the first turn: [`Answer::Go`].
    Start,
    /// Asks to sleep: [`Answer::Go`].
    Sleep(Span),
    /// Asks for the clock: [`Answer::Now`].
    Now,
    /// The same, of a process that a rank has started, to the rank's: [`Answer::Now`], of which only the clock counts. It is no word to the driver.
    Look,
    /// Asks for [`Answer::Over`] after this long; another thread may let this one go on before.
    Pause(Span),
    /// Asks for [`Answer::Go`] once another thread of the rank's processes may have done something, as it has nothing to do until then, or after a moment.
    Yield,
    /// Asks for a group's number: [`Answer::Group`].
    Group {
        /// Its members, in order.
        ranks: Vec<u32>,
        /// How many groups of just these this rank has named before.
        sequence: u32,
        /// NCCL settings that the program makes for the group; `None` if it makes none.
        settings: Option<NcclSettings>,
        /// Whether messages of the group leave only once their receives are posted.
        rendezvous: bool,
    },
    /// Asks which operations are complete, once all or any are: [`Answer::Complete`] or [`Answer::TimedOut`].
    Wait {
        /// The operations, by the rank's own names.
        handles: Vec<LocalHandle>,
        /// Whether the first that is complete ends the wait.
        any: bool,
        /// The longest time that the task waits.
        timeout: Option<SimDuration>,
        /// The data of the one operation may come before the answer: [`Answer::Ahead`].
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
    /// Asks to go on when work of the rank's device has ended: [`Answer::Go`].
    Synchronize {
        /// The work that it waits for.
        work: DeviceWork,
        /// The user's line.
        site: Site,
    },
    /// Asks whether work of the rank's device has ended: [`Answer::Ended`].
    Query {
        /// The work that it asks about.
        work: DeviceWork,
        /// The user's line.
        site: Site,
    },
    /// Asks to go on as a task of this rank, whose GPU the process of the task uses from here on: [`Answer::Moved`]. Only where ranks lend their GPUs to
    /// one program.
    Moves(u32),
    /// Asks for the times of launches that it has numbered, as far as they have ended and no answer has said so before: [`Answer::Times`].
    Times,
    /// Asks how long after one event of the device another one was: [`Answer::Elapsed`].
    Elapsed {
        /// The event that is counted from.
        from: u32,
        /// The event that is counted to.
        to: u32,
        /// The user's line.
        site: Site,
    },
    /// Asks to go on once the compute that the task has reported is over: [`Answer::Go`].
    Settle,
    /// User's line at which the task is; it applies to the task's next operation without a line of its own.
    At(Site),
}

impl Answer {
    /// In place of a group's number, to a process of a rank: another one communicates for the rank.
    pub const NO_GROUP: u32 = u32::MAX;
}

impl Op {
    /// Whether it is no empty piece of a dictionary.
    pub fn says_something(&self) -> bool {
        !matches!(self, Op::Dictionary { entries, .. } if entries.is_empty())
    }

    /// Whether the task now waits for an [`Answer`].
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
pub struct Room {
    /// Offset of its first byte.
    pub at: Offset,
    /// Size in bytes.
    pub bytes: u64,
}

/// Where on a stream of its device a rank communicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnStream {
    /// The stream, by the rank's own number.
    pub stream: u32,
    /// It starts with the operation that was issued on the stream before it: both are of one group of calls.
    pub with_previous: bool,
    /// By what the rank asks for its times, if it does.
    pub number: Option<u64>,
}

/// By what a rank asks for the times of something that it has handed to a stream. Numbers are the rank's own, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LaunchId {
    /// The launch; 0: that of the graph that is being captured, which is not known yet.
    pub launch: u64,
    /// In the launch of a graph, the number of the node, which it had when it was captured; else 0.
    pub node: u64,
}

impl LaunchId {
    /// The number of what it is itself, be it in a graph or not.
    pub fn leaf(self) -> u64 {
        if self.node > 0 { self.node } else { self.launch }
    }
}

/// The times of something that was handed to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchTimes {
    /// The rank's number of it.
    pub id: LaunchId,
    /// The virtual time at which the host launched it.
    pub launched: SimTime,
    /// The virtual time at which the device began it.
    pub began: SimTime,
    /// The virtual time at which the device had completed it.
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
        /// How often it was recorded, also by threads that have not said so yet.
        records: u32,
    },
    /// All work of the device.
    Device,
}

/// What a program did between two calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// Compute time measured on the host of the simulation; 0 where compute is not measured.
    pub measured: SimDuration,
    /// The operators that it ran, as its capture has written them down.
    pub operators: Vec<u8>,
}

/// Memory that a machine has not got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lack {
    /// Bytes that were asked for.
    pub wanted: u64,
    /// Bytes that there are.
    pub available: u64,
    /// The program's line; empty where it is not known.
    pub line: String,
}

/// Where the duration of a rank's compute comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compute {
    /// The rank measures it.
    Measured,
    /// The driver says what operators cost.
    Modelled,
    /// It takes no time: the rank says nothing of it.
    None,
}

/// How long a task sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Span {
    /// For this long.
    For(SimDuration),
    /// Until the rank's clock shows this.
    Until(SimTime),
}

impl Span {
    /// How long that is for a rank whose clock shows `now`.
    pub fn from(self, now: SimTime) -> SimDuration {
        match self {
            Span::For(span) => span,
            Span::Until(then) => then.max(now).since(now),
        }
    }
}

/// What a task writes at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// A new thread of the rank has come, and opens the wire with this ticket (only on the main task's wire).
    pub opens_task: Option<u64>,
    /// What the task says, in order.
    pub ops: Vec<Op>,
    /// No thread of the rank's process runs any more. Of a process with one thread that goes with each question; of one with several it goes with
    /// what each thread has said last, and with the dictionary; or it comes by itself on the main task's socket, if there is neither.
    pub quiet: Option<Quiet>,
}

/// All threads of a rank's process wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quiet {
    /// How many messages it comes with, of which some may still be on their way, on other sockets.
    pub parts: u32,
    /// A thread waits for something that does not come from the process itself.
    pub outside: bool,
}

/// What a task reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The rank's clock.
    pub now: SimTime,
    /// What that clock showed when the task asked.
    pub asked: SimTime,
    /// Staged regions of this rank that nobody needs any more.
    pub freed: Vec<Offset>,
    /// Communication of this rank that is complete or has failed, in the order in which it was, as far as no reply has said so before.
    pub over: Vec<LocalHandle>,
    /// Groups in which an operation of this rank has failed, as another one has closed a connection, as far as no reply has said so before.
    pub failed: Vec<u32>,
    /// The answer to the task's question.
    pub answer: Answer,
}

/// The answer to a question of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the questions say it
pub enum Answer {
    Go,
    /// The task is one of the rank that it has named.
    Moved,
    /// The clock, and how long the rank has computed.
    Now(SimTime, SimDuration),
    /// A pause is over.
    Over,
    Group(u32),
    /// The complete ones in the order asked for, each with its data. A task that is told of folds does them before it asks for anything else.
    Complete(Vec<(LocalHandle, Fetched)>),
    /// No answer yet, but the data of the operation that the task waits for. It is told again with the answer.
    Ahead(Fetched),
    TimedOut,
    Store(StoreValue),
    Ended(bool),
    /// Picoseconds; `None`: one of the two was not reached.
    Elapsed(Option<i64>),
    /// In the order in which they ended; with `more`, others have ended, too.
    Times {
        launches: Vec<LaunchTimes>,
        more: bool,
    },
}

/// Where the data of a complete operation lies, for one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fetched {
    /// The output is these, one after the other.
    pub pieces: Vec<Piece>,
    /// (destination, source, bytes): what to combine, in this order, before the pieces are right.
    pub folds: Vec<(Offset, Offset, u64)>,
    /// How elements are combined, if [`Kernel`](crate::memory::Kernel) can.
    pub kernel: Option<(ReduceOp, DType)>,
    /// Of a receive: the group rank of the sender.
    pub peer: Option<u32>,
    /// There is no data: this rank of the world has closed its end of a connection.
    pub closed_by: Option<u32>,
    /// There is no data: a sender's values were not computed, so only sizes have moved.
    pub lacks_values: bool,
}

/// A part of an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Offset of its first byte.
    pub offset: Offset,
    /// Size in bytes.
    pub bytes: u64,
    /// The element-wise combination of this range with the one at `offset` is the output; `None`: the range at `offset` is.
    pub other: Option<Offset>,
}

impl Piece {
    /// Leaves out its first `bytes`.
    pub fn skip(&mut self, bytes: u64) {
        self.offset += bytes;
        self.bytes -= bytes;
        self.other = self.other.map(|other| other + bytes);
    }

    /// Whether `next` continues it.
    pub fn joins(&self, next: &Piece) -> bool {
        let ends = |offset: Offset| offset + self.bytes;
        ends(self.offset) == next.offset && self.other.map(ends) == next.other
    }
}

/// What the driver says on a rank's main wire once both sides have said [`Hello`](crate::hello::Hello).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// Whether the program's compute is measured and sent, and whether its operators are.
    pub compute: Compute,
    /// How many of its threads compute at once on the rank's device; at least 1.
    pub cores: u32,
    /// Size of the whole arena.
    pub arena_bytes: u64,
    /// The part of it that this rank stages its inputs in: offset and size.
    pub staging: (Offset, u64),
    /// Of the staging part, how much may stay touched but unused before its pages are given back.
    pub retain_bytes: u64,
    /// The driver's processor, if it stays on one.
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
