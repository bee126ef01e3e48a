//! Owns operators of vLLM and SGLang with kernels of their own, and their Triton kernels. Arguments are read by their
//! names; `stacks` has the packages, and the versions whose schemas were checked. Results are arguments, often the
//! first one.
//!
//! An argument is a whole KV cache, of which a call reads or writes little: the amount does not follow from its size.

mod arguments;
mod attention;
mod kernels;
mod products;
pub mod stacks;
#[cfg(test)]
mod tests;

use super::call::{Call, footprint, product, sum};
use super::lengths::{Lengths, Sequences};
use super::{Part, kernel};
use arguments::Arguments;
use uniference_formats::operators::{Definition, Tensor};
use uniference_sim::device::{Family, FlatKind, Pass, RowKind};
use uniference_sim::time::Bytes;

/// The part of an extension's operator. `None`: it is not described, or its schema lacks an argument that the
/// description reads.
pub(super) fn describe(call: Call<'_>) -> Option<Vec<Part>> {
    by_name(call, part).map(|part| vec![part])
}

/// The result of a description, unless it asked for an argument that the operator's schema lacks.
fn by_name<'a, T>(call: Call<'a>, describe: impl FnOnce(&Arguments<'a>) -> Option<T>) -> Option<T> {
    let given = Arguments::of(call)?;
    let found = describe(&given);
    found.filter(|_| given.missing().is_none())
}

/// The argument that an operator's description reads and that the operator's schema lacks.
pub fn missing_argument(definition: &Definition) -> Option<&'static str> {
    if !stacks::is_of_stack(&definition.name) {
        return None;
    }
    let given = Arguments::of(Call::new(definition))?;
    part(&given);
    given.missing()
}

fn part(given: &Arguments<'_>) -> Option<Part> {
    products::describe(given)
        .or_else(|| attention::describe(given))
        .or_else(|| rows(given))
        .or_else(|| elements(given))
        .or_else(|| cached(given))
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
    if is_kernel(call) { kernels::lengths(call) } else { by_name(call, attention::lengths) }
}

/// The part of a call over these sequences.
pub(super) fn attended(call: Call<'_>, group: &Sequences) -> Option<Part> {
    if is_kernel(call) {
        kernels::attended(call, group)
    } else {
        by_name(call, |given| attention::attended(given, group))
    }
}

/// Operators along rows.
fn rows(given: &Arguments<'_>) -> Option<Part> {
    let normalization =
        |read: &[&'static str], written: &[&'static str]| row_by_row(given, RowKind::Normalization, read, written);
    let call = given.call;
    match call.name {
        // The operator that is compiled at its first call has its result last, if it has one.
        "rmsnorm" if call.definition.name.starts_with("sglang::") => {
            normalization(&["input", "weight"], if given.tensor("out").is_some() { &["out"] } else { &["input"] })
        }
        "rms_norm" | "rms_norm_static_fp8_quant" => normalization(&["input", "weight"], &["result"]),
        "rmsnorm" | "gemma_rmsnorm" => normalization(&["input", "weight"], &["output"]),
        "fused_add_rms_norm" | "fused_add_rmsnorm" | "gemma_fused_add_rmsnorm" => {
            normalization(&["input", "residual", "weight"], &["input", "residual"])
        }
        "fused_add_rms_norm_static_fp8_quant" => {
            normalization(&["input", "residual", "weight"], &["result", "residual"])
        }
        // The scales are results, and so is the normalized sum, if there is one.
        "rms_norm_dynamic_per_token_quant" | "rms_norm_per_block_quant" => {
            normalization(&["input", "weight", "residual"], &["result", "scale", "residual"])
        }
        // Each head of queries and keys is a row.
        "fused_inplace_qknorm" => heads(given, &["q", "k"], given.tensor("q_weight")?.elements()),
        "fused_qk_norm_rope" | "fused_qk_norm_rope_out" => joined_heads(given),
        // Expert selection per token: a softmax over its scores, and the maximum. vLLM's operators have a third result.
        "topk_softmax" | "topk_sigmoid" => {
            let written = ["topk_weights", "topk_indices", "token_expert_indices"];
            let count = if given.has(written[2]) { 3 } else { 2 };
            row_by_row(given, RowKind::Softmax, &["gating_output"], &written[..count])
        }
        "grouped_topk" | "moe_fused_gate" => {
            let scores = given.tensor("scores")?;
            let columns = *scores.sizes.last()?;
            let written = bytes((0..2).map(|at| call.result(at)));
            Some(in_rows(call, RowKind::Softmax, scores, columns, footprint(scores), written))
        }
        _ => None,
    }
}

