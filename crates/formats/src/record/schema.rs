//! Owns the encoding of ranks' requests in a program record. The encoding is separate from the simulator's types, so
//! that either may change without the other.
//!
//! All frames are postcard. Postcard numbers the variants of an enum in their order in this file, and the tables below
//! number enums without fields: new variants are added at the end, and no variant changes its position. Times are
//! picoseconds, sizes bytes. All versions of the format share this encoding. Some variants occur only from a version
//! on: [`Step::Named`] and [`Step::Line`] from version 2; [`Step::Operators`] and [`Step::HandlesInOrder`] from version
//! 3; [`Step::Elapsed`], [`Activity::Part`] and [`Activity::Reach`] from version 4; [`Step::Look`] from version 5
//! (ranks of earlier versions read the clock by [`Step::Now`]); [`Mark::Open`] and [`Mark::Close`] from version 6;
//! [`Mark::Name`] from version 7; [`Step::Follows`] from version 8 (earlier versions have [`Step::After`]);
//! [`CallOp::Write`] from version 9; and [`Mark::Enter`], [`Mark::Leave`] and [`Step::JoinConfigured`] from version 11.

use crate::report::Manifest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uniference_sim::device::Resource;
use uniference_sim::ids::{GroupId, GroupRank, Handle, QueueId, RankId, Site, TaskId};
use uniference_sim::program::{
    self, CollectiveKind, DType, NcclSettings, Origin, Outcome, PeerKernel, ReduceOp, Request,
};
use uniference_sim::replay::RecordedStep;
use uniference_sim::time::{Bytes, SimDuration};

/// Maximum size of a call: 1 PiB, as in traces. With larger sizes, sums would saturate.
const LARGEST_SIZE: Bytes = Bytes(1 << 50);

/// A value's number in records is its index in these tables: new values are appended.
const ORIGINS: [Origin; Origin::ALL.len()] = [
    Origin::Measured,
    Origin::Recorded,
    Origin::None,
    Origin::Roofline,
    Origin::Database,
    Origin::Interpolated,
    Origin::Transferred,
    Origin::Extrapolated,
];
const RESOURCES: [Resource; 4] =
    [Resource::Host, Resource::Accelerator, Resource::CopyEngine, Resource::Multiprocessor];
const OUTCOMES: [Outcome; 3] = [Outcome::Ok, Outcome::Failed, Outcome::Crashed];
const KINDS: [CollectiveKind; CollectiveKind::ALL.len()] = {
    use CollectiveKind::{AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
    [AllReduce, Reduce, Broadcast, AllGather, ReduceScatter, AllToAll, Gather, Scatter, Barrier]
};
const REDUCTIONS: [ReduceOp; 9] = {
    use ReduceOp::{Avg, Band, Bor, Bxor, Max, Min, PremulSum, Product, Sum};
    [Sum, Avg, Product, Min, Max, Band, Bor, Bxor, PremulSum]
};
const DTYPES: [DType; 20] = {
    use DType::{
        BFloat16, Bool, Complex32, Complex64, Complex128, Float8E4M3, Float8E4M3Fnuz, Float8E5M2, Float8E5M2Fnuz,
        Float16, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64,
    };
    [
        Bool,
        UInt8,
        Int8,
        UInt16,
        Int16,
        UInt32,
        Int32,
        UInt64,
        Int64,
        Float16,
        BFloat16,
        Float32,
        Float64,
        Float8E4M3,
        Float8E5M2,
        Float8E4M3Fnuz,
        Float8E5M2Fnuz,
        Complex32,
        Complex64,
        Complex128,
    ]
};

/// The header of a record, before the first step.
#[derive(Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) world_size: u32,
    cluster: String,
    versions: BTreeMap<String, String>,
    seed: u64,
    command: Vec<String>,
}

/// The header of a record of version 3 or later.
#[derive(Serialize, Deserialize)]
pub(super) struct FullHeader {
    header: Header,
    compute: String,
    models: BTreeMap<String, String>,
}

