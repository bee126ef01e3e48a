//! Owns the replay of one rank's trace: a [`Program`] that issues nodes as they become free. [`super::feed`] owns the
//! order of nodes, and the engine owns time and the network.
//!
//! The module is not part of the simulator because it reads the trace's file during the run; the engine sees only
//! requests.
//!
//! At most one compute node of the accelerator, one of the CPU and one memory node run at a time, the lowest id first
//! if several are free. Collectives of one group start in the order of the plan, as if a program had called them, and
//! collectives of different groups run concurrently; sends and receives start as soon as they are free. Nodes that
//! become free at the same time are issued in the order of their ids.
//!
//! Traces of Uniference's own ([`uniference_formats::chakra::own`]) hold more: their compute is not held back but
//! queued, as a program's would be, and the replay carries out their sleeps, store operations and ends. Traces of
//! linked recordings ([`super::link`]) mark work that ran concurrently: such work starts as soon as it is free.

use super::feed::{Expand, Feed, FeedError};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use uniference_formats::chakra::attributes::{
    COMM_DST, COMM_SIZE, COMM_SRC, COMM_TAG, NUM_OPS, ROOT_RANK, TENSOR_SIZE,
};
use uniference_formats::chakra::groups::ProcessGroup;
use uniference_formats::chakra::operators;
use uniference_formats::chakra::own::{self, Part};
use uniference_formats::chakra::read::Nodes;
use uniference_formats::chakra::refuse::{Refusal, ignored, refusal};
use uniference_formats::chakra::schema::{CommType, Node, NodeType};
use uniference_sim::device::{CostModel, Estimate, HostMemory, Operator, Rates, Resource};
use uniference_sim::ids::{GroupId, GroupRank, Handle, QueueId, RankId, Site, TaskId};
use uniference_sim::program::{
    Activity, Call, CallOp, Collective, CollectiveKind, Origin, Outcome, Program, ProgramError, Reply, Request, Shape,
    Work,
};
use uniference_sim::time::{Bytes, SimDuration, SimTime};

/// Maximum bytes of an operation. Larger sizes are mistakes, and sums of such sizes might overflow.
const LARGEST_SIZE: u64 = 1 << 50;

/// First queue for concurrent work. Lower queues belong to units and to a program's threads.
const SIDE_QUEUES: u32 = 1 << 30;

/// Rules for the replay of traces, the same for all ranks.
#[derive(Clone, Debug)]
pub struct Rules {
    /// All ranks, in order.
    pub world: Arc<[RankId]>,
    /// Factor for the durations of compute and memory nodes; finite, not negative.
    pub compute_scale: f64,
    /// Factor for the bytes of communication; finite, not negative.
    pub comm_scale: f64,
    /// By rank: rates that give the cost of a compute node without a duration. A rank beyond the list has no rates.
    pub rooflines: Vec<Option<Rates>>,
    /// By rank: cost model of a compute node's operators, if the node names its operators. A rank without a model uses
    /// its roofline.
    pub models: Vec<Option<Model>>,
    /// Cost model of memory nodes without a duration.
    pub memory: Option<HostMemory>,
    /// Replacements of nodes by graphs.
    pub expand: Option<Arc<dyn Expand>>,
    /// Process groups in addition to those that the traces describe.
    pub groups: Vec<ProcessGroup>,
    /// Whether communication of linked recordings lasts as long as in the recording, from the time at which all its
    /// ranks have entered it, instead of the time that its bytes need. Only the ranks' meeting uses the network, so a
    /// replay of the recorded machine needs a network without latency.
    pub recorded: bool,
}

/// Cost model of operators on a rank's device.
#[derive(Clone)]
pub struct Model(pub Arc<dyn CostModel + Send + Sync>);

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Model")
    }
}

/// An operator that nodes of a rank consist of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostedOperator {
    /// The operator.
    pub operator: Operator,
    /// Cost of one execution.
    pub estimate: Estimate,
    /// Number of executions.
    pub executions: u64,
}

