//! Owns the coordinates of operators: the sizes along which a family's cost changes, and how much work they stand for.

use uniference_formats::devices::{self, DeviceKind};
use uniference_sim::device::{Elements, Family, Operator, Precision, Rates, RowKind};
use uniference_sim::time::{Bytes, SimDuration};

/// Binary logarithms of up to four sizes.
pub(super) type Point = [f64; 4];

/// Families whose sizes mean alike, so that one may stand in for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    /// Batch, rows, columns, terms.
    Product,
    /// Heads, queries, keys, width.
    Attention,
    /// Rows and columns.
    Rows,
    /// Bytes moved: of what is done to each element, the memory traffic decides.
    Flat,
}

impl Shape {
    pub(super) fn of(family: &Family) -> Option<Shape> {
        match family {
            Family::Gemm { .. } | Family::Convolution { .. } => Some(Shape::Product),
            Family::Attention { .. } => Some(Shape::Attention),
            Family::Rows { .. } => Some(Shape::Rows),
            Family::Flat { .. } => Some(Shape::Flat),
            Family::Unspecified => None,
        }
    }

    pub(super) fn axes(self) -> usize {
        match self {
            Shape::Product | Shape::Attention => 4,
            Shape::Rows => 2,
            Shape::Flat => 1,
        }
    }

    /// The place of an operator with these sizes, whose elements have `size` bytes.
    ///
    /// Of attention of one query, heads that share keys are computed together, as they read the same: its heads are those of the keys, which the
    /// bytes tell.
    pub(super) fn point(self, dimensions: [u64; 4], bytes: u64, size: f64) -> Point {
        let mut sizes = dimensions.map(|size| size.max(1) as f64);
        match self {
            Shape::Flat => sizes = [bytes.max(1) as f64, 1.0, 1.0, 1.0],
            Shape::Attention if dimensions[1] == 1 => {
                let [heads, _, keys, width] = sizes;
                sizes[0] = ((bytes as f64 / (2.0 * size * width) - heads) / keys).clamp(1.0, heads);
            }
            _ => {}
        }
        sizes.map(libm::log2)
    }

    /// How many octaves apart the places are between which the efficiency is interpolated: of four sizes, not at each, but at each width of
    /// attention's heads.
    pub(super) fn step(self) -> Point {
        match self {
            Shape::Product => [2.0; 4],
            Shape::Attention => [2.0, 2.0, 2.0, 1.0],
            Shape::Rows | Shape::Flat => [1.0; 4],
        }
    }

    /// The square of how many octaves two places are apart. Each width of attention's heads has kernels of its own, so that rows of another one say
    /// little.
    pub(super) fn distance(self, a: &Point, b: &Point) -> f64 {
        let width = if self == Shape::Attention { WIDTH } else { 1.0 };
        let apart = |axis: usize| (a[axis] - b[axis]) * if axis == 3 { width } else { 1.0 };
        (0..self.axes()).map(|axis| apart(axis).powi(2)).sum()
    }

    /// The place at which a device with 2 to the power of `units` times as many multiprocessors gives each of them as much to do. The terms of
    /// products and the columns of rows are computed inside of one.
    pub(super) fn spread_over(self, point: &Point, units: f64) -> Point {
        let [a, b, c, d] = *point;
        match self {
            Shape::Product => [a, b + units / 2.0, c + units / 2.0, d],
            Shape::Attention | Shape::Rows | Shape::Flat => [a + units, b, c, d],
        }
    }

    /// The work of an operator that has just these sizes, as the family's plainest member does it, with elements of `size` bytes.
    pub(super) fn work(self, point: &Point, size: f64) -> (f64, f64) {
        let [a, b, c, d] = point.map(libm::exp2);
        match self {
            Shape::Product => (2.0 * a * b * c * d, size * a * (b * d + d * c + b * c)),
            Shape::Attention => (4.0 * a * b * c * d, 2.0 * size * a * d * (b + c)),
            Shape::Rows => (0.0, 2.0 * size * a * b),
            Shape::Flat => (0.0, a),
        }
    }

    /// Whether members of the family differ in how much they do at the same sizes, such as causal attention and keys shared by heads, or
    /// along rows gradients, which read two tensors or more, and sums, which write next to nothing.
    pub(super) fn varies(self, family: &str) -> bool {
        self == Shape::Attention
            || family.starts_with("convolution")
            || self == Shape::Rows && (family.ends_with("_backward") || family == "reduction")
    }
}

/// The parts in which a device does the work of one operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Grain {
    /// Its multiprocessors, if their number is known.
    pub(super) units: Option<f64>,
    /// Half a tile of a product, in rows, columns or terms: what is wasted of each side on average.
    tile: f64,
}

