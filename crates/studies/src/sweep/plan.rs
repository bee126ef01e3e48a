//! Owns the plan of a sweep: which trials are runs of a program and which replay another trial's record, with an
//! estimate of their duration.

use std::collections::BTreeMap;
use std::fmt;
use uniference_formats::sweep::{Replays, Value};
use uniference_formats::units::counted;

/// Estimated seconds of a run if none was timed: Python and torch are loaded, and a small model is computed (two cores
/// of 2.5 GHz).
const RUN_S: f64 = 5.0;
/// Estimated seconds of a replay of some thousand operations.
const REPLAY_S: f64 = 0.05;

/// The plan of trials, which is made before the program has run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The group of each trial: programs of trials in one group cannot tell them apart. `None`: the trial cannot be
    /// carried out.
    pub groups: Vec<Option<usize>>,
    /// The trial of each group that is run first.
    pub first: Vec<usize>,
}

/// An estimate of the trials' duration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Number of runs.
    pub runs: usize,
    /// Number of replays.
    pub replays: usize,
    /// Estimated seconds of all trials together.
    pub seconds: f64,
}

/// Trials whose keys are equal share a record; without replays each has its own run.
pub fn plan<K: Ord + Clone>(keys: &[Option<K>], replays: Replays) -> Plan {
    let (mut known, mut plan) = (BTreeMap::new(), Plan { groups: Vec::new(), first: Vec::new() });
    for (trial, key) in keys.iter().enumerate() {
        let group = key.as_ref().map(|key| {
            let mut add = || {
                plan.first.push(trial);
                plan.first.len() - 1
            };
            if replays == Replays::Never { add() } else { *known.entry(key.clone()).or_insert_with(add) }
        });
        plan.groups.push(group);
    }
    plan
}

/// A value that no point can be tried with, as a parameter's number and a point that has the value; `fails` says which
/// points cannot be tried.
pub fn useless(points: &[Vec<Value>], fails: &[bool]) -> Option<(usize, usize)> {
    let parameters = points.first().map_or(0, Vec::len);
    (0..parameters).find_map(|parameter| {
        let mut works: BTreeMap<String, (bool, usize)> = BTreeMap::new();
        for (number, point) in points.iter().enumerate() {
            works.entry(point[parameter].toml()).or_insert((false, number)).0 |= !fails[number];
        }
        let useless = works.values().filter(|(works, _)| !works).map(|(_, point)| *point).min();
        useless.map(|point| (parameter, point))
    })
}

impl Plan {
    /// The estimate of the trials that are not `done`, with `at_once` trials at a time. `timed` has the durations of
    /// finished runs and replays, in seconds.
    pub fn estimate(&self, done: impl Fn(usize) -> bool, at_once: usize, timed: (&[f64], &[f64])) -> Estimate {
        let (mut runs, mut replays) = (0, 0);
        for (trial, group) in self.groups.iter().enumerate().filter(|(trial, _)| !done(*trial)) {
            match group {
                Some(group) if self.first[*group] != trial => replays += 1,
                Some(_) => runs += 1,
                None => {}
            }
        }
        let mean = |seconds: &[f64], usual: f64| match seconds.len() {
            0 => usual,
            count => seconds.iter().sum::<f64>() / count as f64,
        };
        let work = runs as f64 * mean(timed.0, RUN_S) + replays as f64 * mean(timed.1, REPLAY_S);
        // The estimate is at least one run, which cannot be divided among workers.
        let longest = if runs > 0 { mean(timed.0, RUN_S) } else { 0.0 };
        let seconds = (work / at_once.clamp(1, (runs + replays).max(1)) as f64).max(longest);
        Estimate { runs, replays, seconds }
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.replays {
            0 => f.write_str(&counted(self.runs, "run")),
            replays => write!(f, "{} and {}", counted(self.runs, "run"), counted(replays, "replay")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_useless_that_fails_with_all_others() {
        let points: Vec<Vec<Value>> =
            [(1, 1), (1, 2), (2, 1), (2, 2)].map(|(a, b)| vec![Value::Integer(a), Value::Integer(b)]).into();
        assert_eq!(useless(&points, &[false, true, false, true]), Some((1, 1)));
        assert_eq!(useless(&points, &[false, true, true, false]), None);
    }

    #[test]
    fn trials_with_equal_keys_share_the_first_ones_record() {
        let keys = [Some("a"), Some("b"), Some("a"), None, Some("a")];
        let shared = plan(&keys, Replays::Exact);
        assert_eq!(shared.groups, [Some(0), Some(1), Some(0), None, Some(0)]);
        assert_eq!(shared.first, [0, 1]);
        // 2 runs of 5 s and 2 replays of 0.05 s: 10.1 s of work, by two at once.
        let all = shared.estimate(|_| false, 2, (&[], &[]));
        assert_eq!(all, Estimate { runs: 2, replays: 2, seconds: 5.05 });
        // One run of 8 s is left, and a run cannot be divided.
        let left = shared.estimate(|trial| trial != 1, 2, (&[7.0, 9.0], &[0.1]));
        assert_eq!((left.seconds, left.to_string()), (8.0, "1 run".to_owned()));
        assert_eq!(plan(&keys, Replays::Never).first, [0, 1, 2, 4]);
    }
}
