//! Owns how long operations of process groups took, by size, beside how long they take at least ([`super::bound`]).

use super::bound::{self, Reach};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use uniference_sim::cluster::Cluster;
use uniference_sim::event::{Event, Meeting, Observer};
use uniference_sim::ids::{GroupId, Handle, RankId};
use uniference_sim::program::{CallOp, CollectiveKind};
use uniference_sim::time::{Bytes, SimTime};

/// Watches a run for its operations.
#[derive(Default)]
pub(super) struct Operations {
    members: BTreeMap<GroupId, BTreeSet<RankId>>,
    collectives: BTreeMap<(GroupId, u64), Met>,
    /// By sender and its handle: when the sender came to it, and when the receiver did and had it.
    sends: BTreeMap<(RankId, Handle), SimTime>,
    receives: Vec<Received>,
    /// Of each write: its bytes, when the writer came to it, and when it had ended.
    writes: Vec<(Bytes, SimTime, SimTime)>,
}

/// A collective, of all members that were seen so far.
struct Met {
    kind: CollectiveKind,
    block: Option<Bytes>,
    bytes: Bytes,
    by_switches: bool,
    first: SimTime,
    last: SimTime,
    end: SimTime,
    through: usize,
}

struct Received {
    send: (RankId, Handle),
    receiver: RankId,
    bytes: Bytes,
    started: SimTime,
    end: SimTime,
}

/// Operations of one kind and number of members that are about equally large. Times are means, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperationsRow {
    /// `all_reduce`; messages are `send`, and what is written into another rank's memory `write`.
    pub operation: &'static str,
    /// Of the group; 2 of a message.
    pub members: usize,
    /// How many there were, each counted once whatever its members.
    pub count: u64,
    /// The mean of the largest tensor that a member named.
    pub bytes: f64,
    /// From when the first member came to it until the last one was through.
    pub time_s: f64,
    /// The part of it until the last member came to it.
    pub late_s: f64,
    /// What it takes at least on this network; `None` (null): not known, as of members on one host, and of writes.
    pub bound_s: Option<f64>,
}

#[derive(Default)]
struct Sums {
    count: u64,
    bytes: f64,
    time: f64,
    late: f64,
    bound: f64,
}

impl Operations {
    /// By operation, number of members and size, the next power of 2. `cluster`: what the run was simulated on, if it was.
    pub(super) fn finish(self, cluster: Option<&Cluster>) -> Vec<OperationsRow> {
        let mut sums: BTreeMap<(&'static str, usize, u64, bool), Sums> = BTreeMap::new();
        let mut add = |operation, members, bytes: Bytes, [first, last, end]: [SimTime; 3], bound: Option<f64>| {
            let class = bytes.0.checked_next_power_of_two().unwrap_or(u64::MAX);
            let sum = sums.entry((operation, members, class, bound.is_some())).or_default();
            sum.count += 1;
            sum.bytes += bytes.0 as f64;
            sum.time += end.since(first).as_secs_f64();
            sum.late += last.since(first).as_secs_f64();
            sum.bound += bound.unwrap_or_default();
        };
        let costs = |operation: &str| cluster.filter(|cluster| !cluster.backend.free.operations.contains(operation));
        let mut reaches: BTreeMap<GroupId, Option<Reach>> = BTreeMap::new();
        for ((group, _), met) in &self.collectives {
            let members = &self.members[group];
            if met.through < members.len() {
                continue;
            }
            let bound = costs(met.kind.name()).and_then(|cluster| {
                let reach = reaches.entry(*group).or_insert_with(|| Reach::new(cluster, members));
                reach.as_ref()?.of(met.kind, met.block, met.by_switches)
            });
            add(met.kind.name(), members.len(), met.bytes, [met.first, met.last, met.end], bound);
        }
        for Received { send, receiver, bytes, started, end } in &self.receives {
            let Some(sent) = self.sends.get(send) else { continue };
            let bound = costs(CallOp::SEND).and_then(|cluster| bound::of_message(cluster, send.0, *receiver, *bytes));
            add(CallOp::SEND, 2, *bytes, [*sent.min(started), *sent.max(started), *end], bound);
        }
        for (bytes, started, end) in &self.writes {
            add(CallOp::WRITE, 2, *bytes, [*started, *started, *end], None);
        }
        let row = |((operation, members, _, is_bounded), sum): ((&'static str, usize, u64, bool), Sums)| {
            let mean = |sum_of: f64| sum_of / sum.count as f64;
            OperationsRow {
                operation,
                members,
                count: sum.count,
                bytes: mean(sum.bytes),
                time_s: mean(sum.time),
                late_s: mean(sum.late),
                bound_s: is_bounded.then(|| mean(sum.bound)),
            }
        };
        sums.into_iter().map(row).collect()
    }
}

impl Observer for Operations {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        let Event::Completed { rank, handle, call, bytes, started, algorithm, meeting, .. } = *event else { return };
        match (&call.op, meeting) {
            (CallOp::Collective(collective), Meeting::Collective { sequence }) => {
                self.members.entry(call.group).or_default().insert(rank);
                let met = self.collectives.entry((call.group, sequence)).or_insert_with(|| Met {
                    kind: collective.kind,
                    block: bound::block(collective),
                    bytes,
                    by_switches: algorithm == Some("nvls"),
                    first: started,
                    last: started,
                    end: at,
                    through: 0,
                });
                met.bytes = met.bytes.max(bytes);
                (met.first, met.last, met.end) = (met.first.min(started), met.last.max(started), met.end.max(at));
                met.through += 1;
            }
            (CallOp::Send { .. }, _) => drop(self.sends.insert((rank, handle), started)),
            (CallOp::Recv { .. }, Meeting::Peer(Some(send))) => {
                self.receives.push(Received { send, receiver: rank, bytes, started, end: at });
            }
            (CallOp::Write { .. }, _) => self.writes.push((bytes, started, at)),
            _ => {}
        }
    }
}
