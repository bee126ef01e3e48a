//! Tests of schedules that split the backward pass in two: their bubbles in closed form, their operations and messages,
//! and folded runs.

use super::*;

/// A stage's times for one micro-batch, in seconds: the forward pass, the gradients of inputs, and those of weights.
/// Devices compute 1e12 operations per second, and move bytes in no time.
struct Times {
    forward: f64,
    inputs: f64,
    weights: f64,
}

impl Times {
    /// Times of a stage in the middle, from the nodes of its first micro-batch.
    fn of(workload: &Workload) -> Times {
        let trace: Vec<Node> = workload.trace(1).collect();
        let of = |prefix: &str| {
            let nodes = trace.iter().filter(|node| node.name.starts_with(prefix));
            nodes.filter_map(|node| node.unsigned(NUM_OPS)).sum::<u64>() as f64 / 1e12
        };
        Times { forward: of("f0."), inputs: of("b0."), weights: of("w0.") }
    }
}

/// A job in which messages cost nothing and all stages have equal work, as with a vocabulary of one. With a large
/// `hidden` matrices dominate, with a small one attention does.
fn alike(schedule: Schedule, stages: u32, micro_batches: u64, hidden: u64) -> Workload {
    let model = Model { layers: 16, vocabulary: 1, hidden, ffn: 5 * hidden / 2, ..small().model };
    let sequence = if hidden > 64 { 16 } else { 4096 };
    let spec = Spec { model, sequence, batch: micro_batches, micro_batch: 1, schedule, ..small() };
    Workload::new(laid_out(spec, [1, 1, 1, 1, stages])).unwrap()
}

/// Makespan minus the compute time of a stage in the middle, in seconds.
fn bubble(workload: &Workload) -> f64 {
    let free = LinkSpec::new(Rate::new(1e18).unwrap(), SimDuration::ZERO);
    let network = cluster(workload.world_size(), free, Preset::Switch);
    let ranks = simulate(workload, &network, &Symmetry::default()).unwrap();
    let makespan = ranks.iter().map(|rank| rank.finish.unwrap()).max().unwrap().as_secs_f64();
    makespan - ranks[1].times.compute.as_secs_f64()
}

fn assert_close(what: f64, expected: f64) {
    assert!((what / expected - 1.0).abs() < 0.01, "{what} instead of {expected}");
}

#[rstest]
fn gradients_of_weights_fill_the_bubble(#[values(2, 4, 8)] stages: u32, #[values(8, 21)] micro_batches: u64) {
    // (p - 1) (F + B - W) with B without W (Qi et al. 2024, table 2); with 1F1B (p - 1) (F + B + W).
    let split = alike(Schedule::ZeroBubble, stages, micro_batches, 64);
    let Times { forward, inputs, weights } = Times::of(&split);
    assert!(weights > 0.0 && weights < forward && weights < inputs, "{forward} {inputs} {weights}");
    let others = f64::from(stages - 1);
    assert_close(bubble(&split), others * (forward + inputs - weights));
    let whole = alike(Schedule::OneForwardOneBackward, stages, micro_batches, 64);
    assert_close(bubble(&whole), others * (forward + inputs + weights));
}

#[rstest]
#[case(4, 8)]
#[case(4, 18)]
#[case(8, 16)]
fn both_ends_of_dualpipe_meet(#[case] stages: u32, #[case] micro_batches: u64) {
    // (p / 2 - 1) (F&B + B - 3 W), B with W (DeepSeek-V3 technical report, table 2); without communication F&B is F +
    // B. That holds if the gradients of inputs last as long as a forward pass, as they do without attention.
    let workload = alike(Schedule::DualPipe, stages, micro_batches, 512);
    let Times { forward, inputs, weights } = Times::of(&alike(Schedule::ZeroBubble, stages, micro_batches, 512));
    let (backward, others) = (inputs + weights, f64::from(stages / 2 - 1));
    assert_close(bubble(&workload), others * (forward + backward + backward - 3.0 * weights));
    // A rank has two model chunks, and parameters for both.
    let whole = Workload::new(Spec { schedule: Schedule::OneForwardOneBackward, ..workload.spec().clone() }).unwrap();
    let own = |workload: &Workload, rank: u32| workload.parameters(rank).0;
    assert_eq!(own(&workload, 1), own(&whole, 1) + own(&whole, stages - 2));
    assert_eq!(own(&workload, 0), own(&whole, 0) + own(&whole, stages - 1));
}

