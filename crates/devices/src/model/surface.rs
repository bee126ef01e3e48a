//! Owns interpolation between measured rows: of their efficiency, over the logarithms of their sizes.
//!
//! Efficiency is the time by the roofline, with the overhead of a launch and what kernels usually reach, divided by the measured time. It changes
//! slowly where time changes over orders of magnitude. At the knots of a lattice, one for each power of two, it is a local linear
//! regression over the nearest rows (Cleveland, "Robust locally weighted regression and smoothing scatterplots", JASA 1979, without
//! the robust weights). A knot takes no less than any knot with less work, and between knots the logarithm of the time is interpolated
//! linearly in each size: so time never falls when a size grows. On another device the same efficiency is reached of its roofline.

use super::shape::{Point, Roof, Shape};
use crate::database::Row;
use rustc_hash::FxHashMap;
use std::sync::Mutex;

/// With fewer rows nothing is interpolated.
pub(super) const FEWEST: usize = 5;
/// More are thinned.
const MOST: usize = 2_000;
/// Rows of a regression.
const NEIGHBOURS: usize = 16;
/// Rows that tell how far predictions are off, each predicted from the others.
const JUDGES: usize = 64;
/// Beyond the largest measured size, times 2 to the power of this, time grows with each size.
const BEYOND: f64 = 3.0;

/// One measured place.
#[derive(Clone, Copy, Debug)]
struct Sample {
    point: Point,
    /// The logarithm of the efficiency.
    efficiency: f64,
}

/// Times of one kind of operator on one device, from rows of this or another.
#[derive(Debug)]
pub(super) struct Surface {
    shape: Shape,
    /// Bytes of an element.
    size: f64,
    target: Roof,
    /// No operator takes less.
    launch: f64,
    /// What the rows' shortest operators take, however little they do.
    overhead: f64,
    samples: Vec<Sample>,
    low: Point,
    high: Point,
    knots: Mutex<FxHashMap<[u8; 4], f64>>,
    /// Of rows that were predicted from the others: logarithms of predicted by measured time.
    residuals: Vec<f64>,
}

/// What rows were measured with, and what they are used for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) shape: Shape,
    pub(super) size: f64,
    pub(super) source: Roof,
    pub(super) target: Roof,
    pub(super) launch: f64,
    /// Whether rows of the family do unequal work at equal sizes.
    pub(super) varies: bool,
}

impl Surface {
    /// `None`: too few rows.
    pub(super) fn new(setting: Setting, rows: &[Row]) -> Option<Surface> {
        let Setting { shape, size, source, target, launch, varies } = setting;
        let rows = thinned(shape, rows);
        let work = |row: &Row, point: &Point| match varies {
            true => (row.flops as f64, row.bytes as f64),
            false => shape.work(point, size),
        };
        // The shortest row tells the overhead only if it does next to nothing.
        let shortest = rows.iter().min_by(|a, b| a.microseconds.total_cmp(&b.microseconds))?;
        let roof = source.bare(work(shortest, &shape.point(shortest.dimensions, shortest.bytes)));
        let seconds = shortest.microseconds * 1e-6;
        let overhead = if roof < 0.2 * seconds { seconds } else { launch };
        let sample = |row: &Row| {
            let point = shape.point(row.dimensions, row.bytes);
            let usual = overhead + source.usual(shape, &point, work(row, &point));
            Sample { point, efficiency: libm::log(usual / (row.microseconds * 1e-6)) }
        };
        let samples: Vec<Sample> =
            rows.into_iter().map(sample).filter(|sample| sample.efficiency.is_finite()).collect();
        if samples.len() < FEWEST {
            return None;
        }
        let bound = |pick: fn(f64, f64) -> f64| {
            std::array::from_fn(|axis| samples.iter().map(|sample| sample.point[axis]).reduce(pick).unwrap_or(0.0))
        };
        let (low, high) = (bound(f64::min), bound(f64::max));
        let residuals = residuals(shape, &samples);
        let knots = Mutex::default();
        Some(Surface { shape, size, target, launch, overhead, samples, low, high, knots, residuals })
    }

