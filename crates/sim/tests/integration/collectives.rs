//! Closed forms of the collectives' times. n bytes, P ranks, alpha: latency, beta: time of a byte; one host per rank on
//! an ideal switch.

use crate::support::*;
use rstest::rstest;
use std::sync::Arc;
use uniference_sim::collective::Grid;
use uniference_sim::collective::choose::AlgorithmTable;
use uniference_sim::collective::hierarchical::Hierarchical;
use uniference_sim::network::{
    Dimension, DimensionKind, GridDimension, HostRates, HostSpec, LinkSpec, Preset, Topology,
};
use uniference_sim::program::CollectiveKind::{
    self, AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
};
use uniference_sim::time::{Rate, SimDuration};

const ALPHA: u64 = LATENCY_PS;
const BETA: u64 = PS_PER_BYTE;

/// Time at which the last rank finishes.
fn time(ranks: usize, kind: CollectiveKind, algorithm: &str, bytes: u64) -> u64 {
    let cluster = forced(ranks, kind, algorithm);
    let outcomes = run(&cluster, (0..ranks).map(|_| blocking(kind, bytes)).collect());
    (0..ranks).map(|rank| outcomes.finish(rank)).max().unwrap()
}

fn log2_up(ranks: usize) -> u64 {
    u64::from(ranks.next_power_of_two().trailing_zeros())
}

#[rstest]
fn ring_all_reduce(#[values(2, 3, 4, 7, 16)] ranks: usize) {
    // 2 (P - 1) (alpha + n/P beta), n a multiple of P
    let n = 1000 * ranks as u64;
    assert_eq!(time(ranks, AllReduce, "ring", n), 2 * (ranks as u64 - 1) * (ALPHA + 1000 * BETA));
}

#[rstest]
fn ring_reduce_scatter_and_all_gather(#[values(2, 3, 5, 8)] ranks: usize) {
    // (P - 1) (alpha + m beta), m a block
    for kind in [ReduceScatter, AllGather] {
        assert_eq!(time(ranks, kind, "ring", 700), (ranks as u64 - 1) * (ALPHA + 700 * BETA), "{kind}");
    }
}

#[rstest]
fn recursive_doubling_all_reduce(#[values(2, 4, 8, 16)] ranks: usize) {
    // log2 P (alpha + n beta), P a power of two
    assert_eq!(time(ranks, AllReduce, "recursive_doubling", 640), log2_up(ranks) * (ALPHA + 640 * BETA));
}

#[rstest]
fn halving_doubling_all_reduce(#[values(2, 4, 8, 16)] ranks: usize) {
    // 2 log2 P alpha + 2 (P - 1)/P n beta, P a power of two, n a multiple of P
    let p = ranks as u64;
    let n = 64 * p;
    assert_eq!(time(ranks, AllReduce, "halving_doubling", n), 2 * log2_up(ranks) * ALPHA + 2 * (p - 1) * 64 * BETA);
}

#[rstest]
fn pairwise_all_to_all(#[values(2, 3, 4, 8, 9)] ranks: usize) {
    // (P - 1) (alpha + m beta)
    assert_eq!(time(ranks, AllToAll, "pairwise", 300), (ranks as u64 - 1) * (ALPHA + 300 * BETA));
}

#[rstest]
fn direct_all_to_all(#[values(2, 3, 4, 8, 9)] ranks: usize) {
    // all at once, every egress and ingress shared by P - 1: (P - 1) m beta + alpha
    assert_eq!(time(ranks, AllToAll, "linear", 300), (ranks as u64 - 1) * 300 * BETA + ALPHA);
}

#[rstest]
fn direct_gather_and_scatter(#[values(2, 3, 4, 8)] ranks: usize) {
    // the root's ingress or egress carries P - 1 blocks: (P - 1) m beta + alpha
    for kind in [Gather, Scatter] {
        assert_eq!(time(ranks, kind, "linear", 500), (ranks as u64 - 1) * 500 * BETA + ALPHA, "{kind}");
    }
}

#[rstest]
fn dissemination_barrier(#[values(2, 3, 4, 5, 8, 13)] ranks: usize) {
    // ceil(log2 P) alpha
    assert_eq!(time(ranks, Barrier, "dissemination", 0), log2_up(ranks) * ALPHA);
}

#[rstest]
fn binomial_broadcast_and_reduce_of_two_and_four() {
    // P = 2: one message. P = 4: the longest chain has two.
    for kind in [Broadcast, Reduce] {
        assert_eq!(time(2, kind, "binomial", 800), ALPHA + 800 * BETA, "{kind}");
        assert_eq!(time(4, kind, "binomial", 800), 2 * (ALPHA + 800 * BETA), "{kind}");
    }
}

/// One host sends at a tenth of the rate at which it receives.
#[test]
fn a_slow_egress_sets_the_pace_of_a_ring() {
    let mut cluster = switch(4);
    let mut hosts: Vec<HostSpec> = cluster.topology.hosts().iter().map(HostSpec::new).collect();
    let (fast, slow) = (Rate::new(1e9).unwrap(), Rate::new(1e8).unwrap());
    hosts[1].bandwidth = Some(HostRates { egress: slow, ingress: fast });
    let link = LinkSpec::new(fast, SimDuration::from_ps(ALPHA));
    cluster.topology = Topology::preset(&Preset::Switch, &hosts, link).unwrap();
    let message = |from: usize, to: u32| {
        let mut scripts = vec![Vec::new(); 4];
        scripts[from] = vec![send(to, 0, 1000), wait(0)];
        scripts[to as usize] = vec![recv(Some(from as u32), 0, 1000), wait(0)];
        run(&cluster, scripts).finish(to as usize)
    };
    // n beta + alpha, with ten times beta in one direction
    assert_eq!((message(1, 0), message(0, 1)), (10_000 * BETA + ALPHA, 1_000 * BETA + ALPHA));
    // The slow rank sends 2 (P - 1) blocks one after the other, as others' blocks come faster than its own leave: 2 (P
    // - 1) n/P beta + alpha
    let outcomes = run(&cluster, (0..4).map(|_| blocking(AllReduce, 4000)).collect());
    let last = (0..4).map(|rank| outcomes.finish(rank)).max().unwrap();
    assert_eq!(last, 6 * 10_000 * BETA + ALPHA);
}

