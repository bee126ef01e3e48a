//! Owns interpolation between measured rows: of their efficiency, over the logarithms of their sizes.
//!
//! Efficiency is the roofline time, including launch overhead and the usual efficiency of kernels, divided by the
//! measured time. It changes slowly while time changes over orders of magnitude. On a grid it is a local linear
//! regression over the nearest rows (Cleveland, "Robust locally weighted regression and smoothing scatterplots", JASA
//! 1979, without the robust weights); between grid points it is interpolated linearly. Efficiency gives times at the
//! knots of a lattice, one knot per power of two. Two bounds never fall when a size grows: the greatest time of all
//! knots with no more work, and the least time of all knots with no less work. A knot's time is their geometric mean,
//! which does not fall either, and which outliers move half as much as either bound. Knots without a nearby row do not
//! affect knots with one: they are clamped between them. Between knots the logarithm of the time is interpolated
//! linearly in each size.
//!
//! Another device reaches the same fraction of its own roofline, at sizes that give each of its multiprocessors as much
//! work.

use super::shape::{Point, Roof, Shape};
use crate::database::Row;
use rustc_hash::FxHashMap;
use std::sync::OnceLock;

/// Smallest number of rows that are interpolated.
pub(super) const FEWEST: usize = 5;
/// Largest number of rows before thinning.
const MOST: usize = 2_000;
/// Number of rows in a regression.
const NEIGHBOURS: usize = 16;
/// Number of rows for the residuals, each predicted from the others.
const JUDGES: usize = 128;
/// Number of the nearest residuals that tell the spread at a point.
const WITNESSES: usize = 24;
/// Seconds of the shortest kernels, if only times with host overhead are known: 2 to 3 us on devices whose kernels were
/// timed.
const KERNEL: f64 = 3e-6;
/// Upper bound of the seconds of a kernel that does next to nothing: a longer time includes host overhead.
const HOST: f64 = 10e-6;
/// Squared distance in octaves of points that are the same.
const SAME: f64 = 1e-6;
/// Growth of the spread per octave of distance from the nearest row, beyond [`NEAR`]: fitted to the shipped rows, each
/// predicted without the rows within 1, 2, 3, 4 and 6 octaves. The residuals grow by 0.10 per octave for attention, 0.09
/// for GEMMs, 0.06 to 0.07 for norms and softmax, 0.04 for elementwise operators.
const GROWTH: f64 = 0.09;
/// Typical distance in octaves from a shipped row to the nearest other row.
const NEAR: f64 = 0.5;
/// Least spread: rows of one series repeat to about 1 %.
const LEAST: f64 = 0.01;
/// 90 % of a normal distribution lie within this many standard deviations. The quantile of 90 % fits the intervals of 80
/// and of 95 % best, as residuals have heavier tails (docs/devices.md has the coverage).
const NORMAL_90: f64 = 1.644_854;
/// Largest distance in octaves from a row to a point with a well-known efficiency.
pub(super) const SUPPORT: f64 = 2.0;
/// Beyond the largest measured size, times 2 to the power of this, time grows in proportion to each size.
const BEYOND: f64 = 3.0;
/// The same bound for the batch size of a batched GEMM, as a binary logarithm: at least this.
const BATCHES: f64 = 13.0;

/// One measured point.
#[derive(Clone, Copy, Debug)]
struct Sample {
    point: Point,
    /// The logarithm of the efficiency.
    efficiency: f64,
    /// The kernel's share of the measured time. A small share lowers the sample's weight.
    share: f64,
    /// Squared extra distance from every point, because the row measured a related operator.
    apart: f64,
}

/// Times of one kind of operator on one device, from rows of this device or of another.
#[derive(Debug)]
pub(super) struct Surface {
    shape: Shape,
    /// Bytes of an element.
    size: f64,
    target: Roof,
    /// Lower bound of every time, in seconds.
    launch: f64,
    /// Time of the rows' shortest operators, in seconds, whatever their work.
    overhead: f64,
    /// Largest fraction of the peak rate that is reached: 1, or that of the fastest row.
    most: f64,
    samples: Vec<Sample>,
    low: Point,
    high: Point,
    /// Built at its first use.
    lattice: OnceLock<Lattice>,
    /// Rows that were predicted from the rows of other sizes.
    residuals: Vec<Residual>,
}