/// The next step of a task.
#[derive(Serialize, Deserialize)]
pub(super) enum Step {
    Issue {
        activity: Activity,
        queue: u32,
        after: Vec<u32>,
        site: u32,
    },
    Wait {
        handles: Vec<u32>,
        any: bool,
        timeout: Option<u64>,
        site: u32,
    },
    Now,
    JoinGroup {
        ranks: Vec<u32>,
        sequence: u32,
    },
    Store {
        operation: StoreOp,
        timeout: Option<u64>,
        site: u32,
    },
    Exit(u32),
    Pause {
        timeout: u64,
        site: u32,
    },
    /// [`RecordedStep::After`]
    After {
        task: u32,
        resumption: u64,
    },
    /// [`RecordedStep::Named`]
    Named {
        group: u32,
    },
    /// A definition without an action: in later steps of the rank, this number stands for this source line of the
    /// program.
    Line {
        site: u32,
        text: String,
    },
    /// [`RecordedStep::Operators`]
    Operators {
        operators: Vec<u8>,
        measured: u64,
    },
    /// [`RecordedStep::HandlesInOrder`]
    HandlesInOrder,
    Elapsed {
        from: u32,
        to: u32,
        site: u32,
    },
    Look,
    /// [`RecordedStep::Follows`]
    Follows {
        rank: u32,
        task: u32,
        resumption: u64,
    },
    /// Like `JoinGroup`, for a group with [`NcclSettings`] or with rendezvous.
    JoinConfigured {
        ranks: Vec<u32>,
        sequence: u32,
        algorithms: [u8; 5],
        protocols: [u8; 5],
        channels: [u32; 2],
        peer_access: bool,
        rendezvous: bool,
    },
}

#[derive(Serialize, Deserialize)]
pub(super) enum Activity {
    Compute {
        duration: u64,
        origin: u32,
    },
    Call {
        group: u32,
        op: CallOp,
    },
    Sleep(u64),
    Mark(Mark),
    Store(StoreOp),
    Finish,
    Close(u32),
    /// Like `Compute`, on another part of the device than `Resource::Accelerator`.
    Part {
        duration: u64,
        origin: u32,
        resource: u32,
    },
    Reach(u32),
    Abort(u32),
}

#[derive(Serialize, Deserialize)]
pub(super) enum Mark {
    Begin(String),
    End,
    Open { range: u32, name: String },
    Close { range: u32 },
    Name(String),
    Enter { range: u32, thread: u32, name: String },
    Leave { range: u32, thread: u32 },
}

#[derive(Serialize, Deserialize)]
pub(super) enum CallOp {
    Collective {
        kind: u32,
        dtype: u32,
        reduce: Option<u32>,
        root: Option<u32>,
        shape: Shape,
    },
    Send {
        to: u32,
        tag: u64,
        bytes: u64,
    },
    Recv {
        from: Option<u32>,
        tag: u64,
        bytes: u64,
    },
    Write {
        to: u32,
        bytes: u64,
    },
    /// A collective that a kernel of the program carries out.
    Peers {
        kind: u32,
        dtype: u32,
        reduce: Option<u32>,
        elements: u64,
        two_shot: bool,
    },
}

#[derive(Serialize, Deserialize)]
pub(super) enum Shape {
    Even(u64),
    Blocks(Vec<u64>),
    Pairs { send: Vec<u64>, recv: Vec<u64> },
}

#[derive(Serialize, Deserialize)]
pub(super) enum StoreOp {
    Set { key: Vec<u8>, value: Vec<u8> },
    Get { key: Vec<u8> },
    Add { key: Vec<u8>, amount: i64 },
    Append { key: Vec<u8>, value: Vec<u8> },
    CompareSet { key: Vec<u8>, expected: Vec<u8>, desired: Vec<u8> },
    Wait { keys: Vec<Vec<u8>> },
    Check { keys: Vec<Vec<u8>> },
    Delete { key: Vec<u8> },
    Count { prefix: Vec<u8> },
    List { prefix: Vec<u8> },
    QueuePush { key: Vec<u8>, value: Vec<u8> },
    QueuePop { key: Vec<u8>, block: bool },
    QueueLength { key: Vec<u8> },
}

/// The content of a step that was read: a step of a replay, or a line's text.
pub(super) enum Read {
    Step(RecordedStep),
    Line(Site, String),
}

impl Header {
    pub(super) fn of(header: &super::Header) -> Header {
        let super::Header { world_size, manifest } = header;
        let Manifest { cluster, versions, seed, command, .. } = manifest.clone();
        Header { world_size: *world_size, cluster, versions, seed, command }
    }

    pub(super) fn read(self) -> super::Header {
        let Header { world_size, cluster, versions, seed, command } = self;
        super::Header { world_size, manifest: Manifest { cluster, versions, seed, command, ..Manifest::default() } }
    }
}

impl FullHeader {
    pub(super) fn of(header: &super::Header) -> FullHeader {
        let Manifest { compute, models, .. } = header.manifest.clone();
        FullHeader { header: Header::of(header), compute, models }
    }

    pub(super) fn read(self) -> super::Header {
        let FullHeader { header, compute, models } = self;
        let super::Header { world_size, manifest } = header.read();
        super::Header { world_size, manifest: Manifest { compute, models, ..manifest } }
    }
}

