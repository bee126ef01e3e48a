//! Owns Triton kernels over a KV cache in vLLM and SGLang, by the names of their arguments: attention, the reduction
//! over key splits, and kernels that look up slots or write to them.
//!
//! The work of attention follows from sequence lengths, as for the operators of `attention`; its rate on a GPU follows
//! from measurements of FlashAttention. With split keys, each split has per query a partial sum for each element of the
//! result, its maximum score, and the sum of its exponentials.

use super::super::Part;
use super::super::call::{Call, product};
use super::super::kernel::Given;
use super::super::lengths::{KvSplits, Lengths, Mask, MaxSplits, Queries, Sequences};
use super::attention::{Shape, attend};
use uniference_formats::operators::Tensor;
use uniference_sim::device::{Family, FlatKind};
use uniference_sim::time::Bytes;

/// The part of a call without values: the largest number of sequences, each with its largest number of keys.
pub(super) fn describe(call: Call<'_>) -> Option<Part> {
    if let Some(part) = written(call) {
        return Some(part);
    }
    let kernel = Kernel::of(call)?;
    let Kernel { lengths, most: Size { sequences, queries, keys }, .. } = &kernel;
    let splits = match lengths.splits.most {
        MaxSplits::Number(most) => KvSplits::of(*keys, most, lengths.splits.multiple),
        MaxSplits::Argument(_) => 1,
    };
    let group = Sequences::equal(*sequences, queries.div_ceil((*sequences).max(1)), *keys, lengths.mask, splits);
    // The lengths, rounded up, may exceed the number of queries.
    Some(kernel.part(call, &Sequences { queries: *queries, ..group }))
}

/// Arguments with the sequence lengths of a call.
pub(super) fn lengths(call: Call<'_>) -> Option<Lengths> {
    Some(Kernel::of(call)?.lengths)
}

/// The part of a call over these sequences.
pub(super) fn attended(call: Call<'_>, group: &Sequences) -> Option<Part> {
    Some(Kernel::of(call)?.part(call, group))
}

/// A kernel that writes tokens' keys and values to a cache, or their slots to a table.
fn written(call: Call<'_>) -> Option<Part> {
    let given = Given::of(call.definition);
    let (from, to) = match call.name {
        "reshape_and_cache_kernel_flash" => (vec!["key_ptr", "value_ptr"], "key_cache_ptr"),
        "reshape_and_cache_kernel_flash_diffkv" => (vec!["key_ptr", "value_ptr"], "kv_cache_ptr"),
        "write_req_to_token_pool_triton" => (vec!["out_cache_loc"], "req_to_token_ptr"),
        _ => return None,
    };
    let from = from.into_iter().map(|name| given.tensor(name)).collect::<Option<Vec<&Tensor>>>()?;
    // Tensors other than the slot mapping may be padded.
    let rows = given.tensor("slot_mapping_ptr").map_or(u64::MAX, Tensor::elements);
    let elements_of = |tensor: &Tensor| {
        let all = tensor.sizes.first().copied().unwrap_or(1).max(1);
        tensor.elements() / all * all.min(rows)
    };
    let read = from.iter().map(|tensor| elements_of(tensor).saturating_mul(tensor.dtype.bytes()));
    let read = Bytes(read.fold(0, u64::saturating_add));
    let elements = from.iter().map(|tensor| elements_of(tensor)).fold(0, u64::saturating_add);
    let written = Bytes(elements.saturating_mul(given.tensor(to)?.dtype.bytes()));
    Some(flat(call, FlatKind::Copy, elements, read, written))
}

fn flat(call: Call<'_>, kind: FlatKind, elements: u64, read: Bytes, written: Bytes) -> Part {
    Part::inside(Family::Flat { kind, elements }, None, 0, read, written, call.name)
}

/// A kernel call whose work depends on sequence lengths.
struct Kernel<'a> {
    lengths: Lengths,
    does: Action<'a>,
    most: Size,
}

enum Action<'a> {
    Attention(Shape<'a>),
    /// Reduces the results of splits, `value` elements per head, into `result`.
    ReduceSplits {
        heads: u64,
        value: u64,
        result: &'a Tensor,
    },
    /// Copies slots of keys from a table to a list.
    CollectIndices {
        table: &'a Tensor,
        list: &'a Tensor,
    },
}

