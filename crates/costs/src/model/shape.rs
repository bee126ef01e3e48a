//! Owns the coordinates of operators: the sizes along which a family's cost changes, and the work that they imply.

use uniference_formats::devices::{self, DeviceKind};
use uniference_sim::device::{Elements, Family, Operator, Precision, Rates, RowKind};
use uniference_sim::time::{Bytes, SimDuration};

/// Binary logarithms of up to four sizes.
pub(super) type Point = [f64; 4];

/// Group of families whose sizes have the same meaning, so that one family may stand in for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    /// Batch, rows, columns, terms.
    Product,
    /// Heads, queries, keys, width.
    Attention,
    /// Rows, and bytes of a row: they decide whether a row fits a multiprocessor's memory.
    Rows,
    /// Bytes moved: elementwise operators are bound by memory traffic.
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

    /// Coordinates of an operator with these sizes, whose elements have `size` bytes.
    ///
    /// Attention with one query per sequence computes query heads that share KV heads together, as they read the same
    /// keys. Its number of heads is that of the KV heads, which follows from the bytes.
    pub(super) fn point(self, dimensions: [u64; 4], bytes: u64, size: f64) -> Point {
        let mut sizes = dimensions.map(|size| size.max(1) as f64);
        match self {
            Shape::Flat => sizes = [bytes.max(1) as f64, 1.0, 1.0, 1.0],
            Shape::Rows => sizes[1] *= size,
            Shape::Attention if dimensions[1] == 1 => {
                let [heads, _, keys, width] = sizes;
                sizes[0] = ((bytes as f64 / (2.0 * size * width) - heads) / keys).clamp(1.0, heads);
            }
            _ => {}
        }
        sizes.map(libm::log2)
    }

    /// Distance in octaves between the knots of the efficiency's interpolation. With four sizes not every octave is a
    /// knot, except along the width of attention's heads.
    pub(super) fn step(self) -> Point {
        match self {
            Shape::Product => [2.0; 4],
            Shape::Attention => [2.0, 2.0, 2.0, 1.0],
            Shape::Rows | Shape::Flat => [1.0; 4],
        }
    }

    /// Squared distance in octaves between two points. Each head width of attention has its own kernels, so rows of
    /// another width predict little.
    pub(super) fn distance(self, a: &Point, b: &Point) -> f64 {
        let width = if self == Shape::Attention { WIDTH } else { 1.0 };
        let apart = |axis: usize| (a[axis] - b[axis]) * if axis == 3 { width } else { 1.0 };
        (0..self.axes()).map(|axis| apart(axis).powi(2)).sum()
    }

    /// The point at which each multiprocessor has as much work on a device with 2 to the power of `units` times as many
    /// of them. The reduced dimension of a GEMM and the columns of rows are computed within one multiprocessor.
    pub(super) fn spread_over(self, point: &Point, units: f64) -> Point {
        let [a, b, c, d] = *point;
        match self {
            Shape::Product => [a, b + units / 2.0, c + units / 2.0, d],
            Shape::Attention | Shape::Rows | Shape::Flat => [a + units, b, c, d],
        }
    }

    /// Operations and bytes of an operator of these sizes, as the family's plainest member performs it, with elements
    /// of `size` bytes.
    pub(super) fn work(self, point: &Point, size: f64) -> (f64, f64) {
        let [a, b, c, d] = point.map(libm::exp2);
        match self {
            Shape::Product => (2.0 * a * b * c * d, size * a * (b * d + d * c + b * c)),
            Shape::Attention => (4.0 * a * b * c * d, 2.0 * size * a * d * (b + c)),
            Shape::Rows => (0.0, 2.0 * a * b),
            Shape::Flat => (0.0, a),
        }
    }

    /// Whether members of the family differ in work at equal sizes. Examples: causal attention, keys shared by heads,
    /// and among operators along rows gradients, which read two tensors or more, and sums, which write next to nothing.
    pub(super) fn varies(self, family: &str) -> bool {
        self == Shape::Attention
            || family.starts_with("convolution")
            || self == Shape::Rows && (family.ends_with("_backward") || family == "reduction")
    }
}

/// Parallelism of a device: the units that share the work of one operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Grain {
    /// Number of multiprocessors, if it is known.
    pub(super) units: Option<f64>,
    /// Whether the device is a CPU.
    is_processor: bool,
}

/// Roofline of a device: arithmetic rate for one type, memory rate, and grain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Roof {
    peak: f64,
    memory: f64,
    grain: Grain,
    /// Fraction of the peak that large products reach.
    reached: f64,
}

