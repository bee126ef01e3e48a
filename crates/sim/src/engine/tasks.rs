//! Owns the blocking and resuming of tasks: waits, timeouts, polls, the store, and the end of a task.

use super::queue::{Class, EventKey};
use super::rank::{Blocked, RankState, TaskState, Wait};
use super::{Engine, HaltReason, PendingEvent, Resumption, Storing};
use crate::event::{Cause, Elapsed, Event, Observer, Times, WaitReason};
use crate::ids::{GroupRank, Handle, RankId, Site, TaskId};
use crate::network::Asymmetry;
use crate::program::{Activity, Call, CallOp, Outcome, POLL_COST, Reply, StoreOp, StoreValue};
use crate::store;
use crate::time::{SimDuration, SimTime};

impl Engine {
    /// Resumes a task now.
    pub(super) fn resume(&mut self, rank: RankId, task: TaskId, reply: Reply) {
        let state = &mut self.ranks[rank.index()];
        state.clock = self.now;
        state.task(task).state = TaskState::Running;
        self.ready.push_back(Resumption { rank, task, now: self.now, reply });
        self.update_hold(rank);
    }

    /// Updates the earliest key with which a running rank could still make a request.
    pub(super) fn update_hold(&mut self, rank: RankId) {
        let state = &self.ranks[rank.index()];
        let hold = state.holds_time().map(|task| EventKey {
            at: state.clock,
            class: Class::Request,
            rank,
            task,
            sequence: state.tasks[task.index()].requests + 1,
        });
        let held = &mut self.held[rank.index()];
        if *held != hold {
            if let Some(key) = held {
                self.holding.remove(key);
            }
            if let Some(key) = hold {
                self.holding.insert(key);
            }
            *held = hold;
        }
    }

    // Waits

    pub(super) fn wait(
        &mut self,
        rank: RankId,
        task: TaskId,
        handles: Vec<Handle>,
        any: bool,
        timeout: Option<SimDuration>,
        site: Site,
    ) {
        let now = self.now;
        let state = &mut self.ranks[rank.index()];
        let blocks_on = state.blocks_on(&handles);
        let exposed_before = state.ledger.exposed(now);
        let (awaited, failed) = (state.incomplete(&handles), false);
        let left = awaited.len();
        let wait = Wait { handles, any, since: now, site, exposed_before, blocks_on, awaited, left, failed };
        if let Some(complete) = wait.satisfied(&state.activities) {
            return self.end_told(rank, task, complete);
        }
        if blocks_on == Blocked::Communication {
            state.ledger.begin_communication(now);
        }
        state.task(task).state = TaskState::Waiting(wait);
        self.set_time_out(rank, task, timeout);
    }

    pub(super) fn pause(&mut self, rank: RankId, task: TaskId, timeout: SimDuration, site: Site) {
        self.ranks[rank.index()].task(task).state = TaskState::Paused { since: self.now, site };
        self.set_time_out(rank, task, Some(timeout));
    }

    fn set_time_out(&mut self, rank: RankId, task: TaskId, timeout: Option<SimDuration>) {
        let sequence = self.ranks[rank.index()].task(task).requests;
        if let Some(at) = timeout.and_then(|timeout| self.now.checked_add(timeout)) {
            self.events.push(EventKey { at, class: Class::TimeOut, rank, task, sequence }, PendingEvent::TimeOut);
        }
    }

    /// Resumes those tasks of the rank whose wait ends with the completion of `done`.
    pub(super) fn wake(&mut self, rank: RankId, done: Handle, observer: &mut dyn Observer) {
        for task in (0..self.ranks[rank.index()].tasks.len()).map(TaskId::from) {
            let state = &mut self.ranks[rank.index()];
            let TaskState::Waiting(wait) = &state.tasks[task.index()].state else { continue };
            if !wait.awaits(done) || !wait.is_over() {
                continue;
            }
            if let Some(complete) = wait.satisfied(&state.activities) {
                let wait = wait.clone();
                self.end_wait(rank, task, &wait, Some(done), observer);
                self.end_told(rank, task, complete);
            }
        }
    }

    fn end_told(&mut self, rank: RankId, task: TaskId, complete: Vec<Handle>) {
        let reply = self.told(rank, complete);
        if let Reply::Complete(complete) | Reply::Failed { complete, .. } = &reply {
            let activities = &mut self.ranks[rank.index()].activities;
            complete.iter().for_each(|handle| activities.forget(*handle));
        }
        self.resume(rank, task, reply);
    }