impl Step {
    pub(super) fn of(step: &RecordedStep) -> Step {
        match step {
            RecordedStep::Request(request) => Step::of_request(request),
            RecordedStep::After { task, resumption } => Step::After { task: task.0, resumption: *resumption },
            RecordedStep::Follows { rank, task, resumption } => {
                Step::Follows { rank: rank.0, task: task.0, resumption: *resumption }
            }
            RecordedStep::Named(group) => Step::Named { group: group.0 },
            RecordedStep::HandlesInOrder => Step::HandlesInOrder,
            RecordedStep::Operators { operators, measured } => {
                Step::Operators { operators: operators.clone(), measured: measured.as_ps() }
            }
        }
    }

    fn of_request(request: &Request) -> Step {
        let ids = |handles: &[Handle]| handles.iter().map(|handle| handle.0).collect();
        let limit = |timeout: &Option<SimDuration>| timeout.map(SimDuration::as_ps);
        match request {
            Request::Issue { activity, queue, after, site } => {
                Step::Issue { activity: Activity::of(activity), queue: queue.0, after: ids(after), site: site.0 }
            }
            Request::Wait { handles, any, timeout, site } => {
                Step::Wait { handles: ids(handles), any: *any, timeout: limit(timeout), site: site.0 }
            }
            Request::Now => Step::Now,
            Request::Look => Step::Look,
            Request::JoinGroup { ranks, sequence, settings, rendezvous } => {
                let (ranks, sequence) = (ranks.iter().map(|rank| rank.0).collect(), *sequence);
                if settings.is_none() && !rendezvous {
                    return Step::JoinGroup { ranks, sequence };
                }
                let NcclSettings { algorithms, protocols, channels, peer_access } = settings.unwrap_or_default();
                let rendezvous = *rendezvous;
                Step::JoinConfigured { ranks, sequence, algorithms, protocols, channels, peer_access, rendezvous }
            }
            Request::NameGroup { name, .. } => panic!("the name {name} of a group is not recorded"),
            Request::Store { operation, timeout, site } => {
                Step::Store { operation: StoreOp::of(operation), timeout: limit(timeout), site: site.0 }
            }
            Request::Elapsed { from, to, site } => Step::Elapsed { from: *from, to: *to, site: site.0 },
            Request::Exit(outcome) => Step::Exit(number(&OUTCOMES, outcome)),
            Request::Pause { timeout, site } => Step::Pause { timeout: timeout.as_ps(), site: site.0 },
        }
    }

    /// The content of the step, or the reason why it is invalid.
    pub(super) fn read(self) -> Result<Read, String> {
        let ids = |handles: Vec<u32>| handles.into_iter().map(Handle).collect();
        let limit = |timeout: Option<u64>| timeout.map(SimDuration::from_ps);
        let request = match self {
            Step::Issue { activity, queue, after, site } => Request::Issue {
                activity: activity.read()?,
                queue: QueueId(queue),
                after: ids(after),
                site: Site(site),
            },
            Step::Wait { handles, any, timeout, site } => {
                Request::Wait { handles: ids(handles), any, timeout: limit(timeout), site: Site(site) }
            }
            Step::Now => Request::Now,
            Step::Look => Request::Look,
            Step::JoinGroup { ranks, sequence } => Request::JoinGroup {
                ranks: ranks.into_iter().map(RankId).collect(),
                sequence,
                settings: None,
                rendezvous: false,
            },
            Step::JoinConfigured { ranks, sequence, algorithms, protocols, channels, peer_access, rendezvous } => {
                let ranks = ranks.into_iter().map(RankId).collect();
                let settings = NcclSettings { algorithms, protocols, channels, peer_access };
                let settings = (settings != NcclSettings::default()).then_some(settings);
                Request::JoinGroup { ranks, sequence, settings, rendezvous }
            }
            Step::Store { operation, timeout, site } => {
                Request::Store { operation: operation.read(), timeout: limit(timeout), site: Site(site) }
            }
            Step::Elapsed { from, to, site } => Request::Elapsed { from, to, site: Site(site) },
            Step::Exit(outcome) => Request::Exit(numbered(&OUTCOMES, outcome, "outcome")?),
            Step::Pause { timeout, site } => {
                Request::Pause { timeout: SimDuration::from_ps(timeout), site: Site(site) }
            }
            Step::After { task, resumption } => {
                return Ok(Read::Step(RecordedStep::After { task: TaskId(task), resumption }));
            }
            Step::Follows { rank, task, resumption } => {
                let (rank, task) = (RankId(rank), TaskId(task));
                return Ok(Read::Step(RecordedStep::Follows { rank, task, resumption }));
            }
            Step::Named { group } => return Ok(Read::Step(RecordedStep::Named(GroupId(group)))),
            Step::Operators { operators, measured } => {
                let measured = SimDuration::from_ps(measured);
                return Ok(Read::Step(RecordedStep::Operators { operators, measured }));
            }
            Step::HandlesInOrder => return Ok(Read::Step(RecordedStep::HandlesInOrder)),
            Step::Line { site, text } => return Ok(Read::Line(Site(site), text)),
        };
        Ok(Read::Step(RecordedStep::Request(request)))
    }
}

