//! Owns elementwise operators: arithmetic, copies, gather and scatter by index, random numbers, optimizers.

use super::Part;
use super::call::{Call, footprint, sum};
use super::torch::{self, Kind};
use uniference_formats::operators::{Argument, Tensor};
use uniference_sim::device::{Family, FlatKind, Resource};
use uniference_sim::time::Bytes;

pub(super) fn describe(call: Call<'_>) -> Option<Vec<Part>> {
    let kind = kind(call.name, call.overload)?;
    let mut part = Part::of(call, Family::Flat { kind, elements: call.elements() }, 0);
    match kind {
        FlatKind::Copy => copy(call, &mut part),
        FlatKind::Gather => gather(call, &mut part)?,
        FlatKind::Scatter => scatter(call, &mut part)?,
        FlatKind::Random if call.in_place && call.name != "dropout" => part.operator.read = Bytes(0),
        FlatKind::Elementwise | FlatKind::Random | FlatKind::Optimizer => {}
    }
    Some(vec![part])
}

/// The kind of an operator by its name without namespace, and its overload.
fn kind(name: &str, overload: &str) -> Option<FlatKind> {
    if name.starts_with("_fused_ada")
        || name.starts_with("_fused_sgd")
        || name == "_amp_foreach_non_finite_check_and_unscale"
    {
        return Some(FlatKind::Optimizer);
    }
    let begins =
        |beginnings: &[&str]| beginnings.iter().any(|beginning| name.trim_start_matches('_').starts_with(beginning));
    let pooling = ["max_pool", "avg_pool", "mkldnn_max_pool", "adaptive_", "fractional_max_pool", "max_unpool"];
    if begins(&pooling) || begins(&["upsample_", "grid_sampler_", "fake_quantize_", "special_", "quantize_per_"]) {
        return Some(FlatKind::Elementwise);
    }
    if begins(&["reflection_pad", "replication_pad"]) {
        return Some(FlatKind::Copy);
    }
    if begins(&["philox_"]) {
        return Some(FlatKind::Random);
    }
    // Gradients are elementwise if the operator is, whether torch tags them or not.
    if let Some(Kind::Pointwise) = name.strip_suffix("_backward").and_then(|of| torch::kind(of, "")) {
        return Some(FlatKind::Elementwise);
    }
    // Reductions with `_foreach_` are among the operators along rows, which are matched first.
    if let Some(each) = name.strip_prefix("_foreach_") {
        return Some(if matches!(each, "copy" | "zero" | "clone") { FlatKind::Copy } else { FlatKind::Elementwise });
    }
    Some(match name {
        "copy"
        | "_to_copy"
        | "clone"
        | "contiguous"
        | "cat"
        | "_cat"
        | "stack"
        | "_stack"
        | "_copy_from"
        | "_copy_from_and_resize"
        | "fill"
        | "zero"
        | "ones"
        | "zeros"
        | "full"
        | "arange"
        | "eye"
        | "linspace"
        | "logspace"
        | "range"
        | "scalar_tensor"
        | "_efficientzerotensor"
        | "ones_like"
        | "zeros_like"
        | "full_like"
        | "new_zeros"
        | "new_ones"
        | "new_full"
        | "repeat"
        | "flip"
        | "roll"
        | "rot90"
        | "tril"
        | "triu"
        | "tril_indices"
        | "triu_indices"
        | "constant_pad_nd"
        | "pad"
        | "slice_backward"
        | "select_backward"
        | "diagonal_backward"
        | "select_scatter"
        | "diagonal_scatter"
        | "as_strided_scatter"
        | "_reshape_copy"
        | "_chunk_cat"
        | "chunk_cat"
        | "all_gather_copy_in"
        | "_pin_memory"
        | "pin_memory"
        | "lift"
        | "_local_scalar_dense"
        | "im2col"
        | "col2im"
        | "unfold_backward"
        | "pixel_shuffle"
        | "pixel_unshuffle"
        | "channel_shuffle"
        | "native_channel_shuffle"
        | "repeat_interleave"
        | "index_fill"
        | "diag_embed"
        | "block_diag"
        | "complex"
        | "_conj_physical"
        | "resolve_conj"
        | "resolve_neg"
        | "_transform_bias_rescale_qkv"
        | "_to_sparse"
        | "to_dense"
        | "to"
        | "_nested_tensor_from_mask"
        | "meshgrid"
        | "_convert_weight_to_int4pack" => FlatKind::Copy,

        "embedding"
        | "index"
        | "_unsafe_index"
        | "_unsafe_masked_index"
        | "index_select"
        | "gather"
        | "take"
        | "take_along_dim"
        | "masked_select"
        | "nonzero"
        | "nonzero_static"
        | "nll_loss"
        | "nll_loss_forward"
        | "nll_loss2d_forward" => FlatKind::Gather,

        "embedding_dense_backward"
        | "index_put"
        | "_index_put_impl"
        | "_unsafe_index_put"
        | "_unsafe_masked_index_put_accumulate"
        | "index_add"
        | "index_copy"
        | "index_reduce"
        | "scatter"
        | "scatter_add"
        | "scatter_reduce"
        | "put"
        | "masked_scatter"
        | "masked_scatter_backward"
        | "nll_loss_backward"
        | "nll_loss2d_backward"
        | "_embedding_bag_dense_backward"
        | "index_select_backward"
        | "embedding_renorm" => FlatKind::Scatter,

        "rand" | "randn" | "randint" | "randperm" | "rand_like" | "randn_like" | "randint_like" | "random"
        | "normal" | "uniform" | "log_normal" | "bernoulli" | "exponential" | "geometric" | "cauchy"
        | "native_dropout" | "_fused_dropout" | "dropout" | "poisson" | "binomial" | "_standard_gamma"
        | "rrelu_with_noise" => FlatKind::Random,

        // Elementwise operators that torch does not tag.
        "_amp_update_scale"
        | "_masked_scale"
        | "_prelu_kernel"
        | "_prelu_kernel_backward"
        | "_thnn_fused_gru_cell"
        | "_thnn_fused_gru_cell_backward"
        | "_thnn_fused_lstm_cell"
        | "_thnn_fused_lstm_cell_backward"
        | "_thnn_fused_lstm_cell_backward_impl"
        | "_weight_norm_interface_backward"
        | "addr"
        | "batch_norm_gather_stats_with_counts"
        | "cross"
        | "floor_divide"
        | "glu"
        | "glu_backward"
        | "hardswish"
        | "hardswish_backward"
        | "isclose"
        | "isin"
        | "linalg_cross"
        | "log_sigmoid_backward"
        | "log_sigmoid_forward"
        | "polar"
        | "prelu"
        | "rrelu_with_noise_backward" => FlatKind::Elementwise,

        // Gradients of losses, which are themselves reductions.
        "binary_cross_entropy_backward"
        | "huber_loss_backward"
        | "kl_div_backward"
        | "l1_loss_backward"
        | "mse_loss_backward"
        | "multi_margin_loss_backward"
        | "multilabel_margin_loss_backward"
        | "smooth_l1_loss_backward"
        | "soft_margin_loss_backward" => FlatKind::Elementwise,

        // Other names of elementwise operators, the last one of old versions of torch.
        "__and__" | "__iand__" | "__ior__" | "__or__" | "arctan2" | "divide" | "fix" | "ger" | "greater"
        | "greater_equal" | "less" | "less_equal" | "multiply" | "negative" | "not_equal" | "outer" | "subtract"
        | "_s_where" => FlatKind::Elementwise,

        _ => match torch::kind(name, overload)? {
            Kind::Pointwise => FlatKind::Elementwise,
            Kind::ViewCopy => FlatKind::Copy,
            Kind::View | Kind::Reduction => return None,
        },
    })
}

