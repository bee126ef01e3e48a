//! Owns operators that amount to several others: each is costed by its parts.

use super::call::{Call, footprint};
use super::gemm::Gemm;
use super::{Part, flops};
use uniference_formats::operators::{Argument, Tensor};
use uniference_sim::device::{Family, FlatKind, Layout, Pass, Resource, RowKind};
use uniference_sim::program::DType;
use uniference_sim::time::Bytes;

pub(super) fn describe(call: Call<'_>) -> Option<Vec<Part>> {
    match call.name {
        "_cudnn_rnn" | "miopen_rnn" => recurrent(call, call.definition.arguments.get(1)?, 1),
        "_cudnn_rnn_backward" | "miopen_rnn_backward" => recurrent(call, call.definition.arguments.get(1)?, 2),
        "mkldnn_rnn_layer" => layer(call, 1),
        "mkldnn_rnn_layer_backward" => layer(call, 2),
        "linear_backward" | "mkldnn_linear_backward" => linear_backward(call),
        "_native_multi_head_attention" => {
            let (query, heads) = (call.tensor(0)?, call.int(4)?);
            let keys = call.tensor(1)?.sizes.get(1).copied()?;
            let parts = attention_block(query, keys, u64::try_from(heads).ok()?, [call.tensor(5)?, call.tensor(7)?])?;
            Some(parts)
        }
        "_transformer_encoder_layer_fwd" => encoder_layer(call),
        "_weight_int4pack_mm" | "_weight_int4pack_mm_for_cpu" | "_weight_int8pack_mm" => {
            let (input, result) = (call.tensor(0)?, call.result(0)?);
            let (m, k) = rows_and_columns(input)?;
            let gemm = Gemm { batch: 1, m, n: *result.sizes.last()?, k, layout: Layout::NT };
            Some(vec![Part::of(call, gemm.family(), gemm.flops())])
        }
        _ => None,
    }
}

fn rows_and_columns(tensor: &Tensor) -> Option<(u64, u64)> {
    let columns = *tensor.sizes.last()?;
    Some((tensor.elements().checked_div(columns)?, columns))
}

/// A GEMM of an activation and a weight, both contiguous; it reads both and writes its result.
fn product(m: u64, n: u64, k: u64, tensor: &Tensor) -> Part {
    let size = tensor.dtype.bytes();
    let gemm = Gemm { batch: 1, m, n, k, layout: Layout::NT };
    let bytes = |elements: &[u64]| Bytes(flops(elements).saturating_mul(size));
    let read = Bytes(bytes(&[m, k]).0.saturating_add(bytes(&[n, k]).0));
    Part::inside(gemm.family(), tensor.dtype.dtype(), gemm.flops(), read, bytes(&[m, n]), gemm.layout.name())
}

/// Recurrent cells of all layers and directions: one GEMM with the inputs of all steps, and one per step with the
/// state. Gradients are twice as many GEMMs.
fn recurrent(call: Call<'_>, weights: &Argument, passes: u64) -> Option<Vec<Part>> {
    let input = call.tensor(0)?;
    let [first, second, _] = input.sizes.as_slice() else { return None };
    let batch_first = call.flag(if passes == 1 { 10 } else { 14 });
    let (steps, batch) = if batch_first { (*second, *first) } else { (*first, *second) };
    let matrices: Vec<&Tensor> = weights.tensors().filter(|weight| weight.sizes.len() == 2).collect();
    let mut parts = Vec::new();
    // Each cell has a weight for the input and one for the state.
    for cell in matrices.chunks_exact(2) {
        parts.extend(cell_parts(cell[0], cell[1], steps, batch, passes));
    }
    (!parts.is_empty()).then_some(parts)
}

fn layer(call: Call<'_>, passes: u64) -> Option<Vec<Part>> {
    let [steps, batch, _] = call.tensor(0)?.sizes.as_slice() else { return None };
    Some(cell_parts(call.tensor(1)?, call.tensor(2)?, *steps, *batch, passes))
}