/// A row that was predicted from the rows of other sizes.
#[derive(Clone, Copy, Debug)]
struct Residual {
    point: Point,
    /// The logarithm of predicted by measured time.
    error: f64,
    /// Distance in octaves from the nearest other row.
    distance: f64,
}

/// A time on a surface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) seconds: f64,
    /// Standard deviation of its logarithm.
    pub(super) spread: f64,
    /// Distance in octaves from the nearest row.
    pub(super) distance: f64,
}

/// Conditions of the measured rows, and the target of the estimates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) shape: Shape,
    /// Bytes of an element: of the rows, and of the target operator.
    pub(super) sizes: [f64; 2],
    pub(super) source: Roof,
    pub(super) target: Roof,
    pub(super) launch: f64,
    /// Host overhead inside the rows' times, in seconds.
    pub(super) host: f64,
    /// The binary logarithm of the ratio of the target's multiprocessors to the rows' device's.
    pub(super) units: f64,
    /// Whether rows of the family do unequal work at equal sizes.
    pub(super) varies: bool,
}

/// Rows of one series, and their extra distance in octaves if they measure a related operator.
pub(super) type Group<'a> = (f64, &'a [Row]);

/// Seconds of the kernel in a measured time that includes `host` seconds of host overhead.
pub(super) fn kernel(measured: f64, host: f64) -> f64 {
    if host > 0.0 { (measured - host).max(0.0) + KERNEL } else { measured }
}

/// Host overhead in times of an operator that does next to nothing, with the minimum `shortest`; 0 if the minimum is a
/// kernel's own time.
pub(super) fn overhead_of_host(shortest: f64) -> f64 {
    if shortest > HOST { shortest } else { 0.0 }
}

/// Whether a row did next to nothing, so that its time is all overhead.
pub(super) fn is_idle(source: &Roof, row: &Row) -> bool {
    source.bare((row.flops as f64, row.bytes as f64)) < 0.2 * row.microseconds * 1e-6
}

