//! Owns the uncertainty of a prediction: the interval of a makespan, from the model's stated errors and from
//! repetitions with other seeds.
//!
//! `uniference calibrate` determines the errors; the simulator models jitter.
//!
//! With the relative standard errors `e_c` of compute and `e_o` of operation `o`, on the rank that finishes last,
//!
//! ```text
//! s^2 = (compute * e_c)^2 + sum over o of (exposed_o * e_o)^2
//! ```
//!
//! is the variance of the makespan due to the model: an error of one kind is the same for all its calls, errors of
//! different kinds are independent. `exposed_o` is that rank's exposed communication, divided among operations in the
//! proportions of all ranks. With the median `m` and the quantiles `a`, `b` (2.5 and 97.5 %) of the repetitions, the
//! interval is from `m - hypot(m - a, 1.96 s)` to `m + hypot(b - m, 1.96 s)`.
//!
//! Operators that were costed by a model have errors of their own, and `e_c` applies to the other compute only. An
//! operator of one definition lasts `exp(z spread)` times as long as estimated. `z = h c + sqrt(1 - h^2) d` is standard
//! normal: `c` is drawn once for all definitions, as a device with another clock or library than assumed is wrong about
//! all of them, `d` once for all executions of one definition; `h` is 0.5. The distances of the quantiles of their sum
//! from its estimate are added to either side like the other errors, in squares.

use crate::statistics::Sample;
use std::collections::BTreeMap;
use uniference_formats::cluster::Uncertainty;
use uniference_formats::report::{Interval, RankReport, Report};

/// Share of measurements that an interval should cover.
const LEVEL: f64 = 0.95;
/// Number of standard deviations to either side that cover this share of a normal distribution.
const NORMAL_95: f64 = 1.959_964;

/// `h` above. Intervals then contain 83 of 100 published runs whose devices were measured, and all whose devices were
/// not (docs/explanation/accuracy.md).
const COMMON: f64 = 0.5;
/// Number of draws of the operators' errors.
const DRAWS: usize = 1000;

/// Seconds of all executions of a definition, and the definition's spread: the standard deviation of the logarithm of
/// its duration, if it is known.
pub type OperatorSeconds = (f64, Option<f64>);

/// The interval of `report`'s makespan; `others` are makespans of the same run with other seeds, in seconds.
/// `operators` are the operators of each rank that were costed.
pub fn interval(
    report: &Report,
    uncertainty: &Uncertainty,
    others: &[f64],
    operators: &[Vec<OperatorSeconds>],
) -> Interval {
    let runs = Sample::of(others.iter().copied().chain([report.makespan_s])).expect("this run is one");
    let [low, middle, high] = [(1.0 - LEVEL) / 2.0, 0.5, (1.0 + LEVEL) / 2.0].map(|part| runs.quantile(part));
    // The last rank to finish; of several, the one with the lowest number, which was simulated in a folded run.
    let last = report.ranks.iter().max_by_key(|rank| (rank.finish_ps, std::cmp::Reverse(rank.rank)));
    let costed = last.and_then(|last| operators.get(last.rank as usize)).map_or(&[][..], Vec::as_slice);
    let error = last.map_or(0.0, |last| model_error(report, last, uncertainty, costed));
    let draws = Draws::of(costed, report.manifest.seed);
    Interval {
        level: LEVEL,
        low_s: (middle - (middle - low).hypot(NORMAL_95 * error).hypot(draws.below)).max(0.0),
        high_s: middle + (high - middle).hypot(NORMAL_95 * error).hypot(draws.above),
        model_error_s: error.hypot(draws.deviation),
        runs: runs.len() as u32,
        runs_s: [low, middle, high],
    }
}

/// Spread of the operators' summed time around its estimate.
struct Draws {
    /// The estimate minus the lower quantile.
    below: f64,
    /// The upper quantile minus the estimate.
    above: f64,
    deviation: f64,
}

impl Draws {
    fn of(operators: &[OperatorSeconds], seed: u64) -> Draws {
        let known: Vec<(f64, f64)> =
            operators.iter().filter_map(|(seconds, spread)| Some((*seconds, (*spread)?))).collect();
        if known.is_empty() {
            return Draws { below: 0.0, above: 0.0, deviation: 0.0 };
        }
        let mut random = fastrand::Rng::with_seed(seed);
        let own = (1.0 - COMMON * COMMON).sqrt();
        let draw = |_| {
            let common = COMMON * normal(&mut random);
            let error = |spread: f64, own: f64| (spread * (common + own)).exp_m1();
            known.iter().map(|(seconds, spread)| seconds * error(*spread, own * normal(&mut random))).sum()
        };
        let draws: Vec<f64> = (0..DRAWS).map(draw).collect();
        let deviation = (draws.iter().map(|draw| draw.powi(2)).sum::<f64>() / DRAWS as f64).sqrt();
        let draws = Sample::of(draws).expect("there are some");
        let [low, high] = [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0].map(|part| draws.quantile(part));
        Draws { below: (-low).max(0.0), above: high.max(0.0), deviation }
    }
}

