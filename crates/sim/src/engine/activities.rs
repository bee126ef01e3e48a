//! Owns the life of an activity: issued, queued, started, complete. Who waits for it is the business of `tasks`.

use super::queue::{Class, Place};
use super::rank::{ActivityState, QueueKey, TaskState};
use super::{Cause, Engine, Pend};
use crate::comm::{Caller, Completion};
use crate::ids::{Handle, QueueId, RankId, Site, TaskId};
use crate::program::{Activity, CallOp, Outcome};
use crate::record::{Event, Observer};
use crate::time::{SimDuration, SimTime};

/// What happens to activities of one rank at one moment.
pub(super) enum Step {
    /// One of those that the activity waits for is complete.
    DependencyMet(Handle),
    /// The activity starts, if it waits for no other.
    Start(Handle),
    /// The head of the queue starts, if it may.
    Pump(QueueKey),
    /// Tasks that wait for the activity go on.
    Wake(Handle),
}

impl Engine {
    #[expect(clippy::too_many_arguments, reason = "the parts of a request, each of its own type")]
    pub(super) fn issue(
        &mut self,
        rank: RankId,
        task: TaskId,
        activity: Activity,
        queue: QueueId,
        after: &[Handle],
        site: Site,
        observer: &mut dyn Observer,
    ) -> Handle {
        let handle = self.ranks[rank.index()].activities.next_handle();
        let sequence = self.announce(Caller { rank, handle, site }, &activity, observer);
        let state = &mut self.ranks[rank.index()];
        let queue = queue_of(&activity, queue);
        let mut missing = 0;
        for other in after {
            if let Some(other) = state.activities.get_mut(*other).filter(|other| !other.complete) {
                other.dependents.push(handle);
                missing += 1;
            }
        }
        state.activities.push(ActivityState {
            activity,
            task,
            queue,
            site,
            issued: self.now,
            started: None,
            complete: false,
            failed: None,
            peers_entered: SimTime::MAX,
            sequence,
            missing,
            dependents: Vec::new(),
        });
        if self.halted.is_none() {
            self.enqueue(rank, handle, observer);
            self.settle_completions(observer);
        }
        handle
    }

    /// Makes an operation known to its group. Returns its sequence number there, if it is a collective.
    fn announce(&mut self, caller: Caller, activity: &Activity, observer: &mut dyn Observer) -> u64 {
        if let Err(asymmetry) = self.check_symmetry(activity) {
            self.halt(Cause::Asymmetry(asymmetry));
            return 0;
        }
        let Activity::Call(call) = activity else { return 0 };
        let Caller { rank, handle, site } = caller;
        observer.record(self.now, &Event::Issued { rank, handle, call, site });
        let CallOp::Collective(collective) = &call.op else { return 0 };
        match self.comm.announce(caller, call.group, collective) {
            Ok(sequence) => sequence,
            Err(disagreement) => {
                self.halt_on(Err(disagreement));
                0
            }
        }
    }

    fn enqueue(&mut self, rank: RankId, handle: Handle, observer: &mut dyn Observer) {
        let state = &mut self.ranks[rank.index()];
        let first = self.steps.len();
        match state.activities.get(handle).expect("just issued").queue {
            Some(key) => {
                state.queues.entry(key).or_default().waiting.push_back(handle);
                self.steps.push(Step::Pump(key));
            }
            None => self.steps.push(Step::Start(handle)),
        }
        self.carry_out(rank, first, observer);
    }

    /// Carries out steps of `rank`, the last first, with all that follows from each, until only the `first` ones are left.
    /// They are kept in a list, as any number of activities without duration may stand one behind the other.
    fn carry_out(&mut self, rank: RankId, first: usize, observer: &mut dyn Observer) {
        while self.steps.len() > first {
            match self.steps.pop().expect("just counted") {
                Step::DependencyMet(handle) => self.dependency_is_met(rank, handle),
                Step::Start(handle) => self.start_when_free(rank, handle, observer),
                Step::Pump(key) => self.pump(rank, key, observer),
                Step::Wake(handle) => self.wake(rank, handle, observer),
            }
        }
    }

