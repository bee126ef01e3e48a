//! Owns the only seam between ranks and the engine: what a rank may ask for, and what it is told.
//!
//! A live Python process, a replayed trace and a Rust program all speak this and nothing else, so the engine cannot tell them apart.

mod nccl_settings;

pub use crate::device::{Origin, Work};
pub use crate::dtype::DType;
pub use nccl_settings::NcclSettings;

use crate::ids::{GroupId, GroupRank, Handle, QueueId, RankId, Site, TaskId};
use crate::time::{Bytes, SimDuration, SimTime};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// A rank that runs inside the simulator's own process.
pub trait Program {
    /// Called when `task` may go on at `now`; returns what it asks for next. The first reply is [`Reply::Start`].
    ///
    /// # Errors
    /// If the program cannot go on. That ends the run, and the error is handed to whoever carries it out; a program that fails in simulated time
    /// asks for [`Request::Exit`].
    fn resume(&mut self, now: SimTime, task: TaskId, reply: Reply) -> Result<Request, ProgramError>;
}

/// Why a program cannot go on.
pub type ProgramError = Box<dyn std::error::Error + Send + Sync>;

/// What a task asks for. It is then blocked until the reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Starts an activity and goes on: [`Reply::Issued`].
    Issue {
        /// The activity to start.
        activity: Activity,
        /// Activities of one queue run one after the other. Calls run in their group's own queues instead.
        queue: QueueId,
        /// The activity starts once these are complete.
        after: Vec<Handle>,
        /// The user's line.
        site: Site,
    },
    /// Blocks until all (or any) of `handles` are complete, or one has failed: [`Reply::Complete`], [`Reply::Failed`] or
    /// [`Reply::TimedOut`].
    Wait {
        /// Handles of this rank. One that is complete may be named as often as one likes; a failure is told of once.
        handles: Vec<Handle>,
        /// Return at the first that is complete.
        any: bool,
        /// Give up after this long.
        timeout: Option<SimDuration>,
        /// The user's line.
        site: Site,
    },
    /// Reads the clock at the price of a poll, [`POLL_COST`], as older records do: [`Reply::Now`].
    Now,
    /// Names a process group: [`Reply::Group`]. Members that name the same ranks with the same sequence number meet.
    JoinGroup {
        /// The world's ranks, in the group's order.
        ranks: Arc<[RankId]>,
        /// Number of groups of exactly these ranks that this rank has named before.
        sequence: u32,
        /// NCCL settings that the program makes for the group; `None` if it makes none. The first member's settings
        /// apply.
        settings: Option<NcclSettings>,
        /// Whether messages of the group leave only once their receives are posted, as in Gloo, even if the library in
        /// the cluster file would send them at once.
        rendezvous: bool,
    },
    /// Announces the name by which the members of a process group find each other. The reply is an empty
    /// [`Reply::Complete`]; if another member has given the name to another group, the run halts. Only live ranks make
    /// this request; records do not contain it.
    NameGroup {
        /// Name of the group; different groups must have different names.
        name: Arc<str>,
        /// Text of the call that creates the group, with the parameters on which all members must agree: `new_group([0,
        /// 1], backend="gloo")`.
        call: Arc<str>,
        /// User's line of the call.
        site: Site,
    },
    /// Reads or changes the key-value store that all ranks share: [`Reply::Store`], or [`Reply::TimedOut`].
    Store {
        /// The operation to carry out.
        operation: StoreOp,
        /// How long an operation that blocks may do so.
        timeout: Option<SimDuration>,
        /// The user's line.
        site: Site,
    },
    /// How long after `from` it was that `to` was reached, two events of the rank ([`Activity::Reach`]), which costs [`POLL_COST`]:
    /// [`Reply::Elapsed`].
    Elapsed {
        /// The event that is counted from.
        from: u32,
        /// The event that is counted to.
        to: u32,
        /// The user's line.
        site: Site,
    },
    /// Reads the clock, which costs [`LOOK_COST`], and [`POLL_COST`] from the thousandth time in a row: [`Reply::Now`].
    Look,
    /// The task has ended. A rank is finished when its task 0 is.
    Exit(Outcome),
    /// Blocks until the time-out: [`Reply::TimedOut`]. Another thread of the rank may let the task go on before, of which the engine
    /// only hears by what the task asks for next: a task that is paused may ask.
    Pause {
        /// The virtual time after which the task goes on.
        timeout: SimDuration,
        /// The user's line.
        site: Site,
    },
}

