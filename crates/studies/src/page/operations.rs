//! Owns durations of operations of process groups by size, and their lower bounds ([`super::bound`]).

use super::bound::{self, Reach};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use uniference_sim::cluster::Cluster;
use uniference_sim::event::{Event, Meeting, Observer};
use uniference_sim::ids::{GroupId, Handle, RankId};
use uniference_sim::program::{CallOp, CollectiveKind};
use uniference_sim::time::{Bytes, SimTime};

/// Observes the operations of a run.
#[derive(Default)]
pub(super) struct Operations {
    members: BTreeMap<GroupId, BTreeSet<RankId>>,
    collectives: BTreeMap<(GroupId, u64), Met>,
    /// Start of each send, by sender and its handle; `receives` has the receivers' times.
    sends: BTreeMap<(RankId, Handle), SimTime>,
    receives: Vec<Received>,
    /// Bytes, start and end of each write.
    writes: Vec<(Bytes, SimTime, SimTime)>,
}

/// A collective, with all members that were seen so far.
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

/// Operations of one kind, number of members and about one size. Times are means, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperationsRow {
    /// `all_reduce`; messages are `send`, and writes into another rank's memory `write`.
    pub operation: &'static str,
    /// Members of the group; 2 for a message.
    pub members: usize,
    /// Number of operations, each counted once for all of its members.
    pub count: u64,
    /// Mean of the largest tensor that a member named.
    pub bytes: f64,
    /// Time from the first member's start to the last member's end.
    pub time_s: f64,
    /// Part of `time_s` before the last member's start.
    pub late_s: f64,
    /// Least duration on this network; `None` (null): unknown, for members on one host, and for writes.
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
    /// The operations by name, number of members and size, rounded up to a power of 2. `cluster`: the cluster of a
    /// simulated run.
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