impl Surface {
    /// A surface over the rows of `groups`; `None`: too few rows.
    pub(super) fn new(setting: Setting, groups: &[Group<'_>]) -> Option<Surface> {
        let Setting { shape, sizes: [size, own_size], source, target, launch, host, units, varies } = setting;
        let rows: Vec<(f64, &Row)> = groups
            .iter()
            .flat_map(|(apart, rows)| thinned(shape, rows, size).into_iter().map(move |row| (*apart, row)))
            .collect();
        let work = |row: &Row, point: &Point| match varies {
            true => (row.flops as f64, row.bytes as f64),
            false => shape.work(point, size),
        };
        // The shortest row tells the overhead only if it does next to nothing.
        let shortest = rows.iter().map(|(_, row)| *row).min_by(|a, b| a.microseconds.total_cmp(&b.microseconds))?;
        let overhead = match host > 0.0 {
            true => KERNEL,
            false if is_idle(&source, shortest) => shortest.microseconds * 1e-6,
            false => launch,
        };
        let mut most = 1.0_f64;
        let mut sample = |(apart, row): (f64, &Row)| {
            let point = shape.point(row.dimensions, row.bytes, size);
            let measured = row.microseconds * 1e-6;
            let seconds = kernel(measured, host);
            let work = work(row, &point);
            let usual = overhead + source.usual(shape, &point, work);
            most = most.max(source.arithmetic(work.0) / seconds);
            let efficiency = libm::log(usual / seconds);
            Sample {
                point: shape.spread_over(&point, units),
                efficiency,
                share: seconds / measured,
                apart: apart * apart,
            }
        };
        let samples: Vec<Sample> =
            rows.into_iter().map(&mut sample).filter(|sample| sample.efficiency.is_finite()).collect();
        if samples.len() < FEWEST {
            return None;
        }
        let bound = |pick: fn(f64, f64) -> f64| {
            std::array::from_fn(|axis| samples.iter().map(|sample| sample.point[axis]).reduce(pick).unwrap_or(0.0))
        };
        let (low, high) = (bound(f64::min), bound(f64::max));
        let residuals = residuals(shape, &samples);
        let lattice = OnceLock::new();
        Some(Surface { shape, size: own_size, target, launch, overhead, most, samples, low, high, lattice, residuals })
    }

    /// The spread at a point: of the nearest residuals, except those of the point itself if `without_itself`, and more
    /// if all rows are far.
    fn spread(&self, point: &Point, distance: f64, without_itself: bool) -> f64 {
        let place = self.inside(point);
        let mut near: Vec<(f64, f64)> = self
            .residuals
            .iter()
            .map(|residual| (self.shape.distance(&residual.point, &place), residual.error.abs()))
            .filter(|(distance, _)| !without_itself || *distance > SAME)
            .collect();
        near.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        near.truncate(WITNESSES);
        let found: Vec<f64> = near.into_iter().map(|(_, residual)| residual).collect();
        (quantile(&found, 0.9) / NORMAL_90).max(LEAST).hypot(GROWTH * (distance - NEAR).max(0.0))
    }

    /// Logarithms of predicted by measured times, for rows that were each predicted from rows of other sizes, with the
    /// spread that the other residuals tell.
    pub(super) fn residuals(&self) -> impl Iterator<Item = (f64, f64)> {
        let spread = |residual: &Residual| self.spread(&residual.point, residual.distance, true);
        self.residuals.iter().map(move |residual| (residual.error, spread(residual)))
    }

    /// The time of an operator of these sizes; `bytes` is the size of elementwise operators, `work` overrides the work
    /// that the sizes imply.
    pub(super) fn find(&self, dimensions: [u64; 4], bytes: u64, work: Option<(f64, f64)>) -> Found {
        let point = self.shape.point(dimensions, bytes, self.size);
        let place = self.folded(&point);
        let squared = |sample: &Sample| self.shape.distance(&sample.point, &place) + sample.apart;
        let distance = self.samples.iter().map(squared).fold(f64::MAX, f64::min).sqrt();
        let spread = self.spread(&place, distance, false);
        Found { seconds: self.seconds(&point, work), spread, distance }
    }

    fn seconds(&self, point: &Point, work: Option<(f64, f64)>) -> f64 {
        let lattice = self.lattice.get_or_init(|| self.lattice());
        let (logarithm, excess) = lattice.at(self.shape.axes(), point);
        let seconds = libm::exp(logarithm) * libm::exp2(excess);
        let Some(work) = work else { return seconds };
        let plain = self.usual(point, self.shape.work(point, self.size));
        (seconds * self.usual(point, work) / plain).max(self.launch)
    }

    fn lattice(&self) -> Lattice {
        let axes = self.shape.axes();
        let beyond = |axis: usize| match (self.shape, axis) {
            (Shape::Flat, _) => 24.0,
            (Shape::Product, 0) => BEYOND.max(BATCHES - self.high[0]),
            _ => BEYOND,
        };
        let count = |axis: usize| (self.high[axis].max(0.0).ceil() + beyond(axis)) as usize + 1;
        let counts = std::array::from_fn(|axis| if axis < axes { count(axis) } else { 1 });
        let shape = self.shape;
        let step = shape.step();
        let mut grid: FxHashMap<[usize; 4], (f64, bool)> = FxHashMap::default();
        let mut efficiency = |node: [usize; 4]| {
            *grid.entry(node).or_insert_with(|| {
                let place = self.inside(&std::array::from_fn(|axis| node[axis] as f64 * step[axis]));
                let near = |sample: &Sample| shape.distance(&sample.point, &place) <= SUPPORT * SUPPORT;
                (
                    regression(shape, &self.samples, None, &place).map_or(0.0, |(efficiency, _)| efficiency),
                    self.samples.iter().any(near),
                )
            })
        };
        Lattice::new(counts, |knot| {
            let point = knot.map(|index| index as f64);
            let place = self.inside(&self.folded(&point));
            let (mut logarithm, mut supported) = (0.0, true);
            for (node, weight) in corners(axes, &std::array::from_fn(|axis| place[axis] / step[axis])) {
                let (efficiency, near) = efficiency(node);
                logarithm += weight * efficiency;
                supported &= near;
            }
            let work = shape.work(&point, self.size);
            let seconds = self.usual(&point, work) / libm::exp(logarithm);
            (libm::log(seconds.max(self.launch).max(self.target.arithmetic(work.0) / self.most)), supported)
        })
    }

    /// More GEMMs than the largest measured batch are as efficient as fewer with proportionally more rows, which fill
    /// as many tiles.
    fn folded(&self, point: &Point) -> Point {
        let more = if self.shape == Shape::Product { (point[0] - self.high[0].max(0.0)).max(0.0) } else { 0.0 };
        [point[0] - more, point[1] + more, point[2], point[3]]
    }

    /// The nearest point within the measured range.
    fn inside(&self, point: &Point) -> Point {
        std::array::from_fn(|axis| point[axis].clamp(self.low[axis].max(0.0), self.high[axis].max(0.0)))
    }

    /// Seconds on the target at the usual efficiency; above zero, as a kernel is launched.
    fn usual(&self, point: &Point, work: (f64, f64)) -> f64 {
        (self.overhead + self.target.usual(self.shape, point, work)).max(1e-12)
    }
}

/// Values at all combinations of integers along each axis; they do not fall along any axis.
#[derive(Debug)]
struct Lattice {
    counts: [usize; 4],
    values: Vec<f64>,
}

impl Lattice {
    /// A lattice from a value at each knot, and whether that value is well known.
    fn new(counts: [usize; 4], mut value: impl FnMut([usize; 4]) -> (f64, bool)) -> Lattice {
        let total: usize = counts.iter().product();
        let mut knot = [0; 4];
        let mut raw = Vec::with_capacity(total);
        for _ in 0..total {
            raw.push(value(knot));
            for axis in (0..4).rev() {
                knot[axis] += 1;
                if knot[axis] < counts[axis] {
                    break;
                }
                knot[axis] = 0;
            }
        }
        let known = |otherwise: f64| raw.iter().map(|(value, known)| if *known { *value } else { otherwise }).collect();
        let all: Vec<f64> = raw.iter().map(|(value, _)| *value).collect();
        let mean =
            |a: Vec<f64>, b: Vec<f64>| -> Vec<f64> { a.into_iter().zip(b).map(|(a, b)| 0.5 * (a + b)).collect() };
        let guess = mean(greatest(counts, all.clone()), least(counts, all));
        let sure = mean(greatest(counts, known(f64::MIN)), least(counts, known(f64::MAX)));
        let sure = |otherwise: f64| -> Vec<f64> {
            sure.iter().zip(&raw).map(|(sure, (_, known))| if *known { *sure } else { otherwise }).collect()
        };
        // The guess is clamped between the well-known values below and above, as it may violate either.
        let (below, above) = (greatest(counts, sure(f64::MIN)), least(counts, sure(f64::MAX)));
        let values = guess.into_iter().zip(below.into_iter().zip(above));
        let values = values.map(|(guess, (below, above))| guess.max(below).min(above)).collect();
        Lattice { counts, values }
    }

