//! Tests of context parallelism: the pairs that each rank attends to, and rings of keys and values.

use super::*;
use uniference_formats::chakra::attributes::COMM_DST;

fn ring(context: u32, order: ContextOrder) -> Spec {
    // With a vocabulary of one, embedding and head cost nothing.
    let model = Model { vocabulary: 1, ..small().model };
    in_ring(laid_out(Spec { model, batch: 2, ..small() }, [1, context, 1, 1, 1]), order)
}

/// Bytes of a rank's keys and values: 2 x 32 elements per token.
fn block(spec: &Spec) -> u64 {
    ELEMENT * spec.micro_batch * spec.sequence / u64::from(spec.layout.context) * 2 * 32
}

fn makespan(spec: &Spec, rates: Rates, rate: f64) -> f64 {
    let workload = Workload::new(spec.clone()).unwrap();
    let link = LinkSpec::new(Rate::new(rate).unwrap(), SimDuration::ZERO);
    let cluster = cluster(workload.world_size(), link, Preset::Switch);
    let ranks = simulate_at(&workload, &cluster, &Symmetry::default(), rates).unwrap();
    ranks.iter().map(|rank| rank.finish.unwrap().as_secs_f64()).fold(0.0, f64::max)
}

fn close(value: f64, expected: f64) {
    assert!((value / expected - 1.0).abs() < 1e-3, "{value} instead of {expected}");
}

