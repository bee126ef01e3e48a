//! Owns the figures of a run's report, summed during the run: the split of each rank's time, and the cost of each
//! operation.

use crate::event::{CallTimes, Event, Observer, StreamTimes, Times, Traffic};
use crate::ids::{GroupId, RankId};
use crate::program::{Call, Outcome};
use crate::time::{Bytes, SimDuration, SimTime};
use std::collections::{BTreeMap, BTreeSet};

/// Sums over a run. Its memory does not grow with the run's length.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    ranks: Vec<RankStatistics>,
    operations: BTreeMap<(&'static str, GroupId), OperationStatistics>,
    streams: BTreeMap<(RankId, Option<u32>), StreamTimes>,
    /// Ranks that called an operation on a stream, with the operation and its group.
    on_streams: BTreeSet<(&'static str, GroupId, RankId)>,
    events: u64,
}

/// Figures of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankStatistics {
    /// Time at which the rank's program ended; `None`: it did not end.
    pub finish: Option<SimTime>,
    /// Time of the rank's crash, if the cluster specifies one.
    pub crash: Option<SimTime>,
    /// Split of the rank's time, up to its finish.
    pub times: Times,
    /// Bytes that the rank moved.
    pub traffic: Traffic,
}

/// Figures of all calls of one operation of one group together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationStatistics {
    /// Number of calls, counted for each member.
    pub count: u64,
    /// Total size of the members' tensors.
    pub bytes: Bytes,
    /// Time from issue to completion, summed over the calls.
    pub time: SimDuration,
    /// Time for which the operation blocked ranks while nothing computed. A wait for several operations counts for the
    /// last one to complete.
    pub exposed: SimDuration,
    /// Split of the time of the calls that were on streams of devices; `None` if no call was on a stream.
    pub on_streams: Option<StreamStatistics>,
}

/// Split of the time of all calls of one operation on streams of devices, summed over the members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStatistics {
    /// Number of members that called the operation on a stream.
    pub ranks: u32,
    /// Time from the moment when the stream came to the operation until the operation's completion.
    pub time: SimDuration,
    /// Split of `time`.
    pub calls: CallTimes,
}

impl Statistics {
    /// The statistics of every rank, indexed by rank.
    pub fn ranks(&self) -> &[RankStatistics] {
        &self.ranks
    }

    /// Figures by operation and group, in order of name.
    pub fn operations(&self) -> impl Iterator<Item = (&'static str, GroupId, &OperationStatistics)> {
        self.operations.iter().map(|((operation, group), statistics)| (*operation, *group, statistics))
    }

    /// Time of the latest finish or crash.
    pub fn makespan(&self) -> SimTime {
        self.ranks.iter().filter_map(|rank| rank.finish.max(rank.crash)).max().unwrap_or(SimTime::ZERO)
    }

    /// Busy times of CUDA streams, in order of rank; for each rank first those of all streams together, without a
    /// number.
    pub fn streams(&self) -> impl Iterator<Item = (RankId, Option<u32>, &StreamTimes)> {
        self.streams.iter().map(|((rank, stream), times)| (*rank, *stream, times))
    }

    /// Multiplies the figures of operations by the number of ranks that each simulated rank represents. The figures of
    /// ranks stay unchanged.
    pub fn stand_for(&mut self, ranks: u32) {
        let times = |span: SimDuration| SimDuration::from_ps(span.as_ps().saturating_mul(u64::from(ranks)));
        for operation in self.operations.values_mut() {
            operation.count *= u64::from(ranks);
            operation.bytes = Bytes(operation.bytes.0.saturating_mul(u64::from(ranks)));
            (operation.time, operation.exposed) = (times(operation.time), times(operation.exposed));
            if let Some(all) = &mut operation.on_streams {
                all.ranks *= ranks;
                let CallTimes { kernel, overlapped, exposed, late_peer, bus_bytes } = &mut all.calls;
                *bus_bytes = Bytes(bus_bytes.0.saturating_mul(u64::from(ranks)));
                for span in [&mut all.time, kernel, overlapped, exposed, late_peer] {
                    *span = times(*span);
                }
            }
        }
    }

    /// Number of observed events.
    pub fn events(&self) -> u64 {
        self.events
    }

    fn operation(&mut self, call: &Call) -> &mut OperationStatistics {
        self.operations.entry((call.op.name(), call.group)).or_default()
    }

    fn rank(&mut self, rank: RankId) -> &mut RankStatistics {
        if self.ranks.len() <= rank.index() {
            self.ranks.resize(rank.index() + 1, RankStatistics::default());
        }
        &mut self.ranks[rank.index()]
    }
}

impl Observer for Statistics {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        self.events += u64::from(!matches!(event, Event::Elapsed { .. } | Event::Used { .. }));
        match event {
            Event::Issued { call, bytes, .. } => {
                let operation = self.operation(call);
                operation.count += 1;
                operation.bytes += *bytes;
            }
            Event::Completed { rank, call, issued, started, on_stream, .. } => {
                let is_first = on_stream.is_some() && self.on_streams.insert((call.op.name(), call.group, *rank));
                let operation = self.operation(call);
                operation.time += at.since(*issued);
                if let Some((_, times)) = on_stream {
                    let sums = operation.on_streams.get_or_insert_default();
                    sums.ranks += u32::from(is_first);
                    sums.time += at.since(*started);
                    sums.calls += *times;
                }
            }
            Event::Failed { call, issued, .. } => self.operation(call).time += at.since(*issued),
            Event::Waited { call: Some(call), exposed, .. } => self.operation(call).exposed += *exposed,
            Event::Finished { rank, outcome, times, traffic, .. } => {
                let has_crashed = *outcome == Outcome::Crashed;
                let (finish, crash) = if has_crashed { (None, Some(at)) } else { (Some(at), None) };
                *self.rank(*rank) = RankStatistics { finish, crash, times: *times, traffic: *traffic };
            }
            Event::Used { rank, stream, times } => {
                self.streams.insert((*rank, *stream), *times);
            }
            Event::Waited { call: None, .. }
            | Event::Computed { .. }
            | Event::Marked { .. }
            | Event::Message { .. }
            | Event::Elapsed { .. } => {}
        }
    }
}