/// Elementwise operators.
fn elements(given: &Arguments<'_>) -> Option<Part> {
    match given.call.name {
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
        | "silu_and_mul_with_clamp"
        | "silu_and_mul_nvfp4_quant"
        | "_run_activation_inplace" => activation(given),
        "static_scaled_fp8_quant"
        | "dynamic_per_token_scaled_fp8_quant"
        | "static_scaled_int8_quant"
        | "dynamic_scaled_int8_quant" => quantization(given, ["result", "scale"], 1),
        // The operator finds the maximum first.
        "dynamic_scaled_fp8_quant" => quantization(given, ["result", "scale"], 2),
        "per_token_group_fp8_quant"
        | "per_token_group_quant_int8"
        | "per_token_group_quant_8bit_v2"
        | "sgl_per_token_group_quant_8bit"
        | "sgl_per_token_group_quant_8bit_v2"
        | "sgl_per_token_quant_fp8" => quantization(given, ["output_q", "output_s"], 1),
        "per_token_group_fp8_quant_packed" => quantization(given, ["output_q", "output_s_packed"], 1),
        // Result and scales are arguments, or the operator's results.
        "per_token_group_quant" => {
            let input = given.tensor("input")?;
            let found = |name, at: usize| given.tensor(name).or_else(|| given.call.result(at));
            let written = bytes([found("output_q", 0), found("output_s", 1)]);
            Some(flat(given.call, FlatKind::Copy, input, footprint(input), written))
        }
        "vocab_parallel_embedding" => gathered(given),
        // The sum of the results of a token's experts.
        "moe_sum" | "moe_sum_reduce" => {
            let (input, result) = (given.tensor("input")?, given.tensor("output")?);
            Some(flat(given.call, FlatKind::Elementwise, input, footprint(input), footprint(result)))
        }
        "rotary_embedding" => rotation(given, ["query", "key"]),
        "apply_rope_inplace" => rotation(given, ["q", "k"]),
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
        | "shuffle_rows" => passed(given.call),
        _ => None,
    }
}

