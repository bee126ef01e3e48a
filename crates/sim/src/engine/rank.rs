//! Owns the state of one rank: its tasks, its activities and their queues, and the accounts of its time.

use super::streams::{Busy, Streams};
use crate::device::{Resource, Sharing};
use crate::event::{Cause, Times, Why};
use crate::ids::{GroupId, Handle, QueueId, RankId, Site, TaskId};
use crate::program::{Activity, Call, CallOp, LOOK_COST, Outcome, POLL_COST, StoreOp};
use crate::time::{SimDuration, SimTime};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One logical process.
pub(crate) struct RankState {
    pub(crate) id: RankId,
    /// The latest moment at which one of its tasks was resumed. No task of the rank can make an earlier request.
    pub(crate) clock: SimTime,
    pub(crate) tasks: Vec<Task>,
    pub(crate) threads: Threads,
    pub(crate) activities: Activities,
    pub(crate) queues: BTreeMap<QueueKey, Queue>,
    pub(crate) sharing: Sharing,
    /// The next end of work that shares the device, and its time: other such ends in the event queue are outdated.
    pub(crate) shared_end: Option<(Handle, SimTime)>,
    pub(crate) ledger: Ledger,
    pub(crate) streams: Streams,
    pub(crate) outcome: Option<Outcome>,
    /// For each event number of the rank: the last activity that was to reach the event, and the time at which it did.
    pub(crate) events: BTreeMap<u32, (Handle, Option<SimTime>)>,
    /// Operations that have failed, so that their later arrivals are ignored.
    pub(crate) failed: BTreeSet<Handle>,
}

/// A thread of a rank.
pub(crate) struct Task {
    pub(crate) state: TaskState,
    /// Counter of this task's requests: the last part of an event's key, which also tells a stale timeout from a live
    /// one.
    pub(crate) requests: u64,
    /// End of the last clock read, and number of consecutive clock reads.
    looked: (SimTime, u32),
}

/// Number of consecutive clock reads, without another request between them, that counts as a busy-wait.
const LOOKS_OF_A_LOOP: u32 = 1000;

impl Task {
    pub(crate) fn new() -> Task {
        Task { state: TaskState::Running, requests: 0, looked: (SimTime::ZERO, 0) }
    }

    /// Cost of a clock read at `now`.
    pub(crate) fn look(&mut self, now: SimTime) -> SimDuration {
        let (end, in_a_row) = self.looked;
        let in_a_row = if end == now { in_a_row.saturating_add(1) } else { 1 };
        let cost = if in_a_row < LOOKS_OF_A_LOOP { LOOK_COST } else { POLL_COST };
        self.looked = (now.saturating_add(cost), in_a_row);
        cost
    }

    /// Whether this request is still blocked, so that its timeout may end it.
    pub(crate) fn awaits(&self, request: u64) -> bool {
        let blocked =
            matches!(self.state, TaskState::Waiting(_) | TaskState::Storing { .. } | TaskState::Paused { .. });
        blocked && self.requests == request
    }
}

/// State of a task.
pub(crate) enum TaskState {
    /// The task's program runs, outside the engine.
    Running,
    /// The engine has the task's request and has not handled it yet. A requested pause may be ended before it begins.
    Asking { pauses: bool },
    /// Blocked in a wait.
    Waiting(Wait),
    /// Blocked in the store.
    Storing { operation: StoreOp, since: SimTime, site: Site },
    /// Blocked until a timeout, unless its own process resumes it earlier.
    Paused { since: SimTime, site: Site },
    /// Busy with the cost of a poll.
    Polling { since: SimTime },
    /// The task's program has ended.
    Ended,
}

/// Real state of those tasks of a rank that run from the engine's point of view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threads {
    /// At least one task runs. No event happens that could come after its next request.
    #[default]
    Run,
    /// All tasks wait for other tasks of their rank, inside its process.
    Wait,
    /// All tasks wait, at least one of them for something outside the simulation: a pipe, a process.
    WaitOutside,
}

/// A task's wait.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) handles: Vec<Handle>,
    pub(crate) any: bool,
    pub(crate) since: SimTime,
    pub(crate) site: Site,
    /// The ledger's exposed time when the wait began.
    pub(crate) exposed_before: SimDuration,
    pub(crate) blocks_on: Blocked,
    /// The `handles` that were not complete when the wait began, in order, each once.
    pub(crate) awaited: Vec<Handle>,
    /// Number of `awaited` activities that are not complete yet. The number is counted, because a wait may name any
    /// number of activities.
    pub(crate) left: usize,
    /// Whether one of `awaited` has failed.
    pub(crate) failed: bool,
}

