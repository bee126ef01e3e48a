use super::super::GpuGeneration;
use super::tuning::Fabric;
use super::*;
use crate::program::NcclSettings;
use crate::program::{DType, ReduceOp, Shape as Elements};
use crate::time::{Bytes, Rate};
use CollectiveKind::{AllGather, AllReduce, Broadcast, ReduceScatter};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn surroundings(inside: f64) -> Surroundings {
    let rate = |bytes| Rate::new(bytes).unwrap();
    Surroundings {
        per_server: 8,
        inside: rate(inside),
        generation: None,
        between: rate(50e9),
        cards: 8,
        nvls: true,
        max_channels: 32,
        pcie_peers: false,
        shares_link: false,
        host: rate(51.2e9),
        settings: Default::default(),
    }
}

/// Eight GPUs per server, with NVLink of the third generation (`ampere`) or of the fourth (`hopper`).
fn ampere() -> Surroundings {
    surroundings(240e9)
}

fn hopper() -> Surroundings {
    surroundings(360e9)
}

fn call(kind: CollectiveKind, bytes: u64) -> Collective {
    let (reduce, root) = (Some(ReduceOp::Sum), Some(GroupRank(0)));
    Collective { kind, dtype: DType::Float32, reduce, root, shape: Elements::Even(bytes / 4), kernel: None }
}

fn chosen(surroundings: Surroundings, ranks: u32, kind: CollectiveKind, bytes: u64) -> &'static str {
    Nccl::new(surroundings).decide(&call(kind, bytes), ranks).unwrap().name()
}

fn forced(name: &str, surroundings: Surroundings, call: &Collective, ranks: u32) -> Wire {
    let forced = Forced::all(surroundings).find(|forced| forced.name() == name).unwrap();
    forced.carried(call, ranks).wire
}

#[test]
fn small_messages_go_without_fences_and_large_ones_in_whole_chunks() {
    // Eight GPUs in one server: 2 (P - 1) 0.6 + 6.6 us in LL against 2 (P - 1) 3.4 + 8.4 us in Simple at 8 bytes.
    assert!(chosen(ampere(), 8, AllReduce, 8).ends_with("_ll"));
    for kind in [AllReduce, AllGather, ReduceScatter, Broadcast] {
        assert_eq!(chosen(ampere(), 8, kind, 1 << 30), "ring_simple", "{kind}");
    }
    // 32 servers: a ring has 510 steps, a tree 2 (7 x 0.6 + 5 x 5) us.
    assert_eq!(chosen(ampere(), 256, AllReduce, 1 << 10), "tree_ll");
    assert_eq!(chosen(ampere(), 256, AllReduce, 1 << 33), "ring_simple");
}

/// As sizes grow, LL is replaced by LL128 and LL128 by Simple, once each.
#[test]
fn every_protocol_is_left_once() {
    let rank = |name: &str| ["_ll", "_ll128", "_simple"].iter().position(|end| name.ends_with(end)).unwrap();
    for (kind, ranks) in [(AllReduce, 8), (AllGather, 8), (Broadcast, 8), (AllReduce, 64), (AllGather, 64)] {
        let protocols: Vec<usize> = (2..34).map(|log| rank(chosen(ampere(), ranks, kind, 1 << log))).collect();
        assert!(protocols.is_sorted(), "{kind} of {ranks}: {protocols:?}");
        assert_eq!((protocols[0], protocols[31]), (0, 2), "{kind} of {ranks}");
    }
}

