//! Owns operators by what determines their cost: what they compute, on which sizes and elements, and how much they move.
//!
//! Which operator of PyTorch is which of these is the business of whoever describes it.

use crate::dtype::DType;
use crate::time::Bytes;
use serde::{Deserialize, Serialize};

/// One operation on tensors, by what determines its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operator {
    /// The resource that it runs on.
    pub resource: Resource,
    /// What it computes, and on which sizes.
    pub family: Family,
    /// What it computes with; `None`: not known.
    pub elements: Option<Elements>,
    /// Number of floating-point operations.
    pub flops: u64,
    /// Bytes that it reads from memory.
    pub read: Bytes,
    /// Bytes that it writes to memory.
    pub written: Bytes,
}

impl Operator {
    /// An operator of which only the amount of work is known.
    pub const fn unspecified(resource: Resource, flops: u64, bytes: Bytes) -> Operator {
        let family = Family::Unspecified;
        Operator { resource, family, elements: None, flops, read: bytes, written: Bytes(0) }
    }

    /// All that it reads from and writes to memory.
    pub const fn bytes(&self) -> Bytes {
        Bytes(self.read.0.saturating_add(self.written.0))
    }
}

/// What an operator computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Elements {
    /// Numbers of a type.
    Of(DType),
    /// `float32`, of which tensor cores multiply the first 10 bits of the mantissa (TF32).
    Tf32,
}

impl Elements {
    /// As PyTorch calls the type, and this way of multiplying (`torch.backends.cuda.matmul.fp32_precision`).
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

    /// Bytes of one of them in memory.
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

/// What of a device an operator keeps busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Resource {
    /// The processor that runs the program.
    Host,
    /// What tensors are computed on.
    Accelerator,
    /// What copies between the memories of both.
    CopyEngine,
    /// So little of what tensors are computed on that nothing which runs beside it is slowed down.
    Multiprocessor,
}

/// A kind of computation whose instances differ in their sizes only: one model of the cost serves them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Not known: only the amount of work is.
    Unspecified,
    /// `batch` products of an `m x k` matrix with a `k x n` one.
    Gemm {
        /// Number of products.
        batch: u64,
        /// Rows of the result.
        m: u64,
        /// Columns of the result.
        n: u64,
        /// Length of the sums.
        k: u64,
        /// How the factors lie in memory.
        layout: Layout,
    },
    /// A convolution, as the matrix product that it amounts to (implicit GEMM): an output pixel is a row, an output channel a column, and
    /// each sum goes over the kernel and the input channels of a group.
    Convolution {
        /// Which of its three products.
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
        /// Keys that are there for a query to look at.
        keys: u64,
        /// Elements of a query; where values have other sizes, the mean.
        width: u64,
        /// Whether a query sees only the keys up to its own position.
        causal: bool,
    },
    /// Something done along each row of a matrix.
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
    /// Something done with each element by itself.
    Flat {
        /// The kind of computation.
        kind: FlatKind,
        /// Elements that are written; of several tensors all of them.
        elements: u64,
    },
}

/// How the factors of a matrix product lie in memory. `N`: row after row; `T`: column after column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the letters say it: the left factor's, then the right one's
pub enum Layout {
    NN,
    NT,
    TN,
    TT,
}

/// Which gradient, if any, an operator computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// None: the forward pass.
    Forward,
    /// The gradient of the input; for what has no weights, the whole backward pass.
    Backward,
    /// The gradient of the weights.
    Weights,
}

/// What is done along rows.
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

/// What is done with elements.
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
    /// As reports and databases write it.
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

    /// The sizes along which its cost is interpolated.
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
    /// `nt`.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::NN => "nn",
            Layout::NT => "nt",
            Layout::TN => "tn",
            Layout::TT => "tt",
        }
    }
}
