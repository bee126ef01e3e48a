//! Times of NCCL's choices on servers of eight GPUs: the closed forms of `collective/nccl/timing.rs` inside a server, of
//! NCCL's own model across servers.

use crate::support::*;
use uniference_sim::cluster::{Cluster, Device, Protocol};
use uniference_sim::collective::Surroundings;
use uniference_sim::collective::choose::{AlgorithmTable, algorithm_by_name};
use uniference_sim::ids::{GroupRank, HostId};
use uniference_sim::network::{HostSpec, LinkSpec, Preset, Topology};
use uniference_sim::program::CollectiveKind::{self, AllGather, AllReduce, AllToAll, Broadcast, Reduce};
use uniference_sim::program::{CallOp, Collective, DType, NcclSettings, ReduceOp, Request, Shape};
use uniference_sim::time::{Rate, SimDuration};

const GPUS: u32 = 8;
/// Rate of a GPU's NIC in B/s.
const CARD: f64 = 50e9;
/// B/s between a GPU and its host's memory.
const HOST: f64 = 25e9;
const MICROSECOND: f64 = 1e-6;
/// Time to launch NCCL's kernel.
const LAUNCH: f64 = 4.0 * MICROSECOND;

/// GPUs that send `nvlink` bytes a second to each other and 50 GB/s to other servers.
pub(crate) fn surroundings(nvlink: f64) -> Surroundings {
    let [inside, between, host] = [nvlink, CARD, HOST].map(|rate| Rate::new(rate).unwrap());
    let (nvls, max_channels, settings) = (true, 32, NcclSettings::default());
    let (pcie_peers, shares_link) = (false, false);
    Surroundings {
        per_server: GPUS,
        inside,
        generation: None,
        between,
        cards: GPUS,
        nvls,
        max_channels,
        pcie_peers,
        shares_link,
        host,
        settings,
    }
}

/// Servers whose GPUs send `nvlink` bytes a second to each other and 50 GB/s to other servers.
pub(crate) fn servers(count: u32, nvlink: f64) -> Cluster {
    servers_of(GPUS, count, nvlink)
}

/// One server of `gpus` GPUs, which send `nvlink` bytes a second to each other.
pub(crate) fn server(gpus: u32, nvlink: f64) -> Cluster {
    servers_of(gpus, 1, nvlink)
}

/// One host of `gpus` GPUs, which share a link of `rate` bytes a second.
pub(crate) fn host(gpus: u32, rate: f64) -> Cluster {
    let mut cluster = server(gpus, rate);
    let local = LinkSpec::new(Rate::new(rate).unwrap(), SimDuration::from_us(1));
    let host = HostSpec { local: Some(local), ..HostSpec::new("host") };
    cluster.topology = Topology::preset(&Preset::Switch, &[host], local).unwrap();
    cluster.devices = (0..gpus).map(|gpu| Device::new(format!("gpu.{gpu}"), HostId(0))).collect();
    let surroundings = Surroundings { per_server: gpus, cards: 1, shares_link: true, ..surroundings(rate) };
    cluster.backend.algorithms.adapt(surroundings);
    cluster
}

fn servers_of(gpus: u32, count: u32, nvlink: f64) -> Cluster {
    let ranks = (count * gpus) as usize;
    let mut cluster = switch(ranks);
    let hosts: Vec<HostSpec> = cluster.topology.hosts().iter().map(HostSpec::new).collect();
    let link = |rate, ns| LinkSpec::new(Rate::new(rate).unwrap(), SimDuration::from_ns(ns));
    let rail = Preset::Rail { per_server: gpus, fabric: link(nvlink, 100) };
    cluster.topology = Topology::preset(&rail, &hosts, link(CARD, 200)).unwrap();
    let mut algorithms = AlgorithmTable::ideal();
    for kind in CollectiveKind::ALL {
        algorithms.force(kind, algorithm_by_name(kind, "nccl").unwrap());
    }
    algorithms.adapt(Surroundings { per_server: gpus, cards: gpus, ..surroundings(nvlink) });
    cluster.backend.algorithms = algorithms;
    cluster.backend.protocol =
        Protocol { call: SimDuration::from_ns(4_000), calls_overlap: true, ..Protocol::default() };
    cluster
}

fn ampere(count: u32) -> Cluster {
    servers(count, 240e9)
}

pub(crate) fn issue_of(kind: CollectiveKind, bytes: u64) -> Request {
    let reduce = (!matches!(kind, AllGather | Broadcast | AllToAll)).then_some(ReduceOp::Sum);
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
    // 8.83 us + 11.3 us + k (0.865 us + 948 kB / B) + (k + 0.42)/P n / 0.95 B, in k = 2 (P - 1) steps; P - 1 for a
    // gather of n bytes in total.
    let of = |steps: f64| {
        (8.83 + 11.3 + steps * (0.865 + 948.0 / 240.0)) * MICROSECOND + (steps + 0.42) / 8.0 * n / (0.95 * 240e9)
    };
    near(seconds(&ampere(1), AllReduce, 1 << 30), of(14.0), 1e-3);
    near(seconds(&ampere(1), AllGather, 1 << 27), of(7.0), 1e-3);
}

