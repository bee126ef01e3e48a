//! Owns operators of vLLM's that launch kernels of its own: what they are called with stands in `csrc/torch_bindings.cpp` of its sources, and of
//! attention in those of `vllm_flash_attn` (version 0.33). Their results are arguments, of which the first is often one.
//!
//! A cache of keys and values is an argument as a whole, of which a call reads or writes little: how much, its sizes do not tell. Attention is
//! taken to read as many keys as the longest sequence has, for each of its sequences, and these to have equally many queries.

use super::call::{Call, footprint, product, sum};
use super::{Part, flops};
use uniference_formats::operators::{Argument, Tensor};
use uniference_sim::device::{Family, FlatKind, Pass, RowKind};
use uniference_sim::program::DType;
use uniference_sim::time::Bytes;

/// Where these operators are.
pub(super) const NAMESPACES: [&str; 4] = ["_C::", "_C_cache_ops::", "_vllm_fa2_C::", "_vllm_fa3_C::"];

pub(super) fn describe(call: Call<'_>) -> Option<Vec<Part>> {
    let part = match call.name {
        "rms_norm" => normalization(call, 1, &[0]),
        "fused_add_rms_norm" => normalization(call, 0, &[0, 1]),
        "silu_and_mul" | "mul_and_silu" | "gelu_and_mul" | "gelu_tanh_and_mul" | "gelu_fast" | "gelu_new"
        | "gelu_quick" => activation(call),
        "rotary_embedding" => rotation(call),
        "reshape_and_cache" | "reshape_and_cache_flash" => caching(call),
        "varlen_fwd" => attention(call, 4, 8, [10, 11], 15),
        "fwd" => attention(call, 7, 14, [12, 13], 24),
        _ => None,
    };
    Some(vec![part?])
}

/// Whether the operator's arithmetic depends on lengths of sequences that are values of its tensors: its arguments name the longest alone.
pub fn lengths_are_values(name: &str) -> bool {
    let attention = name.strip_prefix("_vllm_fa2_C::").or(name.strip_prefix("_vllm_fa3_C::"));
    matches!(attention, Some("varlen_fwd" | "fwd"))
}

fn bytes<'a>(tensors: impl IntoIterator<Item = Option<&'a Tensor>>) -> Bytes {
    sum(tensors.into_iter().flatten().map(footprint))
}

fn flat(call: Call<'_>, kind: FlatKind, of: &Tensor, read: Bytes, written: Bytes) -> Part {
    Part::inside(Family::Flat { kind, elements: of.elements() }, of.dtype.dtype(), 0, read, written, call.name)
}

/// The `input` is read, and what else is not only `written`.
fn normalization(call: Call<'_>, input: usize, written: &[usize]) -> Option<Part> {
    let of = call.tensor(input)?;
    let columns = of.sizes.last().copied()?;
    let rows = of.elements().checked_div(columns)?;
    let family = Family::Rows { kind: RowKind::Normalization, pass: Pass::Forward, rows, columns };
    let written = bytes(written.iter().map(|at| call.tensor(*at)));
    let read = bytes((input..3).map(|at| call.tensor(at)));
    Some(Part::inside(family, of.dtype.dtype(), 0, read, written, call.name))
}

/// The result comes first.
fn activation(call: Call<'_>) -> Option<Part> {
    let (result, input) = (call.tensor(0)?, call.tensor(1)?);
    Some(flat(call, FlatKind::Elementwise, result, footprint(input), footprint(result)))
}

/// Of the table of angles only the rows that positions name.
fn rotation(call: Call<'_>) -> Option<Part> {
    let (positions, query, key, table) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2), call.tensor(4)?);
    let turned = bytes([Some(query), key]);
    let angles = product(&[positions.elements(), *table.sizes.last()?, table.dtype.bytes()]);
    let read = sum([turned, footprint(positions), Bytes(angles)].into_iter());
    Some(flat(call, FlatKind::Elementwise, query, read, turned))
}

/// Keys and values go to places of the cache, in its type.
fn caching(call: Call<'_>) -> Option<Part> {
    let (key, value, cache) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let elements = key.elements().saturating_add(value.elements());
    let written = Bytes(elements.saturating_mul(cache.dtype.bytes()));
    Some(flat(call, FlatKind::Copy, key, bytes([Some(key), Some(value), call.tensor(4)]), written))
}

/// Queries, keys and values come first: of packed sequences, one behind the other, or keys and values of pages, if a table says which of them a
/// sequence has. The places are those of the sequences' borders in the queries, of this table, of the longest sequence's queries and keys, and of
/// the flag that says that it is causal.
fn attention(call: Call<'_>, borders: usize, pages: usize, longest: [usize; 2], causal: usize) -> Option<Part> {
    let (query, key, value) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let [.., heads, width] = query.sizes[..] else { return None };
    let (key_heads, value_width) = (*key.sizes.iter().nth_back(1)?, *value.sizes.last()?);
    let tokens = query.elements().checked_div(heads.saturating_mul(width))?;
    let most = |at: usize| match call.argument(longest[at]) {
        Some(Argument::Int(length)) => u64::try_from(*length).ok(),
        _ => None,
    };
    let batch = match call.tensor(borders) {
        Some(borders) => borders.elements().saturating_sub(1).max(1),
        None => *query.sizes.first()?,
    };
    let queries = tokens.div_ceil(batch);
    let stored = key.elements().checked_div(key_heads.saturating_mul(*key.sizes.last()?))?;
    let keys = match call.tensor(pages) {
        Some(_) => most(1)?,
        None => stored.div_ceil(batch),
    };
    // The last query sees all keys, each before it one less.
    let hidden =
        if call.flag(causal) { product(&[queries.min(keys), queries.min(keys).saturating_sub(1)]) / 2 } else { 0 };
    let visible = queries.saturating_mul(keys).saturating_sub(hidden);
    let family = Family::Attention {
        pass: Pass::Forward,
        heads: batch.saturating_mul(heads),
        queries,
        keys,
        width: width.saturating_add(value_width) / 2,
        // As in PyTorch, where the first query sees one key: only of a square that is the same.
        causal: call.flag(causal) && queries == keys,
    };
    let widths = width.saturating_add(value_width);
    let cached = product(&[batch, keys, key_heads, widths, key.dtype.bytes()]);
    let read = sum([footprint(query), Bytes(cached)].into_iter());
    let written = Bytes(product(&[tokens, heads, value_width, query.dtype.bytes()]));
    let dtype: Option<DType> = query.dtype.dtype();
    let operations = flops(&[2, batch, heads, visible, widths]);
    Some(Part::inside(family, dtype, operations, read, written, call.name))
}