    /// Starts what stands at the head of a queue, and comes back to it, as far as the queue's width and the head's dependencies allow.
    fn pump(&mut self, rank: RankId, key: QueueKey, observer: &mut dyn Observer) {
        let width = match key {
            QueueKey::Own(_) => 1,
            QueueKey::Group(_) => self.concurrency,
        };
        let state = &mut self.ranks[rank.index()];
        let Some(queue) = state.queues.get_mut(&key) else { return };
        let Some(head) = queue.waiting.front().copied().filter(|_| queue.active < width) else { return };
        if state.activities.get(head).is_some_and(|activity| activity.missing > 0) {
            return;
        }
        queue.waiting.pop_front();
        queue.active += 1;
        self.steps.push(Step::Pump(key));
        self.start(rank, head, observer);
    }

    fn start_when_free(&mut self, rank: RankId, handle: Handle, observer: &mut dyn Observer) {
        if self.ranks[rank.index()].activities.get(handle).is_some_and(|activity| activity.missing == 0) {
            self.start(rank, handle, observer);
        }
    }

    fn start(&mut self, rank: RankId, handle: Handle, observer: &mut dyn Observer) {
        if self.is_complete_at_start(rank, handle, observer) {
            self.note_completion(rank, handle);
        }
    }

    fn is_complete_at_start(&mut self, rank: RankId, handle: Handle, observer: &mut dyn Observer) -> bool {
        let now = self.now;
        let device = &self.devices[rank.index()];
        let state = &mut self.ranks[rank.index()];
        let activity = state.activities.get_mut(handle).expect("what starts is not forgotten");
        activity.started = Some(now);
        let lasts = match &activity.activity {
            Activity::Compute(work) => {
                state.ledger.begin_compute(now);
                device.time_for(now, work.duration)
            }
            Activity::Sleep(span) => *span,
            Activity::Mark(mark) => {
                observer.record(now, &Event::Marked { rank, mark });
                return true;
            }
            Activity::Finish => {
                self.finish(rank, Outcome::Ok, observer);
                return true;
            }
            Activity::Close(group) => {
                let group = *group;
                self.comm.close(now, rank, group);
                return true;
            }
            Activity::Store(operation) => {
                let operation = operation.clone();
                return self.start_store_activity(rank, handle, &operation, observer);
            }
            Activity::Call(call) => {
                let call = call.clone();
                match call.op {
                    CallOp::Collective(_) => {
                        let sequence = activity.sequence;
                        self.comm.enter(now, rank, call.group, sequence);
                    }
                    _ => {
                        let caller = Caller { rank, handle, site: activity.site };
                        let result = self.comm.start(now, caller, &call);
                        self.halt_on(result);
                    }
                }
                return false;
            }
        };
        self.end_after(rank, handle, lasts);
        false
    }

    /// The activity is complete after so long, or at the end of time, which halts the run only if nothing else is left to happen.
    pub(super) fn end_after(&mut self, rank: RankId, handle: Handle, lasts: SimDuration) {
        let at = self.now.checked_add(lasts).unwrap_or(SimTime::MAX);
        let place = Place { at, class: Class::ActivityEnd, rank, task: TaskId(0), sequence: u64::from(handle.0) };
        self.events.push(place, Pend::End(handle));
    }

    pub(super) fn activity_ends(&mut self, rank: RankId, handle: Handle, observer: &mut dyn Observer) {
        let state = &mut self.ranks[rank.index()];
        let ended = state.activities.get(handle).expect("what ends is not forgotten");
        if let Activity::Compute(work) = &ended.activity {
            let start = ended.started.expect("what ends has started");
            let event = Event::Computed { rank, task: ended.task, start, base: work.duration, origin: work.origin };
            state.ledger.end_compute(self.now);
            observer.record(self.now, &event);
        }
        self.complete(rank, handle, observer);
        self.settle_completions(observer);
    }