impl Rules {
    /// Rules without scaling, cost models or additional groups.
    pub fn of(world: Arc<[RankId]>) -> Rules {
        let (rooflines, groups) = (Vec::new(), Vec::new());
        Rules {
            world,
            compute_scale: 1.0,
            comm_scale: 1.0,
            rooflines,
            models: Vec::new(),
            memory: None,
            expand: None,
            groups,
            recorded: false,
        }
    }
}

/// A trace that cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The trace cannot be read.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// A node cannot be replayed.
    #[error("node {id} `{name}` {problem}\nhint: {hint}")]
    Node {
        /// The node's id.
        id: u64,
        /// The node's name.
        name: String,
        /// The problem, as a predicate of the node.
        problem: String,
        /// The user's remedy.
        hint: &'static str,
    },
}

/// The program of one rank that replays a trace.
pub struct Replay<N> {
    rank: RankId,
    rules: Arc<Rules>,
    feed: Feed<N>,
    /// For each [`NodeQueue`], the free nodes, and whether one of them runs.
    units: [(BTreeSet<u64>, bool); 3],
    /// For each group, the planned collectives that are not issued yet, in order.
    collectives: BTreeMap<GroupKey, VecDeque<u64>>,
    named: BTreeMap<String, GroupKey>,
    joined: BTreeMap<GroupKey, GroupId>,
    /// Free nodes that are not in a queue yet, and free collectives that are not the first of their group.
    free: BTreeSet<u64>,
    issue: VecDeque<ReadyNode>,
    asked: Option<Asked>,
    running: BTreeMap<Handle, u64>,
    /// Queues of concurrent work: queues in use by node, and queues that are free again.
    side_queues: BTreeMap<u64, u32>,
    free_queues: BTreeSet<u32>,
    /// Communication nodes whose ranks have met and whose recorded duration is elapsing.
    met: BTreeSet<u64>,
    untimed: u64,
    by_roofline: u64,
    oddities: Oddities,
    /// By the text of an operator in a node; `None`: the text is not an operator.
    operators: IndexMap<String, Option<CostedOperator>, FxBuildHasher>,
}

/// Counts of the parts of traces that are not simulated as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Oddities {
    /// Number of nodes of an unknown type, which take no time.
    pub unknown_types: u64,
    /// Number of dependencies on nodes that are not in the trace; they count as satisfied.
    pub missing_dependencies: u64,
    /// Number of communication nodes for each attribute that is not understood and has no effect.
    pub ignored: BTreeMap<String, u64>,
}

impl Oddities {
    /// Counts the parts of a node that are not simulated as written.
    pub fn count(&mut self, node: &Node) {
        self.unknown_types += u64::from(node.r#type() == NodeType::Invalid);
        for attribute in ignored(node) {
            *self.ignored.entry(attribute.to_owned()).or_default() += 1;
        }
    }
}

/// A group: its ranks, and the number of earlier groups of exactly these ranks.
type GroupKey = (Arc<[RankId]>, u32);

/// Resource that runs one node at a time.
#[derive(Clone, Copy)]
enum NodeQueue {
    Accelerator,
    Host,
    Memory,
}

/// A free node that is issued next.
struct ReadyNode {
    id: u64,
    what: Action,
}

enum Action {
    Compute(NodeQueue, Work),
    Call(GroupKey, CallOp),
    /// The node is issued in a queue for nodes without a unit.
    Do(Activity, QueueId),
}

/// Last request to the engine that was not a wait.
enum Asked {
    Group(GroupKey),
    Start(u64),
}

impl<N: Nodes> Replay<N> {
    /// Replays `trace` as the program of `rank`.
    pub fn new(rank: RankId, trace: N, rules: Arc<Rules>) -> Replay<N> {
        Replay {
            rank,
            feed: Feed::expanding(trace, rules.expand.clone().map(|expand| (rank, expand))),
            rules,
            units: Default::default(),
            collectives: BTreeMap::new(),
            named: BTreeMap::new(),
            joined: BTreeMap::new(),
            free: BTreeSet::new(),
            issue: VecDeque::new(),
            asked: None,
            running: BTreeMap::new(),
            side_queues: BTreeMap::new(),
            free_queues: BTreeSet::new(),
            met: BTreeSet::new(),
            untimed: 0,
            by_roofline: 0,
            oddities: Oddities::default(),
            operators: IndexMap::default(),
        }
    }

