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
    /// It computes with elements as those of `factor`, which has several scales a row if it is `scaled` by blocks.
    fn part(self, factor: &Tensor, scales: &str) -> Part {
        let Product { batch, m, n, k, rows, read, written } = self;
        let family = Family::Gemm { batch, m, n, k, layout: Layout::NT };
        let variant = format!("{}{scales}", Layout::NT.name());
        Part::inside(family, factor.dtype.dtype(), flops(&[2, rows, n, k]), read, written, &variant)
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
        "machete_mm" | "cutlass_w4a8_mm" => dense(call, 0, 0..8, call.result(0)?, ""),
        "moe_wna16_marlin_gemm" => marlin_experts(call),
        "moe_wna16_gemm" => sent(call, [0, 2], [3, 4], call.tensor(1)?, ""),
        "cutlass_moe_mm" => sent(call, [1, 2], [3, 4], call.tensor(0)?, gemm::ROWS),
        "fp8_blockwise_scaled_grouped_mm" => sent(call, [6, 7], [8, 9], call.tensor(0)?, gemm::BLOCKS),
        "m_grouped_fp8_fp4_gemm_nt_contiguous" => sent(call, [0, 2], [1, 3], call.tensor(4)?, gemm::BLOCKS),
        "m_grouped_bf16_gemm_nt_contiguous" => sent(call, [0, 1], [3, 3], call.tensor(2)?, ""),
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

/// Rows that have been put in order of their experts, with weights `(experts, .., ..)`; the places of both, and those of their scales.
fn sent(call: Call<'_>, [a, b]: [usize; 2], scales: [usize; 2], result: &Tensor, variant: &str) -> Option<Part> {
    let (a, b) = (call.tensor(a)?, call.tensor(b)?);
    let (k, n) = (*a.sizes.last()?, *result.sizes.last()?);
    let choices = result.elements().checked_div(n)?;
    let all = *b.sizes.first()?;
    let batch = met(all, choices);
    let weights = Bytes(footprint(b).0.checked_div(all)?.saturating_mul(batch));
    let read = sum([footprint(a), weights, bytes(scales.map(|at| call.tensor(at)))].into_iter());
    let m = choices.div_ceil(batch);
    Some(Product { batch, m, n, k, rows: choices, read, written: footprint(result) }.part(a, variant))
}

/// The same, where tokens are not in order, and the sizes are arguments: `top_k` rows of each of `size_m` tokens.
fn marlin_experts(call: Call<'_>) -> Option<Part> {
    let (a, b) = (call.tensor(0)?, call.tensor(2)?);
    let size = |at: usize| u64::try_from(call.int(at)?).ok();
    let [chosen, tokens, n, k] = [size(14)?, size(17)?, size(18)?, size(19)?];
    let (all, choices) = (*b.sizes.first()?, product(&[tokens, chosen]));
    let batch = met(all, choices);
    let of_each = Bytes(bytes([Some(b), call.tensor(4)]).0.checked_div(all)?.saturating_mul(batch));
    let read = sum([footprint(a), of_each].into_iter());
    let written = Bytes(product(&[choices, n, a.dtype.bytes()]));
    Some(Product { batch, m: choices.div_ceil(batch), n, k, rows: choices, read, written }.part(a, ""))
}

/// Products of tokens with the weights of those experts that they were sent to, `(experts, columns, terms)`.
fn experts(given: &kernel::Given<'_>) -> Option<Part> {
    let (a, b, c) = (given.tensor("a_ptr")?, given.tensor("b_ptr")?, given.tensor("c_ptr")?);
    let [all, n, k] = b.sizes[..] else { return None };
    let choices = given.size("num_valid_tokens")?;
    let batch = met(all, choices);
    let weights = Bytes(product(&[batch, n, k, b.dtype.bytes()]));
    let scales = bytes([given.tensor("a_scale_ptr"), given.tensor("b_scale_ptr"), given.tensor("topk_weights_ptr")]);
    let read = sum([footprint(a), weights, scales].into_iter());
    let by_blocks = given.size("group_k").is_some_and(|group| group > 0);
    let written = Bytes(product(&[choices, n, c.dtype.bytes()]));
    let product = Product { batch, m: choices.div_ceil(batch), n, k, rows: choices, read, written };
    Some(product.part(a, if by_blocks { gemm::BLOCKS } else { "" }))
}

/// Products of OpenAI's `triton_kernels`, whose weights may have 4 bits: those of rows that are put in order of their experts, as a histogram of these
/// says, else of all rows.
fn routed(given: &kernel::Given<'_>) -> Option<Part> {
    let tensor = |name: &str, pointer: &str| given.tensor(name).or_else(|| given.tensor(pointer));
    let (x, w, y) = (tensor("X", "XPtr")?, tensor("W", "WPtr")?, tensor("Y", "YPtr")?);
    let [rows, n, k] = [given.size("M")?, given.size("N")?, given.size("K")?];
    let experts = given.size("N_EXPTS_TOT").filter(|all| *all > 0 && given.tensor("ExptHist").is_some()).unwrap_or(1);
    let batch = met(experts, rows);
    let weights = bytes([Some(w), given.tensor("WMxScale")]).0.checked_div(experts)?.saturating_mul(batch);
    let read = sum([footprint(x), Bytes(weights)].into_iter());
    Some(Product { batch, m: rows.div_ceil(batch), n, k, rows, read, written: footprint(y) }.part(x, ""))
}
