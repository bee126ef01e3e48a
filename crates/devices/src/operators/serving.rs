//! Owns operators of vLLM's that launch kernels of its own: what they are called with stands in `csrc/torch_bindings.cpp` of its sources, and of
//! attention in those of `vllm_flash_attn` (version 0.33); and its kernels of Triton. And those of SGLang's that a Llama runs, by the schemas that its
//! version 0.5.23 registers. Their results are arguments, of which the first is often one.
//!
//! A cache of keys and values is an argument as a whole, of which a call reads or writes little: how much, its sizes do not tell. How long the sequences
//! are, the values of other arguments say. Where these are not known, attention is taken to read as many keys as the longest sequence has, for each
//! of its sequences, and these to have equally many queries.

use super::call::{Call, footprint, product, sum};
use super::{Part, flops, gemm, kernel};
use uniference_formats::operators::{Argument, Definition, Tensor};
use uniference_sim::device::{Family, FlatKind, Layout, Pass, RowKind};
use uniference_sim::program::DType;
use uniference_sim::time::Bytes;

/// Where these operators are.
pub(super) const NAMESPACES: [&str; 7] =
    ["_C::", "_C_cache_ops::", "_moe_C::", "_vllm_fa2_C::", "_vllm_fa3_C::", "sgl_kernel::", "sglang::"];

/// Those of attention whose arithmetic depends on lengths that are values.
const ATTENTION: [&str; 3] = ["_vllm_fa2_C::varlen_fwd", "_vllm_fa3_C::fwd", "sgl_kernel::fwd"];

pub(super) fn describe(call: Call<'_>) -> Option<Vec<Part>> {
    let part = match call.name {
        "rms_norm" | "rms_norm_static_fp8_quant" | "rmsnorm" => normalization(call, &[1, 2], &[0]),
        "fused_add_rms_norm" | "fused_add_rmsnorm" => normalization(call, &[0, 1, 2], &[0, 1]),
        "fused_add_rms_norm_static_fp8_quant" => normalization(call, &[1, 2, 3], &[0, 2]),
        // The scales are results, and so is the sum that is normalised, if there is one.
        "rms_norm_dynamic_per_token_quant" | "rms_norm_per_block_quant" => normalization(call, &[1, 2, 6], &[0, 3, 6]),
        "silu_and_mul"
        | "mul_and_silu"
        | "gelu_and_mul"
        | "gelu_tanh_and_mul"
        | "gelu_fast"
        | "gelu_new"
        | "gelu_quick"
        | "silu_and_mul_quant"
        | "silu_and_mul_per_block_quant"
        | "silu_and_mul_with_clamp" => activation(call, 0, 1),
        "_run_activation_inplace" => activation(call, 2, 1),
        "static_scaled_fp8_quant"
        | "dynamic_per_token_scaled_fp8_quant"
        | "static_scaled_int8_quant"
        | "dynamic_scaled_int8_quant" => quantization(call, [1, 0, 2], 1),
        // The greatest element is found first.
        "dynamic_scaled_fp8_quant" => quantization(call, [1, 0, 2], 2),
        "per_token_group_fp8_quant" | "per_token_group_quant_int8" => quantization(call, [0, 1, 2], 1),
        "cutlass_scaled_mm" | "cutlass_scaled_mm_azp" => return gemm::scaled(call).map(|part| vec![part]),
        "vocab_parallel_embedding" => gathered(call),
        "topk_softmax" | "topk_sigmoid" => choice(call),
        "moe_sum" => summed(call),
        "rotary_embedding" => rotation(call, [1, 2], 0, 4),
        "apply_rope_inplace" => rotation(call, [0, 1], 3, 2),
        "reshape_and_cache" | "reshape_and_cache_flash" | "store_cache" => caching(call),
        "varlen_fwd" | "fwd" => attention(call),
        _ => None,
    };
    Some(vec![part?])
}

/// Whether the operator's arithmetic depends on lengths of sequences that are values of its tensors: its arguments name the longest alone.
pub fn lengths_are_values(name: &str) -> bool {
    ATTENTION.contains(&name)
}

