//! Owns the export of a program record to execution traces: the requests of each rank, as a graph.
//!
//! The record holds the order of a rank's requests; the graph holds only the dependencies of each request. The record
//! is replayed on its own cluster to obtain the replies to the program: the operations that a wait returned, whether a
//! timeout passed, the message that an open receive accepted.
//!
//! A thread has a current node at every moment: its next node depends on that one. Issuing an operation does not change
//! it; a wait changes it to the operations waited for. An operation therefore depends on the earlier work and waits of
//! its thread; work after a wait depends on the operations waited for, but work after an issue does not depend on the
//! issued operation. Nodes are numbered in the order in which the engine processed them, which is the order in which a
//! rank's queues serve them.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, Write};
use std::sync::Arc;
use uniference_formats::chakra::attributes::{
    COMM_DST, COMM_SIZE, COMM_SRC, COMM_TAG, COMM_TYPE, IS_CPU_OP, PG_NAME, ROOT_RANK, TID,
};
use uniference_formats::chakra::groups;
use uniference_formats::chakra::own::{self, Part, Pause};
use uniference_formats::chakra::schema::{Attribute, CommType, GlobalMetadata, Node, NodeType, Value};
use uniference_formats::chakra::write::Writer;
use uniference_formats::record::{Header, RecordError, RecordReader};
use uniference_formats::report::Manifest;
use uniference_sim::cluster::Cluster;
use uniference_sim::engine::{Engine, Resumption, RunEnd};
use uniference_sim::event::{Elapsed, Event, Meeting, Observer};
use uniference_sim::ids::{GroupId, Handle, RankId, Site, TaskId};
use uniference_sim::program::{Activity, Call, CallOp, Collective, CollectiveKind, Outcome, Reply, Request};
use uniference_sim::replay::{Listener, replay_heard};
use uniference_sim::time::{SimDuration, SimTime};

/// A record that cannot be exported to traces.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The record cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The run did not finish.
    #[error("the run did not finish: {0}\nhint: run the program again; traces require a run that has finished")]
    Unfinished(String),
    /// The record has streams of simulated GPUs.
    #[error(
        "the record has streams of simulated GPUs ({0}), which traces cannot hold yet\nhint: replay the record instead (uniference replay)"
    )]
    Streams(RankId),
    /// A trace cannot be written.
    #[error("cannot write the traces: {0}\nhint: free disk space, or choose another folder with --out")]
    Io(#[from] io::Error),
}

/// Figures of the exported traces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Number of nodes of all ranks together.
    pub nodes: u64,
    /// The process groups by name, as in ASTRA-sim's file of process groups.
    pub groups: BTreeMap<String, Vec<u32>>,
}

/// Replays `record` on `cluster`, its own with its seed, and writes a trace per rank to the output of `open`. `lines`
/// are the source lines of the program, read from the record's end. `listener` receives the events of the replay too,
/// since traces do not show dependences of the program's control flow on anything but its data.
///
/// # Errors
/// The record cannot be read, its run did not finish, or a trace cannot be written.
pub fn export<R: Read + Seek, W: Write>(
    record: RecordReader<R>,
    cluster: &Cluster,
    lines: &[String],
    listener: &mut dyn Listener,
    open: impl FnMut(RankId) -> io::Result<W>,
) -> Result<Exported, ExportError> {
    let mut exporter = Exporter::new(record.header(), lines, listener, open)?;
    let mut engine = Engine::new(cluster);
    let (ranks, rest) = record.by_rank();
    let ended = replay_heard(&mut engine, ranks, &mut exporter);
    rest.finish()?;
    match ended {
        RunEnd::Finished => exporter.finish(),
        RunEnd::Halted(halt) => Err(ExportError::Unfinished(format!("it stopped at {}", halt.at))),
        RunEnd::Failed(failure) => Err(ExportError::Unfinished(failure.to_string())),
        RunEnd::CutShort => Err(ExportError::Unfinished("its program record is incomplete".to_owned())),
    }
}

/// Writes traces from the events of a replay.
struct Exporter<'a, W: Write> {
    ranks: Vec<RankTrace<W>>,
    /// The members of each group, by the engine's number.
    groups: BTreeMap<GroupId, Arc<[RankId]>>,
    listener: &'a mut dyn Listener,
    lines: &'a [String],
    failed: Option<io::Error>,
    failed_rank: Option<RankId>,
    /// The first rank that issues work to a stream.
    streams: Option<RankId>,
}

