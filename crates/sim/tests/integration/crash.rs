//! A rank that crashes: the ranks that are notified, the times of their notices, and the activities that continue.

use crate::support::{LATENCY_PS, PS_PER_BYTE, WORLD, blocking, compute, issue, recv, run, send, switch, wait};
use uniference_sim::cluster::Cluster;
use uniference_sim::engine::{HaltReason, RunEnd};
use uniference_sim::ids::{GroupId, Handle, RankId};
use uniference_sim::program::{Activity, CollectiveKind, Outcome, Reply, Request};
use uniference_sim::time::{Bytes, SimTime};

const MS: u64 = 1_000_000_000;
const LONG: u64 = 1_000 * MS;

/// Computes for a long time; `handle` is the rank's handle of the compute.
fn busy(handle: u32) -> [Request; 2] {
    [compute(LONG), wait(handle)]
}

/// A switch on which `rank` crashes at `ps`.
fn crashing(ranks: usize, rank: usize, ps: u64) -> Cluster {
    let mut cluster = switch(ranks);
    cluster.devices[rank].crash = Some(SimTime::from_ps(ps));
    cluster
}

fn failed_by(handle: u32, peer: u32) -> Reply {
    Reply::Failed { complete: vec![Handle(handle)], failed: vec![(Handle(handle), RankId(peer))] }
}

/// In a ring each rank waits for the previous one. Rank 3 crashes at c: rank 0 is notified one latency later and ends,
/// so its connections are closed and rank 1 is notified one more latency later, and so on.
#[test]
fn a_crash_goes_round_the_ring_as_those_who_hear_of_it_end() {
    let mut scripts = vec![blocking(CollectiveKind::AllReduce, 4_000); 4];
    scripts[3] = busy(0).to_vec();
    let outcomes = run(&crashing(4, 3, MS), scripts);
    assert!(matches!(outcomes.ended, RunEnd::Finished));
    for (rank, peer) in [(0, 3), (1, 0), (2, 1)] {
        assert_eq!(outcomes.at(rank, 1), MS + (rank as u64 + 1) * LATENCY_PS, "rank {rank}");
        assert_eq!(outcomes.reply(rank, 1), failed_by(0, peer), "rank {rank}");
    }
    let crashed = outcomes.statistics.ranks()[3];
    assert_eq!((crashed.finish, crashed.crash), (None, Some(SimTime::from_ps(MS))));
    // The accounts add up to the lifetime: the rank computed all the time.
    assert_eq!(crashed.times.compute.as_ps(), MS);
}

/// A rank that closes a group and continues notifies the others as its end would.
#[test]
fn closing_a_group_passes_a_failure_on() {
    let mut scripts = vec![blocking(CollectiveKind::AllReduce, 4_000); 4];
    scripts[0].extend([issue(Activity::Close(WORLD)), compute(LONG), wait(2)]);
    scripts[3] = busy(0).to_vec();
    let outcomes = run(&crashing(4, 3, MS), scripts);
    assert_eq!(outcomes.reply(1, 1), failed_by(0, 0));
    assert_eq!(outcomes.at(1, 1), MS + 2 * LATENCY_PS);
}

/// Without a crash, closing a group notifies no rank: a rank that waits for the closed end is in a deadlock.
#[test]
fn closing_a_group_is_no_failure_by_itself() {
    let scripts = vec![vec![issue(Activity::Close(WORLD))], blocking(CollectiveKind::Barrier, 0)];
    assert_eq!(run(&switch(2), scripts).halt().reason, HaltReason::Deadlock);
}

/// Members have room for 1,000 bytes. A root whose broadcast to rank 1 is held crashes; then rank 2 begins a broadcast
/// to rank 1. That broadcast continues when rank 1 enters it, not when rank 1 enters the first broadcast.
#[test]
fn a_broadcast_after_a_crash_waits_for_its_own_receiver() {
    let mut cluster = crashing(3, 0, MS);
    cluster.backend.protocol.buffer = Some(Bytes(1_000));
    let join = |root: u32| Request::JoinGroup {
        ranks: [RankId(root), RankId(1)].into(),
        sequence: 0,
        settings: None,
        rendezvous: false,
    };
    let broadcast = |group: u32| {
        let [mut call, _] = <[Request; 2]>::try_from(blocking(CollectiveKind::Broadcast, 4_000)).unwrap();
        if let Request::Issue { activity: Activity::Call(call), .. } = &mut call {
            call.group = GroupId(group);
        }
        call
    };
    let scripts = vec![
        vec![join(0), broadcast(1), compute(LONG), wait(1)],
        vec![
            join(0),
            join(2),
            compute(3 * MS),
            wait(0),
            broadcast(1),
            wait(1),
            compute(2 * MS),
            wait(2),
            broadcast(2),
            wait(3),
        ],
        vec![join(2), compute(2 * MS), wait(0), broadcast(2), wait(1)],
    ];
    let outcomes = run(&cluster, scripts);
    assert_eq!(outcomes.reply(1, 5), failed_by(1, 0));
    assert!(outcomes.at(2, 4) >= 5 * MS, "{}", outcomes.at(2, 4));
}

