//! Owns the crash of a rank, and its effects: operations that fail because a connection was closed, and the ranks that
//! are notified. A rank that aborts a group closes its own end. `comm` determines which operations fail.

use super::Engine;
use super::rank::TaskState;
use crate::comm::Notice;
use crate::event::{Cause, Event, Observer};
use crate::ids::{GroupId, Handle, RankId};
use crate::program::{Activity, CallOp, Outcome, Reply};

impl Engine {
    /// Whether the rank has crashed. A crashed rank makes no further requests, and none may be submitted for it.
    pub fn has_crashed(&self, rank: RankId) -> bool {
        self.ranks[rank.index()].outcome == Some(Outcome::Crashed)
    }

    pub(super) fn crash(&mut self, rank: RankId, observer: &mut dyn Observer) {
        let state = &mut self.ranks[rank.index()];
        state.clock = self.now;
        state.tasks.iter_mut().for_each(|task| task.state = TaskState::Ended);
        self.storing.retain(|(storing, _)| *storing != rank);
        self.finish(rank, Outcome::Crashed, Cause::Crash, observer);
        self.comm.crash(self.now, rank);
        self.update_hold(rank);
        self.settle_completions(observer);
    }

    /// Fails the messages of a rank on a connection whose close it has noticed.
    pub(super) fn fail_messages(&mut self, notice: Notice, observer: &mut dyn Observer) {
        let Notice { group, to, of } = notice;
        let members = self.comm.groups.get(group);
        let between = |activity: &Activity| match activity {
            Activity::Call(call) if call.group == group => match call.op {
                CallOp::Send { to: peer, .. }
                | CallOp::Recv { from: Some(peer), .. }
                | CallOp::Write { to: peer, .. } => members.seen_by(to)[peer.index()] == of,
                _ => false,
            },
            _ => false,
        };
        let open = self.ranks[to.index()].activities.running();
        let failing: Vec<Handle> =
            open.filter(|(_, state)| between(&state.activity)).map(|(handle, _)| handle).collect();
        failing.into_iter().for_each(|handle| self.operation_fails(to, handle, of, observer));
    }

    /// Ends a rank's outstanding operations in a group.
    pub(super) fn abort(&mut self, rank: RankId, group: GroupId, observer: &mut dyn Observer) {
        self.comm.abort(rank, group);
        let running = self.ranks[rank.index()].activities.running();
        let of_group = |activity: &Activity| matches!(activity, Activity::Call(call) if call.group == group);
        let failing: Vec<Handle> =
            running.filter(|(_, state)| of_group(&state.activity)).map(|(handle, _)| handle).collect();
        failing.into_iter().for_each(|handle| self.operation_fails(rank, handle, rank, observer));
    }

    /// Fails an operation of `rank`: `peer` has closed its end of their connection.
    pub(super) fn operation_fails(&mut self, rank: RankId, handle: Handle, peer: RankId, observer: &mut dyn Observer) {
        let state = &mut self.ranks[rank.index()];
        let activity = state.activities.get_mut(handle).expect("what fails is not forgotten");
        activity.failed = Some(peer);
        activity.peers_entered = self.now;
        let Activity::Call(call) = &activity.activity else { panic!("{rank}: {handle} is no operation") };
        let started = activity.started.expect("what fails has started");
        let (bytes, issued, why) = (self.comm.bytes(call), activity.issued, activity.why(handle));
        let event = Event::Failed { rank, handle, call, bytes, issued, started, peer, why };
        observer.record(self.now, &event);
        state.failed.insert(handle);
        self.complete(rank, handle, observer);
    }

    /// The reply to a wait that has ended.
    pub(super) fn told(&self, rank: RankId, complete: Vec<Handle>) -> Reply {
        let state = &self.ranks[rank.index()];
        if state.failed.is_empty() {
            return Reply::Complete(complete);
        }
        let failure = |handle: &Handle| Some((*handle, state.activities.get(*handle)?.failed?));
        let failed: Vec<(Handle, RankId)> = complete.iter().filter_map(failure).collect();
        if failed.is_empty() { Reply::Complete(complete) } else { Reply::Failed { complete, failed } }
    }
}