/// One rank's trace.
struct RankTrace<W: Write> {
    writer: Writer<W>,
    tasks: Vec<TaskState>,
    /// By handle: the operation's node.
    issued: Vec<IssuedNode>,
    /// Operations that completed before the rank received their handle.
    early: BTreeMap<Handle, Completion>,
    /// Nodes that are not written yet, and whether each is final.
    pending: BTreeMap<u64, (Node, bool)>,
    next_id: u64,
    nodes: u64,
}

/// State of one thread.
#[derive(Clone, Default)]
struct TaskState {
    asked: Option<Request>,
    /// The thread's current node, on which its next node depends.
    behind: Option<u64>,
    /// The last known source line.
    site: Option<Site>,
    /// Duration of the thread's last poll.
    polled: SimDuration,
    /// Remainder of the rounding to whole microseconds.
    left_over: i64,
}

/// An activity's node, and its thread's current node at the issue; the outer `None` if it had further dependencies.
#[derive(Clone, Copy)]
struct IssuedNode {
    id: u64,
    after: Option<Option<u64>>,
}

/// The end of an operation.
#[derive(Clone, Copy)]
struct Completion {
    at: SimTime,
    issued: SimTime,
    peer: Option<RankId>,
}

impl<'a, W: Write> Exporter<'a, W> {
    fn new(
        header: &Header,
        lines: &'a [String],
        listener: &'a mut dyn Listener,
        mut open: impl FnMut(RankId) -> io::Result<W>,
    ) -> io::Result<Exporter<'a, W>> {
        let manifest = &header.manifest;
        let start = |rank| RankTrace::new(open(RankId(rank))?, Some(manifest).filter(|_| rank == 0));
        Ok(Exporter {
            ranks: (0..header.world_size).map(start).collect::<io::Result<_>>()?,
            groups: BTreeMap::new(),
            listener,
            lines,
            failed: None,
            failed_rank: None,
            streams: None,
        })
    }

    fn finish(self) -> Result<Exported, ExportError> {
        if let Some(rank) = self.streams {
            return Err(ExportError::Streams(rank));
        }
        if let Some(rank) = self.failed_rank {
            return Err(ExportError::Unfinished(format!("the program of {rank} failed")));
        }
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        let nodes = self.ranks.iter().map(|rank| rank.nodes).sum();
        self.ranks.into_iter().try_for_each(RankTrace::finish)?;
        let groups = self.groups.into_iter();
        let groups = groups.map(|(group, ranks)| (group_name(group), ranks.iter().map(|rank| rank.0).collect()));
        Ok(Exported { nodes, groups: groups.collect() })
    }

    /// Adds nodes for a request that the engine has answered.
    fn answered(&mut self, rank: RankId, task: TaskId, now: SimTime, request: Request, reply: &Reply) {
        match (request, reply) {
            (Request::Issue { activity, queue, after, .. }, Reply::Issued(handle)) => {
                if queue.stream().is_some() {
                    self.streams.get_or_insert(rank);
                }
                self.issued(rank, task, now, activity, &after, *handle);
            }
            (Request::Wait { .. }, Reply::Complete(complete) | Reply::Failed { complete, .. }) => {
                self.ranks[rank.index()].waited(task, now, complete);
            }
            (
                Request::Wait { timeout: Some(timeout), .. } | Request::Store { timeout: Some(timeout), .. },
                Reply::TimedOut,
            ) => {
                self.ranks[rank.index()].passes(task, now, Part::Pause(Pause::TimeOut, timeout));
            }
            (Request::Now | Request::Look, Reply::Now(_)) | (Request::Elapsed { .. }, Reply::Elapsed(_)) => {
                let polled = self.ranks[rank.index()].tasks[task.index()].polled;
                self.ranks[rank.index()].passes(task, now, Part::Pause(Pause::Poll, polled));
            }
            (Request::Pause { timeout, .. }, Reply::TimedOut) => {
                self.ranks[rank.index()].passes(task, now, Part::Pause(Pause::Sleep, timeout));
            }
            (Request::JoinGroup { ranks, .. }, Reply::Group(group)) => {
                let members: Vec<u32> = ranks.iter().map(|rank| rank.0).collect();
                let node = groups::describe(&group_name(*group), &members);
                self.groups.entry(*group).or_insert(ranks);
                self.ranks[rank.index()].stands_alone(task, node);
            }
            (Request::Store { operation, .. }, Reply::Store(_)) => {
                self.ranks[rank.index()].passes(task, now, Part::Store(operation));
            }
            (request, reply) => panic!("{rank} {task}: {reply:?} answers {request:?}"),
        }
    }

    fn issued(
        &mut self,
        rank: RankId,
        task: TaskId,
        now: SimTime,
        activity: Activity,
        after: &[Handle],
        handle: Handle,
    ) {
        let node = match activity {
            Activity::Compute(work) => Part::Compute(work.duration).to_node(task),
            Activity::Sleep(duration) => Part::Pause(Pause::Sleep, duration).to_node(task),
            Activity::Mark(mark) => Part::Mark(mark).to_node(task),
            Activity::Store(operation) => Part::Store(operation).to_node(task),
            Activity::Finish => Part::End.to_node(task),
            Activity::Close(_) | Activity::Abort(_) | Activity::Reach(_) => {
                Part::Pause(Pause::Sleep, SimDuration::ZERO).to_node(task)
            }
            Activity::Call(call) => call_node(rank, task, &call, &self.groups[&call.group]),
        };
        let site = self.ranks[rank.index()].tasks[task.index()].site;
        let line = site.and_then(|site| self.lines.get(site.index())).filter(|line| !line.is_empty()).cloned();
        self.ranks[rank.index()].issued(task, now, node, line, after, handle);
    }
}

