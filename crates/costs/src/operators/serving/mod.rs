//! Owns operators of vLLM and SGLang with kernels of their own, and their Triton kernels. The arguments follow the
//! schemas that their extensions register (vLLM 0.33.0, SGLang 0.5.23, with FlashMLA and DeepGEMM as vLLM ships them).
//! Results are arguments, often the first one.
//!
//! An argument is a whole KV cache, of which a call reads or writes little: the amount does not follow from its size.

mod attention;
mod kernels;
mod products;
#[cfg(test)]
mod tests;

use super::call::{Call, footprint, product, sum};
use super::lengths::{Lengths, Sequences};
use super::{Part, kernel};
use uniference_formats::operators::Tensor;
use uniference_sim::device::{Family, FlatKind, Pass, RowKind};
use uniference_sim::time::Bytes;

/// Namespaces of the operators of vLLM, SGLang and their libraries.
pub(super) const NAMESPACES: [&str; 9] = [
    "_C::",
    "_C_cache_ops::",
    "_moe_C::",
    "_vllm_fa2_C::",
    "_vllm_fa3_C::",
    "_flashmla_C::",
    "deep_gemm::",
    "sgl_kernel::",
    "sglang::",
];

pub(super) fn describe(call: Call<'_>) -> Option<Vec<Part>> {
    let found = products::describe(call)
        .or_else(|| attention::describe(call))
        .or_else(|| rows(call))
        .or_else(|| elements(call))
        .or_else(|| cached(call));
    Some(vec![found?])
}

/// The part of a Triton kernel, by the names of its arguments. `None`: its arithmetic is unknown.
pub(super) fn describe_kernel(call: Call<'_>) -> Option<Part> {
    match call.name {
        // Quantization, expert selection and reshaping of rows are described by their memory traffic.
        "_per_token_group_quant_fp8"
        | "_per_token_group_quant_fp8_colmajor"
        | "moe_fused_mul_sum_kernel"
        | "_router_triton_kernel"
        | "_small_copy_kernel" => Some(kernel::describe(call)),
        _ => products::describe_kernel(call).or_else(|| kernels::describe(call)),
    }
}

/// Whether an operator is a Triton kernel.
fn is_kernel(call: Call<'_>) -> bool {
    call.definition.name.starts_with("triton::")
}

/// Arguments with the sequence lengths of a call, if its work depends on them.
pub(super) fn lengths(call: Call<'_>) -> Option<Lengths> {
    if is_kernel(call) { kernels::lengths(call) } else { attention::lengths(call) }
}

/// The part of a call over these sequences.
pub(super) fn attended(call: Call<'_>, group: &Sequences) -> Option<Part> {
    if is_kernel(call) { kernels::attended(call, group) } else { attention::attended(call, group) }
}

/// Operators along rows.
fn rows(call: Call<'_>) -> Option<Part> {
    let normalization = |read: &[usize], written: &[usize]| row_by_row(call, RowKind::Normalization, read, written);
    let softmax = |read: &[usize], written: &[usize]| row_by_row(call, RowKind::Softmax, read, written);
    let in_sglang = call.definition.name.starts_with("sgl");
    match call.name {
        // The operator that is compiled at its first call has its result last, if it has one.
        "rmsnorm" if call.definition.name.starts_with("sglang::") => {
            normalization(&[0, 1], if call.tensor(2).is_some() { &[2] } else { &[0] })
        }
        "rms_norm" | "rms_norm_static_fp8_quant" | "rmsnorm" | "gemma_rmsnorm" => normalization(&[1, 2], &[0]),
        "fused_add_rms_norm" | "fused_add_rmsnorm" | "gemma_fused_add_rmsnorm" => normalization(&[0, 1, 2], &[0, 1]),
        "fused_add_rms_norm_static_fp8_quant" => normalization(&[1, 2, 3], &[0, 2]),
        // The scales are results, and so is the normalized sum, if there is one.
        "rms_norm_dynamic_per_token_quant" | "rms_norm_per_block_quant" => normalization(&[1, 2, 6], &[0, 3, 6]),
        // Each head of queries and keys is a row.
        "fused_inplace_qknorm" => heads(call, &[0, 1], call.tensor(2)?.elements()),
        "fused_qk_norm_rope" => joined_heads(call, 1),
        "fused_qk_norm_rope_out" => joined_heads(call, 4),
        // Expert selection per token: a softmax over its scores, and the maximum.
        "topk_softmax" | "topk_sigmoid" if in_sglang => softmax(&[2], &[0, 1]),
        "topk_softmax" | "topk_sigmoid" => softmax(&[3], &[0, 1, 2]),
        "grouped_topk" | "moe_fused_gate" => {
            let scores = call.tensor(0)?;
            let columns = *scores.sizes.last()?;
            let written = bytes((0..2).map(|at| call.result(at)));
            Some(in_rows(call, RowKind::Softmax, scores, columns, footprint(scores), written))
        }
        _ => None,
    }
}

