//! Owns the effect of the end of a rank's process on its connections: data that has left arrives, other data is lost.
//! `comm` notifies other ranks and fails operations.

use super::{CONTROL, Message, PART, Purpose, Transport};
use crate::ids::{GroupId, RankId};
use crate::time::{SimDuration, SimTime};

impl Transport {
    /// Closes all connections of a rank whose process is gone: no data leaves for it or from it any more.
    pub(crate) fn crash(&mut self, now: SimTime, rank: RankId) {
        self.catch_up(now);
        self.gone.insert(rank);
        let mut dropped = Vec::new();
        for ((_, source, destination), connection) in &mut self.connections {
            if [*source, *destination].contains(&rank) {
                self.network.abandon(connection.stream, &mut dropped);
                connection.close(&mut dropped);
            }
        }
        self.lose_held(rank);
        for tag in dropped.into_iter().filter(|tag| tag & PART == 0) {
            self.lose(tag);
        }
    }

    fn lose(&mut self, tag: u64) {
        if tag & CONTROL != 0 {
            self.controls.take(tag as u32);
            return;
        }
        let message = self.messages.take(tag as u32);
        self.take_grant(&message);
    }

    /// Whether a message of the group is in flight from one rank to the other, or not received yet.
    pub(crate) fn is_on_its_way(&self, group: GroupId, from: RankId, to: RankId) -> bool {
        let waits = |Message { group, bytes, wire, purpose, .. }: &Message| {
            self.waits_for_receive(*group, *bytes, *wire, matches!(purpose, Purpose::Step { .. }))
        };
        let has_left = |tag: u32, message: &Message| {
            !self.held.contains_key(&tag) && (!waits(message) || self.grant(message).is_some())
        };
        let between = |message: &Message| (message.group, message.source, message.destination) == (group, from, to);
        self.messages.iter().any(|(tag, message)| between(message) && has_left(tag, message))
    }

    /// Time until the end of a connection is noticed at its other end.
    pub(crate) fn latency(&self, from: RankId, to: RankId) -> SimDuration {
        self.topology.route(self.hosts[from.index()], self.hosts[to.index()]).latency
    }
}