impl<W: Write> Observer for Exporter<'_, W> {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        self.listener.record(at, event);
        if let Event::Elapsed { rank, task, what: Elapsed::Poll, start, .. } = event {
            self.ranks[rank.index()].tasks[task.index()].polled = at.since(*start);
        }
        let Event::Completed { rank, handle, issued, meeting, .. } = event else { return };
        let peer = match meeting {
            Meeting::Peer(peer) => peer.map(|(rank, _)| rank),
            Meeting::Collective { .. } => None,
        };
        self.ranks[rank.index()].completed(*handle, Completion { at, issued: *issued, peer });
    }
}

impl<W: Write> Listener for Exporter<'_, W> {
    fn asked(&mut self, rank: RankId, task: TaskId, request: &Request) {
        self.listener.asked(rank, task, request);
        if let Request::Exit(outcome) = request {
            if *outcome == Outcome::Failed {
                self.failed_rank.get_or_insert(rank);
            }
            if task == TaskId(0) {
                self.ranks[rank.index()].ends();
            }
            return;
        }
        let state = &mut self.ranks[rank.index()].tasks[task.index()];
        state.site = request.site().or(state.site);
        state.asked = Some(request.clone());
    }

    fn resumed(&mut self, resumption: &Resumption) {
        self.listener.resumed(resumption);
        let Resumption { rank, task, now, ref reply } = *resumption;
        let Some(request) = self.ranks[rank.index()].tasks[task.index()].asked.take() else { return };
        self.answered(rank, task, now, request, reply);
        let flushed = self.ranks[rank.index()].flush();
        self.failed = self.failed.take().or(flushed.err());
    }

    fn opened(&mut self, rank: RankId, task: TaskId, opener: TaskId) {
        self.listener.opened(rank, task, opener);
        let tasks = &mut self.ranks[rank.index()].tasks;
        assert_eq!(tasks.len(), task.index(), "{rank}: tasks open in order");
        tasks.push(TaskState { behind: tasks[opener.index()].behind, ..TaskState::default() });
    }
}

impl<W: Write> RankTrace<W> {
    fn new(out: W, manifest: Option<&Manifest>) -> io::Result<RankTrace<W>> {
        let schema = Attribute::new("schema", Value::String(format!("uniference {}", env!("CARGO_PKG_VERSION"))));
        let run = manifest.map(|manifest| {
            let cluster = Attribute::new(own::CLUSTER, Value::String(manifest.cluster.clone()));
            [cluster, Attribute::new(own::SEED, Value::Uint64(manifest.seed))]
        });
        let attr = [schema].into_iter().chain(run.into_iter().flatten()).collect();
        Ok(RankTrace {
            writer: Writer::new(out, &GlobalMetadata { version: "1.0.0".to_owned(), attr })?,
            tasks: vec![TaskState::default()],
            issued: Vec::new(),
            early: BTreeMap::new(),
            pending: BTreeMap::new(),
            next_id: 1,
            nodes: 0,
        })
    }