/// Elementwise operators.
fn elements(call: Call<'_>) -> Option<Part> {
    match call.name {
        "silu_and_mul"
        | "mul_and_silu"
        | "gelu_and_mul"
        | "gelu_tanh_and_mul"
        | "gelu_fast"
        | "gelu_new"
        | "gelu_quick"
        | "fatrelu_and_mul"
        | "relu_squared"
        | "situ_and_mul"
        | "swigluoai_and_mul"
        | "silu_and_mul_quant"
        | "silu_and_mul_per_block_quant"
        | "silu_and_mul_with_clamp" => activation(call, 0, 1),
        "silu_and_mul_nvfp4_quant" => activation(call, 0, 2),
        "_run_activation_inplace" => activation(call, 2, 1),
        "static_scaled_fp8_quant"
        | "dynamic_per_token_scaled_fp8_quant"
        | "static_scaled_int8_quant"
        | "dynamic_scaled_int8_quant" => quantization(call, [1, 0, 2], 1),
        // The operator finds the maximum first.
        "dynamic_scaled_fp8_quant" => quantization(call, [1, 0, 2], 2),
        "per_token_group_fp8_quant"
        | "per_token_group_fp8_quant_packed"
        | "per_token_group_quant_int8"
        | "per_token_group_quant_8bit_v2"
        | "sgl_per_token_group_quant_8bit"
        | "sgl_per_token_group_quant_8bit_v2"
        | "sgl_per_token_quant_fp8" => quantization(call, [0, 1, 2], 1),
        // Result and scales are arguments, or the operator's results.
        "per_token_group_quant" => {
            let input = call.tensor(0)?;
            let found = |at: usize| call.tensor(at + 1).or_else(|| call.result(at));
            Some(flat(call, FlatKind::Copy, input, footprint(input), bytes([found(0), found(1)])))
        }
        "vocab_parallel_embedding" => gathered(call),
        "moe_sum" | "moe_sum_reduce" => summed(call),
        "rotary_embedding" => rotation(call, [1, 2], 0, 4),
        "apply_rope_inplace" => rotation(call, [0, 1], 3, 2),
        // Sorting few numbers, and merging vectors, are described by their memory traffic.
        "moe_align_block_size"
        | "get_scheduler_metadata"
        | "merge_attn_states"
        | "merge_state_v2"
        | "concat_mla_q"
        | "concat_mla_k"
        | "concat_mla_absorb_q"
        | "moe_permute"
        | "moe_unpermute"
        | "shuffle_rows" => passed(call),
        _ => None,
    }
}