fn bytes<'a>(tensors: impl IntoIterator<Item = Option<&'a Tensor>>) -> Bytes {
    sum(tensors.into_iter().flatten().map(footprint))
}

fn flat(call: Call<'_>, kind: FlatKind, of: &Tensor, read: Bytes, written: Bytes) -> Part {
    Part::inside(Family::Flat { kind, elements: of.elements() }, of.dtype.dtype(), 0, read, written, call.name)
}

/// What is read begins with what is normalised.
fn normalization(call: Call<'_>, read: &[usize], written: &[usize]) -> Option<Part> {
    let of = call.tensor(*read.first()?)?;
    let columns = of.sizes.last().copied()?;
    let rows = of.elements().checked_div(columns)?;
    let family = Family::Rows { kind: RowKind::Normalization, pass: Pass::Forward, rows, columns };
    let all = |places: &[usize]| bytes(places.iter().map(|at| call.tensor(*at)));
    Some(Part::inside(family, of.dtype.dtype(), 0, all(read), all(written), call.name))
}

/// The places are those of the result and of the input.
fn activation(call: Call<'_>, result: usize, input: usize) -> Option<Part> {
    let (result, input) = (call.tensor(result)?, call.tensor(input)?);
    Some(flat(call, FlatKind::Elementwise, result, footprint(input), footprint(result)))
}

/// The places are those of the input, of the result and of its scales; the input is read so many times.
fn quantization(call: Call<'_>, [input, result, scales]: [usize; 3], times: u64) -> Option<Part> {
    let (from, to) = (call.tensor(input)?, call.tensor(result)?);
    let read = Bytes(footprint(from).0.saturating_mul(times));
    Some(flat(call, FlatKind::Copy, from, read, bytes([Some(to), call.tensor(scales)])))
}

/// Of the table of weights only the rows that the numbers name.
fn gathered(call: Call<'_>) -> Option<Part> {
    let (result, numbers) = (call.tensor(0)?, call.tensor(1)?);
    Some(flat(call, FlatKind::Gather, result, bytes([Some(result), Some(numbers)]), footprint(result)))
}

/// Which experts a token goes to: a softmax of its scores, and the greatest of it.
fn choice(call: Call<'_>) -> Option<Part> {
    let scores = call.tensor(3)?;
    let columns = *scores.sizes.last()?;
    let rows = scores.elements().checked_div(columns)?;
    let family = Family::Rows { kind: RowKind::Softmax, pass: Pass::Forward, rows, columns };
    let written = bytes((0..3).map(|at| call.tensor(at)));
    Some(Part::inside(family, scores.dtype.dtype(), 0, footprint(scores), written, call.name))
}

/// What a token's experts have found.
fn summed(call: Call<'_>) -> Option<Part> {
    let (input, result) = (call.tensor(0)?, call.tensor(1)?);
    Some(flat(call, FlatKind::Elementwise, input, footprint(input), footprint(result)))
}

/// Kernels of Triton, by the names of their arguments (`vllm/model_executor/layers` of vLLM 0.33). `None`: it is none of vLLM's whose arithmetic is known.
pub(super) fn describe_kernel(call: Call<'_>) -> Option<Part> {
    let given = kernel::Given::of(call.definition);
    match call.name {
        "fused_moe_kernel" => experts(&given),
        "_w8a8_triton_block_scaled_mm" => {
            let (a, b, c) = (given.tensor("A")?, given.tensor("B")?, given.tensor("C")?);
            let [m, n, k] = [given.size("M")?, given.size("N")?, given.size("K")?];
            let read = bytes([Some(a), Some(b), given.tensor("As"), given.tensor("Bs")]);
            let family = Family::Gemm { batch: 1, m, n, k, layout: Layout::NT };
            Some(Part::inside(family, a.dtype.dtype(), flops(&[2, m, n, k]), read, footprint(c), &blocks(true)))
        }
        // Quantisation, and reshaping of experts' rows, is told by its traffic.
        "_per_token_group_quant_fp8" | "_per_token_group_quant_fp8_colmajor" | "moe_fused_mul_sum_kernel" => {
            Some(kernel::describe(call))
        }
        _ => None,
    }
}

