//! Owns attention over a paged KV cache: FlashAttention 2 and 3 with separate heads; FlashAttention, FlashMLA and
//! CUTLASS over the latent vectors of MLA, where one vector serves all heads as key, and most of it as value
//! (DeepSeek-V2, arXiv 2405.04434).
//!
//! An argument is the whole cache, of which a call reads the keys of its sequences. Sequence lengths are values of
//! other arguments. If they are unknown, all sequences are assumed to have as many keys as the longest, and equally
//! many queries.

use super::super::call::{Call, product};
use super::super::lengths::{KvSplits, Lengths, Mask, Queries, Sequences};
use super::super::{Part, flops};
use super::arguments::Arguments;
use uniference_formats::operators::{Argument, Tensor};
use uniference_sim::device::{Family, Pass};
use uniference_sim::time::Bytes;

/// Operators whose arithmetic depends on sequence lengths.
const OPERATORS: [&str; 5] = [
    "_vllm_fa2_C::varlen_fwd",
    "_vllm_fa3_C::fwd",
    "sgl_kernel::fwd",
    "_flashmla_C::dense_decode_fwd",
    "_C::sm100_cutlass_mla_decode",
];

/// Names of the arguments with tensors of queries and keys, with sequence lengths, and with the mask.
struct Names {
    query: &'static str,
    /// The second part of the queries.
    query_rest: Option<&'static str>,
    keys: &'static str,
    /// `None`: a value is part of its key.
    values: Option<&'static str>,
    /// The cumulative lengths of the queries and of the keys; `None`: all sequences have equally many queries.
    borders: Option<[&'static str; 2]>,
    /// The number of keys of each sequence.
    used_keys: &'static str,
    pages: &'static str,
    longest_keys: Option<&'static str>,
    causal: Option<&'static str>,
    /// The window's sizes to the left and to the right.
    window: Option<[&'static str; 2]>,
}

const FLASH: Names = Names {
    query: "q",
    query_rest: None,
    keys: "k",
    values: Some("v"),
    borders: Some(["cu_seqlens_q", "cu_seqlens_k"]),
    used_keys: "seqused_k",
    pages: "block_table",
    longest_keys: Some("max_seqlen_k"),
    causal: Some("is_causal"),
    window: Some(["window_size_left", "window_size_right"]),
};

const LATENT: Names = Names {
    query: "q",
    query_rest: None,
    keys: "kcache",
    values: None,
    borders: None,
    used_keys: "seqlens_k",
    pages: "block_table",
    longest_keys: None,
    causal: Some("is_causal"),
    window: None,
};

/// The names of an operator's arguments, by its name without a namespace.
fn names(name: &str) -> Option<Names> {
    match name {
        "varlen_fwd" => Some(FLASH),
        "fwd" => Some(Names { query_rest: Some("q_v"), pages: "page_table", ..FLASH }),
        "dense_decode_fwd" => Some(LATENT),
        "sm100_cutlass_mla_decode" => Some(Names {
            query: "q_nope",
            query_rest: Some("q_pe"),
            keys: "kv_c_and_k_pe_cache",
            used_keys: "seq_lens",
            pages: "page_table",
            causal: None,
            ..LATENT
        }),
        _ => None,
    }
}

impl Names {
    fn mask(&self, given: &Arguments<'_>) -> Mask {
        let side = |side: usize| self.window.and_then(|window| given.int(window[side]));
        Mask::of(self.causal.is_some_and(|name| given.flag(name)), side(0), side(1), true)
    }
}

/// The sizes of queries and keys.
pub(super) struct Shape<'a> {
    pub(super) heads: u64,
    pub(super) query: &'a Tensor,
    pub(super) cache: &'a Tensor,
    pub(super) key_heads: u64,
    /// Width of a dot product of query and key; `value` is the width of a value.
    pub(super) score: u64,
    pub(super) value: u64,
    /// Elements stored per KV head for a key and its value.
    pub(super) stored: u64,
}

/// Upper bounds of the sizes of a call.
struct Extent {
    /// Number of queries in all.
    tokens: u64,
    /// Number of sequences, if there are no cumulative lengths.
    batch: u64,
    /// Number of slots of a page.
    page: u64,
}

impl<'a> Shape<'a> {
    fn of(given: &Arguments<'a>, names: &Names) -> Option<(Shape<'a>, Extent)> {
        let width = |tensor: &Tensor| tensor.sizes.last().copied();
        let (query, cache) = (given.tensor(names.query)?, given.tensor(names.keys)?);
        let more = names.query_rest.and_then(|name| given.tensor(name));
        let [.., heads, terms] = query.sizes[..] else { return None };
        let score = terms.saturating_add(more.map_or(Some(0), width)?);
        let tokens = query.elements().checked_div(heads.saturating_mul(terms))?;
        let batch = *query.sizes.first()?;
        // CUTLASS's pages of latent vectors have no dimension of heads.
        let headless = given.call.name == "sm100_cutlass_mla_decode";
        let from_the_end = |place: usize| cache.sizes.iter().nth_back(place).copied();
        let (key_heads, page) = if headless { (1, from_the_end(1)?) } else { (from_the_end(1)?, from_the_end(2)?) };
        let (value, stored) = match names.values.and_then(|name| given.tensor(name)) {
            Some(values) => (width(values)?, width(cache)?.saturating_add(width(values)?)),
            None if headless => (terms, width(cache)?),
            None => (given.size("head_size_v")?, width(cache)?),
        };
        Some((Shape { heads, query, cache, key_heads, score, value, stored }, Extent { tokens, batch, page }))
    }
}

/// Arguments with the sequence lengths of a call.
pub(super) fn lengths(given: &Arguments<'_>) -> Option<Lengths> {
    if !OPERATORS.contains(&given.call.definition.name.as_str()) {
        return None;
    }
    let names = names(given.call.name)?;
    let queries = match names.borders {
        Some([borders, _]) => Queries::Borders(given.place(borders)?),
        None => {
            let (_, Extent { tokens, batch, .. }) = Shape::of(given, &names)?;
            Queries::Each { queries: tokens.checked_div(batch)?, sequences: batch }
        }
    };
    Some(Lengths {
        queries,
        key_borders: names.borders.and_then(|[_, borders]| given.place(borders)),
        used_keys: Some(given.place(names.used_keys)?),
        before_queries: false,
        may_be_empty: false,
        mask: names.mask(given),
        splits: KvSplits::ONE,
    })
}

/// The part of a call without values. Each sequence has the maximum number of keys, if there is a page table; else the
/// cache's keys are packed, and all count.
pub(super) fn describe(given: &Arguments<'_>) -> Option<Part> {
    let names = names(given.call.name)?;
    // An operator without an argument for lengths would be described without values even if they are known.
    for name in names.borders.into_iter().flatten().chain([names.used_keys]) {
        given.place(name)?;
    }
    let (shape, extent) = Shape::of(given, &names)?;
    let batch = match names.borders.and_then(|[borders, _]| given.tensor(borders)) {
        Some(borders) => borders.elements().saturating_sub(1).max(1),
        None => extent.batch,
    };
    if batch == 0 {
        return Some(Part::idle(given.call));
    }
    let keys = match (given.tensor(names.pages), names.longest_keys.and_then(|name| given.get(name))) {
        (Some(_), Some(Argument::Int(longest))) => u64::try_from(*longest).ok()?,
        // The number of slots in the pages that a sequence may have.
        (Some(pages), _) => pages.sizes.last()?.saturating_mul(extent.page),
        (None, _) => {
            let of_a_key = shape.key_heads.saturating_mul(*shape.cache.sizes.last()?);
            shape.cache.elements().checked_div(of_a_key)?.div_ceil(batch)
        }
    };
    let mask = names.mask(given);
    let group = Sequences::equal(batch, extent.tokens.div_ceil(batch), keys, mask, 1);
    // The lengths, rounded up, may exceed the number of queries.
    Some(attend(given.call, mask, &shape, &Sequences { queries: extent.tokens, ..group }))
}

/// The part of an attention call over these sequences.
pub(super) fn attended(given: &Arguments<'_>, group: &Sequences) -> Option<Part> {
    let names = names(given.call.name)?;
    Some(attend(given.call, names.mask(given), &Shape::of(given, &names)?.0, group))
}

/// Attention, costed as over sequences of one length with as much work.
pub(super) fn attend(call: Call<'_>, mask: Mask, shape: &Shape<'_>, group: &Sequences) -> Part {
    if group.queries == 0 {
        return Part::idle(call);
    }
    let Shape { heads, query, cache, key_heads, score, value, stored, .. } = *shape;
    let (count, queries, keys) = group.alike(mask);
    let widths = score.saturating_add(value);
    let family = Family::Attention {
        pass: Pass::Forward,
        heads: count.saturating_mul(heads),
        queries,
        keys,
        width: widths / 2,
        // PyTorch's causal mask shows one key to the first query: both alignments agree only for a square mask.
        causal: mask.is_causal() && queries == keys,
    };
    let cached = product(&[group.keys, key_heads, stored, cache.dtype.bytes()]);
    let asked = product(&[group.queries, heads, score, query.dtype.bytes()]);
    let written = Bytes(product(&[group.queries, heads, value, query.dtype.bytes()]));
    let operations = flops(&[2, heads, group.visible, widths]);
    Part::inside(family, query.dtype.dtype(), operations, Bytes(asked.saturating_add(cached)), written, call.name)
}