/// Operators that read or write slots of a cache.
fn cached(given: &Arguments<'_>) -> Option<Part> {
    match given.call.name {
        "reshape_and_cache" | "reshape_and_cache_flash" => {
            caching(given, ["key", "value"], "key_cache", "slot_mapping")
        }
        "store_cache" => caching(given, ["k", "v"], "k_cache", "indices"),
        "concat_and_cache_mla" => caching(given, ["kv_c", "k_pe"], "kv_cache", "slot_mapping"),
        "concat_and_cache_mla_rope_fused" => rotated(given, ["q_pe", "k_pe"], "kv_c", "kv_cache"),
        "apply_rope_inplace_with_kvcache" => rotated(given, ["q", "k"], "v", "k_cache"),
        // This operator's workspace has room for more vectors.
        "gather_and_maybe_dequant_cache" => fetched(given, given.size("num_tokens")?),
        "cp_gather_cache" => fetched(given, *given.tensor("dst")?.sizes.first()?),
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
fn row_by_row(given: &Arguments<'_>, kind: RowKind, read: &[&'static str], written: &[&'static str]) -> Option<Part> {
    let of = given.tensor(read.first()?)?;
    let [read, written] = [read, written].map(|names| bytes(given.tensors(names)));
    Some(in_rows(given.call, kind, of, *of.sizes.last()?, read, written))
}

/// Normalization in place of tensors whose heads have `width` elements.
fn heads(given: &Arguments<'_>, names: &[&'static str], width: u64) -> Option<Part> {
    let all = given.tensors(names);
    let elements = all.iter().flatten().map(|tensor| tensor.elements()).fold(0, u64::saturating_add);
    let first = (*all.first()?)?;
    let family = Family::Rows {
        kind: RowKind::Normalization,
        pass: Pass::Forward,
        rows: elements.checked_div(width)?,
        columns: width,
    };
    let moved = bytes(all);
    Some(Part::inside(family, first.dtype.dtype(), 0, moved, moved, given.call.name))
}

/// Normalization of queries and keys that share a tensor with the values, which are not touched.
fn joined_heads(given: &Arguments<'_>) -> Option<Part> {
    let all = given.tensor("qkv")?;
    let [queries, keys] = [given.size("num_heads_q")?, given.size("num_heads_k")?];
    let [values, width] = [given.size("num_heads_v")?, given.size("head_dim")?];
    let turned = queries.saturating_add(keys);
    let tokens = all.elements().checked_div(product(&[turned.saturating_add(values), width]))?;
    let rows = product(&[tokens, turned]);
    let moved = Bytes(product(&[rows, width, all.dtype.bytes()]));
    let family = Family::Rows { kind: RowKind::Normalization, pass: Pass::Forward, rows, columns: width };
    Some(Part::inside(family, all.dtype.dtype(), 0, moved, moved, given.call.name))
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

fn activation(given: &Arguments<'_>) -> Option<Part> {
    let (result, input) = (given.tensor(given.either(&["out", "result"]))?, given.tensor("input")?);
    Some(flat(given.call, FlatKind::Elementwise, result, footprint(input), footprint(result)))
}

/// A quantization of `input`, by the names of the result and of its scales, which may be given; the input is read
/// `times` times.
fn quantization(given: &Arguments<'_>, [result, scales]: [&'static str; 2], times: u64) -> Option<Part> {
    let (from, to) = (given.tensor("input")?, given.tensor(result)?);
    let read = Bytes(footprint(from).0.saturating_mul(times));
    let found = given.tensor(scales).filter(|scales| scales.written);
    Some(flat(given.call, FlatKind::Copy, from, read, bytes([Some(to), found])))
}

/// An embedding lookup: only the rows of the weight table that the indices name are read.
fn gathered(given: &Arguments<'_>) -> Option<Part> {
    let (result, numbers) = (given.tensor("out")?, given.tensor("input_ids")?);
    Some(flat(given.call, FlatKind::Gather, result, bytes([Some(result), Some(numbers)]), footprint(result)))
}

/// A rotary embedding: only the rows of the angle table that the positions name are read.
fn rotation(given: &Arguments<'_>, [query, key]: [&'static str; 2]) -> Option<Part> {
    let (query, key) = (given.tensor(query)?, given.tensor(key));
    let (positions, table) = (given.tensor("positions")?, given.tensor("cos_sin_cache")?);
    let turned = bytes([Some(query), key]);
    let angles = product(&[positions.elements(), *table.sizes.last()?, table.dtype.bytes()]);
    let read = sum([turned, footprint(positions), Bytes(angles)].into_iter());
    Some(flat(given.call, FlatKind::Elementwise, query, read, turned))
}

/// A write of keys and values to slots of the cache, in its type.
fn caching(
    given: &Arguments<'_>,
    [key, value]: [&'static str; 2],
    cache: &'static str,
    slots: &'static str,
) -> Option<Part> {
    let (key, value, cache) = (given.tensor(key)?, given.tensor(value)?, given.tensor(cache)?);
    let elements = key.elements().saturating_add(value.elements());
    let written = Bytes(elements.saturating_mul(cache.dtype.bytes()));
    let read = bytes([Some(key), Some(value), given.tensor(slots)]);
    Some(flat(given.call, FlatKind::Copy, key, read, written))
}

/// Copies `vectors` vectors of the cache, in its type, into rows of `dst`.
fn fetched(given: &Arguments<'_>, vectors: u64) -> Option<Part> {
    let (cache, to) = (given.tensor("src_cache")?, given.tensor("dst")?);
    let elements = vectors.saturating_mul(*to.sizes.last()?);
    let of = |tensor: &Tensor| Bytes(elements.saturating_mul(tensor.dtype.bytes()));
    let family = Family::Flat { kind: FlatKind::Gather, elements };
    Some(Part::inside(family, to.dtype.dtype(), 0, of(cache), of(to), given.call.name))
}

/// A rotary embedding of queries and keys, followed by a write of keys and values to slots of the cache.
fn rotated(given: &Arguments<'_>, turned: [&'static str; 2], value: &'static str, cache: &'static str) -> Option<Part> {
    let mut part = rotation(given, turned)?;
    let cache = given.tensor(cache)?;
    let (key, value) = (given.tensor(turned[1]), given.tensor(value));
    let elements = [key, value].into_iter().flatten().map(Tensor::elements).fold(0, u64::saturating_add);
    // The values, which are not rotated, are read, too.
    part.operator.read = sum([part.operator.read, bytes([value])].into_iter());
    part.operator.written =
        sum([part.operator.written, Bytes(elements.saturating_mul(cache.dtype.bytes()))].into_iter());
    Some(part)
}