/// 25 us + 14/8 n / (0.85 x 15/16 x 2 B) against 8.4 + 14 x 3.4 us + 14/8 n / B.
#[test]
fn switches_that_reduce_are_used_where_they_are() {
    assert_eq!(chosen(hopper(), 8, AllReduce, 1 << 30), "nvls");
    assert_ne!(chosen(hopper(), 8, AllReduce, 8), "nvls");
    // For a gather, switches only save the senders' work: n / (0.85 x 15/16 x 7/8 B) against 7/8 n / B.
    assert_eq!(chosen(hopper(), 8, AllGather, 1 << 30), "ring_simple");
    let without = Surroundings { nvls: false, ..hopper() };
    for surroundings in [without, ampere()] {
        assert_eq!(chosen(surroundings, 8, AllReduce, 1 << 30), "ring_simple");
    }
    // Trees connect servers. NVLS is not used for two GPUs, or for reductions that switches cannot carry out.
    assert_eq!(chosen(hopper(), 16, AllReduce, 1 << 30), "nvls_tree");
    assert_eq!(chosen(hopper(), 64, AllReduce, 1 << 28), "nvls_tree");
    assert_ne!(chosen(hopper(), 2, AllReduce, 1 << 30), "nvls");
    let product = Collective { reduce: Some(ReduceOp::Product), ..call(AllReduce, 1 << 30) };
    assert_ne!(Nccl::new(hopper()).decide(&product, 8).unwrap().name(), "nvls");
}

/// The tables are those of the GPUs, if they are known, and of GPUs whose NVLink has such a rate otherwise. GPUs that
/// reach each other over PCI Express or through the host's memory have no switches that reduce.
#[test]
fn the_generation_is_that_of_known_gpus() {
    use GpuGeneration::{Ampere, Blackwell, Hopper};
    for (generation, gigabytes, fabric) in [
        (None, 160.0, Fabric::Nvlink3),
        (None, 360.0, Fabric::Nvlink4),
        (None, 720.0, Fabric::Nvlink5),
        (Some(Hopper), 160.0, Fabric::Nvlink4),
        (Some(Ampere), 336.0, Fabric::Nvlink3),
        (Some(Blackwell), 360.0, Fabric::Nvlink5),
        (Some(Hopper), 50.0, Fabric::Host),
        (None, 50.0, Fabric::Host),
    ] {
        let gpus = Surroundings { generation, ..surroundings(gigabytes * 1e9) };
        assert_eq!(Model::new(gpus, 8).fabric(), fabric, "{generation:?} at {gigabytes} GB/s");
        let switched = matches!(fabric, Fabric::Nvlink4 | Fabric::Nvlink5);
        assert_eq!(chosen(gpus, 8, AllReduce, 1 << 30) == "nvls", switched, "{generation:?} at {gigabytes} GB/s");
        let by_host = NcclSettings { peer_access: false, ..NcclSettings::default() };
        let host = Surroundings { settings: by_host, host: gpus.inside, ..gpus };
        assert_eq!(Model::new(host, 8).fabric(), Fabric::Host);
    }
    let peers = Surroundings { pcie_peers: true, generation: Some(Hopper), ..surroundings(50e9) };
    assert_eq!(Model::new(peers, 8).fabric(), Fabric::Pcie);
}

/// A call for which there are no switches that reduce is carried out as a ring, whatever the cluster file forces.
#[test]
fn forced_switches_that_do_not_exist_are_a_ring() {
    let name = |forced: &str, surroundings, ranks| {
        let forced = Forced::all(surroundings).find(|other| other.name() == forced).unwrap();
        forced.decide(&call(AllReduce, MIB), ranks).unwrap().name()
    };
    assert_eq!((name("nvls", hopper(), 8), name("nvls_tree", hopper(), 16)), ("nvls", "nvls_tree"));
    for (forced, surroundings, ranks) in [
        ("nvls", ampere(), 8),
        ("nvls", self::surroundings(25e9), 8),
        ("nvls", hopper(), 2),
        ("nvls", hopper(), 16),
        ("nvls_tree", hopper(), 8),
        ("nvls_tree", ampere(), 16),
    ] {
        assert_eq!(name(forced, surroundings, ranks), "ring_simple", "{forced} of {ranks}");
    }
}