    /// Adds a node of `task`, which depends on the task's current node and on `more`. Returns its id.
    fn add(&mut self, task: TaskId, mut node: Node, more: &[u64], whole: bool) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.nodes += 1;
        node.id = id;
        node.data_deps = self.tasks[task.index()].behind.iter().chain(more).copied().collect();
        node.data_deps.sort_unstable();
        node.data_deps.dedup();
        if let Some(Part::Compute(duration) | Part::Pause(_, duration)) = Part::of(&node) {
            node.duration_micros = self.tasks[task.index()].whole_micros(duration);
        }
        self.pending.insert(id, (node, whole));
        id
    }

    /// Adds a node without dependencies and dependents.
    fn stands_alone(&mut self, task: TaskId, node: Node) {
        let behind = self.tasks[task.index()].behind.take();
        self.add(task, node, &[], true);
        self.tasks[task.index()].behind = behind;
    }

    fn issued(
        &mut self,
        task: TaskId,
        now: SimTime,
        mut node: Node,
        line: Option<String>,
        after: &[Handle],
        handle: Handle,
    ) {
        let more: Vec<u64> = after.iter().map(|handle| self.issued[handle.index()].id).collect();
        node.start_time_micros = micros(now);
        if let Some(line) = line {
            node.set(own::LINE, Value::String(line));
        }
        let whole = !matches!(node.r#type(), NodeType::CommColl | NodeType::CommSend | NodeType::CommRecv);
        let id = self.add(task, node, &more, whole);
        let after = more.is_empty().then(|| self.tasks[task.index()].behind);
        assert_eq!(self.issued.len(), handle.index(), "handles are dealt in order");
        self.issued.push(IssuedNode { id, after });
        if let Some(completed) = self.early.remove(&handle) {
            self.completed(handle, completed);
        }
    }

    fn completed(&mut self, handle: Handle, completed: Completion) {
        let Some(IssuedNode { id, .. }) = self.issued.get(handle.index()) else {
            self.early.insert(handle, completed);
            return;
        };
        let Some((node, whole)) = self.pending.get_mut(id) else { return };
        *whole = true;
        node.start_time_micros = micros(completed.issued);
        node.duration_micros = micros(completed.at) - node.start_time_micros;
        let open = node.r#type() == NodeType::CommRecv && node.attribute(COMM_SRC).is_none();
        if let Some(peer) = completed.peer.filter(|_| open) {
            node.set(COMM_SRC, Value::Int64(peer.0.into()));
        }
    }

    /// Makes the operations that a task has waited for its current node.
    fn waited(&mut self, task: TaskId, now: SimTime, handles: &[Handle]) {
        let behind = self.tasks[task.index()].behind;
        if let [handle] = handles
            && let IssuedNode { id, after } = self.issued[handle.index()]
            && after == Some(behind)
        {
            self.tasks[task.index()].behind = Some(id);
            return;
        }
        let ids: Vec<u64> = handles.iter().map(|handle| self.issued[handle.index()].id).collect();
        if !ids.is_empty() {
            let mut node = Part::Wait.to_node(task);
            node.start_time_micros = micros(now);
            self.tasks[task.index()].behind = Some(self.add(task, node, &ids, true));
        }
    }

    /// Adds a part of the program as the task's current node.
    fn passes(&mut self, task: TaskId, now: SimTime, part: Part) {
        let mut node = part.to_node(task);
        node.start_time_micros = micros(now);
        self.tasks[task.index()].behind = Some(self.add(task, node, &[], true));
    }

    /// Adds the end of the program.
    fn ends(&mut self) {
        self.add(TaskId(0), Part::End.to_node(TaskId(0)), &[], true);
    }

    /// Writes final nodes, in the order of ids.
    fn flush(&mut self) -> io::Result<()> {
        while let Some(entry) = self.pending.first_entry().filter(|entry| entry.get().1) {
            self.writer.node(&entry.remove().0)?;
        }
        Ok(())
    }

    /// Writes the remaining nodes too: operations without a wait that were incomplete at the end.
    fn finish(mut self) -> io::Result<()> {
        for (node, _) in self.pending.values() {
            self.writer.node(node)?;
        }
        self.writer.finish().map(drop)
    }
}