#[test]
fn small_messages_take_the_steps_of_ll() {
    // 8.83 us + 2 (P - 1) 0.865 us
    near(seconds(&ampere(1), AllReduce, 64), (8.83 + 14.0 * 0.865) * MICROSECOND, 1e-2);
}

#[test]
fn switches_that_reduce_are_faster_than_a_ring() {
    let (n, nvlink) = (f64::from(1_u32 << 30), 360e9);
    let nvls = seconds(&servers(1, nvlink), AllReduce, 1 << 30);
    // 8.4 us + (n + f) / R, R = 0.823 B / (1 + 1/8); a quarter of the fill f of 16 x 8 x 128 KiB is always there, the
    // rest to 1 / (1 + 0.8 f/n).
    let fill = 16.0 * 8.0 * 131_072.0;
    let rate = 0.823 * nvlink / 1.125;
    let expected = 8.4 * MICROSECOND + (n + fill * (0.25 + 0.75 / (1.0 + 0.8 * fill / n))) / rate;
    near(nvls, expected, 2e-3);
    let ring = seconds(&with(servers(1, nvlink), AllReduce, "ring_simple", nvlink), AllReduce, 1 << 30);
    // (2 (P - 1) + 0.42)/P / 0.95 over 1.125 / 0.823
    near(ring / nvls, (14.42 / 8.0 / 0.95) / (1.125 / 0.823), 0.02);
    let gather = seconds(&with(servers(1, nvlink), AllGather, "nvls", nvlink), AllGather, 1 << 27);
    near(gather, expected, 2e-3);
}

/// Trees across eight servers carry 2 (P - 1)/P n over a server's NICs at most, at 400 GB/s; rings with 64 ranks are
/// slower.
#[test]
fn trees_of_switches_connect_servers() {
    let (n, nvlink) = (f64::from(1_u32 << 28), 360e9);
    let trees = seconds(&servers(8, nvlink), AllReduce, 1 << 28);
    let ring = seconds(&with(servers(8, nvlink), AllReduce, "ring_simple", nvlink), AllReduce, 1 << 28);
    assert!(trees >= n / 400e9 && trees < ring, "{trees} s by trees, {ring} s by rings");
}

/// Messages of a group call overlap: 8.83 us + 1.79 us + 0.243 us and 1 KiB at 6.26 GB/s; a launch for each of the 14
/// calls would last 56 us.
#[test]
fn messages_of_a_group_share_a_launch() {
    let others = |me: u32| (1..GPUS).map(move |distance| (me + distance) % GPUS);
    let script = |me: u32| {
        let sends = others(me).map(|peer| send(peer, 0, 1024));
        let receives = others(me).map(|peer| recv(Some(peer), 0, 1024));
        sends.chain(receives).chain((0..2 * (GPUS - 1)).map(wait)).collect()
    };
    let outcomes = run(&ampere(1), (0..GPUS).map(script).collect());
    let last = (0..GPUS as usize).map(|rank| outcomes.finish(rank)).max().unwrap() as f64 * 1e-12;
    near(last, (8.83 + 1.79 + 0.243 + 1.024 / 6.26) * MICROSECOND, 0.02);
}

/// Two servers are as fast as one, because eight NICs carry more than a GPU's NVLink; a single NIC would carry 50 GB/s.
#[test]
fn rings_across_servers_use_every_card() {
    let n = f64::from(1_u32 << 30);
    // 8.4 us + 1.4 times ... is the model's choice only; the steps: 28 inside, 2 between, and 2 (P - 1)/P n/B
    let latencies = (8.4 + 28.0 * 3.4 + 2.0 * 14.0) * MICROSECOND;
    near(seconds(&ampere(2), AllReduce, 1 << 30), latencies + 2.0 * 15.0 / 16.0 * n / 240e9, 2e-2);
}

/// Chunks of all channels follow each other along the chain: (P - 2 + n / c) c / 0.95 B + (P - 1) hops, c = 24 x 512
/// KiB.
#[test]
fn broadcasts_pass_on_a_chunk_of_every_channel() {
    let chunk = f64::from(24 * (512 << 10));
    let latencies = 8.83 + 11.3 + 7.0 * (0.865 + 948.0 / 240.0);
    let expected = latencies * MICROSECOND + (6.0 + 16.0) * chunk / (0.95 * 240e9);
    near(seconds(&ampere(1), Broadcast, 16 * 24 * (512 << 10)), expected, 1e-3);
}

/// Messages of 1 GB to a GPU of the same server and to one of another server. Without peer access the former passes
/// through the host's memory; with one channel in place of two the latter has half of a NIC's rate.
#[test]
fn settings_affect_messages_by_where_the_receiver_is() {
    const NVLINK: f64 = 0.816 * 240e9;
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
        [(usual, NVLINK, CARD), (by_host, 0.93 * HOST, CARD), (one_channel, NVLINK / 24.0, CARD / 2.0)]
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