    /// The operators of nodes so far, in the order of their first execution.
    pub fn operators(&self) -> impl Iterator<Item = &CostedOperator> {
        self.operators.values().flatten()
    }

    /// The unnamed group of all ranks, which communication without a group's name uses; `None` before the first such
    /// operation.
    pub fn world_group(&self) -> Option<GroupId> {
        self.joined.get(&(self.rules.world.clone(), 0)).copied()
    }

    /// Number of compute nodes whose duration was estimated from their device's rates.
    pub fn by_roofline(&self) -> u64 {
        self.by_roofline
    }

    /// Number of nodes that had no duration and could not be estimated: they took no time.
    pub fn untimed(&self) -> u64 {
        self.untimed
    }

    /// Counts of the parts that are not simulated as written, among the nodes that were read so far.
    pub fn oddities(&self) -> Oddities {
        Oddities { missing_dependencies: self.feed.missing(), ..self.oddities.clone() }
    }

    /// The process groups that were given in addition to the groups that the traces describe.
    pub fn given_groups(&self) -> &[ProcessGroup] {
        &self.rules.groups
    }

    /// Whether any node so far names one of [`Rules::groups`].
    pub fn uses_given_groups(&self) -> bool {
        self.rules.groups.iter().any(|group| self.named.contains_key(&group.name))
    }

    /// The node of an incomplete operation, and the nodes that wait for it, for the report of a deadlock.
    pub fn behind(&self, handle: Handle) -> Option<(&Node, Vec<&Node>)> {
        let starting = match &self.asked {
            Some(Asked::Start(id)) => Some(*id),
            _ => None,
        };
        let id = self.running.get(&handle).copied().or(starting)?;
        Some((self.feed.node(id), self.feed.waiting_for(id).collect()))
    }

    fn go_on(&mut self, reply: Reply) -> Result<Request, ReplayError> {
        match (reply, self.asked.take()) {
            (Reply::Issued(handle), Some(Asked::Start(id))) => drop(self.running.insert(handle, id)),
            (Reply::Group(group), Some(Asked::Group(members))) => drop(self.joined.insert(members, group)),
            (Reply::Complete(handles) | Reply::Failed { complete: handles, .. }, None) => {
                handles.into_iter().for_each(|handle| {
                    let id = self.running.remove(&handle).expect("what completes was running");
                    match self.recorded(id).filter(|_| self.met.insert(id)) {
                        Some(duration) => self.start_beside(id, Activity::Sleep(duration)),
                        None => self.complete(id),
                    }
                })
            }
            (Reply::Start, None) => {}
            (reply, _) => panic!("{}: {reply:?} answers nothing that was asked", self.rank),
        }
        self.plan()?;
        self.start()?;
        Ok(self.request())
    }

    /// Plans nodes as far ahead as the feed allows, and completes nodes that take no time at once.
    fn plan(&mut self) -> Result<(), ReplayError> {
        loop {
            while let Some((id, free)) = self.feed.plan()? {
                self.examine(id)?;
                if self.kind(id) == NodeType::CommColl && collective_kind(self.feed.node(id)).is_some() {
                    let members = self.members(id)?;
                    self.collectives.entry(members).or_default().push_back(id);
                }
                if free {
                    self.free.insert(id);
                }
            }
            let nothing = |id: &u64| match self.kind(*id) {
                NodeType::Metadata => matches!(Part::of(self.feed.node(*id)), None | Some(Part::Wait)),
                kind => kind == NodeType::Invalid,
            };
            let nothing: Vec<u64> = self.free.iter().copied().filter(nothing).collect();
            if nothing.is_empty() {
                return Ok(());
            }
            for id in nothing {
                self.free.remove(&id);
                self.complete(id);
            }
        }
    }

