//! Owns virtual time: the order of events, the ranks' clocks and tasks, their activities, and the end of a run.
//!
//! The engine does no I/O and starts no threads: the driver resumes tasks at the engine's request, and submits their
//! requests. Ranks may run concurrently outside; the engine handles a request only when no running rank could still
//! make an earlier one, so that the result does not depend on real time.

mod activities;
mod crash;
mod drive;
mod queue;
mod rank;
mod report;
mod streams;
mod symmetric;
mod tasks;

#[cfg(test)]
mod tests;

pub use crate::comm::{NameClash, NamedBy};
pub use drive::{Failure, RunEnd, drive};
pub use rank::Threads;
pub use report::{Doing, Halt, HaltReason, Near, Pending, RankReport, TaskReport};

use crate::cluster::{Cluster, Device};
use crate::collective::choose::AlgorithmTable;
use crate::comm::{Comm, Completion, Disagreement};
use crate::event::{Event, Observer, Times};
use crate::ids::{GroupId, Handle, RankId, TaskId};
use crate::network::Network;
use crate::program::{Activity, Outcome, POLL_COST, Reply, Request};
use crate::store::Store;
use crate::symmetry::Symmetry;
use crate::time::SimTime;
use crate::transport::Transport;
use activities::ActivityStep;
use queue::{Class, EventKey, EventQueue};
use rank::{RankState, Task, TaskState};
use std::collections::{BTreeSet, VecDeque};

/// A run in virtual time.
pub struct Engine {
    now: SimTime,
    events: EventQueue<PendingEvent>,
    ranks: Vec<RankState>,
    devices: Vec<Device>,
    concurrency: u32,
    comm: Comm,
    store: Store,
    /// Tasks and activities that wait for the store, in the order of their waits.
    storing: Vec<(RankId, Storing)>,
    /// For each running rank the earliest key that a request of the rank can have.
    holding: BTreeSet<EventKey>,
    held: Vec<Option<EventKey>>,
    ready: VecDeque<Resumption>,
    completions: Vec<Completion>,
    /// Steps of activities to carry out now; empty between events.
    steps: Vec<ActivityStep>,
    unfinished: usize,
    halted: Option<Halt>,
    idling: Idling,
}

/// Whether virtual time may pass to the end of a sleep or timeout.
#[derive(Debug, Default)]
struct Idling {
    /// Whether the driver must allow time to pass idly.
    is_asked: bool,
    /// Whether the engine currently waits for the driver's permission.
    waits: bool,
    /// The virtual time at which the driver has given its permission.
    passes_from: Option<SimTime>,
}

/// Next action of the driver.
#[derive(Debug)]
#[must_use = "a task that is not resumed holds time back for ever"]
pub enum Turn {
    /// Resume a task, which then runs until it submits a request.
    Resume(Resumption),
    /// Wait: a running task must submit a request first.
    Blocked,
    /// Every rank has finished.
    Finished,
    /// The run cannot continue.
    Halted(Box<Halt>),
}

/// A task that may continue.
#[derive(Debug)]
pub struct Resumption {
    /// The rank of the task.
    pub rank: RankId,
    /// The task that may continue.
    pub task: TaskId,
    /// The task's clock.
    pub now: SimTime,
    /// The answer to the task's request.
    pub reply: Reply,
}

/// Waiter for the store: a blocked task, or an activity.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Storing {
    Task(TaskId),
    Activity(Handle),
}

/// An event in the queue.
#[derive(Debug)]
enum PendingEvent {
    Request(Request),
    End(Handle),
    /// End of work that shares the device; it may be postponed before it happens.
    SharedEnd(Handle),
    TimeOut,
    Paid(Reply),
    Crash,
}

impl PendingEvent {
    /// Whether the event can still have an effect on its rank.
    fn matters(&self, key: &EventKey, rank: &RankState) -> bool {
        match self {
            PendingEvent::Crash => rank.outcome.is_none(),
            _ if rank.outcome == Some(Outcome::Crashed) => false,
            PendingEvent::TimeOut => rank.tasks[key.task.index()].awaits(key.sequence),
            PendingEvent::SharedEnd(handle) => rank.shared_end == Some((*handle, key.at)),
            PendingEvent::Request(Request::Pause { .. }) => rank.tasks[key.task.index()].requests == key.sequence,
            PendingEvent::Request(_) | PendingEvent::End(_) | PendingEvent::Paid(_) => true,
        }
    }
}

impl Engine {
    /// A run on `cluster`, one rank per device, at time zero. Every rank's task 0 is resumed first, with
    /// [`Reply::Start`].
    pub fn new(cluster: &Cluster) -> Engine {
        Engine::of(cluster, Box::new(cluster.network()), Symmetry::default())
    }

