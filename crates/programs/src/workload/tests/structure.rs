//! Tests of model structures: shared experts, layers without experts, latent attention.

use super::*;

/// DeepSeek-V2 or DeepSeek-V3, with the sizes of their published configurations (`config.json`).
fn deepseek([layers, dense_layers]: [u32; 2], hidden: u64, vocabulary: u64, experts: [u64; 4]) -> Model {
    let [count, top_k, shared, ffn] = experts;
    Model {
        layers,
        hidden,
        heads: 128,
        kv_heads: 128,
        ffn: (top_k + shared) * ffn,
        vocabulary,
        experts: Some(Experts { count, top_k, ffn, shared, dense_layers }),
        latent: Some(Latent { query_rank: 1536, kv_rank: 512, plain: 128, rotary: 64, value: 128 }),
        mlp: Mlp::SwiGlu,
        positions: 0,
        tied: false,
    }
}

#[test]
fn published_models_of_experts_are_as_large_as_published() {
    // "Mixtral of experts", 2024: 46.7 and 12.9 billion. A layer has 2 x 4096 (4096 + 1024) of attention, experts of 3
    // x 4096 x 14336, a router of 8 x 4096 and two norms; the model adds two tables of 32,000 rows and a norm.
    let experts = Experts { count: 8, top_k: 2, ffn: 14_336, shared: 0, dense_layers: 0 };
    let mixtral = Model { vocabulary: 32_000, experts: Some(experts), ..llama(32, 4096, 32, 14_336) };
    let layer = |experts: u64| 2 * 4096 * 5120 + experts * 3 * 4096 * 14_336 + 8 * 4096 + 2 * 4096;
    let mixtral_of = |experts| 32 * layer(experts) + 2 * 32_000 * 4096 + 4096;
    assert_eq!([mixtral.parameters(), mixtral.active_parameters()], [mixtral_of(8), mixtral_of(2)]);
    assert_eq!([mixtral.parameters(), mixtral.active_parameters()], [46_702_792_704, 12_879_925_248]);
    // "DeepSeek-V3 technical report", 2024, 4.2: 671 and 37 billion. Attention of a layer: 7168 (1536 + 576) down, 1536
    // x 128 x 192 and 512 x 128 x 256 up, 128 x 128 x 7168 out, norms of 1536 and 512. Three layers have 3 x 7168 x
    // 18432; 58 layers have 256 experts and a shared one of 3 x 7168 x 2048 each, and a router of 256 x 7168. The 256
    // offsets per layer that balance the load are not trained by gradients and not counted: 14,848 fewer parameters
    // than in the published weights, which have 671,026,419,200.
    let v3 = deepseek([61, 3], 7168, 129_280, [256, 8, 1, 2048]);
    let attention = 7168 * 2112 + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168 + 1536 + 512 + 2 * 7168;
    let v3_of = |experts: u64| {
        let of_experts = 58 * (7168 * 256 + experts * 3 * 7168 * 2048);
        61 * attention + 3 * 3 * 7168 * 18_432 + of_experts + 2 * 129_280 * 7168 + 7168
    };
    assert_eq!([v3.parameters(), v3.active_parameters()], [v3_of(257), v3_of(9)]);
    assert_eq!(v3.parameters() + 14_848, 671_026_419_200);
    assert_eq!(v3.active_parameters() / 1_000_000_000, 37);
    // "DeepSeek-V2", 2024, 3.1.2: 236 and 21 billion; its weights have 235,741,434,880.
    let v2 = deepseek([60, 1], 5120, 102_400, [160, 6, 2, 1536]);
    assert_eq!((v2.parameters(), v2.active_parameters() / 1_000_000_000), (235_741_434_880, 21));
}

/// Number of matrix parameters that a token of `with_structure` is multiplied with, and number of heads in all layers.
fn met(spec: &Spec) -> (u64, u64) {
    let Model { layers, hidden: h, heads, ffn, .. } = spec.model;
    let attention = h * (24 + 16 + 4) + 24 * heads * 12 + 16 * heads * (8 + 8) + heads * 8 * h;
    let network = |width: u64| 3 * h * width;
    let experts = u64::from(layers) - 1;
    let matrices = u64::from(layers) * attention + network(ffn) + experts * (h * 8 + (2 + 1) * network(32));
    (matrices + spec.model.vocabulary * h, u64::from(layers) * heads)
}