/// The duration of a message of n bytes is n/r + L. If the sender crashes before n/r, the receive fails one latency
/// after the crash. If the sender crashes later, the message arrives, and the next receive fails.
#[test]
fn what_has_left_arrives_and_what_has_not_is_lost() {
    let bytes = MS / PS_PER_BYTE;
    let scripts = || {
        let receives = vec![recv(Some(1), 0, bytes), wait(0), recv(Some(1), 1, 1), wait(1)];
        vec![receives, [vec![send(0, 0, bytes)], busy(1).to_vec()].concat()]
    };
    let early = run(&crashing(2, 1, MS / 2), scripts());
    assert_eq!((early.at(0, 1), early.reply(0, 1)), (MS / 2 + LATENCY_PS, failed_by(0, 1)));
    assert_eq!((early.at(0, 3), early.reply(0, 3)), (MS / 2 + LATENCY_PS, failed_by(1, 1)));
    let late = run(&crashing(2, 1, MS + 1), scripts());
    assert_eq!((late.at(0, 1), late.reply(0, 1)), (MS + LATENCY_PS, Reply::Complete(vec![Handle(0)])));
    assert_eq!((late.at(0, 3), late.reply(0, 3)), (MS + 1 + LATENCY_PS, failed_by(1, 1)));
}

/// Two senders share the receiver's link until one crashes at t; the other has sent t/2 of its n bytes' time and then
/// has the whole link: it ends at t + (n/r - t/2) + L.
#[test]
fn the_others_get_what_the_crashed_one_had_of_a_link() {
    let bytes = MS / PS_PER_BYTE;
    let receives = vec![recv(Some(0), 0, bytes), wait(0)];
    let scripts = vec![vec![send(2, 0, bytes)], [vec![send(2, 0, bytes)], busy(1).to_vec()].concat(), receives];
    let outcomes = run(&crashing(3, 1, MS / 2), scripts);
    assert_eq!(outcomes.at(2, 1), MS / 2 + (MS - MS / 4) + LATENCY_PS);
}

/// A receive from any rank waits for the others, as Gloo's does.
#[test]
fn a_receive_from_any_rank_does_not_fail() {
    let scripts =
        vec![vec![recv(None, 0, 1), wait(0)], vec![compute(2 * MS), wait(0), send(0, 0, 1)], busy(0).to_vec()];
    let outcomes = run(&crashing(3, 2, MS), scripts);
    assert_eq!(outcomes.reply(0, 1), Reply::Complete(vec![Handle(0)]));
}

/// A collective continues if no message of the crashed rank is missing: in a broadcast's tree no other rank needs a
/// leaf.
#[test]
fn who_does_not_need_the_crashed_rank_does_not_notice() {
    let mut scripts = vec![blocking(CollectiveKind::Broadcast, 1_000); 4];
    scripts[3] = busy(0).to_vec();
    let outcomes = run(&crashing(4, 3, MS), scripts);
    for rank in 0..3 {
        assert_eq!(outcomes.reply(rank, 1), Reply::Complete(vec![Handle(0)]), "rank {rank}");
    }
}

/// The remaining ranks can create a group of their own and continue.
#[test]
fn the_survivors_go_on_in_a_new_group() {
    let survivors =
        || Request::JoinGroup { ranks: (0..2).map(RankId).collect(), sequence: 0, settings: None, rendezvous: false };
    let barrier = || {
        let [mut call, _] = <[Request; 2]>::try_from(blocking(CollectiveKind::Barrier, 0)).unwrap();
        if let Request::Issue { activity: Activity::Call(call), .. } = &mut call {
            call.group = GroupId(1);
        }
        call
    };
    let mut scripts = vec![[blocking(CollectiveKind::Barrier, 0), vec![survivors(), barrier(), wait(1)]].concat(); 2];
    scripts.push(busy(0).to_vec());
    let outcomes = run(&crashing(3, 2, MS), scripts);
    assert!(matches!(outcomes.ended, RunEnd::Finished));
    for rank in 0..2 {
        assert!(matches!(outcomes.reply(rank, 1), Reply::Failed { .. }), "rank {rank}");
        assert_eq!(outcomes.reply(rank, 4), Reply::Complete(vec![Handle(1)]), "rank {rank}");
    }
}

#[test]
fn a_rank_that_has_ended_does_not_crash() {
    let scripts = vec![blocking(CollectiveKind::Barrier, 0); 2];
    let outcomes = run(&crashing(2, 1, MS), scripts.clone());
    assert_eq!(outcomes.digest, run(&switch(2), scripts).digest);
    assert_eq!(outcomes.statistics.ranks()[1].crash, None);
}

/// A deadlock report names the crashed rank.
#[test]
fn a_deadlock_after_a_crash_names_it() {
    let scripts = vec![vec![recv(None, 0, 1), wait(0)], busy(0).to_vec()];
    let outcomes = run(&crashing(2, 1, MS), scripts);
    let halt = outcomes.halt();
    assert_eq!((&halt.reason, halt.ranks[1].ended), (&HaltReason::Deadlock, Some(Outcome::Crashed)));
    let text = halt.render(&|_| "a.py:1".into(), &|_| Vec::new());
    assert!(text.contains("rank 1, clock") && text.contains("has crashed") && text.contains("timeout"), "{text}");
}