/// Kind of activity that blocks a task; if there are several, the first in this order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Blocked {
    Communication,
    Compute,
    Sleep,
}

/// Queue of an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QueueKey {
    /// Compute, sleep and marks.
    Own(QueueId),
    /// Collectives of a group.
    Group(GroupId),
}

/// Activities that start in order, a few at a time.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) waiting: VecDeque<Handle>,
    pub(crate) active: u32,
}

/// An activity from its issue until it can have no further effect: see [`Activities`].
pub(crate) struct ActivityState {
    pub(crate) activity: Activity,
    /// The task that issued the activity.
    pub(crate) task: TaskId,
    /// Queue of the activity; `None`: it starts as soon as its dependencies permit.
    pub(crate) queue: Option<QueueKey>,
    /// CUDA stream of the activity, if it is on one.
    pub(crate) stream: Option<u32>,
    pub(crate) site: Site,
    pub(crate) issued: SimTime,
    pub(crate) started: Option<SimTime>,
    /// Cause of the activity's start; known once it has started.
    pub(crate) cause: Cause,
    pub(crate) complete: bool,
    /// Rank that closed its end of a connection, if the activity has failed; the own rank if it has aborted the group.
    /// A failed activity is complete, too.
    pub(crate) failed: Option<RankId>,
    /// Time until which a peer that had not entered kept the activity waiting.
    pub(crate) peers_entered: SimTime,
    /// Sequence number of a collective in its group.
    pub(crate) sequence: u64,
    /// Number of activities of this rank that must be complete first.
    pub(crate) missing: u32,
    pub(crate) dependents: Vec<Handle>,
}

impl ActivityState {
    /// The CUDA stream that the activity keeps busy, if any.
    pub(crate) fn on_stream(&self) -> Option<(u32, Busy)> {
        let busy = match &self.activity {
            Activity::Compute(work) => match work.resource {
                Resource::CopyEngine => Busy::Copy,
                Resource::Accelerator | Resource::Multiprocessor | Resource::Host => Busy::Kernel,
            },
            Activity::Call(_) => Busy::Communication,
            _ => return None,
        };
        self.stream.map(|stream| (stream, busy))
    }

    /// Description of the activity and its beginning for events.
    pub(crate) fn why(&self, handle: Handle) -> Why {
        let queue = match self.queue {
            Some(QueueKey::Own(queue)) => Some(queue),
            Some(QueueKey::Group(_)) | None => None,
        };
        Why { task: self.task, handle, queue, site: self.site, issued: self.issued, cause: self.cause }
    }
}

/// The activities of a rank that can still have an effect, by handle: incomplete ones, those that a wait in progress
/// names, and failed ones whose failure no wait has reported.
#[derive(Default)]
pub(crate) struct Activities {
    states: BTreeMap<Handle, Box<ActivityState>>,
    issued: u32,
}

impl Activities {
    pub(crate) fn next_handle(&self) -> Handle {
        Handle(self.issued)
    }

    pub(crate) fn push(&mut self, state: ActivityState) -> Handle {
        let handle = self.next_handle();
        self.issued += 1;
        self.states.insert(handle, Box::new(state));
        handle
    }

    pub(crate) fn get(&self, handle: Handle) -> Option<&ActivityState> {
        self.states.get(&handle).map(Box::as_ref)
    }

    pub(crate) fn get_mut(&mut self, handle: Handle) -> Option<&mut ActivityState> {
        self.states.get_mut(&handle).map(Box::as_mut)
    }

    /// Incomplete activities, in the order in which they were issued.
    pub(crate) fn open(&self) -> impl Iterator<Item = (Handle, &ActivityState)> {
        self.states.iter().map(|(handle, state)| (*handle, state.as_ref())).filter(|(_, state)| !state.complete)
    }

    /// Activities that have started and are not complete.
    pub(crate) fn running(&self) -> impl Iterator<Item = (Handle, &ActivityState)> {
        self.open().filter(|(_, state)| state.started.is_some())
    }

    /// Receives of a group and tag that have started and are not complete, in the order in which they were issued.
    pub(crate) fn open_receives(&self, group: GroupId, tag: u64) -> impl Iterator<Item = (Handle, &ActivityState)> {
        self.running().filter(move |(_, state)| match &state.activity {
            Activity::Call(Call { group: of, op: CallOp::Recv { tag: wanted, .. } }) => (*of, *wanted) == (group, tag),
            _ => false,
        })
    }

    /// Whether the activity is complete, forgotten or not.
    pub(crate) fn is_complete(&self, handle: Handle) -> bool {
        assert!(handle < self.next_handle(), "{handle} was never issued");
        self.get(handle).is_none_or(|state| state.complete)
    }

