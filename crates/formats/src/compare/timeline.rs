//! Owns what a comparison needs of one run: when which operations met and ended, and where the ranks' time went. It watches a run like any observer.

use std::collections::BTreeMap;
use uniference_sim::ids::{GroupId, Handle, RankId};
use uniference_sim::program::{Call, CallOp};
use uniference_sim::record::{Event, Meeting, Observer, Times};
use uniference_sim::time::{Bytes, SimTime};

/// Watches a run.
#[derive(Default)]
pub struct Timeline {
    issued: BTreeMap<(RankId, Handle), SimTime>,
    collectives: BTreeMap<(GroupId, u64), Met>,
    /// By receiver and its handle; how the sender called it.
    receives: BTreeMap<(RankId, Handle), ((RankId, Handle), Met)>,
    ranks: BTreeMap<RankId, (SimTime, Times)>,
}

/// An operation of all its members, or both its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Met {
    pub(super) operation: &'static str,
    /// The largest size that a member named.
    pub(super) bytes: Bytes,
    /// When the last had entered.
    pub(super) entered: SimTime,
    /// When the last was through.
    pub(super) completed: SimTime,
}

/// What is the same operation in two runs of one program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) members: Vec<RankId>,
    /// How many groups of just these members came before.
    pub(super) group: u32,
    /// Of a message: sender and receiver.
    pub(super) pair: Option<(RankId, RankId)>,
    /// Its number, among collectives of the group or messages of the pair.
    pub(super) number: u64,
}

/// What a [`Timeline`] has seen, by what it can be compared with.
pub struct Seen {
    pub(super) operations: BTreeMap<Key, Met>,
    pub(super) ranks: Vec<(SimTime, Times)>,
}

impl Met {
    fn add(&mut self, other: Met) {
        self.bytes = self.bytes.max(other.bytes);
        self.entered = self.entered.max(other.entered);
        self.completed = self.completed.max(other.completed);
    }
}

impl Timeline {
    /// The run is over; `members` are those of a group that an event has named.
    pub fn finish<'a>(self, members: impl Fn(GroupId) -> &'a [RankId]) -> Seen {
        let mut seen = Groups { members: &members, numbers: BTreeMap::new(), count: BTreeMap::new() };
        let mut operations = BTreeMap::new();
        for ((group, number), met) in self.collectives {
            operations.insert(seen.key(group, None, number), met);
        }
        let mut messages: BTreeMap<(RankId, RankId), Vec<(Handle, Met)>> = BTreeMap::new();
        for ((receiver, _), ((sender, send), met)) in self.receives {
            let entered = met.entered.max(self.issued.get(&(sender, send)).copied().unwrap_or(SimTime::ZERO));
            messages.entry((sender, receiver)).or_default().push((send, Met { entered, ..met }));
        }
        for (pair, mut met) in messages {
            met.sort_by_key(|(send, _)| *send);
            for (number, (_, met)) in (0..).zip(met) {
                operations.insert(Key { members: vec![pair.0, pair.1], group: 0, pair: Some(pair), number }, met);
            }
        }
        Seen { operations, ranks: self.ranks.into_values().collect() }
    }

    fn completed(&mut self, rank: RankId, handle: Handle, call: &Call, meeting: Meeting, met: Met) {
        match (meeting, &call.op) {
            (Meeting::Collective { sequence }, _) => {
                self.collectives.entry((call.group, sequence)).or_insert(met).add(met);
            }
            (Meeting::Peer(Some(send)), CallOp::Recv { .. }) => {
                self.receives.insert((rank, handle), (send, met));
            }
            (Meeting::Peer(_), _) => {}
        }
    }
}

/// Numbers groups of equal members in the order in which the run numbered them.
struct Groups<'f, F> {
    members: &'f F,
    numbers: BTreeMap<GroupId, u32>,
    count: BTreeMap<Vec<RankId>, u32>,
}

impl<'a, F: Fn(GroupId) -> &'a [RankId]> Groups<'_, F> {
    fn key(&mut self, group: GroupId, pair: Option<(RankId, RankId)>, number: u64) -> Key {
        let members = (self.members)(group).to_vec();
        let next = self.count.entry(members.clone()).or_default();
        let group = *self.numbers.entry(group).or_insert_with(|| {
            *next += 1;
            *next - 1
        });
        Key { members, group, pair, number }
    }
}

impl Observer for Timeline {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        match *event {
            Event::Issued { rank, handle, call, .. } => {
                if let CallOp::Send { .. } = call.op {
                    self.issued.insert((rank, handle), at);
                }
            }
            Event::Completed { rank, handle, call, issued, meeting, .. } => {
                let (operation, bytes) = (call.op.name(), call.op.bytes());
                self.completed(rank, handle, call, meeting, Met { operation, bytes, entered: issued, completed: at });
            }
            Event::Finished { rank, times, .. } => {
                self.ranks.insert(rank, (at, times));
            }
            _ => {}
        }
    }
}
