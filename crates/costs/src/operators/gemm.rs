//! Owns GEMMs, their sizes and their layouts.

use super::call::{Call, footprint, product};
use super::{Part, flops};
use uniference_formats::operators::Tensor;
use uniference_sim::device::{Elements, Family, Layout};
use uniference_sim::time::Bytes;

/// Suffix of the variant of GEMMs whose factors have a scale per block of a row: they run other kernels.
pub(crate) const BLOCKS: &str = "_block";

/// Suffix of the variant of GEMMs with a scale per row, which run CUTLASS kernels; GEMMs with a single scale run
/// cuBLAS's.
pub(crate) const ROWS: &str = "_row";

/// Last suffix of the variant of GEMMs with expert weights: one kernel computes the GEMMs of all experts on the tokens
/// that were routed to them, gathering their rows.
pub(crate) const EXPERTS: &str = "_experts";

/// The GEMM that a call amounts to; `None`: it is none, or its arguments are invalid.
pub(super) fn describe(call: Call<'_>) -> Option<Vec<Part>> {
    let (left, right) = match call.name {
        "mm" | "bmm" | "matmul" | "_int_mm" | "_scaled_mm" | "_scaled_mm_v2" => (0, 1),
        "_grouped_mm" | "_scaled_grouped_mm" | "_scaled_grouped_mm_v2" => return grouped(call),
        "addmm" | "baddbmm" | "addbmm" | "_addmm_activation" | "sparse_addmm" => (1, 2),
        "linear" | "mkldnn_linear" | "_linear_pointwise" | "_mkl_linear" => return linear(call),
        "mv" => return vector(call, 0, 1),
        "addmv" => return vector(call, 1, 2),
        _ => return None,
    };
    let (a, b) = (call.tensor(left)?, call.tensor(right)?);
    let (a_sizes, b_sizes) = (matrix(a)?, matrix(b)?);
    let layout = layout(orientation(a)?, orientation(b)?);
    // A batch on one side only becomes rows of one matrix.
    let (batch, m) = match (a.sizes.len(), b.sizes.len()) {
        (more, 2) if more > 2 => (1, a_sizes.0.saturating_mul(product(&a.sizes[..more - 2]))),
        (_, more) => (product(&b.sizes[..more - 2]).max(product(&a.sizes[..a.sizes.len() - 2])), a_sizes.0),
    };
    // The dtype of an 8-bit GEMM is that of the factors, whatever the bias and the scales are.
    let mut part = Gemm { batch, m, n: b_sizes.1, k: a_sizes.1, layout }.part(call, a);
    if call.name.starts_with("_scaled_mm") {
        let scales = |at: usize| call.definition.arguments.get(at).and_then(|scale| scale.tensors().next());
        part.variant += match [2, 3].map(|at| scales(at).map_or(1, Tensor::elements)) {
            [of_a, _] if of_a > m => BLOCKS,
            [1, 1] => "",
            _ => ROWS,
        };
    }
    Some(vec![part])
}

/// An 8-bit GEMM with scales, by the two factors and the scales of the first: CUTLASS computes it even if the scales
/// are single ones.
pub(super) fn scaled(call: Call<'_>, [a, b, scales]: [&Tensor; 3], read: Bytes, result: &Tensor) -> Option<Part> {
    let ((m, k), (_, n)) = (matrix(a)?, matrix(b)?);
    let gemm = Gemm { batch: 1, m, n, k, layout: layout(orientation(a)?, orientation(b)?) };
    let mut part = gemm.part(call, a);
    (part.operator.read, part.operator.written) = (read, footprint(result));
    part.variant += if scales.elements() > m { BLOCKS } else { ROWS };
    Some(part)
}

/// Sizes of a GEMM before its bytes are known.
#[derive(Clone, Copy)]
pub(super) struct Gemm {
    pub(super) batch: u64,
    pub(super) m: u64,
    pub(super) n: u64,
    pub(super) k: u64,
    pub(super) layout: Layout,
}