    /// Refuses a node that cannot be run, and counts its attributes that are not understood.
    fn examine(&mut self, id: u64) -> Result<(), ReplayError> {
        let node = self.feed.node(id);
        if let Some(Refusal { problem, hint }) = refusal(node, self.rank.0) {
            return Err(self.wrong(id, problem, hint));
        }
        self.oddities.count(node);
        Ok(())
    }

    fn complete(&mut self, id: u64) {
        if let Some(unit) = self.unit(id) {
            self.units[unit as usize].1 = false;
        }
        self.free_queues.extend(self.side_queues.remove(&id));
        self.met.remove(&id);
        let free = &mut self.free;
        self.feed.complete(id, &mut |id| {
            free.insert(id);
        });
    }

    /// Moves free nodes to their queues, and issues those that can start.
    fn start(&mut self) -> Result<(), ReplayError> {
        let before = self.issue.len();
        for id in std::mem::take(&mut self.free) {
            if let Some(part) = Part::of(self.feed.node(id)) {
                self.start_part(id, part);
                continue;
            }
            match self.unit(id) {
                Some(unit) => {
                    self.units[unit as usize].0.insert(id);
                }
                None if self.kind(id) == NodeType::CommColl => {
                    self.free.insert(id);
                }
                None => {
                    let what = self.message(id)?;
                    self.issue.push_back(ReadyNode { id, what });
                }
            }
        }
        for unit in [NodeQueue::Accelerator, NodeQueue::Host, NodeQueue::Memory] {
            if self.units[unit as usize].1 {
                continue;
            }
            if let Some(id) = self.units[unit as usize].0.pop_first() {
                self.units[unit as usize].1 = true;
                let work = self.work(id, unit);
                self.issue.push_back(ReadyNode { id, what: Action::Compute(unit, work) });
            }
        }
        self.start_collectives()?;
        self.issue.make_contiguous()[before..].sort_by_key(|task| task.id);
        Ok(())
    }

    /// Starts a node at once, in a queue of its own.
    fn start_beside(&mut self, id: u64, activity: Activity) {
        let in_use = self.side_queues.len() as u32;
        let queue = self.free_queues.pop_first().unwrap_or(SIDE_QUEUES + in_use);
        self.side_queues.insert(id, queue);
        self.issue.push_back(ReadyNode { id, what: Action::Do(activity, QueueId(queue)) });
    }

    /// Recorded duration of the node's communication, if [`Rules::recorded`] is set.
    fn recorded(&self, id: u64) -> Option<SimDuration> {
        let node = self.feed.node(id);
        self.rules.recorded.then(|| node.unsigned(own::RECORDED_PS).map(SimDuration::from_ps)).flatten()
    }

    /// Starts a part of a program. Parts wait only for their dependencies.
    fn start_part(&mut self, id: u64, part: Part) {
        let thread = own::task(self.feed.node(id));
        let scale = self.rules.compute_scale;
        let name: Arc<str> = self.feed.node(id).name.as_str().into();
        let recorded = |duration: SimDuration| Work::new(duration.scaled(scale), Origin::Recorded).named(name.clone());
        // Queues above those of the units, one for each thread.
        let queue = QueueId(thread.0.saturating_add(3));
        let what = match part {
            Part::SideBySide(duration) => return self.start_beside(id, Activity::Compute(recorded(duration))),
            Part::Delay(duration) => return self.start_beside(id, Activity::Sleep(duration)),
            Part::Compute(duration) => Action::Compute(NodeQueue::Accelerator, recorded(duration)),
            Part::Pause(_, duration) => Action::Do(Activity::Sleep(duration), queue),
            Part::Mark(mark) => Action::Do(Activity::Mark(mark), QueueId(NodeQueue::Accelerator as u32)),
            Part::Store(operation) => Action::Do(Activity::Store(operation), queue),
            Part::Wait => panic!("node {id} is done as soon as it is free"),
            Part::End => Action::Do(Activity::Finish, queue),
        };
        self.issue.push_back(ReadyNode { id, what });
    }

