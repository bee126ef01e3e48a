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

/// Positions of the arguments with sequence lengths, and of the causal flag.
#[derive(Default)]
struct Places {
    /// The cumulative lengths of the queries; `None`: all sequences have equally many.
    borders: Option<usize>,
    /// The cumulative lengths of the keys; `None`: the operator has no such argument.
    key_borders: Option<usize>,
    /// The number of keys of each sequence.
    used_keys: usize,
    /// The page table.
    pages: usize,
    longest_keys: Option<usize>,
    causal: Option<usize>,
    /// The window's size to the left; its size to the right is the next argument.
    window: Option<usize>,
}

impl Places {
    fn mask(&self, call: Call<'_>) -> Mask {
        let side = |further: usize| self.window.and_then(|window| call.int(window + further));
        Mask::of(self.causal.is_some_and(|place| call.flag(place)), side(0), side(1), true)
    }
}

/// The positions in an operator's arguments, by its name without a namespace.
fn places(name: &str) -> Option<Places> {
    let flash = |borders, key_borders, used_keys, pages, longest_keys, causal, window| Places {
        borders: Some(borders),
        key_borders: Some(key_borders),
        used_keys,
        pages,
        longest_keys: Some(longest_keys),
        causal: Some(causal),
        window: Some(window),
    };
    match name {
        "varlen_fwd" => Some(flash(4, 5, 6, 8, 11, 15, 16)),
        "fwd" => Some(flash(7, 8, 11, 14, 13, 24, 25)),
        "dense_decode_fwd" => Some(Places { used_keys: 3, pages: 4, causal: Some(6), ..Places::default() }),
        "sm100_cutlass_mla_decode" => Some(Places { used_keys: 5, pages: 6, ..Places::default() }),
        _ => None,
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
    fn of(call: Call<'a>) -> Option<(Shape<'a>, Extent)> {
        let width = |tensor: &Tensor| tensor.sizes.last().copied();
        // Positions of queries, of their second part, of keys and of values.
        let [query, more, cache, values] = match call.name {
            "varlen_fwd" => [0, usize::MAX, 1, 2],
            "fwd" => [0, 5, 1, 2],
            "dense_decode_fwd" => [0, usize::MAX, 1, usize::MAX],
            "sm100_cutlass_mla_decode" => [2, 3, 4, usize::MAX],
            _ => return None,
        };
        let (query, more, cache) = (call.tensor(query)?, call.tensor(more), call.tensor(cache)?);
        let [.., heads, terms] = query.sizes[..] else { return None };
        let score = terms.saturating_add(more.map_or(Some(0), width)?);
        let tokens = query.elements().checked_div(heads.saturating_mul(terms))?;
        let batch = *query.sizes.first()?;
        // CUTLASS's pages of latent vectors have no dimension of heads.
        let headless = call.name == "sm100_cutlass_mla_decode";
        let from_the_end = |place: usize| cache.sizes.iter().nth_back(place).copied();
        let (key_heads, page) = if headless { (1, from_the_end(1)?) } else { (from_the_end(1)?, from_the_end(2)?) };
        let (value, stored) = match call.tensor(values) {
            Some(values) => (width(values)?, width(cache)?.saturating_add(width(values)?)),
            None if headless => (terms, width(cache)?),
            None => (u64::try_from(call.int(2)?).ok()?, width(cache)?),
        };
        Some((Shape { heads, query, cache, key_heads, score, value, stored }, Extent { tokens, batch, page }))
    }
}

/// Arguments with the sequence lengths of a call.
pub(super) fn lengths(call: Call<'_>) -> Option<Lengths> {
    if !OPERATORS.contains(&call.definition.name.as_str()) {
        return None;
    }
    let places = places(call.name)?;
    let queries = match places.borders {
        Some(borders) => Queries::Borders(borders),
        None => {
            let (_, Extent { tokens, batch, .. }) = Shape::of(call)?;
            Queries::Each { queries: tokens.checked_div(batch)?, sequences: batch }
        }
    };
    Some(Lengths {
        queries,
        key_borders: places.key_borders,
        used_keys: Some(places.used_keys),
        before_queries: false,
        may_be_empty: false,
        mask: places.mask(call),
        splits: KvSplits::ONE,
    })
}

/// The part of a call without values. Each sequence has the maximum number of keys, if there is a page table; else the
/// cache's keys are packed, and all count.
pub(super) fn describe(call: Call<'_>) -> Option<Part> {
    let (places, (shape, extent)) = (places(call.name)?, Shape::of(call)?);
    let batch = match places.borders.and_then(|place| call.tensor(place)) {
        Some(borders) => borders.elements().saturating_sub(1).max(1),
        None => extent.batch,
    };
    if batch == 0 {
        return Some(Part::idle(call));
    }
    let keys = match (call.tensor(places.pages), places.longest_keys.and_then(|place| call.argument(place))) {
        (Some(_), Some(Argument::Int(longest))) => u64::try_from(*longest).ok()?,
        // The number of slots in the pages that a sequence may have.
        (Some(pages), _) => pages.sizes.last()?.saturating_mul(extent.page),
        (None, _) => {
            let of_a_key = shape.key_heads.saturating_mul(*shape.cache.sizes.last()?);
            shape.cache.elements().checked_div(of_a_key)?.div_ceil(batch)
        }
    };
    let mask = places.mask(call);
    let group = Sequences::equal(batch, extent.tokens.div_ceil(batch), keys, mask, 1);
    // The lengths, rounded up, may exceed the number of queries.
    Some(attend(call, mask, &shape, &Sequences { queries: extent.tokens, ..group }))
}

/// The part of an attention call over these sequences.
pub(super) fn attended(call: Call<'_>, group: &Sequences) -> Option<Part> {
    Some(attend(call, places(call.name)?.mask(call), &Shape::of(call)?.0, group))
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