    /// Books a wait that has ended. `done` is the activity whose completion ended the wait; `None`: the wait has timed
    /// out.
    fn end_wait(&mut self, rank: RankId, task: TaskId, wait: &Wait, done: Option<Handle>, observer: &mut dyn Observer) {
        let now = self.now;
        let state = &mut self.ranks[rank.index()];
        if wait.blocks_on == Blocked::Communication {
            state.ledger.end_communication(now);
        }
        if now == wait.since {
            return;
        }
        let exposed = state.ledger.exposed(now) - wait.exposed_before;
        let [late_peer, no_data] = match wait.blocks_on {
            Blocked::Communication => self.late_peers(rank, wait).map(|late| late.min(exposed)),
            _ => [SimDuration::ZERO; 2],
        };
        let state = &mut self.ranks[rank.index()];
        // Lateness of an operation on a CUDA stream is booked when the operation is complete, not by the threads that
        // wait for it.
        let on_stream =
            |handle: &Handle| state.activities.get(*handle).is_some_and(|state| state.on_stream().is_some());
        if !wait.handles.iter().any(on_stream) {
            state.ledger.times.late_peer += late_peer;
            state.ledger.times.no_data += no_data;
        }
        let reason = match wait.blocks_on {
            Blocked::Communication => WaitReason::Communication,
            Blocked::Compute => WaitReason::Compute,
            Blocked::Sleep => WaitReason::Sleep,
        };
        let call = done.or_else(|| state.first_missing(&wait.handles)).and_then(|handle| state.call(handle));
        let (start, handles, site) = (wait.since, &wait.handles[..], wait.site);
        let cause = done.map_or(Cause::Time, Cause::Activity);
        let event =
            Event::Waited { rank, task, start, reason, exposed, late_peer, no_data, handles, call, site, cause };
        observer.record(now, &event);
    }

    /// For a wait that ends now, two durations from its start: until all peers had entered, and until the senders of
    /// awaited receives had.
    fn late_peers(&self, rank: RankId, wait: &Wait) -> [SimDuration; 2] {
        let state = &self.ranks[rank.index()];
        let (mut any, mut senders) = (wait.since, wait.since);
        for handle in &wait.handles {
            let Some(activity) = state.activities.get(*handle) else { continue };
            let Activity::Call(call) = &activity.activity else { continue };
            let entered = match activity.complete {
                true => activity.peers_entered,
                false => self.peers_entered(rank, *handle, call, activity.sequence),
            };
            any = any.max(entered);
            if let CallOp::Recv { .. } = call.op {
                senders = senders.max(entered);
            }
        }
        [any, senders].map(|entered| entered.min(self.now).since(wait.since))
    }

    /// Time at which the peers of an incomplete operation had entered it. The n-th waiting receive is matched with the
    /// n-th unreceived send of its sender; if receives from any rank and from this sender have the same tag, another
    /// receive may match first.
    fn peers_entered(&self, rank: RankId, handle: Handle, call: &Call, sequence: u64) -> SimTime {
        let group = call.group;
        let members = |rank| self.comm.groups.get(group).seen_by(rank);
        match call.op {
            CallOp::Collective(_) => self.comm.peers_entered(rank, group, sequence),
            CallOp::Recv { from, tag, .. } => {
                let from = from.map(|from| members(rank)[from.index()]);
                let sends = self.comm.open_sends(rank, group, tag);
                let mut sends = sends.filter(|send| from.is_none_or(|from| from == send.from));
                let waiting = self.ranks[rank.index()].activities.open_receives(group, tag);
                let before = waiting.take_while(|(other, _)| *other < handle).filter(|(_, other)| {
                    let sender = receives_from(&other.activity).map(|other| members(rank)[other.index()]);
                    from.is_none() || sender.is_none_or(|sender| Some(sender) == from)
                });
                sends.nth(before.count()).map_or(SimTime::MAX, |send| send.entered)
            }
            CallOp::Send { to, tag, bytes } if self.comm.sends_wait(group, bytes) => {
                let (receiver, me) = self.symmetry().normalised(members(rank)[to.index()], rank);
                let mut sends = self.comm.open_sends(receiver, group, tag).filter(|send| send.from == me);
                let Some(before) = sends.position(|send| send.handle == handle) else { return SimTime::MAX };
                let waiting = self.ranks[receiver.index()].activities.open_receives(group, tag);
                let mut mine = waiting.filter(|(_, other)| {
                    let sender = receives_from(&other.activity).map(|other| members(receiver)[other.index()]);
                    sender.is_none_or(|sender| sender == me)
                });
                mine.nth(before).and_then(|(_, receive)| receive.started).unwrap_or(SimTime::MAX)
            }
            CallOp::Send { .. } | CallOp::Write { .. } => SimTime::ZERO,
        }
    }

