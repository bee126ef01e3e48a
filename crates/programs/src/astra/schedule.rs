//! Owns the execution of traces with the closed form: each rank runs one operation of its CPU, one computation of its
//! accelerator and one collective or send at a time, the lowest free id first; receives are not limited.
//!
//! A collective starts when its last member enters and ends on all members at once. If members enter at different
//! times, ASTRA-sim's own ends differ by rank; that is not modelled.

use super::closed_form::AnalyticalModel;
use crate::chakra::feed::{Expand, Feed, FeedError};
use crate::chakra::replay::Oddities;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::io::Read;
use std::sync::Arc;
use uniference_formats::astra::inputs::{AstraCollective, InputError};
use uniference_formats::astra::memory::RemoteMemory;
use uniference_formats::chakra::attributes::{COMM_DST, COMM_SIZE, COMM_SRC, COMM_TAG, NUM_OPS, TENSOR_SIZE};
use uniference_formats::chakra::groups::ProcessGroup;
use uniference_formats::chakra::read::Reader;
use uniference_formats::chakra::refuse::{Refusal, refusal};
use uniference_formats::chakra::schema::{CommType, Node, NodeType};
use uniference_sim::event::Times;
use uniference_sim::event::{Event, Observer, Traffic};
use uniference_sim::ids::RankId;
use uniference_sim::program::Outcome;
use uniference_sim::time::{SimDuration, SimTime};

/// Maximum bytes of an operation. Larger sizes are mistakes, and resulting times might overflow.
const LARGEST_SIZE: u64 = 1 << 40;

/// The last time in ns that picoseconds can represent.
const LAST_NS: u64 = u64::MAX / 1_000;

/// An error in the execution of traces with the closed form.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    /// The trace of a rank cannot be read.
    #[error("the trace of {0}: {1}")]
    Trace(RankId, FeedError),
    /// A node is not supported, or lacks an attribute.
    #[error("node {id} `{name}` of {rank} {problem}\nhint: {hint}")]
    Node {
        /// The rank whose trace has the node.
        rank: RankId,
        /// The node's id.
        id: u64,
        /// The node's name.
        name: String,
        /// The problem, as a predicate of the node.
        problem: String,
        /// The user's remedy.
        hint: &'static str,
    },
    /// The description of the machine is invalid.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Ranks wait for each other. ASTRA-sim ends without a message in this case.
    #[error("deadlock: no rank can proceed{}", blocked(.0))]
    Deadlock(Vec<(RankId, String)>),
}

fn blocked(nodes: &[(RankId, String)]) -> String {
    nodes.iter().map(|(rank, node)| format!("\n  {rank}: {node}")).collect()
}

/// The machine that runs traces.
#[derive(Debug)]
pub struct Machine<'a> {
    /// The network and its algorithms.
    pub model: &'a AnalyticalModel,
    /// The memory that memory nodes use.
    pub memory: Option<RemoteMemory>,
    /// Collectives that are replaced by given traces.
    pub expand: Option<Arc<dyn Expand>>,
}

/// Factors of sizes and durations.
#[derive(Clone, Copy, Debug)]
pub struct Scales {
    /// Factor of compute durations; finite, not negative.
    pub compute: f64,
    /// Factor of communication sizes; finite, not negative.
    pub communication: f64,
}

/// A node that is complete.
#[derive(Clone, Copy, Debug)]
pub struct CompletedNode<'a> {
    /// The rank whose trace has the node.
    pub rank: RankId,
    /// The node that is complete.
    pub node: &'a Node,
    /// Start in ns; for a collective, the time at which this rank entered it.
    pub issued: u64,
    /// End in ns.
    pub ended: u64,
}

/// Doubts about the simulation of traces that ran to their end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doubts {
    /// Number of compute nodes that took 1 ns because they give a number of operations and no duration, and the system
    /// has its roofline model disabled.
    pub untimed: u64,
    /// Whether a node named one of the process groups that were given in addition to the traces.
    pub uses_given_groups: bool,
    /// Parts of the traces that are not simulated as written.
    pub oddities: Oddities,
}