impl TaskState {
    /// Rounds a duration to microseconds, and carries the remainder to the thread's next one, so that errors do not
    /// accumulate.
    fn whole_micros(&mut self, duration: SimDuration) -> u64 {
        const PS: i128 = 1_000_000;
        let exact = i128::from(duration.as_ps()) + i128::from(self.left_over);
        let micros = ((exact + PS / 2).div_euclid(PS)).max(0);
        self.left_over = (exact - micros * PS) as i64;
        micros as u64
    }
}

/// The name of a group: a number above zero, as ASTRA-sim requires.
fn group_name(group: GroupId) -> String {
    (group.0 + 1).to_string()
}

fn micros(at: SimTime) -> u64 {
    at.as_ps() / 1_000_000
}

/// The node of an operation of `rank`.
fn call_node(rank: RankId, task: TaskId, call: &Call, members: &[RankId]) -> Node {
    let kind = match &call.op {
        CallOp::Collective(_) => NodeType::CommColl,
        CallOp::Send { .. } | CallOp::Write { .. } => NodeType::CommSend,
        CallOp::Recv { .. } => NodeType::CommRecv,
    };
    let mut node = Node { name: call.op.name().to_owned(), r#type: kind.into(), ..Node::default() };
    node.set(IS_CPU_OP, Value::Bool(false));
    node.set(TID, Value::Int64(task.0.into()));
    node.set(PG_NAME, Value::String(group_name(call.group)));
    let number = |number: u64| Value::Int64(i64::try_from(number).unwrap_or(i64::MAX));
    let world_rank = |rank: RankId| number(rank.0.into());
    match &call.op {
        CallOp::Collective(collective) => {
            node.set(COMM_TYPE, Value::Int64(comm_type(collective.kind) as i64));
            node.set(COMM_SIZE, number(comm_size(collective, members.len() as u32)));
            if let Some(root) = collective.root {
                node.set(ROOT_RANK, world_rank(members[root.index()]));
            }
            own::describe(collective, &mut node);
        }
        CallOp::Send { to, tag, bytes } => {
            node.set(COMM_SIZE, number(bytes.0));
            node.set(COMM_TAG, Value::Uint64(*tag));
            node.set(COMM_SRC, world_rank(rank));
            node.set(COMM_DST, world_rank(members[to.index()]));
        }
        CallOp::Recv { from, tag, bytes } => {
            node.set(COMM_SIZE, number(bytes.0));
            node.set(COMM_TAG, Value::Uint64(*tag));
            node.set(COMM_DST, world_rank(rank));
            match from {
                Some(from) => node.set(COMM_SRC, world_rank(members[from.index()])),
                None => node.set(own::ANY_SOURCE, Value::Bool(true)),
            }
        }
        CallOp::Write { to, bytes } => {
            node.set(COMM_SIZE, number(bytes.0));
            node.set(COMM_SRC, world_rank(rank));
            node.set(COMM_DST, world_rank(members[to.index()]));
            node.set(own::WRITES, Value::Bool(true));
        }
    }
    node
}

fn comm_type(kind: CollectiveKind) -> CommType {
    match kind {
        CollectiveKind::AllReduce => CommType::AllReduce,
        CollectiveKind::Reduce => CommType::Reduce,
        CollectiveKind::Broadcast => CommType::Broadcast,
        CollectiveKind::AllGather => CommType::AllGather,
        CollectiveKind::ReduceScatter => CommType::ReduceScatter,
        CollectiveKind::AllToAll => CommType::AllToAll,
        CollectiveKind::Gather => CommType::Gather,
        CollectiveKind::Scatter => CommType::Scatter,
        CollectiveKind::Barrier => CommType::Barrier,
    }
}

/// Bytes as in Chakra's schema: all blocks together for a reduce-scatter and a scatter, each rank's shard for an
/// all-gather and a gather.
fn comm_size(collective: &Collective, members: u32) -> u64 {
    use CollectiveKind::{ReduceScatter, Scatter};
    use uniference_sim::program::Shape::Even;
    match (collective.kind, &collective.shape) {
        (ReduceScatter | Scatter, Even(_)) => collective.bytes(members).0 * u64::from(members),
        _ => collective.bytes(members).0,
    }
}

#[cfg(test)]
mod tests;