    /// A run in which representatives stand for all equivalent ranks.
    fn of(cluster: &Cluster, network: Box<dyn Network>, symmetry: Symmetry) -> Engine {
        let world = cluster.devices.len();
        let hosts = cluster.devices.iter().map(|device| device.host).collect();
        let transport = Transport::new(network, hosts, cluster.topology.clone(), cluster.backend.protocol.clone());
        let mut engine = Engine {
            now: SimTime::ZERO,
            events: EventQueue::new(),
            ranks: (0..world).map(|rank| RankState::new(RankId::from(rank))).collect(),
            devices: cluster.devices.clone(),
            concurrency: cluster.backend.concurrency,
            comm: Comm::new(
                world,
                (cluster.backend.algorithms.clone(), cluster.backend.free.clone()),
                transport,
                symmetry,
            ),
            store: Store::default(),
            storing: Vec::new(),
            holding: BTreeSet::new(),
            held: vec![None; world],
            ready: VecDeque::new(),
            completions: Vec::new(),
            steps: Vec::new(),
            unfinished: 0,
            halted: None,
            idling: Idling::default(),
        };
        for rank in
            (0..world).map(RankId::from).filter(|rank| engine.symmetry().is_representative(*rank)).collect::<Vec<_>>()
        {
            engine.unfinished += 1;
            engine.resume(rank, TaskId(0), Reply::Start);
            if let Some(at) = engine.devices[rank.index()].crash {
                let key = EventKey { at, class: Class::Crash, rank, task: TaskId(0), sequence: 0 };
                engine.events.push(key, PendingEvent::Crash);
            }
        }
        engine
    }

    /// Number of ranks in the world.
    pub fn world_size(&self) -> usize {
        self.ranks.len()
    }

    /// The engine's time: all earlier events have happened.
    pub fn now(&self) -> SimTime {
        self.now
    }

    /// The latest moment at which a rank was resumed.
    pub fn clock(&self, rank: RankId) -> SimTime {
        self.ranks[rank.index()].clock
    }

    /// Split of a rank's time, up to its last change of state.
    pub fn times(&self, rank: RankId) -> Times {
        self.ranks[rank.index()].ledger.times
    }

    /// Table of the algorithms of collectives.
    pub fn algorithms(&self) -> &AlgorithmTable {
        self.comm.algorithms()
    }

    /// The ranks of a group, in the group's order.
    pub fn members(&self, group: GroupId) -> &[RankId] {
        self.comm.groups.get(group).ranks()
    }

    /// Whether the rank is a member of the group `group`, which must exist.
    pub(crate) fn is_member(&self, rank: RankId, group: GroupId) -> bool {
        self.comm.groups.get(group).position(rank).is_some()
    }

    /// Whether the rank has issued an activity with this handle.
    pub fn has_issued(&self, rank: RankId, handle: Handle) -> bool {
        handle < self.ranks[rank.index()].activities.next_handle()
    }

    /// Whether a rank crashes in this run.
    pub(crate) fn may_crash(&self) -> bool {
        self.devices.iter().any(|device| device.crash.is_some())
    }

    /// Adds a task for a new thread, which runs from its rank's clock on.
    pub fn open_task(&mut self, rank: RankId) -> TaskId {
        let tasks = &mut self.ranks[rank.index()].tasks;
        let task = TaskId::from(tasks.len());
        tasks.push(Task::new());
        task
    }

    /// Tells the engine whether any of the tasks of `rank` that need no answer from it really runs, or what they all
    /// wait for. Initially, tasks run.
    pub fn set_threads(&mut self, rank: RankId, threads: Threads) {
        self.ranks[rank.index()].threads = threads;
        self.update_hold(rank);
    }

    /// Whether all tasks of `rank` wait, at least one of them for something outside the simulation.
    pub fn waits_outside(&self, rank: RankId) -> bool {
        let rank = &self.ranks[rank.index()];
        rank.outcome.is_none() && rank.threads == Threads::WaitOutside
    }

    /// Submits a request of a running task, or of a paused one that its own process has resumed, possibly before the
    /// engine has started the pause.
    ///
    /// # Panics
    /// If the task is neither running nor paused: a bug of the driver.
    pub fn submit(&mut self, rank: RankId, task: TaskId, request: Request) {
        let state = &mut self.ranks[rank.index()];
        let at = state.clock.max(self.now);
        let asking = state.task(task);
        let may_ask =
            matches!(asking.state, TaskState::Running | TaskState::Paused { .. } | TaskState::Asking { pauses: true });
        assert!(may_ask, "{rank} {task} submits {request:?} and is not running");
        asking.state = TaskState::Asking { pauses: matches!(request, Request::Pause { .. }) };
        asking.requests += 1;
        let key = EventKey { at, class: Class::Request, rank, task, sequence: asking.requests };
        self.events.push(key, PendingEvent::Request(request));
        self.update_hold(rank);
    }

