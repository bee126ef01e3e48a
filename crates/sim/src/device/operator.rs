//! Owns operators, described by the properties that determine their cost: kind of computation, sizes, element types,
//! and bytes moved.
//!
//! Callers map PyTorch's operators to these.

use crate::dtype::DType;
use crate::time::Bytes;
use serde::{Deserialize, Serialize};

/// One operation on tensors, described by the properties that determine its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operator {
    /// Resource of the device that the operator occupies.
    pub resource: Resource,
    /// Kind of computation, and its sizes.
    pub family: Family,
    /// Type of the elements; `None`: unknown.
    pub elements: Option<Elements>,
    /// Number of floating-point operations.
    pub flops: u64,
    /// Bytes that the operator reads from memory.
    pub read: Bytes,
    /// Bytes that the operator writes to memory.
    pub written: Bytes,
}

impl Operator {
    /// An operator with a known amount of work and unknown kind.
    pub const fn unspecified(resource: Resource, flops: u64, bytes: Bytes) -> Operator {
        let family = Family::Unspecified;
        Operator { resource, family, elements: None, flops, read: bytes, written: Bytes(0) }
    }

    /// Bytes that the operator reads and writes.
    pub const fn bytes(&self) -> Bytes {
        Bytes(self.read.0.saturating_add(self.written.0))
    }
}

/// Type of an operator's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Elements {
    /// Numbers of this type.
    Of(DType),
    /// `float32`, of which tensor cores multiply the first 10 bits of the mantissa (TF32).
    Tf32,
}

impl Elements {
    /// PyTorch's name of the type, or of this way of multiplying (`torch.backends.cuda.matmul.fp32_precision`).
    pub const fn name(self) -> &'static str {
        match self {
            Elements::Of(dtype) => dtype.name(),
            Elements::Tf32 => "tf32",
        }
    }

    /// The elements whose [`Elements::name`] is `name`.
    pub fn from_name(name: &str) -> Option<Elements> {
        if name == Elements::Tf32.name() { Some(Elements::Tf32) } else { DType::from_name(name).map(Elements::Of) }
    }

    /// Bytes of one element in memory.
    pub const fn size(self) -> u64 {
        match self {
            Elements::Of(dtype) => dtype.size(),
            Elements::Tf32 => DType::Float32.size(),
        }
    }
}

impl From<DType> for Elements {
    fn from(dtype: DType) -> Elements {
        Elements::Of(dtype)
    }
}

/// Resource of a device that an operator occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Resource {
    /// The CPU that runs the program.
    Host,
    /// The processor that computes tensors, as a GPU.
    Accelerator,
    /// The engine that copies between host memory and device memory.
    CopyEngine,
    /// A single multiprocessor: so small a part of the accelerator that concurrent work is not slowed down.
    Multiprocessor,
}

/// A kind of computation whose instances differ only in their sizes: one cost model serves them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Unknown kind: only the amount of work is known.
    Unspecified,
    /// `batch` GEMMs of an `m x k` matrix with a `k x n` one.
    Gemm {
        /// Number of GEMMs.
        batch: u64,
        /// Rows of the result.
        m: u64,
        /// Columns of the result.
        n: u64,
        /// Length of the sums.
        k: u64,
        /// Layout of the two factors in memory.
        layout: Layout,
    },
    /// A convolution as its equivalent GEMM (implicit GEMM): an output pixel is a row, an output channel a column, and
    /// each sum goes over the kernel and the input channels of a group.
    Convolution {
        /// Forward, or one of the two gradients.
        pass: Pass,
        /// Number of groups of channels.
        groups: u64,
        /// Output pixels of the whole batch.
        m: u64,
        /// Output channels of a group.
        n: u64,
        /// Kernel elements times input channels of a group.
        k: u64,
    },
    /// Scaled dot-product attention.
    Attention {
        /// Forward, or the gradients of queries, keys and values.
        pass: Pass,
        /// Sequences times query heads.
        heads: u64,
        /// Queries of a sequence.
        queries: u64,
        /// Keys that a query can attend to.
        keys: u64,
        /// Elements of a query; the mean if values have other sizes.
        width: u64,
        /// Whether a query attends only to keys up to its own position.
        causal: bool,
    },
    /// Computation along each row of a matrix.
    Rows {
        /// The kind of computation.
        kind: RowKind,
        /// Forward, or backward.
        pass: Pass,
        /// Number of rows.
        rows: u64,
        /// Elements of a row.
        columns: u64,
    },
    /// Computation on each element separately.
    Flat {
        /// The kind of computation.
        kind: FlatKind,
        /// Number of written elements, over all tensors.
        elements: u64,
    },
}