    pub(super) fn time_out(&mut self, rank: RankId, task: TaskId, request: u64, observer: &mut dyn Observer) {
        let state = self.ranks[rank.index()].task(task);
        assert!(state.awaits(request), "{rank} {task}: the time-out of request {request} is over");
        match std::mem::replace(&mut state.state, TaskState::Running) {
            TaskState::Waiting(wait) => {
                self.end_wait(rank, task, &wait, None, observer);
                self.ranks[rank.index()].forget_awaited(&wait.awaited);
            }
            TaskState::Storing { since, site, .. } => {
                self.storing.retain(|blocked| *blocked != (rank, Storing::Task(task)));
                self.end_idle_wait(rank, task, WaitReason::Store, (since, site), Cause::Time, observer);
            }
            TaskState::Paused { since, site } => {
                self.end_idle_wait(rank, task, WaitReason::Sleep, (since, site), Cause::Time, observer);
            }
            _ => unreachable!("{rank} {task} does not wait"),
        }
        self.resume(rank, task, Reply::TimedOut);
    }

    // Polls and the store

    /// Answers a task's clock read with the time after the read, whose cost counts as compute.
    pub(super) fn read_clock(&mut self, rank: RankId, task: TaskId, cost: SimDuration) {
        self.ranks[rank.index()].ledger.begin_compute(self.now);
        self.pay(rank, task, cost, Reply::Now(self.now.saturating_add(cost)));
    }

    /// Answers a task's request once the cost of a poll has passed.
    pub(super) fn pay(&mut self, rank: RankId, task: TaskId, cost: SimDuration, reply: Reply) {
        let state = self.ranks[rank.index()].task(task);
        state.state = TaskState::Polling { since: self.now };
        let sequence = state.requests;
        match self.now.checked_add(cost) {
            Some(at) => self
                .events
                .push(EventKey { at, class: Class::ActivityEnd, rank, task, sequence }, PendingEvent::Paid(reply)),
            None => self.halt(HaltReason::EndOfTime),
        }
    }

    pub(super) fn poll_is_paid(&mut self, rank: RankId, task: TaskId, reply: Reply, observer: &mut dyn Observer) {
        let TaskState::Polling { since: start } = self.ranks[rank.index()].task(task).state else {
            unreachable!("{rank} {task} has not polled")
        };
        let (what, why, cause) = (Elapsed::Poll, None, Cause::Time);
        observer.record(self.now, &Event::Elapsed { rank, task, what, start, why, cause });
        if let Reply::Now(_) | Reply::Elapsed(_) = reply {
            self.ranks[rank.index()].ledger.end_compute(self.now);
        }
        self.resume(rank, task, reply);
    }

    pub(super) fn use_store(
        &mut self,
        rank: RankId,
        task: TaskId,
        operation: StoreOp,
        timeout: Option<SimDuration>,
        site: Site,
        observer: &mut dyn Observer,
    ) {
        if !self.symmetry().is_trivial() {
            return self.halt(HaltReason::Asymmetry(Asymmetry::store()));
        }
        match self.store.apply(&operation) {
            Some(value) => {
                if store::changes(&operation) {
                    self.serve_store_waits(Cause::Stored(rank, task), observer);
                }
                self.answer(rank, task, &operation, value);
            }
            None => {
                self.storing.push((rank, Storing::Task(task)));
                self.ranks[rank.index()].task(task).state = TaskState::Storing { operation, since: self.now, site };
                self.set_time_out(rank, task, timeout);
            }
        }
    }

    fn answer(&mut self, rank: RankId, task: TaskId, operation: &StoreOp, value: StoreValue) {
        match store::looks(operation) {
            true => self.pay(rank, task, POLL_COST, Reply::Store(value)),
            false => self.resume(rank, task, Reply::Store(value)),
        }
    }

