//! Owns the handshake before a message's data leaves: who is ready for what. It knows neither time nor bytes on links.
//!
//! Source: pytorch/gloo, `gloo/transport/tcp/pair.cc`. A receive from a known rank tells the sender at once that it is ready (RECV_READY);
//! the n-th that arrives releases the n-th send of the same channel. A send between two ranks also announces itself (SEND_READY), which only a
//! receive from any source waits for: it then becomes a receive from that sender. An announcement whose receive was posted already
//! counts for nothing.
//!
//! Where senders ask first (MPI), no receiver says anything before: each receive waits for the announcement that it takes, whoever it is to
//! come from.

use crate::event::Cause;
use crate::ids::{GroupId, Handle, RankId};
use crate::time::{Bytes, SimTime};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;

/// Messages that are matched with each other, in order, of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Channel {
    /// Of one collective: its instance.
    Instance(u32),
    /// Between two ranks of a group, with one tag.
    Tag(GroupId, u64),
}

/// What a receiver is ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// When the receiver's program entered the receive; of a step, when it was posted.
    pub(crate) entered: SimTime,
    /// Which it was, and the size of its buffer; `None`: a step's.
    pub(crate) receive: Option<(Handle, Bytes)>,
    /// Will the elements be combined with what is there?
    pub(crate) combine: bool,
    /// When the receive was posted, and what that followed from; `None`: it had been, and it was its announcement that the sender waited for.
    pub(crate) posted: Option<(SimTime, Cause)>,
}

/// Sends that wait for their receivers and the other way round.
#[derive(Debug, Default)]
pub(super) struct Rendezvous {
    /// Sends and receives that wait, by connection.
    slots: IndexMap<(u32, Channel), Slot, FxBuildHasher>,
    /// Announcements of senders, and receives that wait for one, by receiver.
    doors: IndexMap<(RankId, Channel), Door, FxBuildHasher>,
}

/// What waits at the sender's end: sends, or grants of receivers.
#[derive(Debug)]
enum Slot {
    Sends(VecDeque<u32>),
    Grants(VecDeque<Grant>),
}

/// At a receiver, of one channel.
#[derive(Debug, Default)]
struct Door {
    /// Senders whose announcement no receive has taken.
    announced: VecDeque<RankId>,
    /// Receives that wait for an announcement, from this sender or from any.
    open: VecDeque<(Option<RankId>, Grant)>,
    /// Receives from a sender that were posted before its announcement came, less those announced since.
    expected: IndexMap<RankId, u32, FxBuildHasher>,
}

impl Door {
    /// The first sender that has announced itself, of those a receive takes.
    fn take_announced(&mut self, from: Option<RankId>) -> Option<RankId> {
        let known = self.announced.iter().position(|sender| from.is_none_or(|from| from == *sender))?;
        self.announced.remove(known)
    }
}

impl Rendezvous {
    /// A send is posted: what it is granted, if its receiver is ready. Otherwise it waits.
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

    /// A receiver is ready, as its sender now knows: the message that may leave, if one waits.
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

    /// A receive between two ranks is posted: to whom it says that it is ready. `None`: it waits for an announcement.
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

    /// The same where senders ask first: a receive waits for its announcement also where its sender is known.
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

    /// A send's announcement has arrived: the receive that has waited for it.
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
