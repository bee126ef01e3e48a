//! Owns attention over keys and values in pages of a cache: by FlashAttention 2 and 3 with heads, by these, FlashMLA and CUTLASS with the latent vectors of
//! multi-head latent attention, of which one serves all heads as key, and most of it as value (DeepSeek-V2, arXiv 2405.04434).
//!
//! A cache is an argument as a whole, of which a call reads what its sequences have. How long these are, the values of other arguments say. Where they are
//! not known, all sequences are taken to have as many keys as the longest, and equally many queries.

use super::super::call::{Call, product};
use super::super::lengths::{KvSplits, Lengths, Mask, Queries, Sequences};
use super::super::{Part, flops};
use uniference_formats::operators::{Argument, Tensor};
use uniference_sim::device::{Family, Pass};
use uniference_sim::time::Bytes;

/// Those operators whose arithmetic depends on lengths that are values.
const OPERATORS: [&str; 5] = [
    "_vllm_fa2_C::varlen_fwd",
    "_vllm_fa3_C::fwd",
    "sgl_kernel::fwd",
    "_flashmla_C::dense_decode_fwd",
    "_C::sm100_cutlass_mla_decode",
];

/// Places of arguments that say how long sequences are, and whether attention is causal.
#[derive(Default)]
struct Places {
    /// The sequences' borders in the queries; `None`: all have equally many.
    borders: Option<usize>,
    /// The sequences' borders in the keys; `None`: no argument has them.
    key_borders: Option<usize>,
    /// The argument with the number of keys of each sequence.
    used_keys: usize,
    /// The table of its pages.
    pages: usize,
    longest_keys: Option<usize>,
    causal: Option<usize>,
    /// How many keys before the one that it stands at a query sees; how many behind it is the next.
    window: Option<usize>,
}

impl Places {
    fn mask(&self, call: Call<'_>) -> Mask {
        let side = |further: usize| self.window.and_then(|window| call.int(window + further));
        Mask::of(self.causal.is_some_and(|place| call.flag(place)), side(0), side(1), true)
    }
}

/// The places of an operator's arguments, by its name without a namespace.
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

/// The sizes of each query and each key.
pub(super) struct Shape<'a> {
    pub(super) heads: u64,
    pub(super) query: &'a Tensor,
    pub(super) cache: &'a Tensor,
    pub(super) key_heads: u64,
    /// Terms of a score, and of what is found for it.
    pub(super) score: u64,
    pub(super) value: u64,
    /// What a key and its value are, of each of their heads.
    pub(super) stored: u64,
}

/// Upper bounds of the sizes of a call.
struct Extent {
    /// Number of queries in all.
    tokens: u64,
    /// Number of sequences, if no borders say it.
    batch: u64,
    /// Places of a page.
    page: u64,
}

impl<'a> Shape<'a> {
    fn of(call: Call<'a>) -> Option<(Shape<'a>, Extent)> {
        let width = |tensor: &Tensor| tensor.sizes.last().copied();
        // By their places: queries, further terms of these, keys, values.
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
        // Pages of latent vectors have no heads in CUTLASS's.
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

/// Where a call says how long its sequences are.
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

/// Without values: as many keys as the longest sequence has, if a table says which pages a sequence has, else all that there are, packed one behind the
/// other.
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
        // The number of places in the pages that a sequence may have.
        (Some(pages), _) => pages.sizes.last()?.saturating_mul(extent.page),
        (None, _) => {
            let of_a_key = shape.key_heads.saturating_mul(*shape.cache.sizes.last()?);
            shape.cache.elements().checked_div(of_a_key)?.div_ceil(batch)
        }
    };
    let mask = places.mask(call);
    let group = Sequences::equal(batch, extent.tokens.div_ceil(batch), keys, mask, 1);
    // Not all have equally many queries.
    Some(attend(call, mask, &shape, &Sequences { queries: extent.tokens, ..group }))
}

/// What a call does with such sequences.
pub(super) fn attended(call: Call<'_>, group: &Sequences) -> Option<Part> {
    Some(attend(call, places(call.name)?.mask(call), &Shape::of(call)?.0, group))
}

/// Attention, costed as of sequences of one length that are as much work.
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
        // As in PyTorch, where the first query sees one key: only of a square that is the same.
        causal: mask.is_causal() && queries == keys,
    };
    let cached = product(&[group.keys, key_heads, stored, cache.dtype.bytes()]);
    let asked = product(&[group.queries, heads, score, query.dtype.bytes()]);
    let written = Bytes(product(&[group.queries, heads, value, query.dtype.bytes()]));
    let operations = flops(&[2, heads, group.visible, widths]);
    Part::inside(family, query.dtype.dtype(), operations, Bytes(asked.saturating_add(cached)), written, call.name)
}
