//! Owns the only interface between ranks and the engine: the requests of ranks, and their replies.
//!
//! A live Python process, a replayed trace and a Rust program all use this interface only, so that the engine cannot
//! tell them apart.

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
    /// Called when `task` may continue at `now`; returns its next request. The first reply is [`Reply::Start`].
    ///
    /// # Errors
    /// If the program cannot continue. The run then ends with this error; a program that fails in simulated time
    /// submits [`Request::Exit`] instead.
    fn resume(&mut self, now: SimTime, task: TaskId, reply: Reply) -> Result<Request, ProgramError>;
}

/// Reason why a program cannot continue.
pub type ProgramError = Box<dyn std::error::Error + Send + Sync>;

/// Request of a task, which is blocked until the reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Starts an activity, and continues: [`Reply::Issued`].
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
    /// Blocks until all (or any) of `handles` are complete, or one has failed: [`Reply::Complete`], [`Reply::Failed`]
    /// or [`Reply::TimedOut`].
    Wait {
        /// Handles of this rank. A complete handle may be named any number of times; a failure is reported once.
        handles: Vec<Handle>,
        /// Whether the wait ends with the first complete handle.
        any: bool,
        /// Longest duration of the wait.
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
        /// Name of the group; different groups must have different names, except groups of one member.
        name: Arc<str>,
        /// Number of members.
        members: u32,
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
        /// Longest duration of an operation that blocks.
        timeout: Option<SimDuration>,
        /// The user's line.
        site: Site,
    },
    /// Reads the time between two events of the rank ([`Activity::Reach`]), which costs [`POLL_COST`]:
    /// [`Reply::Elapsed`].
    Elapsed {
        /// The first event.
        from: u32,
        /// The second event.
        to: u32,
        /// The user's line.
        site: Site,
    },
    /// Reads the clock, which costs [`LOOK_COST`], and [`POLL_COST`] from the thousandth time in a row: [`Reply::Now`].
    Look,
    /// The task has ended. A rank is finished when its task 0 is.
    Exit(Outcome),
    /// Blocks until the timeout: [`Reply::TimedOut`]. Another thread of the rank may resume the task earlier; the
    /// engine learns of it only by the task's next request: a paused task may make requests.
    Pause {
        /// Duration of the pause.
        timeout: SimDuration,
        /// The user's line.
        site: Site,
    },
}

impl Request {
    /// The line of the request, if it has one.
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

/// Reply to a blocked task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// The task's first turn.
    Start,
    /// The activity was accepted.
    Issued(Handle),
    /// The wait is over: the complete ones among the awaited handles, in the order of the request.
    Complete(Vec<Handle>),
    /// Like [`Reply::Complete`], but some operations have failed: their connection to a rank was closed.
    Failed {
        /// Handles that are complete, including failed ones.
        complete: Vec<Handle>,
        /// Failed handles, each with the rank at the other end of the connection.
        failed: Vec<(Handle, RankId)>,
    },
    /// The timeout of a wait or of a store operation has passed.
    TimedOut,
    /// The rank's clock.
    Now(SimTime),
    /// The group's id.
    Group(GroupId),
    /// A store operation's result.
    Store(StoreValue),
    /// Picoseconds between two events, negative if the second one came first; `None`: one of them was not reached since
    /// it was last issued.
    Elapsed(Option<i64>),
}

/// Cost of a poll or of a query of the store, so that a busy-wait makes progress.
pub const POLL_COST: SimDuration = SimDuration::from_us(1);

/// Cost of a read of the clock: `clock_gettime` through the vDSO, from Python (45 ns for `time.perf_counter()` on a
/// Xeon of 2.1 GHz).
pub const LOOK_COST: SimDuration = SimDuration::from_ps(50_000);

/// End of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// The task's program returned.
    Ok,
    /// The task's program failed.
    Failed,
    /// The task crashed, as the cluster specifies. No program requests this.
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
    /// A mark in traces; lasts no time.
    Mark(Mark),
    /// An operation of the store without an answer: complete once the store has served it. This activity is for ranks
    /// that are graphs of activities; a program uses [`Request::Store`].
    Store(StoreOp),
    /// The rank's program ends, and the rank is finished although its task continues: for graphs whose last node is not
    /// the program's end, as when threads outlive it.
    Finish,
    /// Reaches an event, such as a CUDA event: lasts no time. The instant is kept under the rank's own number of the
    /// event until the event is issued again.
    Reach(u32),
    /// Closes the rank's connections of a group. Ranks that wait for data of this rank in the group, now or later, are
    /// notified if this rank has aborted the group before or if a rank of the run has crashed. Otherwise a wait for an
    /// absent rank is reported as a deadlock.
    Close(GroupId),
    /// Ends the rank's outstanding operations in a group, and all later ones: those operations fail, and the rank
    /// itself counts as the one that has closed the connection. Other members are not notified, and wait on for this
    /// rank.
    Abort(GroupId),
}