#[rstest]
fn keys_go_round_once_forwards_and_with_their_gradients_back(
    #[values(2, 4, 8)] context: u32,
    #[values(ContextOrder::Zigzag, ContextOrder::Contiguous)] order: ContextOrder,
) {
    // Each of C ranks sends C - 1 blocks of keys and values to the next rank in each layer, and in the backward pass C
    // - 1 blocks of these and C - 1 of gradients to the previous rank.
    let spec = ring(context, order);
    let passes = u64::from(context - 1) * block(&spec) * u64::from(spec.model.layers) * spec.micro_batches();
    for (rank, trace) in (0_u64..).zip(nodes(&spec)) {
        let ranks = u64::from(context);
        let sent = |to: u64, letter: char| {
            let to_next = |node: &Node| {
                node.r#type() == NodeType::CommSend
                    && node.unsigned(COMM_DST) == Some(to % ranks)
                    && node.name.starts_with(letter)
            };
            total(std::slice::from_ref(&trace), COMM_SIZE, to_next)
        };
        assert_eq!([sent(rank + 1, 'f'), sent(rank + ranks - 1, 'b')], [passes, 2 * passes]);
        assert_eq!(
            total(std::slice::from_ref(&trace), COMM_SIZE, |node| node.r#type() == NodeType::CommSend),
            3 * passes
        );
        assert_eq!(
            total(std::slice::from_ref(&trace), COMM_SIZE, |node| node.r#type() == NodeType::CommRecv),
            3 * passes
        );
    }
}

#[test]
fn ranks_begin_with_their_own_keys_and_end_with_them_backwards() {
    // A rank's own block is the only one of which half is masked: at step 0 in the forward pass, and at step C - 1 in
    // the backward pass, when its gradients are complete.
    for trace in nodes(&ring(4, ContextOrder::Zigzag)) {
        let causal = |node: &&Node| {
            let listed = uniference_formats::chakra::own::operators(node);
            listed.iter().any(|operator| operator.starts_with("attention") && operator.contains(" causal "))
        };
        let own: Vec<&Node> = trace.iter().filter(causal).collect();
        assert_eq!(own.len(), 2 * 4);
        for node in own {
            assert!(node.name.contains(if node.name.starts_with('f') { "ring0." } else { "ring3." }), "{}", node.name);
        }
    }
}

#[test]
fn keys_are_passed_on_when_they_have_come_and_gradients_when_they_are_added() {
    // In the forward pass a block waits for its arrival alone; in the backward pass it also waits for the compute on
    // the previous block.
    for trace in nodes(&ring(4, ContextOrder::Contiguous)) {
        let later = |node: &&Node| node.r#type() == NodeType::CommSend && !node.name.contains("ring0.");
        for node in trace.iter().filter(later) {
            let awaited: Vec<NodeType> = node.data_deps.iter().map(|before| trace[*before as usize].r#type()).collect();
            match node.name.starts_with('f') {
                true => assert_eq!(awaited, [NodeType::CommRecv], "{}", node.name),
                false => assert_eq!(awaited, [NodeType::Comp, NodeType::CommRecv], "{}", node.name),
            }
        }
    }
}

#[test]
fn without_compute_a_ring_takes_as_long_as_its_passes() {
    // L (C - 1) times a block's bytes divided by the links' rate.
    let spec = Spec { phase: Phase::Prefill, ..ring(4, ContextOrder::Zigzag) };
    let passes = f64::from(spec.model.layers) * 3.0 * block(&spec) as f64;
    close(makespan(&spec, Rates::uniform(1e24, 1e24), 1e9), passes / 1e9);
}

#[rstest]
#[case::zigzag(ContextOrder::Zigzag, 0.25)]
// The last rank attends to all keys before its own, and to half of its own: 7/8 of 2/4 of all pairs.
#[case::contiguous(ContextOrder::Contiguous, 0.4375)]
fn without_a_network_attention_takes_its_part_of_what_one_rank_takes(#[case] order: ContextOrder, #[case] part: f64) {
    // Attention dominates: other GEMMs of a layer are negligible compared with pairs of 65,536 tokens.
    let long = |context| {
        let mut spec = Spec { phase: Phase::Prefill, sequence: 1 << 16, ..ring(context, order) };
        spec.model.layers = 1;
        spec
    };
    let rates = Rates::uniform(1e12, 1e24);
    let (shared, whole) = (makespan(&long(4), rates, 1e18), makespan(&long(1), rates, 1e18));
    let model = long(1).model;
    let matrices = 2.0 * (model.dense_matrices(LayerKind::Dense) * 2 * (1 << 16)) as f64 / 1e12;
    close(shared - matrices / 4.0, part * (whole - matrices));
}

#[rstest]
#[case::hidden(0.5)]
#[case::exposed(3.0)]
fn attention_hides_the_passes_that_are_shorter(#[case] ratio: f64) {
    // Each of C = 4 steps lasts a, a message p: a + (C - 1) max(a, p) per layer.
    let mut spec = Spec { phase: Phase::Prefill, sequence: 1 << 14, ..ring(4, ContextOrder::Zigzag) };
    spec.model.layers = 2;
    let queries = (1 << 14) as f64 / 4.0;
    let step = 4.0 * 64.0 * 2.0 * queries * queries / 2.0 / 1e12;
    let matrices = 2.0 * spec.model.dense_matrices(LayerKind::Dense) as f64 * 2.0 * queries / 1e12;
    let expected = 2.0 * (matrices + step * (1.0 + 3.0 * ratio.max(1.0)));
    close(makespan(&spec, Rates::uniform(1e12, 1e24), block(&spec) as f64 / (ratio * step)), expected);
}

#[rstest]
fn ranks_look_at_the_pairs_of_their_part(
    #[values(ContextMethod::AllGather, ContextMethod::Ring)] context_method: ContextMethod,
    #[values(false, true)] zigzag: bool,
) {
    // Each of C ranks has 1 / C of s^2 / 2 pairs, or the c-th one has (c + 1/2) (s / C)^2; 4 h operations per pair in
    // the forward pass and 10 h in the backward pass.
    let order = if zigzag { ContextOrder::Zigzag } else { ContextOrder::Contiguous };
    let mut spec = ring(4, order);
    spec.layout.context_method = context_method;
    let own = spec.sequence / 4;
    for (rank, trace) in (0_u64..).zip(nodes(&spec)) {
        let pairs = if zigzag { 2 * own * own } else { own * own * (2 * rank + 1) / 2 };
        let attention = |node: &Node| node.name.ends_with("attention");
        let expected = 14 * spec.model.hidden * pairs * spec.batch * u64::from(spec.model.layers);
        assert_eq!(total(std::slice::from_ref(&trace), NUM_OPS, attention), expected, "rank {rank}");
    }
}

#[test]
fn a_ring_keeps_its_own_keys_and_values_only() {
    // With gathered keys, a rank keeps those of all 4 ranks: 3 x 64 elements more per token and layer.
    let kept = |context_method| {
        let mut spec = ring(4, ContextOrder::Zigzag);
        spec.layout.context_method = context_method;
        Workload::new(spec).unwrap().memory(0).activations
    };
    let spec = ring(4, ContextOrder::Zigzag);
    let tokens = spec.micro_batch * spec.sequence / 4;
    let more = ELEMENT * 3 * 64 * tokens * u64::from(spec.model.layers);
    assert_eq!(kept(ContextMethod::AllGather) - kept(ContextMethod::Ring), more);
}

#[test]
fn what_a_ring_cannot_do_is_refused() {
    let refused = |spec: Spec| Workload::new(spec).unwrap_err().to_string();
    let mut unfused = ring(2, ContextOrder::Zigzag);
    unfused.implementation.attention = AttentionKernels::Unfused;
    assert!(refused(unfused).starts_with("ring attention adds up"));
    let odd = Spec { sequence: 12, ..ring(4, ContextOrder::Zigzag) };
    assert!(refused(odd.clone()).starts_with("a sequence of 12 tokens cannot be divided into 8 parts\nhint: "));
    assert!(Workload::new(in_ring(odd, ContextOrder::Contiguous)).is_ok());
}

#[test]
fn ranks_of_a_ring_are_not_alike() {
    // All ranks attend to the first rank's keys, in other sizes than its own queries attend to others' keys: only its
    // tensor- and data-parallel ranks fold.
    let spec = in_ring(laid_out(small(), [2, 4, 1, 2, 1]), ContextOrder::Zigzag);
    let gathered = laid_out(small(), [2, 4, 1, 2, 1]);
    let orders = |spec: Spec| {
        let workload = Workload::new(spec).unwrap();
        (workload.symmetry().order(), workload.symmetries(&[], true)[0].order())
    };
    assert_eq!((orders(spec), orders(gathered)), ((4, 4), (4, 16)));
}