    /// Takes note of operations that communication has completed, and of what starts because of it, until nothing more does.
    pub(super) fn settle_completions(&mut self, observer: &mut dyn Observer) {
        if let Some(asymmetry) = self.comm.take_asymmetry() {
            self.halt(Cause::Asymmetry(asymmetry));
        }
        let mut completions = std::mem::take(&mut self.completions);
        loop {
            self.comm.take_completions(&mut completions);
            let notices = self.comm.take_notices();
            if completions.is_empty() && notices.is_empty() {
                break;
            }
            for completion in completions.drain(..) {
                self.operation_completes(&completion, observer);
            }
            for notice in notices {
                self.fail_messages(notice, observer);
            }
        }
        self.completions = completions;
    }

    fn operation_completes(&mut self, completion: &Completion, observer: &mut dyn Observer) {
        let Completion { rank, handle, meeting, algorithm, peers_entered, failed } = *completion;
        if self.has_crashed(rank) || self.ranks[rank.index()].failed.contains(&handle) {
            return;
        }
        if let Some(peer) = failed {
            return self.operation_fails(rank, handle, peer, observer);
        }
        let activities = &mut self.ranks[rank.index()].activities;
        let state = activities.get_mut(handle).unwrap_or_else(|| panic!("{rank}: {handle} completes and is forgotten"));
        state.peers_entered = peers_entered;
        let Activity::Call(call) = &state.activity else { panic!("{rank}: {handle} is no operation") };
        let started = state.started.expect("what completes has started");
        let event = Event::Completed { rank, handle, call, issued: state.issued, started, algorithm, meeting };
        observer.record(self.now, &event);
        self.complete(rank, handle, observer);
    }

    pub(super) fn complete(&mut self, rank: RankId, handle: Handle, observer: &mut dyn Observer) {
        let first = self.steps.len();
        self.note_completion(rank, handle);
        self.carry_out(rank, first, observer);
    }

    /// Leaves the steps that follow to be carried out: dependents first, then the queue, at last whoever waits.
    fn note_completion(&mut self, rank: RankId, handle: Handle) {
        self.comm.activity_ends(self.now, rank);
        let state = &mut self.ranks[rank.index()];
        let activity = state.activities.get_mut(handle).expect("what completes is not forgotten");
        activity.complete = true;
        let failed = activity.failed.is_some();
        let dependents = std::mem::take(&mut activity.dependents);
        let key = activity.queue;
        for task in &mut state.tasks {
            if let TaskState::Waiting(wait) = &mut task.state {
                wait.note(handle, failed);
            }
        }
        if let Some(key) = key {
            let queue = state.queues.get_mut(&key).unwrap_or_else(|| panic!("{rank}: {handle} stood in no queue"));
            queue.active -= 1;
        }
        self.steps.push(Step::Wake(handle));
        self.steps.extend(key.map(Step::Pump));
        self.steps.extend(dependents.into_iter().rev().map(Step::DependencyMet));
    }

    fn dependency_is_met(&mut self, rank: RankId, dependent: Handle) {
        let activities = &mut self.ranks[rank.index()].activities;
        let activity = activities.get_mut(dependent).expect("what waits for others is not forgotten");
        activity.missing -= 1;
        self.steps.push(activity.queue.map_or(Step::Start(dependent), Step::Pump));
    }
}

fn queue_of(activity: &Activity, queue: QueueId) -> Option<QueueKey> {
    match activity {
        Activity::Call(call) => match call.op {
            CallOp::Collective(_) => Some(QueueKey::Group(call.group)),
            CallOp::Send { .. } | CallOp::Recv { .. } => None,
        },
        Activity::Store(_) | Activity::Finish => None,
        Activity::Compute(_) | Activity::Sleep(_) | Activity::Mark(_) | Activity::Close(_) => {
            Some(QueueKey::Own(queue))
        }
    }
}
