//! Owns fused attention operators, forward and backward, and their sizes.

use super::call::{Call, product};
use super::lengths::{KvSplits, Lengths, Mask, Queries, Sequences};
use super::{Part, flops};
use uniference_formats::operators::Tensor;
use uniference_sim::device::{Family, Pass};
use uniference_sim::time::Bytes;

/// Positions of the arguments of an attention kernel.
struct Schema {
    pass: Pass,
    /// The queries; keys and values follow.
    query: usize,
    /// Whether the order of dimensions is batch, sequence, heads, width rather than batch, heads, sequence, width.
    sequence_first: bool,
    /// The flag, or the type of the mask, that makes attention causal.
    causal: usize,
    /// The cumulative lengths of packed sequences, of queries and of keys.
    packed: Option<(usize, usize)>,
    /// The number of keys in use of each sequence.
    used: Option<usize>,
    /// The page table of the keys.
    pages: Option<usize>,
    window: Window,
}

/// Position of a call's window, and the alignment of queries and keys.
#[derive(Clone, Copy)]
enum Window {
    /// No window; the first query is aligned with the first key.
    None,
    /// No window; if the call gives the number of keys in use, the last query is aligned with the last key.
    OfCache,
    /// The window's size to the left; its size to the right is the next argument. The last query is aligned with the
    /// last key.
    Sides(usize),
    /// Number of keys up to a query's own. The type of the mask aligns the first query with the first key (1) or the
    /// last query with the last key (2).
    Last(usize),
}

fn schema(name: &str) -> Option<Schema> {
    let forward = |causal| Schema {
        pass: Pass::Forward,
        query: 0,
        sequence_first: false,
        causal,
        packed: None,
        used: None,
        pages: None,
        window: Window::None,
    };
    let backward = |causal| Schema { pass: Pass::Backward, query: 1, ..forward(causal) };
    // Positions relative to the queries, which all other arguments follow.
    let flash = |query: usize, schema: Schema| Schema {
        query,
        sequence_first: true,
        packed: Some((query + 3, query + 4)),
        used: Some(query + 13),
        pages: Some(query + 15),
        window: Window::Sides(query + 11),
        ..schema
    };
    Some(match name {
        "_scaled_dot_product_flash_attention" | "_scaled_dot_product_flash_attention_for_cpu" => forward(4),
        "_scaled_dot_product_efficient_attention" | "_scaled_dot_product_cudnn_attention" => forward(6),
        "_scaled_dot_product_fused_attention_overrideable" => forward(5),
        "scaled_dot_product_attention" | "_scaled_dot_product_attention_math" => forward(5),
        "_flash_attention_forward" => flash(0, forward(8)),
        "_flash_attention_forward_no_dropout_inplace" => flash(1, forward(9)),
        "_efficient_attention_forward" => {
            let window = Window::Last(13);
            Schema { sequence_first: true, packed: Some((4, 5)), used: Some(12), window, ..forward(9) }
        }
        "_cudnn_attention_forward" => {
            let window = Window::OfCache;
            Schema { packed: Some((4, 5)), used: Some(13), pages: Some(14), window, ..forward(10) }
        }
        "_cudnn_attention_forward_no_dropout_inplace" => {
            let window = Window::OfCache;
            Schema { query: 1, packed: Some((4, 5)), used: Some(10), pages: Some(11), window, ..forward(8) }
        }
        "_scaled_dot_product_flash_attention_backward" => Schema { packed: Some((6, 7)), ..backward(11) },
        "_scaled_dot_product_flash_attention_for_cpu_backward" => backward(7),
        "_scaled_dot_product_efficient_attention_backward" => backward(11),
        "_scaled_dot_product_cudnn_attention_backward" => Schema { packed: Some((9, 10)), ..backward(14) },
        "_scaled_dot_product_fused_attention_overrideable_backward" => Schema { packed: Some((8, 9)), ..backward(13) },
        "_flash_attention_backward" => {
            Schema { sequence_first: true, packed: Some((6, 7)), window: Window::Sides(15), ..backward(11) }
        }
        "_efficient_attention_backward" => {
            Schema { sequence_first: true, packed: Some((6, 7)), window: Window::Last(18), ..backward(14) }
        }
        "_cudnn_attention_backward" => Schema { packed: Some((9, 10)), ..backward(14) },
        _ => return None,
    })
}

