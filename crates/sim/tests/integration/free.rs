//! Operations that need no time: a receiver waits only for its sender.

use crate::support::*;
use rstest::rstest;
use uniference_sim::cluster::{Cluster, Handshake, Protocol};
use uniference_sim::program::CollectiveKind::{self, AllGather, AllReduce, AllToAll, Barrier, Broadcast, Reduce};
use uniference_sim::program::Request;
use uniference_sim::time::{Bytes, SimDuration};

fn cluster(ranks: usize, free: &'static str) -> Cluster {
    let mut cluster = switch(ranks);
    let handshake = Some(Handshake { control: Bytes(16), preamble: Bytes(40), eager: None });
    cluster.backend.protocol = Protocol { handshake, connections_per_group: true, ..busy() };
    cluster.backend.free.operations = [free].into();
    cluster
}

/// Operations after 1, 2, 3 and 4 ms of compute; then another millisecond of compute.
fn skewed(operation: impl Fn(u32) -> Request) -> Vec<Vec<Request>> {
    let script = |rank: u32| {
        let before = compute(u64::from(rank + 1) * 1_000_000_000);
        vec![before, wait(0), operation(rank), wait(1), compute(1_000_000_000), wait(2)]
    };
    (0..4).map(script).collect()
}

#[rstest]
#[case(AllReduce, "all_reduce", [5, 5, 5, 5])]
#[case(AllGather, "all_gather", [5, 5, 5, 5])]
#[case(AllToAll, "all_to_all", [5, 5, 5, 5])]
#[case(Barrier, "barrier", [5, 5, 5, 5])]
// Rank 0 is the root. As a sender it waits for no rank, as a receiver for all; rank 2 forwards the data of rank 3.
#[case(Broadcast, "broadcast", [2, 3, 4, 5])]
#[case(Reduce, "reduce", [5, 3, 5, 5])]
fn a_free_collective_waits_for_peers_and_nothing_else(
    #[case] kind: CollectiveKind,
    #[case] name: &'static str,
    #[case] milliseconds: [u64; 4],
) {
    let outcomes = run(&cluster(4, name), skewed(|_| collective(kind, 100_000)));
    let finishes = [0, 1, 2, 3].map(|rank| outcomes.finish(rank));
    assert_eq!(finishes, milliseconds.map(|ms| ms * 1_000_000_000));
    // Other operations still need time.
    let paid = run(&cluster(4, "scatter"), skewed(|_| collective(kind, 100_000)));
    assert!((0..4).any(|rank| paid.finish(rank) > outcomes.finish(rank)));
}

/// With two milliseconds for each rank in each operation, all finishes are later by this time, whatever the operation's
/// size and number of members.
#[rstest]
#[case(AllReduce, "all_reduce", [7, 7, 7, 7])]
#[case(Broadcast, "broadcast", [4, 5, 6, 7])]
fn each_rank_may_spend_time_in_a_free_collective(
    #[case] kind: CollectiveKind,
    #[case] name: &'static str,
    #[case] milliseconds: [u64; 4],
) {
    let mut cluster = cluster(4, name);
    cluster.backend.free.takes = SimDuration::from_us(2_000);
    for elements in [1, 100_000] {
        let outcomes = run(&cluster, skewed(|_| collective(kind, elements)));
        let finishes = [0, 1, 2, 3].map(|rank| outcomes.finish(rank));
        assert_eq!(finishes, milliseconds.map(|ms| ms * 1_000_000_000));
    }
}

#[test]
fn a_free_message_waits_for_its_sender_alone() {
    // Rank 2 sends after 3 ms to rank 0, which waits since 1 ms; rank 1 sends after 2 ms to rank 3, which receives
    // after 4 ms.
    let messages = |rank| match rank {
        0 => recv(Some(2), 7, 50_000),
        1 => send(3, 8, 50_000),
        2 => send(0, 7, 50_000),
        _ => recv(Some(1), 8, 50_000),
    };
    let outcomes = run(&cluster(4, "send"), skewed(messages));
    let finishes = [0, 1, 2, 3].map(|rank| outcomes.finish(rank));
    assert_eq!(finishes, [4, 3, 4, 5].map(|ms| ms * 1_000_000_000));
}
