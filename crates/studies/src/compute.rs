//! Owns a check of a run's compute: whether it was measured at all, and whether ranks with the same work were equally
//! fast.
//!
//! It observes the run. The engine charges compute; durations in this module are on the machine that measured, before
//! any slowdown.

use rustc_hash::FxHasher;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use uniference_formats::table::seconds;
use uniference_sim::event::{Event, Observer};
use uniference_sim::ids::{RankId, Site};
use uniference_sim::program::Origin;
use uniference_sim::time::{SimDuration, SimTime};

/// Ratio of two ranks' compute before one line's calls from which on their compute counts as different.
const DIFFERS: f64 = 1.1;
/// Factor from which on a difference is ascribed to other work: contention for a busy host's caches and threads does
/// not double compute.
const OTHER_WORK: f64 = 2.0;
/// Compute of a rank before one line's calls below which ranks are not compared.
const TINY: SimDuration = SimDuration::from_us(10_000);

/// Compute by rank and line.
#[derive(Default)]
pub struct Computes {
    ranks: BTreeMap<RankId, RankComputes>,
    /// Compute of each rank on its device, by origin.
    origins: BTreeMap<(RankId, Origin), SimDuration>,
    computed: bool,
    measured: bool,
}

#[derive(Default)]
struct RankComputes {
    /// Operations, sizes and lines of the rank's calls, in order.
    calls: FxHasher,
    /// Compute since the rank's last call.
    pending: SimDuration,
    /// Compute by the line of the call that follows it.
    before: BTreeMap<Site, SimDuration>,
}

impl Computes {
    /// Whether any rank has computed for any time.
    pub fn any(&self) -> bool {
        self.computed
    }

    /// Whether any compute was measured, rather than read from a trace.
    pub fn measured(&self) -> bool {
        self.measured
    }

    /// A rank's compute on its device by the origin of the figures, the surest origin first.
    pub fn by_origin(&self, rank: RankId) -> impl Iterator<Item = (Origin, SimDuration)> {
        Origin::ALL.into_iter().filter_map(move |origin| Some((origin, *self.origins.get(&(rank, origin))?)))
    }

    /// A warning about ranks that should have computed equally long and did not: ranks with the same calls, in the same
    /// order, from the same lines, of the same sizes, whose compute before some of these lines differs by more than
    /// 10 % (and less than twice), if these lines are at least half of the comparable compute. `lines` are the lines of
    /// the program.
    pub fn spread(&self, lines: &[String]) -> Option<String> {
        let mut alike: BTreeMap<u64, Vec<(RankId, &RankComputes)>> = BTreeMap::new();
        for (rank, computes) in self.ranks.iter().filter(|(_, computes)| !computes.before.is_empty()) {
            alike.entry(computes.calls.finish()).or_default().push((*rank, computes));
        }
        let (mut compared, mut differing) = (0.0, 0.0);
        let mut worst: Option<(f64, _, _, Site)> = None;
        for ranks in alike.values().filter(|ranks| ranks.len() > 1) {
            for site in ranks[0].1.before.keys() {
                let of = |computes: &RankComputes| computes.before.get(site).copied().unwrap_or_default();
                let times = || ranks.iter().map(|(rank, computes)| (of(computes), *rank));
                let (shortest, longest) = (times().min()?, times().max()?);
                let ratio = longest.0.as_secs_f64() / shortest.0.as_secs_f64();
                if shortest.0 < TINY || ratio > OTHER_WORK {
                    continue;
                }
                compared += longest.0.as_secs_f64();
                if ratio > DIFFERS {
                    differing += longest.0.as_secs_f64();
                    if worst.is_none_or(|(known, ..)| ratio > known) {
                        worst = Some((ratio, shortest, longest, *site));
                    }
                }
            }
        }
        let (ratio, (short, fast), (long, slow), site) = worst.filter(|_| 2.0 * differing >= compared)?;
        let line = lines.get(site.index()).filter(|line| !line.is_empty());
        let place = line.map_or_else(String::new, |line| format!(", before its calls at {line}"));
        Some(format!(
            "measured compute differs by {:.0} % between ranks that made the same calls: {} on {slow}, {} on {fast}{place}; if both did the same work, other processes disturbed the measurement: run again on an idle machine",
            100.0 * (ratio - 1.0),
            seconds(long.as_secs_f64()),
            seconds(short.as_secs_f64()),
        ))
    }
}

impl Observer for Computes {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        match event {
            Event::Computed { rank, start, base, origin, .. } if *base > SimDuration::ZERO => {
                self.computed = true;
                *self.origins.entry((*rank, *origin)).or_default() += at.since(*start);
                if *origin == Origin::Measured {
                    self.measured = true;
                    self.ranks.entry(*rank).or_default().pending += *base;
                }
            }
            Event::Issued { rank, call, bytes, site, .. } if self.measured => {
                let computes = self.ranks.entry(*rank).or_default();
                (call.op.name(), bytes.0, call.group, *site).hash(&mut computes.calls);
                let pending = std::mem::take(&mut computes.pending);
                *computes.before.entry(*site).or_default() += pending;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::all_reduce;
    use uniference_sim::ids::{Handle, TaskId};

    /// Ranks that call from lines 0 and 1, each after so many milliseconds of compute; rank, line, ms.
    fn run(slices: &[(u32, u32, u64)]) -> Option<String> {
        let mut computes = Computes::default();
        for (rank, line, ms) in slices {
            let (rank, base, site) = (RankId(*rank), SimDuration::from_us(1_000 * *ms), Site(*line));
            let (task, start, origin) = (TaskId(0), SimTime::ZERO, Origin::Measured);
            computes.record(
                start + base,
                &Event::Computed { rank, task, start, base, origin, name: None, why: Default::default() },
            );
            let (handle, call) = (Handle(0), &all_reduce(4));
            computes.record(
                start + base,
                &Event::Issued { rank, handle, call, bytes: call.op.bytes(1), site, task: Default::default() },
            );
        }
        computes.spread(&["a.py:1".to_owned(), "a.py:2".to_owned(), "a.py:3".to_owned()])
    }

    #[test]
    fn equal_ranks_that_took_unequally_long_are_said() {
        // 60 + 58 = 118 ms against 100 ms on one line: 18 %
        let text = run(&[(0, 0, 50), (1, 0, 60), (0, 0, 50), (1, 0, 58)]).unwrap();
        assert!(text.contains("by 18 %") && text.contains("118.000 ms on rank 1, 100.000 ms on rank 0"), "{text}");
        assert!(text.contains("at a.py:1;"), "{text}");
    }

    #[test]
    fn what_is_near_tiny_other_work_or_from_other_lines_is_not() {
        // 9 %
        assert_eq!(run(&[(0, 0, 100), (1, 0, 109)]), None);
        // 9 ms
        assert_eq!(run(&[(0, 0, 9), (1, 0, 18)]), None);
        // A difference of more than a factor of two is ascribed to other work.
        assert_eq!(run(&[(0, 0, 100), (1, 0, 201)]), None);
        // The ranks' calls are from different lines, or one rank has a call more.
        assert_eq!(run(&[(0, 0, 100), (1, 1, 150)]), None);
        assert_eq!(run(&[(0, 0, 100), (1, 0, 150), (1, 0, 1)]), None);
        // 20 % on less than half of the comparable compute
        assert_eq!(run(&[(0, 0, 100), (1, 0, 120), (0, 1, 200), (1, 1, 200)]), None);
    }
}
