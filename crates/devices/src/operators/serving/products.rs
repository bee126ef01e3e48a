//! Owns products: of factors in 8 and 4 bits, and of tokens with the weights of those experts that they were sent to.

use super::super::call::{Call, footprint, product, sum};
use super::super::{Part, flops, gemm, kernel};
use super::bytes;
use uniference_formats::operators::Tensor;
use uniference_sim::device::{Family, Layout};
use uniference_sim::time::Bytes;

/// A product with weights that are stored by columns, as those of all of these operators are, and what is read and written.
struct Product {
    batch: u64,
    m: u64,
    n: u64,
    k: u64,
    /// How many rows there are in all: `m` is rounded up where a batch's have not equally many.
    rows: u64,
    read: Bytes,
    written: Bytes,
}

impl Product {
    /// It computes with elements as those of `factor`; `scales` ends the variant.
    fn part(self, factor: &Tensor, scales: &str) -> Part {
        let Product { batch, m, n, k, rows, read, written } = self;
        let family = Family::Gemm { batch, m, n, k, layout: Layout::NT };
        let variant = format!("{}{scales}", Layout::NT.name());
        Part::inside(family, factor.dtype.dtype(), flops(&[2, rows, n, k]), read, written, &variant)
    }

    /// The part of a product with the weights of experts.
    fn of_experts(self, factor: &Tensor, scales: &str) -> Part {
        let mut part = self.part(factor, scales);
        part.variant += gemm::EXPERTS;
        part
    }
}

/// `None`: the operator is none of these.
pub(super) fn describe(call: Call<'_>) -> Option<Part> {
    match call.name {
        "cutlass_scaled_mm" | "cutlass_scaled_mm_azp" => gemm::scaled(call, [1, 2, 3], call.tensor(0)?),
        "fp8_scaled_mm" | "int8_scaled_mm" => gemm::scaled(call, [0, 1, 2], call.result(0)?),
        "fp8_fp4_gemm_nt" => dense(call, 0, 0..4, call.tensor(4)?, gemm::BLOCKS),
        "bf16_gemm_nt" => dense(call, 0, 0..2, call.tensor(2)?, ""),
        "dsv3_fused_a_gemm" | "fp32_router_gemm" => dense(call, 1, 1..3, call.tensor(0)?, ""),
        // Weights in 4 or 8 bits, which the kernel turns into what tokens are.
        "marlin_gemm" => dense(call, 0, 0..8, call.result(0)?, ""),
        "awq_gemm" | "gptq_gemm" => dense(call, 0, 0..4, call.result(0)?, ""),
        "machete_mm" | "cutlass_w4a8_mm" => dense(call, 0, 0..9, call.result(0)?, ""),
        "moe_wna16_marlin_gemm" => marlin_experts(call),
        "moe_wna16_gemm" => sent(call, 0, [2, 3, 4], call.tensor(1)?, Rows::Chosen, ""),
        "cutlass_moe_mm" => sent(call, 1, [2, 3, 4], call.tensor(0)?, Rows::Chosen, gemm::ROWS),
        "fp8_blockwise_scaled_grouped_mm" => sent(call, 6, [7, 8, 9], call.tensor(0)?, Rows::Chosen, gemm::BLOCKS),
        "m_grouped_fp8_fp4_gemm_nt_contiguous" => sent(call, 0, [2, 1, 3], call.tensor(4)?, Rows::Padded, gemm::BLOCKS),
        "m_grouped_bf16_gemm_nt_contiguous" => sent(call, 0, [1], call.tensor(2)?, Rows::Padded, ""),
        _ => None,
    }
}