    /// Resumes a paused task that its own process has resumed, before it makes a request, and whether or not the engine
    /// has started its pause.
    ///
    /// # Panics
    /// If the task is not paused: a bug of the driver.
    pub fn release(&mut self, rank: RankId, task: TaskId) {
        let paused = self.ranks[rank.index()].task(task);
        let is_paused = matches!(paused.state, TaskState::Paused { .. } | TaskState::Asking { pauses: true });
        assert!(is_paused, "{rank} {task} goes on and has not paused");
        paused.state = TaskState::Running;
        paused.requests += 1;
        self.update_hold(rank);
    }

    /// Continues as far as possible, and returns the next action of the driver.
    pub fn next(&mut self, observer: &mut dyn Observer) -> Turn {
        self.idling.waits = false;
        loop {
            if let Some(resumption) = self.ready.pop_front() {
                return Turn::Resume(resumption);
            }
            if let Some(halt) = &self.halted {
                return Turn::Halted(Box::new(halt.clone()));
            }
            let hold = self.holding.first().copied();
            // Events that cannot have an effect any more must not advance time.
            let ranks = &self.ranks;
            let queued = self.events.next(|key, event| event.matters(key, &ranks[key.rank.index()]));
            // Network events of this instant come after all requests of ranks in this instant: all messages of an
            // instant then start together, and the network reviews its links once.
            let instant_goes_on = [hold, queued].into_iter().flatten().any(|key| key.at <= self.now);
            let network = if instant_goes_on { None } else { self.comm.next_event().map(network_key) };
            match [queued, network].into_iter().flatten().min() {
                None if hold.is_some() => return Turn::Blocked,
                None if self.unfinished == 0 => return Turn::Finished,
                None if self.somebody_runs() => return Turn::Blocked,
                None => self.halt(HaltReason::Deadlock),
                Some(next) if hold.is_some_and(|hold| hold < next) => return Turn::Blocked,
                Some(_) if self.unfinished == 0 => return Turn::Finished,
                Some(next) if next.at == SimTime::MAX => self.halt(HaltReason::EndOfTime),
                Some(next) if self.passes_idly(next, network) => {
                    self.idling.waits = true;
                    return Turn::Blocked;
                }
                Some(next) => {
                    assert!(next.at >= self.now, "time goes back from {} to {next:?}", self.now);
                    self.now = next.at;
                    match network {
                        Some(key) if key == next => self.network_event(observer),
                        _ => self.queued_event(observer),
                    }
                }
            }
        }
    }

    /// From now on time passes to the end of a sleep or timeout only after the driver permits it: the driver may know
    /// more about waiting tasks.
    pub fn asks_before_it_idles(&mut self) {
        self.idling.is_asked = true;
    }

    /// Whether the last turn was [`Turn::Blocked`] for this reason.
    pub fn waits_to_idle(&self) -> bool {
        self.idling.waits
    }

    /// Permits time to pass: all waiting tasks still wait.
    pub fn idle(&mut self) {
        self.idling.passes_from = Some(self.now);
    }

    /// Ends the run with a deadlock. The driver calls this function if no further event can resume a rank.
    pub fn gives_up(&mut self) {
        self.halt(HaltReason::Deadlock);
    }

    /// Whether a blocked task may continue for another reason than the end of a sleep or timeout: the network moves
    /// bytes, work is under way, or a stream of a device carries an operation of a process group, which a library ends
    /// after its timeout.
    pub fn may_still_act(&mut self) -> bool {
        let moves_bytes = self.comm.next_event().is_some();
        let calls = |rank: &RankState| {
            rank.activities.open().any(|(_, open)| open.stream.is_some() && matches!(open.activity, Activity::Call(_)))
        };
        let acts = |(key, event): (&EventKey, &PendingEvent)| {
            event.matters(key, &self.ranks[key.rank.index()]) && !self.only_passes_time(key, event)
        };
        moves_bytes || self.ranks.iter().any(calls) || self.events.iter().any(acts)
    }

    /// Whether the event is the end of a sleep or timeout.
    fn only_passes_time(&self, key: &EventKey, event: &PendingEvent) -> bool {
        match event {
            PendingEvent::TimeOut => true,
            PendingEvent::End(handle) => {
                let ending = self.ranks[key.rank.index()].activities.get(*handle);
                ending.is_some_and(|ending| matches!(ending.activity, Activity::Sleep(_)))
            }
            _ => false,
        }
    }