/// Sizes of attention: `heads` query heads share `heads / of_a_key` KV heads; a score is a dot product of width
/// `score`, a value has `value` elements, and a key with its value has `stored`.
fn shape<'a>(
    [query, cache]: [&'a Tensor; 2],
    [heads, of_a_key]: [u64; 2],
    [score, value, stored]: [u64; 3],
) -> Option<Shape<'a>> {
    Some(Shape { heads, query, cache, key_heads: heads.checked_div(of_a_key)?, score, value, stored })
}

/// Upper bounds of the sizes of a call.
struct Size {
    sequences: u64,
    /// Queries of all sequences together.
    queries: u64,
    /// Keys of each sequence.
    keys: u64,
}

impl<'a> Kernel<'a> {
    fn of(call: Call<'a>) -> Option<Kernel<'a>> {
        let given = &Given::of(call.definition);
        match call.name {
            // vLLM's kernels, two of which share their names with SGLang's.
            "kernel_unified_attention" => unified(given),
            "reduce_segments" => segments(given),
            "_fwd_kernel_stage1" | "_fwd_grouped_kernel_stage1" => decoding(given),
            "_fwd_kernel_stage2" => joining(given),
            // SGLang's kernels.
            "_fwd_kernel" => extending(given),
            "_fwd_kernel_unified" => extending_unified(given),
            "create_flashinfer_kv_indices_triton" => collecting(given),
            _ => None,
        }
    }

    /// The part of this kernel over these sequences.
    fn part(&self, call: Call<'_>, group: &Sequences) -> Part {
        // Bytes of one split per head of a query, in float32.
        let partial = |value: u64| value.saturating_add(2).saturating_mul(4);
        match &self.does {
            Action::Attention(shape) => {
                let mut part = attend(call, self.lengths.mask, shape, group);
                if !matches!(self.lengths.splits.most, MaxSplits::Number(1)) {
                    part.operator.written = Bytes(product(&[group.splits, shape.heads, partial(shape.value)]));
                }
                part
            }
            Action::ReduceSplits { heads, value, result } => {
                let read = Bytes(product(&[group.splits, *heads, partial(*value)]));
                let written = Bytes(product(&[group.queries, *heads, *value, result.dtype.bytes()]));
                flat(call, FlatKind::Elementwise, product(&[group.splits, *heads, *value]), read, written)
            }
            Action::CollectIndices { table, list } => {
                let of = |tensor: &Tensor| Bytes(group.keys.saturating_mul(tensor.dtype.bytes()));
                flat(call, FlatKind::Copy, group.keys, of(table), of(list))
            }
        }
    }
}

/// vLLM's attention; with `IS_3D` over split keys, whose results `reduce_segments` reduces.
fn unified<'a>(given: &Given<'a>) -> Option<Kernel<'a>> {
    // With `USE_R_SWA` queries also see prefixes outside their window, which no argument gives.
    if given.flag("USE_R_SWA") {
        return None;
    }
    let (query, cache) = (given.tensor("query_ptr")?, given.tensor("key_cache_ptr")?);
    let [heads, of_a_key, width] =
        [given.size("num_query_heads")?, given.size("num_queries_per_kv")?, given.size("HEAD_SIZE")?];
    // With chunks, a query sees `CHUNK_LOOKBACK` chunks before its own, and on average half of its own; a window of 0
    // means none.
    let chunks = given.int("CHUNK_LOOKBACK").filter(|chunks| *chunks >= 0).zip(given.int("CHUNK_SIZE"));
    let window = match chunks {
        Some((chunks, size)) => Some(chunks.saturating_mul(size).saturating_add(size / 2)),
        None => given.int("SLIDING_WINDOW").filter(|window| *window > 0).map(|keys| keys - 1),
    };
    let splits = if given.flag("IS_3D") { segmented(given)? } else { KvSplits::ONE };
    let lengths = unified_lengths(given, Mask::of(given.flag("USE_CAUSAL"), window, window, true), splits)?;
    let page = given.size("BLOCK_SIZE")?;
    let tokens = query.elements().checked_div(heads.saturating_mul(width))?;
    let sequences = given.tensor("seq_lens_ptr")?.elements();
    let shape = shape([query, cache], [heads, of_a_key], [width, width, width.saturating_mul(2)])?;
    let keys = given.tensor("block_tables_ptr")?.sizes.last()?.saturating_mul(page);
    Some(Kernel { lengths, does: Action::Attention(shape), most: Size { sequences, queries: tokens, keys } })
}