fn cell_parts(of_input: &Tensor, of_state: &Tensor, steps: u64, batch: u64, passes: u64) -> Vec<Part> {
    let sizes = |weight: &Tensor| weight.sizes.first().copied().zip(weight.sizes.get(1).copied()).unwrap_or((0, 0));
    let ((gates, width), (_, state)) = (sizes(of_input), sizes(of_state));
    let together = product(steps.saturating_mul(batch), gates, width, of_input).repeated(passes);
    let each = product(batch, gates, state, of_state).repeated(steps.saturating_mul(passes));
    let elements = flops(&[batch, gates]);
    let bytes = Bytes(elements.saturating_mul(of_state.dtype.bytes()));
    let pointwise = elementwise(elements, of_state.dtype.dtype(), bytes, bytes);
    vec![together, each, pointwise.repeated(steps.saturating_mul(passes))]
}

fn elementwise(elements: u64, dtype: Option<DType>, read: Bytes, written: Bytes) -> Part {
    Part::inside(Family::Flat { kind: FlatKind::Elementwise, elements }, dtype, 0, read, written, "add")
}

/// Gradients of a linear layer from `self`, the gradient of the output, and the weight: two GEMMs, of which only the
/// requested ones run.
fn linear_backward(call: Call<'_>) -> Option<Vec<Part>> {
    let (input, gradient, weight) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let ((m, n), (_, k)) = (rows_and_columns(gradient)?, rows_and_columns(weight)?);
    let mut parts = Vec::new();
    parts.extend(call.result(0).map(|_| product(m, k, n, input)));
    parts.extend(call.result(1).map(|_| product(n, k, m, weight)));
    Some(parts)
}

/// The projections of query, key and value, then scores, softmax and values without a fused kernel, then the projection
/// of the output.
fn attention_block(query: &Tensor, keys: u64, heads: u64, [of_inputs, of_output]: [&Tensor; 2]) -> Option<Vec<Part>> {
    let [batch, queries, width] = *query.sizes.as_slice() else { return None };
    let (rows, size, dtype) = (batch.saturating_mul(queries), query.dtype.bytes(), query.dtype.dtype());
    let (all, each) = (batch.saturating_mul(heads), width.checked_div(heads)?);
    let bytes = |sizes: &[u64]| Bytes(flops(sizes).saturating_mul(size));
    let batched = |m: u64, n: u64, k: u64, layout: Layout| {
        let gemm = Gemm { batch: all, m, n, k, layout };
        let read = Bytes(bytes(&[all, m, k]).0.saturating_add(bytes(&[all, n, k]).0));
        Part::inside(gemm.family(), dtype, gemm.flops(), read, bytes(&[all, m, n]), layout.name())
    };
    let scores = bytes(&[all, queries, keys]);
    let softmax =
        Family::Rows { kind: RowKind::Softmax, pass: Pass::Forward, rows: all.saturating_mul(queries), columns: keys };
    Some(vec![
        product(rows, *of_inputs.sizes.first()?, width, of_inputs),
        batched(queries, keys, each, Layout::NT),
        Part::inside(softmax, dtype, 0, scores, scores, "_softmax"),
        batched(queries, each, keys, Layout::NN),
        product(rows, *of_output.sizes.first()?, width, of_output),
    ])
}

fn encoder_layer(call: Call<'_>) -> Option<Vec<Part>> {
    let source = call.tensor(0)?;
    let keys = *source.sizes.get(1)?;
    let heads = u64::try_from(call.int(2)?).ok()?;
    let (rows, width) = rows_and_columns(source)?;
    let (up, down) = (call.tensor(14)?, call.tensor(16)?);
    let (dtype, all) = (source.dtype.dtype(), footprint(source));
    let hidden = *up.sizes.first()?;
    let inside = Bytes(flops(&[rows, hidden, source.dtype.bytes()]));
    let norm = Family::Rows { kind: RowKind::Normalization, pass: Pass::Forward, rows, columns: width };
    let norm = Part::inside(norm, dtype, 0, all, all, "native_layer_norm");
    let sum = elementwise(source.elements(), dtype, Bytes(all.0.saturating_mul(2)), all);
    let mut parts = attention_block(source, keys, heads, [call.tensor(3)?, call.tensor(5)?])?;
    parts.extend([product(rows, hidden, width, up), elementwise(flops(&[rows, hidden]), dtype, inside, inside)]);
    parts.extend([product(rows, *down.sizes.first()?, hidden, down), norm.repeated(2), sum.repeated(2)]);
    debug_assert!(parts.iter().all(|part| part.operator.resource == Resource::Accelerator));
    Some(parts)
}