/// Fraction of the peak that large products reach.
const PEAK: f64 = 0.8;
/// Fraction of the peak that large products of 8-bit numbers reach, which the power limit slows down: the fastest of the
/// shipped GEMMs with scales reach 0.64 to 0.68 on an H100 and an H200.
const PEAK_8: f64 = 0.67;
/// Fraction of the memory's rate that long streams reach on a GPU: 0.87 to 0.92 in the shipped elementwise rows of more
/// than 10 GB on A100 and V100, 0.88 to 0.92 for copies, fills and additions on an H100.
pub(super) const STREAM: f64 = 0.9;
/// Fraction of the memory's rate that long streams reach on a CPU.
const STREAM_CPU: f64 = 0.75;
/// Keys per query, at each edge of the mask, that fused attention computes in vain: it skips whole tiles only. Fitted to
/// the ratio of causal to full attention of FlashAttention 2 on an H100 (512 to 16,384 tokens, width 128): the rest of
/// the ratio is 0.92 to 0.93 at all lengths.
const EDGE: f64 = 128.0;
/// Half a GEMM tile of a GPU, which the threads of a multiprocessor compute together, in rows, columns or reduced terms:
/// the average waste along each dimension.
const TILE: f64 = 32.0;
/// Half a GEMM tile of a CPU, which fits the registers of one core: about 8 rows by 8 to 16 columns (Goto and van de
/// Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 2008, section 6).
const REGISTERS: f64 = 4.0;
/// This many octaves of another size are as far as one octave of attention's head width.
const WIDTH: f64 = 4.0;
/// Queries of one head that fused attention computes on one multiprocessor, over all keys in sequence (Dao,
/// "FlashAttention-2", 2023, section 3.2).
const QUERIES: f64 = 128.0;

impl Grain {
    /// The grain of a named device, or of a device with known rates only: without launch overhead it is a CPU.
    pub(super) fn of(name: Option<&str>, rates: &Rates) -> Grain {
        let known = name.and_then(|name| devices::find(name).ok().filter(|known| known.name == name));
        let is_processor = known.map_or(rates.launch == SimDuration::ZERO, |known| known.kind == DeviceKind::Cpu);
        Grain { units: known.and_then(|known| known.units), is_processor }
    }
}

impl Roof {
    pub(super) fn of(rates: &Rates, precision: Precision, grain: Grain) -> Roof {
        let reached = if matches!(precision, Precision::Float8 | Precision::Int8) { PEAK_8 } else { PEAK };
        Roof { peak: rates.peaks.serving(precision).0, memory: rates.memory, grain, reached }
    }

    /// Seconds by the bare roofline.
    pub(super) fn bare(&self, (flops, bytes): (f64, f64)) -> f64 {
        (flops / self.peak).max(bytes / self.memory)
    }

    /// Ratio of this roofline's arithmetic rate to another's.
    pub(super) fn speed_over(&self, other: &Roof) -> f64 {
        self.peak / other.peak
    }

    /// Seconds of arithmetic at the full rate.
    pub(super) fn arithmetic(&self, flops: f64) -> f64 {
        flops / self.peak
    }

    /// Seconds by the roofline at the usual efficiency of kernels; they do not fall when a size or the work grows.
    ///
    /// GEMMs reach 0.8 of the peak, less if a dimension is small: work is tiled, and half a tile is wasted on average,
    /// except along a dimension of 1, which other kernels compute. Attention with few heads and queries leaves
    /// multiprocessors idle, except with one query, where the keys are split instead; that tile has the query of each
    /// head that shares its keys.
    pub(super) fn usual(&self, shape: Shape, point: &Point, (flops, bytes): (f64, f64)) -> f64 {
        let Grain { units, is_processor } = self.grain;
        let [a, b, c, d] = point.map(libm::exp2);
        let half_tile = if is_processor { REGISTERS } else { TILE };
        let side = |side: f64| 1.0 + half_tile / side;
        let (waste, idle) = match shape {
            // Batch, rows, columns, terms.
            Shape::Product if is_processor => (side(b) * side(c) * side(d), 1.0),
            Shape::Product => ([b, c, d].map(|size| if size > 1.0 { side(size) } else { 1.0 }).iter().product(), 1.0),
            // Heads, queries, keys, width.
            Shape::Attention if point[1] == 0.0 => {
                let queries = (flops / (4.0 * a * c * d)).max(1.0);
                (side(queries) * side(c) * side(d), 1.0)
            }
            Shape::Attention => {
                let idle = units.map_or(1.0, |units| (units / (a * (b / QUERIES).max(1.0))).max(1.0));
                (side(b) * side(c) * side(d) * masked(flops, a * b * c * d, c), idle)
            }
            Shape::Rows | Shape::Flat => (1.0, 1.0),
        };
        let stream = if is_processor { STREAM_CPU } else { STREAM };
        (flops / self.peak * waste * idle / self.reached).max(bytes / self.memory / stream)
    }
}

/// Ratio of computed to visible pairs of masked attention with these operations. All pairs, times the width, would be
/// 4 operations each in a forward pass and 10 in a backward pass: a causal backward pass has 5. A little more than 4
/// are the lengths of sequences, rounded.
fn masked(flops: f64, all: f64, keys: f64) -> f64 {
    let share = flops / (4.0 * all);
    let share = if share > 1.1 { share / 2.5 } else { share };
    if share > 0.0 && share < 1.0 { (share + EDGE / keys).min(1.0) / share } else { 1.0 }
}

/// Seconds of an unmeasured operator, on a device with known rates only.
pub(super) fn by_rates(rates: &Rates, grain: Grain, operator: &Operator) -> f64 {
    let Bytes(bytes) = operator.bytes();
    // A sort reads a row once per binary digit of its length.
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