    /// Issues the free collectives at the head of each group's line.
    fn start_collectives(&mut self) -> Result<(), ReplayError> {
        if self.free.is_empty() {
            return Ok(());
        }
        let mut lines = std::mem::take(&mut self.collectives);
        for (members, line) in &mut lines {
            while line.front().is_some_and(|id| self.free.remove(id)) {
                let id = line.pop_front().expect("just seen");
                let op = CallOp::Collective(self.collective(id, &members.0)?);
                self.issue.push_back(ReadyNode { id, what: Action::Call(members.clone(), op) });
            }
        }
        self.collectives = lines;
        Ok(())
    }

    fn request(&mut self) -> Request {
        let Some(task) = self.issue.pop_front() else {
            if self.running.is_empty() {
                assert!(self.feed.is_done(), "{}: nothing runs, and nodes are left", self.rank);
                return Request::Exit(Outcome::Ok);
            }
            let handles = self.running.keys().copied().collect();
            return Request::Wait { handles, any: true, timeout: None, site: Site(0) };
        };
        let (activity, queue) = match &task.what {
            Action::Do(activity, queue) => (activity.clone(), *queue),
            Action::Compute(unit, work) => (Activity::Compute(work.clone()), QueueId(*unit as u32)),
            Action::Call(members, op) => match self.joined.get(members) {
                Some(group) => (Activity::Call(Call { group: *group, op: op.clone() }), QueueId(0)),
                None => {
                    let (ranks, sequence) = members.clone();
                    self.asked = Some(Asked::Group(members.clone()));
                    self.issue.push_front(task);
                    return Request::JoinGroup { ranks, sequence, settings: None, rendezvous: false };
                }
            },
        };
        self.asked = Some(Asked::Start(task.id));
        Request::Issue { activity, queue, after: Vec::new(), site: Site(0) }
    }

    // Contents of nodes

    fn kind(&self, id: u64) -> NodeType {
        self.feed.node(id).r#type()
    }

    /// The resource that runs the node; `None`: the node communicates, or does nothing.
    fn unit(&self, id: u64) -> Option<NodeQueue> {
        let node = self.feed.node(id);
        if Part::of(node).is_some() {
            return None;
        }
        match node.r#type() {
            NodeType::Comp if !node.is_cpu_op() => Some(NodeQueue::Accelerator),
            NodeType::Comp => Some(NodeQueue::Host),
            // The CPU's half of a collective does not describe the communication: the accelerator's half does.
            NodeType::CommColl if collective_kind(node).is_none() => Some(NodeQueue::Host),
            NodeType::MemLoad | NodeType::MemStore => Some(NodeQueue::Memory),
            NodeType::CommColl | NodeType::CommSend | NodeType::CommRecv => None,
            NodeType::Metadata | NodeType::Invalid => None,
        }
    }

    /// Work with the node's own duration, or without one, with the estimated cost of its operation on the rank's
    /// device.
    fn work(&mut self, id: u64, unit: NodeQueue) -> Work {
        let node = self.feed.node(id);
        let duration = own::duration(node);
        if duration > SimDuration::ZERO {
            let work = Work::new(duration.scaled(self.rules.compute_scale), Origin::Recorded);
            return work.named(node.name.as_str().into());
        }
        if matches!(unit, NodeQueue::Accelerator)
            && let Some(work) = self.operators_of(id)
        {
            return work;
        }
        let node = self.feed.node(id);
        let moved = node.unsigned(TENSOR_SIZE);
        let resource = match unit {
            NodeQueue::Host => Resource::Host,
            NodeQueue::Accelerator => Resource::Accelerator,
            NodeQueue::Memory => Resource::CopyEngine,
        };
        let (flops, bytes) = (node.unsigned(NUM_OPS).unwrap_or(0), Bytes(moved.unwrap_or(0)));
        let operator = Operator::unspecified(resource, flops, bytes);
        let estimate = match unit {
            // An access costs its latency even if it moves no bytes, but not if the number of bytes is unknown.
            NodeQueue::Memory => {
                self.rules.memory.filter(|_| moved.is_some()).and_then(|memory| memory.estimate(&operator))
            }
            NodeQueue::Host | NodeQueue::Accelerator => {
                let rates = self.rules.rooflines.get(self.rank.index()).copied().flatten();
                let estimate = rates.and_then(|rates| rates.estimate(&operator));
                self.by_roofline += u64::from(estimate.is_some());
                estimate
            }
        };
        self.untimed += u64::from(estimate.is_none());
        estimate.unwrap_or(Estimate::UNKNOWN).scaled(self.rules.compute_scale).work().on(resource)
    }

