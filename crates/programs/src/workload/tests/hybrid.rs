//! Tests of hybrid sharding, which shards within groups of replicas and copies over these groups, in closed forms of a
//! rank's traffic and memory.

use super::*;

/// `data` x `context` replicas in groups of `shard`, one micro-batch each.
fn hybrid(zero: u8, [context, data]: [u32; 2], shard: u32) -> Spec {
    let mut spec = Spec { zero, gradient_bytes: 4, ..laid_out(small(), [1, context, 1, data, 1]) };
    spec.layout.shard = Some(shard);
    Spec { batch: u64::from(data) * spec.micro_batch, ..spec }
}

#[rstest]
#[case::optimizer(1, [1, 8], 4, 1)]
#[case::gradients(2, [1, 8], 2, 1)]
#[case::parameters(3, [1, 8], 4, 2)]
#[case::with_context(3, [2, 4], 4, 2)]
#[case::within_a_sequence(3, [4, 2], 2, 2)]
fn shards_move_within_groups_and_sums_of_them_over_groups(
    #[case] zero: u8,
    #[case] axes: [u32; 2],
    #[case] shard: u32,
    #[case] gathers: u64,
) {
    // For Psi parameters, in groups of S of N replicas: Psi gradients are reduce-scattered within a group, Psi / S
    // all-reduced over the N / S groups, and Psi / S gathered from each rank of a group, once or once per pass, forward
    // and backward (Zhao et al. 2023, section 3.2.2).
    let spec = hybrid(zero, axes, shard);
    let psi = spec.model.parameters();
    let (own, groups) = (psi / u64::from(shard), spec.layout.dense_replicas() / shard);
    for trace in nodes(&spec) {
        let sum = |kind, what| collected(&trace, kind, what).iter().sum::<u64>();
        assert_eq!(sum(CommType::ReduceScatter, ".gradients"), psi * 4);
        assert_eq!(sum(CommType::AllReduce, "copied gradients"), own * 4);
        assert_eq!(sum(CommType::AllGather, "parameters"), own * ELEMENT * gathers);
        for (index, node) in trace.iter().enumerate().filter(|(_, node)| node.name.ends_with("copied gradients")) {
            // A shard is reduced over the groups after the reduction within its own group.
            let scattered = trace[..index].iter().rfind(|node| node.name.ends_with(".gradients")).unwrap();
            assert!(node.data_deps.contains(&scattered.id), "{node:?}");
        }
    }
    let workload = Workload::new(spec.clone()).unwrap();
    for (group, members) in [(Group::Replicas, shard), (Group::Copies, groups)] {
        let ranks = spec.layout.members(group, 3);
        assert_eq!((ranks.len() as u32, ranks.contains(&3)), (members, true));
    }
    // A ring of n sends (n-1)/n of the bytes that it gathers or scatters, and twice that of the bytes that it
    // all-reduces. In addition, context-parallel ranks gather keys and scatter their gradients.
    let link = LinkSpec::new(Rate::new(1e9).unwrap(), SimDuration::from_us(1));
    let ranks =
        simulate(&workload, &cluster(workload.world_size(), link, Preset::Switch), &Symmetry::default()).unwrap();
    let part = |whole: u64, ranks: u32| whole / u64::from(ranks) * u64::from(ranks - 1);
    let shards = part(psi * 4, shard) + 2 * part(own * 4, groups) + gathers * part(psi * ELEMENT, shard);
    let keys = 2 * ELEMENT * spec.tokens() * spec.model.kv_width() * u64::from(axes[0]);
    let context = 2 * u64::from(spec.model.layers) * part(keys, axes[0]);
    assert!(ranks.iter().all(|rank| rank.traffic.sent.0 == shards + context), "{:?}", ranks[0].traffic);
}

#[test]
fn a_rank_holds_a_share_of_its_group() {
    // Rajbhandari et al. 2020, figure 1, with the S ranks of a group in place of all N: 4 Psi + 12 Psi / S, 2 Psi + 14
    // Psi / S, 16 Psi / S bytes, with gradients of 2 bytes.
    let psi = small().model.parameters();
    for (shard, each) in [(2, 2), (4, 4), (8, 8)] {
        let held = |zero| {
            let spec = Spec { gradient_bytes: 2, ..hybrid(zero, [1, 8], shard) };
            let Memory { weights, gradients, optimizer, .. } = Workload::new(spec).unwrap().memory(0);
            weights + gradients + optimizer
        };
        assert_eq!([1, 2, 3].map(held), [4 * psi + 12 * psi / each, 2 * psi + 14 * psi / each, 16 * psi / each]);
    }
}

#[test]
fn groups_that_do_not_fit_are_refused_with_a_hint() {
    let refused = |spec: Spec| Workload::new(spec).unwrap_err().to_string();
    assert_eq!(
        refused(hybrid(3, [1, 8], 3)),
        "8 replicas cannot be divided into groups of 3\nhint: choose an --hsdp that divides dp x cp"
    );
    assert_eq!(
        refused(hybrid(0, [1, 8], 4)),
        "a group of ranks that share shards requires ZeRO\nhint: add --zero 1, 2 or 3 (3 is FSDP), or remove --hsdp"
    );
    assert_eq!(
        refused(hybrid(1, [4, 3], 6)),
        "groups of 6 replicas end within a sequence of 4 context-parallel ranks\nhint: choose an --hsdp that divides --cp, or a multiple of it"
    );
    let experts = with_experts(laid_out(hybrid(1, [1, 8], 4), [1, 1, 2, 8, 1]));
    let experts = Spec { layout: Layout { shard: Some(4), ..experts.layout }, ..experts };
    assert_eq!(
        refused(experts),
        "shards within groups of replicas are not supported with expert parallelism\nhint: remove --hsdp or --ep"
    );
}
