//! Owns the data of one run for a comparison: starts and ends of operations, and the ranks' times. It observes the run.

use std::collections::BTreeMap;
use uniference_sim::event::{Event, Meeting, Observer, Times};
use uniference_sim::ids::{GroupId, Handle, RankId, Site};
use uniference_sim::program::{Call, CallOp};
use uniference_sim::time::{Bytes, SimTime};

/// The site of operations whose issue was not seen.
const NOWHERE: Site = Site(u32::MAX);

/// Observes a run.
#[derive(Default)]
pub struct Timeline {
    /// Operations that are not complete, and sends.
    issued: BTreeMap<(RankId, Handle), (SimTime, Site)>,
    /// Collectives by group and number, each with the rank whose line it has.
    collectives: BTreeMap<(GroupId, u64), (RankId, MatchedOperation)>,
    /// Receives by receiver and its handle, with the sender's rank and handle.
    receives: BTreeMap<(RankId, Handle), ((RankId, Handle), MatchedOperation)>,
    ranks: BTreeMap<RankId, (SimTime, Times)>,
}

/// An operation with all its members, or with both its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MatchedOperation {
    pub(super) operation: &'static str,
    /// The largest size that a member named.
    pub(super) bytes: Bytes,
    /// Time at which the last member entered.
    pub(super) entered: SimTime,
    /// Time at which the last member was complete.
    pub(super) completed: SimTime,
    /// Line of the operation on its first member; for a message, on its receiver.
    pub(super) site: Site,
}

/// A sequence of ordered operations: a group's collectives, or the messages from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Channel {
    pub(super) members: Vec<RankId>,
    /// Number of earlier groups with exactly these members.
    pub(super) group: u32,
    /// Sender and receiver of a message.
    pub(super) pair: Option<(RankId, RankId)>,
}

/// Data of a run that a [`Timeline`] has observed, by keys that both runs have.
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
    /// Ends the run; `members` returns the members of a group that an event has named, `lines` are the lines of the
    /// program.
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
                // A receive looks its send up at the end of the run.
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