#[rstest]
#[case::one([1, 1, 1, 1, 1], false)]
#[case::tensor([4, 1, 1, 2, 1], false)]
#[case::experts([2, 1, 4, 4, 2], false)]
#[case::context([1, 4, 1, 1, 2], false)]
#[case::ring([2, 4, 2, 2, 1], true)]
fn a_step_of_experts_and_latents_computes_what_tokens_meet(#[case] axes: [u32; 5], #[case] ring: bool) {
    // Per matrix element that a token is multiplied with, 2 operations forward and 4 backward. Per each of the s / 2
    // keys that a token attends to on average, a head's 12 elements and the value's 8: 2 (12 + 8) forward, 2 (3 x 12 +
    // 2 x 8) backward, which recomputes scores.
    let mut spec = laid_out(with_structure(small()), axes);
    if ring {
        spec = in_ring(spec, ContextOrder::Zigzag);
    }
    let (matrices, heads) = met(&spec);
    let pairs = spec.sequence / 2 * heads;
    let expected = 6 * matrices + 2 * (12 + 8) * pairs + 2 * (3 * 12 + 2 * 8) * pairs;
    let computed = total(&nodes(&spec), NUM_OPS, |node| node.name != "optimizer");
    assert_eq!(computed, expected * spec.batch * spec.sequence);
    // The model's operations count a pair once forward and twice backward, and exactly the keys up to the token itself.
    let workload = Workload::new(spec).unwrap();
    let Spec { sequence, batch, .. } = workload.spec();
    let pairs = batch * sequence * (sequence + 1) / 2 * heads;
    assert_eq!(workload.model_flops(), (6 * matrices * batch * sequence + 3 * 2 * (12 + 8) * pairs) as f64);
}

#[test]
fn every_tensor_parallel_rank_projects_down_unless_it_has_its_own_tokens() {
    // h (24 + 16 + 4) parameters in each layer, 6 operations per token: three times more often on 4 ranks. Experts
    // require sequence parallelism.
    let without_experts = |spec: Spec| Spec { model: Model { experts: None, ..spec.model }, ..spec };
    let operations = |sequence_parallel| {
        let mut spec = laid_out(without_experts(with_structure(small())), [4, 1, 1, 1, 1]);
        spec.layout.sequence_parallel = sequence_parallel;
        total(&nodes(&spec), NUM_OPS, |node| node.name.contains("latent.down"))
    };
    let spec = small();
    let once = 6 * 64 * 44 * u64::from(spec.model.layers) * spec.batch * spec.sequence;
    assert_eq!([true, false].map(operations), [once, 4 * once]);
}

#[rstest]
#[case::queries_of_latents(24, 1)]
#[case::queries_of_the_stream(0, 2)]
fn latent_vectors_are_gathered_in_place_of_the_stream(#[case] query_rank: u64, #[case] more: usize) {
    // Latent vectors of each token, 2 bytes per element: gathered forward, reduced backward, once per layer. The
    // residual stream is gathered for the network, and once more if queries are made of it; in the backward pass it is
    // gathered for the projection and for the network.
    let mut spec = laid_out(with_structure(small()), [4, 1, 1, 1, 1]);
    spec.model.experts = None;
    spec.model.latent = spec.model.latent.map(|latent| Latent { query_rank, ..latent });
    let (micro_batches, layers) = (spec.micro_batches() as usize, spec.model.layers as usize);
    let narrow = ELEMENT * spec.micro_batch * spec.sequence * (query_rank + 16 + 4);
    for trace in nodes(&spec) {
        assert_eq!(collected(&trace, CommType::AllGather, "latent"), vec![narrow / 4; layers * micro_batches]);
        assert_eq!(collected(&trace, CommType::ReduceScatter, "latent"), vec![narrow; layers * micro_batches]);
        let gathered = collected(&trace, CommType::AllGather, "tokens").len();
        assert_eq!(gathered, ((more + 2) * layers + 2) * micro_batches);
    }
}

#[test]
fn a_cache_of_latent_vectors_holds_one_for_all_heads_and_is_looked_at_as_it_is() {
    // 16 + 4 elements per token and layer, for any number of tensor-parallel ranks, instead of keys and values of 64 /
    // 8 x 4 elements each.
    let decode = |spec: Spec| Spec { phase: Phase::Decode, new_tokens: 3, ..spec };
    let cache = |spec| Workload::new(decode(spec)).unwrap().memory(0).cache;
    let spec = laid_out(with_structure(small()), [2, 1, 1, 2, 1]);
    let tokens = spec.batch / 2 * (spec.sequence + 3) * u64::from(spec.model.layers);
    assert_eq!(cache(spec.clone()), ELEMENT * tokens * (16 + 4));
    assert_eq!(cache(laid_out(with_experts(small()), [2, 1, 1, 2, 1])), ELEMENT * tokens * 2 * 32 / 2);
    // Each of 8 heads reads 16 + 4 elements of a key and 16 as its value, which 16 x 8 parameters project to the head's
    // own value.
    let attention = |node: &Node| node.name.ends_with("attention");
    let Spec { model, sequence, batch, .. } = &spec;
    let keys: u64 = (0..3).map(|token| sequence + token).sum();
    let expected = 2 * 8 * ((16 + 4 + 16) * keys + 3 * 16 * 8) * batch * u64::from(model.layers);
    assert_eq!(total(&nodes(&decode(spec.clone())), NUM_OPS, attention), expected);
    // The queries of all 4 heads of a rank attend together to the keys of one of 2 sequences, of (16 + 4 + 16) / 2
    // elements on average. 2 x 4 x 128 pairs; 2 bytes of 2 x 4 queries and 2 x 128 keys of 20 elements are read, once
    // for all heads, and 2 x 4 results of 16 written.
    let decoded = nodes(&decode(spec.clone()));
    let node = decoded[0].iter().find(|node| attention(node)).unwrap();
    let [operations, read, written] = [2 * 2 * 4 * 128 * (16 + 4 + 16), 2 * (2 * 4 + 2 * 128) * 20, 2 * 2 * 4 * 16];
    let expected = format!("attention bfloat16 full 2,4,128,18 {operations} {read} {written}");
    assert_eq!(uniference_formats::chakra::own::operators(node)[0], expected);
    // A token is multiplied with each matrix once: the up projection of keys is applied to queries.
    let (matrices, heads) = met(&spec);
    let (operations, keys) = (2 * 3 * matrices, 3 * sequence + 6);
    let workload = Workload::new(decode(spec.clone())).unwrap();
    assert_eq!(workload.model_flops(), ((operations + 2 * (16 + 4 + 16) * keys * heads) * batch) as f64);
}