/// A device's arithmetic rate for one type, its memory, and the parts in which it works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Roof {
    peak: f64,
    memory: f64,
    grain: Grain,
}

/// Fraction of the peak that large products reach.
const PEAK: f64 = 0.8;
/// Fraction of the memory's rate that long streams reach.
const STREAM: f64 = 0.75;
/// Half a tile of a GPU's products, which the threads of a multiprocessor compute together.
const TILE: f64 = 32.0;
/// Half a tile of a processor's products, which lies in the registers of one core: about 8 rows by 8 to 16 columns (Goto and van de Geijn,
/// "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 2008, section 6).
const REGISTERS: f64 = 4.0;
/// This many octaves of another size are as far as one octave of the width of attention's heads.
const WIDTH: f64 = 4.0;
/// Queries of one head that fused attention computes on one multiprocessor, for all keys one after the other (Dao, "FlashAttention-2", 2023,
/// section 3.2).
const QUERIES: f64 = 128.0;

impl Grain {
    /// Of a device by name, or of one of which only the rates are known: what has no overhead of launches is a processor.
    pub(super) fn of(name: Option<&str>, rates: &Rates) -> Grain {
        let known = name.and_then(|name| devices::find(name).ok().filter(|known| known.name == name));
        let processor = known.map_or(rates.launch == SimDuration::ZERO, |known| known.kind == DeviceKind::Cpu);
        Grain { units: known.and_then(|known| known.units), tile: if processor { REGISTERS } else { TILE } }
    }
}

impl Roof {
    pub(super) fn of(rates: &Rates, precision: Precision, grain: Grain) -> Roof {
        Roof { peak: rates.peaks.serving(precision).0, memory: rates.memory, grain }
    }

    /// Seconds at full speed.
    pub(super) fn bare(&self, (flops, bytes): (f64, f64)) -> f64 {
        (flops / self.peak).max(bytes / self.memory)
    }

    /// How many times as much arithmetic it does as another.
    pub(super) fn speed_over(&self, other: &Roof) -> f64 {
        self.peak / other.peak
    }

    /// Seconds of arithmetic at full speed.
    pub(super) fn arithmetic(&self, flops: f64) -> f64 {
        flops / self.peak
    }

    /// Seconds by the roofline with what kernels usually reach of it; it does not fall when a size or the work grows.
    ///
    /// Products reach 0.8 of the peak, less where a side is short: work is done in tiles, and half a tile is wasted on average. Streams
    /// reach 0.75 of the memory's rate. Fitted on the median error of the shipped products of matrices: 21 % against 40 % of the bare
    /// roofline. Attention of few heads and queries leaves multiprocessors idle, but for that of one query, whose keys are cut instead; its tile
    /// has the query of each head that shares its keys.
    pub(super) fn usual(&self, shape: Shape, point: &Point, (flops, bytes): (f64, f64)) -> f64 {
        let [heads, mut queries, keys, width] = point.map(libm::exp2);
        if shape == Shape::Attention && point[1] == 0.0 {
            queries = (flops / (4.0 * heads * keys * width)).max(1.0);
        }
        let sides = [queries, keys, width];
        let sides = if matches!(shape, Shape::Product | Shape::Attention) { &sides[..] } else { &[] };
        let waste: f64 = sides.iter().map(|side| 1.0 + self.grain.tile / side).product();
        let idle = match self.grain.units {
            Some(units) if shape == Shape::Attention && point[1] > 0.0 => {
                (units / (heads * (queries / QUERIES).max(1.0))).max(1.0)
            }
            _ => 1.0,
        };
        (flops / self.peak * waste * idle / PEAK).max(bytes / self.memory / STREAM)
    }
}

/// Seconds of an operator of which nothing was measured, on a device of which only the rates are known.
pub(super) fn by_rates(rates: &Rates, grain: Grain, operator: &Operator) -> f64 {
    let Bytes(bytes) = operator.bytes();
    // Sorting reads a row once for each binary digit of its length.
    let passes = match operator.family {
        Family::Rows { kind: RowKind::Sort, columns, .. } => libm::log2(columns.max(2) as f64),
        _ => 1.0,
    };
    let roof = Roof::of(rates, Precision::of(operator.elements), grain);
    let work = (operator.flops as f64, bytes as f64 * passes);
    let shape = Shape::of(&operator.family).unwrap_or(Shape::Flat);
    let size = operator.elements.map_or(1, Elements::size) as f64;
    let point = shape.point(crate::database::dimensions(&operator.family), bytes, size);
    rates.launch.as_secs_f64() + roof.usual(shape, &point, work)
}