    /// Work of a node's operators, executed in sequence, with the origin of the operator with the longest duration (the
    /// first of equal ones). `None`: the node does not name its operators, or the cost of one is unknown.
    fn operators_of(&mut self, id: u64) -> Option<Work> {
        let Replay { feed, rules, operators: known, rank, .. } = self;
        let texts = own::operators(feed.node(id));
        let model = rules.models.get(rank.index()).and_then(Option::as_ref);
        let rates = rules.rooflines.get(rank.index()).copied().flatten();
        for text in texts {
            if !known.contains_key(text) {
                let costed = operators::parse(text).map(|operator| {
                    let estimate = model.and_then(|model| model.0.estimate(&operator));
                    let estimate = estimate.or_else(|| rates.and_then(|rates| rates.estimate(&operator)));
                    let estimate = estimate.unwrap_or(Estimate::UNKNOWN).scaled(rules.compute_scale);
                    CostedOperator { operator, estimate, executions: 0 }
                });
                known.insert(text.clone(), costed);
            }
        }
        if texts.iter().any(|text| known[text].is_none_or(|costed| costed.estimate.origin == Origin::None)) {
            return None;
        }
        let (mut total, mut longest) = (0_u64, None::<Estimate>);
        for text in texts {
            let costed = known.get_mut(text).and_then(Option::as_mut).expect("just seen");
            costed.executions += 1;
            total = total.saturating_add(costed.estimate.duration.as_ps());
            if longest.is_none_or(|longest| costed.estimate.duration > longest.duration) {
                longest = Some(costed.estimate);
            }
        }
        let origin = longest?.origin;
        self.by_roofline += u64::from(origin == Origin::Roofline);
        Some(Estimate { duration: SimDuration::from_ps(total), spread: None, origin }.work())
    }

    fn bytes(&self, id: u64) -> Result<u64, ReplayError> {
        let size = self.said(id, COMM_SIZE, "has no size")?;
        let scaled = self.scaled(size);
        match scaled <= LARGEST_SIZE {
            true => Ok(scaled),
            false => Err(self.wrong(
                id,
                format!("moves {scaled} bytes, more than 1 PiB"),
                "check the program that wrote the trace",
            )),
        }
    }

    fn scaled(&self, size: u64) -> u64 {
        // Sizes are scaled only if the factor is not 1, because a float cannot represent every size.
        let scale = self.rules.comm_scale;
        if scale == 1.0 { size } else { (size as f64 * scale).round() as u64 }
    }

    fn collective(&self, id: u64, members: &[RankId]) -> Result<Collective, ReplayError> {
        let node = self.feed.node(id);
        if self.recorded(id).is_some() {
            let (kind, dtype, shape) = (CollectiveKind::Barrier, own::dtype(node), Shape::Even(0));
            return Ok(Collective { kind, dtype, reduce: None, root: None, shape, kernel: None });
        }
        let kind = collective_kind(node).expect("only collectives are asked about");
        let bytes = if kind == CollectiveKind::Barrier { 0 } else { self.bytes(id)? };
        let dtype = own::dtype(node);
        let unequal =
            own::blocks(node, members.len(), |elements| self.scaled(elements).min(LARGEST_SIZE / members.len() as u64));
        if let Some(shape) = unequal.as_ref().filter(|shape| !kind.takes(shape)) {
            let split = if matches!(shape, Shape::Pairs { .. }) { "for both directions" } else { "for one direction" };
            let problem = format!("gives split sizes {split}, which {kind} does not support");
            return Err(self.wrong(id, problem, "check the program that wrote the trace"));
        }
        // The size in a trace is each rank's shard for an all-gather and a gather, but all ranks' blocks together for a
        // reduce-scatter, an all-to-all and a scatter, whose calls name one rank's block.
        let blocks = match kind {
            CollectiveKind::ReduceScatter | CollectiveKind::AllToAll | CollectiveKind::Scatter => members.len() as u64,
            _ => 1,
        };
        let rooted = matches!(
            kind,
            CollectiveKind::Reduce | CollectiveKind::Broadcast | CollectiveKind::Gather | CollectiveKind::Scatter
        );
        let reduces =
            matches!(kind, CollectiveKind::AllReduce | CollectiveKind::Reduce | CollectiveKind::ReduceScatter);
        Ok(Collective {
            kind,
            dtype,
            reduce: reduces.then(|| own::reduce_op(node)),
            root: if rooted { Some(self.root(id, members)?) } else { None },
            shape: unequal.unwrap_or(Shape::Even(bytes.div_ceil(blocks).div_ceil(dtype.size()))),
            kernel: None,
        })
    }