#[test]
fn latent_attention_keeps_latents_queries_keys_and_values() {
    // Elements of 2 bytes per token: 4 times the stream (two norms), latent vectors before and after their norms (44 +
    // 24 + 16), queries and keys of 8 x 12, values and results of 8 x 8; 4 bytes per head of the softmax. The network
    // keeps 3 x 160 in the first layer. The other layers keep 3 x 32 of the shared expert, for each of two experts the
    // token before and after it and 3 x 32, and 8 scores. The head: 2 x 64 elements, 512 float32.
    let spec = Spec { batch: 2, ..with_structure(small()) };
    let attention = 2 * (4 * 64 + 44 + 40 + 2 * 8 * 12 + 2 * 8 * 8) + 4 * 8;
    let experts = 2 * (3 * 32 + 2 * (2 * 64 + 3 * 32) + 8);
    let layers = 4 * attention + 2 * 3 * 160 + 3 * experts;
    let tokens = spec.micro_batch * spec.sequence;
    assert_eq!(Workload::new(spec).unwrap().memory(0).activations, tokens * (layers + 4 * 64 + 4 * 512));
}

#[test]
fn stages_hold_the_layers_that_they_have() {
    // 4 layers on 4 stages: the first stage has no experts. Attention and norms: h (24 + 20) + 24 + 16 + 2 h and the
    // sharded part.
    let workload = Workload::new(laid_out(with_structure(small()), [1, 1, 1, 1, 4])).unwrap();
    let attention = 64 * 44 + 24 + 16 + 24 * 8 * 12 + 16 * 8 * 16 + 64 * 64 + 2 * 64;
    let [expert, table] = [3 * 64 * 32, 512 * 64];
    let stages = [0, 1, 2, 3].map(|rank| workload.parameters(rank));
    let middle = (attention + expert + 8 * 64, 8 * expert);
    let first = (attention + 3 * 64 * 160 + table, 0);
    assert_eq!(stages, [first, middle, middle, (middle.0 + table + 64, middle.1)]);
    let all: u64 = stages.iter().map(|(dense, experts)| dense + experts).sum();
    assert_eq!(all, workload.spec().model.parameters());
}

#[test]
fn structures_that_do_not_fit_are_refused() {
    let change = |with: fn(&mut Model)| {
        let mut spec = laid_out(with_structure(small()), [2, 1, 1, 2, 1]);
        with(&mut spec.model);
        Workload::new(spec).err().map_or("accepted".to_owned(), |error| error.to_string())
    };
    type Change = fn(&mut Model);
    let cases: [(Change, &str); 7] = [
        (|model| model.experts.as_mut().unwrap().dense_layers = 4, "4 dense layers leave none of 4 for experts"),
        (|model| model.experts.as_mut().unwrap().ffn = 0, "a size is 0"),
        (
            |model| model.experts.as_mut().unwrap().ffn = 31,
            "the width of an expert (31) cannot be divided into 2 parts",
        ),
        (|model| model.experts.as_mut().unwrap().shared = 1 << 50, "sizes are out of range"),
        (|model| model.latent.as_mut().unwrap().rotary = 0, "a size is 0"),
        (|model| model.latent.as_mut().unwrap().query_rank = 1 << 50, "sizes are out of range"),
        (|model| model.mlp = Mlp::Gelu, "multi-head latent attention requires rotary positions"),
    ];
    for (with, expected) in cases {
        let message = change(with);
        assert!(message.starts_with(expected) && message.contains("\nhint: "), "{message}");
    }
    // Sizes that latent attention does not use, or that no layer has, need not divide.
    assert_eq!(change(|model| (model.hidden, model.kv_heads) = (66, 3)), "accepted");
    assert_eq!(change(|model| (model.ffn, model.experts.as_mut().unwrap().dense_layers) = (31, 0)), "accepted");
}