#[test]
fn there_is_no_hidden_barrier() {
    // A broadcast's root is done when its bytes have left, long before the late receiver enters.
    let late = vec![compute(1_000_000_000), wait(0), collective(Broadcast, 100), wait(1)];
    let outcomes = run(&switch(2), vec![blocking(Broadcast, 100), late]);
    assert_eq!(outcomes.finish(0), 100 * BETA);
    assert_eq!(outcomes.finish(1), 1_000_000_000);
}

#[test]
fn a_group_of_one_communicates_in_no_time() {
    for kind in CollectiveKind::ALL {
        assert_eq!(run(&switch(1), vec![blocking(kind, 100)]).finish(0), 0, "{kind}");
    }
}

#[test]
fn bytes_are_counted_with_the_algorithms_steps() {
    // ring: every rank sends and receives 2 (P - 1)/P n
    let outcomes = run(&switch(4), (0..4).map(|_| blocking(AllReduce, 4000)).collect());
    for rank in outcomes.statistics.ranks() {
        assert_eq!((rank.traffic.sent.0, rank.traffic.received.0), (6000, 6000));
    }
    let (name, group, all_reduce) = outcomes.statistics.operations().next().unwrap();
    assert_eq!((name, group, all_reduce.count, all_reduce.bytes.0), ("all_reduce", WORLD, 4, 16_000));
}

/// Two dimensions of switches: `sizes` ranks along each, with the times of a byte in ps, and LATENCY_PS between any two
/// along one.
fn two_dimensions(sizes: [u32; 2], byte: [u64; 2], kind: CollectiveKind, chunks: u32, bytes: u64) -> u64 {
    let ranks = (sizes[0] * sizes[1]) as usize;
    let mut cluster = switch(ranks);
    let hosts: Vec<HostSpec> = (0..ranks).map(|rank| HostSpec::new(format!("host.{rank:04}"))).collect();
    let link = |byte: u64| LinkSpec::new(Rate::new(1e12 / byte as f64).unwrap(), SimDuration::from_ps(ALPHA));
    let dimension = |at: usize| Dimension { kind: DimensionKind::Switch, size: sizes[at], link: link(byte[at]) };
    let dimensions = Preset::Dimensions(vec![dimension(0), dimension(1)]);
    cluster.topology = Topology::preset(&dimensions, &hosts, link(byte[0])).unwrap();
    let grid = Grid { dimensions: sizes.map(|size| GridDimension { size, meshed: false }).to_vec() };
    let table = &mut cluster.backend.algorithms;
    table.force(kind, Arc::new(Hierarchical::new(Vec::new(), chunks, AlgorithmTable::ideal())));
    table.lay_out(grid, ranks as u32);
    let outcomes = run(&cluster, (0..ranks).map(|_| blocking(kind, bytes)).collect());
    (0..ranks).map(|rank| outcomes.finish(rank)).max().unwrap()
}

#[rstest]
fn hierarchical_on_two_dimensions(
    #[values([2, 2], [4, 2], [3, 5], [8, 4])] sizes: [u32; 2],
    #[values(1, 3, 4)] chunks: u64,
) {
    let [k0, k1] = sizes.map(u64::from);
    // A chunk has n / C = 1,000 k0 k1 bytes: along dimension 0, (k0 - 1) (alpha + 1,000 k1 beta_0), then (k1 - 1)
    // (alpha + 1,000 beta_1).
    let n = chunks * 1000 * k0 * k1;
    let phases = |byte: [u64; 2]| [(k0 - 1) * (ALPHA + 1000 * k1 * byte[0]), (k1 - 1) * (ALPHA + 1000 * byte[1])];
    for byte in [[1_000, 100_000], [40_000, 1_000]] {
        let time = |kind, bytes| two_dimensions(sizes, byte, kind, chunks as u32, bytes);
        let [t0, t1] = phases(byte);
        // The slower dimension is never idle between its first chunk and its last.
        let once = t0 + t1 + (chunks - 1) * t0.max(t1);
        assert_eq!(time(ReduceScatter, n / (k0 * k1)), once, "reduce-scatter {byte:?}");
        assert_eq!(time(AllGather, n / (k0 * k1)), once, "all-gather {byte:?}");
        // Dimension 0 serves 2 C phases of t0, dimension 1 C of 2 t1; the first or the last chunk waits for the other
        // dimension.
        let all_reduce = if chunks == 1 { 2 * (t0 + t1) } else { (2 * t0 + chunks * 2 * t1).max(2 * chunks * t0) };
        if chunks == 1 || 2 * t1 >= t0 || (chunks - 1) * t0 >= 2 * t1 {
            assert_eq!(time(AllReduce, n), all_reduce, "all-reduce {byte:?}");
        }
    }
    // All-to-all of 1,000 bytes per pair: along dimension 0 a rank sends k1 blocks to each of k0 - 1 members at once,
    // then along dimension 1 k0 blocks to each of k1 - 1 members.
    let straight = 2 * ALPHA + 1000 * ((k0 - 1) * k1 * 1_000 + (k1 - 1) * k0 * 100_000);
    assert_eq!(two_dimensions(sizes, [1_000, 100_000], AllToAll, 1, 1000), straight);
}