    /// The group rank of the root that the node names; without one, the first rank.
    fn root(&self, id: u64, members: &[RankId]) -> Result<GroupRank, ReplayError> {
        let Some(root) = self.feed.node(id).unsigned(ROOT_RANK) else { return Ok(GroupRank(0)) };
        let place = members.iter().position(|member| u64::from(member.0) == root);
        let hint = "give the root as a global rank";
        place
            .map(GroupRank::from)
            .ok_or_else(|| self.wrong(id, format!("has root {root}, which is not in its group"), hint))
    }

    fn message(&mut self, id: u64) -> Result<Action, ReplayError> {
        let members = self.members(id)?;
        let node = self.feed.node(id);
        let tag = node.unsigned(COMM_TAG).unwrap_or(0);
        let bytes = Bytes(if self.recorded(id).is_some() { 0 } else { self.bytes(id)? });
        let whoever = node.attribute(own::ANY_SOURCE).is_some() && node.attribute(COMM_SRC).is_none();
        let op = match node.r#type() {
            NodeType::CommSend if node.attribute(own::WRITES).is_some() => {
                CallOp::Write { to: self.peer(id, COMM_DST, &members.0)?, bytes }
            }
            NodeType::CommSend => CallOp::Send { to: self.peer(id, COMM_DST, &members.0)?, tag, bytes },
            _ if whoever => CallOp::Recv { from: None, tag, bytes },
            _ => CallOp::Recv { from: Some(self.peer(id, COMM_SRC, &members.0)?), tag, bytes },
        };
        Ok(Action::Call(members, op))
    }

    /// The group rank of the global rank that the node names.
    fn peer(&self, id: u64, attribute: &str, members: &[RankId]) -> Result<GroupRank, ReplayError> {
        let peer = self.said(id, attribute, "has no peer rank")?;
        let named = |member: &RankId| u64::from(member.0) == peer;
        // In the group of all ranks each rank's group rank is its global rank.
        let own = usize::try_from(peer).ok().filter(|place| members.get(*place).is_some_and(named));
        own.or_else(|| members.iter().position(named)).map(GroupRank::from).ok_or_else(|| {
            let problem = format!("has peer rank {peer}, which is out of range for {} ranks", members.len());
            self.wrong(id, problem, "use a cluster with one device per rank of the job")
        })
    }

    fn said(&self, id: u64, attribute: &str, problem: &str) -> Result<u64, ReplayError> {
        let hint = "`uniference chakra check` lists missing attributes";
        self.feed.node(id).unsigned(attribute).ok_or_else(|| self.wrong(id, format!("{problem} (`{attribute}`)"), hint))
    }

    fn wrong(&self, id: u64, problem: String, hint: &'static str) -> ReplayError {
        ReplayError::Node { id, name: self.feed.node(id).name.clone(), problem, hint }
    }

    // Groups

    /// The group of a communication node.
    fn members(&mut self, id: u64) -> Result<GroupKey, ReplayError> {
        let Some(name) = self.feed.node(id).process_group() else { return Ok((self.rules.world.clone(), 0)) };
        if let Some(members) = self.named.get(&name) {
            return Ok(members.clone());
        }
        let members = self.described(id, &name)?;
        self.named.insert(name, members.clone());
        Ok(members)
    }

    /// Looks a group up by name. Groups of the same ranks are numbered in the order of their names.
    fn described(&self, id: u64, name: &str) -> Result<GroupKey, ReplayError> {
        let all = || self.rules.groups.iter().chain(self.feed.groups());
        let Some(group) = all().find(|group| group.name == name) else {
            let hint = "define the groups with --astra-comm-groups FILE";
            return Err(self.wrong(id, format!("uses process group `{name}`, which is not defined"), hint));
        };
        let ranks = self.ranks(group);
        if let Some(stranger) = ranks.iter().find(|rank| rank.index() >= self.rules.world.len()) {
            let problem = format!(
                "uses process group `{name}`, whose member {stranger} is out of range for {} ranks",
                self.rules.world.len()
            );
            return Err(self.wrong(id, problem, "use a cluster with one device per rank of the job"));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = ranks.iter().find(|rank| !seen.insert(**rank)) {
            let problem = format!("uses process group `{name}`, which contains {twice} twice");
            return Err(self.wrong(id, problem, "check the definition of the groups"));
        }
        if !ranks.contains(&self.rank) {
            let problem = format!("uses process group `{name}`, which does not contain {}", self.rank);
            return Err(self.wrong(id, problem, "check the definition of the groups"));
        }
        // Shorter names come first: names are numbers in the order in which groups are created.
        let order = |name: &str| (name.len(), name.to_owned());
        let before = |other: &&ProcessGroup| order(&other.name) < order(name) && self.ranks(other) == ranks;
        let before: BTreeSet<&str> = all().filter(before).map(|other| other.name.as_str()).collect();
        // The unnamed group of all ranks precedes the named groups of the same ranks.
        let unnamed = u32::from(ranks == self.rules.world);
        Ok((ranks, before.len() as u32 + unnamed))
    }

    fn ranks(&self, group: &ProcessGroup) -> Arc<[RankId]> {
        match group.ranks.is_empty() {
            true => self.rules.world.clone(),
            false => group.ranks.iter().copied().map(RankId).collect(),
        }
    }
}