    pub(crate) fn forget(&mut self, handle: Handle) {
        self.states.remove(&handle);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }
}

/// Split of a rank's time. At every moment a rank computes, else its communication is exposed, else it is idle. A rank
/// whose device has CUDA streams computes while a kernel runs; without a kernel, its communication is exposed while an
/// operation is in progress on a stream, whatever its launching CPU does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) times: Times,
    settled: SimTime,
    computing: u32,
    communicating: u32,
    /// Number of kernels, and of operations of process groups, in progress on streams.
    kernels: u32,
    calls: u32,
}

impl Ledger {
    /// Adds the time since the last change of state to the account of that state.
    pub(crate) fn settle(&mut self, now: SimTime) {
        let span = now.since(self.settled);
        self.settled = now;
        let account = match (self.kernels, self.calls, self.computing, self.communicating) {
            (1.., ..) | (0, 0, 1.., _) => &mut self.times.compute,
            (0, 1.., ..) | (0, 0, 0, 1..) => &mut self.times.exposed,
            (0, 0, 0, 0) => &mut self.times.idle,
        };
        *account += span;
    }

    pub(crate) fn begin_on_stream(&mut self, now: SimTime, busy: Busy) {
        self.settle(now);
        self.on_stream(busy).into_iter().for_each(|count| *count += 1);
    }

    pub(crate) fn end_on_stream(&mut self, now: SimTime, busy: Busy) {
        self.settle(now);
        self.on_stream(busy).into_iter().for_each(|count| *count -= 1);
    }

    /// Counter of the activities of this kind in progress on streams. Copies have no counter: they hide no
    /// communication.
    fn on_stream(&mut self, busy: Busy) -> Option<&mut u32> {
        match busy {
            Busy::Kernel => Some(&mut self.kernels),
            Busy::Communication => Some(&mut self.calls),
            Busy::Copy => None,
        }
    }

    /// Exposed communication up to now.
    pub(crate) fn exposed(&mut self, now: SimTime) -> SimDuration {
        self.settle(now);
        self.times.exposed
    }

    pub(crate) fn begin_compute(&mut self, now: SimTime) {
        self.settle(now);
        self.computing += 1;
    }

    pub(crate) fn end_compute(&mut self, now: SimTime) {
        self.settle(now);
        self.computing -= 1;
    }

    pub(crate) fn begin_communication(&mut self, now: SimTime) {
        self.settle(now);
        self.communicating += 1;
    }

    pub(crate) fn end_communication(&mut self, now: SimTime) {
        self.settle(now);
        self.communicating -= 1;
    }
}

impl RankState {
    pub(crate) fn new(id: RankId) -> RankState {
        RankState {
            id,
            clock: SimTime::ZERO,
            tasks: vec![Task::new()],
            threads: Threads::Run,
            activities: Activities::default(),
            queues: BTreeMap::new(),
            sharing: Sharing::default(),
            shared_end: None,
            ledger: Ledger::default(),
            streams: Streams::default(),
            outcome: None,
            events: BTreeMap::new(),
            failed: BTreeSet::new(),
        }
    }

    pub(crate) fn task(&mut self, task: TaskId) -> &mut Task {
        &mut self.tasks[task.index()]
    }

    /// The first running task, which keeps time from passing the rank's clock.
    pub(crate) fn holds_time(&self) -> Option<TaskId> {
        let holds = self.outcome.is_none() && self.threads == Threads::Run;
        let running = || self.tasks.iter().position(|task| matches!(task.state, TaskState::Running));
        holds.then(running).flatten().map(TaskId::from)
    }
}

impl RankState {
    /// Kind of activity that will block a wait for `handles` that begins now.
    pub(crate) fn blocks_on(&self, handles: &[Handle]) -> Blocked {
        let missing = handles.iter().filter_map(|handle| self.activities.get(*handle)).filter(|state| !state.complete);
        missing.map(|state| kind(&state.activity)).min().unwrap_or(Blocked::Sleep)
    }

    /// The incomplete ones of `handles`, in order, each once.
    pub(crate) fn incomplete(&self, handles: &[Handle]) -> Vec<Handle> {
        let mut open: Vec<Handle> =
            handles.iter().copied().filter(|handle| !self.activities.is_complete(*handle)).collect();
        open.sort_unstable();
        open.dedup();
        open
    }

    pub(crate) fn first_missing(&self, handles: &[Handle]) -> Option<Handle> {
        handles.iter().copied().find(|handle| !self.activities.is_complete(*handle))
    }

    pub(crate) fn call(&self, handle: Handle) -> Option<&Call> {
        match &self.activities.get(handle)?.activity {
            Activity::Call(call) => Some(call),
            _ => None,
        }
    }

