//! Owns messages of a collective's steps to a member that has not come to the collective: the part for which the
//! member's buffers have room leaves, and the rest is held.
//!
//! The module `comm` decides which messages are held, and when the member has come.

use super::{GroupId, Message, PART, Purpose, RankId, Transport};
use crate::event::Cause;
use crate::ids::MessageId;
use crate::time::{Bytes, SimTime};

impl Transport {
    /// Posts a message like [`Transport::send`], but holds all of its bytes. Returns the message's tag and its number
    /// in events.
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

    /// Sends the first bytes of a held message, for which its receiver has room. Has no effect if the whole message has
    /// already left.
    pub(crate) fn let_part_go(&mut self, now: SimTime, tag: u32, id: MessageId, room: Bytes) {
        if room == Bytes(0) || !self.holds(tag, id) {
            return;
        }
        let message = self.messages.get(tag);
        let (connection, part) = (message.connection, self.hop(message).map_or(room, |hop| hop.stretched(room)));
        let wire_bytes = self.push(now, connection, part, u64::from(tag) | PART);
        self.messages.get_mut(tag).wire_bytes += wire_bytes;
        self.held.insert(tag, part);
    }

    /// Whether the message is held. A message is gone if its sender or receiver has crashed; another message may then
    /// have its tag.
    fn holds(&self, tag: u32, id: MessageId) -> bool {
        self.held.contains_key(&tag) && self.messages.get(tag).way.id == id
    }

    /// Sends the rest of a held message, because its receiver has come to the collective.
    pub(crate) fn let_go(&mut self, now: SimTime, tag: u32, id: MessageId, cause: Cause) {
        if self.holds(tag, id) {
            let message = self.messages.get_mut(tag);
            if now > message.queued {
                message.way.released = now;
                message.way.by = message.destination;
                message.way.begun = now;
                message.way.cause = cause;
                message.way.limit = None;
                (message.limited, message.left_over_links) = Default::default();
            }
            self.dispatch(now, tag);
        }
    }

    /// Drops held messages from or to this rank.
    pub(super) fn lose_held(&mut self, rank: RankId) {
        let ends = |Message { source, destination, .. }: &Message| [*source, *destination].contains(&rank);
        let lost: Vec<u32> = self.held.keys().copied().filter(|tag| ends(self.messages.get(*tag))).collect();
        for tag in lost {
            self.held.remove(&tag);
            self.messages.take(tag);
        }
    }
}