impl Request {
    /// The line that it comes from, if it says so.
    pub fn site(&self) -> Option<Site> {
        match self {
            Request::Issue { site, .. }
            | Request::Wait { site, .. }
            | Request::Store { site, .. }
            | Request::Elapsed { site, .. }
            | Request::NameGroup { site, .. }
            | Request::Pause { site, .. } => Some(*site),
            Request::Now | Request::Look | Request::JoinGroup { .. } | Request::Exit(_) => None,
        }
    }

    /// Checks a request on its own: a rank among `world` ranks must never make a request that this function refuses,
    /// since the engine relies on it. A driver checks requests that come from a file. Conditions that depend on the
    /// run, such as whether a handle was issued, are not checked.
    ///
    /// # Errors
    /// A description of the part of the request that is not valid.
    pub fn check(&self, world: u32) -> Result<(), String> {
        match self {
            Request::JoinGroup { ranks, .. } => {
                let distinct: BTreeSet<RankId> = ranks.iter().copied().collect();
                if distinct.is_empty() || distinct.len() != ranks.len() {
                    return Err(format!(
                        "a process group of {} members, {} of them different",
                        ranks.len(),
                        distinct.len()
                    ));
                }
                match distinct.last().filter(|last| last.0 >= world) {
                    Some(stranger) => Err(format!("a process group with {stranger} of {world} ranks")),
                    None => Ok(()),
                }
            }
            Request::Issue { activity: Activity::Call(Call { op: CallOp::Collective(call), .. }), .. } => {
                let kind = call.kind;
                if !kind.takes(&call.shape) {
                    return Err(format!("{kind} with unequal blocks that it does not have"));
                }
                if kind.has_root() != call.root.is_some() {
                    return Err(format!("{kind} {} a root", if call.root.is_some() { "with" } else { "without" }));
                }
                Ok(())
            }
            Request::Exit(Outcome::Crashed) => Err("a task that crashed by itself".to_owned()),
            _ => Ok(()),
        }
    }
}

/// What a blocked task is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// The task's first turn.
    Start,
    /// The activity was accepted.
    Issued(Handle),
    /// These of the awaited handles are complete, in the order in which they were asked for.
    Complete(Vec<Handle>),
    /// As [`Reply::Complete`], but some have failed: their connection to a rank was closed.
    Failed {
        /// Those that are over, the failed ones among them.
        complete: Vec<Handle>,
        /// The failed ones, each with the rank at the other end.
        failed: Vec<(Handle, RankId)>,
    },
    /// The time-out of a wait or of a store operation has passed.
    TimedOut,
    /// The rank's clock.
    Now(SimTime),
    /// The group's id.
    Group(GroupId),
    /// A store operation's result.
    Store(StoreValue),
    /// Picoseconds between two events, negative if the second one came first; `None`: one of them, as it was issued last, was not reached.
    Elapsed(Option<i64>),
}

/// What a poll or a look into the store costs, so that a busy-wait makes progress.
pub const POLL_COST: SimDuration = SimDuration::from_us(1);

/// What a read of the clock costs: `clock_gettime` through the vDSO, from Python (45 ns for `time.perf_counter()` on a Xeon of 2.1 GHz).
pub const LOOK_COST: SimDuration = SimDuration::from_ps(50_000);

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// Its program returned.
    Ok,
    /// Its program failed.
    Failed,
    /// It crashed, as the cluster wanted. No program asks for this.
    Crashed,
}

/// An activity that a rank carries out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Activity {
    /// Computes on the rank's device.
    Compute(Work),
    /// Takes part in an operation of a process group.
    Call(Call),
    /// Passes this much virtual time.
    Sleep(SimDuration),
    /// Takes no time; shows in traces.
    Mark(Mark),
    /// An operation of the store whose result nobody looks at: complete once it is served. For ranks that are no programs but
    /// graphs of activities; a program asks with [`Request::Store`].
    Store(StoreOp),
    /// The rank's program has come to its end, and the rank is finished though its task goes on: for graphs whose last node is not
    /// the program's end, as where threads outlive it.
    Finish,
    /// Reaches an event: takes no time, and the instant is kept, under a number of the rank's own, until the event is issued again.
    Reach(u32),
    /// Closes the rank's connections of a group. Ranks that wait for data of this rank in the group, now or later, are
    /// told so if this rank has aborted the group before or if a rank of the run has crashed. Otherwise a wait for a
    /// rank that will not come is reported as a deadlock.
    Close(GroupId),
    /// Ends what the rank has outstanding in a group, and whatever it still comes to there: those operations fail, with the rank itself as who
    /// has closed the connection. Other members hear nothing of it: who needs something of this rank waits on.
    Abort(GroupId),
}

