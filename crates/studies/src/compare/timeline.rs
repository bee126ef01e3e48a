//! Owns what a comparison needs of one run: when which operations met and ended, and where the ranks' time went. It watches a run like any observer.

use std::collections::BTreeMap;
use uniference_sim::event::{Event, Meeting, Observer, Times};
use uniference_sim::ids::{GroupId, Handle, RankId, Site};
use uniference_sim::program::{Call, CallOp};
use uniference_sim::time::{Bytes, SimTime};

/// Of operations whose issue nobody has seen.
const NOWHERE: Site = Site(u32::MAX);

/// Watches a run.
#[derive(Default)]
pub struct Timeline {
    /// Of operations that are not complete, and of sends.
    issued: BTreeMap<(RankId, Handle), (SimTime, Site)>,
    /// By group and number; with the rank whose line it has.
    collectives: BTreeMap<(GroupId, u64), (RankId, MatchedOperation)>,
    /// By receiver and its handle; how the sender called it.
    receives: BTreeMap<(RankId, Handle), ((RankId, Handle), MatchedOperation)>,
    ranks: BTreeMap<RankId, (SimTime, Times)>,
}

/// An operation of all its members, or both its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MatchedOperation {
    pub(super) operation: &'static str,
    /// The largest size that a member named.
    pub(super) bytes: Bytes,
    /// When the last had entered.
    pub(super) entered: SimTime,
    /// When the last was through.
    pub(super) completed: SimTime,
    /// Its line, on its first member; of a message, on its receiver.
    pub(super) site: Site,
}

/// Whose operations have an order of their own: a group's collectives, or the messages from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Channel {
    pub(super) members: Vec<RankId>,
    /// How many groups of just these members came before.
    pub(super) group: u32,
    /// Of a message: sender and receiver.
    pub(super) pair: Option<(RankId, RankId)>,
}

/// What a [`Timeline`] has seen, by what it can be compared with.
pub struct ObservedRun {
    /// Operations of each channel, in order.
    pub(super) operations: BTreeMap<Channel, Vec<MatchedOperation>>,
    /// Lines of the program, indexed by site.
    pub(super) lines: Vec<String>,
    pub(super) ranks: Vec<(SimTime, Times)>,
}

impl ObservedRun {
    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.ranks.len()
    }
}

impl Timeline {
    /// The run is over; `members` are those of a group that an event has named, `lines` those of the program.
    pub fn finish<'a>(self, members: impl Fn(GroupId) -> &'a [RankId], lines: Vec<String>) -> ObservedRun {
        let mut seen = Groups { members: &members, numbers: BTreeMap::new(), count: BTreeMap::new() };
        let mut operations: BTreeMap<Channel, Vec<MatchedOperation>> = BTreeMap::new();
        for ((group, _), (_, met)) in self.collectives {
            operations.entry(seen.channel(group)).or_default().push(met);
        }
        let mut messages: BTreeMap<(RankId, RankId), Vec<(Handle, MatchedOperation)>> = BTreeMap::new();
        for ((receiver, _), ((sender, send), met)) in self.receives {
            let entered = met.entered.max(self.issued.get(&(sender, send)).map_or(SimTime::ZERO, |(at, _)| *at));
            messages.entry((sender, receiver)).or_default().push((send, MatchedOperation { entered, ..met }));
        }
        for (pair, mut met) in messages {
            met.sort_by_key(|(send, _)| *send);
            let channel = Channel { members: vec![pair.0, pair.1], group: 0, pair: Some(pair) };
            operations.insert(
                channel,
                met.into_iter().map(|(_, met)| MatchedOperation { operation: "send", ..met }).collect(),
            );
        }
        ObservedRun { operations, lines, ranks: self.ranks.into_values().collect() }
    }

    fn completed(&mut self, rank: RankId, handle: Handle, call: &Call, meeting: Meeting, met: MatchedOperation) {
        match (meeting, &call.op) {
            (Meeting::Collective { sequence }, _) => {
                let (first, known) = self.collectives.entry((call.group, sequence)).or_insert((rank, met));
                known.bytes = known.bytes.max(met.bytes);
                known.entered = known.entered.max(met.entered);
                known.completed = known.completed.max(met.completed);
                if rank < *first {
                    (*first, known.site) = (rank, met.site);
                }
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
    fn channel(&mut self, group: GroupId) -> Channel {
        let members = (self.members)(group).to_vec();
        let next = self.count.entry(members.clone()).or_default();
        let group = *self.numbers.entry(group).or_insert_with(|| {
            *next += 1;
            *next - 1
        });
        Channel { members, group, pair: None }
    }
}

impl Observer for Timeline {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        match *event {
            Event::Issued { rank, handle, site, .. } => drop(self.issued.insert((rank, handle), (at, site))),
            Event::Completed { rank, handle, call, bytes, issued, started, meeting, on_stream, .. } => {
                let operation = call.op.name();
                let site = self.issued.get(&(rank, handle)).map_or(NOWHERE, |(_, site)| *site);
                // CPUs issue operations on CUDA streams long before the streams reach them, so the start counts.
                let entered = if on_stream.is_some() { started } else { issued };
                // What a receive was sent by is looked up when the run is over.
                if !matches!(call.op, CallOp::Send { .. }) {
                    self.issued.remove(&(rank, handle));
                }
                self.completed(
                    rank,
                    handle,
                    call,
                    meeting,
                    MatchedOperation { operation, bytes, entered, completed: at, site },
                );
            }
            Event::Finished { rank, times, .. } => {
                self.ranks.insert(rank, (at, times));
            }
            _ => {}
        }
    }
}
