//! Owns breakpoints: the sizes at which an operation's time over size passes from one straight line to another, and
//! their number.
//!
//! For each number of lines, dynamic programming finds the division with the least cost (Bellman 1961), and Bayes'
//! information criterion (Schwarz 1978) chooses the number. Errors are relative errors of medians of repetitions, and
//! large ones count less (Huber). A breakpoint's interval holds all places that explain the measurements nearly as well
//! (likelihood ratio, 95 %). The caller interprets a breakpoint.

use super::fit::HUBER;
use super::measurement::Measurement;
use crate::statistics::Sample;
use serde::Serialize;

/// Two measured sizes, next to each other, between which an operation changes its behaviour.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Breakpoint {
    /// The last size before the change, in bytes.
    pub last: u64,
    /// The first size after the change, in bytes.
    pub first: u64,
    /// Lower end of the 95 % interval in bytes: the change is above it.
    pub low: u64,
    /// Upper end of the 95 % interval in bytes: the change is at or below it.
    pub high: u64,
    /// Duration at `first`, as a multiple of the duration without the change.
    pub jump: f64,
}

/// Measurements of one operation among some ranks: bytes, seconds and their relative scatter, by size.
pub type Series = Vec<(u64, f64, f64)>;

/// Measurements of one operation among the same ranks, over connections that existed before.
pub fn series(measurements: &[Measurement], operation: &str, ranks: &[u32]) -> Series {
    let own = |case: &&Measurement| case.operation == operation && case.ranks == ranks && !case.cold;
    let mut series: Series = measurements.iter().filter(own).filter_map(point).collect();
    series.sort_by_key(|point| point.0);
    series.dedup_by_key(|point| point.0);
    series
}

fn point(case: &Measurement) -> Option<(u64, f64, f64)> {
    let seconds = Sample::of(case.seconds.iter().copied().filter(|time| *time > 0.0))?;
    Some((case.bytes, seconds.median(), seconds.scatter() / (seconds.len() as f64).sqrt()))
}

/// Number of sizes that a line needs: two sizes are always on a line.
const LEAST_SIZES: usize = 3;
const MOST_LINES: usize = 4;
/// Relative error of a median that is ascribed to chance.
const LEAST_ERROR: f64 = 0.01;
const ITERATIONS: usize = 5;
/// The 95 % quantile of chi squared with one degree of freedom.
const LIKELIHOOD: f64 = 3.84;

/// The breakpoints, by rising size, of several series that change together.
pub fn find(series: &[Series]) -> Vec<Breakpoint> {
    let mut sizes: Vec<u64> = series.iter().flatten().map(|point| point.0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() < 2 * LEAST_SIZES {
        return Vec::new();
    }
    let cuts = SegmentCosts::new(series, &sizes);
    let lines = cuts.best_number();
    let places = cuts.places(lines);
    (1..lines).map(|line| cuts.breakpoint(line, &places)).collect()
}

/// Time as a linear function of size.
#[derive(Clone, Copy, Debug)]
struct Line {
    start: f64,
    slope: f64,
}

impl Line {
    fn at(self, bytes: u64) -> f64 {
        self.start + self.slope * bytes as f64
    }

    /// The line with the least relative errors at the points. Neither its start nor its slope is below zero.
    fn through(points: &[(u64, f64, f64)], error: f64) -> Line {
        let mut line = Line::weighted(points, |_| 1.0);
        for _ in 0..ITERATIONS {
            let before = line;
            line = Line::weighted(points, |point| (HUBER * error / before.off(point).abs()).min(1.0));
        }
        line
    }

    fn weighted(points: &[(u64, f64, f64)], weight: impl Fn(&(u64, f64, f64)) -> f64) -> Line {
        // With u = 1/t and v = bytes/t: start u + slope v = 1.
        let sums = points.iter().fold([0.0; 5], |[uu, uv, vv, u1, v1], point| {
            let (u, v, weight) = (1.0 / point.1, point.0 as f64 / point.1, weight(point));
            [uu + weight * u * u, uv + weight * u * v, vv + weight * v * v, u1 + weight * u, v1 + weight * v]
        });
        let [uu, uv, vv, u1, v1] = sums;
        let determinant = uu * vv - uv * uv;
        let (start, slope) = ((u1 * vv - v1 * uv) / determinant, (v1 * uu - u1 * uv) / determinant);
        match (start, slope) {
            (start, slope) if start >= 0.0 && slope >= 0.0 => Line { start, slope },
            (start, _) if start < 0.0 => Line { start: 0.0, slope: v1 / vv },
            // The slope is zero if it would be negative, or if all sizes are equal, so that it is unknown.
            _ => Line { start: u1 / uu, slope: 0.0 },
        }
    }

    fn off(self, (bytes, seconds, _): &(u64, f64, f64)) -> f64 {
        self.at(*bytes) / seconds - 1.0
    }

    /// Cost of the line's relative errors in squares of `error`; large errors grow linearly (Huber).
    fn cost(self, points: &[(u64, f64, f64)], error: f64) -> f64 {
        let cost = |point| {
            let off = self.off(point).abs() / error;
            if off <= HUBER { off * off } else { 2.0 * HUBER * off - HUBER * HUBER }
        };
        points.iter().map(cost).sum()
    }
}

/// Costs of lines through ranges of sizes.
struct SegmentCosts<'a> {
    series: &'a [Series],
    sizes: &'a [u64],
    /// Relative error of measurements that is ascribed to chance.
    error: f64,
    /// Cost of one line from the first of two sizes up to, not including, the second.
    costs: Vec<Vec<f64>>,
}

