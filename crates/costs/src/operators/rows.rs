//! Owns operators along rows: normalizations, softmax, reductions, losses, scans, sorting.

use super::call::{Call, footprint, product, sum};
use super::torch::{self, Kind};
use super::{Part, flops};
use uniference_formats::operators::Tensor;
use uniference_sim::device::{Family, Pass, RowKind};

pub(super) fn describe(call: Call<'_>) -> Option<Vec<Part>> {
    normalization(call).or_else(|| softmax(call)).or_else(|| others(call)).map(|part| vec![part])
}

fn part(call: Call<'_>, kind: RowKind, pass: Pass, rows: u64, columns: u64) -> Part {
    Part::of(call, Family::Rows { kind, pass, rows, columns }, 0)
}

/// A normalization, whose rows are the elements that are normalized together.
fn normalization(call: Call<'_>) -> Option<Part> {
    // The input's position, and the dimensions of a row.
    enum Row {
        /// As many trailing dimensions as the list at this position has.
        Last(usize),
        /// All dimensions except the channels, which are dimension 1.
        Channel,
        /// Each group of each sample, by the positions of the two numbers.
        Group(usize, usize),
    }
    let (pass, input, row) = match call.name {
        "native_layer_norm" | "layer_norm" | "_fused_rms_norm" | "rms_norm" => (Pass::Forward, 0, Row::Last(1)),
        "native_layer_norm_backward" | "_fused_rms_norm_backward" => (Pass::Backward, 1, Row::Last(2)),
        "native_batch_norm"
        | "_native_batch_norm_legit"
        | "_native_batch_norm_legit_no_training"
        | "_batch_norm_with_update"
        | "_batch_norm_no_update"
        | "cudnn_batch_norm"
        | "miopen_batch_norm"
        | "batch_norm_stats"
        | "batch_norm_elemt"
        | "batch_norm_update_stats" => (Pass::Forward, 0, Row::Channel),
        "native_batch_norm_backward"
        | "batch_norm_backward"
        | "batch_norm_backward_reduce"
        | "batch_norm_backward_elemt" => (Pass::Backward, 1, Row::Channel),
        // Their input comes before the gradient.
        "cudnn_batch_norm_backward" | "miopen_batch_norm_backward" => (Pass::Backward, 0, Row::Channel),
        "native_group_norm" => (Pass::Forward, 0, Row::Group(3, 6)),
        "native_group_norm_backward" => (Pass::Backward, 1, Row::Group(5, 8)),
        _ => return None,
    };
    let input = call.tensor(input)?;
    let all = input.elements();
    let rows = match row {
        Row::Last(at) => all.checked_div(product_of(call.ints(at)?))?,
        Row::Channel => input.sizes.get(1).copied().unwrap_or(1),
        Row::Group(samples, groups) => product_of(&[call.int(samples)?, call.int(groups)?]),
    };
    Some(part(call, RowKind::Normalization, pass, rows, all.checked_div(rows.max(1))?))
}

fn product_of(sizes: &[i64]) -> u64 {
    product(&sizes.iter().map(|size| u64::try_from(*size).unwrap_or(0)).collect::<Vec<_>>())
}

fn softmax(call: Call<'_>) -> Option<Part> {
    let (pass, dimension) = match call.name {
        "_softmax" | "_log_softmax" | "_safe_softmax" | "softmax" | "log_softmax" => (Pass::Forward, 1),
        "_masked_softmax" => (Pass::Forward, 2),
        "_softmax_backward_data" | "_log_softmax_backward_data" => (Pass::Backward, 2),
        _ => return None,
    };
    let input = call.tensor(0)?;
    let columns = along(input, call.int(dimension).unwrap_or(-1));
    Some(part(call, RowKind::Softmax, pass, input.elements().checked_div(columns.max(1))?, columns))
}

/// The size of a dimension; negative ones count from the last.
fn along(tensor: &Tensor, dimension: i64) -> u64 {
    let count = tensor.sizes.len() as i64;
    let index = if dimension < 0 { dimension + count } else { dimension };
    usize::try_from(index).ok().and_then(|index| tensor.sizes.get(index)).copied().unwrap_or(1)
}