/// Layout of a GEMM's factors in memory. `N`: row-major; `T`: column-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the letters say it: the left factor's, then the right one's
pub enum Layout {
    NN,
    NT,
    TN,
    TT,
}

/// Forward pass, or the gradient that an operator computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// The forward pass: no gradient.
    Forward,
    /// The gradient of the input; for operators without weights, the whole backward pass.
    Backward,
    /// The gradient of the weights.
    Weights,
}

/// Computation along rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowKind {
    /// Layer, RMS, batch and group normalization.
    Normalization,
    /// Softmax and its logarithm.
    Softmax,
    /// A row becomes one element: sums, means, norms, maxima, losses.
    Reduction,
    /// A row becomes as many elements: cumulative sums.
    Scan,
    /// Sorting, and the k largest.
    Sort,
}

/// Computation on elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlatKind {
    /// Arithmetic on one tensor or many, broadcast to one shape.
    Elementwise,
    /// Copies, casts, fills, concatenation.
    Copy,
    /// Rows or elements fetched by index: embedding, gather.
    Gather,
    /// Rows or elements put by index: the gradient of an embedding, scatter.
    Scatter,
    /// Tensors filled with random numbers.
    Random,
    /// An optimizer's step over all of its tensors in one launch.
    Optimizer,
}

/// The dimensions of an operator in the order of its family: name and size.
pub type Dimensions = [Option<(&'static str, u64)>; 4];

impl Family {
    /// Name in reports and databases.
    pub const fn name(&self) -> &'static str {
        match self {
            Family::Unspecified => "unspecified",
            Family::Gemm { .. } => "gemm",
            Family::Convolution { pass: Pass::Forward, .. } => "convolution",
            Family::Convolution { pass: Pass::Backward, .. } => "convolution_backward",
            Family::Convolution { pass: Pass::Weights, .. } => "convolution_weights",
            Family::Attention { pass: Pass::Forward, .. } => "attention",
            Family::Attention { .. } => "attention_backward",
            Family::Rows { kind, pass: Pass::Forward, .. } => match kind {
                RowKind::Normalization => "normalization",
                RowKind::Softmax => "softmax",
                RowKind::Reduction => "reduction",
                RowKind::Scan => "scan",
                RowKind::Sort => "sort",
            },
            Family::Rows { kind, .. } => match kind {
                RowKind::Normalization => "normalization_backward",
                RowKind::Softmax => "softmax_backward",
                RowKind::Reduction => "reduction_backward",
                RowKind::Scan => "scan_backward",
                RowKind::Sort => "sort_backward",
            },
            Family::Flat { kind, .. } => match kind {
                FlatKind::Elementwise => "elementwise",
                FlatKind::Copy => "copy",
                FlatKind::Gather => "gather",
                FlatKind::Scatter => "scatter",
                FlatKind::Random => "random",
                FlatKind::Optimizer => "optimizer",
            },
        }
    }

    /// Sizes along which the operator's cost is interpolated.
    pub const fn dimensions(&self) -> Dimensions {
        match *self {
            Family::Unspecified => [None; 4],
            Family::Gemm { batch, m, n, k, .. } => {
                [Some(("batch", batch)), Some(("m", m)), Some(("n", n)), Some(("k", k))]
            }
            Family::Convolution { groups, m, n, k, .. } => {
                [Some(("groups", groups)), Some(("m", m)), Some(("n", n)), Some(("k", k))]
            }
            Family::Attention { heads, queries, keys, width, .. } => {
                [Some(("heads", heads)), Some(("queries", queries)), Some(("keys", keys)), Some(("width", width))]
            }
            Family::Rows { rows, columns, .. } => [Some(("rows", rows)), Some(("columns", columns)), None, None],
            Family::Flat { elements, .. } => [Some(("elements", elements)), None, None, None],
        }
    }
}

impl Layout {
    /// Name, as `nt`.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::NN => "nn",
            Layout::NT => "nt",
            Layout::TN => "tn",
            Layout::TT => "tt",
        }
    }
}