/// A named range of the user's begins or ends, or a thread has a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mark {
    /// Beginning of a range of the thread, nested in the thread's open ranges. Only recordings of real runs and records
    /// of earlier versions have this mark.
    Begin(Arc<str>),
    /// End of the thread's innermost open range that a [`Mark::Begin`] began.
    End,
    /// A range of the rank (`nvtx.range_start`) begins. Such ranges need not nest, and may begin and end on different threads.
    Open {
        /// The range's number on its rank.
        range: u32,
        /// The name of the range.
        name: Arc<str>,
    },
    /// A range of the rank (`nvtx.range_end`) ends.
    Close {
        /// The range's number on its rank.
        range: u32,
    },
    /// The thread is called this from here on.
    Name(Arc<str>),
    /// Beginning of a range of a thread (`torch.profiler.record_function`, `nvtx.range_push`), nested in the open
    /// ranges of that thread. Another thread may report the mark: autograd's threads report marks of the thread for
    /// which they work.
    Enter {
        /// Number of the range on its rank.
        range: u32,
        /// Thread to which the range belongs.
        thread: TaskId,
        /// Name of the range.
        name: Arc<str>,
    },
    /// End of a range of a thread. The range need not be the thread's innermost one, and another thread may end it.
    Leave {
        /// Number of the range on its rank.
        range: u32,
        /// Thread to which the range belongs.
        thread: TaskId,
    },
}

impl Mark {
    /// Thread of the range, if the mark names it.
    pub fn thread(&self) -> Option<TaskId> {
        match self {
            Mark::Enter { thread, .. } | Mark::Leave { thread, .. } => Some(*thread),
            Mark::Begin(_) | Mark::End | Mark::Open { .. } | Mark::Close { .. } | Mark::Name(_) => None,
        }
    }

    /// Number of the range, if the mark begins or ends a range of a thread and names the range.
    pub fn number(&self) -> Option<u32> {
        match self {
            Mark::Enter { range, .. } | Mark::Leave { range, .. } => Some(*range),
            Mark::Begin(_) | Mark::End | Mark::Open { .. } | Mark::Close { .. } | Mark::Name(_) => None,
        }
    }

    /// The mark that ends the range of `thread` whose beginning had the `number`.
    pub fn end_of(number: Option<u32>, thread: TaskId) -> Mark {
        number.map_or(Mark::End, |range| Mark::Leave { range, thread })
    }
}

/// An operation of a process group, as one member asks for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Call {
    /// The process group.
    pub group: GroupId,
    /// The operation, and what it is called with.
    pub op: CallOp,
}

/// The operations of a process group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CallOp {
    /// All members take part.
    Collective(Collective),
    /// Sends a message.
    Send {
        /// The receiver.
        to: GroupRank,
        /// Matches the receive with the same tag.
        tag: u64,
        /// Size of the message.
        bytes: Bytes,
    },
    /// Receives a message.
    Recv {
        /// The sender; `None`: any member, whichever message is first in the engine's order.
        from: Option<GroupRank>,
        /// Matches the send with the same tag.
        tag: u64,
        /// Size of the buffer; the message must have just this size.
        bytes: Bytes,
    },
    /// Writes into the memory of another member, which takes no part: RDMA write. Complete once the writer has heard that all of it is there.
    Write {
        /// The member whose memory is written.
        to: GroupRank,
        /// Number of bytes that are written.
        bytes: Bytes,
    },
}

/// A collective as one member calls it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Collective {
    /// The kind of collective.
    pub kind: CollectiveKind,
    /// Type of the elements.
    pub dtype: DType,
    /// How elements are combined, where the kind reduces.
    pub reduce: Option<ReduceOp>,
    /// The root, where the kind has one.
    pub root: Option<GroupRank>,
    /// Number of elements.
    pub shape: Shape,
    /// The kernel of the program's own that carries it out; `None`: the communication library does.
    pub kernel: Option<PeerKernel>,
}

/// A kernel of the program's that carries out a collective: each member's GPU reads the other members' memory, in one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PeerKernel {
    /// Each member reads all that it needs from every other one, and combines it.
    OneShot,
    /// Each member combines its block, and then reads the other combined blocks.
    TwoShot,
}

impl PeerKernel {
    /// The kinds of collective that there is such a kernel for, all of them with even shapes.
    pub const fn kinds(self) -> &'static [CollectiveKind] {
        match self {
            PeerKernel::OneShot => {
                &[CollectiveKind::AllReduce, CollectiveKind::AllGather, CollectiveKind::ReduceScatter]
            }
            PeerKernel::TwoShot => &[CollectiveKind::AllReduce],
        }
    }

    /// The name in reports, as algorithms have one.
    pub const fn name(self) -> &'static str {
        match self {
            PeerKernel::OneShot => "one_shot",
            PeerKernel::TwoShot => "two_shot",
        }
    }
}