/// As products of matrices whose second factor is stored by columns are called.
fn blocks(scaled: bool) -> String {
    format!("{}{}", Layout::NT.name(), if scaled { gemm::BLOCKS } else { "" })
}

/// Products of tokens with the weights of those experts that they were sent to, `(experts, columns, terms)`. Who goes where are values; tokens are taken to
/// choose experts independently of each other, so that of E experts n choices meet E (1 - (1 - 1 / E)^n) different ones, each equally often.
fn experts(given: &kernel::Given<'_>) -> Option<Part> {
    let (a, b, c) = (given.tensor("a_ptr")?, given.tensor("b_ptr")?, given.tensor("c_ptr")?);
    let [all, n, k] = b.sizes[..] else { return None };
    let chosen = given.size("num_valid_tokens")?;
    let missed = libm::pow(1.0 - 1.0 / all.max(1) as f64, chosen as f64);
    let met = (libm::ceil(all as f64 * (1.0 - missed)) as u64).clamp(1, all.max(1));
    let family = Family::Gemm { batch: met, m: chosen.div_ceil(met), n, k, layout: Layout::NT };
    let weights = Bytes(product(&[met, n, k, b.dtype.bytes()]));
    let scales = bytes([given.tensor("a_scale_ptr"), given.tensor("b_scale_ptr"), given.tensor("topk_weights_ptr")]);
    let read = sum([footprint(a), weights, scales].into_iter());
    let by_blocks = given.size("group_k").is_some_and(|group| group > 0);
    let operations = flops(&[2, chosen, n, k]);
    let written = Bytes(product(&[chosen, n, c.dtype.bytes()]));
    Some(Part::inside(family, a.dtype.dtype(), operations, read, written, &blocks(by_blocks)))
}

/// Of the table of angles only the rows that positions name.
fn rotation(call: Call<'_>, [query, key]: [usize; 2], positions: usize, table: usize) -> Option<Part> {
    let (query, key) = (call.tensor(query)?, call.tensor(key));
    let (positions, table) = (call.tensor(positions)?, call.tensor(table)?);
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

/// Places of attention's arguments: the sequences' borders in the queries and in the keys, how many keys each has, the table of its pages, the longest
/// sequence's queries and keys, and the flag that says that it is causal. Queries, keys and values come first.
struct Places {
    borders: usize,
    key_borders: usize,
    used_keys: usize,
    pages: usize,
    longest_keys: usize,
    causal: usize,
}

/// By the name without a namespace.
fn places(name: &str) -> Option<Places> {
    match name {
        "varlen_fwd" => {
            Some(Places { borders: 4, key_borders: 5, used_keys: 6, pages: 8, longest_keys: 11, causal: 15 })
        }
        "fwd" => Some(Places { borders: 7, key_borders: 8, used_keys: 11, pages: 14, longest_keys: 13, causal: 24 }),
        _ => None,
    }
}

/// Sequences of a call of attention that are computed alike: all numbers are sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sequences {
    /// How many there are.
    pub count: u64,
    /// Their queries.
    pub queries: u64,
    /// Their keys.
    pub keys: u64,
    /// Pairs of a query and a key that it sees.
    pub visible: u64,
}

impl Sequences {
    fn add(&mut self, queries: u64, keys: u64, causal: bool) {
        self.count += 1;
        self.queries = self.queries.saturating_add(queries);
        self.keys = self.keys.saturating_add(keys);
        self.visible = self.visible.saturating_add(visible(queries, keys, causal));
    }
}

/// The last query sees all keys, and if attention is causal, each before it one less.
fn visible(queries: u64, keys: u64, causal: bool) -> u64 {
    let hidden = if causal { product(&[queries.min(keys), queries.min(keys).saturating_sub(1)]) / 2 } else { 0 };
    queries.saturating_mul(keys).saturating_sub(hidden)
}

