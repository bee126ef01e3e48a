//! Owns the comparison of two runs of one program, usually a prediction and a real run: the errors, their operations,
//! and the part of the time that explains them.
//!
//! An error is signed: (first - second) / second, above zero if the first run is longer. The time of an operation is
//! from its last member's start to its last member's end, so compute before the operation does not count.
//!
//! `align` pairs operations within their group (messages within their pair of ranks), in order, by name, size and line.

mod align;
mod table;
mod timeline;

pub use table::render;
pub use timeline::{ObservedRun, Timeline};

use crate::statistics::Sample;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use timeline::{Channel, MatchedOperation};
use uniference_sim::event::Times;
use uniference_sim::time::{SimDuration, SimTime};

/// The differences between two runs. Times are seconds, errors fractions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Makespan of the whole program.
    pub makespan: Pair,
    /// The differences of each rank, indexed by rank.
    pub ranks: Vec<RankDifference>,
    /// Errors of all matched operations together.
    pub overall: Errors,
    /// Differences of the operations, by name, group and size.
    pub operations: Vec<OperationDifference>,
    /// Times of both runs at a few moments: at the ends of operations.
    pub drift: Vec<Pair>,
    /// Numbers of operations that only the first run has, and only the second.
    pub unmatched: (usize, usize),
    /// The first few operations that only the first run has.
    pub only_first: Vec<Unmatched>,
    /// The first few operations that only the second run has.
    pub only_second: Vec<Unmatched>,
    /// Cost of recording a real run on its slowest rank, in seconds; part of that run's compute.
    pub recorder_s: Option<f64>,
}

/// A duration in both runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// Seconds of the first run.
    pub first_s: f64,
    /// Seconds of the second run.
    pub second_s: f64,
    /// Relative error: (first - second) / second; `None` (null) if the second is 0.
    pub error: Option<f64>,
}

/// The parts of one rank's difference: `compute_s + network_s + late_peer_s + idle_s` is the difference of its
/// finishes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RankDifference {
    /// The rank that is compared.
    pub rank: usize,
    /// The time at which the rank finished, in both runs.
    pub finish: Pair,
    /// Difference of compute: first minus second.
    pub compute_s: f64,
    /// Difference of network wait: exposed communication after all peers had entered.
    pub network_s: f64,
    /// Difference of late peer: exposed communication before all peers had entered.
    pub late_peer_s: f64,
    /// Difference of idle time: sleep, store, creation of groups.
    pub idle_s: f64,
}

/// Errors of several operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Errors {
    /// Number of operations.
    pub count: usize,
    /// Median signed error.
    pub median: f64,
    /// Median absolute error.
    pub median_absolute: f64,
    /// 95th percentile of the absolute errors.
    pub p95: f64,
    /// The error that is largest in absolute value, with its sign.
    pub worst: f64,
}

/// Operations of one kind, group and size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperationDifference {
    /// `all_reduce`; messages are `send`.
    pub operation: &'static str,
    /// The members' ranks.
    pub members: Vec<u32>,
    /// Upper limit of the operations' sizes in bytes; a power of 4.
    pub up_to_bytes: u64,
    /// Median times.
    pub time: Pair,
    /// Errors of the single operations.
    pub errors: Errors,
}

/// An operation that only one of the runs has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unmatched {
    /// `all_reduce`; messages are `send`.
    pub operation: &'static str,
    /// The members' ranks; for a message its sender and its receiver.
    pub members: Vec<u32>,
    /// The operation's number among that run's operations of this name and these members, from 0.
    pub number: usize,
    /// The largest size that a member named.
    pub bytes: u64,
    /// Line of the program on its first member, for a message on its receiver; empty if it is unknown.
    pub line: String,
}

/// Maximum number of listed operations without a partner; more are only counted.
const MOST_UNMATCHED: usize = 5;

/// Number of operations, spread over the run, after which the drift between the runs is stated.
const MOMENTS: usize = 5;

impl Comparison {
    /// Compares the first run with the second.
    pub fn new(first: &ObservedRun, second: &ObservedRun, recorder_s: Option<f64>) -> Comparison {
        let (mut matched, mut only_first, mut only_second) = (Vec::new(), Vec::new(), Vec::new());
        let channels: BTreeSet<&Channel> = first.operations.keys().chain(second.operations.keys()).collect();
        for channel in channels {
            let [a, b] = [first, second].map(|seen| seen.operations.get(channel).map_or(&[][..], Vec::as_slice));
            let pairs = align::align((a, &first.lines), (b, &second.lines));
            matched.extend(pairs.iter().map(|(x, y)| (channel, a[*x], b[*y])));
            let (in_first, in_second): (BTreeSet<usize>, BTreeSet<usize>) = pairs.into_iter().unzip();
            let alone = |count: usize, paired: BTreeSet<usize>| (0..count).filter(move |at| !paired.contains(at));
            only_first.extend(alone(a.len(), in_first).map(|at| (channel, at)));
            only_second.extend(alone(b.len(), in_second).map(|at| (channel, at)));
        }
        let makespan = |seen: &ObservedRun| seen.ranks.iter().map(|(finish, _)| *finish).max().unwrap_or(SimTime::ZERO);
        Comparison {
            makespan: Pair::of_times(makespan(first), makespan(second)),
            ranks: (0..)
                .zip(first.ranks.iter().zip(&second.ranks))
                .map(|(rank, (a, b))| RankDifference::new(rank, a, b))
                .collect(),
            overall: Errors::of(matched.iter().filter_map(|(_, first, second)| duration(first, second).error)),
            operations: by_kind(&matched),
            drift: drift(&matched),
            unmatched: (only_first.len(), only_second.len()),
            only_first: unmatched(first, only_first),
            only_second: unmatched(second, only_second),
            recorder_s,
        }
    }

