use super::*;
use proptest::prelude::*;

const ETHERNET: PacketOverhead = PacketOverhead { payload: 1448, wire: 1514 };

fn hosts(count: usize) -> Vec<HostSpec> {
    (0..count).map(|index| HostSpec::new(format!("h{index}"))).collect()
}

fn gbps(rate: f64, latency_us: u64) -> LinkSpec {
    LinkSpec::new(Rate::from_bits_per_second(rate * 1e9).unwrap(), SimDuration::from_us(latency_us))
}

fn link(between: &[&str], latency_us: u64, duplex: Duplex) -> GraphLink {
    let between = between.iter().map(|name| (*name).to_owned()).collect();
    GraphLink { between, spec: gbps(1.0, latency_us), back: None, duplex }
}

/// The names of the links from one host to another, and the latency in picoseconds.
fn way(topology: &Topology, from: &str, to: &str) -> (Vec<String>, u64) {
    let route = topology.route(topology.host(from).unwrap(), topology.host(to).unwrap());
    let names = route.links.iter().map(|id| topology.link(*id).name.clone()).collect();
    (names, route.latency.as_ps())
}

fn preset(preset: Preset, count: usize) -> Topology {
    Topology::preset(&preset, &hosts(count), gbps(10.0, 3)).unwrap()
}

#[test]
fn a_switch_has_two_links_a_host_and_the_latency_is_the_sum_of_halves() {
    let odd = LinkSpec { latency: SimDuration::from_ps(5), ..gbps(10.0, 0) };
    let topology = Topology::preset(&Preset::Switch, &hosts(3), odd).unwrap();
    // 2 + 3 ps
    assert_eq!(way(&topology, "h2", "h0"), (vec!["h2 -> switch".into(), "switch -> h0".into()], 5));
    assert_eq!(topology.links().len(), 6);
}

#[test]
fn a_slow_and_distant_host_changes_its_own_links_only() {
    let mut hosts = hosts(3);
    hosts[1].bandwidth = Rate::from_bits_per_second(1e9).map(HostRates::both);
    hosts[1].latency = Some(SimDuration::from_us(9));
    let topology = Topology::preset(&Preset::Switch, &hosts, gbps(10.0, 3)).unwrap();
    let bits =
        |name: &str| topology.links().iter().find(|link| link.name == name).unwrap().bandwidth.bytes_per_second() * 8.0;
    assert_eq!((bits("h1 -> switch"), bits("switch -> h1"), bits("h0 -> switch")), (1e9, 1e9, 1e10));
    // 9 / 2 + 3 / 2 us
    assert_eq!(way(&topology, "h1", "h0").1, 6_000_000);
    let ring = Topology::preset(&Preset::Ring, &hosts, gbps(10.0, 3)).unwrap();
    assert_eq!(ring.link(ring.route(HostId(0), HostId(1)).links[0]).bandwidth, hosts[1].bandwidth.unwrap().egress);
}

/// A cable carries the smaller rate of the sender's and the receiver's end: 1 out of h1, 10 into it.
#[test]
fn a_host_with_a_slow_egress_is_slow_in_one_direction() {
    let rate = |gigabits: f64| Rate::from_bits_per_second(gigabits * 1e9).unwrap();
    let mut hosts = hosts(4);
    hosts[1].bandwidth = Some(HostRates { egress: rate(1.0), ingress: rate(10.0) });
    let presets = [
        Preset::Switch,
        Preset::Star { backplane: Some(rate(100.0)) },
        Preset::Ring,
        Preset::FullyConnected,
        Preset::Torus { dims: vec![2, 2] },
        Preset::FatTree { hosts_per_leaf: 1, spines: 1, oversubscription: 1.0 },
        Preset::Rail { per_server: 1, fabric: gbps(100.0, 1) },
    ];
    for preset in presets {
        let topology = Topology::preset(&preset, &hosts, gbps(10.0, 3)).unwrap();
        let slowest = |from, to| {
            let links = topology.route(HostId(from), HostId(to)).links;
            links.iter().map(|id| topology.link(*id).bandwidth.bytes_per_second() * 8e-9).fold(f64::INFINITY, f64::min)
        };
        assert_eq!((slowest(1, 0), slowest(0, 1), slowest(2, 3)), (1.0, 10.0, 10.0), "{preset:?}");
    }
    let refused = Topology::preset(&Preset::Wifi, &hosts, gbps(10.0, 3)).unwrap_err();
    assert!(refused.to_string().contains("`h1` has different egress and ingress bandwidths"), "{refused}");
}