/// Traffic of a copy: an overwritten tensor is not read, and a copy between two memories uses a copy engine.
fn copy(call: Call<'_>, part: &mut Part) {
    let read = call.arguments().filter(|tensor| !tensor.written);
    part.operator.read = sum(read.map(footprint));
    if call.name == "all_gather_copy_in" {
        // The copy goes to this rank's part of the all-gather buffer.
        part.operator.written = part.operator.read;
    }
    // An operator that fills a tensor, or uses only the shape of another, reads nothing.
    if matches!(
        call.name,
        "ones_like" | "zeros_like" | "full_like" | "new_zeros" | "new_ones" | "new_full" | "fill" | "zero"
    ) {
        part.operator.read = Bytes(0);
    }
    if call.name == "_local_scalar_dense" {
        part.operator.family = Family::Flat { kind: FlatKind::Copy, elements: 1 };
        part.operator.written = part.operator.read;
    }
    let mut places = call.arguments().chain(call.results()).map(|tensor| tensor.place);
    let first = places.next();
    if matches!(call.name, "copy" | "_to_copy" | "_copy_from" | "_local_scalar_dense")
        && places.any(|place| Some(place) != first)
    {
        part.operator.resource = Resource::CopyEngine;
    }
}

/// Traffic of a gather: only the fetched elements of the source are read, and the indices.
fn gather(call: Call<'_>, part: &mut Part) -> Option<()> {
    let source = call.tensor(0)?;
    let others = || call.arguments().skip(1).filter(|tensor| !(call.out && tensor.written));
    let fetched = match call.name {
        // One element of each row, and its weight.
        "nll_loss" | "nll_loss_forward" | "nll_loss2d_forward" => {
            let targets = call.tensor(1)?.elements();
            part.operator.family = Family::Flat { kind: FlatKind::Gather, elements: targets };
            let indices = call.tensor(1)?.dtype.bytes();
            part.operator.read = Bytes(targets.saturating_mul(source.dtype.bytes().saturating_add(indices)));
            return Some(());
        }
        // All elements are read.
        "masked_select" | "nonzero" | "nonzero_static" => footprint(source).0,
        _ => call.elements().saturating_mul(source.dtype.bytes()),
    };
    part.operator.read = Bytes(fetched.saturating_add(sum(others().map(footprint)).0));
    Some(())
}

