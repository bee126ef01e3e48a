//! Owns the life of an activity: issued, queued, started, complete. `tasks` resumes the tasks that wait for it.

use super::queue::{Class, EventKey};
use super::rank::{ActivityState, QueueKey, RankState, TaskState};
use super::{Engine, HaltReason, PendingEvent};
use crate::comm::{Caller, Completion};
use crate::event::{CallTimes, Cause, Elapsed, Event, Observer};
use crate::ids::{Handle, QueueId, RankId, Site, TaskId};
use crate::program::{Activity, CallOp, Outcome};
use crate::time::{SimDuration, SimTime};

/// Change of an activity of one rank at one moment.
pub(super) enum ActivityStep {
    /// The second activity, on which the first one depends, is complete.
    DependencyMet(Handle, Handle),
    /// The activity starts, if it has no incomplete dependency.
    Start(Handle, Cause),
    /// The first activity of the queue starts, if it may.
    Pump(QueueKey, Cause),
    /// Tasks that wait for the activity continue.
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
        let sequence = self.announce(Caller { rank, handle, site }, task, &activity, observer);
        let state = &mut self.ranks[rank.index()];
        let (stream, queue) = (queue.stream(), queue_of(&activity, queue));
        let mut missing = 0;
        for other in after {
            if let Some(other) = state.activities.get_mut(*other).filter(|other| !other.complete) {
                other.dependents.push(handle);
                missing += 1;
            }
        }
        if let Activity::Reach(event) = activity {
            state.events.insert(event, (handle, None));
        }
        state.activities.push(ActivityState {
            activity,
            task,
            queue,
            stream,
            site,
            issued: self.now,
            started: None,
            cause: Cause::Task(task),
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

    /// Registers an operation with its group. Returns its sequence number in the group, if it is a collective.
    fn announce(&mut self, caller: Caller, task: TaskId, activity: &Activity, observer: &mut dyn Observer) -> u64 {
        if let Err(asymmetry) = self.check_symmetry(activity) {
            self.halt(HaltReason::Asymmetry(asymmetry));
            return 0;
        }
        let Activity::Call(call) = activity else { return 0 };
        let Caller { rank, handle, site } = caller;
        observer.record(
            self.now,
            &Event::Issued { rank, handle, call, bytes: self.comm.bytes(call), site, task: Some(task) },
        );
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
        let ActivityState { queue, task, .. } = *state.activities.get(handle).expect("just issued");
        let cause = Cause::Task(task);
        match queue {
            Some(key) => {
                state.queues.entry(key).or_default().waiting.push_back(handle);
                self.steps.push(ActivityStep::Pump(key, cause));
            }
            None => self.steps.push(ActivityStep::Start(handle, cause)),
        }
        self.carry_out(rank, first, observer);
    }

    /// Carries out steps of `rank`, the last first, with all steps that follow from each, until only the `first` ones
    /// are left. Steps are kept in a list, because any number of activities without duration may follow each other.
    fn carry_out(&mut self, rank: RankId, first: usize, observer: &mut dyn Observer) {
        while self.steps.len() > first {
            match self.steps.pop().expect("just counted") {
                ActivityStep::DependencyMet(dependent, done) => self.dependency_is_met(rank, dependent, done),
                ActivityStep::Start(handle, cause) => self.start_when_free(rank, handle, cause, observer),
                ActivityStep::Pump(key, cause) => self.pump(rank, key, cause, observer),
                ActivityStep::Wake(handle) => self.wake(rank, handle, observer),
            }
        }
    }

    /// Starts the first activity of a queue, and then the next one, as far as the queue's width and the activity's
    /// dependencies permit.
    fn pump(&mut self, rank: RankId, key: QueueKey, cause: Cause, observer: &mut dyn Observer) {
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
        self.steps.push(ActivityStep::Pump(key, cause));
        self.start(rank, head, cause, observer);
    }

    fn start_when_free(&mut self, rank: RankId, handle: Handle, cause: Cause, observer: &mut dyn Observer) {
        if self.ranks[rank.index()].activities.get(handle).is_some_and(|activity| activity.missing == 0) {
            self.start(rank, handle, cause, observer);
        }
    }

    fn start(&mut self, rank: RankId, handle: Handle, cause: Cause, observer: &mut dyn Observer) {
        if self.is_complete_at_start(rank, handle, cause, observer) {
            self.note_completion(rank, handle);
        }
    }

    fn is_complete_at_start(
        &mut self,
        rank: RankId,
        handle: Handle,
        cause: Cause,
        observer: &mut dyn Observer,
    ) -> bool {
        let now = self.now;
        let device = &self.devices[rank.index()];
        let state = &mut self.ranks[rank.index()];
        let activity = state.activities.get_mut(handle).expect("what starts is not forgotten");
        activity.started = Some(now);
        activity.cause = cause;
        let (why, task) = (activity.why(handle), activity.task);
        if let Some(busy) = activity.on_stream() {
            state.streams.begin(now, busy);
            state.ledger.begin_on_stream(now, busy.1);
        }
        let elapsed = |what| Event::Elapsed { rank, task, what, start: now, why: Some(why), cause: Cause::Time };
        let lasts = match &activity.activity {
            // Work of zero duration does not count as compute: runs that differ only in reports of empty compute are
            // equal.
            Activity::Compute(work) if work.duration == SimDuration::ZERO => {
                observer.record(now, &elapsed(Elapsed::Nothing));
                return true;
            }
            Activity::Compute(work) => {
                state.ledger.begin_compute(now);
                if work.shares() {
                    state.sharing.begin(device, now, handle, work.duration);
                    self.shares_change(rank);
                    return false;
                }
                device.time_for(now, work.duration)
            }
            Activity::Sleep(span) => *span,
            Activity::Mark(mark) => {
                state.ledger.settle(now);
                let task = mark.thread().unwrap_or(task);
                observer.record(now, &Event::Marked { rank, task, mark, why, spent: Some(state.ledger.times) });
                return true;
            }
            Activity::Reach(event) => {
                // If the event was issued again in the meantime, the last activity that will reach it is another one.
                if let Some((_, at)) = state.events.get_mut(event).filter(|(issued, _)| *issued == handle) {
                    *at = Some(now);
                }
                observer.record(now, &elapsed(Elapsed::Reach));
                return true;
            }
            Activity::Finish => {
                observer.record(now, &elapsed(Elapsed::Finish));
                self.finish(rank, Outcome::Ok, Cause::Activity(handle), observer);
                return true;
            }
            Activity::Close(group) => {
                let group = *group;
                observer.record(now, &elapsed(Elapsed::Close));
                self.comm.close(now, rank, group);
                return true;
            }
            Activity::Abort(group) => {
                let group = *group;
                observer.record(now, &elapsed(Elapsed::Abort));
                self.abort(rank, group, observer);
                return true;
            }
            Activity::Store(operation) => {
                let operation = operation.clone();
                let served = self.start_store_activity(rank, handle, &operation, observer);
                if served {
                    observer.record(now, &elapsed(Elapsed::Store));
                }
                return served;
            }
            Activity::Call(call) => {
                let call = call.clone();
                let site = activity.site;
                let sequence = activity.sequence;
                if device.communication > 0.0 {
                    state.sharing.communication_begins(device, now);
                    self.shares_change(rank);
                }
                match call.op {
                    _ if self.comm.has_aborted(rank, call.group) => {
                        self.operation_fails(rank, handle, rank, observer);
                    }
                    CallOp::Collective(_) => {
                        self.comm.enter(now, rank, call.group, sequence);
                    }
                    _ => {
                        let caller = Caller { rank, handle, site };
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

    /// Schedules the next end of work that shares a rank's device, after a change of that work or of its share.
    fn shares_change(&mut self, rank: RankId) {
        let state = &mut self.ranks[rank.index()];
        let next = state.sharing.next_end(&self.devices[rank.index()]);
        if next == state.shared_end {
            return;
        }
        state.shared_end = next;
        if let Some((handle, at)) = next {
            let key = EventKey { at, class: Class::ActivityEnd, rank, task: TaskId(0), sequence: u64::from(handle.0) };
            self.events.push(key, PendingEvent::SharedEnd(handle));
        }
    }

    pub(super) fn shared_work_ends(&mut self, rank: RankId, handle: Handle, observer: &mut dyn Observer) {
        self.ranks[rank.index()].sharing.end(&self.devices[rank.index()], self.now, handle);
        self.shares_change(rank);
        self.activity_ends(rank, handle, observer);
    }

    /// Completes the activity after `lasts`, or at the end of virtual time, which halts the run only if no other event
    /// is left.
    pub(super) fn end_after(&mut self, rank: RankId, handle: Handle, lasts: SimDuration) {
        let at = self.now.checked_add(lasts).unwrap_or(SimTime::MAX);
        let key = EventKey { at, class: Class::ActivityEnd, rank, task: TaskId(0), sequence: u64::from(handle.0) };
        self.events.push(key, PendingEvent::End(handle));
    }

    pub(super) fn activity_ends(&mut self, rank: RankId, handle: Handle, observer: &mut dyn Observer) {
        let state = &mut self.ranks[rank.index()];
        let ended = state.activities.get(handle).expect("what ends is not forgotten");
        let (start, why, task) = (ended.started.expect("what ends has started"), ended.why(handle), ended.task);
        let elapsed = |what| Event::Elapsed { rank, task, what, start, why: Some(why), cause: Cause::Time };
        let event = match &ended.activity {
            Activity::Compute(work) => {
                state.ledger.end_compute(self.now);
                let name = work.name.as_deref();
                Event::Computed { rank, task, start, base: work.duration, origin: work.origin, name, why }
            }
            Activity::Store(_) => elapsed(Elapsed::Poll),
            _ => elapsed(Elapsed::Sleep),
        };
        observer.record(self.now, &event);
        self.complete(rank, handle, observer);
        self.settle_completions(observer);
    }

    /// Handles completed operations, and the activities that start because of them, until no further one completes.
    pub(super) fn settle_completions(&mut self, observer: &mut dyn Observer) {
        if let Some(asymmetry) = self.comm.take_asymmetry() {
            self.halt(HaltReason::Asymmetry(asymmetry));
        }
        let mut completions = std::mem::take(&mut self.completions);
        loop {
            self.comm.take_completions(&mut completions);
            let notices = self.comm.take_notices();
            if completions.is_empty() && notices.is_empty() {
                break;
            }
            // The order of operations that the network completes at one instant depends on the numbers of connection
            // streams, on which symmetric ranks need not agree. A rank learns of them in the order in which it issued
            // them, on which symmetric ranks agree.
            completions.sort_by_key(|completion| (completion.rank, completion.handle));
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
        let Completion { rank, handle, meeting, algorithm, peers_entered, failed, cause } = *completion;
        if self.has_crashed(rank) || self.ranks[rank.index()].failed.contains(&handle) {
            return;
        }
        if let Some(peer) = failed {
            return self.operation_fails(rank, handle, peer, observer);
        }
        let RankState { activities, streams, ledger, .. } = &mut self.ranks[rank.index()];
        let state = activities.get_mut(handle).unwrap_or_else(|| panic!("{rank}: {handle} completes and is forgotten"));
        state.peers_entered = peers_entered;
        let Activity::Call(call) = &state.activity else { panic!("{rank}: {handle} is no operation") };
        let started = state.started.expect("what completes has started");
        let (bytes, issued, why) = (self.comm.bytes(call), state.issued, state.why(handle));
        let on_stream = state.stream.map(|stream| {
            let times = streams.call(started, peers_entered, self.now);
            let late = streams.late(started, peers_entered, self.now);
            ledger.times.late_peer += late;
            if let CallOp::Recv { .. } = call.op {
                ledger.times.no_data += late;
            }
            (stream, CallTimes { bus_bytes: self.comm.bus_bytes(call), ..times })
        });
        let event =
            Event::Completed { rank, handle, call, bytes, issued, started, algorithm, meeting, on_stream, why, cause };
        observer.record(self.now, &event);
        self.complete(rank, handle, observer);
    }

    pub(super) fn complete(&mut self, rank: RankId, handle: Handle, observer: &mut dyn Observer) {
        let first = self.steps.len();
        self.note_completion(rank, handle);
        self.carry_out(rank, first, observer);
    }

    /// Marks an activity as complete, and adds the steps that follow to the list of steps: dependents first, then the
    /// queue, then waiting tasks.
    fn note_completion(&mut self, rank: RankId, handle: Handle) {
        let (state, device) = (&mut self.ranks[rank.index()], &self.devices[rank.index()]);
        let activity = state.activities.get_mut(handle).expect("what completes is not forgotten");
        let communicated = device.communication > 0.0 && matches!(activity.activity, Activity::Call(_));
        activity.complete = true;
        let failed = activity.failed.is_some();
        let dependents = std::mem::take(&mut activity.dependents);
        if let Some((busy, started)) = activity.on_stream().zip(activity.started) {
            state.streams.end(self.now, started, busy);
            state.ledger.end_on_stream(self.now, busy.1);
        }
        let key = activity.queue;
        let mut awaited = false;
        for task in &mut state.tasks {
            if let TaskState::Waiting(wait) = &mut task.state {
                awaited |= wait.note(handle, failed);
            }
        }
        // A handle that is not in the table counts as complete for later requests. An activity that a wait has yet to
        // report, or to inspect at its end, stays.
        if !awaited && !failed {
            state.activities.forget(handle);
        }
        if let Some(key) = key {
            let queue = state.queues.get_mut(&key).unwrap_or_else(|| panic!("{rank}: {handle} stood in no queue"));
            queue.active -= 1;
        }
        if awaited {
            self.steps.push(ActivityStep::Wake(handle));
        }
        self.steps.extend(key.map(|key| ActivityStep::Pump(key, Cause::Activity(handle))));
        let met = |dependent| ActivityStep::DependencyMet(dependent, handle);
        self.steps.extend(dependents.into_iter().rev().map(met));
        if communicated {
            state.sharing.communication_ends(device, self.now);
            self.shares_change(rank);
        }
    }

    fn dependency_is_met(&mut self, rank: RankId, dependent: Handle, done: Handle) {
        let activities = &mut self.ranks[rank.index()].activities;
        let activity = activities.get_mut(dependent).expect("what waits for others is not forgotten");
        activity.missing -= 1;
        let cause = Cause::Activity(done);
        self.steps.push(match activity.queue {
            Some(key) => ActivityStep::Pump(key, cause),
            None => ActivityStep::Start(dependent, cause),
        });
    }
}

fn queue_of(activity: &Activity, queue: QueueId) -> Option<QueueKey> {
    match activity {
        Activity::Call(call) => match call.op {
            CallOp::Collective(_) => Some(QueueKey::Group(call.group)),
            CallOp::Send { .. } | CallOp::Recv { .. } | CallOp::Write { .. } => None,
        },
        Activity::Store(_) | Activity::Finish => None,
        Activity::Compute(_)
        | Activity::Sleep(_)
        | Activity::Mark(_)
        | Activity::Reach(_)
        | Activity::Close(_)
        | Activity::Abort(_) => Some(QueueKey::Own(queue)),
    }
}