/// Arguments with the sequence lengths of vLLM's kernels.
fn unified_lengths(given: &Given<'_>, mask: Mask, splits: KvSplits) -> Option<Lengths> {
    Some(Lengths {
        queries: Queries::Borders(given.place("query_start_len_ptr")?),
        key_borders: None,
        used_keys: Some(given.place("seq_lens_ptr")?),
        before_queries: false,
        may_be_empty: false,
        mask,
        splits,
    })
}

fn segmented(given: &Given<'_>) -> Option<KvSplits> {
    Some(KvSplits { most: MaxSplits::Number(given.size("NUM_SEGMENTS_PER_SEQ")?), multiple: given.size("TILE_SIZE")? })
}

fn segments<'a>(given: &Given<'a>) -> Option<Kernel<'a>> {
    let splits = segmented(given)?;
    let lengths = unified_lengths(given, Mask::of(false, None, None, true), splits)?;
    let result = given.tensor("output_ptr")?;
    let [heads, value] = [given.size("num_query_heads")?, given.size("HEAD_SIZE")?];
    let queries = result.elements().checked_div(heads.saturating_mul(value))?;
    let sequences = given.tensor("seq_lens_ptr")?.elements();
    let MaxSplits::Number(most) = splits.most else { return None };
    // No argument gives the number of splits, but it follows from the lengths.
    let keys = most.saturating_mul(splits.multiple);
    Some(Kernel {
        lengths,
        does: Action::ReduceSplits { heads, value, result },
        most: Size { sequences, queries, keys },
    })
}

/// Arguments with the key lengths of both kernels, for `sequences` sequences of one query each.
fn decoding_lengths(given: &Given<'_>, sequences: u64) -> Option<Lengths> {
    let most = match (given.size("NUM_KV_SPLITS"), given.size("FORCED_KV_SPLITS").or(given.size("forced_kv_splits"))) {
        (Some(splits), _) => MaxSplits::Number(splits),
        (None, Some(forced)) if forced > 0 => MaxSplits::Number(forced),
        (None, _) => MaxSplits::Argument(given.place("num_kv_splits")?),
    };
    let (key_borders, used_keys) = (given.place("kv_indptr"), given.place("B_Seqlen"));
    key_borders.or(used_keys)?;
    Some(Lengths {
        queries: Queries::Each { queries: 1, sequences },
        key_borders,
        used_keys,
        before_queries: false,
        may_be_empty: false,
        mask: Mask::of(false, None, None, true),
        splits: KvSplits { most, multiple: given.size("MIN_BLOCK_KV").unwrap_or(1) },
    })
}

/// Attention of one query per sequence over split keys, whose results `_fwd_kernel_stage2` reduces.
fn decoding<'a>(given: &Given<'a>) -> Option<Kernel<'a>> {
    let (query, cache) = (given.tensor("Q")?, given.tensor("K_Buffer")?);
    let [score, value, of_a_key] = [given.size("Lk")?, given.size("Lv")?, given.size("kv_group_num")?];
    let [sequences, heads, _] = query.sizes[..] else { return None };
    let lengths = decoding_lengths(given, sequences)?;
    let is_latent = given.flag("HAS_MLA") || given.flag("IS_MLA");
    let keys = match given.tensor("Req_to_tokens") {
        Some(pages) => pages.sizes.last()?.saturating_mul(given.size("PAGE_SIZE")?),
        None => given.tensor("kv_indices")?.elements().div_ceil(sequences.max(1)),
    };
    let stored = if is_latent { score } else { score.saturating_add(value) };
    let shape = shape([query, cache], [heads, of_a_key], [score, value, stored])?;
    Some(Kernel { lengths, does: Action::Attention(shape), most: Size { sequences, queries: sequences, keys } })
}