/// The rate back is the rate to the first name, whatever the order of names.
#[test]
fn a_listed_link_has_a_rate_for_each_direction() {
    for between in [["a", "b"], ["b", "a"]] {
        let asymmetric = GraphLink { back: Rate::from_bits_per_second(9e9), ..link(&between, 1, Duplex::Full) };
        let hosts = [HostSpec::new("a"), HostSpec::new("b")];
        let topology = Topology::graph(&hosts, &[asymmetric]).unwrap();
        let bits = |link: &Link| (link.name.clone(), link.bandwidth.bytes_per_second() * 8.0);
        let rates: Vec<(String, f64)> = topology.links().iter().map(bits).collect();
        let (there, back) = if between[0] == "a" { (1e9, 9e9) } else { (9e9, 1e9) };
        assert_eq!(rates, [("a -> b".to_owned(), there), ("b -> a".to_owned(), back)]);
    }
}

#[test]
fn star_and_wifi_share_one_link_among_all() {
    let star = preset(Preset::Star { backplane: None }, 4);
    assert_eq!(
        way(&star, "h0", "h3"),
        (vec!["h0 -> hub".into(), "hub backplane".into(), "hub -> h3".into()], 3_000_000)
    );
    let wifi = preset(Preset::Wifi, 4);
    let (there, back) = (way(&wifi, "h0", "h3"), way(&wifi, "h3", "h0"));
    assert_eq!(there, (vec!["h0 <-> channel".into(), "channel".into(), "h3 <-> channel".into()], 3_000_000));
    assert_eq!(back.0, there.0.into_iter().rev().collect::<Vec<_>>());
}

#[test]
fn a_ring_goes_the_shorter_way_and_upwards_if_both_are_equal() {
    let ring = preset(Preset::Ring, 6);
    assert_eq!(way(&ring, "h0", "h2").0, ["h0 -> h1", "h1 -> h2"]);
    assert_eq!(way(&ring, "h0", "h5").0, ["h0 -> h5"]);
    assert_eq!(way(&ring, "h4", "h1").0, ["h4 -> h5", "h5 -> h0", "h0 -> h1"]);
    // Two hosts have one cable, not two.
    let pair = preset(Preset::Ring, 2);
    assert_eq!((pair.links().len(), way(&pair, "h1", "h0").0), (2, vec!["h1 -> h0".to_owned()]));
}

#[test]
fn a_torus_settles_one_dimension_after_the_other() {
    // 4 x 3 x 2: h(x + 4 y + 12 z); from (0, 0, 0) to (3, 2, 1).
    let torus = preset(Preset::Torus { dims: vec![4, 3, 2] }, 24);
    assert_eq!(way(&torus, "h0", "h23").0, ["h0 -> h3", "h3 -> h11", "h11 -> h23"]);
    assert_eq!(torus.links().len(), 24 * (2 + 2 + 1));
}

fn dimensions(dims: &[(DimensionKind, u32)]) -> Preset {
    let dimension = |(index, &(kind, size)): (usize, &(DimensionKind, u32))| {
        let link = gbps(10.0, 3 * (index as u64 + 1));
        Dimension { kind, size, link }
    };
    Preset::Dimensions(dims.iter().enumerate().map(dimension).collect())
}

