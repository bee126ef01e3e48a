//! Owns GEMMs: of 8-bit and 4-bit factors, and of tokens with the weights of the experts that they were routed to.

use super::super::call::{Call, footprint, product, sum};
use super::super::{Part, flops, gemm, kernel};
use super::arguments::Arguments;
use super::bytes;
use uniference_formats::operators::Tensor;
use uniference_sim::device::{Family, Layout};
use uniference_sim::time::Bytes;

/// A GEMM with column-major weights, as all of these operators use, and its memory traffic.
struct Product {
    batch: u64,
    m: u64,
    n: u64,
    k: u64,
    /// Total number of rows: `m` is rounded up if the members of a batch have unequal numbers.
    rows: u64,
    read: Bytes,
    written: Bytes,
}

impl Product {
    /// The GEMM's part: it computes in the element type of `factor`; `scales` ends the variant.
    fn part(self, factor: &Tensor, scales: &str) -> Part {
        let Product { batch, m, n, k, rows, read, written } = self;
        let family = Family::Gemm { batch, m, n, k, layout: Layout::NT };
        let variant = format!("{}{scales}", Layout::NT.name());
        Part::inside(family, factor.dtype.dtype(), flops(&[2, rows, n, k]), read, written, &variant)
    }

    /// The part of a GEMM with expert weights.
    fn of_experts(self, factor: &Tensor, scales: &str) -> Part {
        let mut part = self.part(factor, scales);
        part.variant += gemm::EXPERTS;
        part
    }
}

/// The GEMM of an operator; `None`: it is none of these.
pub(super) fn describe(given: &Arguments<'_>) -> Option<Part> {
    let result = |name: &'static str| given.tensor(name);
    let returned = || given.call.result(0);
    // DeepGEMM names scales differently in vLLM's and SGLang's packages.
    let [of_a, of_b] = [["sfa", "a_sf"], ["sfb", "b_sf"]].map(|names| given.either(&names));
    match given.call.name {
        "cutlass_scaled_mm" | "cutlass_scaled_mm_azp" => scaled(given, ["a", "b", "a_scales"], result("out")?),
        "fp8_scaled_mm" | "int8_scaled_mm" => scaled(given, ["mat_a", "mat_b", "scales_a"], returned()?),
        "fp8_fp4_gemm_nt" => dense(given, &["a", of_a, "b", of_b], result("d")?, gemm::BLOCKS),
        "bf16_gemm_nt" => dense(given, &["a", "b"], result("d")?, ""),
        "dsv3_fused_a_gemm" | "fp32_router_gemm" => dense(given, &["mat_a", "mat_b"], result("output")?, ""),
        // Weights in 4 or 8 bits, which the kernel converts to the type of the tokens.
        "marlin_gemm" => {
            let scales = ["b_scales", "a_scales", "global_scale", "b_zeros_or_none"];
            let read = [&["a", "c_or_none", "b_q_weight", "b_bias_or_none"], &scales[..]].concat();
            dense(given, &read, returned()?, "")
        }
        "awq_gemm" => dense(given, &["_in_feats", "_kernel", "_scaling_factors", "_zeros"], returned()?, ""),
        "gptq_gemm" => dense(given, &["a", "b_q_weight", "b_gptq_qzeros", "b_gptq_scales"], returned()?, ""),
        "machete_mm" => {
            let scales = ["group_scales", "group_zeros", "channel_scales", "token_scales"];
            dense(given, &[&["A", "B"], &scales[..]].concat(), returned()?, "")
        }
        "cutlass_w4a8_mm" => {
            dense(given, &["A", "B", "group_scales", "channel_scales", "token_scales"], returned()?, "")
        }
        "moe_wna16_marlin_gemm" => marlin_experts(given),
        "moe_wna16_gemm" => {
            let weights = ["b_qweight", "b_scales", "b_qzeros"];
            sent(given, "input", weights, result("output")?, Rows::Chosen, "")
        }
        "cutlass_moe_mm" => {
            let weights = ["b_tensors", "a_scales", "b_scales"];
            sent(given, "a_tensors", weights, result("out_tensors")?, Rows::Chosen, gemm::ROWS)
        }
        "fp8_blockwise_scaled_grouped_mm" => {
            sent(given, "a", ["b", "scales_a", "scales_b"], result("output")?, Rows::Chosen, gemm::BLOCKS)
        }
        "m_grouped_fp8_fp4_gemm_nt_contiguous" => {
            sent(given, "a", ["b", of_a, of_b], result("d")?, Rows::Padded, gemm::BLOCKS)
        }
        "m_grouped_bf16_gemm_nt_contiguous" => sent(given, "a", ["b"], result("d")?, Rows::Padded, ""),
        _ => None,
    }
}

/// An 8-bit GEMM with scales, by the names of factors and scales. It reads all arguments except the result.
fn scaled(given: &Arguments<'_>, [a, b, scales]: [&'static str; 3], result: &Tensor) -> Option<Part> {
    let factors = [given.tensor(a)?, given.tensor(b)?, given.tensor(scales)?];
    let read = given.call.arguments().filter(|tensor| !std::ptr::eq(*tensor, result));
    gemm::scaled(given.call, factors, sum(read.map(footprint)), result)
}