/// Runs a trace for each rank. `observer` receives the ends of the ranks, `done` each node that took time, when the
/// node ends.
///
/// # Errors
/// If a trace cannot be read, uses a feature that ASTRA-sim does not have, or deadlocks.
///
/// # Panics
/// If there are not as many traces as the model has ranks.
pub fn run<R: Read>(
    machine: &Machine<'_>,
    groups: &[ProcessGroup],
    scales: Scales,
    traces: Vec<Reader<R>>,
    observer: &mut dyn Observer,
    done: &mut dyn FnMut(&CompletedNode<'_>),
) -> Result<Doubts, ScheduleError> {
    let model = machine.model;
    assert_eq!(traces.len() as u64, model.ranks(), "one trace a rank");
    let (members, groups) = known_groups(groups, model.ranks());
    let expand = |rank: usize| machine.expand.clone().map(|expand| (RankId::from(rank), expand));
    let mut run = Simulation {
        model,
        machine,
        memories: BTreeMap::new(),
        members,
        groups,
        described: BTreeMap::new(),
        scales,
        ranks: traces.into_iter().enumerate().map(|(rank, trace)| RankState::new(trace, expand(rank))).collect(),
        now: 0,
        meetings: BTreeMap::new(),
        sends: BTreeMap::new(),
        receives: BTreeMap::new(),
        events: BinaryHeap::new(),
        started: 0,
        doubts: Doubts::default(),
    };
    run.finish(done)?;
    run.report(observer);
    run.doubts.oddities.missing_dependencies = run.ranks.iter().map(|rank| rank.feed.missing()).sum();
    Ok(run.doubts)
}

/// The members of each group, starting with the group of all ranks, and the groups' numbers by name. Groups with the
/// same members are one.
fn known_groups(described: &[ProcessGroup], ranks: u64) -> (Vec<Members>, BTreeMap<&str, usize>) {
    let mut members = vec![Members::of((0..ranks).collect(), ranks)];
    let mut numbers = BTreeMap::from([(members[0].ranks.clone(), 0)]);
    let mut names = BTreeMap::new();
    for group in described {
        let named: Vec<u64> = group.ranks.iter().copied().map(u64::from).collect();
        let number = *numbers.entry(named).or_insert_with_key(|named| {
            members.push(Members::of(named.clone(), ranks));
            members.len() - 1
        });
        names.insert(group.name.as_str(), number);
    }
    (members, names)
}

struct Members {
    ranks: Vec<u64>,
    /// The ranks as a set; `None`: a rank is out of range.
    set: Option<BTreeSet<u64>>,
}

impl Members {
    fn of(ranks: Vec<u64>, world: u64) -> Members {
        let set = ranks.iter().all(|rank| *rank < world).then(|| ranks.iter().copied().collect());
        Members { ranks, set }
    }
}

/// Sender, receiver and tag of messages.
type Channel = (u64, u64, u64);

struct Simulation<'a, R> {
    model: &'a AnalyticalModel,
    machine: &'a Machine<'a>,
    /// Time in ns from which each memory is free.
    memories: BTreeMap<u64, u64>,
    /// By a group's number; 0 is the group of all ranks.
    members: Vec<Members>,
    groups: BTreeMap<&'a str, usize>,
    /// Groups that traces describe themselves, by the trace's rank and the group's name.
    described: BTreeMap<(usize, String), usize>,
    scales: Scales,
    ranks: Vec<RankState<R>>,
    /// The current time in ns.
    now: u64,
    /// By group and index in it: the members that have entered a collective, with their nodes.
    meetings: BTreeMap<(usize, u64), Vec<(usize, u64)>>,
    /// Arrival times of messages without a receive.
    sends: BTreeMap<Channel, VecDeque<u64>>,
    /// Receives without a message.
    receives: BTreeMap<Channel, VecDeque<(usize, u64)>>,
    /// Ends of nodes: the time, the order of starting, the rank, the node.
    events: BinaryHeap<Reverse<(u64, u64, usize, u64)>>,
    doubts: Doubts,
    started: u64,
}

struct RankState<R> {
    feed: Feed<Reader<R>>,
    free: BTreeSet<u64>,
    busy: [bool; 3],
    /// Start in ns of each node that has started.
    issued: BTreeMap<u64, u64>,
    /// Number of collectives that the rank has entered, by group.
    entered: BTreeMap<usize, u64>,
    finish: u64,
    compute: u64,
}

/// A resource that runs one node of a rank at a time.
#[derive(Clone, Copy)]
enum Resource {
    Host,
    Accelerator,
    Network,
}

impl<R: Read> RankState<R> {
    fn new(trace: Reader<R>, expand: Option<(RankId, Arc<dyn Expand>)>) -> RankState<R> {
        RankState {
            feed: Feed::expanding(trace, expand),
            free: BTreeSet::new(),
            busy: [false; 3],
            issued: BTreeMap::new(),
            entered: BTreeMap::new(),
            finish: 0,
            compute: 0,
        }
    }