    /// Forgets complete activities that were kept for a wait which has ended without reporting them, unless another
    /// wait names them, too.
    pub(crate) fn forget_awaited(&mut self, handles: &[Handle]) {
        for handle in handles {
            let awaits = |task: &Task| matches!(&task.state, TaskState::Waiting(wait) if wait.awaits(*handle));
            if self.activities.is_complete(*handle) && !self.tasks.iter().any(awaits) {
                self.activities.forget(*handle);
            }
        }
    }
}

fn kind(activity: &Activity) -> Blocked {
    match activity {
        Activity::Call(_) => Blocked::Communication,
        Activity::Compute(_) | Activity::Reach(_) => Blocked::Compute,
        Activity::Sleep(_)
        | Activity::Mark(_)
        | Activity::Store(_)
        | Activity::Finish
        | Activity::Close(_)
        | Activity::Abort(_) => Blocked::Sleep,
    }
}

impl Wait {
    /// Records the completion of an activity, if the wait is for this activity; returns whether it is.
    pub(crate) fn note(&mut self, done: Handle, failed: bool) -> bool {
        let awaits = self.awaits(done);
        if awaits {
            self.left -= 1;
            self.failed |= failed;
        }
        awaits
    }

    /// Whether this activity was incomplete when the wait began.
    pub(crate) fn awaits(&self, handle: Handle) -> bool {
        self.awaited.binary_search(&handle).is_ok()
    }

    /// Whether the completions recorded by [`Wait::note`] end the wait.
    pub(crate) fn is_over(&self) -> bool {
        self.left == 0 || self.failed || (self.any && self.left < self.awaited.len())
    }

    /// The complete handles of this wait, if they end it.
    pub(crate) fn satisfied(&self, activities: &Activities) -> Option<Vec<Handle>> {
        let complete: Vec<Handle> =
            self.handles.iter().copied().filter(|handle| activities.is_complete(*handle)).collect();
        let failed = |handle: &Handle| activities.get(*handle).is_some_and(|state| state.failed.is_some());
        let enough = complete.iter().any(failed)
            || if self.any {
                !complete.is_empty() || self.handles.is_empty()
            } else {
                complete.len() == self.handles.len()
            };
        enough.then_some(complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compute_hides_communication() {
        // Timeline: compute 0..3, communication 2..5. Expected: exposed = 5 - 3, idle = 6 - 5.
        let at = SimTime::from_ps;
        let mut ledger = Ledger::default();
        ledger.begin_compute(at(0));
        ledger.begin_communication(at(2));
        ledger.end_compute(at(3));
        ledger.end_communication(at(5));
        ledger.settle(at(6));
        let ps = SimDuration::from_ps;
        assert_eq!(ledger.times, Times { compute: ps(3), exposed: ps(2), idle: ps(1), ..Times::default() });
    }

    #[test]
    fn an_operation_on_a_stream_is_exposed_whatever_the_host_does() {
        // Timeline: compute of the host 0..8, kernel 1..3, operation on a stream 2..6. Expected: compute = 3 + (8 - 6),
        // exposed = 6 - 3, idle = 9 - 8.
        let at = SimTime::from_ps;
        let mut ledger = Ledger::default();
        ledger.begin_compute(at(0));
        ledger.begin_on_stream(at(1), Busy::Kernel);
        ledger.begin_compute(at(1));
        ledger.begin_on_stream(at(2), Busy::Communication);
        ledger.end_compute(at(3));
        ledger.end_on_stream(at(3), Busy::Kernel);
        ledger.end_on_stream(at(6), Busy::Communication);
        ledger.end_compute(at(8));
        ledger.settle(at(9));
        let ps = SimDuration::from_ps;
        assert_eq!(ledger.times, Times { compute: ps(5), exposed: ps(3), idle: ps(1), ..Times::default() });
    }

    #[test]
    fn handles_are_forgotten_in_any_order() {
        let state = || ActivityState {
            activity: Activity::Sleep(SimDuration::ZERO),
            task: TaskId(0),
            queue: None,
            stream: None,
            site: Site(0),
            issued: SimTime::ZERO,
            started: None,
            cause: Cause::Time,
            complete: false,
            failed: None,
            peers_entered: SimTime::ZERO,
            sequence: 0,
            missing: 0,
            dependents: Vec::new(),
        };
        let mut activities = Activities::default();
        let handles: Vec<Handle> = (0..3).map(|_| activities.push(state())).collect();
        activities.forget(handles[1]);
        activities.forget(handles[0]);
        assert!(activities.is_complete(handles[1]));
        assert!(!activities.is_complete(handles[2]));
        assert_eq!(activities.push(state()), Handle(3));
    }
}