/// Operators that read or write slots of a cache.
fn cached(call: Call<'_>) -> Option<Part> {
    match call.name {
        "reshape_and_cache" | "reshape_and_cache_flash" | "store_cache" => caching(call, [0, 1], 2, 4),
        "concat_and_cache_mla" => caching(call, [0, 1], 2, 3),
        "concat_and_cache_mla_rope_fused" => rotated(call, [1, 2], [2, 3], 0, 4, 7),
        "apply_rope_inplace_with_kvcache" => rotated(call, [0, 1], [1, 2], 6, 5, 3),
        // This operator's workspace has room for more vectors.
        "gather_and_maybe_dequant_cache" => fetched(call, u64::try_from(call.int(5)?).ok()?),
        "cp_gather_cache" => fetched(call, *call.tensor(1)?.sizes.first()?),
        _ => None,
    }
}

fn bytes<'a>(tensors: impl IntoIterator<Item = Option<&'a Tensor>>) -> Bytes {
    sum(tensors.into_iter().flatten().map(footprint))
}

fn flat(call: Call<'_>, kind: FlatKind, of: &Tensor, read: Bytes, written: Bytes) -> Part {
    Part::inside(Family::Flat { kind, elements: of.elements() }, of.dtype.dtype(), 0, read, written, call.name)
}

/// An operator along the rows of the first argument in `read`.
fn row_by_row(call: Call<'_>, kind: RowKind, read: &[usize], written: &[usize]) -> Option<Part> {
    let of = call.tensor(*read.first()?)?;
    let all = |places: &[usize]| bytes(places.iter().map(|at| call.tensor(*at)));
    Some(in_rows(call, kind, of, *of.sizes.last()?, all(read), all(written)))
}

/// Normalization in place of tensors whose heads have `width` elements.
fn heads(call: Call<'_>, places: &[usize], width: u64) -> Option<Part> {
    let all = || places.iter().map(|at| call.tensor(*at));
    let elements = all().flatten().map(Tensor::elements).fold(0, u64::saturating_add);
    let first = all().next()??;
    let family = Family::Rows {
        kind: RowKind::Normalization,
        pass: Pass::Forward,
        rows: elements.checked_div(width)?,
        columns: width,
    };
    Some(Part::inside(family, first.dtype.dtype(), 0, bytes(all()), bytes(all()), call.name))
}

/// Normalization of queries and keys that share a tensor with the values, which are not touched; the numbers of heads
/// and their width begin at `sizes`.
fn joined_heads(call: Call<'_>, sizes: usize) -> Option<Part> {
    let all = call.tensor(0)?;
    let number = |at: usize| u64::try_from(call.int(sizes + at)?).ok();
    let [queries, keys, values, width] = [number(0)?, number(1)?, number(2)?, number(3)?];
    let turned = queries.saturating_add(keys);
    let tokens = all.elements().checked_div(product(&[turned.saturating_add(values), width]))?;
    let rows = product(&[tokens, turned]);
    let moved = Bytes(product(&[rows, width, all.dtype.bytes()]));
    let family = Family::Rows { kind: RowKind::Normalization, pass: Pass::Forward, rows, columns: width };
    Some(Part::inside(family, all.dtype.dtype(), 0, moved, moved, call.name))
}

fn in_rows(call: Call<'_>, kind: RowKind, of: &Tensor, columns: u64, read: Bytes, written: Bytes) -> Part {
    let rows = of.elements().checked_div(columns).unwrap_or(0);
    let family = Family::Rows { kind, pass: Pass::Forward, rows, columns };
    Part::inside(family, of.dtype.dtype(), 0, read, written, call.name)
}

/// Traffic of an operator that reads or writes each tensor once.
fn passed(call: Call<'_>) -> Option<Part> {
    let written = bytes(call.outputs().map(Some));
    let read = bytes(call.arguments().filter(|tensor| !tensor.written).map(Some));
    let of = call.outputs().chain(call.arguments()).max_by_key(|tensor| tensor.elements())?;
    Some(flat(call, FlatKind::Copy, of, read, written))
}

/// An activation, by the positions of the result and of the input.
fn activation(call: Call<'_>, result: usize, input: usize) -> Option<Part> {
    let (result, input) = (call.tensor(result)?, call.tensor(input)?);
    Some(flat(call, FlatKind::Elementwise, result, footprint(input), footprint(result)))
}