    /// Whether the driver must permit the passage of time to the next event.
    fn passes_idly(&self, next: EventKey, network: Option<EventKey>) -> bool {
        let asks = self.idling.is_asked && self.idling.passes_from != Some(self.now) && next.at > self.now;
        if !asks || network == Some(next) {
            return false;
        }
        self.events.first().is_some_and(|(key, event)| self.only_passes_time(key, event))
    }

    fn somebody_runs(&self) -> bool {
        let may_run = |rank: &RankState| rank.threads == Threads::WaitOutside || rank.holds_time().is_some();
        self.simulated().any(|rank| rank.outcome.is_none() && may_run(rank))
    }

    fn network_event(&mut self, observer: &mut dyn Observer) {
        let now = self.now;
        let wanted = observer.wants_messages();
        let result = self.comm.advance(now, |message, transport| {
            if wanted {
                let event = Event::Message {
                    source: message.source,
                    destination: message.destination,
                    group: message.group,
                    bytes: message.bytes,
                    wire_bytes: message.wire_bytes,
                    queued: message.queued,
                    started: message.started,
                    sent: message.sent,
                    links: &transport.route(message).links,
                    way: message.way,
                };
                observer.record(now, &event);
            }
        });
        self.halt_on(result);
        if let Some(link) = self.comm.transport.changed_only() {
            observer.link_changed(now, link);
        }
        self.settle_completions(observer);
    }

    fn queued_event(&mut self, observer: &mut dyn Observer) {
        let (key, event) = self.events.pop().expect("just seen");
        let EventKey { rank, task, sequence, .. } = key;
        match event {
            PendingEvent::Crash => self.crash(rank, observer),
            PendingEvent::Request(request) => self.request(rank, task, request, observer),
            PendingEvent::End(handle) => self.activity_ends(rank, handle, observer),
            PendingEvent::SharedEnd(handle) => self.shared_work_ends(rank, handle, observer),
            PendingEvent::Paid(reply) => self.poll_is_paid(rank, task, reply, observer),
            PendingEvent::TimeOut => self.time_out(rank, task, sequence, observer),
        }
    }

    fn request(&mut self, rank: RankId, task: TaskId, request: Request, observer: &mut dyn Observer) {
        match request {
            Request::Issue { activity, queue, after, site } => {
                let handle = self.issue(rank, task, activity, queue, &after, site, observer);
                self.resume(rank, task, Reply::Issued(handle));
            }
            Request::Wait { handles, any, timeout, site } => self.wait(rank, task, handles, any, timeout, site),
            Request::Now => self.read_clock(rank, task, POLL_COST),
            Request::Look => {
                let cost = self.ranks[rank.index()].task(task).look(self.now);
                self.read_clock(rank, task, cost);
            }
            Request::Elapsed { from, to, .. } => {
                let state = &mut self.ranks[rank.index()];
                state.ledger.begin_compute(self.now);
                let reached = |event| state.events.get(&event).and_then(|(_, at)| at.map(SimTime::as_ps));
                let between = |(from, to): (u64, u64)| to.wrapping_sub(from) as i64;
                let elapsed = reached(from).zip(reached(to)).map(between);
                self.pay(rank, task, POLL_COST, Reply::Elapsed(elapsed));
            }
            Request::JoinGroup { ranks, sequence, settings, rendezvous } => {
                match self.comm.join(rank, ranks, sequence, settings, rendezvous) {
                    Ok(group) => self.resume(rank, task, Reply::Group(group)),
                    Err(asymmetry) => self.halt(HaltReason::Asymmetry(asymmetry)),
                }
            }
            Request::NameGroup { name, members, call, site } => {
                match self.comm.groups.name(name, NamedBy { rank, site, members, call }) {
                    Ok(()) => self.resume(rank, task, Reply::Complete(Vec::new())),
                    Err(clash) => self.halt(HaltReason::Groups(clash)),
                }
            }
            Request::Store { operation, timeout, site } => {
                self.use_store(rank, task, operation, timeout, site, observer)
            }
            Request::Pause { timeout, site } => self.pause(rank, task, timeout, site),
            Request::Exit(outcome) => {
                self.exit(rank, task, outcome, observer);
                self.settle_completions(observer);
            }
        }
    }

    fn halt(&mut self, reason: HaltReason) {
        if self.halted.is_none() {
            self.halted = Some(Halt { at: self.now, reason, ranks: self.report() });
        }
    }

    fn halt_on(&mut self, result: Result<(), Box<Disagreement>>) {
        if let Err(disagreement) = result {
            let line = |rank: RankId, handle: Handle| {
                self.ranks[rank.index()].activities.get(handle).map(|activity| activity.site)
            };
            let reason = HaltReason::of(*disagreement, line);
            self.halt(reason);
        }
    }
}

fn network_key(at: SimTime) -> EventKey {
    EventKey { at, class: Class::Network, rank: RankId(0), task: TaskId(0), sequence: 0 }
}
