//! Owns robust least squares: the point at which a model comes nearest to observations, and how sure it is.
//!
//! Everything is in logarithms, so errors are relative. Gauss and Newton's method with Levenberg and Marquardt's damping, Huber's weights against
//! outliers, and a bootstrap for the intervals. What the model is, its caller knows.

use super::measurement::Pair;

/// Something measured several times.
pub struct Observation {
    /// The logarithms of the repetitions, sorted.
    logarithms: Vec<f64>,
    weight: f64,
}

/// Where the model fits best.
pub struct Fit {
    /// The logarithms of the parameters.
    pub point: Vec<f64>,
    /// The ends of their 95 % intervals.
    pub low: Vec<f64>,
    /// The same.
    pub high: Vec<f64>,
    /// Model minus observation, in logarithms.
    pub residuals: Vec<f64>,
}

/// Measurements that scatter less than this count alike.
const LEAST_SCATTER: f64 = 0.02;
/// Beyond so many standard deviations a residual counts as an outlier (Huber 1964: 95 % efficient where there is none).
const HUBER: f64 = 1.345;
const ITERATIONS: usize = 25;
/// Of the logarithms, for derivatives. Downwards: where one of two equal links is made slower, that shows, where it is made faster it does not.
const STEP: f64 = -0.01;
/// A fit that moves less than this has arrived.
const ARRIVED: f64 = 1e-4;
const RESAMPLES: usize = 400;

impl Observation {
    /// Of what was measured between two ranks.
    pub fn new(pair: &Pair) -> Observation {
        let logarithms = pair.seconds.iter().map(|time| time.ln()).collect();
        Observation { logarithms, weight: 1.0 / pair.scatter().max(LEAST_SCATTER) }
    }

    fn median(&self) -> f64 {
        self.logarithms[self.logarithms.len() / 2]
    }

    /// The median of as many repetitions, drawn again.
    fn resampled(&self, random: &mut Random) -> f64 {
        let count = self.logarithms.len();
        let mut drawn: Vec<f64> = (0..count).map(|_| self.logarithms[random.below(count)]).collect();
        drawn.sort_by(f64::total_cmp);
        drawn[count / 2]
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

/// One step from the optimum for every resample: repetitions are drawn again, and so are the residuals that the model leaves.
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
    let mut random = Random(seed);
    let mut points: Vec<Vec<f64>> = vec![Vec::new(); point.len()];
    for _ in 0..RESAMPLES {
        let errors: Vec<f64> = observations
            .iter()
            .map(|observation| {
                let noise = observation.resampled(&mut random) - observation.median();
                residuals[random.below(residuals.len())] + noise
            })
            .collect();
        let step = solve(&jacobian, &weights, &errors, 0.0).unwrap_or_else(|| vec![0.0; point.len()]);
        points.iter_mut().zip(point.iter().zip(step)).for_each(|(of, (at, step))| of.push(at - step));
    }
    points.iter_mut().for_each(|of| of.sort_by(f64::total_cmp));
    let at = |part: f64| points.iter().map(|of| of[(part * (RESAMPLES - 1) as f64) as usize]).collect();
    (at(0.025), at(0.975))
}

/// By parameter, the derivative of every prediction.
fn jacobian(point: &[f64], predicted: &[f64], model: &dyn Fn(&[f64]) -> Vec<f64>) -> Vec<Vec<f64>> {
    (0..point.len())
        .map(|index| {
            let mut moved = point.to_vec();
            moved[index] += STEP;
            minus(&model(&moved), predicted).iter().map(|change| change / STEP).collect()
        })
        .collect()
}

fn minus(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn weights(observations: &[Observation], errors: &[f64]) -> Vec<f64> {
    let limit = HUBER * scale(errors).max(1e-3);
    let huber = |error: &f64| (limit / error.abs().max(limit)).min(1.0);
    observations.iter().zip(errors).map(|(observation, error)| observation.weight * huber(error)).collect()
}

/// The standard deviation that the median of the absolute values would have of a normal distribution.
fn scale(errors: &[f64]) -> f64 {
    let mut absolute: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
    absolute.sort_by(f64::total_cmp);
    1.4826 * absolute[absolute.len() / 2]
}

fn weighted(weights: &[f64], errors: &[f64]) -> f64 {
    weights.iter().zip(errors).map(|(weight, error)| weight * error * error).sum()
}

/// The step of damped normal equations, by elimination; `None`: the observations do not determine it.
fn solve(jacobian: &[Vec<f64>], weights: &[f64], errors: &[f64], damping: f64) -> Option<Vec<f64>> {
    let product =
        |a: &[f64], b: &[f64]| -> f64 { weights.iter().zip(a.iter().zip(b)).map(|(w, (a, b))| w * a * b).sum() };
    let count = jacobian.len();
    let mut rows: Vec<Vec<f64>> = jacobian
        .iter()
        .map(|row| {
            let mut products: Vec<f64> = jacobian.iter().map(|other| product(row, other)).collect();
            products.push(product(row, errors));
            products
        })
        .collect();
    for (index, row) in rows.iter_mut().enumerate() {
        row[index] = row[index] * (1.0 + damping) + 1e-9;
    }
    for pivot in 0..count {
        let best = (pivot..count).max_by(|a, b| rows[*a][pivot].abs().total_cmp(&rows[*b][pivot].abs()))?;
        rows.swap(pivot, best);
        if rows[pivot][pivot].abs() < 1e-12 {
            return None;
        }
        let subtracted = rows[pivot].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(other, _)| *other != pivot) {
            let factor = row[pivot] / subtracted[pivot];
            row.iter_mut().zip(&subtracted).skip(pivot).for_each(|(value, pivots)| *value -= factor * pivots);
        }
    }
    Some((0..count).map(|index| rows[index][count] / rows[index][index]).collect())
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}
