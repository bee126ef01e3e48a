//! Tests of FP8 inference: bytes held in memory, and bytes read.

use super::*;
use uniference_formats::chakra::attributes::TENSOR_SIZE;

/// DeepSeek-V3 in its decode phase, with 8 sequences of 4,096 tokens on 8 tensor-parallel ranks.
fn deepseek_v3(float8: bool, float8_cache: bool) -> Spec {
    let experts = Experts { count: 256, top_k: 8, ffn: 2048, shared: 1, dense_layers: 3 };
    let latent = Latent { query_rank: 1536, kv_rank: 512, plain: 128, rotary: 64, value: 128 };
    let model = Model {
        kv_heads: 128,
        vocabulary: 129_280,
        experts: Some(experts),
        latent: Some(latent),
        ..llama(61, 7168, 128, 18_432)
    };
    let spec = Spec {
        model,
        phase: Phase::Decode,
        sequence: 4096,
        batch: 8,
        micro_batch: 8,
        implementation: Implementation { float8, float8_cache, ..Implementation::default() },
        ..small()
    };
    laid_out(spec, [8, 1, 1, 1, 1])
}

fn held(spec: Spec) -> Memory {
    Workload::new(spec).unwrap().memory(0)
}

#[test]
fn published_models_in_8_bits_have_matrices_of_one_byte_an_element() {
    // Parameters in 8 bits and sharded over 8 ranks: queries, keys and values made of latent vectors, and the
    // projection; three layers of width 18,432; in 58 layers 256 experts and a shared expert of width 2,048. Parameters
    // in 8 bits on every rank: projections to latent vectors.
    let attention = 1536 * 128 * 192 + 512 * 128 * (128 + 128) + 128 * 128 * 7168;
    let shared = 61 * attention + 3 * 3 * 7168 * 18_432 + 58 * 257 * 3 * 7168 * 2048;
    let narrow = 61 * 7168 * (1536 + 512 + 64);
    // Parameters in 16 bits: embedding and head, sharded; on every rank norms of layers and of latent vectors, the last
    // norm, and routers.
    let tables = 2 * 129_280 * 7168;
    let own = 61 * (2 * 7168 + 1536 + 512) + 7168 + 58 * 7168 * 256;
    assert_eq!(held(deepseek_v3(false, false)).weights, 2 * ((shared + tables) / 8 + narrow + own));
    assert_eq!(held(deepseek_v3(true, false)).weights, shared / 8 + narrow + 2 * (tables / 8 + own));
    // The weights are 79 GiB per rank, so eight devices of 141 GB hold the model, as in practice.
    assert_eq!(held(deepseek_v3(true, false)).weights >> 30, 79);
    // Training holds weights in 16 bits and casts them before each GEMM.
    let implementation = Implementation { float8: true, ..Implementation::default() };
    assert_eq!(held(Spec { implementation, ..small() }).weights, held(small()).weights);
}

#[test]
fn a_cache_in_8_bits_is_half_as_large() {
    // The cache has a latent vector of 512 elements and a key of 64 for each of 4,097 tokens of 8 sequences in 61
    // layers.
    let elements = 8 * 4097 * 61 * (512 + 64);
    assert_eq!(held(deepseek_v3(true, false)).cache, 2 * elements);
    assert_eq!(held(deepseek_v3(true, true)).cache, elements);
    let llama = |float8_cache| {
        let implementation = Implementation { float8_cache, ..Implementation::default() };
        held(Spec { phase: Phase::Prefill, implementation, ..small() }).cache
    };
    assert_eq!((llama(false), llama(true)), (2 * 16 * 128 * 4 * 64, 16 * 128 * 4 * 64));
}

/// Bytes that the nodes whose names end with `node`, attention or linear layers, read and write for one token.
fn moved(implementation: Implementation, node: &str) -> u64 {
    let spec = Spec { phase: Phase::Decode, batch: 1, micro_batch: 1, implementation, ..small() };
    total(&nodes(&spec), TENSOR_SIZE, |found| found.name.ends_with(node))
}

#[test]
fn weights_and_cache_in_8_bits_are_read_as_they_are() {
    let plain = Implementation::default();
    // In 4 layers the projection has 64 x 64 weights, 64 inputs and 64 outputs of 2 bytes each.
    assert_eq!(moved(plain, "projection"), 4 * 2 * (64 * 64 + 64 + 64));
    // FP8 reads the input for its maximum, reads the input again to cast it, and reads the cast input; weights are read
    // once, one byte each.
    let float8 = Implementation { float8: true, ..plain };
    assert_eq!(moved(float8, "projection"), 4 * (64 * 64 + 2 * 2 * 64 + 2 * 64 + 2 * 64));
    // Attention reads and writes 64 elements, and reads keys and values of 128 tokens, 32 elements each.
    assert_eq!(moved(plain, "attention"), 4 * (2 * 2 * 64 + 2 * 128 * 2 * 32));
    let cache = Implementation { float8_cache: true, ..plain };
    assert_eq!(moved(cache, "attention"), 4 * (2 * 2 * 64 + 128 * 2 * 32));
}

#[rstest]
#[case::training(Phase::Train, AttentionKernels::Flash, "training has no KV cache")]
#[case::unfused(Phase::Decode, AttentionKernels::Unfused, "unfused attention does not read a KV cache in 8 bits")]
fn a_cache_in_8_bits_that_nothing_reads_is_refused(
    #[case] phase: Phase,
    #[case] attention: AttentionKernels,
    #[case] problem: &str,
) {
    let implementation = Implementation { float8_cache: true, attention, ..Implementation::default() };
    let error = Workload::new(Spec { phase, implementation, ..small() }).unwrap_err();
    assert_eq!(error.problem, problem);
    assert!(error.hint.contains("remove --kv-cache-dtype"), "{}", error.hint);
}