    /// The residual that two of three rows stay below: the standard deviation of the logarithm of a time around its prediction, whatever the
    /// outliers.
    pub(super) fn spread(&self) -> f64 {
        quantile(&self.residuals.iter().map(|residual| residual.abs()).collect::<Vec<_>>(), 0.68)
    }

    /// Logarithms of predicted by measured times, of rows that were each predicted from the others.
    pub(super) fn residuals(&self) -> &[f64] {
        &self.residuals
    }

    /// Seconds of an operator of such sizes; `bytes` for those whose only size it is, `work` where it is not what the sizes say.
    pub(super) fn seconds(&self, dimensions: [u64; 4], bytes: u64, work: Option<(f64, f64)>) -> f64 {
        let point = self.shape.point(dimensions, bytes);
        let seconds = self.at(&point);
        let Some(work) = work else { return seconds };
        let plain = self.usual(&point, self.shape.work(&point, self.size));
        (seconds * self.usual(&point, work) / plain).max(self.launch)
    }

    fn at(&self, point: &Point) -> f64 {
        let axes = self.shape.axes();
        let (mut cell, mut fraction, mut excess) = ([0_u8; 4], [0.0; 4], 0.0);
        for axis in 0..axes {
            let last = self.high[axis].ceil() + if axes == 1 { 24.0 } else { BEYOND };
            let place = point[axis].min(last);
            excess += point[axis] - place;
            cell[axis] = place.floor() as u8;
            fraction[axis] = place - place.floor();
        }
        let mut knots = self.knots.lock().expect("no estimate panics");
        let mut logarithm = 0.0;
        for corner in 0..1_u8 << axes {
            let (mut knot, mut weight) = (cell, 1.0);
            for axis in 0..axes {
                let up = corner >> axis & 1;
                knot[axis] += up;
                weight *= if up == 1 { fraction[axis] } else { 1.0 - fraction[axis] };
            }
            if weight > 0.0 {
                logarithm += weight * libm::log(self.knot(knot, &mut knots));
            }
        }
        libm::exp(logarithm) * libm::exp2(excess)
    }

    /// No less than at any knot below.
    fn knot(&self, knot: [u8; 4], knots: &mut FxHashMap<[u8; 4], f64>) -> f64 {
        if let Some(seconds) = knots.get(&knot) {
            return *seconds;
        }
        let mut seconds = self.raw(&knot.map(f64::from));
        for axis in 0..self.shape.axes() {
            if knot[axis] > 0 {
                let mut below = knot;
                below[axis] -= 1;
                seconds = seconds.max(self.knot(below, knots));
            }
        }
        knots.insert(knot, seconds);
        seconds
    }

    /// By the efficiency at the nearest place within what was measured.
    fn raw(&self, point: &Point) -> f64 {
        let inside = std::array::from_fn(|axis| point[axis].clamp(self.low[axis], self.high[axis]));
        let efficiency = libm::exp(regression(self.shape, &self.samples, None, &inside));
        (self.usual(point, self.shape.work(point, self.size)) / efficiency).max(self.launch)
    }

    /// On the target; above zero, as something is launched.
    fn usual(&self, point: &Point, work: (f64, f64)) -> f64 {
        (self.overhead + self.target.usual(self.shape, point, work)).max(1e-12)
    }
}

/// One row of each quarter of an octave, the median of those that are there, and of these at most [`MOST`], evenly chosen.
fn thinned(shape: Shape, rows: &[Row]) -> Vec<&Row> {
    let mut cells: std::collections::BTreeMap<[i32; 4], Vec<&Row>> = std::collections::BTreeMap::new();
    for row in rows {
        let cell = shape.point(row.dimensions, row.bytes).map(|size| (size * 4.0).round() as i32);
        cells.entry(cell).or_default().push(row);
    }
    let medians = cells.into_values().map(|mut rows| {
        rows.sort_by(|a, b| a.microseconds.total_cmp(&b.microseconds));
        rows[rows.len() / 2]
    });
    let medians: Vec<&Row> = medians.collect();
    match medians.len() {
        few if few <= MOST => medians,
        many => (0..MOST).map(|index| medians[index * many / MOST]).collect(),
    }
}