/// Runs one trace without the other ranks to its end, with all operations complete at once, which shows whether the
/// trace can be replayed.
///
/// # Errors
/// If a replay would refuse the trace. Contradictions with traces of other ranks are not detected.
pub fn rehearse<N: Nodes>(rank: RankId, trace: N, rules: Arc<Rules>) -> Result<Oddities, ReplayError> {
    let mut replay = Replay::new(rank, trace, rules);
    let (mut reply, mut answers) = (Reply::Start, 0_u32);
    loop {
        reply = match replay.go_on(reply)? {
            Request::Exit(_) => return Ok(replay.oddities()),
            Request::JoinGroup { .. } => Reply::Group(GroupId(answers)),
            Request::Issue { .. } => Reply::Issued(Handle(answers)),
            Request::Wait { handles, .. } => Reply::Complete(handles),
            request => unreachable!("traces ask for nothing else than {request:?}"),
        };
        answers = answers.wrapping_add(1);
    }
}

impl<N: Nodes> Program for Replay<N> {
    fn resume(&mut self, _: SimTime, _: TaskId, reply: Reply) -> Result<Request, ProgramError> {
        Ok(self.go_on(reply)?)
    }
}

fn collective_kind(node: &Node) -> Option<CollectiveKind> {
    Some(match node.comm_type()? {
        CommType::AllReduce => CollectiveKind::AllReduce,
        CommType::Reduce => CollectiveKind::Reduce,
        CommType::AllGather => CollectiveKind::AllGather,
        CommType::Gather => CollectiveKind::Gather,
        CommType::Scatter => CollectiveKind::Scatter,
        CommType::Broadcast => CollectiveKind::Broadcast,
        CommType::AllToAll => CollectiveKind::AllToAll,
        CommType::ReduceScatter | CommType::ReduceScatterBlock => CollectiveKind::ReduceScatter,
        CommType::Barrier => CollectiveKind::Barrier,
    })
}

#[cfg(test)]
mod tests;