/// A call uses a channel for every 512 threads x 64 bytes in Simple, and a ring's LL one for 512 x 8 x P.
#[test]
fn calls_use_as_many_channels_as_they_keep_busy() {
    let model = Model::new(ampere(), 8);
    let of = |name: &str| VARIANTS.iter().find(|variant| variant.name == name).unwrap();
    assert_eq!(model.channels(), 24);
    for (name, bytes, channels) in [
        ("ring_simple", 1, 1),
        ("ring_simple", 256 * KIB, 8),
        ("ring_simple", 16 * MIB, 24),
        ("ring_ll", 256 * KIB, 8),
        ("tree_ll", 32 * KIB, 8),
    ] {
        assert_eq!(model.channels_for(of(name), bytes), channels, "{name} of {bytes}");
    }
    let few = Surroundings { max_channels: 4, ..ampere() };
    assert_eq!(Model::new(few, 8).channels(), 4);
    // Between servers each NIC has two channels.
    assert_eq!(Model::new(ampere(), 16).channels(), 16);
    // Across servers, half of the channels have half of the rate.
    let [half, all] = [256 * KIB, 16 * MIB].map(|bytes| forced("ring_simple", ampere(), &call(AllReduce, bytes), 16));
    assert_eq!((half.inside.efficiency, all.inside.efficiency), (500, 1000));
    assert_eq!(all.inside.stretched(Bytes(1000)), Bytes(1000));
}

/// A rank's NIC carries 50 GB/s; the eight NICs of a server carry more than the 240 GB/s of a GPU's NVLink.
#[test]
fn rings_go_by_all_cards_of_a_server() {
    assert_eq!(Model::new(ampere(), 16).bus(), 240.0);
    let one_card = Surroundings { cards: 1, ..ampere() };
    assert_eq!(Model::new(one_card, 16).bus(), 50.0);
    let count = |surroundings: Surroundings| {
        let call = call(AllGather, 4096);
        let algorithm = Forced::all(surroundings).find(|forced| forced.name() == "ring_simple").unwrap();
        algorithm.steps(&call, 16, GroupRank(3)).count()
    };
    // 2 (P - 1) steps, in each of 8 rings.
    assert_eq!((count(one_card), count(ampere())), (30, 8 * 30));
}

/// Chains, and trees across servers, forward sixteenths of a tensor before the rest has arrived; `Simple`, with its
/// fences, and trees inside a server do not.
#[test]
fn what_needs_no_fence_is_passed_on_piece_by_piece() {
    let of = |name: &str| VARIANTS.iter().find(|variant| variant.name == name).unwrap();
    let chunk = |name, kind, ranks, bytes| Model::new(hopper(), ranks).chunk(of(name), kind, bytes);
    assert_eq!(chunk("tree_ll128", AllReduce, 16, 4 * MIB), MIB / 4);
    assert_eq!(chunk("ring_ll", Broadcast, 8, 64 * KIB), 4 * KIB);
    assert_eq!(chunk("tree_ll128", AllReduce, 8, 4 * MIB), 24 * 576_000);
    assert_eq!(chunk("ring_simple", Broadcast, 16, 4 * MIB), 16 * 512 * KIB);
    // A chunk has at most one step of each channel, and at least 1 KiB.
    assert_eq!(chunk("tree_ll128", AllReduce, 16, 1 << 30), 16 * 576_000);
    assert_eq!(chunk("tree_ll", AllReduce, 16, 8 * KIB), 2 * KIB);
    let servers = |surroundings, ranks| Model::new(surroundings, ranks).trees();
    assert_eq!(servers(hopper(), 16), Some(Servers { gpus: 8, cards: 8 }));
    assert_eq!(servers(Surroundings { cards: 1, ..hopper() }, 16), Some(Servers { gpus: 8, cards: 1 }));
    assert_eq!((servers(hopper(), 8), servers(hopper(), 12)), (None, None));
}