/// Numbers of elements in a collective.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Shape {
    /// The tensor (all-reduce, reduce, broadcast), or every rank's block (all-gather, reduce-scatter, all-to-all, gather, scatter).
    Even(u64),
    /// The block of each rank of the group in turn. A reduce-scatter of a list of tensors is given like this even if they are equal:
    /// Gloo carries it out differently from that of one tensor.
    Blocks(Vec<u64>),
    /// All-to-all with unequal blocks: what this rank sends to, and receives from, each rank in turn.
    Pairs {
        /// Elements for each rank.
        send: Vec<u64>,
        /// Elements from each rank.
        recv: Vec<u64>,
    },
}

/// The kinds of collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names say it
pub enum CollectiveKind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    Barrier,
}

impl CollectiveKind {
    /// Every kind of collective, in the order of declaration.
    pub const ALL: [CollectiveKind; 9] = [
        CollectiveKind::AllReduce,
        CollectiveKind::Reduce,
        CollectiveKind::Broadcast,
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllToAll,
        CollectiveKind::Gather,
        CollectiveKind::Scatter,
        CollectiveKind::Barrier,
    ];

    /// The name in cluster files, options and reports: `all_reduce`.
    pub const fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::Reduce => "reduce",
            CollectiveKind::Broadcast => "broadcast",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::Gather => "gather",
            CollectiveKind::Scatter => "scatter",
            CollectiveKind::Barrier => "barrier",
        }
    }

    /// Whether this kind of collective has a root.
    pub const fn has_root(self) -> bool {
        use CollectiveKind::{Broadcast, Gather, Reduce, Scatter};
        matches!(self, Reduce | Broadcast | Gather | Scatter)
    }

    /// Can it be called with blocks of these numbers of elements?
    pub const fn takes(self, shape: &Shape) -> bool {
        use CollectiveKind::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        match shape {
            Shape::Even(_) => true,
            Shape::Blocks(_) => matches!(self, AllGather | ReduceScatter | Gather | Scatter),
            Shape::Pairs { .. } => matches!(self, AllToAll),
        }
    }
}

impl fmt::Display for CollectiveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl CallOp {
    /// The name of a message's sending.
    pub const SEND: &str = "send";

    /// The name of a write into another member's memory.
    pub const WRITE: &str = "write";

    /// The name in reports: a collective's, `send`, `recv` or `write`.
    pub const fn name(&self) -> &'static str {
        match self {
            CallOp::Collective(collective) => collective.kind.name(),
            CallOp::Send { .. } => CallOp::SEND,
            CallOp::Recv { .. } => "recv",
            CallOp::Write { .. } => CallOp::WRITE,
        }
    }

    /// Size of the tensor that a member of a group of `members` names in the call: [`Collective::bytes`], or the message.
    pub fn bytes(&self, members: u32) -> Bytes {
        match self {
            CallOp::Collective(collective) => collective.bytes(members),
            CallOp::Send { bytes, .. } | CallOp::Recv { bytes, .. } | CallOp::Write { bytes, .. } => *bytes,
        }
    }

    /// Bytes that count for the bus bandwidth: the bytes of the operation times nccl-tests' factor for its kind
    /// (`doc/PERFORMANCE.md`). These bytes over the duration of the operation are the bus bandwidth, which can be compared
    /// with the bandwidth of the hardware for any number of `members`.
    pub fn bus_bytes(&self, members: u32) -> Bytes {
        let CallOp::Collective(collective) = self else { return self.bytes(members) };
        let (named, members) = (u128::from(collective.bytes(members).0), u128::from(members.max(1)));
        let all_blocks = match collective.shape {
            Shape::Even(_) => named * members,
            Shape::Blocks(_) | Shape::Pairs { .. } => named,
        };
        let of_others = |bytes: u128| bytes * (members - 1) / members;
        let bytes = match collective.kind {
            CollectiveKind::AllReduce => 2 * of_others(named),
            CollectiveKind::AllToAll => of_others(named),
            CollectiveKind::AllGather
            | CollectiveKind::ReduceScatter
            | CollectiveKind::Gather
            | CollectiveKind::Scatter => of_others(all_blocks),
            CollectiveKind::Broadcast | CollectiveKind::Reduce => named,
            CollectiveKind::Barrier => 0,
        };
        Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

impl Collective {
    /// Size of the tensor that a member of a group of `members` names in the call: one block of an even shape, the sum of unequal ones.
    /// Of an all-to-all it is all that the member sends, whether its blocks are equal or not.
    pub fn bytes(&self, members: u32) -> Bytes {
        let element = self.dtype.size();
        let bytes = |count: &u64| Bytes(count.saturating_mul(element));
        match &self.shape {
            Shape::Even(count) if self.kind == CollectiveKind::AllToAll => {
                bytes(&count.saturating_mul(u64::from(members)))
            }
            Shape::Even(count) => bytes(count),
            Shape::Blocks(blocks) => blocks.iter().map(bytes).sum(),
            Shape::Pairs { send, .. } => send.iter().map(bytes).sum(),
        }
    }
}

/// How a reduction combines elements; torch's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it
pub enum ReduceOp {
    Sum,
    Avg,
    Product,
    Min,
    Max,
    Band,
    Bor,
    Bxor,
    PremulSum,
}

impl ReduceOp {
    /// Every reduction, in the order of declaration.
    pub const ALL: [ReduceOp; 9] = [
        ReduceOp::Sum,
        ReduceOp::Avg,
        ReduceOp::Product,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Band,
        ReduceOp::Bor,
        ReduceOp::Bxor,
        ReduceOp::PremulSum,
    ];

    /// torch's name, as in `torch.distributed.ReduceOp`.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "SUM",
            ReduceOp::Avg => "AVG",
            ReduceOp::Product => "PRODUCT",
            ReduceOp::Min => "MIN",
            ReduceOp::Max => "MAX",
            ReduceOp::Band => "BAND",
            ReduceOp::Bor => "BOR",
            ReduceOp::Bxor => "BXOR",
            ReduceOp::PremulSum => "PREMUL_SUM",
        }
    }
}