fn others(call: Call<'_>) -> Option<Part> {
    let kind = match call.name {
        // Reductions that torch does not tag.
        "nanmean"
        | "_aminmax"
        | "native_norm"
        | "trace"
        | "equal"
        | "allclose"
        | "_foreach_norm"
        | "_foreach_max"
        | "_foreach_powsum"
        | "_is_all_true"
        | "_is_any_true"
        | "mse_loss"
        | "l1_loss"
        | "smooth_l1_loss"
        | "huber_loss"
        | "soft_margin_loss"
        | "binary_cross_entropy"
        | "binary_cross_entropy_with_logits"
        | "kl_div"
        | "multi_margin_loss"
        | "multilabel_margin_loss_forward"
        | "bincount"
        | "histc"
        | "dist"
        | "dot"
        | "vdot"
        | "_embedding_bag"
        | "_embedding_bag_forward_only"
        | "renorm"
        | "_weight_norm_interface"
        | "segment_reduce" => RowKind::Reduction,
        "cumsum" | "cumprod" | "_cumsum" | "_logcumsumexp" | "logcumsumexp" | "cummax" | "cummin"
        | "_cummax_helper" | "_cummin_helper" => RowKind::Scan,
        "sort" | "topk" | "argsort" | "msort" | "kthvalue" | "mode" | "median" | "nanmedian" | "_unique"
        | "_unique2" | "unique_dim" | "unique_consecutive" | "searchsorted" | "bucketize" | "multinomial" => {
            RowKind::Sort
        }
        _ if torch::kind(call.name, call.overload) == Some(Kind::Reduction) => RowKind::Reduction,
        _ => return None,
    };
    let all = call.definition.arguments.iter().flat_map(uniference_formats::operators::Argument::tensors);
    let all = all.filter(|tensor| !(call.out && tensor.written)).map(Tensor::elements).max()?;
    let rows = match kind {
        RowKind::Reduction => call.outputs().next().map_or(1, Tensor::elements),
        _ => {
            // The dimension is the first integer argument; for top-k and the k-th value it comes after k.
            let dimension = match call.name {
                "topk" | "kthvalue" => call.int(2),
                "sort" | "argsort"
                    if matches!(
                        call.argument(1),
                        Some(
                            uniference_formats::operators::Argument::Bool(_)
                                | uniference_formats::operators::Argument::None
                        )
                    ) =>
                {
                    call.int(2)
                }
                _ => call.int(1),
            };
            // A search reads the borders, which are the second argument of `bucketize`, and has no dimension.
            let (sorted, dimension) = match call.name {
                "bucketize" => (call.tensor(1), None),
                "searchsorted" => (call.tensor(0), None),
                _ => (call.tensor(0), dimension),
            };
            let columns = sorted.map_or(1, |sorted| along(sorted, dimension.unwrap_or(-1)));
            all.checked_div(columns.max(1))?
        }
    };
    let rows = rows.clamp(1, all.max(1));
    let mut part = part(call, kind, Pass::Forward, rows, all.div_ceil(rows));
    if matches!(call.name, "dot" | "vdot") {
        part.operator.flops = flops(&[2, all]);
    }
    if call.name.starts_with("_embedding_bag") {
        // Only the table rows that the indices name are read.
        let indices = call.tensor(1)?;
        let width = call.tensor(0)?.sizes.last().copied().unwrap_or(1);
        let fetched = indices.elements().saturating_mul(width).saturating_mul(call.tensor(0)?.dtype.bytes());
        part.operator.read.0 = footprint(indices).0.saturating_add(fetched);
        part.operator.written = sum(call.outputs().map(footprint));
        part.operator.family = Family::Rows {
            kind,
            pass: Pass::Forward,
            rows,
            columns: indices.elements().saturating_mul(width).div_ceil(rows),
        };
    }
    Some(part)
}