    fn plan(&mut self) -> Result<(), FeedError> {
        while let Some((id, free)) = self.feed.plan()? {
            self.free.extend(free.then_some(id));
        }
        Ok(())
    }

    fn complete(&mut self, id: u64) {
        if let Some(unit) = unit(self.feed.node(id)) {
            self.busy[unit as usize] = false;
        }
        let free = &mut self.free;
        self.feed.complete(id, &mut |id| free.extend([id]));
    }
}

fn unit(node: &Node) -> Option<Resource> {
    match node.r#type() {
        NodeType::Comp | NodeType::CommColl if node.is_cpu_op() => Some(Resource::Host),
        NodeType::Comp => Some(Resource::Accelerator),
        NodeType::CommColl | NodeType::CommSend | NodeType::MemLoad | NodeType::MemStore => Some(Resource::Network),
        _ => None,
    }
}

impl<R: Read> Simulation<'_, R> {
    fn finish(&mut self, done: &mut dyn FnMut(&CompletedNode<'_>)) -> Result<(), ScheduleError> {
        for rank in 0..self.ranks.len() {
            self.go_on(rank)?;
        }
        while let Some(Reverse((at, _, rank, id))) = self.events.pop() {
            if at > LAST_NS {
                let hint = "check the durations in the traces, and --compute-scale";
                return Err(InputError::new("virtual time exceeds its limit of 213 days", hint).into());
            }
            self.now = at;
            let state = &mut self.ranks[rank];
            state.finish = at;
            let issued = state.issued.remove(&id).expect("what ends has started");
            done(&CompletedNode { rank: RankId::from(rank), node: state.feed.node(id), issued, ended: at });
            state.complete(id);
            self.go_on(rank)?;
        }
        let stuck = (0..self.ranks.len()).filter(|rank| !self.ranks[*rank].feed.is_done());
        let stuck: Vec<_> = stuck.map(|rank| (RankId::from(rank), self.waits_for(rank))).collect();
        if stuck.is_empty() { Ok(()) } else { Err(ScheduleError::Deadlock(stuck)) }
    }

    /// Starts all free nodes whose resource is idle.
    fn go_on(&mut self, rank: usize) -> Result<(), ScheduleError> {
        loop {
            let state = &mut self.ranks[rank];
            state.plan().map_err(|error| ScheduleError::Trace(RankId::from(rank), error))?;
            let mut idle = true;
            for id in state.free.clone() {
                let state = &mut self.ranks[rank];
                let unit = unit(state.feed.node(id));
                if unit.is_some_and(|unit| state.busy[unit as usize]) {
                    continue;
                }
                if let Some(unit) = unit {
                    state.busy[unit as usize] = true;
                }
                state.free.remove(&id);
                idle &= !self.start(rank, id)?;
            }
            if idle {
                return Ok(());
            }
        }
    }

    /// Starts a node; returns whether the node is done at once.
    fn start(&mut self, rank: usize, id: u64) -> Result<bool, ScheduleError> {
        self.ranks[rank].issued.insert(id, self.now);
        let node = self.ranks[rank].feed.node(id);
        if let Some(Refusal { problem, hint }) = refusal(node, rank as u32) {
            return Err(self.wrong(rank, id, problem, hint));
        }
        self.doubts.oddities.count(node);
        match node.r#type() {
            NodeType::Metadata | NodeType::Invalid => {
                self.ranks[rank].issued.remove(&id);
                self.ranks[rank].complete(id);
                return Ok(true);
            }
            NodeType::Comp | NodeType::CommColl
                if unit(node).is_some_and(|unit| !matches!(unit, Resource::Network)) =>
            {
                let (lasts, on_host) = (self.compute(rank, node)?, node.is_cpu_op());
                self.doubts.untimed += u64::from(self.is_untimed(node));
                self.ranks[rank].compute += if on_host { 0 } else { lasts };
                self.end(self.now.saturating_add(lasts), rank, id);
            }
            NodeType::CommColl => self.collective(rank, id)?,
            NodeType::CommSend => self.send(rank, id)?,
            NodeType::CommRecv => self.receive(rank, id)?,
            NodeType::Comp => unreachable!("compute has a unit"),
            NodeType::MemLoad | NodeType::MemStore => self.access(rank, id)?,
        }
        Ok(false)
    }

    /// Starts an access to remote memory, after earlier accesses.
    fn access(&mut self, rank: usize, id: u64) -> Result<(), ScheduleError> {
        let bytes = self.ranks[rank].feed.node(id).unsigned(TENSOR_SIZE).unwrap_or(0);
        let cost = self.machine.memory.and_then(|memory| Some((memory.of_rank(rank as u64), memory.access(bytes)?)));
        let Some((memory, lasts)) = cost else {
            let hint = "give --astra-memory FILE with a memory type other than NO_MEMORY_EXPANSION";
            return Err(self.wrong(rank, id, "uses remote memory, which is not configured".into(), hint));
        };
        let free = self.memories.entry(memory).or_default();
        *free = (*free).max(self.now).saturating_add(lasts);
        let at = *free;
        self.end(at, rank, id);
        Ok(())
    }

    fn end(&mut self, at: u64, rank: usize, id: u64) {
        self.started += 1;
        self.events.push(Reverse((at, self.started, rank, id)));
    }

    /// Whether a node has a number of operations and no duration, and the system does not estimate one.
    fn is_untimed(&self, node: &Node) -> bool {
        let counted = node.unsigned(NUM_OPS).is_some_and(|operations| operations > 0);
        counted && node.duration_micros == 0 && self.model.system().roofline_enabled == 0
    }

    /// Duration in ns: floor of operations / min(peak, bandwidth x operations / bytes), or the recorded duration; at
    /// least 1.
    fn compute(&self, rank: usize, node: &Node) -> Result<u64, ScheduleError> {
        let system = self.model.system();
        let operations = node.unsigned(NUM_OPS).filter(|operations| *operations > 0);
        let lasts = match operations.filter(|_| system.roofline_enabled != 0 && !node.is_cpu_op()) {
            Some(operations) => {
                let bytes = node.unsigned(TENSOR_SIZE).unwrap_or(0);
                let needed = [("peak-perf", system.peak_perf, true), ("local-mem-bw", system.local_mem_bw, bytes > 0)];
                if let Some((key, ..)) = needed.iter().find(|(_, rate, needed)| *needed && *rate <= 0.0) {
                    return Err(ScheduleError::Node {
                        rank: RankId::from(rank),
                        id: node.id,
                        name: node.name.clone(),
                        problem: format!("takes as long as the roofline says, and the system does not give `{key}`"),
                        hint: "add the key to the file of --astra-system, or set \"roofline-enabled\" to 0 there",
                    });
                }
                let intensity = operations as f64 / bytes as f64;
                let rate = (system.local_mem_bw * 1e9 * intensity).min(system.peak_perf * 1e12);
                (operations as f64 / rate * 1e9).floor()
            }
            None => node.duration_micros as f64 * 1e3,
        };
        Ok(((lasts * self.scales.compute) as u64).max(1))
    }

    fn collective(&mut self, rank: usize, id: u64) -> Result<(), ScheduleError> {
        let node = self.ranks[rank].feed.node(id);
        let Some(kind) = node.comm_type().and_then(AstraCollective::of) else {
            let name = node.comm_type().map_or("not said", CommType::name);
            let problem = format!("is a collective that ASTRA-sim does not support ({name})");
            return Err(self.wrong(rank, id, problem, "remove --fidelity astra"));
        };
        let group = self.group(rank, id)?;
        let bytes = self.bytes(rank, id)?;
        let entered = self.ranks[rank].entered.entry(group).or_default();
        let key = (group, *entered);
        *entered += 1;
        let there = self.meetings.entry(key).or_default();
        there.push((rank, id));
        let members = &self.members[group].ranks;
        if there.len() == members.len() {
            let lasts = self.model.collective(kind, bytes, members)?;
            let there = self.meetings.remove(&key).expect("just there");
            for (rank, id) in there {
                self.end(self.now.saturating_add(lasts), rank, id);
            }
        }
        Ok(())
    }

    fn send(&mut self, rank: usize, id: u64) -> Result<(), ScheduleError> {
        let to = self.peer(rank, id, COMM_DST)?;
        let bytes = self.bytes(rank, id)?;
        let tag = self.ranks[rank].feed.node(id).unsigned(COMM_TAG).unwrap_or(0);
        let arrives = self.now.saturating_add(self.model.message(rank as u64, to, bytes));
        self.end(arrives, rank, id);
        let channel = (rank as u64, to, tag);
        match self.receives.get_mut(&channel).and_then(VecDeque::pop_front) {
            Some((receiver, receive)) => self.end(arrives, receiver, receive),
            None => self.sends.entry(channel).or_default().push_back(arrives),
        }
        Ok(())
    }

    fn receive(&mut self, rank: usize, id: u64) -> Result<(), ScheduleError> {
        let from = self.peer(rank, id, COMM_SRC)?;
        let tag = self.ranks[rank].feed.node(id).unsigned(COMM_TAG).unwrap_or(0);
        let channel = (from, rank as u64, tag);
        match self.sends.get_mut(&channel).and_then(VecDeque::pop_front) {
            Some(arrives) => self.end(arrives.max(self.now), rank, id),
            None => self.receives.entry(channel).or_default().push_back((rank, id)),
        }
        Ok(())
    }

    /// The number of a node's group: a group that was given in addition to the traces, or else one that the rank's own
    /// trace describes.
    fn group(&mut self, rank: usize, id: u64) -> Result<usize, ScheduleError> {
        let Some(name) = self.ranks[rank].feed.node(id).process_group() else { return Ok(0) };
        let number = match self.groups.get(name.as_str()) {
            Some(number) => {
                self.doubts.uses_given_groups = true;
                Some(*number)
            }
            None => self.described(rank, &name),
        };
        let has_rank =
            |group: &usize| self.members[*group].set.as_ref().is_some_and(|set| set.contains(&(rank as u64)));
        number.filter(has_rank).ok_or_else(|| {
            let problem = format!("uses process group `{name}`, which is not defined or has invalid members");
            self.wrong(rank, id, problem, "define the groups with --astra-comm-groups FILE")
        })
    }

    /// The number of a group that the rank's trace describes; groups with the same members are one.
    fn described(&mut self, rank: usize, name: &str) -> Option<usize> {
        if let Some(number) = self.described.get(&(rank, name.to_owned())) {
            return Some(*number);
        }
        let group = self.ranks[rank].feed.groups().iter().find(|group| group.name == name)?;
        let ranks: Vec<u64> = group.ranks.iter().copied().map(u64::from).collect();
        let same = self.members.iter().position(|members| members.ranks == ranks || ranks.is_empty());
        let number = same.unwrap_or_else(|| {
            self.members.push(Members::of(ranks, self.model.ranks()));
            self.members.len() - 1
        });
        self.described.insert((rank, name.to_owned()), number);
        Some(number)
    }

    fn bytes(&self, rank: usize, id: u64) -> Result<u64, ScheduleError> {
        let size = self.ranks[rank].feed.node(id).unsigned(COMM_SIZE);
        let hint = "`uniference chakra check` lists missing attributes";
        let size = size.ok_or_else(|| self.wrong(rank, id, "has no size".into(), hint))?;
        let scale = self.scales.communication;
        let scaled = if scale == 1.0 { size } else { (size as f64 * scale) as u64 };
        match scaled <= LARGEST_SIZE {
            true => Ok(scaled),
            false => Err(self.wrong(
                rank,
                id,
                format!("moves {scaled} bytes, more than 1 TiB"),
                "check the program that wrote the trace",
            )),
        }
    }

    fn peer(&self, rank: usize, id: u64, attribute: &str) -> Result<u64, ScheduleError> {
        let peer = self.ranks[rank].feed.node(id).unsigned(attribute).filter(|peer| *peer < self.model.ranks());
        let problem = format!("has no peer rank (`{attribute}`)");
        peer.ok_or_else(|| self.wrong(rank, id, problem, "`uniference chakra check` lists missing attributes"))
    }

    fn wrong(&self, rank: usize, id: u64, problem: String, hint: &'static str) -> ScheduleError {
        let name = self.ranks[rank].feed.node(id).name.clone();
        ScheduleError::Node { rank: RankId::from(rank), id, name, problem, hint }
    }

    /// The operations of a rank that never end.
    fn waits_for(&self, rank: usize) -> String {
        let receives = self.receives.values().flatten();
        let started = receives.chain(self.meetings.values().flatten()).filter(|(owner, _)| *owner == rank);
        let names = started.map(|(_, id)| format!("node {id} `{}`", self.ranks[rank].feed.node(*id).name));
        names.collect::<Vec<_>>().join(", ")
    }

    fn report(&self, observer: &mut dyn Observer) {
        let mut ends: Vec<(u64, usize)> =
            self.ranks.iter().enumerate().map(|(rank, state)| (state.finish, rank)).collect();
        ends.sort_unstable();
        for (finish, rank) in ends {
            let compute = self.ranks[rank].compute;
            let exposed = SimDuration::from_ns(finish.saturating_sub(compute));
            let times = Times { compute: SimDuration::from_ns(compute), exposed, ..Times::default() };
            let event = Event::Finished {
                rank: RankId::from(rank),
                outcome: Outcome::Ok,
                times,
                traffic: Traffic::default(),
                cause: Default::default(),
            };
            observer.record(SimTime::ZERO.saturating_add(SimDuration::from_ns(finish)), &event);
        }
    }
}