/// An operation of the key-value store. Keys and values are bytes, as in torch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // torch.distributed.Store has the same methods
pub enum StoreOp {
    Set {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    /// Blocks until the key is there.
    Get {
        key: Vec<u8>,
    },
    /// Adds to a decimal number (0 if absent) and returns the sum.
    Add {
        key: Vec<u8>,
        amount: i64,
    },
    /// Appends to a value (empty if absent).
    Append {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    /// Sets `desired` if the value is `expected` (or the key is absent and `expected` is empty); returns the value then held.
    CompareSet {
        key: Vec<u8>,
        expected: Vec<u8>,
        desired: Vec<u8>,
    },
    /// Blocks until all keys are there.
    Wait {
        keys: Vec<Vec<u8>>,
    },
    /// Are all keys there?
    Check {
        keys: Vec<Vec<u8>>,
    },
    /// Was the key there?
    Delete {
        key: Vec<u8>,
    },
    /// How many keys start with these bytes?
    Count {
        prefix: Vec<u8>,
    },
    /// The keys that start with these bytes, sorted.
    List {
        prefix: Vec<u8>,
    },
    QueuePush {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    /// The oldest value of a queue; blocks until there is one if `block`, else an empty queue is [`StoreValue::Absent`].
    QueuePop {
        key: Vec<u8>,
        block: bool,
    },
    QueueLength {
        key: Vec<u8>,
    },
}

/// What a store operation returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it
pub enum StoreValue {
    Done,
    Absent,
    Flag(bool),
    Number(i64),
    Bytes(Vec<u8>),
    Keys(Vec<Vec<u8>>),
    /// `Add` on a value that is no number.
    NotANumber,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bus bytes for four members with blocks of 100 bytes, or tensors of 400 bytes: nccl-tests' factors, such as
    /// `2(n-1)/n`, times the bytes of all blocks.
    #[test]
    fn bus_bandwidth_counts_what_nccl_tests_count() {
        let bytes = |kind, shape| {
            let (dtype, reduce, root, kernel) = (DType::UInt8, None, None, None);
            CallOp::Collective(Collective { kind, dtype, reduce, root, shape, kernel }).bus_bytes(4).0
        };
        assert_eq!(bytes(CollectiveKind::AllReduce, Shape::Even(400)), 600);
        assert_eq!(bytes(CollectiveKind::AllGather, Shape::Even(100)), 300);
        assert_eq!(bytes(CollectiveKind::ReduceScatter, Shape::Blocks(vec![50, 150, 100, 100])), 300);
        assert_eq!(bytes(CollectiveKind::AllToAll, Shape::Even(100)), 300);
        assert_eq!(bytes(CollectiveKind::Broadcast, Shape::Even(400)), 400);
        assert_eq!(CallOp::Send { to: GroupRank(1), tag: 0, bytes: Bytes(7) }.bus_bytes(4).0, 7);
    }
}
