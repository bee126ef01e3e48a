//! Times of NCCL's choices: the closed forms of its own model, on servers of eight GPUs.

use crate::support::*;
use uniference_sim::cluster::Cluster;
use uniference_sim::cluster::Protocol;
use uniference_sim::collective::Surroundings;
use uniference_sim::collective::choose::{AlgorithmTable, algorithm_by_name};
use uniference_sim::ids::GroupRank;
use uniference_sim::network::{HostSpec, LinkSpec, Preset, Topology};
use uniference_sim::program::CollectiveKind::{self, AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
use uniference_sim::program::{CallOp, Collective, DType, NcclSettings, ReduceOp, Request, Shape};
use uniference_sim::time::{Rate, SimDuration};

const GPUS: u32 = 8;
/// Rate of a GPU's NIC in B/s.
const CARD: f64 = 50e9;
/// B/s between a GPU and its host's memory.
const HOST: f64 = 25e9;
const MICROSECOND: f64 = 1e-6;
/// Time to launch NCCL's kernel.
const LAUNCH: f64 = 6.6 * MICROSECOND;

/// GPUs that send `nvlink` bytes a second to each other and 50 GB/s to other servers.
fn surroundings(nvlink: f64) -> Surroundings {
    let [inside, between, host] = [nvlink, CARD, HOST].map(|rate| Rate::new(rate).unwrap());
    let (nvls, max_channels, settings) = (true, 32, NcclSettings::default());
    Surroundings { per_server: GPUS, inside, between, cards: GPUS, nvls, max_channels, host, settings }
}

/// Servers whose GPUs send `nvlink` bytes a second to each other and 50 GB/s to other servers.
pub(crate) fn servers(count: u32, nvlink: f64) -> Cluster {
    let ranks = (count * GPUS) as usize;
    let mut cluster = switch(ranks);
    let hosts: Vec<HostSpec> = cluster.topology.hosts().iter().map(HostSpec::new).collect();
    let link = |rate, ns| LinkSpec::new(Rate::new(rate).unwrap(), SimDuration::from_ns(ns));
    let rail = Preset::Rail { per_server: GPUS, fabric: link(nvlink, 100) };
    cluster.topology = Topology::preset(&rail, &hosts, link(CARD, 200)).unwrap();
    let mut algorithms = AlgorithmTable::ideal();
    for kind in [AllReduce, AllGather, ReduceScatter, Broadcast, Reduce] {
        algorithms.force(kind, algorithm_by_name(kind, "nccl").unwrap());
    }
    algorithms.adapt(surroundings(nvlink));
    cluster.backend.algorithms = algorithms;
    cluster.backend.protocol = Protocol { call: SimDuration::from_ns(6_600), ..Protocol::default() };
    cluster
}

fn ampere(count: u32) -> Cluster {
    servers(count, 240e9)
}

fn issue_of(kind: CollectiveKind, bytes: u64) -> Request {
    let reduce = (!matches!(kind, AllGather | Broadcast)).then_some(ReduceOp::Sum);
    let root = matches!(kind, Broadcast | Reduce).then_some(GroupRank(0));
    call(CallOp::Collective(Collective {
        kind,
        dtype: DType::Float32,
        reduce,
        root,
        shape: Shape::Even(bytes / 4),
        kernel: None,
    }))
}

/// Seconds until the last rank has finished `times` calls that were all issued at once.
fn seconds_of(cluster: &Cluster, kind: CollectiveKind, bytes: u64, times: u32) -> f64 {
    let script = || (0..times).map(|_| issue_of(kind, bytes)).chain((0..times).map(wait)).collect();
    let ranks = cluster.devices.len();
    let outcomes = run(cluster, (0..ranks).map(|_| script()).collect());
    (0..ranks).map(|rank| outcomes.finish(rank)).max().unwrap() as f64 * 1e-12
}

fn seconds(cluster: &Cluster, kind: CollectiveKind, bytes: u64) -> f64 {
    seconds_of(cluster, kind, bytes, 1)
}

pub(crate) fn near(found: f64, expected: f64, tolerance: f64) {
    assert!((found / expected - 1.0).abs() < tolerance, "{found} is not {expected}");
}

fn with(mut cluster: Cluster, kind: CollectiveKind, name: &str, nvlink: f64) -> Cluster {
    cluster.backend.algorithms.force(kind, algorithm_by_name(kind, name).unwrap());
    cluster.backend.algorithms.adapt(surroundings(nvlink));
    cluster
}

#[test]
fn large_rings_take_their_bytes_and_the_steps_latencies() {
    let n = f64::from(1_u32 << 30);
    // 8.4 us + 2 (P - 1) 3.4 us + 2 (P - 1)/P n/B, and half of the steps and bytes for a gather of n bytes in total.
    near(seconds(&ampere(1), AllReduce, 1 << 30), (8.4 + 14.0 * 3.4) * MICROSECOND + 2.0 * 7.0 / 8.0 * n / 240e9, 1e-4);
    near(seconds(&ampere(1), AllGather, 1 << 27), (8.4 + 7.0 * 3.4) * MICROSECOND + 7.0 / 8.0 * n / 240e9, 1e-4);
}

#[test]
fn small_messages_take_the_steps_of_ll() {
    // 6.6 us + 2 (P - 1) 0.6 us
    near(seconds(&ampere(1), AllReduce, 64), (6.6 + 14.0 * 0.6) * MICROSECOND, 1e-2);
}

#[test]
fn switches_that_reduce_are_faster_than_a_ring() {
    let (n, nvlink) = (f64::from(1_u32 << 30), 360e9);
    let nvls = seconds(&servers(1, nvlink), AllReduce, 1 << 30);
    // the launch + 23 us + n / (5/6 B)
    near(nvls, LAUNCH + 23.0 * MICROSECOND + n / nvlink * 6.0 / 5.0, 2e-3);
    let ring = seconds(&with(servers(1, nvlink), AllReduce, "ring_simple", nvlink), AllReduce, 1 << 30);
    // 2 (P - 1)/P over 6/5
    near(ring / nvls, 1.75 / 1.2, 0.01);
    let gather = seconds(&with(servers(1, nvlink), AllGather, "nvls", nvlink), AllGather, 1 << 27);
    near(gather, LAUNCH + 23.0 * MICROSECOND + n / nvlink * 6.0 / 5.0, 2e-3);
}

/// Two servers are as fast as one, because eight NICs carry more than a GPU's NVLink; a single NIC would carry 50 GB/s.
#[test]
fn rings_across_servers_use_every_card() {
    let n = f64::from(1_u32 << 30);
    // 8.4 us + 1.4 times ... is the model's choice only; the steps: 26 inside, 4 between, and 2 (P - 1)/P n/B
    let latencies = (8.4 + 26.0 * 3.4 + 4.0 * 14.0) * MICROSECOND;
    near(seconds(&ampere(2), AllReduce, 1 << 30), latencies + 2.0 * 15.0 / 16.0 * n / 240e9, 2e-2);
}

/// Chunks of all channels follow each other along the chain: (P - 2 + n / c) c / B + (P - 1) hops, c = 24 x 512 KiB.
#[test]
fn broadcasts_pass_on_a_chunk_of_every_channel() {
    let chunk = f64::from(24 * (512 << 10));
    let expected = (8.4 + 7.0 * 3.4) * MICROSECOND + (6.0 + 16.0) * chunk / 240e9;
    near(seconds(&ampere(1), Broadcast, 16 * 24 * (512 << 10)), expected, 1e-3);
}

/// Messages of 1 GB to a GPU of the same server and to one of another server. Without peer access the former passes
/// through the host's memory; with one channel in place of two the latter has half of a NIC's rate.
#[test]
fn settings_affect_messages_by_where_the_receiver_is() {
    let seconds = |settings, to| {
        let mut cluster = ampere(2);
        cluster.backend.algorithms.adapt(Surroundings { settings, ..surroundings(240e9) });
        let mut scripts = vec![Vec::new(); 16];
        scripts[0] = vec![send(to, 0, 1_000_000_000), wait(0)];
        scripts[to as usize] = vec![recv(Some(0), 0, 1_000_000_000), wait(0)];
        run(&cluster, scripts).finish(to as usize) as f64 * 1e-12
    };
    let usual = NcclSettings::default();
    let by_host = NcclSettings { peer_access: false, ..usual };
    let one_channel = NcclSettings { channels: [1, 1], ..usual };
    for (settings, inside, between) in
        [(usual, 240e9, CARD), (by_host, HOST, CARD), (one_channel, 240e9 / 24.0, CARD / 2.0)]
    {
        near(seconds(settings, 1), 1e9 / inside, 0.015);
        near(seconds(settings, 8), 1e9 / between, 0.015);
    }
}

/// Operations of a communicator run on one stream: two of them need twice the time of one, less the second's launch.
#[test]
fn a_communicator_has_one_stream() {
    let [one, two] = [1, 2].map(|times| seconds_of(&ampere(1), AllReduce, 1 << 26, times));
    assert!(two <= 2.0 * one && two >= 2.0 * one - LAUNCH - 1e-9, "{two} and {one}");
}