#[test]
fn dimensions_have_links_of_their_own() {
    let grid = preset(
        dimensions(&[(DimensionKind::Ring, 4), (DimensionKind::FullyConnected, 3), (DimensionKind::Switch, 2)]),
        24,
    );
    // h(x + 4 y + 12 z), from (0, 0, 0) to (2, 2, 1): two cables upwards, one across, a switch; 3 + 3 + 6 + 9 us.
    let (links, latency) = way(&grid, "h0", "h22");
    assert_eq!(links, ["h0 -> h1", "h1 -> h2", "h2 -> h10", "h10 -> switch.2.10", "switch.2.10 -> h22"]);
    assert_eq!(latency, 21_000_000);
    assert_eq!(grid.links().len(), 24 * (2 + 2 + 2));
    // If all dimensions are rings, the network is a torus.
    let rings = preset(dimensions(&[(DimensionKind::Ring, 4), (DimensionKind::Ring, 6)]), 24);
    let torus = preset(Preset::Torus { dims: vec![4, 6] }, 24);
    for (from, to) in (0..24).flat_map(|from| (0..24).map(move |to| (format!("h{from}"), format!("h{to}")))) {
        assert_eq!(way(&rings, &from, &to).0, way(&torus, &from, &to).0);
    }
    let own = [HostSpec { bandwidth: Rate::new(1.0).map(HostRates::both), ..HostSpec::new("h0") }, HostSpec::new("h1")];
    let refused = Topology::preset(&dimensions(&[(DimensionKind::Ring, 2)]), &own, gbps(1.0, 1)).unwrap_err();
    assert!(refused.to_string().starts_with("dimensions: `h0` has a bandwidth"), "{refused}");
}

#[test]
fn a_fat_tree_is_two_latencies_across_and_its_uplinks_share_the_oversubscription() {
    let tree = preset(Preset::FatTree { hosts_per_leaf: 4, spines: 2, oversubscription: 2.0 }, 8);
    assert_eq!(way(&tree, "h0", "h3"), (vec!["h0 -> leaf.0".into(), "leaf.0 -> h3".into()], 3_000_000));
    let (across, latency) = way(&tree, "h0", "h5");
    assert_eq!(across, ["h0 -> leaf.0", "leaf.0 -> spine.1", "spine.1 -> leaf.1", "leaf.1 -> h5"]);
    assert_eq!(latency, 6_000_000);
    // 4 hosts * 10 Gbps / (2 spines * 2) = 10 Gbps
    let uplink = tree.links().iter().find(|link| link.name == "leaf.1 -> spine.0").unwrap();
    assert_eq!(uplink.bandwidth.bytes_per_second() * 8.0, 10e9);
}

#[test]
fn a_message_to_another_rail_crosses_the_fabric_first() {
    let rail = preset(Preset::Rail { per_server: 2, fabric: gbps(3600.0, 1) }, 4);
    assert_eq!(way(&rail, "h0", "h1"), (vec!["h0 -> fabric.0".into(), "fabric.0 -> h1".into()], 1_000_000));
    assert_eq!(way(&rail, "h0", "h2"), (vec!["h0 -> rail.0".into(), "rail.0 -> h2".into()], 3_000_000));
    let (across, latency) = way(&rail, "h0", "h3");
    assert_eq!(across, ["h0 -> fabric.0", "fabric.0 -> h1", "h1 -> rail.1", "rail.1 -> h3"]);
    assert_eq!(latency, 4_000_000);
}

const SPINES: Option<Spines> = Some(Spines { servers_per_leaf: 2, count: 3, oversubscription: 2.0 });

fn servers(per_server: u32) -> Servers {
    let fabric = Some(gbps(3600.0, 1));
    Servers { per_server, nics: per_server, rails: per_server, fabric, pcie: None, spines: None }
}

