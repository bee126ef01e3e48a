//! Collectives that kernels of programs carry out: their times, and the groups in which they are possible.

use crate::nccl::{near, servers};
use crate::support::*;
use uniference_sim::cluster::Cluster;
use uniference_sim::ids::{GroupId, RankId};
use uniference_sim::program::CollectiveKind::{self, AllGather, AllReduce, ReduceScatter};
use uniference_sim::program::PeerKernel::{self, OneShot, TwoShot};
use uniference_sim::program::{Activity, Call, CallOp, Collective, DType, ReduceOp, Request, Shape};

const NVLINK: f64 = 360e9;
const MICROSECOND: f64 = 1e-6;

fn issue_of(group: u32, kind: CollectiveKind, bytes: u64, kernel: Option<PeerKernel>) -> Request {
    let reduce = (kind != AllGather).then_some(ReduceOp::Sum);
    let shape = Shape::Even(bytes / 4);
    let op = CallOp::Collective(Collective { kind, dtype: DType::Float32, reduce, root: None, shape, kernel });
    issue(Activity::Call(Call { group: GroupId(group), op }))
}

/// Seconds until the last member finishes; members are every `stride`th of the world's first ranks.
fn seconds(
    cluster: &Cluster,
    (members, stride): (u32, u32),
    kind: CollectiveKind,
    bytes: u64,
    kernel: Option<PeerKernel>,
) -> f64 {
    let ranks = cluster.devices.len() as u32;
    let group: Vec<u32> = (0..members).map(|member| member * stride).collect();
    let script = |rank: u32| {
        if !group.contains(&rank) {
            return Vec::new();
        }
        if group.len() as u32 == ranks {
            return vec![issue_of(0, kind, bytes, kernel), wait(0)];
        }
        let join = Request::JoinGroup {
            ranks: group.iter().copied().map(RankId).collect(),
            sequence: 0,
            settings: None,
            rendezvous: false,
        };
        vec![join, issue_of(1, kind, bytes, kernel), wait(0)]
    };
    let outcomes = run(cluster, (0..ranks).map(script).collect());
    group.iter().map(|rank| outcomes.finish(*rank as usize)).max().unwrap() as f64 * 1e-12
}

/// 3.35 us + 0.37 us (P - 1), plus (P - 1) n at the rate at which 36 blocks of 512 threads with 16 bytes each are in
/// flight for 1.2 us, for each other member, or at the link's rate.
#[test]
fn one_shot_takes_a_start_and_all_that_the_others_have() {
    let cluster = servers(1, NVLINK);
    for (members, n) in [(2, 64), (2, 1 << 23), (4, 64), (4, 1 << 23), (8, 1 << 20)] {
        let others = f64::from(members - 1);
        let rate = (others * 36.0 * 512.0 * 16.0 / (1.2 * MICROSECOND)).min(NVLINK);
        let expected = (3.35 + 0.37 * others) * MICROSECOND + others * n as f64 / rate;
        near(seconds(&cluster, (members, 1), AllReduce, n, Some(OneShot)), expected, 5e-3);
        near(seconds(&cluster, (members, 1), AllGather, n, Some(OneShot)), expected, 5e-3);
        near(seconds(&cluster, (members, 1), ReduceScatter, n, Some(OneShot)), expected, 5e-3);
    }
}

/// 8 us more, and 2 (P - 1)/P n at three quarters of the link's rate.
#[test]
fn two_shots_take_another_start_and_fewer_bytes() {
    let cluster = servers(1, NVLINK);
    for (members, n) in [(2, 64), (4, 1 << 23), (8, 1 << 23)] {
        let others = f64::from(members - 1);
        let bytes = 2.0 * others / f64::from(members) * n as f64;
        let expected = (11.35 + 0.37 * others) * MICROSECOND + bytes / (0.75 * NVLINK);
        near(seconds(&cluster, (members, 1), AllReduce, n, Some(TwoShot)), expected, 5e-3);
    }
}

/// Memory of another server cannot be read: programs call the library in such groups, and so does a replay.
#[test]
fn across_servers_the_library_takes_over() {
    let cluster = servers(2, NVLINK);
    for group in [(16, 1), (2, 8), (4, 4)] {
        let of_program = seconds(&cluster, group, AllReduce, 1 << 20, Some(OneShot));
        assert_eq!(of_program, seconds(&cluster, group, AllReduce, 1 << 20, None), "{group:?}");
    }
    let inside = seconds(&cluster, (8, 1), AllReduce, 1 << 16, Some(OneShot));
    assert!(inside < seconds(&cluster, (8, 1), AllReduce, 1 << 16, None));
}
