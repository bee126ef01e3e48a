//! Owns convolutions, and the GEMMs that they amount to.

use super::call::{Call, footprint, product, sum};
use super::{Part, flops};
use uniference_formats::operators::Tensor;
use uniference_sim::device::{Family, Pass};
use uniference_sim::time::Bytes;

pub(super) fn describe(call: Call<'_>) -> Option<Vec<Part>> {
    // Positions of `transposed` and `groups` in the schema; some kernels know only one kind.
    let (transposed, groups) = match call.name {
        "convolution" | "_convolution" | "convolution_overrideable" => (call.flag(6), call.int(8)),
        "cudnn_convolution" | "cudnn_convolution_relu" | "mkldnn_convolution" | "miopen_convolution" => (false, None),
        "_mkldnn_convolution" | "_convolution_pointwise" => (false, None),
        "cudnn_convolution_transpose" | "miopen_convolution_transpose" => (true, None),
        "_slow_conv2d_forward" | "slow_conv3d_forward" | "thnn_conv2d" | "slow_conv3d" => (false, Some(1)),
        "slow_conv_dilated2d" | "slow_conv_dilated3d" => (false, Some(1)),
        "slow_conv_transpose2d" | "slow_conv_transpose3d" => (true, Some(1)),
        "_conv_depthwise2d" | "conv_depthwise3d" => (false, None),
        "convolution_backward" | "convolution_backward_overrideable" => return backward(call),
        _ => return None,
    };
    let (input, weight) = (call.tensor(0)?, call.tensor(1)?);
    let output = call.result(0).or_else(|| call.outputs().next())?;
    let shape = Shape::new(input, weight, output, transposed, groups)?;
    Some(vec![Part::of(call, shape.family(Pass::Forward), shape.flops())])
}

/// Sizes of a convolution. A transposed convolution has those of the convolution whose gradient it is, and the same
/// GEMM.
struct Shape {
    groups: u64,
    pixels: u64,
    columns: u64,
    terms: u64,
}

impl Shape {
    /// Sizes from the tensors. Without `groups`, the number of groups follows from the channels, as a weight has only
    /// the channels of one group.
    fn new(input: &Tensor, weight: &Tensor, output: &Tensor, transposed: bool, groups: Option<i64>) -> Option<Shape> {
        let [outer, inner, kernel @ ..] = weight.sizes.as_slice() else { return None };
        // Without a batch dimension the channels come first.
        let dense = if transposed { input } else { output };
        let channels_at = dense.sizes.len().checked_sub(kernel.len() + 1)?;
        let narrow = if transposed { output } else { input };
        let groups = groups.and_then(|groups| u64::try_from(groups).ok());
        let groups =
            groups.unwrap_or_else(|| narrow.sizes.get(channels_at).map_or(1, |all| all / (*inner).max(1))).max(1);
        let pixels = product(&dense.sizes[..channels_at]).saturating_mul(product(&dense.sizes[channels_at + 1..]));
        Some(Shape { groups, pixels, columns: outer / groups, terms: inner.saturating_mul(product(kernel)) })
    }

    fn family(&self, pass: Pass) -> Family {
        let Shape { groups, pixels: m, columns: n, terms: k } = *self;
        Family::Convolution { pass, groups, m, n, k }
    }

    fn flops(&self) -> u64 {
        flops(&[2, self.groups, self.pixels, self.columns, self.terms])
    }
}

/// The requested gradients: of the input, of the weights, and of the bias, which is a sum.
fn backward(call: Call<'_>) -> Option<Vec<Part>> {
    let (gradient, input, weight) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let (transposed, groups) = (call.flag(7), call.int(9));
    let shape = Shape::new(input, weight, gradient, transposed, groups)?;
    let product = |pass, factors: [&Tensor; 2], result: &Tensor| {
        let mut part = Part::of(call, shape.family(pass), shape.flops());
        part.operator.read = sum(factors.into_iter().map(footprint));
        part.operator.written = footprint(result);
        part
    };
    let mut parts = Vec::new();
    parts.extend(call.result(0).map(|result| product(Pass::Backward, [gradient, weight], result)));
    parts.extend(call.result(1).map(|result| product(Pass::Weights, [gradient, input], result)));
    if let (Some(result), [first, ..]) = (call.result(2), parts.as_mut_slice()) {
        // The kernels of the GEMMs also sum the bias.
        first.operator.written = Bytes(first.operator.written.0.saturating_add(footprint(result).0));
    }
    Some(parts)
}
