//! Owns how far a prediction may be off: the interval of a makespan, from the model's stated errors and from repetitions with other seeds.
//!
//! Where the errors come from is `uniference calibrate`'s business; what jitter does is the simulator's.
//!
//! With the relative standard errors `e_c` of compute and `e_o` of operation `o`, on the rank that finishes last,
//!
//! ```text
//! s^2 = (compute * e_c)^2 + sum over o of (exposed_o * e_o)^2
//! ```
//!
//! is the variance of the makespan on account of the model: an error of one kind is the same for all its calls, errors of different kinds have
//! nothing to do with each other. `exposed_o` is that rank's exposed communication, shared out as all ranks' is. With the median `m` and the
//! quantiles `a`, `b` (2.5 and 97.5 %) of the repetitions, the interval is from `m - hypot(m - a, 1.96 s)` to `m + hypot(b - m, 1.96 s)`.

use crate::report::{RankReport, Report};
use crate::statistics::Sample;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How often an interval should cover what is measured.
const LEVEL: f64 = 0.95;
/// So many standard deviations to either side cover that much of a normal distribution.
const NORMAL_95: f64 = 1.959_964;

/// What is known of the model's errors: relative standard errors, at least zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Uncertainty {
    /// Of the duration of compute.
    pub compute: f64,
    /// Of the duration of operations that are not named.
    pub communication: f64,
    /// Of the duration of operations by name, as in a report.
    pub operations: BTreeMap<String, f64>,
}

/// Where the real makespan should lie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// How often such intervals should cover the truth: 0.95.
    pub level: f64,
    /// From.
    pub low_s: f64,
    /// To.
    pub high_s: f64,
    /// The standard error of the makespan on account of the model's errors.
    pub model_error_s: f64,
    /// How many seeds were drawn, this run's included.
    pub runs: u32,
    /// Quantiles of their makespans: 2.5, 50 and 97.5 %.
    pub runs_s: [f64; 3],
}

/// The interval of `report`'s makespan; `others` are makespans of the same run with other seeds, in seconds.
pub fn interval(report: &Report, uncertainty: &Uncertainty, others: &[f64]) -> Interval {
    let runs = Sample::of(others.iter().copied().chain([report.makespan_s])).expect("this run is one");
    let [low, middle, high] = [(1.0 - LEVEL) / 2.0, 0.5, (1.0 + LEVEL) / 2.0].map(|part| runs.quantile(part));
    let error = model_error(report, uncertainty);
    Interval {
        level: LEVEL,
        low_s: (middle - (middle - low).hypot(NORMAL_95 * error)).max(0.0),
        high_s: middle + (high - middle).hypot(NORMAL_95 * error),
        model_error_s: error,
        runs: runs.len() as u32,
        runs_s: [low, middle, high],
    }
}

fn model_error(report: &Report, uncertainty: &Uncertainty) -> f64 {
    let Some(last) = report.ranks.iter().max_by_key(|rank| rank.finish_ps) else { return 0.0 };
    let RankReport { compute_s, exposed_comm_s, .. } = last;
    let all: f64 = report.operations.iter().map(|operation| operation.exposed_s).sum();
    let mut exposed: BTreeMap<&str, f64> = BTreeMap::new();
    for operation in report.operations.iter().filter(|operation| operation.exposed_s > 0.0) {
        *exposed.entry(&operation.operation).or_default() += exposed_comm_s * operation.exposed_s / all;
    }
    let of = |name: &str| uncertainty.operations.get(name).unwrap_or(&uncertainty.communication);
    let communication = exposed.iter().map(|(name, seconds)| (seconds * of(name)).powi(2));
    (communication.sum::<f64>() + (compute_s * uncertainty.compute).powi(2)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * b.abs()
    }

    /// One operation: s = hypot(compute * e_c, exposed * e_o), and 1.96 s to either side.
    #[test]
    fn errors_of_compute_and_of_operations_add_in_squares() {
        let mut report = sample(2);
        report.operations[0].exposed_s = 1e-3;
        let last = report.ranks.iter().max_by_key(|rank| rank.finish_ps).unwrap();
        let name = report.operations[0].operation.clone();
        let uncertainty = Uncertainty { compute: 0.1, communication: 9.0, operations: BTreeMap::from([(name, 0.2)]) };
        let s = (last.compute_s * 0.1).hypot(last.exposed_comm_s * 0.2);
        let found = interval(&report, &uncertainty, &[]);
        assert!(s > 0.0 && close(found.model_error_s, s), "{found:?}");
        assert!(close(found.high_s - report.makespan_s, NORMAL_95 * s), "{found:?}");
        assert_eq!(found.runs, 1);
    }

    /// Makespans of m + 0, 1, ..., 100 ms without a model error: the quantiles lie at 2.5, 50 and 97.5 ms.
    #[test]
    fn repetitions_give_their_quantiles() {
        let report = sample(2);
        let others: Vec<f64> = (1..=100).map(|n| report.makespan_s + f64::from(n) * 1e-3).collect();
        let found = interval(&report, &Uncertainty::default(), &others);
        let expected = [2.5e-3, 50e-3, 97.5e-3].map(|more| report.makespan_s + more);
        assert!(found.runs_s.iter().zip(expected).all(|(a, b)| close(*a, b)), "{found:?}");
        assert!(close(found.low_s, expected[0]) && close(found.high_s, expected[2]), "{found:?}");
    }
}
