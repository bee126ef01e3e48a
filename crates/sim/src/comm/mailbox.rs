//! Owns point-to-point matching for one rank: messages that have arrived, and receives that wait.
//!
//! A receive matches the first fitting message in order of arrival; messages of one sender and tag arrive in the order
//! of their sends.

use crate::ids::{GroupId, Handle, RankId, Site};
use crate::time::{Bytes, SimTime};
use std::collections::{BTreeMap, VecDeque};

/// Arrived messages and waiting receives of one rank, by group and tag.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    slots: BTreeMap<(GroupId, u64), Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    delivered: VecDeque<DeliveredMessage>,
    receives: VecDeque<Receive>,
}

/// A message that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeliveredMessage {
    pub(crate) from: RankId,
    /// The sender's operation.
    pub(crate) handle: Handle,
    /// The sender's line.
    pub(crate) site: Site,
    pub(crate) bytes: Bytes,
    /// Time at which the sender's program entered the send.
    pub(crate) entered: SimTime,
}

/// A receive that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receive {
    pub(crate) from: Option<RankId>,
    pub(crate) handle: Handle,
    pub(crate) bytes: Bytes,
    /// Time at which the receiver's program entered the receive.
    pub(crate) entered: SimTime,
}

impl Receive {
    fn takes(&self, message: &DeliveredMessage) -> bool {
        self.from.is_none_or(|from| from == message.from)
    }
}

impl Mailbox {
    /// Delivers a message; returns the waiting receive that it matches, if any.
    pub(crate) fn deliver(&mut self, group: GroupId, tag: u64, message: DeliveredMessage) -> Option<Receive> {
        let slot = self.slots.entry((group, tag)).or_default();
        match slot.receives.iter().position(|receive| receive.takes(&message)) {
            Some(index) => slot.receives.remove(index),
            None => {
                slot.delivered.push_back(message);
                None
            }
        }
    }

    /// Tag and sender's line of the first message of `from` that no receive has matched.
    pub(crate) fn unclaimed(&self, group: GroupId, from: RankId) -> Option<(u64, Site)> {
        let slots = self.slots.range((group, 0)..=(group, u64::MAX));
        let delivered = slots.flat_map(|((_, tag), slot)| slot.delivered.iter().map(move |message| (*tag, message)));
        delivered.filter(|(_, message)| message.from == from).map(|(tag, message)| (tag, message.site)).next()
    }

    /// Begins a receive; returns the arrived message that it matches, if any.
    pub(crate) fn receive(&mut self, group: GroupId, tag: u64, receive: Receive) -> Option<DeliveredMessage> {
        let slot = self.slots.entry((group, tag)).or_default();
        match slot.delivered.iter().position(|message| receive.takes(message)) {
            Some(index) => slot.delivered.remove(index),
            None => {
                slot.receives.push_back(receive);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupId = GroupId(0);

    fn message(from: u32, handle: u32) -> DeliveredMessage {
        DeliveredMessage {
            from: RankId(from),
            handle: Handle(handle),
            site: Site(0),
            bytes: Bytes(1),
            entered: SimTime::ZERO,
        }
    }

    fn receive(from: Option<u32>, handle: u32) -> Receive {
        Receive { from: from.map(RankId), handle: Handle(handle), bytes: Bytes(1), entered: SimTime::ZERO }
    }

    #[test]
    fn any_source_takes_what_came_first() {
        let mut mailbox = Mailbox::default();
        assert_eq!(mailbox.deliver(GROUP, 0, message(2, 20)), None);
        assert_eq!(mailbox.deliver(GROUP, 0, message(1, 10)), None);
        assert_eq!(mailbox.receive(GROUP, 0, receive(None, 0)), Some(message(2, 20)));
        assert_eq!(mailbox.receive(GROUP, 0, receive(Some(1), 1)), Some(message(1, 10)));
    }

    #[test]
    fn tags_and_groups_keep_apart() {
        let mut mailbox = Mailbox::default();
        assert_eq!(mailbox.receive(GROUP, 7, receive(Some(1), 0)), None);
        assert_eq!(mailbox.deliver(GROUP, 8, message(1, 10)), None);
        assert_eq!(mailbox.deliver(GroupId(1), 7, message(1, 11)), None);
        assert_eq!(mailbox.deliver(GROUP, 7, message(1, 12)), Some(receive(Some(1), 0)));
    }

    #[test]
    fn the_receive_that_was_posted_first_is_served_first() {
        let mut mailbox = Mailbox::default();
        mailbox.receive(GROUP, 0, receive(Some(2), 0));
        mailbox.receive(GROUP, 0, receive(None, 1));
        mailbox.receive(GROUP, 0, receive(Some(1), 2));
        assert_eq!(mailbox.deliver(GROUP, 0, message(1, 10)), Some(receive(None, 1)));
        assert_eq!(mailbox.deliver(GROUP, 0, message(1, 11)), Some(receive(Some(1), 2)));
    }
}