/// Traffic of a scatter: the values are read, and only their targets are written; a new result is written as a whole.
fn scatter(call: Call<'_>, part: &mut Part) -> Option<()> {
    if matches!(call.name, "nll_loss_backward" | "nll_loss2d_backward") {
        // The result is zero except for one element of each row.
        part.operator.read = footprint(call.tensor(2)?);
        return Some(());
    }
    let gradients = ["embedding_dense_backward", "_embedding_bag_dense_backward", "index_select_backward"];
    let is_gradient = gradients.contains(&call.name);
    let target = if is_gradient { call.result(0)? } else { call.tensor(0)? };
    let rest = if is_gradient { 0 } else { 1 };
    let put = call.definition.arguments.iter().skip(rest).flat_map(Argument::tensors);
    let put: Vec<&Tensor> = put.filter(|tensor| !tensor.written).collect();
    let values = put.iter().filter(|tensor| tensor.dtype == target.dtype).map(|tensor| tensor.elements()).max();
    // A single value is written at each index.
    let touched = values.into_iter().chain(put.iter().map(|tensor| tensor.elements())).max().unwrap_or(0);
    let touched = touched.min(target.elements().max(values.unwrap_or(0)));
    let touched_bytes = touched.saturating_mul(target.dtype.bytes());
    let whole = if call.in_place { 0 } else { footprint(target).0 };
    part.operator.family = Family::Flat { kind: FlatKind::Scatter, elements: touched };
    let copied = if is_gradient { 0 } else { whole };
    let read = sum(put.into_iter().map(footprint)).0;
    part.operator.read = Bytes(read.saturating_add(touched_bytes).saturating_add(copied));
    part.operator.written = Bytes(whole.saturating_add(touched_bytes));
    Some(())
}