impl Activity {
    fn of(activity: &program::Activity) -> Activity {
        match activity {
            program::Activity::Compute(work) => {
                let (duration, origin) = (work.duration.as_ps(), number(&ORIGINS, &work.origin));
                match work.resource {
                    Resource::Accelerator => Activity::Compute { duration, origin },
                    other => Activity::Part { duration, origin, resource: number(&RESOURCES, &other) },
                }
            }
            program::Activity::Reach(event) => Activity::Reach(*event),
            program::Activity::Call(call) => Activity::Call { group: call.group.0, op: CallOp::of(&call.op) },
            program::Activity::Sleep(duration) => Activity::Sleep(duration.as_ps()),
            program::Activity::Mark(mark) => Activity::Mark(match mark {
                program::Mark::Begin(name) => Mark::Begin(name.to_string()),
                program::Mark::End => Mark::End,
                program::Mark::Open { range, name } => Mark::Open { range: *range, name: name.to_string() },
                program::Mark::Close { range } => Mark::Close { range: *range },
                program::Mark::Name(name) => Mark::Name(name.to_string()),
                program::Mark::Enter { range, thread, name } => {
                    Mark::Enter { range: *range, thread: thread.0, name: name.to_string() }
                }
                program::Mark::Leave { range, thread } => Mark::Leave { range: *range, thread: thread.0 },
            }),
            program::Activity::Store(operation) => Activity::Store(StoreOp::of(operation)),
            program::Activity::Finish => Activity::Finish,
            program::Activity::Close(group) => Activity::Close(group.0),
            program::Activity::Abort(group) => Activity::Abort(group.0),
        }
    }

    fn read(self) -> Result<program::Activity, String> {
        Ok(match self {
            Activity::Compute { duration, origin } => {
                let duration = SimDuration::from_ps(duration);
                program::Activity::Compute(program::Work::new(duration, numbered(&ORIGINS, origin, "origin")?))
            }
            Activity::Part { duration, origin, resource } => {
                let resource = numbered(&RESOURCES, resource, "part of a device")?;
                let origin = numbered(&ORIGINS, origin, "origin")?;
                let work = program::Work::new(SimDuration::from_ps(duration), origin).on(resource);
                program::Activity::Compute(work)
            }
            Activity::Reach(event) => program::Activity::Reach(event),
            Activity::Call { group, op } => {
                let call = program::Call { group: GroupId(group), op: op.read()? };
                if call.op.bytes(1) > LARGEST_SIZE {
                    return Err(format!("invalid call size of {} bytes", call.op.bytes(1).0));
                }
                program::Activity::Call(call)
            }
            Activity::Sleep(duration) => program::Activity::Sleep(SimDuration::from_ps(duration)),
            Activity::Mark(mark) => program::Activity::Mark(match mark {
                Mark::Begin(name) => program::Mark::Begin(name.into()),
                Mark::End => program::Mark::End,
                Mark::Open { range, name } => program::Mark::Open { range, name: name.into() },
                Mark::Close { range } => program::Mark::Close { range },
                Mark::Name(name) => program::Mark::Name(name.into()),
                Mark::Enter { range, thread, name } => {
                    program::Mark::Enter { range, thread: TaskId(thread), name: name.into() }
                }
                Mark::Leave { range, thread } => program::Mark::Leave { range, thread: TaskId(thread) },
            }),
            Activity::Store(operation) => program::Activity::Store(operation.read()),
            Activity::Finish => program::Activity::Finish,
            Activity::Close(group) => program::Activity::Close(GroupId(group)),
            Activity::Abort(group) => program::Activity::Abort(GroupId(group)),
        })
    }
}