fn residuals(shape: Shape, samples: &[Sample]) -> Vec<f64> {
    let judged = samples.iter().enumerate().step_by(samples.len().div_ceil(JUDGES));
    let residual =
        |(index, sample): (usize, &Sample)| sample.efficiency - regression(shape, samples, Some(index), &sample.point);
    judged.map(residual).collect()
}

/// The logarithm of the efficiency at a point: a plane through the nearest samples, near ones weighing more. It stays within half of
/// what they span, up and down.
fn regression(shape: Shape, samples: &[Sample], without: Option<usize>, point: &Point) -> f64 {
    let axes = shape.axes();
    let distance = |sample: &Sample| (0..axes).map(|axis| (sample.point[axis] - point[axis]).powi(2)).sum::<f64>();
    let others = samples.iter().enumerate().filter(|(index, _)| Some(*index) != without);
    let mut near: Vec<(f64, usize)> = others.map(|(index, sample)| (distance(sample), index)).collect();
    let count = NEIGHBOURS.min(near.len());
    // The index makes the order total: equal distances must not be chosen by chance.
    let order = |a: &(f64, usize), b: &(f64, usize)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
    if count < near.len() {
        near.select_nth_unstable_by(count, order);
        near.truncate(count);
    }
    near.sort_by(order);
    let reach = near.last().map_or(0.0, |(distance, _)| *distance);
    let weight = |distance: f64| 1.0 / (distance + 0.05 * reach + 1e-3);
    let total: f64 = near.iter().map(|(distance, _)| weight(*distance)).sum();
    let mean = |of: &dyn Fn(&Sample) -> f64| {
        near.iter().map(|(distance, index)| weight(*distance) * of(&samples[*index])).sum::<f64>() / total
    };
    let center: Point =
        std::array::from_fn(|axis| if axis < axes { mean(&|s| s.point[axis] - point[axis]) } else { 0.0 });
    let height = mean(&|s| s.efficiency);
    // Normal equations with a small ridge: where all neighbours have one size, nothing is known of its slope.
    let mut matrix = [[0.0; 5]; 4];
    for (row, line) in matrix.iter_mut().enumerate().take(axes) {
        let offset = |sample: &Sample, axis: usize| sample.point[axis] - point[axis] - center[axis];
        for (column, cell) in line.iter_mut().enumerate().take(axes) {
            *cell = mean(&|s| offset(s, row) * offset(s, column)) + if row == column { 0.03 } else { 0.0 };
        }
        line[4] = mean(&|s| offset(s, row) * (s.efficiency - height));
    }
    let slope = solved(matrix, axes);
    let found = height - (0..axes).map(|axis| slope[axis] * center[axis]).sum::<f64>();
    let efficiencies = || near.iter().map(|(_, index)| samples[*index].efficiency);
    let (least, most) = (efficiencies().fold(f64::MAX, f64::min), efficiencies().fold(f64::MIN, f64::max));
    let slack = 0.5 * (most - least);
    found.clamp(least - slack, most + slack)
}

/// Gauss elimination of a positive definite system with its right side in the last column.
fn solved(mut matrix: [[f64; 5]; 4], size: usize) -> Point {
    for pivot in 0..size {
        for row in pivot + 1..size {
            let factor = matrix[row][pivot] / matrix[pivot][pivot];
            let above = matrix[pivot];
            for (cell, above) in matrix[row].iter_mut().zip(above).skip(pivot) {
                *cell -= factor * above;
            }
        }
    }
    let mut found = [0.0; 4];
    for row in (0..size).rev() {
        let known: f64 = (row + 1..size).map(|column| matrix[row][column] * found[column]).sum();
        found[row] = (matrix[row][4] - known) / matrix[row][row];
    }
    found
}

/// What a part of all values stays below; 0 of none.
pub(super) fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() as f64 * part) as usize).or(sorted.last()).copied().unwrap_or(0.0)
}