/// A named range of the user's program begins or ends, or a thread gets a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mark {
    /// Beginning of a range of the thread, nested in the thread's open ranges. Only recordings of real runs and records
    /// of earlier versions have this mark.
    Begin(Arc<str>),
    /// End of the thread's innermost open range that a [`Mark::Begin`] began.
    End,
    /// A range of the rank (`nvtx.range_start`) begins. Such ranges need not nest, and may begin and end on different
    /// threads.
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
    /// Name of the thread from now on.
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

/// An operation of a process group, as one member calls it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Call {
    /// The process group.
    pub group: GroupId,
    /// The operation and its arguments.
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
    /// Writes into the memory of another member, which makes no call: RDMA write. Complete once the writer has the
    /// acknowledgement of all data.
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
    /// Combination of elements, if the kind reduces.
    pub reduce: Option<ReduceOp>,
    /// The root, if the kind has one.
    pub root: Option<GroupRank>,
    /// Number of elements.
    pub shape: Shape,
    /// The program's own kernel that carries out the collective; `None`: the communication library does.
    pub kernel: Option<PeerKernel>,
}

/// A kernel of the program that carries out a collective: each member's GPU reads the other members' memory, in one
/// server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PeerKernel {
    /// Each member reads all the data that it needs from every other one, and combines it.
    OneShot,
    /// Each member combines its block, and then reads the other combined blocks.
    TwoShot,
}

impl PeerKernel {
    /// The kinds of collective for which such kernels exist, all of them with even shapes.
    pub const fn kinds(self) -> &'static [CollectiveKind] {
        match self {
            PeerKernel::OneShot => {
                &[CollectiveKind::AllReduce, CollectiveKind::AllGather, CollectiveKind::ReduceScatter]
            }
            PeerKernel::TwoShot => &[CollectiveKind::AllReduce],
        }
    }

    /// The name in reports, like an algorithm's.
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
    /// Elements of the tensor (all-reduce, reduce, broadcast), or of every rank's block (all-gather, reduce-scatter,
    /// all-to-all, gather, scatter).
    Even(u64),
    /// Elements of the block of each rank of the group in turn. A reduce-scatter of a list of tensors has this shape
    /// even if they are equal, because Gloo carries it out differently from that of one tensor.
    Blocks(Vec<u64>),
    /// All-to-all with unequal blocks: elements that this rank sends to, and receives from, each rank in turn.
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

    /// Whether the kind can be called with this shape.
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
    /// Name of the send of a message.
    pub const SEND: &str = "send";

    /// Name of a write into another member's memory.
    pub const WRITE: &str = "write";

    /// Name in reports: the collective's kind, `send`, `recv` or `write`.
    pub const fn name(&self) -> &'static str {
        match self {
            CallOp::Collective(collective) => collective.kind.name(),
            CallOp::Send { .. } => CallOp::SEND,
            CallOp::Recv { .. } => "recv",
            CallOp::Write { .. } => CallOp::WRITE,
        }
    }

    /// Size of the tensor in the call of a member of a group of `members`: [`Collective::bytes`], or the message.
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
    /// Size of the tensor in the call of a member of a group of `members`: one block of an even shape, the sum of
    /// unequal ones. For an all-to-all it is all data that the member sends, with equal blocks or not.
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

/// Reduction of elements, with torch's names.
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

    /// The reduction of this number in torch (`c10d::ReduceOp::RedOpType`), which is its place in [`ReduceOp::ALL`].
    pub fn from_number(number: u8) -> Option<ReduceOp> {
        ReduceOp::ALL.get(usize::from(number)).copied()
    }

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
    /// Blocks until the key exists.
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
    /// Sets `desired` if the value is `expected` (or the key is absent and `expected` is empty); returns the value then
    /// held.
    CompareSet {
        key: Vec<u8>,
        expected: Vec<u8>,
        desired: Vec<u8>,
    },
    /// Blocks until all keys exist.
    Wait {
        keys: Vec<Vec<u8>>,
    },
    /// Whether all keys exist.
    Check {
        keys: Vec<Vec<u8>>,
    },
    /// Deletes a key of the store; returns whether the key existed.
    Delete {
        key: Vec<u8>,
    },
    /// Number of keys that start with the given prefix.
    Count {
        prefix: Vec<u8>,
    },
    /// All keys that start with the given prefix, sorted.
    List {
        prefix: Vec<u8>,
    },
    QueuePush {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    /// The oldest value of a queue; blocks until the queue has one if `block`, else an empty queue is
    /// [`StoreValue::Absent`].
    QueuePop {
        key: Vec<u8>,
        block: bool,
    },
    QueueLength {
        key: Vec<u8>,
    },
}

/// Result of a store operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it
pub enum StoreValue {
    Done,
    Absent,
    Flag(bool),
    Number(i64),
    Bytes(Vec<u8>),
    Keys(Vec<Vec<u8>>),
    /// Result of `Add` on a value that is not a number.
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