/// The GEMM of a Triton kernel, by the names of its arguments. `None`: its arithmetic is unknown.
pub(super) fn describe_kernel(call: Call<'_>) -> Option<Part> {
    let given = kernel::Given::of(call.definition);
    match call.name {
        "fused_moe_kernel" => experts(&given),
        "_matmul_ogs" | "_p_matmul_ogs" => routed(&given),
        // vLLM's kernel, and SGLang's, which has several of the last names.
        "_w8a8_triton_block_scaled_mm"
        | "_w8a8_block_fp8_matmul"
        | "_w8a8_block_fp8_matmul_unrolledx4"
        | "_w8a8_block_fp8_matmul_hopper" => {
            let (a, b, c) = (given.tensor("A")?, given.tensor("B")?, given.tensor("C")?);
            let [m, n, k] = [given.size("M")?, given.size("N")?, given.size("K")?];
            let read = bytes([Some(a), Some(b), given.tensor("As"), given.tensor("Bs")]);
            let product = Product { batch: 1, m, n, k, rows: m, read, written: footprint(c) };
            Some(product.part(a, gemm::BLOCKS))
        }
        _ => None,
    }
}

/// A GEMM of the rows of the first argument in `read` with all weights, and as many columns as the result. It reads the
/// arguments in `read` that are tensors.
fn dense(given: &Arguments<'_>, read: &[&'static str], result: &Tensor, scales: &str) -> Option<Part> {
    let a = given.tensor(read.first()?)?;
    let (k, n) = (*a.sizes.last()?, *result.sizes.last()?);
    let rows = a.elements().checked_div(k)?;
    let read = bytes(given.tensors(read));
    Some(Product { batch: 1, m: rows, n, k, rows, read, written: footprint(result) }.part(a, scales))
}

/// Number of distinct experts that `choices` choices select. The routing is a matter of values; tokens are assumed to
/// choose experts independently of each other, so that n choices among E experts select E (1 - (1 - 1 / E)^n) different
/// ones, each equally often.
fn met(experts: u64, choices: u64) -> u64 {
    let missed = libm::pow(1.0 - 1.0 / experts.max(1) as f64, choices as f64);
    (libm::ceil(experts as f64 * (1.0 - missed)) as u64).clamp(1, experts.max(1))
}

/// Rows that are sorted by their experts.
#[derive(Clone, Copy)]
enum Rows {
    /// Each row is a choice.
    Chosen,
    /// The rows are room for the choices of each expert, padded for DeepGEMM.
    Padded,
}

/// Number of rows of an expert that DeepGEMM computes at a time on Hopper (`get_mk_alignment_for_contiguous_layout`).
const ALIGNMENT: u64 = 128;

impl Rows {
    /// Number of choices that the rows stand for. For n choices among E experts vLLM allocates n + min(n, E) (128 - 1)
    /// rows, rounded up to a multiple of 128; among the numbers of choices with the same number of rows, the middle one
    /// is assumed.
    fn choices(self, rows: u64, experts: u64) -> u64 {
        match self {
            Rows::Chosen => rows,
            Rows::Padded if rows / ALIGNMENT <= experts => rows / ALIGNMENT,
            Rows::Padded => {
                let most = rows.saturating_sub(experts.saturating_mul(ALIGNMENT - 1));
                most.saturating_sub(ALIGNMENT / 2).max(experts + 1)
            }
        }
    }
}

/// Bytes read from tensors if `met` of all experts are selected: a tensor with a part per expert counts for the
/// selected ones.
fn of_met<'a>(tensors: impl IntoIterator<Item = Option<&'a Tensor>>, met: u64, all: u64) -> Bytes {
    sum(tensors.into_iter().flatten().map(|tensor| match tensor.sizes.first() {
        Some(first) if *first == all => Bytes(footprint(tensor).0.checked_div(all).unwrap_or(0).saturating_mul(met)),
        _ => footprint(tensor),
    }))
}

