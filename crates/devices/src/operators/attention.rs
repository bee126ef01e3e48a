//! Owns which operators are fused attention, forward and backward, and their sizes.

use super::call::Call;
use super::{Part, flops};
use uniference_formats::operators::Tensor;
use uniference_sim::device::{Family, Pass};

/// Where the arguments of an attention kernel are.
struct Schema {
    pass: Pass,
    /// Of the queries; keys and values follow.
    query: usize,
    /// The order of the dimensions is batch, sequence, heads, width rather than batch, heads, sequence, width.
    sequence_first: bool,
    /// Of the flag that says that it is causal. Of mask types 1 and 2 it is so as well.
    causal: usize,
    /// Of the borders of packed sequences, for queries and for keys.
    packed: Option<(usize, usize)>,
}

fn schema(name: &str) -> Option<Schema> {
    let forward = |causal| Schema { pass: Pass::Forward, query: 0, sequence_first: false, causal, packed: None };
    let backward = |causal| Schema { pass: Pass::Backward, query: 1, ..forward(causal) };
    Some(match name {
        "_scaled_dot_product_flash_attention" | "_scaled_dot_product_flash_attention_for_cpu" => forward(4),
        "_scaled_dot_product_efficient_attention" | "_scaled_dot_product_cudnn_attention" => forward(6),
        "_scaled_dot_product_fused_attention_overrideable" => forward(5),
        "scaled_dot_product_attention" | "_scaled_dot_product_attention_math" => forward(5),
        "_flash_attention_forward" => Schema { sequence_first: true, packed: Some((3, 4)), ..forward(8) },
        "_efficient_attention_forward" => Schema { sequence_first: true, packed: Some((4, 5)), ..forward(9) },
        "_cudnn_attention_forward" => Schema { packed: Some((4, 5)), ..forward(10) },
        "_scaled_dot_product_flash_attention_backward" => Schema { packed: Some((6, 7)), ..backward(11) },
        "_scaled_dot_product_flash_attention_for_cpu_backward" => backward(7),
        "_scaled_dot_product_efficient_attention_backward" => backward(11),
        "_scaled_dot_product_cudnn_attention_backward" => Schema { packed: Some((9, 10)), ..backward(14) },
        "_scaled_dot_product_fused_attention_overrideable_backward" => Schema { packed: Some((8, 9)), ..backward(13) },
        "_flash_attention_backward" => Schema { sequence_first: true, packed: Some((6, 7)), ..backward(11) },
        "_efficient_attention_backward" => Schema { sequence_first: true, packed: Some((6, 7)), ..backward(14) },
        "_cudnn_attention_backward" => Schema { packed: Some((9, 10)), ..backward(14) },
        _ => return None,
    })
}

pub(super) fn describe(call: Call<'_>) -> Option<Vec<Part>> {
    let schema = schema(call.name)?;
    let tensors = [0, 1, 2].map(|offset| call.tensor(schema.query + offset));
    let [Some(query), Some(key), Some(value)] = tensors else { return None };
    let causal = call.flag(schema.causal) || matches!(call.int(schema.causal), Some(1 | 2));
    let borders =
        |at: usize| call.tensor(at).map(|borders| borders.elements().saturating_sub(1)).filter(|count| *count > 0);
    let packed = schema.packed.and_then(|(queries, keys)| Some((borders(queries)?, borders(keys)?)));
    let [query, key, value] = [query, key, value].map(|tensor| Heads::of(tensor, schema.sequence_first));
    let (query, key, value) = (query?, key?, value?);
    // The lengths of packed sequences are values: equal ones are assumed.
    let (batch, queries, keys) = match packed {
        Some((batch, of_keys)) => (batch, query.sequence.div_ceil(batch), key.sequence.div_ceil(of_keys)),
        None => (query.batch, query.sequence, key.sequence),
    };
    let heads = batch.saturating_mul(query.heads);
    // Forward: scores, and values by scores. Backward: scores again; gradients of the scores and of the values; of queries and of keys.
    let width = match schema.pass {
        Pass::Forward => query.width.saturating_add(value.width),
        _ => query.width.saturating_mul(3).saturating_add(value.width.saturating_mul(2)),
    };
    let family = Family::Attention {
        pass: schema.pass,
        heads,
        queries,
        keys,
        width: query.width.saturating_add(value.width) / 2,
        causal,
    };
    Some(vec![Part::of(call, family, flops(&[2, heads, visible(queries, keys, causal), width]))])
}

/// Pairs of a query and a key that it sees. A causal mask begins at the first query and the first key, as in PyTorch; of a square, half counts.
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
    /// Without a batch, all sequences are one after the other: sequence, heads, width.
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