    /// The value interpolated linearly between knots, and the distance beyond the last knots, over all axes.
    fn at(&self, axes: usize, point: &Point) -> (f64, f64) {
        let (mut place, mut excess) = (*point, 0.0);
        for axis in 0..axes {
            place[axis] = point[axis].min((self.counts[axis] - 1) as f64);
            excess += point[axis] - place[axis];
        }
        let index = |knot: [usize; 4]| knot.iter().zip(self.counts).fold(0, |index, (at, count)| index * count + at);
        (corners(axes, &place).map(|(knot, weight)| weight * self.values[index(knot)]).sum(), excess)
    }
}

/// The greatest value of all knots that are no larger in any size, for each knot.
fn greatest(counts: [usize; 4], mut values: Vec<f64>) -> Vec<f64> {
    let mut stride = 1;
    for count in counts.into_iter().rev() {
        for index in 0..values.len() {
            if index / stride % count > 0 {
                values[index] = values[index].max(values[index - stride]);
            }
        }
        stride *= count;
    }
    values
}

/// The least value of all knots that are no smaller in any size, for each knot.
fn least(counts: [usize; 4], mut values: Vec<f64>) -> Vec<f64> {
    let mut stride = 1;
    for count in counts.into_iter().rev() {
        for index in (0..values.len()).rev() {
            if index / stride % count + 1 < count {
                values[index] = values[index].min(values[index + stride]);
            }
        }
        stride *= count;
    }
    values
}

/// The integer points around a point with their nonzero weights in linear interpolation.
fn corners(axes: usize, place: &Point) -> impl Iterator<Item = ([usize; 4], f64)> {
    let place = *place;
    (0..1_u8 << axes).filter_map(move |corner| {
        let (mut knot, mut weight) = ([0; 4], 1.0);
        for axis in 0..axes {
            let (whole, fraction) = (place[axis].floor(), place[axis] - place[axis].floor());
            let up = corner >> axis & 1;
            knot[axis] = whole as usize + usize::from(up);
            weight *= if up == 1 { fraction } else { 1.0 - fraction };
        }
        (weight > 0.0).then_some((knot, weight))
    })
}

/// The median row of each quarter octave, and at most [`MOST`] of these, evenly chosen.
fn thinned(shape: Shape, rows: &[Row], size: f64) -> Vec<&Row> {
    let mut cells: std::collections::BTreeMap<[i32; 4], Vec<&Row>> = std::collections::BTreeMap::new();
    for row in rows {
        let cell = shape.point(row.dimensions, row.bytes, size).map(|size| (size * 4.0).round() as i32);
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

/// Residuals of evenly chosen rows, each predicted from the rows of other sizes.
fn residuals(shape: Shape, samples: &[Sample]) -> Vec<Residual> {
    let judged = samples.iter().step_by(samples.len().div_ceil(JUDGES));
    // The error of the whole measured time, which is the kernel's error if the kernel is all of it.
    let residual = |sample: &Sample| {
        let (efficiency, distance) = regression(shape, samples, Some(SAME), &sample.point)?;
        let error = libm::log1p(sample.share * libm::expm1(sample.efficiency - efficiency));
        Some(Residual { point: sample.point, error, distance })
    };
    judged.filter_map(residual).collect()
}

/// The logarithm of the efficiency at a point: a plane through the nearest samples, weighted by proximity. It exceeds
/// the samples' range by at most half of that range, up and down. Samples within `hidden`, a squared distance, do not
/// count. The second value is the distance of the nearest sample, in octaves. `None`: too few samples.
fn regression(shape: Shape, samples: &[Sample], hidden: Option<f64>, point: &Point) -> Option<(f64, f64)> {
    let axes = shape.axes();
    let counts = |distance: f64| hidden.is_none_or(|hidden| distance > hidden);
    let distances = samples.iter().map(|sample| shape.distance(&sample.point, point));
    let others = samples.iter().zip(distances).enumerate().filter(|(_, (_, distance))| counts(*distance));
    let mut near: Vec<(f64, usize)> =
        others.map(|(index, (sample, distance))| (distance + sample.apart, index)).collect();
    if near.len() + 1 < FEWEST {
        return None;
    }
    let count = NEIGHBOURS.min(near.len());
    // The index makes the order total: ties between equal distances must be deterministic.
    let order = |a: &(f64, usize), b: &(f64, usize)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
    if count < near.len() {
        near.select_nth_unstable_by(count, order);
        near.truncate(count);
    }
    near.sort_by(order);
    let reach = near.last().map_or(0.0, |(distance, _)| *distance);
    let weight = |distance: f64, index: usize| samples[index].share.powi(2) / (distance + 0.05 * reach + 1e-3);
    let total: f64 = near.iter().map(|(distance, index)| weight(*distance, *index)).sum();
    let mean = |of: &dyn Fn(&Sample) -> f64| {
        near.iter().map(|(distance, index)| weight(*distance, *index) * of(&samples[*index])).sum::<f64>() / total
    };
    let center: Point =
        std::array::from_fn(|axis| if axis < axes { mean(&|s| s.point[axis] - point[axis]) } else { 0.0 });
    let height = mean(&|s| s.efficiency);
    // Normal equations with a small ridge: if all neighbours have one size, the slope in it is undetermined.
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
    Some((found.clamp(least - slack, most + slack), near[0].0.sqrt()))
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

/// The quantile of the values at the fraction `part`; 0 without values.
pub(super) fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() as f64 * part) as usize).or(sorted.last()).copied().unwrap_or(0.0)
}