/// A quantization, by the positions of the input, of the result and of its scales, which may be given; the input is
/// read `times` times.
fn quantization(call: Call<'_>, [input, result, scales]: [usize; 3], times: u64) -> Option<Part> {
    let (from, to) = (call.tensor(input)?, call.tensor(result)?);
    let read = Bytes(footprint(from).0.saturating_mul(times));
    let found = call.tensor(scales).filter(|scales| scales.written);
    Some(flat(call, FlatKind::Copy, from, read, bytes([Some(to), found])))
}

/// An embedding lookup: only the rows of the weight table that the indices name are read.
fn gathered(call: Call<'_>) -> Option<Part> {
    let (result, numbers) = (call.tensor(0)?, call.tensor(1)?);
    Some(flat(call, FlatKind::Gather, result, bytes([Some(result), Some(numbers)]), footprint(result)))
}

/// The sum of the results of a token's experts.
fn summed(call: Call<'_>) -> Option<Part> {
    let (input, result) = (call.tensor(0)?, call.tensor(1)?);
    Some(flat(call, FlatKind::Elementwise, input, footprint(input), footprint(result)))
}

/// A rotary embedding: only the rows of the angle table that the positions name are read.
fn rotation(call: Call<'_>, [query, key]: [usize; 2], positions: usize, table: usize) -> Option<Part> {
    let (query, key) = (call.tensor(query)?, call.tensor(key));
    let (positions, table) = (call.tensor(positions)?, call.tensor(table)?);
    let turned = bytes([Some(query), key]);
    let angles = product(&[positions.elements(), *table.sizes.last()?, table.dtype.bytes()]);
    let read = sum([turned, footprint(positions), Bytes(angles)].into_iter());
    Some(flat(call, FlatKind::Elementwise, query, read, turned))
}

/// A write of keys and values to slots of the cache, in its type, by the positions of both, of the cache and of the
/// slot indices.
fn caching(call: Call<'_>, vectors: [usize; 2], cache: usize, slots: usize) -> Option<Part> {
    let ([key, value], cache) = ([call.tensor(vectors[0])?, call.tensor(vectors[1])?], call.tensor(cache)?);
    let elements = key.elements().saturating_add(value.elements());
    let written = Bytes(elements.saturating_mul(cache.dtype.bytes()));
    Some(flat(call, FlatKind::Copy, key, bytes([Some(key), Some(value), call.tensor(slots)]), written))
}

/// Copies `vectors` vectors of the cache (argument 0), in its type, into rows of argument 1.
fn fetched(call: Call<'_>, vectors: u64) -> Option<Part> {
    let (cache, to) = (call.tensor(0)?, call.tensor(1)?);
    let elements = vectors.saturating_mul(*to.sizes.last()?);
    let of = |tensor: &Tensor| Bytes(elements.saturating_mul(tensor.dtype.bytes()));
    let family = Family::Flat { kind: FlatKind::Gather, elements };
    Some(Part::inside(family, to.dtype.dtype(), 0, of(cache), of(to), call.name))
}

/// A rotary embedding followed by a write to slots of the cache.
fn rotated(
    call: Call<'_>,
    turned: [usize; 2],
    vectors: [usize; 2],
    positions: usize,
    table: usize,
    cache: usize,
) -> Option<Part> {
    let mut part = rotation(call, turned, positions, table)?;
    let (cache, vectors) = (call.tensor(cache)?, vectors.map(|at| call.tensor(at)));
    let elements = vectors.into_iter().flatten().map(Tensor::elements).fold(0, u64::saturating_add);
    // The values, which are not rotated, are read, too.
    part.operator.read = sum([part.operator.read, bytes([vectors[1]])].into_iter());
    part.operator.written =
        sum([part.operator.written, Bytes(elements.saturating_mul(cache.dtype.bytes()))].into_iter());
    Some(part)
}