/// A draw from the standard normal distribution (Box and Muller, "A note on the generation of random normal deviates",
/// 1958).
fn normal(random: &mut fastrand::Rng) -> f64 {
    let (radius, angle) = (1.0 - random.f64(), random.f64());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

fn model_error(report: &Report, last: &RankReport, uncertainty: &Uncertainty, operators: &[OperatorSeconds]) -> f64 {
    let RankReport { compute_s, exposed_comm_s, .. } = last;
    let costed: f64 = operators.iter().map(|(seconds, _)| seconds).sum();
    let other = (compute_s - costed).max(0.0);
    let all: f64 = report.operations.iter().map(|operation| operation.exposed_s).sum();
    let mut exposed: BTreeMap<&str, f64> = BTreeMap::new();
    for operation in report.operations.iter().filter(|operation| operation.exposed_s > 0.0) {
        *exposed.entry(&operation.operation).or_default() += exposed_comm_s * operation.exposed_s / all;
    }
    let of = |name: &str| uncertainty.operations.get(name).unwrap_or(&uncertainty.communication);
    let communication = exposed.iter().map(|(name, seconds)| (seconds * of(name)).powi(2));
    (communication.sum::<f64>() + (other * uncertainty.compute).powi(2)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::report;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * b.abs()
    }

    /// One operation: s = hypot(compute * e_c, exposed * e_o), and 1.96 s to either side.
    #[test]
    fn errors_of_compute_and_of_operations_add_in_squares() {
        let mut report = report();
        report.operations[0].exposed_s = 1e-3;
        let last = report.ranks.iter().max_by_key(|rank| rank.finish_ps).unwrap();
        let name = report.operations[0].operation.clone();
        let uncertainty = Uncertainty { compute: 0.1, communication: 9.0, operations: BTreeMap::from([(name, 0.2)]) };
        let s = (last.compute_s * 0.1).hypot(last.exposed_comm_s * 0.2);
        let found = interval(&report, &uncertainty, &[], &[]);
        assert!(s > 0.0 && close(found.model_error_s, s), "{found:?}");
        assert!(close(found.high_s - report.makespan_s, NORMAL_95 * s), "{found:?}");
        assert_eq!(found.runs, 1);
    }

    /// Makespans of m + 0, 1, ..., 100 ms without a model error: the quantiles lie at 2.5, 50 and 97.5 ms.
    #[test]
    fn repetitions_give_their_quantiles() {
        let report = report();
        let others: Vec<f64> = (1..=100).map(|n| report.makespan_s + f64::from(n) * 1e-3).collect();
        let found = interval(&report, &Uncertainty::default(), &others, &[]);
        let expected = [2.5e-3, 50e-3, 97.5e-3].map(|more| report.makespan_s + more);
        assert!(found.runs_s.iter().zip(expected).all(|(a, b)| close(*a, b)), "{found:?}");
        assert!(close(found.low_s, expected[0]) && close(found.high_s, expected[2]), "{found:?}");
    }

    /// One definition of `t` seconds and spread `s`: the quantiles of t exp(s z) are t exp(-1.96 s) and t exp(1.96 s).
    #[test]
    fn operators_have_errors_of_their_own_and_not_those_of_other_compute() {
        let report = report();
        let last = report.ranks.iter().position(|rank| rank.finish_ps == Some(report.makespan_ps)).unwrap();
        let compute = report.ranks[last].compute_s;
        let mut operators = vec![Vec::new(); 2];
        operators[last] = vec![(compute, Some(0.2))];
        let uncertainty = Uncertainty { compute: 0.5, ..Uncertainty::default() };
        let found = interval(&report, &uncertainty, &[], &operators);
        let expected = [-1.96_f64, 1.96].map(|z| report.makespan_s + compute * (z * 0.2).exp_m1());
        // In a thousand draws the outer quantiles are known to some percent.
        let near = |found: f64, expected: f64| (found - expected).abs() < 0.1 * (expected - report.makespan_s).abs();
        assert!(near(found.low_s, expected[0]) && near(found.high_s, expected[1]), "{found:?} {expected:?}");
        assert_eq!(found, interval(&report, &uncertainty, &[], &operators));
        // If each of two definitions has half of the time, the distance is sqrt(h^2 + (1 - h^2) / 2) of that of a
        // single definition, with h = 0.5.
        operators[last] = vec![(compute / 2.0, Some(0.2)); 2];
        let smaller = interval(&report, &uncertainty, &[], &operators);
        let ratio = smaller.model_error_s / found.model_error_s;
        assert!((ratio - 0.625_f64.sqrt()).abs() < 0.05, "{ratio}");
        // A definition with unknown spread adds nothing; the other ranks do not matter.
        operators[last] = vec![(compute, None)];
        operators[1 - last] = vec![(1.0, Some(1.0))];
        assert_eq!(interval(&report, &uncertainty, &[], &operators).model_error_s, 0.0);
    }
}