/// A GEMM of rows that are sorted by their experts, with weights `(experts, .., ..)`: `a` is the name of the rows,
/// `weights` has the names of the weights and scales.
fn sent<const N: usize>(
    given: &Arguments<'_>,
    a: &'static str,
    weights: [&'static str; N],
    result: &Tensor,
    rows: Rows,
    variant: &str,
) -> Option<Part> {
    let (a, all) = (given.tensor(a)?, *given.tensor(weights.first()?)?.sizes.first()?);
    let (k, n) = (*a.sizes.last()?, *result.sizes.last()?);
    let choices = rows.choices(result.elements().checked_div(n)?, all);
    let batch = met(all, choices);
    let read = weights.map(|name| given.tensor(name));
    let (of_a, written) = ([k, a.dtype.bytes()], [n, result.dtype.bytes()]);
    let of_choices = |[width, bytes]: [u64; 2]| Bytes(product(&[choices, width, bytes]));
    let of_rows = match rows {
        // Some kernels read a token's row once for all of its choices.
        Rows::Chosen => (footprint(a), footprint(result)),
        Rows::Padded => (of_choices(of_a), of_choices(written)),
    };
    let read = sum([of_rows.0, of_met(read, batch, all)].into_iter());
    let m = choices.div_ceil(batch);
    Some(Product { batch, m, n, k, rows: choices, read, written: of_rows.1 }.of_experts(a, variant))
}

/// A GEMM of unsorted tokens with expert weights, whose sizes are arguments: `top_k` rows for each of `size_m` tokens.
fn marlin_experts(given: &Arguments<'_>) -> Option<Part> {
    let (a, b) = (given.tensor("a")?, given.tensor("b_q_weight")?);
    let [chosen, tokens] = [given.size("top_k")?, given.size("size_m")?];
    let [n, k] = [given.size("size_n")?, given.size("size_k")?];
    let (all, choices) = (*b.sizes.first()?, product(&[tokens, chosen]));
    let batch = met(all, choices);
    let of_experts = given.tensors(&["b_q_weight", "b_bias_or_none", "b_scales", "b_zeros_or_none"]);
    let of_experts = of_met(of_experts, batch, all);
    let read = sum([footprint(a), of_experts].into_iter());
    let written = Bytes(product(&[choices, n, a.dtype.bytes()]));
    Some(Product { batch, m: choices.div_ceil(batch), n, k, rows: choices, read, written }.of_experts(a, ""))
}

/// GEMMs of tokens with the weights `(experts, columns, terms)` of the experts that they were routed to.
fn experts(given: &kernel::Given<'_>) -> Option<Part> {
    let (a, b, c) = (given.tensor("a_ptr")?, given.tensor("b_ptr")?, given.tensor("c_ptr")?);
    let [here, n, k] = b.sizes[..] else { return None };
    let of_all = given.size("num_valid_tokens")?;
    let all = experts_of_all(given, here, of_all);
    // With expert parallelism each GPU holds a part of the experts, and the call gets the choices of all GPUs.
    let of_here = |count: u64| (count.saturating_mul(here).div_ceil(all.max(1))).clamp(1, count.max(1));
    let (choices, batch) = (of_here(of_all), of_here(met(all, of_all)).min(here.max(1)));
    let of_experts = of_met([Some(b), given.tensor("b_scale_ptr"), given.tensor("b_zp_ptr")], batch, here);
    let of_tokens = bytes([Some(a), given.tensor("a_scale_ptr"), given.tensor("topk_weights_ptr")]);
    let read = sum([of_tokens, of_experts].into_iter());
    let by_blocks = given.size("group_k").is_some_and(|group| group > 0);
    let written = Bytes(product(&[choices, n, c.dtype.bytes()]));
    let product = Product { batch, m: choices.div_ceil(batch), n, k, rows: choices, read, written };
    Some(product.of_experts(a, if by_blocks { gemm::BLOCKS } else { "" }))
}

/// Number of experts on all GPUs, of which this GPU holds some. No argument gives it, but vLLM allocates n + E (b - 1)
/// rows for n choices among these E experts, in blocks of b (`moe_align_block_size`), or n b rows if there are fewer
/// choices than experts: then there are more experts than that. SGLang counts one expert more, and only those of this
/// GPU.
fn experts_of_all(given: &kernel::Given<'_>, here: u64, choices: u64) -> u64 {
    let room = given.tensor("sorted_token_ids_ptr").map_or(0, Tensor::elements);
    let block = given.size("BLOCK_SIZE_M").unwrap_or(1);
    let found = room.saturating_sub(choices).checked_div(block.saturating_sub(1)).unwrap_or(0);
    if found >= here.saturating_mul(2).max(3) { found } else { here }
}

/// GEMMs of OpenAI's `triton_kernels`, as vLLM ships them, whose weights may have 4 bits. With a histogram of the
/// experts, the rows are sorted by expert, or the call gathers them by indices; else all rows use one weight.
fn routed(given: &kernel::Given<'_>) -> Option<Part> {
    let tensor = |names: [&str; 2]| names.into_iter().find_map(|name| given.tensor(name));
    let (x, w, y) = (tensor(["X", "XPtr"])?, tensor(["W", "WPtr"])?, tensor(["Y", "YPtr"])?);
    let [n, k] = [given.size("N")?, given.size("K")?];
    let is_routed = given.tensor("ExptHist").is_some();
    let all = given.size("N_EXPTS_TOT").filter(|all| *all > 0 && is_routed).unwrap_or(1);
    let gathered = given.tensor("GatherIndx").map(Tensor::elements);
    let rows = given.size("M").or(gathered).or_else(|| x.elements().checked_div(*x.sizes.last()?))?;
    let batch = met(all, rows);
    let of_experts = of_met([Some(w), tensor(["WMxScale", "MxScale"]), given.tensor("B")], batch, all);
    let read = sum([footprint(x), of_experts].into_iter());
    let product = Product { batch, m: rows.div_ceil(batch), n, k, rows, read, written: footprint(y) };
    Some(if is_routed { product.of_experts(x, "") } else { product.part(x, "") })
}
