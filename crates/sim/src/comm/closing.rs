//! Owns closed connections: notices of closed connections, the operations that fail because of them, and aborted
//! groups. The engine decides when a rank closes its connections, and reports failed operations to programs.
//!
//! The model follows Gloo over TCP (docs/explanation/network-model.md): the close of a connection is noticed one
//! latency later, after all data that has left before. Operations that wait for data on this connection then fail, and
//! later ones fail when they use it. Members of a collective that exchange no data with the closed end wait on, until a
//! member that has failed closes its own end.

use super::{Comm, Completion, Cue};
use crate::event::{Cause, Meeting};
use crate::ids::{GroupId, GroupRank, Handle, RankId};
use crate::time::SimTime;
use std::collections::BTreeSet;

/// Closed connections and aborted groups. The sets are empty until a rank crashes or aborts a group.
#[derive(Default)]
pub(super) struct Closed {
    gone: BTreeSet<RankId>,
    /// Known closed ends: (group, rank that was notified, rank that closed).
    pairs: BTreeSet<(GroupId, RankId, RankId)>,
    /// Ranks that have aborted a group; other ranks are not notified.
    aborted: BTreeSet<(GroupId, RankId)>,
    /// Notices that are delivered only after earlier messages of the same connection have been received.
    held: Vec<Notice>,
    /// Notices that the engine has not fetched yet.
    told: Vec<Notice>,
}

/// `to` notices that `of` has closed its end of their connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice {
    pub(crate) group: GroupId,
    pub(crate) to: RankId,
    pub(crate) of: RankId,
}

impl Closed {
    /// Whether `to` has been notified that `of` has closed its end.
    pub(super) fn is_known(&self, group: GroupId, to: RankId, of: RankId) -> bool {
        !self.pairs.is_empty() && self.pairs.contains(&(group, to, of))
    }
}

impl Comm {
    /// Handles the crash of a rank's process.
    pub(crate) fn crash(&mut self, now: SimTime, rank: RankId) {
        self.transport.crash(now, rank);
        self.closed.gone.insert(rank);
        for instance in self.instances.iter_mut().flatten() {
            if let Some(me) = self.groups.get(instance.group).position(rank) {
                instance.fail(me);
            }
        }
        self.close_all(now, rank);
    }

    /// The rank closes its ends of all connections.
    pub(crate) fn close_all(&mut self, now: SimTime, rank: RankId) {
        if !self.closed.gone.is_empty() {
            self.groups.of(rank).into_iter().for_each(|group| self.close(now, rank, group));
        }
    }

    /// Closes the rank's ends of the connections of one group. Other ranks are notified only if a rank has crashed, or
    /// if this rank has aborted the group. A program that ends normally closes its connections too, and a rank that
    /// still waits for it then is in a deadlock.
    pub(crate) fn close(&mut self, now: SimTime, of: RankId, group: GroupId) {
        if self.closed.gone.is_empty() && !self.has_aborted(of, group) {
            return;
        }
        let members = self.groups.get(group);
        let Some(me) = members.position(of) else { return };
        // Members that the rank represents have closed their ends too.
        let (own, others): (Vec<_>, Vec<_>) =
            (0..members.size()).map(GroupRank).partition(|member| members.player(*member) == me);
        let ends: Vec<RankId> = own.into_iter().map(|end| members.world_rank(end)).collect();
        let others =
            others.into_iter().filter(|member| members.plays(*member)).map(|member| members.world_rank(member));
        for to in others.filter(|to| !self.closed.gone.contains(to)).collect::<Vec<_>>() {
            for of in &ends {
                let at = now.saturating_add(self.transport.latency(*of, to));
                let notice = Notice { group, to, of: *of };
                self.cue(now, at, Cue::Closed(notice)).expect("a notice disagrees with nothing");
            }
        }
    }

    /// The rank leaves a group: its data is not sent any more, and data for it has no effect.
    pub(crate) fn abort(&mut self, rank: RankId, group: GroupId) {
        self.closed.aborted.insert((group, rank));
        let me = self.position(rank, group);
        for instance in self.instances.iter_mut().flatten().filter(|instance| instance.group == group) {
            instance.fail(me);
        }
    }

    /// Whether the rank has aborted the group.
    pub(crate) fn has_aborted(&self, rank: RankId, group: GroupId) -> bool {
        !self.closed.aborted.is_empty() && self.closed.aborted.contains(&(group, rank))
    }

    pub(super) fn noticed(&mut self, now: SimTime, notice: Notice) {
        let Notice { group, to, of } = notice;
        if self.transport.is_on_its_way(group, of, to) {
            self.closed.held.push(notice);
        } else if self.closed.pairs.insert((group, to, of)) {
            self.fail_waiting_members(now, notice);
            self.closed.told.push(notice);
        }
    }

    /// A message has been received: delivers the notices that were sent after it.
    pub(super) fn look_at_held(&mut self, now: SimTime) {
        for notice in std::mem::take(&mut self.closed.held) {
            self.noticed(now, notice);
        }
    }

    fn fail_waiting_members(&mut self, now: SimTime, Notice { group, to, of }: Notice) {
        let members = self.groups.get(group);
        let (Some(me), Some(peer)) = (members.position(to), members.find(of)) else { return };
        let waits = |index: &u32| {
            let instance = self.instances[*index as usize].as_ref();
            instance.is_some_and(|instance| instance.group == group && instance.waits_for(me, peer))
        };
        let waiting: Vec<u32> = (0..self.instances.len() as u32).filter(waits).collect();
        waiting.into_iter().for_each(|index| self.fail_member(now, index, me, of));
    }

    /// Fails a collective for one member.
    pub(super) fn fail_member(&mut self, now: SimTime, index: u32, me: GroupRank, peer: RankId) {
        let instance = self.instances[index as usize].as_mut().expect("it runs");
        instance.fail(me);
        let caller = instance.caller(me);
        self.completions.push(Completion {
            rank: caller.rank,
            handle: caller.handle,
            meeting: Meeting::Collective { sequence: instance.sequence },
            algorithm: None,
            peers_entered: now,
            failed: Some(peer),
            cause: Cause::Closed(peer),
        });
    }

    /// Fails a message between two ranks: `peer` has closed the connection.
    pub(super) fn fail_message(&mut self, now: SimTime, rank: RankId, handle: Handle, peer: RankId) {
        let (meeting, failed) = (Meeting::Peer(None), Some(peer));
        let cause = Cause::Closed(peer);
        let completion = Completion { rank, handle, meeting, algorithm: None, peers_entered: now, failed, cause };
        self.completions.push(completion);
    }

    /// Notices since the last call.
    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.closed.told)
    }
}