/// Without a fabric, data between two GPUs crosses both of their PCIe links, and so does data to and from NICs.
#[test]
fn gpus_without_a_fabric_reach_each_other_and_all_nics_over_pcie() {
    let pcie = Some(gbps(200.0, 1));
    let pair = preset(Preset::Servers(Servers { nics: 2, rails: 2, fabric: None, pcie, ..servers(4) }), 8);
    assert_eq!(way(&pair, "h0", "h3"), (vec!["h0 -> pcie.0".into(), "pcie.0 -> h3".into()], 1_000_000));
    // h1 and h0 share NIC 0, h6 and h7 NIC 1 of the second server, which is on the other rail.
    let same = ["h1 -> pcie.0", "nic.0.0 -> rail.0", "rail.0 -> nic.1.0", "pcie.1 -> h4"];
    assert_eq!(way(&pair, "h1", "h4"), (same.map(str::to_owned).to_vec(), 4_000_000));
    let other = ["h1 -> pcie.0", "nic.0.1 -> rail.1", "rail.1 -> nic.1.1", "pcie.1 -> h7"];
    assert_eq!(way(&pair, "h1", "h7").0, other);
    // 8 GPUs with 2 links each, and 4 NICs with 2.
    assert_eq!(pair.links().len(), 8 * 2 + 4 * 2);
    let both = preset(Preset::Servers(Servers { pcie, ..servers(2) }), 4);
    assert_eq!(way(&both, "h0", "h1").0, ["h0 -> fabric.0", "fabric.0 -> h1"]);
    let relayed =
        ["h0 -> fabric.0", "fabric.0 -> h1", "h1 -> pcie.0", "nic.0.1 -> rail.1", "rail.1 -> nic.1.1", "pcie.1 -> h3"];
    assert_eq!(way(&both, "h0", "h3").0, relayed);
}

/// A leaf has 2 servers with 2 of 4 NICs each: the receivers 0 to 3 on a leaf use the spines 0, 1, 2 and 0. An uplink
/// has the rate 10 x 4 / 3 / 2 Gbps.
#[test]
fn servers_of_different_leaves_are_joined_by_spines() {
    let tree = preset(Preset::Servers(Servers { rails: 2, spines: SPINES, ..servers(4) }), 16);
    let (links, latency) = way(&tree, "h0", "h14");
    assert_eq!(links, ["h0 -> leaf.0.0", "leaf.0.0 -> spine.0", "spine.0 -> leaf.1.0", "leaf.1.0 -> h14"]);
    assert_eq!(latency, 6_000_000);
    let spine = |to: &str| way(&tree, "h1", to).0[1].clone();
    let receivers = ["h9", "h11", "h13", "h15"].map(spine);
    assert_eq!(receivers, [0, 1, 2, 0].map(|spine| format!("leaf.0.1 -> spine.{spine}")));
    let uplink = tree.links().iter().find(|link| link.name == "leaf.0.1 -> spine.2").unwrap();
    assert!((uplink.bandwidth.bytes_per_second() * 8e-9 - 10.0 * 4.0 / 3.0 / 2.0).abs() < 1e-9);
    // Servers of one leaf, and another rail of the same leaf group.
    assert_eq!(way(&tree, "h0", "h4").0, ["h0 -> leaf.0.0", "leaf.0.0 -> h4"]);
    assert_eq!(way(&tree, "h0", "h5").0, ["h0 -> fabric.0", "fabric.0 -> h1", "h1 -> leaf.0.1", "leaf.0.1 -> h5"]);
}

