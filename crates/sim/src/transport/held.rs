//! Owns messages of a collective's steps to a member that has not come to it: as much as has room in its buffers leaves, the rest waits.
//!
//! Which messages these are, and when the member has come, is the business of `comm`.

use super::{GroupId, Message, PART, Purpose, RankId, Transport};
use crate::event::Cause;
use crate::ids::MessageId;
use crate::time::{Bytes, SimTime};

impl Transport {
    /// Posts a message as [`Transport::send`] does, of which nothing leaves yet. Returns its number here, and the one in events.
    #[allow(clippy::too_many_arguments, reason = "what a message is, once")]
    pub(crate) fn hold(
        &mut self,
        now: SimTime,
        source: RankId,
        destination: RankId,
        group: GroupId,
        bytes: Bytes,
        purpose: Purpose,
        wire: u32,
        cause: Cause,
    ) -> (u32, MessageId) {
        let tag = self.post(now, source, destination, group, bytes, purpose, wire, cause);
        self.held.insert(tag, Bytes(0));
        (tag, self.messages.get(tag).way.id)
    }

    /// The first bytes of a message leave, as they have room at its receiver, unless all of it has left meanwhile.
    pub(crate) fn let_part_go(&mut self, now: SimTime, tag: u32, id: MessageId, room: Bytes) {
        if room == Bytes(0) || self.held.get(&tag).is_none_or(|_| self.messages.get(tag).way.id != id) {
            return;
        }
        let message = self.messages.get(tag);
        let (connection, part) = (message.connection, self.wire_of(message).map_or(room, |wire| wire.stretched(room)));
        let wire_bytes = self.push(now, connection, part, u64::from(tag) | PART);
        self.messages.get_mut(tag).wire_bytes += wire_bytes;
        self.held.insert(tag, part);
    }

    /// What is left of a message leaves: its receiver has come.
    pub(crate) fn let_go(&mut self, now: SimTime, tag: u32, cause: Cause) {
        // One of its ends may be gone.
        if self.held.contains_key(&tag) {
            let message = self.messages.get_mut(tag);
            if now > message.queued {
                message.way.released = now;
                message.way.by = message.destination;
                message.way.begun = now;
                message.way.cause = cause;
            }
            self.dispatch(now, tag);
        }
    }

    /// Messages that wait for this rank, or that are its own, are lost.
    pub(super) fn lose_held(&mut self, rank: RankId) {
        let ends = |Message { source, destination, .. }: &Message| [*source, *destination].contains(&rank);
        let lost: Vec<u32> = self.held.keys().copied().filter(|tag| ends(self.messages.get(*tag))).collect();
        for tag in lost {
            self.held.remove(&tag);
            self.messages.take(tag);
        }
    }
}
