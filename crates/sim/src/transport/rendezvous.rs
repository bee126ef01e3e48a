//! Owns the handshake before a message's data leaves: the matching of ready receivers and senders. The module knows
//! neither time nor bytes on links.
//!
//! Source: pytorch/gloo, `gloo/transport/tcp/pair.cc`. When a receive from a known rank is posted, the receiver tells
//! the sender at once (RECV_READY); the n-th such message to arrive releases the n-th send of the same channel. When a
//! send between two ranks is posted, the sender also announces it (SEND_READY); only a receive from any source waits
//! for the announcement, and then becomes a receive from that sender. If the receive was posted already, the
//! announcement has no effect.
//!
//! With MPI's handshake, the sender announces first: each receive waits for the announcement that it matches, from a
//! known sender or from any, before the receiver sends anything.

use crate::event::Cause;
use crate::ids::{GroupId, Handle, RankId};
use crate::time::{Bytes, SimTime};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;

/// Messages of one connection that are matched with each other, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Channel {
    /// Messages of one collective, given by the number of its instance.
    Instance(u32),
    /// Messages between two ranks of a group, with one tag.
    Tag(GroupId, u64),
}

/// A receiver's readiness for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Time at which the receiver's program entered the receive; for a step, time of its post.
    pub(crate) entered: SimTime,
    /// The receive, and the size of its buffer; `None` for a step of a collective.
    pub(crate) receive: Option<(Handle, Bytes)>,
    /// Whether the received elements are reduced into the receiver's elements.
    pub(crate) combine: bool,
    /// Time and cause of the post of the receive; `None`: it was posted before, and the sender waited for its
    /// announcement.
    pub(crate) posted: Option<(SimTime, Cause)>,
}

/// Sends that wait for their receivers, and receivers that wait for their sends.
#[derive(Debug, Default)]
pub(super) struct Rendezvous {
    /// Sends and receives that wait, by connection.
    slots: IndexMap<(u32, Channel), Slot, FxBuildHasher>,
    /// Announcements of senders, and receives that wait for one, by receiver.
    doors: IndexMap<(RankId, Channel), Door, FxBuildHasher>,
}

/// Waiting sends or receivers' grants at the sender's end.
#[derive(Debug)]
enum Slot {
    Sends(VecDeque<u32>),
    Grants(VecDeque<Grant>),
}

/// State of one channel at a receiver.
#[derive(Debug, Default)]
struct Door {
    /// Senders whose announcement no receive has matched.
    announced: VecDeque<RankId>,
    /// Receives that wait for an announcement, from this sender or from any.
    open: VecDeque<(Option<RankId>, Grant)>,
    /// Number of receives by sender that were posted before the sender's announcement, less those announced since.
    expected: IndexMap<RankId, u32, FxBuildHasher>,
}

impl Door {
    /// Removes the first announced sender that a receive matches.
    fn take_announced(&mut self, from: Option<RankId>) -> Option<RankId> {
        let known = self.announced.iter().position(|sender| from.is_none_or(|from| from == *sender))?;
        self.announced.remove(known)
    }
}

impl Rendezvous {
    /// Posts a send. Returns its grant if its receiver is ready; otherwise the send waits.
    pub(super) fn send(&mut self, connection: u32, channel: Channel, message: u32) -> Option<Grant> {
        let slot = self.slots.entry((connection, channel)).or_insert_with(|| Slot::Sends(VecDeque::new()));
        match slot {
            Slot::Sends(sends) => {
                sends.push_back(message);
                None
            }
            Slot::Grants(grants) => {
                let grant = grants.pop_front();
                if grants.is_empty() {
                    self.slots.swap_remove(&(connection, channel));
                }
                grant
            }
        }
    }

    /// Records a ready receiver, of which its sender now knows. Returns the message that may leave, if one waits.
    pub(super) fn ready(&mut self, connection: u32, channel: Channel, grant: Grant) -> Option<u32> {
        let slot = self.slots.entry((connection, channel)).or_insert_with(|| Slot::Grants(VecDeque::new()));
        match slot {
            Slot::Grants(grants) => {
                grants.push_back(grant);
                None
            }
            Slot::Sends(sends) => {
                let message = sends.pop_front();
                if sends.is_empty() {
                    self.slots.swap_remove(&(connection, channel));
                }
                message
            }
        }
    }

    /// Posts a receive between two ranks. Returns the sender to notify; `None`: the receive waits for an announcement.
    pub(super) fn receive(
        &mut self,
        receiver: RankId,
        from: Option<RankId>,
        channel: Channel,
        grant: Grant,
    ) -> Option<RankId> {
        let door = self.doors.entry((receiver, channel)).or_default();
        let sender = door.take_announced(from);
        match (sender, from) {
            (Some(_), _) => {}
            (None, Some(from)) => *door.expected.entry(from).or_default() += 1,
            (None, None) => door.open.push_back((None, grant)),
        }
        self.forget_if_idle(receiver, channel);
        sender.or(from)
    }