fn joining<'a>(given: &Given<'a>) -> Option<Kernel<'a>> {
    let (all, result) = (given.tensor("Mid_O")?, given.tensor("O").or_else(|| given.tensor("o"))?);
    let [_, heads, splits, ..] = all.sizes[..] else { return None };
    let value = given.size("Lv")?;
    let sequences = result.elements().checked_div(heads.saturating_mul(value))?;
    let lengths = decoding_lengths(given, sequences)?;
    let keys = splits.saturating_mul(lengths.splits.multiple);
    let most = Size { sequences, queries: sequences, keys };
    Some(Kernel { lengths, does: Action::ReduceSplits { heads, value, result }, most })
}

/// Attention of queries over earlier keys, which are in the cache, and over their own keys, which are not.
fn extending<'a>(given: &Given<'a>) -> Option<Kernel<'a>> {
    let (query, cache) = (given.tensor("Q_Extend")?, given.tensor("K_Buffer")?);
    let (borders, cached) = (given.place("qo_indptr")?, given.place("kv_indptr")?);
    let (only_own, only_cached) = (given.flag("SKIP_PREFIX"), given.flag("SKIP_EXTEND"));
    let lengths = Lengths {
        queries: Queries::Borders(borders),
        key_borders: Some(if only_own { borders } else { cached }),
        used_keys: None,
        before_queries: !only_own && !only_cached,
        may_be_empty: false,
        mask: extending_sight(given, !only_cached),
        splits: KvSplits::ONE,
    };
    attending(given, lengths, query, cache)
}

/// Attention of queries whose own keys are in the cache, too.
fn extending_unified<'a>(given: &Given<'a>) -> Option<Kernel<'a>> {
    let lengths = Lengths {
        queries: Queries::Borders(given.place("qo_indptr")?),
        key_borders: Some(given.place("kv_indptr")?),
        used_keys: None,
        before_queries: false,
        may_be_empty: false,
        mask: extending_sight(given, true),
        splits: KvSplits::ONE,
    };
    attending(given, lengths, given.tensor("Q")?, given.tensor("K_Buffer")?)
}

fn extending_sight(given: &Given<'_>, own: bool) -> Mask {
    let window = given.int("SLIDING_WINDOW_SIZE").filter(|window| *window > 0);
    Mask::of(own && given.flag("IS_CAUSAL"), window, window.filter(|_| own), true)
}

fn attending<'a>(given: &Given<'a>, lengths: Lengths, query: &'a Tensor, cache: &'a Tensor) -> Option<Kernel<'a>> {
    let [score, value, of_a_key] = [given.size("Lq")?, given.size("Lv")?, given.size("kv_group_num")?];
    let [tokens, heads, _] = query.sizes[..] else { return None };
    let sequences = given.tensor("qo_indptr")?.elements().saturating_sub(1).max(1);
    let cached = given.tensor("kv_indices").map_or(0, Tensor::elements);
    // A value is part of a latent vector, which all heads share.
    let stored = if heads == of_a_key && score > value { score } else { score.saturating_add(value) };
    let shape = shape([query, cache], [heads, of_a_key], [score, value, stored])?;
    let keys = cached.saturating_add(if lengths.before_queries { tokens } else { 0 }).div_ceil(sequences);
    Some(Kernel { lengths, does: Action::Attention(shape), most: Size { sequences, queries: tokens, keys } })
}

/// Slots of keys, concatenated over the sequences.
fn collecting<'a>(given: &Given<'a>) -> Option<Kernel<'a>> {
    let (table, list) = (given.tensor("req_to_token_ptr")?, given.tensor("kv_indices_ptr")?);
    let sequences = given.size("grid_x")?;
    let lengths = Lengths {
        queries: Queries::Each { queries: 1, sequences },
        key_borders: Some(given.place("kv_indptr")?),
        used_keys: None,
        before_queries: false,
        may_be_empty: true,
        mask: Mask::of(false, None, None, true),
        splits: KvSplits::ONE,
    };
    let keys = list.elements().div_ceil(sequences.max(1));
    Some(Kernel {
        lengths,
        does: Action::CollectIndices { table, list },
        most: Size { sequences, queries: sequences, keys },
    })
}