#[test]
fn every_route_of_every_preset_is_a_chain_from_its_first_host_to_its_last() {
    let fabric = gbps(3600.0, 1);
    let shapes = [
        Preset::Switch,
        Preset::Ring,
        Preset::FullyConnected,
        Preset::Torus { dims: vec![1, 3, 2, 4] },
        Preset::FatTree { hosts_per_leaf: 5, spines: 3, oversubscription: 1.0 },
        Preset::Rail { per_server: 4, fabric },
        Preset::Servers(Servers { rails: 1, spines: SPINES, ..servers(4) }),
        Preset::Servers(Servers { rails: 2, spines: SPINES, ..servers(6) }),
        dimensions(&[(DimensionKind::FullyConnected, 4), (DimensionKind::Switch, 3), (DimensionKind::Ring, 2)]),
        dimensions(&[(DimensionKind::Switch, 1), (DimensionKind::Ring, 6), (DimensionKind::FullyConnected, 4)]),
    ];
    for topology in shapes.map(|shape| preset(shape, 24)) {
        for from in topology.hosts() {
            for to in topology.hosts().iter().filter(|to| *to != from) {
                let mut at = from.clone();
                for link in way(&topology, from, to).0 {
                    let (start, end) = link.split_once(" -> ").unwrap();
                    assert_eq!(at, start, "{from} to {to}");
                    at = end.to_owned();
                }
                assert_eq!(&at, to, "from {from}");
            }
        }
    }
}

#[test]
fn a_large_switch_costs_nothing_for_pairs() {
    let topology = preset(Preset::Switch, 131_072);
    assert_eq!(topology.links().len(), 2 * 131_072);
    assert_eq!(topology.route(HostId(131_071), HostId(0)).links, [LinkId(262_142), LinkId(1)]);
}

#[test]
fn ranks_of_one_host_use_its_local_link_or_none() {
    let mut hosts = hosts(2);
    hosts[1].local = Some(gbps(100.0, 1));
    let topology = Topology::preset(&Preset::Switch, &hosts, gbps(10.0, 3)).unwrap();
    assert_eq!(way(&topology, "h0", "h0"), (vec![], 0));
    assert_eq!(way(&topology, "h1", "h1"), (vec!["h1 <-> h1".into()], 1_000_000));
}

#[test]
fn a_graph_takes_the_fewest_links_then_the_lowest_latency_then_the_lowest_id() {
    let full = |a, b, latency| link(&[a, b], latency, Duplex::Full);
    let links = [
        full("h0", "s1", 5),
        full("s1", "h1", 5),
        full("h0", "s2", 4),
        full("s2", "h1", 4),
        full("h0", "s3", 4),
        full("s3", "h1", 4),
        full("h0", "s4", 1),
        full("s4", "s5", 1),
        full("s5", "h1", 1),
    ];
    let topology = Topology::graph(&hosts(2), &links).unwrap();
    assert_eq!(way(&topology, "h0", "h1"), (vec!["h0 -> s2".into(), "s2 -> h1".into()], 8_000_000));
    assert_eq!(way(&topology, "h1", "h0"), (vec!["h1 -> s2".into(), "s2 -> h0".into()], 8_000_000));
}

#[test]
fn a_shared_medium_is_one_link_in_every_direction() {
    let links = [link(&["h0", "h1", "ap"], 2, Duplex::Half), link(&["ap", "h2"], 3, Duplex::Half)];
    let topology = Topology::graph(&hosts(3), &links).unwrap();
    assert_eq!(way(&topology, "h0", "h1"), (vec!["ap <-> h0 <-> h1".into()], 2_000_000));
    assert_eq!(way(&topology, "h0", "h2").0, ["ap <-> h0 <-> h1", "ap <-> h2"]);
    assert_eq!(way(&topology, "h2", "h0").0, ["ap <-> h2", "ap <-> h0 <-> h1"]);
    assert_eq!(topology.links().len(), 2);
}