    /// Posts a receive with MPI's handshake: the receive waits for the sender's announcement even if its sender is
    /// known.
    pub(super) fn receive_when_asked(
        &mut self,
        receiver: RankId,
        from: Option<RankId>,
        channel: Channel,
        grant: Grant,
    ) -> Option<RankId> {
        let door = self.doors.entry((receiver, channel)).or_default();
        let sender = door.take_announced(from);
        if sender.is_none() {
            door.open.push_back((from, grant));
        }
        self.forget_if_idle(receiver, channel);
        sender
    }

    /// Handles a send's announcement. Returns the receive that has waited for it.
    pub(super) fn announced(&mut self, receiver: RankId, sender: RankId, channel: Channel) -> Option<Grant> {
        let door = self.doors.entry((receiver, channel)).or_default();
        let taken = match door.expected.get_mut(&sender) {
            Some(count) => {
                *count -= 1;
                if *count == 0 {
                    door.expected.swap_remove(&sender);
                }
                None
            }
            None => {
                let waits = |(from, _): &(Option<RankId>, Grant)| from.is_none_or(|from| from == sender);
                let taken = door.open.iter().position(waits).and_then(|index| door.open.remove(index));
                door.announced.extend(taken.is_none().then_some(sender));
                taken.map(|(_, grant)| grant)
            }
        };
        self.forget_if_idle(receiver, channel);
        taken
    }

    fn forget_if_idle(&mut self, receiver: RankId, channel: Channel) {
        let idle = |door: &Door| door.announced.is_empty() && door.open.is_empty() && door.expected.is_empty();
        if self.doors.get(&(receiver, channel)).is_some_and(idle) {
            self.doors.swap_remove(&(receiver, channel));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANNEL: Channel = Channel::Tag(GroupId(0), 7);
    const ME: RankId = RankId(0);

    fn grant(handle: u32) -> Grant {
        Grant { entered: SimTime::ZERO, receive: Some((Handle(handle), Bytes(1))), combine: false, posted: None }
    }

    #[test]
    fn the_nth_receive_releases_the_nth_send() {
        let mut state = Rendezvous::default();
        assert_eq!(state.ready(3, CHANNEL, grant(0)), None);
        assert_eq!(state.send(3, CHANNEL, 10), Some(grant(0)));
        assert_eq!(state.send(3, CHANNEL, 11), None);
        assert_eq!(state.send(3, CHANNEL, 12), None);
        assert_eq!(state.send(4, CHANNEL, 13), None);
        assert_eq!(state.ready(3, CHANNEL, grant(1)), Some(11));
        assert_eq!(state.ready(3, CHANNEL, grant(2)), Some(12));
    }

    #[test]
    fn any_source_takes_what_is_announced_first() {
        let mut state = Rendezvous::default();
        assert_eq!(state.announced(ME, RankId(2), CHANNEL), None);
        assert_eq!(state.announced(ME, RankId(1), CHANNEL), None);
        assert_eq!(state.receive(ME, None, CHANNEL, grant(0)), Some(RankId(2)));
        assert_eq!(state.receive(ME, None, CHANNEL, grant(1)), Some(RankId(1)));
        assert_eq!(state.receive(ME, None, CHANNEL, grant(2)), None);
        assert_eq!(state.announced(ME, RankId(2), CHANNEL), Some(grant(2)));
    }

    #[test]
    fn a_receive_waits_to_be_asked_by_its_own_sender() {
        let mut state = Rendezvous::default();
        assert_eq!(state.receive_when_asked(ME, Some(RankId(1)), CHANNEL, grant(0)), None);
        assert_eq!(state.announced(ME, RankId(2), CHANNEL), None);
        assert_eq!(state.announced(ME, RankId(1), CHANNEL), Some(grant(0)));
        assert_eq!(state.receive_when_asked(ME, None, CHANNEL, grant(1)), Some(RankId(2)));
    }

    #[test]
    fn an_announcement_that_crosses_its_receive_is_nobody_elses() {
        let mut state = Rendezvous::default();
        assert_eq!(state.receive(ME, Some(RankId(1)), CHANNEL, grant(0)), Some(RankId(1)));
        assert_eq!(state.receive(ME, None, CHANNEL, grant(1)), None);
        assert_eq!(state.announced(ME, RankId(1), CHANNEL), None);
        assert_eq!(state.announced(ME, RankId(1), CHANNEL), Some(grant(1)));
    }
}