/// Kernels of Triton, by the names of their arguments. `None`: it is none whose arithmetic is known.
pub(super) fn describe_kernel(call: Call<'_>) -> Option<Part> {
    let given = kernel::Given::of(call.definition);
    match call.name {
        "fused_moe_kernel" => experts(&given),
        "_matmul_ogs" | "_p_matmul_ogs" => routed(&given),
        // vLLM's, and SGLang's, which has several of the last names.
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

/// The rows of argument `a` with all weights: so many columns as the result has. It reads those arguments that are tensors.
fn dense(call: Call<'_>, a: usize, read: std::ops::Range<usize>, result: &Tensor, scales: &str) -> Option<Part> {
    let a = call.tensor(a)?;
    let (k, n) = (*a.sizes.last()?, *result.sizes.last()?);
    let rows = a.elements().checked_div(k)?;
    let read = bytes(read.map(|at| call.tensor(at)));
    Some(Product { batch: 1, m: rows, n, k, rows, read, written: footprint(result) }.part(a, scales))
}

/// Of so many experts those that so many choices meet. Who goes where are values; tokens are taken to choose experts independently of each other, so
/// that of E experts n choices meet E (1 - (1 - 1 / E)^n) different ones, each equally often.
fn met(experts: u64, choices: u64) -> u64 {
    let missed = libm::pow(1.0 - 1.0 / experts.max(1) as f64, choices as f64);
    (libm::ceil(experts as f64 * (1.0 - missed)) as u64).clamp(1, experts.max(1))
}

/// What rows that have been put in order of their experts are.
#[derive(Clone, Copy)]
enum Rows {
    /// Each a choice.
    Chosen,
    /// Room for the choices of each expert, padded for DeepGEMM.
    Padded,
}

/// DeepGEMM computes so many rows of an expert at a time on Hopper (`get_mk_alignment_for_contiguous_layout`).
const ALIGNMENT: u64 = 128;

impl Rows {
    /// How many choices such rows are of. vLLM has room for n + min(n, E) (128 - 1) of n choices among E experts, in whole multiples of 128: of those
    /// that come to the same, the middle one.
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

/// What is read of these tensors where so many of all experts are met: those that have a part for each, for these alone.
fn of_met<'a>(tensors: impl IntoIterator<Item = Option<&'a Tensor>>, met: u64, all: u64) -> Bytes {
    sum(tensors.into_iter().flatten().map(|tensor| match tensor.sizes.first() {
        Some(first) if *first == all => Bytes(footprint(tensor).0.checked_div(all).unwrap_or(0).saturating_mul(met)),
        _ => footprint(tensor),
    }))
}

/// Rows that have been put in order of their experts, with weights `(experts, .., ..)`: the places of the rows, of the weights, and of scales.
fn sent<const N: usize>(
    call: Call<'_>,
    a: usize,
    weights: [usize; N],
    result: &Tensor,
    rows: Rows,
    variant: &str,
) -> Option<Part> {
    let (a, all) = (call.tensor(a)?, *call.tensor(*weights.first()?)?.sizes.first()?);
    let (k, n) = (*a.sizes.last()?, *result.sizes.last()?);
    let choices = rows.choices(result.elements().checked_div(n)?, all);
    let batch = met(all, choices);
    let read = weights.map(|at| call.tensor(at));
    let (of_a, written) = ([k, a.dtype.bytes()], [n, result.dtype.bytes()]);
    let of_choices = |[width, bytes]: [u64; 2]| Bytes(product(&[choices, width, bytes]));
    let of_rows = match rows {
        // Some read a token's row for all of its choices.
        Rows::Chosen => (footprint(a), footprint(result)),
        Rows::Padded => (of_choices(of_a), of_choices(written)),
    };
    let read = sum([of_rows.0, of_met(read, batch, all)].into_iter());
    let m = choices.div_ceil(batch);
    Some(Product { batch, m, n, k, rows: choices, read, written: of_rows.1 }.of_experts(a, variant))
}

/// The same, where tokens are not in order, and the sizes are arguments: `top_k` rows of each of `size_m` tokens.
fn marlin_experts(call: Call<'_>) -> Option<Part> {
    let (a, b) = (call.tensor(0)?, call.tensor(2)?);
    let size = |at: usize| u64::try_from(call.int(at)?).ok();
    let [chosen, tokens, n, k] = [size(14)?, size(17)?, size(18)?, size(19)?];
    let (all, choices) = (*b.sizes.first()?, product(&[tokens, chosen]));
    let batch = met(all, choices);
    let of_experts = of_met([2, 3, 4, 7].map(|at| call.tensor(at)), batch, all);
    let read = sum([footprint(a), of_experts].into_iter());
    let written = Bytes(product(&[choices, n, a.dtype.bytes()]));
    Some(Product { batch, m: choices.div_ceil(batch), n, k, rows: choices, read, written }.of_experts(a, ""))
}

/// Products of tokens with the weights of those experts that they were sent to, `(experts, columns, terms)`.
fn experts(given: &kernel::Given<'_>) -> Option<Part> {
    let (a, b, c) = (given.tensor("a_ptr")?, given.tensor("b_ptr")?, given.tensor("c_ptr")?);
    let [here, n, k] = b.sizes[..] else { return None };
    let of_all = given.size("num_valid_tokens")?;
    let all = experts_of_all(given, here, of_all);
    // Each GPU has a part of the experts, if they are cut over GPUs by number, and is given the choices of all.
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

/// How many experts there are on all GPUs, of which this one has some. That is in no argument, but vLLM has room for n + E (b - 1) of n choices among
/// these E, in blocks of b (`moe_align_block_size`), or for n b where there are fewer choices than experts: then there are more experts than that.
/// SGLang counts one expert more, and those of this GPU alone.
fn experts_of_all(given: &kernel::Given<'_>, here: u64, choices: u64) -> u64 {
    let room = given.tensor("sorted_token_ids_ptr").map_or(0, Tensor::elements);
    let block = given.size("BLOCK_SIZE_M").unwrap_or(1);
    let found = room.saturating_sub(choices).checked_div(block.saturating_sub(1)).unwrap_or(0);
    if found >= here.saturating_mul(2).max(3) { found } else { here }
}

/// Products of OpenAI's `triton_kernels`, as vLLM brings them, whose weights may have 4 bits: those of rows that are put in order of their experts, as a
/// histogram of these says, which a call names if it gathers them, else of all rows.
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