#[test]
fn what_cannot_be_a_network_is_refused() {
    let refused = |names: &[&str], links: &[GraphLink]| {
        let hosts: Vec<_> = names.iter().map(|name| HostSpec::new(*name)).collect();
        Topology::graph(&hosts, links).unwrap_err()
    };
    let full = |a, b| link(&[a, b], 1, Duplex::Full);
    assert_eq!(refused(&[], &[]), TopologyError::NoHosts);
    assert_eq!(refused(&["a", "a"], &[full("a", "b")]), TopologyError::DuplicateHost { name: "a".into() });
    assert_eq!(
        refused(&["a", "b"], &[full("a", "b"), full("b", "a")]),
        TopologyError::DuplicateLink { name: "a <-> b".into() }
    );
    assert_eq!(refused(&["a", "b"], &[full("a", "a")]), TopologyError::LinkEnds { name: "a <-> a".into() });
    let medium = link(&["c", "b", "a"], 1, Duplex::Full);
    assert_eq!(refused(&["a", "b"], &[medium]), TopologyError::FullDuplexMedium { name: "a <-> b <-> c".into() });
    let misspelt = TopologyError::UnknownNode { name: "bb".into(), hosts: "a, b".into() };
    assert_eq!(refused(&["a", "b"], &[full("a", "bb"), full("a", "b")]), misspelt);
    let apart = TopologyError::NoRoute { from: "a".into(), to: "b".into() };
    assert_eq!(refused(&["a", "b"], &[]), apart);

    let shape = |preset, count| Topology::preset(&preset, &hosts(count), gbps(1.0, 1)).unwrap_err().to_string();
    assert!(
        shape(Preset::Torus { dims: vec![2, 2] }, 5)
            .starts_with("torus: the product of the dimensions [2, 2] must be 5, the number of hosts\nhint: ")
    );
    let spineless = Preset::FatTree { hosts_per_leaf: 2, spines: 0, oversubscription: 1.0 };
    assert!(shape(spineless, 4).starts_with("fat_tree: 2 hosts per leaf, 0 spines"));
    assert!(
        shape(Preset::Rail { per_server: 3, fabric: gbps(1.0, 1) }, 4).starts_with("rail: 4 GPUs cannot be divided")
    );
    let server = |servers| shape(Preset::Servers(servers), 8);
    assert!(server(servers(3)).starts_with("server: 8 GPUs cannot be divided into servers of 3"));
    assert!(server(servers(0)).starts_with("server: 8 GPUs cannot be divided into servers of 0"));
    for nics in [0, 3] {
        let refused = format!("server: 4 GPUs of a server cannot be divided among {nics} NICs");
        assert!(server(Servers { nics, ..servers(4) }).starts_with(&refused));
        let refused = format!("server: 4 NICs of a server cannot be divided among {nics} rails");
        assert!(server(Servers { rails: nics, ..servers(4) }).starts_with(&refused));
    }
    assert!(server(Servers { fabric: None, ..servers(4) }).starts_with("server: the GPUs of a server have no links"));
    let spineless = Some(Spines { servers_per_leaf: 0, count: 1, oversubscription: 1.0 });
    assert!(server(Servers { spines: spineless, ..servers(4) }).starts_with("server: 0 servers per leaf, 1 spines"));
    let unequal = Topology::graph_of_servers(&hosts(3), &[full("h0", "h1"), full("h1", "h2")], 2).unwrap_err();
    assert!(unequal.to_string().starts_with("links: 3 GPUs cannot be divided into servers of 2"));
    let packet = PacketOverhead { payload: 100, wire: 90 };
    let hollow = LinkSpec { overhead: Some(packet), ..gbps(1.0, 1) };
    let error = Topology::preset(&Preset::Switch, &hosts(2), hollow).unwrap_err();
    assert_eq!(error, TopologyError::Overhead { link: "h0 -> switch".into(), packet });
}