impl CallOp {
    fn of(op: &program::CallOp) -> CallOp {
        match op {
            program::CallOp::Collective(program::Collective {
                kind,
                dtype,
                reduce,
                shape: program::Shape::Even(elements),
                kernel: Some(kernel),
                ..
            }) => CallOp::Peers {
                kind: number(&KINDS, kind),
                dtype: number(&DTYPES, dtype),
                reduce: reduce.map(|reduce| number(&REDUCTIONS, &reduce)),
                elements: *elements,
                two_shot: *kernel == PeerKernel::TwoShot,
            },
            program::CallOp::Collective(program::Collective { kind, dtype, reduce, root, shape, .. }) => {
                let shape = match shape {
                    program::Shape::Even(count) => Shape::Even(*count),
                    program::Shape::Blocks(blocks) => Shape::Blocks(blocks.clone()),
                    program::Shape::Pairs { send, recv } => Shape::Pairs { send: send.clone(), recv: recv.clone() },
                };
                CallOp::Collective {
                    kind: number(&KINDS, kind),
                    dtype: number(&DTYPES, dtype),
                    reduce: reduce.map(|reduce| number(&REDUCTIONS, &reduce)),
                    root: root.map(|root| root.0),
                    shape,
                }
            }
            program::CallOp::Send { to, tag, bytes } => CallOp::Send { to: to.0, tag: *tag, bytes: bytes.0 },
            program::CallOp::Recv { from, tag, bytes } => {
                CallOp::Recv { from: from.map(|from| from.0), tag: *tag, bytes: bytes.0 }
            }
            program::CallOp::Write { to, bytes } => CallOp::Write { to: to.0, bytes: bytes.0 },
        }
    }

    fn read(self) -> Result<program::CallOp, String> {
        Ok(match self {
            CallOp::Collective { kind, dtype, reduce, root, shape } => {
                program::CallOp::Collective(program::Collective {
                    kind: numbered(&KINDS, kind, "collective")?,
                    dtype: numbered(&DTYPES, dtype, "dtype")?,
                    reduce: reduce.map(|reduce| numbered(&REDUCTIONS, reduce, "reduction")).transpose()?,
                    root: root.map(GroupRank),
                    shape: match shape {
                        Shape::Even(count) => program::Shape::Even(count),
                        Shape::Blocks(blocks) => program::Shape::Blocks(blocks),
                        Shape::Pairs { send, recv } => program::Shape::Pairs { send, recv },
                    },
                    kernel: None,
                })
            }
            CallOp::Peers { kind, dtype, reduce, elements, two_shot } => {
                let kind = numbered(&KINDS, kind, "collective")?;
                let kernel = if two_shot { PeerKernel::TwoShot } else { PeerKernel::OneShot };
                if !kernel.kinds().contains(&kind) {
                    return Err(format!("no kernel {} carries out {kind}", kernel.name()));
                }
                program::CallOp::Collective(program::Collective {
                    kind,
                    dtype: numbered(&DTYPES, dtype, "dtype")?,
                    reduce: reduce.map(|reduce| numbered(&REDUCTIONS, reduce, "reduction")).transpose()?,
                    root: None,
                    shape: program::Shape::Even(elements),
                    kernel: Some(kernel),
                })
            }
            CallOp::Send { to, tag, bytes } => program::CallOp::Send { to: GroupRank(to), tag, bytes: Bytes(bytes) },
            CallOp::Recv { from, tag, bytes } => {
                program::CallOp::Recv { from: from.map(GroupRank), tag, bytes: Bytes(bytes) }
            }
            CallOp::Write { to, bytes } => program::CallOp::Write { to: GroupRank(to), bytes: Bytes(bytes) },
        })
    }
}

/// Conversions between enums with equal variants and fields in this module and in the simulator.
macro_rules! alike {
    ($($variant:ident { $($field:ident),+ }),+ $(,)?) => {
        impl StoreOp {
            fn of(operation: &program::StoreOp) -> StoreOp {
                match operation.clone() {
                    $(program::StoreOp::$variant { $($field),+ } => StoreOp::$variant { $($field),+ },)+
                }
            }

            fn read(self) -> program::StoreOp {
                match self {
                    $(StoreOp::$variant { $($field),+ } => program::StoreOp::$variant { $($field),+ },)+
                }
            }
        }
    };
}

alike! {
    Set { key, value }, Get { key }, Add { key, amount }, Append { key, value }, CompareSet { key, expected, desired },
    Wait { keys }, Check { keys }, Delete { key }, Count { prefix }, List { prefix }, QueuePush { key, value },
    QueuePop { key, block }, QueueLength { key },
}

/// The index of a value in the record's table of such values.
fn number<T: PartialEq>(table: &[T], value: &T) -> u32 {
    table.iter().position(|known| known == value).expect("its table has all of them") as u32
}

fn numbered<T: Copy>(table: &[T], number: u32, what: &str) -> Result<T, String> {
    table.get(number as usize).copied().ok_or_else(|| format!("unknown {what} {number}"))
}