/// Parts of a call without values: packed sequences are assumed to have equal lengths, and keys in pages to fill them.
pub(super) fn describe(call: Call<'_>) -> Option<Vec<Part>> {
    let schema = schema(call.name)?;
    let shape = Shape::of(call, &schema)?;
    let mask = schema.mask(call);
    let Shape { query, key, packed, .. } = &shape;
    let part = match packed {
        Some(packed) => {
            let queries = query.sequence.div_ceil(packed.queries);
            let keys = packed.room.unwrap_or_else(|| key.sequence.div_ceil(packed.keys));
            let group = Sequences::equal(packed.queries, queries, keys, mask, 1);
            // The lengths, rounded up, may exceed the number of keys.
            let keys = if packed.room.is_some() { group.keys } else { group.keys.min(key.sequence) };
            attend(call, &schema, &shape, &Sequences { queries: query.sequence, keys, ..group })
        }
        None => {
            let (queries, keys) = (query.sequence, key.sequence);
            let visible = match mask.before {
                Some(_) => mask.visible(queries, keys),
                None => visible(queries, keys, mask.is_causal()),
            };
            let family = shape.family(&schema, query.batch, (queries, keys), mask.is_causal());
            Part::of(call, family, shape.flops(&schema, query.batch.saturating_mul(visible)))
        }
    };
    Some(vec![part])
}

/// Arguments with the sequence lengths of a call, if its sequences are packed.
pub(super) fn lengths(call: Call<'_>) -> Option<Lengths> {
    let schema = schema(call.name)?;
    let (queries, keys) = schema.packed.filter(|(queries, _)| call.tensor(*queries).is_some())?;
    Some(Lengths {
        queries: Queries::Borders(queries),
        key_borders: Some(keys),
        used_keys: schema.used,
        before_queries: false,
        may_be_empty: false,
        mask: schema.mask(call),
        splits: KvSplits::ONE,
    })
}

/// The part that a call performs for these sequences.
pub(super) fn attended(call: Call<'_>, group: &Sequences) -> Option<Part> {
    let schema = schema(call.name)?;
    Some(attend(call, &schema, &Shape::of(call, &schema)?, group))
}

/// Attention of packed sequences, costed as sequences of one length with as much work.
fn attend(call: Call<'_>, schema: &Schema, shape: &Shape, group: &Sequences) -> Part {
    if group.queries == 0 {
        return Part::idle(call);
    }
    let Shape { query, key, value, .. } = shape;
    let mask = schema.mask(call);
    let (count, queries, keys) = group.alike(mask);
    // PyTorch's causal mask shows one key to the first query: both alignments agree only for a square mask.
    let causal = mask.is_causal() && queries == keys;
    let family = shape.family(schema, count, (queries, keys), causal);
    let flops = shape.flops(schema, group.visible);
    if schema.pass != Pass::Forward {
        let share = |bytes: Bytes| {
            let share = u128::from(bytes.0) * u128::from(group.queries) / u128::from(query.sequence.max(1));
            Bytes(u64::try_from(share).unwrap_or(u64::MAX))
        };
        let dtype = call.dtype();
        return Part::inside(family, dtype, flops, share(call.read()), share(call.written()), call.name);
    }
    let bytes = call.tensor(schema.query).map_or(0, |query| query.dtype.bytes());
    let stored = key.width.saturating_add(value.width);
    let cached = product(&[group.keys, key.heads, stored, bytes]);
    let asked = product(&[group.queries, query.heads, query.width, bytes]);
    let written = Bytes(product(&[group.queries, query.heads, value.width, bytes]));
    Part::inside(family, call.dtype(), flops, Bytes(asked.saturating_add(cached)), written, call.name)
}

