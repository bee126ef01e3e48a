//! Owns robust least squares: the point at which a model comes nearest to observations, and its confidence interval.
//!
//! All values are logarithms, so errors are relative. The method is Gauss-Newton with Levenberg-Marquardt damping,
//! Huber's weights against outliers, and a bootstrap for the intervals. The caller supplies the model.

use super::measurement::Pair;
use crate::statistics::Sample;
use fastrand::Rng;
use nalgebra::{DMatrix, DVector};

/// A quantity that was measured several times.
pub struct Observation {
    /// The logarithms of the repetitions, sorted.
    logarithms: Vec<f64>,
    weight: f64,
}

/// The result of a fit of the model.
pub struct Fit {
    /// The logarithms of the parameters.
    pub point: Vec<f64>,
    /// Lower ends of the 95 % intervals, in logarithms.
    pub low: Vec<f64>,
    /// Upper ends of the 95 % intervals, in logarithms.
    pub high: Vec<f64>,
    /// Model minus observation, in logarithms.
    pub residuals: Vec<f64>,
}

/// Smallest scatter of repetitions that counts: measurements with less scatter have equal weights.
const LEAST_SCATTER: f64 = 0.02;
/// Number of standard deviations beyond which a residual counts as an outlier (Huber 1964: 95 % efficient without
/// outliers).
pub(super) const HUBER: f64 = 1.345;
const ITERATIONS: usize = 25;
/// Step of the logarithms for derivatives. It is negative: making one of two equal links slower changes the prediction,
/// making it faster does not.
const STEP: f64 = -0.01;
/// The fit has converged when a step is shorter than this.
const ARRIVED: f64 = 1e-4;
const RESAMPLES: usize = 400;

impl Observation {
    /// The observation of a measurement between two ranks.
    pub fn new(pair: &Pair) -> Observation {
        let logarithms = pair.seconds.iter().map(|time| time.ln()).collect();
        Observation { logarithms, weight: 1.0 / pair.scatter().max(LEAST_SCATTER) }
    }

    fn median(&self) -> f64 {
        middle(self.logarithms.iter().copied())
    }
}

impl Fit {
    /// The standard deviation of the residuals, without outliers.
    pub fn spread(&self) -> f64 {
        scale(&self.residuals)
    }
}

/// Fits from `start`; `model` predicts the logarithm of every observation.
pub fn fit(observations: &[Observation], start: &[f64], model: &dyn Fn(&[f64]) -> Vec<f64>, seed: u64) -> Fit {
    let targets: Vec<f64> = observations.iter().map(Observation::median).collect();
    let mut point = start.to_vec();
    let mut predicted = model(&point);
    let mut damping = 1e-2;
    for _ in 0..ITERATIONS {
        let jacobian = jacobian(&point, &predicted, model);
        let errors = minus(&predicted, &targets);
        let weights = weights(observations, &errors);
        let Some(step) = solve(&jacobian, &weights, &errors, damping) else { break };
        // No step leads farther than a factor of e.
        let next: Vec<f64> = point.iter().zip(&step).map(|(at, step)| at - step.clamp(-1.0, 1.0)).collect();
        let there = model(&next);
        let loss = |predicted: &[f64]| weighted(&weights, &minus(predicted, &targets));
        if loss(&there) < loss(&predicted) {
            (point, predicted, damping) = (next, there, damping / 4.0);
        } else {
            damping *= 8.0;
        }
        if step.iter().all(|step| step.abs() < ARRIVED) {
            break;
        }
    }
    let residuals = minus(&predicted, &targets);
    let (low, high) = bootstrap(observations, &point, &predicted, &residuals, model, seed);
    Fit { point, low, high, residuals }
}

/// One step from the optimum for each resample: repetitions are drawn again, and so are the model's residuals.
fn bootstrap(
    observations: &[Observation],
    point: &[f64],
    predicted: &[f64],
    residuals: &[f64],
    model: &dyn Fn(&[f64]) -> Vec<f64>,
    seed: u64,
) -> (Vec<f64>, Vec<f64>) {
    let jacobian = jacobian(point, predicted, model);
    let weights = weights(observations, residuals);
    let mut random = Rng::with_seed(seed);
    let mut points: Vec<Vec<f64>> = vec![Vec::new(); point.len()];
    for _ in 0..RESAMPLES {
        let errors: Vec<f64> = observations
            .iter()
            .map(|observation| {
                // The median of as many repetitions, drawn from them with replacement.
                let count = observation.logarithms.len();
                let resampled = middle((0..count).map(|_| observation.logarithms[random.usize(..count)]));
                let noise = resampled - observation.median();
                residuals[random.usize(..residuals.len())] + noise
            })
            .collect();
        let step = solve(&jacobian, &weights, &errors, 0.0).unwrap_or_else(|| vec![0.0; point.len()]);
        points.iter_mut().zip(point.iter().zip(step)).for_each(|(of, (at, step))| of.push(at - step));
    }
    let points: Vec<Sample> = points.into_iter().map(|of| Sample::of(of).expect("there are resamples")).collect();
    let at = |part: f64| points.iter().map(|of| of.quantile(part)).collect();
    (at(0.025), at(0.975))
}

/// The derivative of each prediction (rows) by each parameter (columns).
fn jacobian(point: &[f64], predicted: &[f64], model: &dyn Fn(&[f64]) -> Vec<f64>) -> DMatrix<f64> {
    let mut jacobian = DMatrix::zeros(predicted.len(), point.len());
    for (index, mut column) in jacobian.column_iter_mut().enumerate() {
        let mut moved = point.to_vec();
        moved[index] += STEP;
        column.copy_from(&(DVector::from(minus(&model(&moved), predicted)) / STEP));
    }
    jacobian
}

fn minus(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn weights(observations: &[Observation], errors: &[f64]) -> Vec<f64> {
    let limit = HUBER * scale(errors).max(1e-3);
    let huber = |error: &f64| (limit / error.abs().max(limit)).min(1.0);
    observations.iter().zip(errors).map(|(observation, error)| observation.weight * huber(error)).collect()
}

/// The standard deviation of a normal distribution whose absolute values have the same median.
fn scale(errors: &[f64]) -> f64 {
    1.4826 * middle(errors.iter().map(|error| error.abs()))
}

fn middle(values: impl Iterator<Item = f64>) -> f64 {
    Sample::of(values).expect("something was measured").median()
}

fn weighted(weights: &[f64], errors: &[f64]) -> f64 {
    weights.iter().zip(errors).map(|(weight, error)| weight * error * error).sum()
}

/// The step of damped normal equations; `None`: the observations do not determine it.
fn solve(jacobian: &DMatrix<f64>, weights: &[f64], errors: &[f64], damping: f64) -> Option<Vec<f64>> {
    let weighted =
        DMatrix::from_fn(jacobian.nrows(), jacobian.ncols(), |row, column| weights[row] * jacobian[(row, column)]);
    let mut normal = weighted.tr_mul(jacobian);
    for index in 0..normal.ncols() {
        normal[(index, index)] = normal[(index, index)] * (1.0 + damping) + 1e-9;
    }
    let right = weighted.tr_mul(&DVector::from_column_slice(errors));
    Some(normal.cholesky()?.solve(&right).as_slice().to_vec())
}
