//! Clusters and programs for the tests.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use uniference_sim::cluster::{Backend, Cluster, Device, Protocol, Window};
use uniference_sim::collective::choose::{AlgorithmTable, algorithm_by_name};
use uniference_sim::engine::{Engine, Halt, RunEnd, drive};
use uniference_sim::ids::{GroupId, GroupRank, Handle, HostId, QueueId, RankId, Site, TaskId};
use uniference_sim::network::{HostSpec, LinkSpec, Preset, Topology};
use uniference_sim::observe::{Digest, Statistics};
use uniference_sim::program::{
    Activity, Call, CallOp, Collective, CollectiveKind, DType, Origin, Outcome, Program, ProgramError, ReduceOp, Reply,
    Request, Shape, Work,
};
use uniference_sim::time::{Bytes, Rate, SimDuration, SimTime};

/// 1 GB/s: a byte lasts 1,000 ps.
pub(crate) const PS_PER_BYTE: u64 = 1_000;
/// One-way latency between two hosts.
pub(crate) const LATENCY_PS: u64 = 5_000_000;

/// The group of all ranks; every program of [`Script`] names it first.
pub(crate) const WORLD: GroupId = GroupId(0);

/// Hosts on an ideal switch, 1 GB/s and 5 us between any two, one rank per host, `ideal` algorithms.
pub(crate) fn switch(ranks: usize) -> Cluster {
    let hosts: Vec<HostSpec> = (0..ranks).map(|rank| HostSpec::new(format!("host.{rank:04}"))).collect();
    let link = LinkSpec::new(Rate::new(1e9).unwrap(), SimDuration::from_ps(LATENCY_PS));
    let device = |rank| Device::new(format!("host.{rank:04}"), HostId::from(rank));
    Cluster {
        name: "test".into(),
        devices: (0..ranks).map(device).collect(),
        topology: Topology::preset(&Preset::Switch, &hosts, link).unwrap(),
        dynamics: Default::default(),
        backend: Backend {
            name: "ideal".into(),
            algorithms: AlgorithmTable::ideal(),
            concurrency: 1,
            protocol: Default::default(),
            free: Default::default(),
        },
    }
}

/// A library in which every operation lasts time, except for a handshake.
pub(crate) fn busy() -> Protocol {
    let us = SimDuration::from_us;
    Protocol {
        call: us(2),
        hand_over: us(1),
        message: us(1),
        wake: us(3),
        copy: Rate::new(2e9),
        reduce: Rate::new(1e9),
        staging: Rate::new(4e9),
        window: Some(Window { first: Bytes(300), cap: Bytes(1 << 20), idle: Some(us(50)) }),
        ..Protocol::default()
    }
}

/// The cluster of [`switch`] with one algorithm forced.
pub(crate) fn forced(ranks: usize, kind: CollectiveKind, algorithm: &str) -> Cluster {
    let mut cluster = switch(ranks);
    cluster.backend.algorithms.force(kind, algorithm_by_name(kind, algorithm).unwrap());
    cluster
}

/// A rank whose requests do not depend on replies. [`Outcomes::at`] returns the times of replies.
pub(crate) struct Script {
    requests: std::vec::IntoIter<Request>,
    log: Log,
}

/// The times and replies of one rank's requests.
pub(crate) type Log = Rc<RefCell<Vec<(SimTime, Reply)>>>;

impl Program for Script {
    fn resume(&mut self, now: SimTime, _: TaskId, reply: Reply) -> Result<Request, ProgramError> {
        self.log.borrow_mut().push((now, reply));
        Ok(self.requests.next().unwrap_or(Request::Exit(Outcome::Ok)))
    }
}

/// Results of a run.
pub(crate) struct Outcomes {
    pub(crate) ended: RunEnd,
    /// For each rank: entry 1 is the reply to the group's naming, entry n + 2 the reply to the script's n-th request.
    pub(crate) logs: Vec<Log>,
    pub(crate) statistics: Statistics,
    pub(crate) digest: String,
}

impl Outcomes {
    /// Time of the reply to the script's n-th request.
    pub(crate) fn at(&self, rank: usize, request: usize) -> u64 {
        self.logs[rank].borrow()[request + 2].0.as_ps()
    }

    pub(crate) fn reply(&self, rank: usize, request: usize) -> Reply {
        self.logs[rank].borrow()[request + 2].1.clone()
    }

    pub(crate) fn finish(&self, rank: usize) -> u64 {
        self.statistics.ranks()[rank].finish.expect("it has finished").as_ps()
    }

    pub(crate) fn halt(&self) -> &Halt {
        match &self.ended {
            RunEnd::Halted(halt) => halt,
            other => panic!("the run was not halted: {other:?}"),
        }
    }
}

/// Runs one script per rank.
pub(crate) fn run(cluster: &Cluster, scripts: Vec<Vec<Request>>) -> Outcomes {
    let world: Arc<[RankId]> = (0..scripts.len()).map(RankId::from).collect();
    let logs: Vec<Log> = scripts.iter().map(|_| Log::default()).collect();
    let mut programs: Vec<Box<dyn Program>> = Vec::new();
    for (script, log) in scripts.into_iter().zip(&logs) {
        let mut requests =
            vec![Request::JoinGroup { ranks: world.clone(), sequence: 0, settings: None, rendezvous: false }];
        requests.extend(script);
        programs.push(Box::new(Script { requests: requests.into_iter(), log: log.clone() }));
    }
    let mut engine = Engine::new(cluster);
    let mut observer = (Statistics::default(), Digest::default());
    let ended = drive(&mut engine, &mut programs, &mut observer);
    Outcomes { ended, logs, statistics: observer.0, digest: observer.1.to_hex() }
}

pub(crate) fn issue(activity: Activity) -> Request {
    Request::Issue { activity, queue: QueueId(0), after: vec![], site: Site(7) }
}

pub(crate) fn wait(handle: u32) -> Request {
    Request::Wait { handles: vec![Handle(handle)], any: false, timeout: None, site: Site(8) }
}

pub(crate) fn compute(ps: u64) -> Request {
    issue(Activity::Compute(Work::new(SimDuration::from_ps(ps), Origin::Recorded)))
}

pub(crate) fn call(op: CallOp) -> Request {
    issue(Activity::Call(Call { group: WORLD, op }))
}

pub(crate) fn send(to: u32, tag: u64, bytes: u64) -> Request {
    call(CallOp::Send { to: GroupRank(to), tag, bytes: Bytes(bytes) })
}

pub(crate) fn recv(from: Option<u32>, tag: u64, bytes: u64) -> Request {
    call(CallOp::Recv { from: from.map(GroupRank), tag, bytes: Bytes(bytes) })
}

pub(crate) fn write(to: u32, bytes: u64) -> Request {
    call(CallOp::Write { to: GroupRank(to), bytes: Bytes(bytes) })
}

/// A collective over `elements` bytes (one byte per element), rooted at 0 if the kind has a root.
pub(crate) fn collective(kind: CollectiveKind, elements: u64) -> Request {
    use CollectiveKind::{AllReduce, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
    call(CallOp::Collective(Collective {
        kind,
        dtype: DType::UInt8,
        reduce: matches!(kind, AllReduce | Reduce | ReduceScatter).then_some(ReduceOp::Sum),
        root: matches!(kind, Broadcast | Gather | Reduce | Scatter).then_some(GroupRank(0)),
        shape: Shape::Even(elements),
        kernel: None,
    }))
}

/// Issues a collective and waits for it.
pub(crate) fn blocking(kind: CollectiveKind, elements: u64) -> Vec<Request> {
    vec![collective(kind, elements), wait(0)]
}