/// The sequences of a call of attention, by the values of its arguments where these are known: those with one query, which are generating, and
/// those with more. `None`: the operator is none whose arithmetic depends on them, or they are not known.
pub fn sequences<'a>(definition: &Definition, values: impl Fn(usize) -> Option<&'a [i64]>) -> Option<[Sequences; 2]> {
    let call = Call::new(definition);
    let places = places(call.name).filter(|_| lengths_are_values(&definition.name))?;
    let between = |borders: &[i64]| -> Vec<i64> { borders.windows(2).map(|pair| pair[1] - pair[0]).collect() };
    let queries = between(values(places.borders)?);
    let keys = match values(places.used_keys) {
        Some(used) => used.to_vec(),
        None => between(values(places.key_borders)?),
    };
    if keys.len() != queries.len() {
        return None;
    }
    let mut found = [Sequences::default(); 2];
    for (queries, keys) in queries.into_iter().zip(keys) {
        let (queries, keys) = (u64::try_from(queries).ok()?, u64::try_from(keys).ok()?);
        if queries > 0 {
            found[usize::from(queries > 1)].add(queries, keys, call.flag(places.causal));
        }
    }
    // Memory whose values were lost reads as zeros.
    found.iter().any(|group| group.count > 0).then_some(found)
}

/// What a call of attention does with such sequences, as [`sequences`] has found them.
pub fn with_sequences(definition: &Definition, sequences: &[Sequences]) -> Option<Vec<Part>> {
    let call = Call::new(definition);
    let places = places(call.name)?;
    let there_are = |group: &&Sequences| group.count > 0;
    sequences.iter().filter(there_are).map(|group| attended(call, &places, group)).collect()
}

/// Without values: as many keys as the longest sequence has, if a table says which pages a sequence has, else all that there are, packed one behind the
/// other.
fn attention(call: Call<'_>) -> Option<Part> {
    let places = places(call.name)?;
    let (query, key) = (call.tensor(0)?, call.tensor(1)?);
    let [.., heads, width] = query.sizes[..] else { return None };
    let tokens = query.elements().checked_div(heads.saturating_mul(width))?;
    let batch = match call.tensor(places.borders) {
        Some(borders) => borders.elements().saturating_sub(1).max(1),
        None => *query.sizes.first()?,
    };
    let key_heads = *key.sizes.iter().nth_back(1)?;
    let stored = key.elements().checked_div(key_heads.saturating_mul(*key.sizes.last()?))?;
    let keys = match (call.tensor(places.pages), call.argument(places.longest_keys)) {
        (Some(_), Some(Argument::Int(longest))) => u64::try_from(*longest).ok()?,
        // As many as there are places in the pages that a sequence may have.
        (Some(pages), _) => pages.sizes.last()?.saturating_mul(*key.sizes.iter().nth_back(2)?),
        (None, _) => stored.div_ceil(batch),
    };
    let visible = visible(tokens.div_ceil(batch), keys, call.flag(places.causal));
    let group = Sequences {
        count: batch,
        queries: tokens,
        keys: batch.saturating_mul(keys),
        visible: batch.saturating_mul(visible),
    };
    attended(call, &places, &group)
}

/// Attention of sequences that are all as long as the mean of these.
fn attended(call: Call<'_>, places: &Places, group: &Sequences) -> Option<Part> {
    let (query, key, value) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let [.., heads, width] = query.sizes[..] else { return None };
    let (key_heads, value_width) = (*key.sizes.iter().nth_back(1)?, *value.sizes.last()?);
    let (queries, keys) = (group.queries.div_ceil(group.count), group.keys.div_ceil(group.count));
    let widths = width.saturating_add(value_width);
    let family = Family::Attention {
        pass: Pass::Forward,
        heads: group.count.saturating_mul(heads),
        queries,
        keys,
        width: widths / 2,
        // As in PyTorch, where the first query sees one key: only of a square that is the same.
        causal: call.flag(places.causal) && queries == keys,
    };
    let cached = product(&[group.keys, key_heads, widths, key.dtype.bytes()]);
    let asked = product(&[group.queries, heads, width, query.dtype.bytes()]);
    let written = Bytes(product(&[group.queries, heads, value_width, query.dtype.bytes()]));
    let operations = flops(&[2, heads, group.visible, widths]);
    let dtype: Option<DType> = query.dtype.dtype();
    Some(Part::inside(family, dtype, operations, Bytes(asked.saturating_add(cached)), written, call.name))
}