impl<'a> SegmentCosts<'a> {
    fn new(series: &'a [Series], sizes: &'a [u64]) -> SegmentCosts<'a> {
        let scatter = Sample::of(series.iter().flatten().map(|point| point.2)).expect("there are sizes");
        let error = scatter.median().max(LEAST_ERROR);
        let mut cuts = SegmentCosts { series, sizes, error, costs: Vec::new() };
        cuts.measure();
        // The error that remains with the most lines is ascribed to chance, too.
        let most = MOST_LINES.min(sizes.len() / LEAST_SIZES);
        let points: usize = series.iter().map(Vec::len).sum();
        let free = points.saturating_sub(cuts.parameters(most)).max(1) as f64;
        let left = (cuts.before(most)[sizes.len()] / free).sqrt();
        cuts.error *= left.clamp(1.0, 10.0);
        cuts.measure();
        cuts
    }

    fn measure(&mut self) {
        let count = self.sizes.len();
        let cost = |from: usize, to: usize| if to < from + LEAST_SIZES { f64::INFINITY } else { self.cost(from, to) };
        self.costs = (0..count).map(|from| (0..=count).map(|to| cost(from, to)).collect()).collect();
    }

    fn lines(&self, from: usize, to: usize) -> impl Iterator<Item = (&[(u64, f64, f64)], Line)> {
        let (first, last) = (self.sizes[from], self.sizes[to - 1]);
        self.series.iter().filter_map(move |series| {
            let [start, end] = [first, last + 1].map(|size| series.partition_point(|point| point.0 < size));
            let points = &series[start..end];
            (points.len() > 1).then(|| (points, Line::through(points, self.error)))
        })
    }

    fn cost(&self, from: usize, to: usize) -> f64 {
        self.lines(from, to).map(|(points, line)| line.cost(points, self.error)).sum()
    }

    /// Number of parameters of `lines` lines. A breakpoint counts twice, as its place is searched.
    fn parameters(&self, lines: usize) -> usize {
        2 * lines * self.series.len() + 2 * (lines - 1)
    }

    /// The least cost of `lines` lines through the sizes before each size.
    fn before(&self, lines: usize) -> Vec<f64> {
        let count = self.sizes.len();
        let one: Vec<f64> = self.costs[0].clone();
        (1..lines).fold(one, |shorter, _| {
            let shorter = &shorter;
            let through = |to: usize| (0..to.min(count)).map(move |cut| shorter[cut] + self.costs[cut][to]);
            (0..=count).map(|to| through(to).fold(f64::INFINITY, f64::min)).collect()
        })
    }

    /// The least cost of `lines` lines through the sizes from each size on.
    fn after(&self, lines: usize) -> Vec<f64> {
        let count = self.sizes.len();
        let one: Vec<f64> = self.costs.iter().map(|costs| costs[count]).collect();
        (1..lines).fold(one, |shorter, _| {
            let shorter = &shorter;
            let through = |from: usize| (from..count).map(move |cut| self.costs[from][cut] + shorter[cut]);
            (0..count).map(|from| through(from).fold(f64::INFINITY, f64::min)).collect()
        })
    }

    fn best_number(&self) -> usize {
        let points = self.series.iter().map(Vec::len).sum::<usize>() as f64;
        let criterion =
            |lines: usize| self.before(lines)[self.sizes.len()] + self.parameters(lines) as f64 * points.ln();
        let numbers = 1..=MOST_LINES.min(self.sizes.len() / LEAST_SIZES);
        numbers.min_by(|a, b| criterion(*a).total_cmp(&criterion(*b))).expect("one line is a number")
    }

    /// The indices of sizes at which the best `lines` lines begin and end.
    fn places(&self, lines: usize) -> Vec<usize> {
        let mut places = vec![self.sizes.len()];
        for line in (1..lines).rev() {
            let (before, end) = (self.before(line), places[0]);
            let cost = |cut: &usize| before[*cut] + self.costs[*cut][end];
            let cut = (0..end).min_by(|a, b| cost(a).total_cmp(&cost(b))).expect("there are sizes");
            places.insert(0, cut);
        }
        places.insert(0, 0);
        places
    }

    fn breakpoint(&self, line: usize, places: &[usize]) -> Breakpoint {
        let lines = places.len() - 1;
        let cut = places[line];
        // Costs of the best lines if this line ends at each size.
        let (before, after) = (self.before(line), self.after(lines - line));
        let costs: Vec<f64> = before.iter().zip(&after).map(|(before, after)| before + after).collect();
        let as_good = |place: &usize| costs[*place] <= costs[cut] + LIKELIHOOD;
        let least = (1..=cut).find(as_good).unwrap_or(cut);
        let most = (cut..self.sizes.len()).rev().find(as_good).unwrap_or(cut);
        let old: Vec<Line> = self.lines(places[line - 1], cut).map(|(_, line)| line).collect();
        let new: Vec<Line> = self.lines(cut, places[line + 1]).map(|(_, line)| line).collect();
        let first = self.sizes[cut];
        let total = |lines: &[Line]| {
            let times = lines.iter().map(|line| line.at(first));
            times.sum::<f64>() / lines.len().max(1) as f64
        };
        Breakpoint {
            last: self.sizes[cut - 1],
            first,
            low: self.sizes[least - 1],
            high: self.sizes[most],
            jump: total(&new) / total(&old),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of `lines`, each from its size on, with a scatter of 1 %.
    fn times(sizes: impl Iterator<Item = u64>, lines: &[(u64, f64, f64)]) -> Series {
        let time = |(index, bytes): (usize, u64)| {
            let (_, start, slope) = lines.iter().rfind(|line| line.0 <= bytes).unwrap();
            let noise = [1.0, 1.008, 0.995, 0.99, 1.004][index % 5];
            (bytes, (start + slope * bytes as f64) * noise, 0.004)
        };
        sizes.enumerate().map(time).collect()
    }

    fn powers() -> impl Iterator<Item = u64> {
        (0..23).map(|log| 1 << log)
    }

    #[test]
    fn one_line_has_no_breakpoint() {
        assert!(find(&[times(powers(), &[(0, 50e-6, 8e-9)])]).is_empty());
        assert!(find(&[times(powers().take(5), &[(0, 1e-6, 1e-9), (4, 1.0, 1.0)])]).is_empty(), "too few sizes");
        assert!(find(&[]).is_empty());
    }

    /// A jump of 40 us after 64 KiB; the bytes themselves need 65 us at 1 GB/s.
    #[test]
    fn a_jump_is_found_where_it_is() {
        let found = find(&[times(powers(), &[(0, 50e-6, 1e-9), ((64 << 10) + 1, 90e-6, 1e-9)])]);
        let [change] = &found[..] else { panic!("{found:?}") };
        assert_eq!((change.last, change.first), (64 << 10, 128 << 10));
        assert!(change.low <= 64 << 10 && change.high >= 128 << 10 && change.high <= 256 << 10, "{change:?}");
        // (90 + 131) / (50 + 131)
        assert!((change.jump / (221.0 / 181.0) - 1.0).abs() < 0.03, "{change:?}");
    }

    /// From 300 kB on a third of the slope and a little more at the start, as for NCCL's LL and Simple; two series
    /// change together.
    #[test]
    fn a_bend_is_found_in_all_series() {
        let sizes = || (8..30).map(|log| 1 << log);
        let lines = |factor: f64| {
            times(sizes(), &[(0, factor * 15e-6, factor * 32e-12), (300_000, factor * 20e-6, factor * 8e-12)])
        };
        let found = find(&[lines(1.0), lines(2.0)]);
        let [change] = &found[..] else { panic!("{found:?}") };
        assert!(change.low <= 300_000 && 300_000 <= change.high && change.high <= 2 << 20, "{change:?}");
    }

    /// A single size with a disturbed median is no change.
    #[test]
    fn an_outlier_is_no_breakpoint() {
        let mut series = times(powers(), &[(0, 50e-6, 8e-9)]);
        series[12].1 *= 1.6;
        assert!(find(&[series]).is_empty());
    }
}