/// Networks of 2 x (8 + 4 x 4e9) links and of 8192 x 8191 links (twice) do not fit into memory, so they must be refused
/// before any link is allocated.
#[test]
fn too_many_links_are_refused_before_any_is_made() {
    let tree = Preset::FatTree { hosts_per_leaf: 2, spines: 4_000_000_000, oversubscription: 1.0 };
    let mesh = Dimension { kind: DimensionKind::FullyConnected, size: 8192, link: gbps(1.0, 1) };
    let spines = Some(Spines { servers_per_leaf: 1, count: 4_000_000_000, oversubscription: 1.0 });
    // 8 GPUs with 4 links each, and 2 x 4 leaves.
    let servers = Preset::Servers(Servers { spines, ..servers(4) });
    for (preset, count, links) in [
        (servers, 8, 64_000_000_032_u64),
        (tree, 8, 32_000_000_016_u64),
        (Preset::FullyConnected, 8192, 8192 * 8191),
        (Preset::Dimensions(vec![mesh]), 8192, 8192 * 8191),
    ] {
        let hosts = hosts(count);
        let error = Topology::preset(&preset, &hosts, gbps(1.0, 1)).unwrap_err().to_string();
        assert!(
            error.contains(&format!(": {links} links are more than the 16777216 that can be simulated")),
            "{error}"
        );
    }
}

#[test]
fn headers_take_their_share() {
    let spec = LinkSpec { overhead: Some(ETHERNET), ..gbps(1.0, 0) };
    let topology = Topology::preset(&Preset::Switch, &hosts(2), spec).unwrap();
    let route = topology.route(HostId(0), HostId(1));
    // 3 packets of 1448 bytes at most carry 3000 bytes: 3000 + 3 * 66
    let overhead = topology.overhead(&route).unwrap();
    assert_eq!(overhead.wire_bytes(Bytes(3000)), Bytes(3198));
    assert_eq!(overhead.wire_bytes(Bytes(0)), Bytes(0));
    assert_eq!(topology.link(route.links[0]).payload_rate().bytes_per_second(), 125e6 * (1448.0 / 1514.0));
}

fn connected_graph() -> impl Strategy<Value = Vec<(usize, usize, u64)>> {
    // Node n > 0 is joined to a lower one, so that all are connected; some more links are added. Nodes 0 to 5 are
    // hosts.
    let tree = (1..12usize).map(|node| (Just(node), 0..node, 1..5u64)).collect::<Vec<_>>();
    let more = prop::collection::vec((0..12usize, 0..12usize, 1..5u64), 0..10);
    (tree, more).prop_map(|(mut links, more)| {
        for (a, b, latency) in more {
            let known = links.iter().any(|&(c, d, _)| (a, b) == (c, d) || (a, b) == (d, c));
            if a != b && !known {
                links.push((a, b, latency));
            }
        }
        // A switch on one link only is refused.
        for switch in 6..12 {
            if links.iter().filter(|(a, b, _)| *a == switch || *b == switch).count() == 1 {
                let host = (0..6).find(|host| !links.iter().any(|&(a, b, _)| (a, b) == (switch, *host))).unwrap();
                links.push((switch, host, 1));
            }
        }
        links
    })
}

proptest! {
    #[test]
    fn a_graph_is_the_same_whatever_the_order_of_its_links(links in connected_graph(), seed in any::<prop::sample::Index>()) {
        let name = |node: usize| if node < 6 { format!("h{node}") } else { format!("s{node}") };
        let mut links: Vec<GraphLink> =
            links.iter().map(|&(a, b, latency)| link(&[&name(a), &name(b)], latency, Duplex::Full)).collect();
        let one = Topology::graph(&hosts(6), &links).unwrap();
        let turn = seed.index(links.len());
        links.rotate_left(turn);
        links.iter_mut().step_by(2).for_each(|link| link.between.reverse());
        let other = Topology::graph(&hosts(6), &links).unwrap();
        prop_assert_eq!(one.links(), other.links());
        for (from, to) in (0..6).flat_map(|from| (0..6).map(move |to| (HostId(from), HostId(to)))) {
            prop_assert_eq!(one.route(from, to), other.route(from, to));
        }
    }
}