impl Gemm {
    /// The GEMM's part: it has the call's memory traffic, and computes in the element type of `factor`.
    fn part(self, call: Call<'_>, factor: &Tensor) -> Part {
        let mut part = Part::of(call, self.family(), self.flops());
        part.operator.elements = factor.dtype.dtype().map(Elements::Of);
        part
    }

    pub(super) fn family(self) -> Family {
        let Gemm { batch, m, n, k, layout } = self;
        Family::Gemm { batch, m, n, k, layout }
    }

    /// One multiplication and one addition for each of the `k` terms of each element.
    pub(super) fn flops(self) -> u64 {
        flops(&[2, self.batch, self.m, self.n, self.k])
    }
}

/// Rows and columns of a tensor.
fn matrix(tensor: &Tensor) -> Option<(u64, u64)> {
    let [.., rows, columns] = tensor.sizes.as_slice() else { return None };
    Some((*rows, *columns))
}

/// Whether a matrix is row-major. A matrix that is neither row-major nor column-major is first copied to row-major
/// order.
fn orientation(tensor: &Tensor) -> Option<bool> {
    let ([.., _, columns], [.., down, along]) = (tensor.sizes.as_slice(), tensor.strides.as_slice()) else {
        return None;
    };
    Some(*along == 1 || *columns <= 1 || *down != 1)
}

const fn layout(left_in_rows: bool, right_in_rows: bool) -> Layout {
    match (left_in_rows, right_in_rows) {
        (true, true) => Layout::NN,
        (true, false) => Layout::NT,
        (false, true) => Layout::TN,
        (false, false) => Layout::TT,
    }
}

/// `input @ weight^T + bias`, the weight being `out x in`.
fn linear(call: Call<'_>) -> Option<Vec<Part>> {
    let (input, weight) = (call.tensor(0)?, call.tensor(1)?);
    let (n, k) = matrix(weight)?;
    let m = input.elements().checked_div(k)?;
    // The GEMM uses the transposed weight.
    let layout = layout(true, !orientation(weight)?);
    Some(vec![Gemm { batch: 1, m, n, k, layout }.part(call, input)])
}

fn vector(call: Call<'_>, matrix_at: usize, vector_at: usize) -> Option<Vec<Part>> {
    let factor = call.tensor(matrix_at)?;
    let ((m, k), _) = (matrix(factor)?, call.tensor(vector_at)?);
    let layout = layout(orientation(factor)?, true);
    Some(vec![Gemm { batch: 1, m, n: 1, k, layout }.part(call, factor)])
}

/// Grouped GEMMs over rows, columns or the reduced dimension, whose group borders are values: equal groups are assumed,
/// which keeps the sum.
fn grouped(call: Call<'_>) -> Option<Vec<Part>> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    let ((rows, terms), (_, columns)) = (matrix(a)?, matrix(b)?);
    let layout = layout(orientation(a)?, orientation(b)?);
    let groups =
        call.results().chain([a, b]).find(|tensor| tensor.sizes.len() == 3).map_or(1, |tensor| tensor.sizes[0]);
    let each = |size: u64| size.div_ceil(groups.max(1));
    let (batch, m, n, k) = match (a.sizes.len(), b.sizes.len()) {
        (3, 3) => (groups, rows, columns, terms),
        (2, 3) => (groups, each(rows), columns, terms),
        (3, 2) => (groups, rows, each(columns), terms),
        _ => (groups, rows, columns, each(terms)),
    };
    let whole = match (a.sizes.len(), b.sizes.len()) {
        (3, 3) => flops(&[2, groups, rows, columns, terms]),
        _ => flops(&[2, rows, columns, terms]),
    };
    let mut part = Gemm { batch, m, n, k, layout }.part(call, a);
    part.operator.flops = whole;
    Some(vec![part])
}