impl Schema {
    fn mask(&self, call: Call<'_>) -> Mask {
        // A type of mask of 0 means none.
        let kind = call.int(self.causal);
        let causal = call.flag(self.causal) || matches!(kind, Some(1 | 2));
        match self.window {
            Window::None => Mask::of(causal, None, None, false),
            Window::OfCache => {
                let has_cache = self.used.is_some_and(|used| call.tensor(used).is_some());
                Mask::of(causal, None, None, has_cache)
            }
            Window::Sides(window) => Mask::of(causal, call.int(window), call.int(window + 1), true),
            Window::Last(window) => {
                let before = call.int(window).filter(|size| *size > 0).map(|size| size - 1);
                Mask::of(causal, before, None, kind == Some(2))
            }
        }
    }
}

/// The sizes of queries, keys and values.
struct Shape {
    query: Heads,
    key: Heads,
    value: Heads,
    packed: Option<Packed>,
}

/// Number of packed sequences.
struct Packed {
    queries: u64,
    keys: u64,
    /// Number of keys per sequence that its pages have room for, if keys are in pages.
    room: Option<u64>,
}

impl Shape {
    fn of(call: Call<'_>, schema: &Schema) -> Option<Shape> {
        let borders =
            |at: usize| call.tensor(at).map(|borders| borders.elements().saturating_sub(1)).filter(|count| *count > 0);
        let packed = schema.packed.and_then(|(queries, keys)| {
            let (queries, keys) = (borders(queries)?, borders(keys));
            Some(Packed { queries, keys: keys.unwrap_or(queries), room: None })
        });
        // Packed tensors have no batch dimension: sequence, heads, width.
        let sequence_first = schema.sequence_first || packed.is_some();
        let heads = |offset: usize| Heads::of(call.tensor(schema.query + offset)?, sequence_first);
        let (query, key, value) = (heads(0)?, heads(1)?, heads(2)?);
        let pages = schema.pages.and_then(|table| call.tensor(table)?.sizes.last().copied());
        let room = pages.map(|pages| pages.saturating_mul(key.sequence));
        Some(Shape { query, key, value, packed: packed.map(|packed| Packed { room, ..packed }) })
    }

    fn family(&self, schema: &Schema, batch: u64, (queries, keys): (u64, u64), causal: bool) -> Family {
        let heads = batch.saturating_mul(self.query.heads);
        let width = self.query.width.saturating_add(self.value.width) / 2;
        Family::Attention { pass: schema.pass, heads, queries, keys, width, causal }
    }

    /// Operations for this number of visible pairs of a query and a key, in each head.
    fn flops(&self, schema: &Schema, visible: u64) -> u64 {
        let (query, value) = (self.query.width, self.value.width);
        // Forward: scores, and scores by values. Backward: scores again; gradients of scores and values; of queries and
        // keys.
        let width = match schema.pass {
            Pass::Forward => query.saturating_add(value),
            _ => query.saturating_mul(3).saturating_add(value.saturating_mul(2)),
        };
        flops(&[2, self.query.heads, visible, width])
    }
}

/// Number of visible pairs of a query and a key. A causal mask begins at the first query and the first key, as in
/// PyTorch; a square mask counts half.
pub(crate) fn visible(queries: u64, keys: u64, causal: bool) -> u64 {
    if !causal {
        return queries.saturating_mul(keys);
    }
    let square = queries.min(keys);
    let below = queries.saturating_sub(keys).saturating_mul(keys);
    square.saturating_mul(square).div_ceil(2).saturating_add(below)
}

struct Heads {
    batch: u64,
    heads: u64,
    sequence: u64,
    width: u64,
}

impl Heads {
    /// Dimensions of a tensor. Without a batch all sequences are packed: sequence, heads, width.
    fn of(tensor: &Tensor, sequence_first: bool) -> Option<Heads> {
        Some(match (tensor.sizes.as_slice(), sequence_first) {
            ([batch, sequence, heads, width], true) | ([batch, heads, sequence, width], false) => {
                Heads { batch: *batch, heads: *heads, sequence: *sequence, width: *width }
            }
            ([sequence, heads, width], true) | ([heads, sequence, width], false) => {
                Heads { batch: 1, heads: *heads, sequence: *sequence, width: *width }
            }
            _ => return None,
        })
    }
}