    /// Whether the makespan's error, or the operations' median error, exceeds `threshold`.
    pub fn exceeds(&self, threshold: f64) -> bool {
        self.makespan.error.is_none_or(|error| error.abs() > threshold) || self.overall.median_absolute > threshold
    }

    /// The rank that finished last in the second run.
    pub fn last(&self) -> Option<&RankDifference> {
        self.ranks.iter().max_by(|a, b| a.finish.second_s.total_cmp(&b.finish.second_s))
    }

    /// Pretty JSON that ends with a newline.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and strings are JSON") + "\n"
    }
}

impl Pair {
    fn new(first_s: f64, second_s: f64) -> Pair {
        Pair { first_s, second_s, error: (second_s > 0.0).then(|| (first_s - second_s) / second_s) }
    }

    fn of_times(first: SimTime, second: SimTime) -> Pair {
        Pair::new(first.as_secs_f64(), second.as_secs_f64())
    }
}

impl RankDifference {
    /// The difference of a rank, from its finish and its times in both runs.
    fn new(
        rank: usize,
        (first_finish, first): &(SimTime, Times),
        (second_finish, second): &(SimTime, Times),
    ) -> RankDifference {
        let minus = |part: fn(&Times) -> SimDuration| part(first).as_secs_f64() - part(second).as_secs_f64();
        RankDifference {
            rank,
            finish: Pair::of_times(*first_finish, *second_finish),
            compute_s: minus(|times| times.compute),
            network_s: minus(|times| times.exposed.saturating_sub(times.late_peer)),
            late_peer_s: minus(|times| times.late_peer),
            idle_s: minus(|times| times.idle),
        }
    }
}

impl Errors {
    fn of(errors: impl Iterator<Item = f64>) -> Errors {
        let errors: Vec<f64> = errors.collect();
        let worst = errors.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs()));
        let absolute = Sample::of(errors.iter().map(|error| error.abs()));
        let Some(((worst, absolute), signed)) = worst.zip(absolute).zip(Sample::of(errors)) else {
            return Errors::default();
        };
        let (count, median, median_absolute) = (signed.len(), signed.median(), absolute.median());
        Errors { count, median, median_absolute, p95: absolute.quantile(0.95), worst }
    }
}

fn duration(first: &MatchedOperation, second: &MatchedOperation) -> Pair {
    let seconds = |met: &MatchedOperation| {
        SimDuration::from_ps(met.completed.as_ps().saturating_sub(met.entered.as_ps())).as_secs_f64()
    };
    Pair::new(seconds(first), seconds(second))
}

/// The first few operations, in the order in which the run entered them.
fn unmatched(seen: &ObservedRun, mut only: Vec<(&Channel, usize)>) -> Vec<Unmatched> {
    only.sort_by_key(|(channel, at)| seen.operations[*channel][*at].entered);
    let shown = |(channel, at): (&Channel, usize)| {
        let operations = &seen.operations[channel];
        let MatchedOperation { operation, bytes, site, .. } = operations[at];
        Unmatched {
            operation,
            members: channel.members.iter().map(|rank| rank.0).collect(),
            number: operations[..at].iter().filter(|other| other.operation == operation).count(),
            bytes: bytes.0,
            line: seen.lines.get(site.index()).cloned().unwrap_or_default(),
        }
    };
    only.into_iter().take(MOST_UNMATCHED).map(shown).collect()
}

fn by_kind(matched: &[(&Channel, MatchedOperation, MatchedOperation)]) -> Vec<OperationDifference> {
    let mut kinds: BTreeMap<(&'static str, Vec<u32>, u64), Vec<Pair>> = BTreeMap::new();
    for (channel, first, second) in matched {
        let members = channel.members.iter().map(|rank| rank.0).collect();
        // The smallest power of 4 that is not smaller than the size.
        let power = first.bytes.0.max(1).next_power_of_two();
        let class = if power.trailing_zeros().is_multiple_of(2) { power } else { power * 2 };
        kinds.entry((first.operation, members, class)).or_default().push(duration(first, second));
    }
    let middle = |times: &mut dyn Iterator<Item = f64>| Sample::of(times).expect("a kind has a pair").median();
    let difference = |((operation, members, up_to_bytes), pairs): ((_, _, _), Vec<Pair>)| OperationDifference {
        operation,
        members,
        up_to_bytes,
        time: Pair::new(
            middle(&mut pairs.iter().map(|pair| pair.first_s)),
            middle(&mut pairs.iter().map(|pair| pair.second_s)),
        ),
        errors: Errors::of(pairs.iter().filter_map(|pair| pair.error)),
    };
    kinds.into_iter().map(difference).collect()
}

/// Ends of operations in both runs, at the quarters of the operations that both have.
fn drift(matched: &[(&Channel, MatchedOperation, MatchedOperation)]) -> Vec<Pair> {
    let mut ends: Vec<(SimTime, SimTime)> =
        matched.iter().map(|(_, first, second)| (second.completed, first.completed)).collect();
    ends.sort();
    let Some(last) = ends.len().checked_sub(1) else { return Vec::new() };
    let moments: BTreeSet<usize> = (0..MOMENTS).map(|moment| moment * last / (MOMENTS - 1)).collect();
    moments.into_iter().map(|at| Pair::of_times(ends[at].1, ends[at].0)).collect()
}

#[cfg(test)]
mod tests;