#[rstest]
#[case::zero_bubble(Schedule::ZeroBubble)]
#[case::dualpipe(Schedule::DualPipe)]
fn what_is_split_computes_and_moves_as_much(#[case] schedule: Schedule) {
    // The operations are those of 1F1B for any split, also with experts, sequence and context parallelism; so are the
    // messages.
    let (gather, ring) = (ContextMethod::AllGather, ContextMethod::Ring);
    for (experts, axes, method) in [
        (false, [2, 1, 1, 2, 4], gather),
        (true, [2, 1, 2, 2, 4], gather),
        (false, [1, 2, 1, 1, 2], gather),
        (false, [1, 2, 1, 1, 2], ring),
    ] {
        let base = if experts { with_experts(small()) } else { small() };
        let mut spec = laid_out(Spec { batch: 16 * u64::from(axes[3]), gradient_bytes: 4, ..base }, axes);
        spec.layout.context_method = method;
        let [split, whole] = [schedule, Schedule::OneForwardOneBackward].map(|schedule| {
            let traces = nodes(&Spec { schedule, ..spec.clone() });
            let [computed, moved] = [NUM_OPS, COMM_SIZE].map(|attribute| {
                total(&traces, attribute, |node| !node.name.ends_with("gradients") && node.name != "optimizer")
            });
            (computed, moved)
        });
        assert_eq!(split, whole, "{axes:?}");
    }
}

#[test]
fn stages_opposite_of_each_other_sum_their_gradients() {
    // Each gradient of both chunks once, 4 bytes each, before the reduction over replicas.
    let spec =
        Spec { schedule: Schedule::DualPipe, gradient_bytes: 4, batch: 32, ..laid_out(small(), [1, 1, 1, 2, 4]) };
    let workload = Workload::new(spec).unwrap();
    for rank in 0..8 {
        let trace: Vec<Node> = workload.trace(rank).collect();
        let summed: u64 = collected(&trace, CommType::AllReduce, "opposite gradients").iter().sum();
        assert_eq!(summed, 4 * workload.parameters(rank).0);
    }
    assert_eq!(workload.spec().layout.members(Group::Opposite, 2), [2, 4]);
    assert_eq!(workload.spec().layout.members(Group::Opposite, 7), [1, 7]);
}

/// Reductions of gradients wait for gradients of weights; overlapping chains must keep that dependency.
#[rstest]
#[case::zero_bubble(Schedule::ZeroBubble, [2, 1, 1, 2, 2], 1)]
#[case::zero_bubble_sharded(Schedule::ZeroBubble, [1, 1, 1, 4, 2], 3)]
#[case::dualpipe(Schedule::DualPipe, [2, 1, 1, 2, 2], 1)]
#[case::dualpipe_sharded(Schedule::DualPipe, [1, 1, 1, 2, 4], 3)]
fn one_rank_stands_for_its_replicas(#[case] schedule: Schedule, #[case] axes: [u32; 5], #[case] zero: u8) {
    let link = LinkSpec::new(Rate::new(0.7e9).unwrap(), SimDuration::from_us(3));
    let batch = 16 * u64::from(axes[3]);
    let workload = Workload::new(Spec { schedule, zero, batch, ..laid_out(small(), axes) }).unwrap();
    let mut cluster = cluster(workload.world_size(), link, Preset::Switch);
    cluster.backend.protocol.connections_per_group = true;
    let all = simulate(&workload, &cluster, &Symmetry::default()).unwrap();
    assert!(workload.symmetry().order() > 1);
    assert_eq!(simulate(&workload, &cluster, &workload.symmetry()).unwrap(), all);
}

#[test]
fn schedules_that_do_not_fit_are_refused_with_a_hint() {
    let refused = |spec: Spec| Workload::new(spec).unwrap_err().to_string();
    let zero_bubble = Spec { schedule: Schedule::ZeroBubble, ..laid_out(small(), [1, 1, 1, 1, 2]) };
    let dualpipe = Spec { schedule: Schedule::DualPipe, ..laid_out(small(), [1, 1, 1, 1, 4]) };
    let shown = [
        laid_out(zero_bubble.clone(), [1, 1, 1, 1, 1]),
        Spec { recompute: Recompute::Full, ..zero_bubble.clone() },
        Spec { phase: Phase::Prefill, ..zero_bubble },
        Spec { model: Model { layers: 6, ..small().model }, batch: 24, ..laid_out(dualpipe.clone(), [1, 1, 1, 1, 3]) },
        Spec { batch: 14, ..dualpipe.clone() },
        Spec { batch: 18, ..dualpipe.clone() },
        Spec { model: Model { tied: true, ..small().model }, ..dualpipe },
    ];
    insta::assert_snapshot!(shown.map(refused).join("\n"), @"
    one pipeline stage has no bubble
    hint: use --schedule 1f1b, or --pp of at least 2
    schedules that split the backward pass require training without full recomputation
    hint: use another --schedule, or --recompute selective
    schedules that split the backward pass require training without full recomputation
    hint: use another --schedule, or --recompute selective
    3 pipeline stages have no opposite stages
    hint: the dualpipe schedule requires an even --pp
    7 micro-batches do not fill 4 pipeline stages from both ends
    hint: the dualpipe schedule requires an even number of at least 2 x pp; choose another --batch or --micro-batch
    9 micro-batches do not fill 4 pipeline stages from both ends
    hint: the dualpipe schedule requires an even number of at least 2 x pp; choose another --batch or --micro-batch
    tied embeddings are not supported with the dualpipe schedule
    hint: remove --tied-embeddings, or use --schedule zero-bubble
    ");
}