    /// Carries out a store operation of an activity. Returns whether it is complete at once.
    pub(super) fn start_store_activity(
        &mut self,
        rank: RankId,
        handle: Handle,
        operation: &StoreOp,
        observer: &mut dyn Observer,
    ) -> bool {
        if !self.symmetry().is_trivial() {
            self.halt(HaltReason::Asymmetry(Asymmetry::store()));
            return false;
        }
        if self.store.apply(operation).is_none() {
            self.storing.push((rank, Storing::Activity(handle)));
            return false;
        }
        if store::changes(operation) {
            self.serve_store_waits(Cause::StoredBy(rank, handle), observer);
        }
        let looks = store::looks(operation);
        if looks {
            self.end_after(rank, handle, POLL_COST);
        }
        !looks
    }

    /// Serves the waits for the store after a change, first come, first served.
    fn serve_store_waits(&mut self, cause: Cause, observer: &mut dyn Observer) {
        let mut index = 0;
        while let Some((rank, storing)) = self.storing.get(index).copied() {
            let Some(value) = self.store.apply(stored_for(&self.ranks[rank.index()], storing)) else {
                index += 1;
                continue;
            };
            self.storing.remove(index);
            match storing {
                Storing::Activity(handle) => {
                    let state = self.ranks[rank.index()].activities.get(handle).expect("what waits is not forgotten");
                    let (start, task) = (state.started.expect("what waits has started"), state.task);
                    let (what, why) = (Elapsed::Store, Some(state.why(handle)));
                    observer.record(self.now, &Event::Elapsed { rank, task, what, start, why, cause });
                    self.complete(rank, handle, observer);
                }
                Storing::Task(task) => {
                    if let TaskState::Storing { since, site, .. } = self.ranks[rank.index()].task(task).state {
                        self.end_idle_wait(rank, task, WaitReason::Store, (since, site), cause, observer);
                    }
                    self.resume(rank, task, Reply::Store(value));
                }
            }
        }
    }

    fn end_idle_wait(
        &mut self,
        rank: RankId,
        task: TaskId,
        reason: WaitReason,
        (start, site): (SimTime, Site),
        cause: Cause,
        observer: &mut dyn Observer,
    ) {
        if start < self.now {
            let [exposed, late_peer, no_data] = [SimDuration::ZERO; 3];
            let (handles, call) = (&[][..], None);
            let event =
                Event::Waited { rank, task, start, reason, exposed, late_peer, no_data, handles, call, site, cause };
            observer.record(self.now, &event);
        }
    }

    // The end

    pub(super) fn exit(&mut self, rank: RankId, task: TaskId, outcome: Outcome, observer: &mut dyn Observer) {
        let state = &mut self.ranks[rank.index()];
        state.task(task).state = TaskState::Ended;
        if task == TaskId(0) {
            self.finish(rank, outcome, Cause::Task(task), observer);
        }
        self.update_hold(rank);
    }

    /// Closes the rank's accounts, once.
    pub(super) fn finish(&mut self, rank: RankId, outcome: Outcome, cause: Cause, observer: &mut dyn Observer) {
        let state = &mut self.ranks[rank.index()];
        if state.outcome.is_some() {
            return;
        }
        state.ledger.settle(self.now);
        let Times { compute, exposed, idle, .. } = state.ledger.times;
        assert_eq!(compute + exposed + idle, self.now.since(SimTime::ZERO), "{rank}: its time does not add up");
        state.outcome = Some(outcome);
        self.unfinished -= 1;
        let (times, traffic) = (state.ledger.times, self.comm.traffic(rank));
        let streams: Vec<_> = state.streams.times(self.now).collect();
        for rank in self.symmetry().class(rank) {
            for (stream, times) in &streams {
                observer.record(self.now, &Event::Used { rank, stream: *stream, times: *times });
            }
            observer.record(self.now, &Event::Finished { rank, outcome, times, traffic, cause });
        }
        self.comm.close_all(self.now, rank);
    }
}

/// The store operation that a task or an activity waits for.
fn stored_for(rank: &RankState, storing: Storing) -> &StoreOp {
    match storing {
        Storing::Task(task) => match &rank.tasks[task.index()].state {
            TaskState::Storing { operation, .. } => operation,
            _ => panic!("{}: {task} does not wait for the store", rank.id),
        },
        Storing::Activity(handle) => match rank.activities.get(handle).map(|state| &state.activity) {
            Some(Activity::Store(operation)) => operation,
            _ => panic!("{}: {handle} does not wait for the store", rank.id),
        },
    }
}

/// The sender that a receive names; `None`: any sender.
fn receives_from(activity: &Activity) -> Option<GroupRank> {
    match activity {
        Activity::Call(Call { op: CallOp::Recv { from, .. }, .. }) => *from,
        _ => None,
    }
}