fn settled(settings: NcclSettings, call: &Collective, ranks: u32) -> Arc<dyn Algorithm> {
    Nccl::new(Surroundings { settings, ..hopper() }).decide(call, ranks).unwrap()
}

#[test]
fn programs_choose_among_algorithms_and_protocols_by_kind() {
    let any = NcclSettings::default();
    let large = call(AllReduce, 1 << 30);
    let name = |settings| settled(settings, &large, 8).name();
    assert_eq!(name(any), "nvls");
    assert_eq!(name(NcclSettings { algorithms: [NcclSettings::RING; 5], ..any }), "ring_simple");
    assert_eq!(name(NcclSettings { algorithms: [NcclSettings::TREE; 5], ..any }), "tree_simple");
    assert_eq!(name(NcclSettings { protocols: [NcclSettings::LL; 5], ..any }), "ring_ll");
    // The protocol LL128 is forced for broadcasts only, the first kind.
    let mut of_broadcasts = any;
    of_broadcasts.protocols[0] = NcclSettings::LL128;
    assert_eq!(name(of_broadcasts), "nvls");
    assert_eq!(settled(of_broadcasts, &call(Broadcast, 8), 8).name(), "ring_ll128");
    // NCCL has no all-gather by trees and fails; the simulation ignores the setting.
    assert_eq!(
        settled(NcclSettings { algorithms: [NcclSettings::TREE; 5], ..any }, &call(AllGather, 8), 8).name(),
        "ring_ll"
    );
}

/// The links' rate is shared by 24 channels: a call or a message with one channel gets a 24th of the rate. More than 24
/// channels are no faster. A ring uses 0.95 x 14/14.42 of the rate; an all-to-all 7/360 / (7 / (0.816 x 360) + 1/2570).
#[test]
fn fewer_channels_carry_less() {
    let with = |channels| NcclSettings { algorithms: [NcclSettings::RING; 5], channels, ..NcclSettings::default() };
    let efficiency = |channels| settled(with(channels), &call(AllReduce, 1 << 30), 8).wire().unwrap().inside.efficiency;
    assert_eq!([[1, 1], [1, 6], [1, 24], [32, 32]].map(efficiency), [38, 231, 922, 922]);
    // A message between servers has one NIC, for which two channels suffice.
    for ranks in [8, 16] {
        let all_to_all = |settings| settled(settings, &call(CollectiveKind::AllToAll, 1 << 20), ranks).wire();
        assert_eq!(all_to_all(with([1, 12])).map(efficiencies), Some([401, 1000]));
        assert_eq!(all_to_all(with([1, 1])).map(efficiencies), Some([33, 500]));
        assert_eq!(all_to_all(NcclSettings::default()).map(efficiencies), Some([803, 1000]));
    }
}

fn efficiencies(wire: Wire) -> [u32; 2] {
    [wire.inside.efficiency, wire.between.efficiency]
}

/// Data through the host's memory has 0.93 x 51.2 GB/s in place of the links' 360 GB/s between two GPUs, and (2/8)^1.93
/// of it between eight; the hop times of PCI Express; and no LL128.
#[test]
fn without_peer_access_data_passes_by_the_host() {
    let without = NcclSettings { peer_access: false, ..NcclSettings::default() };
    let chosen = settled(without, &call(AllReduce, 1 << 30), 8);
    let wire = chosen.wire().unwrap();
    assert_eq!((chosen.name(), wire.inside.efficiency), ("ring_simple", 9));
    assert!(wire.inside.latency >= SimDuration::from_ns(3_600));
    let messages = wire_of_messages(Surroundings { settings: without, ..hopper() }, MIB);
    assert_eq!(efficiencies(messages), [132, 1000]);
    let middle = |settings| settled(settings, &call(AllReduce, MIB), 8).name();
    assert!(!middle(without).ends_with("_ll128"));
    let insists = NcclSettings { protocols: [NcclSettings::LL128; 5], ..without };
    assert!(middle(insists).ends_with("_ll128"));
}
