use super::*;
use uniference_sim::device::{Peaks, Power, Precision};
use uniference_sim::ids::HostId;
use uniference_sim::network::Topology;
use uniference_sim::time::{Bytes, SimDuration};

mod backends;

const BOARDS: &str = r#"
name = "three boards and a laptop"
backend = "gloo"
[[device]]
name = "orin"
count = 3
slowdown = 2.5
memory = "8 GiB"
[[device]]
name = "laptop"
[network]
preset = "switch"
bandwidth = "1 Gbps"
latency = "200 us"
[network.host."orin.2"]
bandwidth = "100 Mbps"
[collective]
all_reduce = [{ up_to = "64 KiB", algorithm = "recursive_doubling" }, { algorithm = "ring" }]
all_gather = "ring"
"#;

fn resolve_with(text: &str, sets: &[&str], choices: &Choices) -> Result<Resolved, Diagnostic> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    ClusterFile::parse("cluster.toml", text, &sets)?.resolve(choices)
}

fn resolve(text: &str) -> Resolved {
    resolve_with(text, &[], &Choices::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// The rendered mistake in a file.
fn mistake(text: &str) -> String {
    mistake_with(text, &[], &Choices::default())
}

fn mistake_with(text: &str, sets: &[&str], choices: &Choices) -> String {
    match resolve_with(text, sets, choices) {
        Ok(resolved) => panic!("no mistake in\n{text}\nresolved to\n{}", resolved.toml),
        Err(error) => error.to_string(),
    }
}

/// A file with two boards and this network.
fn with_network(network: &str) -> String {
    format!("[[device]]\nname = \"board\"\ncount = 2\n[network]\n{network}\n")
}

fn bits(topology: &Topology, link: &str) -> f64 {
    let found = topology.links().iter().find(|candidate| candidate.name == link);
    found.unwrap_or_else(|| panic!("no link {link}")).bandwidth.bytes_per_second() * 8.0
}

#[test]
fn a_file_says_what_its_keys_say() {
    let Resolved { cluster, .. } = resolve(BOARDS);
    assert_eq!(cluster.name, "three boards and a laptop");
    let names: Vec<&str> = cluster.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["orin.0", "orin.1", "orin.2", "laptop"]);
    assert_eq!((cluster.devices[2].slowdown, cluster.devices[2].memory), (2.5, Some(Bytes(8 << 30))));
    assert_eq!((cluster.devices[3].slowdown, cluster.devices[3].memory), (1.0, None));
    assert_eq!(cluster.topology.hosts(), ["orin.0", "orin.1", "orin.2", "laptop"]);
    assert_eq!(bits(&cluster.topology, "orin.1 -> switch"), 1e9);
    assert_eq!(bits(&cluster.topology, "orin.2 -> switch"), 1e8);
    // 200 us one way: half on each host's link
    assert_eq!(cluster.topology.route(HostId(0), HostId(3)).latency.as_ps(), 200_000_000);
    let chosen = |bytes| cluster.backend.algorithms.choose(CollectiveKind::AllReduce, Bytes(bytes)).name();
    assert_eq!((chosen(65_536), chosen(65_537)), ("recursive_doubling", "ring"));
}

/// A server that is described by the preset is the server that `rail` describes; the resolved file is the same server.
#[test]
fn a_server_with_a_nic_per_gpu_is_a_rail() {
    let gpus = |network: &str| {
        let head = "backend = \"nccl\"\n[[device]]\nname = \"gpu\"\ncount = 16\n[network]\nlink = \"infiniband_ndr\"\n";
        resolve(&format!("{head}per_server = 8\n{network}\n"))
    };
    let [rail, server, shared] = [
        "preset = \"rail\"\nfabric = \"nvlink4\"",
        "preset = \"server\"\nfabric = \"nvlink4\"",
        "preset = \"server\"\npcie = \"pcie4_x16\"\nnics = 2\nservers_per_leaf = 1\nspines = 1\noversubscription = 2.0",
    ]
    .map(gpus);
    assert_eq!(server.cluster.topology.links(), rail.cluster.topology.links());
    assert!(!server.lacks_servers);
    for resolved in [&server, &shared] {
        let again = resolve(&resolved.toml);
        assert_eq!(again.toml, resolved.toml);
        assert_eq!(again.cluster.topology.links(), resolved.cluster.topology.links());
    }
    let host = |resolved: &Resolved| bandwidth_of_host(&resolved.toml, "gpu.1");
    assert_eq!(host(&server).as_deref(), Some("network.host.\"gpu.1\".bandwidth"));
    assert_eq!(host(&shared), None);
}

#[test]
fn devices_share_a_host_where_the_file_says_so() {
    let text = r#"
        [[device]]
        name = "gpu"
        count = 4
        host = "node"
        per_host = 2
        [[device]]
        name = "cpu"
        host = "node.1"
        [network]
        [network.host."node.0"]
        local = { bandwidth = "3600 Gbps", latency = "1 us" }
    "#;
    let Resolved { cluster, .. } = resolve(text);
    assert_eq!(cluster.topology.hosts(), ["node.0", "node.1"]);
    let hosts: Vec<u32> = cluster.devices.iter().map(|device| device.host.0).collect();
    assert_eq!(hosts, [0, 0, 1, 1, 1]);
    assert_eq!(bits(&cluster.topology, "node.0 <-> node.0"), 3.6e12);
    assert_eq!(bits(&cluster.topology, "node.1 <-> node.1"), 4e10);
}

#[test]
fn every_preset_reads_its_own_keys() {
    let networks = [
        "",
        "preset = \"star\"\nbackplane = \"2 Gbps\"",
        "preset = \"ring\"",
        "preset = \"fully_connected\"",
        "preset = \"wifi\"",
        "preset = \"torus\"\ndims = [2, 1]",
        "preset = \"fat_tree\"\nhosts_per_leaf = 1\nspines = 2\noversubscription = 2.0",
        "preset = \"rail\"\nper_server = 2\nfabric = { bandwidth = \"3600 Gbps\", latency = \"1 us\" }",
        "preset = \"server\"\nper_server = 2\nfabric = \"nvlink4\"",
        "preset = \"server\"\nper_server = 2\npcie = \"pcie5_x16\"\nnics = 1",
        "preset = \"server\"\nper_server = 1\nfabric = \"nvlink4\"\nservers_per_leaf = 1\nspines = 2\noversubscription = 2.0",
        "preset = \"dimensions\"\ndimensions = [{ kind = \"ring\", size = 1 }, { kind = \"switch\", size = 2, bandwidth = \"2 Gbps\" }]",
        "links = [{ between = [\"board.0\", \"sw\"], bandwidth = \"1 Gbps\" }, { between = [\"sw\", \"board.1\"], duplex = \"half\" }]",
    ];
    let summary = networks.map(|network| {
        let topology = resolve(&with_network(network)).cluster.topology;
        let links: Vec<String> = topology
            .links()
            .iter()
            .map(|l| format!("{} at {} bit/s", l.name, l.bandwidth.bytes_per_second() * 8.0))
            .collect();
        format!("{network}\n  {}\n", links.join("\n  "))
    });
    insta::assert_snapshot!(summary.join("\n"));
}

/// Egress is the rate out of the host. A host with one direction has the network's rate in the other.
#[test]
fn a_host_has_a_bandwidth_out_and_one_in() {
    let both = |text: &str, host: &str, next: &str| {
        let topology = resolve(text).cluster.topology;
        (bits(&topology, &format!("{host} -> {next}")), bits(&topology, &format!("{next} -> {host}")))
    };
    let everywhere = with_network("bandwidth = { egress = \"20 Mbps\", ingress = \"100 Mbps\" }");
    assert_eq!(both(&everywhere, "board.0", "switch"), (20e6, 100e6));
    let exception = "bandwidth = \"1 Gbps\"\n[network.host.\"board.1\"]\nbandwidth = { egress = \"20 Mbps\" }";
    assert_eq!(both(&with_network(exception), "board.1", "switch"), (20e6, 1e9));
    assert_eq!(both(&with_network(exception), "board.0", "switch"), (1e9, 1e9));
    let listed = "latency = \"1 ms\"\nlinks = [{ between = [\"sw\", \"board.0\"], bandwidth = { egress = \"1 Mbps\" } }, \
        { between = [\"board.1\", \"sw\"], bandwidth = { ingress = \"2 Mbps\" } }]";
    assert_eq!(both(&with_network(listed), "board.0", "sw"), (1e6, 10e9));
    assert_eq!(both(&with_network(listed), "board.1", "sw"), (10e9, 2e6));
    let cable =
        "links = [{ between = [\"board.1\", \"board.0\"], bandwidth = { egress = \"1 Mbps\", ingress = \"2 Mbps\" } }]";
    assert_eq!(both(&with_network(cable), "board.1", "board.0"), (1e6, 2e6));
    // Switches have the rate of the faster direction: a fat tree with one host per leaf and one spine.
    let tree = "preset = \"fat_tree\"\nhosts_per_leaf = 1\nspines = 1\nbandwidth = { egress = \"1 Mbps\", ingress = \"2 Mbps\" }";
    assert_eq!(both(&with_network(tree), "leaf.0", "spine.0"), (2e6, 2e6));
    for text in [&everywhere, &with_network(exception), &with_network(listed), &with_network(cable)] {
        let first = resolve(text);
        let again = resolve(&first.toml);
        assert_eq!((again.cluster.topology.links(), &again.toml), (first.cluster.topology.links(), &first.toml));
    }
    let summary = ClusterFile::parse("c.toml", &everywhere, &[]).unwrap().summary();
    assert_eq!(summary, "cluster (20 Mbps out and 100 Mbps in)");
}

/// Queues exist only on links from a switch to a host.
#[test]
fn a_switch_holds_back_so_much_for_each_host() {
    let queued = |network: &str| -> Vec<(String, u64)> {
        let resolved = resolve(&with_network(network));
        assert_eq!(resolve(&resolved.toml).cluster.topology.links(), resolved.cluster.topology.links());
        let links = resolved.cluster.topology.links().to_vec();
        links.into_iter().filter_map(|link| Some((link.name, link.queue?.0))).collect()
    };
    let of = |links: &[(&str, u64)]| -> Vec<(String, u64)> {
        links.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect()
    };
    assert_eq!(queued("bandwidth = \"1 Gbps\""), []);
    let exception = "queue = \"1.5 MB\"\n[network.host.\"board.1\"]\nqueue = \"64 KiB\"";
    assert_eq!(queued(exception), of(&[("switch -> board.0", 1_500_000), ("switch -> board.1", 65_536)]));
    let hub = "preset = \"star\"\nqueue = \"2 kB\"";
    assert_eq!(queued(hub), of(&[("hub -> board.0", 2_000), ("hub -> board.1", 2_000)]));
    let tree = "preset = \"fat_tree\"\nhosts_per_leaf = 1\nspines = 1\nqueue = \"2 kB\"";
    assert_eq!(queued(tree), of(&[("leaf.0 -> board.0", 2_000), ("leaf.1 -> board.1", 2_000)]));
    let listed = "queue = \"2 kB\"\nlinks = [{ between = [\"sw\", \"board.0\"], queue = \"1 kB\" }, \
        { between = [\"board.1\", \"sw\"] }, { between = [\"sw\", \"top\"] }, { between = [\"top\", \"board.1\"], duplex = \"half\" }]";
    assert_eq!(queued(listed), of(&[("sw -> board.0", 1_000), ("sw -> board.1", 2_000)]));
}

#[test]
fn the_canonical_file_says_everything_and_resolves_to_itself() {
    let choices = Choices { algorithms: vec!["barrier=dissemination".parse().unwrap()], ..Choices::default() };
    let first = resolve_with(BOARDS, &["network.local={bandwidth='1 GB/s',latency='3 us'}"], &choices).unwrap();
    insta::assert_snapshot!(first.toml);
    let second = resolve(&first.toml);
    assert_eq!(first.toml, second.toml);
    assert_eq!(first.cluster.devices, second.cluster.devices);
    assert_eq!(first.cluster.topology.links(), second.cluster.topology.links());
    assert_eq!(
        format!("{:?}", first.cluster.backend.algorithms.rules(CollectiveKind::AllReduce)),
        format!("{:?}", second.cluster.backend.algorithms.rules(CollectiveKind::AllReduce))
    );
}

#[test]
fn assignments_override_add_and_replace() {
    let sets = [
        "network.bandwidth=2 Gbps",
        "device.0.slowdown=3",
        "device.laptop.count=2",
        "network.host.'orin.2'.latency=\"1 ms\"",
        "network.host.\"laptop.1\".bandwidth = 7 Mbps",
        "collective.broadcast=\"binomial\"",
        "name=another",
    ];
    let Resolved { cluster, .. } = resolve_with(BOARDS, &sets, &Choices::default()).unwrap();
    assert_eq!((cluster.devices.len(), cluster.devices[0].slowdown, &*cluster.name), (5, 3.0, "another"));
    assert_eq!(bits(&cluster.topology, "orin.0 -> switch"), 2e9);
    assert_eq!(bits(&cluster.topology, "laptop.1 -> switch"), 7e6);
    // (1 ms + 200 us) / 2
    assert_eq!(cluster.topology.route(HostId(2), HostId(0)).latency.as_ps(), 600_000_000);
    assert_eq!(cluster.backend.algorithms.choose(CollectiveKind::Broadcast, Bytes(0)).name(), "binomial");
}

#[test]
fn assignments_multiply_what_is_there_or_usual() {
    let sets = [
        "network.bandwidth=*2",
        "network.latency=/4",
        "network.latency=/ 2",
        "device.orin.slowdown=/2",
        "device.laptop.slowdown=*3",
        "device.orin.count=*2",
        "network.host.\"laptop\".latency=*0",
        "network.host.'orin.0'.bandwidth=/10",
    ];
    let Resolved { cluster, .. } = resolve_with(BOARDS, &sets, &Choices::default()).unwrap();
    let usual = resolve_with(BOARDS, &[], &Choices::default()).unwrap().cluster;
    let slowdown = |cluster: &Cluster, rank: usize| cluster.devices[rank].slowdown;
    assert_eq!(slowdown(&cluster, 0), slowdown(&usual, 0) / 2.0);
    assert_eq!((slowdown(&cluster, 6), slowdown(&usual, 3)), (3.0, 1.0));
    assert_eq!(bits(&cluster.topology, "laptop -> switch"), 2.0 * bits(&usual.topology, "laptop -> switch"));
    assert_eq!(bits(&cluster.topology, "orin.0 -> switch"), bits(&usual.topology, "orin.0 -> switch") / 5.0);
    let latency = |cluster: &Cluster, to| cluster.topology.route(HostId(0), HostId(to)).latency.as_ps();
    assert_eq!(latency(&cluster, 1), latency(&usual, 1) / 8);
    assert_eq!(latency(&cluster, 6), latency(&usual, 3) / 16);
}

#[test]
fn operations_that_take_no_time_are_named() {
    let resolve = |set| resolve_with(BOARDS, &[set], &Choices::default());
    let Resolved { cluster, toml, .. } = resolve("free=[\"all_gather\", \"send\"]").unwrap();
    assert_eq!(cluster.backend.free.operations.iter().copied().collect::<Vec<_>>(), ["all_gather", "send"]);
    let again = resolve_with(&toml, &[], &Choices::default()).unwrap();
    assert_eq!((again.cluster.backend.free, &again.toml), (cluster.backend.free, &toml));
    insta::assert_snapshot!(resolve("free=[\"all_gather\", \"all_redcue\"]").err().unwrap().to_string());
}

#[test]
fn nothing_is_multiplied_that_is_no_number() {
    let refused = |set| resolve_with(BOARDS, &[set], &Choices::default()).err().unwrap().to_string();
    insta::assert_snapshot!(
        [refused("device.orin.cores=*2"), refused("name=*2"), refused("network.latency=*-2")].join("\n")
    );
}

#[test]
fn flags_describe_a_cluster_file() {
    let flags =
        Flags { ranks: 3, bandwidth: None, latency: Some("1 ms".parse().unwrap()), slowdown: vec![1.0, 1.0, 2.5] };
    let text = flags.to_toml().unwrap();
    insta::assert_snapshot!(text);
    let Resolved { cluster, .. } = resolve(&text);
    let slowdowns: Vec<f64> = cluster.devices.iter().map(|device| device.slowdown).collect();
    assert_eq!(slowdowns, [1.0, 1.0, 2.5]);
    assert_eq!(bits(&cluster.topology, "device.2 -> switch"), 1e10);
    let same = Flags { ranks: 2, bandwidth: None, latency: None, slowdown: vec![2.0] };
    assert_eq!(resolve(&same.to_toml().unwrap()).cluster.devices[1].slowdown, 2.0);
}

#[test]
fn impossible_flags_are_refused() {
    let flags = |ranks, slowdown: &[f64]| Flags { ranks, bandwidth: None, latency: None, slowdown: slowdown.to_vec() };
    let refused = [flags(0, &[]), flags(3, &[1.0, 2.0]), flags(1, &[0.0]), flags(1, &[f64::NAN])];
    let shown = refused.map(|flags| flags.to_toml().unwrap_err().to_string());
    insta::assert_snapshot!(shown.join("\n\n"));
}

#[test]
fn cores_are_those_of_every_device_of_a_kind() {
    let text = "[[device]]\nname = \"a\"\ncount = 2\ncores = 4\n[[device]]\nname = \"b\"\n[network]\n";
    let resolved = resolve(text);
    assert_eq!(resolved.cores, [Some(4), Some(4), None]);
    assert_eq!(resolve(&resolved.toml).cores, resolved.cores);
    let with = |cores: &str| mistake(&format!("[[device]]\nname = \"a\"\ncores = {cores}\n[network]\n"));
    let none = with("0");
    assert!(none.contains("`cores` must be at least 1") && none.contains("hint:"), "{none}");
    for wrong in ["-4", "2.5", "\"4\""] {
        assert!(with(wrong).contains("cores"), "{wrong}");
    }
}

#[test]
fn mistakes_in_devices_are_shown() {
    let device = |keys: &str| format!("[[device]]\n{keys}\n[network]\nbandwidth = \"1 Gbps\"\n");
    let shown = [
        mistake("[network]\n"),
        mistake(""),
        mistake("[[device]]\nname = \"a\"\n"),
        mistake(&device("count = 2")),
        mistake(&device("name = \"a\"\ncount = 0")),
        mistake(&device("name = \"a\"\ncount = -1")),
        mistake(&device("name = \"a\"\ncount = 4000000")),
        mistake(&device("name = \"a\"\nslowdown = 0")),
        mistake(&device("name = \"a\"\nslowdown = -1.5")),
        mistake(&device("name = \"a\"\nslowdown = nan")),
        mistake(&device("name = \"a\"\nmemory = 8")),
        mistake(&device("name = \"a\"\nmemroy = \"8 GiB\"")),
        mistake(&device("name = \"\"")),
        mistake(&device("name = \"a\"\n[[device]]\nname = \"a\"")),
        mistake(&device("name = \"a\"\ncount = 2\n[[device]]\nname = \"a.1\"")),
        mistake(&device("name = \"a\"\nper_host = 2")),
        mistake(&device("name = \"a\"\nhost = \"h\"\nper_host = 0")),
    ];
    insta::assert_snapshot!(shown.join("\n\n"));
}

#[test]
fn mistakes_in_networks_are_shown() {
    let networks = [
        "bandwidth = 25",
        "bandwidth = \"0 Gbps\"",
        "bandwidth = 1 Gbps # quotes are missing",
        "bandwidth = \"1 gbps\"",
        "bandwith = \"1 Gbps\"",
        "bandwidth = {}",
        "bandwidth = { egress = 20 }",
        "bandwidth = { egress = \"20 Mbps\", up = \"1 Gbps\" }",
        "preset = \"wifi\"\nbandwidth = { egress = \"20 Mbps\" }",
        "preset = \"wifi\"\n[network.host.\"board.1\"]\nbandwidth = { egress = \"20 Mbps\" }",
        "local = { bandwidth = { egress = \"20 Mbps\" }, latency = \"1 us\" }",
        "links = [{ between = [\"board.0\", \"board.1\"], duplex = \"half\", bandwidth = { ingress = \"20 Mbps\" } }]",
        "latency = 10",
        "latency = \"-1 us\"",
        "preset = \"swtich\"",
        "preset = \"ring\"\ndims = [2]",
        "preset = \"torus\"",
        "preset = \"torus\"\ndims = [2, 2]",
        "preset = \"rail\"\nper_server = 3\nfabric = { bandwidth = \"1 Tbps\", latency = \"1 us\" }",
        "preset = \"fat_tree\"\nhosts_per_leaf = 0\nspines = 2",
        "[network.host.\"bord.1\"]\nbandwidth = \"1 Gbps\"",
        "[network.host.\"board.1\"]\nbandwith = \"1 Gbps\"",
        "links = [{ between = [\"board.0\", \"sw\"] }]",
        "links = [\n  { between = [\"board.0\", \"board.1\"] },\n  { between = [\"bord.1\", \"board.1\"] },\n]",
        "links = [{ between = [\"board.0\"] }]",
        "links = [{ between = [\"board.0\", \"board.1\"] }, { between = [\"board.1\", \"board.0\"] }]",
        "links = [{ between = [\"board.0\", \"board.1\", \"x\"] }]",
        "links = [{ between = [\"board.0\", \"board.1\"], duplex = \"halve\" }]",
        "preset = \"switch\"\nlinks = []",
        "links = []\ndims = [2]",
        "links = [{ between = [\"board.0\", \"board.1\"] }]\n[network.host.\"board.0\"]\nlatency = \"1 us\"",
        "queue = 1500000",
        "preset = \"ring\"\nqueue = \"1.5 MB\"",
        "preset = \"wifi\"\n[network.host.\"board.1\"]\nqueue = \"64 KiB\"",
        "links = [{ between = [\"board.0\", \"board.1\"], queue = \"64 KiB\" }]",
        "preset = \"server\"",
        "preset = \"server\"\nper_server = 2",
        "preset = \"server\"\nper_server = 3\nfabric = \"nvlink4\"",
        "preset = \"server\"\nper_server = 0\nfabric = \"nvlink4\"",
        "preset = \"server\"\nper_server = 2\nfabric = \"nvlnk4\"",
        "preset = \"server\"\nper_server = 2\npcie = \"pcie4_x16\"\nnics = 3",
        "preset = \"server\"\nper_server = 2\npcie = \"pcie4_x16\"\nnics = 0",
        "preset = \"server\"\nper_server = 2\nfabric = \"nvlink4\"\nnics = 1\nrails = 2",
        "preset = \"server\"\nper_server = 2\nfabric = \"nvlink4\"\noversubscription = 2.0",
        "preset = \"server\"\nper_server = 2\nfabric = \"nvlink4\"\nservers_per_leaf = 4",
        "preset = \"server\"\nper_server = 2\nfabric = \"nvlink4\"\nservers_per_leaf = 0\nspines = 1",
        "preset = \"server\"\nper_server = 2\nfabric = \"nvlink4\"\nservers_per_leaf = 1\nspines = 1\noversubscription = -1.0",
        "preset = \"server\"\nper_server = 2\nfabric = \"nvlink4\"\nhosts_per_leaf = 4",
        "preset = \"server\"\nper_server = 2\nfabric = \"nvlink4\"\nnics = 1\n[network.host.\"board.1\"]\nbandwidth = \"1 Gbps\"",
        "preset = \"rail\"\nper_server = 2\nfabric = \"nvlink4\"\nnics = 1",
    ];
    let shared = "[[device]]\nname = \"gpu\"\ncount = 4\nhost = \"node\"\nper_host = 2\n[network]\n\
                  preset = \"server\"\nper_server = 2\nfabric = \"nvlink4\"\n";
    let refused = mistake(shared);
    assert!(refused.contains("servers of single GPUs, but `node.0` is a host of several"), "{refused}");
    assert!(refused.contains("hint: remove `host` and `per_host`"), "{refused}");
    insta::assert_snapshot!(networks.map(|network| mistake(&with_network(network))).join("\n\n"));
}

#[test]
fn mistakes_in_backends_and_algorithms_are_shown() {
    let file = |head: &str, tail: &str| format!("{head}\n{}{tail}\n", with_network("bandwidth = \"1 Gbps\""));
    let choices = |backend: Option<&str>, algorithm: Option<&str>| Choices {
        backend: backend.map(str::to_owned),
        fallback_backend: None,
        algorithms: algorithm.iter().map(|text| text.parse().unwrap()).collect(),
        ..Choices::default()
    };
    let shown = [
        mistake(&file("backend = { name = \"ncl\" }", "")),
        mistake(&file("backend = { name = \"gloo\", window = { first = \"2 MB\", cap = \"1 MB\" } }", "")),
        mistake(&file("backend = { name = \"gloo\", buffer = \"2 MB\" }", "")),
        mistake(&file("backend = \"glo\"", "")),
        mistake(&file("backend = 3", "")),
        mistake(&file("backend = { name = \"gloo\", threads = 2 }", "")),
        mistake(&file("backend = { name = \"gloo\", concurrency = 0 }", "")),
        mistake(&file("backend = { name = \"gloo\", packet = { payload = \"2 kB\", wire = \"1 kB\" } }", "")),
        mistake(&file("", "[collective]\nall_reduce = \"rign\"")),
        mistake(&file("", "[collective]\nallreduce = \"ring\"")),
        mistake(&file("", "[collective]\nall_reduce = [{ up_to = \"1 KiB\", algorithm = \"ring\" }]")),
        mistake(&file("", "[collective]\nall_reduce = []")),
        mistake(&file("", "[collective]\nall_reduce = [{ up_to = 64, algorithm = \"ring\" }]")),
        mistake(&file("", "[collective]\nbroadcast = [{ algorithm = \"pairwise\" }]")),
        mistake_with(BOARDS, &[], &choices(Some("ncll"), None)),
        mistake_with(BOARDS, &[], &choices(None, Some("all_reduce=tree"))),
        "allreduce=ring".parse::<AlgorithmChoice>().unwrap_err().to_string(),
        "ring".parse::<AlgorithmChoice>().unwrap_err().to_string(),
    ];
    insta::assert_snapshot!(shown.join("\n\n"));
}

#[test]
fn mistakes_in_assignments_are_shown() {
    let sets = [
        "network.bandwidth",
        "network.bandwidth=5",
        "network.bandwith=1 Gbps",
        "network.=1",
        "#=1",
        "device.7.slowdown=2",
        "device.lptop.slowdown=2",
        "device.0.slowdown=fast",
        "name.x=1",
        "collective.all_reduce=[{ algorithm = 'rign' }]",
        "network.host.orin.2.bandwidth=1 Gbps",
        "",
    ];
    let shown = sets.map(|set| format!("{set}\n{}", mistake_with(BOARDS, &[set], &Choices::default())));
    insta::assert_snapshot!(shown.join("\n\n"));
}

#[test]
fn values_of_the_wrong_type_are_shown() {
    let device = "[[device]]\nname = \"a\"\n";
    let shown = [
        "[device]\nname = \"a\"\n".to_owned(),
        "device = 3\n".to_owned(),
        format!("network = \"switch\"\n{device}"),
        format!("{device}[[network]]\n"),
        format!("{device}[network]\nlinks = [3]\n"),
        format!("{device}[network]\ndims = \"4x4\"\n"),
        format!("{device}[network]\nlocal = \"1 Gbps\"\n"),
        format!("{device}[network.host]\na = 3\n"),
        format!("{device}[network]\nspines = 2.5\n"),
        format!("{device}[network]\n[collective]\nbarrier = 3\n"),
        format!("collective = \"ring\"\n{device}[network]\n"),
        format!("name = 3\n{device}[network]\n"),
    ];
    insta::assert_snapshot!(shown.map(|text| mistake(&text)).join("\n\n"));
}

#[test]
fn mistakes_of_syntax_are_shown() {
    let shown = ["name = \"x", "name = x\n", "[[device]\n", "name = \"a\"\nname = \"b\"\n", "= 3\n"].map(mistake);
    insta::assert_snapshot!(shown.join("\n\n"));
}

proptest::proptest! {
    #[test]
    fn any_text_and_assignment_is_a_cluster_or_a_mistake(text: String, cut in 0..BOARDS.len(), set: String) {
        let _ = resolve_with(&text, &[], &Choices::default()).map(|_| ()).map_err(|error| error.render(true));
        let cut = resolve_with(&BOARDS[..cut], &[&set], &Choices::default());
        let _ = cut.map(|_| ()).map_err(|error| error.render(false));
    }
}

#[test]
fn devices_have_rooflines_or_none() {
    let text = "[[device]]\nname = \"a\"\ncount = 2\npeak_flops = \"2 TFLOPS\"\nmemory_bandwidth = \"1 TB/s\"\n\
        [[device]]\nname = \"b\"\n[network]\npreset = \"switch\"\n";
    let rates = Some(Rates::uniform(2e12, 1e12));
    assert_eq!(resolve(text).rates, [rates, rates, None]);
    assert_eq!(resolve(&resolve(text).toml).rates, [rates, rates, None]);
    let half = text.replace("memory_bandwidth = \"1 TB/s\"\n", "");
    let error = ClusterFile::parse("test", &half, &[]).unwrap().resolve(&Choices::default()).err().unwrap();
    assert!(error.render(false).contains("`peak_flops` and `memory_bandwidth` must be given together"));
}

/// A table by dtype, a launch floor, and a model whose figures single keys override.
#[test]
fn rates_come_from_a_table_or_a_model() {
    let of = |keys: &str| resolve(&format!("[[device]]\nname = \"a\"\n{keys}\n[network]\npreset = \"switch\"\n"));
    let table = of(
        "peak_flops = { bfloat16 = \"300 TFLOPS\", float32 = \"20 TFLOPS\" }\nmemory_bandwidth = \"1 TB/s\"\nlaunch = \"3 us\"",
    );
    let peaks = Peaks::table([(Precision::BFloat16, 300e12), (Precision::Float32, 20e12)]).unwrap();
    assert_eq!(table.rates, [Some(Rates { peaks, memory: 1e12, launch: SimDuration::from_us(3) })]);
    assert_eq!((resolve(&table.toml).rates, table.models), (table.rates, vec![None]));

    let orin = of("model = \"jetson-orin-nano\"");
    assert_eq!(orin.models, [Some("jetson-orin-nano-8gb".to_owned())]);
    assert_eq!((orin.rates[0].unwrap().memory, orin.cluster.devices[0].memory), (68e9, Some(Bytes(7_618 << 20))));
    let super_mode = of("model = \"jetson-orin-nano\"\nmemory_bandwidth = \"102 GB/s\"\nmemory = \"4 GiB\"");
    let rates = super_mode.rates[0].unwrap();
    assert_eq!((rates.memory, rates.peaks), (102e9, orin.rates[0].unwrap().peaks));
    assert_eq!(super_mode.cluster.devices[0].memory, Some(Bytes(4 << 30)));
    assert_eq!(resolve(&super_mode.toml).rates, super_mode.rates);
    let own = of("model = \"my-board\"\npeak_flops = \"1 TFLOPS\"\nmemory_bandwidth = \"50 GB/s\"");
    assert_eq!((own.models, own.rates), (vec![Some("my-board".to_owned())], vec![Some(Rates::uniform(1e12, 50e9))]));
}

#[test]
fn devices_that_make_no_sense_are_refused_with_a_hint() {
    let refused = [
        "model = \"h100-smx\"",
        "model = \"a100\"",
        "model = \"apple-m4-pro\"",
        "model = 3",
        "launch = \"3 us\"",
        "model = \"h100-sxm\"\nlaunch = \"3\"",
        "peak_flops = { bf16 = \"3 TFLOPS\" }\nmemory_bandwidth = \"1 TB/s\"",
        "peak_flops = { float32 = \"3 GB/s\" }\nmemory_bandwidth = \"1 TB/s\"",
        "peak_flops = {}\nmemory_bandwidth = \"1 TB/s\"",
        "peak_flops = 3\nmemory_bandwidth = \"1 TB/s\"",
        "model = \"grace\"\nhost_cpu = \"epyc-7742\"",
        "model = \"h100-sxm\"\nhost_cpu = \"l4\"",
    ];
    let shown =
        refused.map(|keys| mistake(&format!("[[device]]\nname = \"a\"\n{keys}\n[network]\npreset = \"switch\"\n")));
    insta::assert_snapshot!(shown.join("\n\n"));
}

#[test]
fn power_price_and_the_share_of_communication_are_read() {
    let file =
        |keys: &str| resolve(&format!("[[device]]\nname = \"a\"\ncount = 2\n{keys}\n[network]\npreset = \"switch\"\n"));
    let device = |keys: &str| file(keys).cluster.devices[1].clone();
    let all = file("power = { idle = \"10 W\", busy = \"0.25 kW\" }\nprice = 2.5\ncommunication_share = 0.1");
    let gpu = &all.cluster.devices[1];
    assert_eq!((gpu.power, gpu.price, gpu.communication), (Some(Power { idle: 10.0, busy: 250.0 }), Some(2.5), 0.1));
    assert_eq!(resolve(&all.toml).cluster.devices, all.cluster.devices);
    assert_eq!(device("power = { idle = \"10 W\" }").power, None);
    // The power of a busy device is its maximum, unless another value is known.
    let of_model = "model = \"h100-sxm\"\n";
    assert_eq!(
        device(&format!("{of_model}power = {{ idle = \"60 W\" }}")).power,
        Some(Power { idle: 60.0, busy: 700.0 })
    );
    // An eighth of the power above idle is half of the clock: arithmetic is slower, the memory is not.
    let capped = device(&format!("{of_model}power = {{ idle = \"60 W\", cap = \"140 W\" }}"));
    let (free, slow) = (device(of_model).rates.unwrap(), capped.rates.unwrap());
    assert_eq!(slow.peaks.known(Precision::BFloat16), free.peaks.known(Precision::BFloat16).map(|rate| rate / 2.0));
    assert_eq!((slow.memory, capped.power), (free.memory, Some(Power { idle: 60.0, busy: 140.0 })));
    let refused = [
        "power = { idle = \"9 W\", busy = \"8 W\" }",
        "power = { idle = \"9 W\", busy = \"18 W\", cap = \"9 W\" }",
        "model = \"h100-sxm\"\npower = { cap = \"400 W\" }",
        "power = { idle = \"9 W\", busy = \"18 W\", cap = \"12 W\" }",
        "power = { idle = 9 }",
        "power = \"9 W\"",
        "price = -1",
        "communication_share = 1.0",
    ];
    let shown =
        refused.map(|keys| mistake(&format!("[[device]]\nname = \"a\"\n{keys}\n[network]\npreset = \"switch\"\n")));
    insta::assert_snapshot!(shown.join("\n\n"));
}

#[test]
fn the_workers_of_devices_are_read_and_what_they_cannot_have_is_refused() {
    let file = |keys: &str| {
        format!("[[device]]\nname = \"a\"\n{keys}\n[[device]]\nname = \"b\"\n[network]\npreset = \"switch\"\n")
    };
    let resolved = resolve(&file("at = \"board-1\"\ncount = 2\nslowdown = 1.0"));
    let at = || Some("board-1".to_owned());
    assert_eq!(resolved.workers, [at(), at(), None]);
    assert_eq!(resolve(&resolved.toml).workers, resolved.workers);
    for (keys, words) in [
        ("at = \"\"", "1 to 64 letters"),
        ("at = \"a b\"", "1 to 64 letters"),
        ("at = \"w\"\nslowdown = 2", "has no `slowdown`"),
    ] {
        let shown = mistake(&file(keys));
        assert!(shown.contains(words) && shown.contains("hint: "), "{shown}");
    }
}

#[test]
fn every_example_of_the_documentation_is_a_cluster_and_every_key_is_documented() {
    let documentation = include_str!("../../../../docs/reference/cluster-file.md");
    let examples: Vec<&str> =
        documentation.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(examples.len() > 10);
    examples.iter().for_each(|example| {
        resolve(example);
    });
    let all = "name backend device network collective count slowdown memory cores host per_host model peak_flops memory_bandwidth launch communication_share power idle busy price preset links bandwidth latency \
               local backplane dims hosts_per_leaf spines oversubscription per_server fabric between duplex concurrency \
               packet payload wire connections handshake control preamble buffer window first cap call hand_over message wake copy reduce staging nvls max_channels pcie_peers egress ingress up_to algorithm gloo ideal switch star ring fully_connected wifi torus fat_tree rail server pcie nics rails servers_per_leaf \
               dimensions kind size eager crash rank at link steps blocks block send recv combine after";
    for key in all.split_whitespace().chain(CollectiveKind::ALL.map(CollectiveKind::name)) {
        assert!(documentation.contains(key), "{key} is not documented");
    }
}

#[test]
fn the_examples_that_come_with_the_program_are_clusters() {
    let slow = resolve(include_str!("../../../../examples/generate/slow-network.toml"));
    let devices: Vec<(&str, f64)> = slow.cluster.devices.iter().map(|d| (&*d.name, d.slowdown)).collect();
    assert_eq!(devices, [("board.0", 1.0), ("board.1", 1.0), ("old-board", 2.5)]);
    assert_eq!(resolve(include_str!("../../../../examples/generate/three-boards.toml")).cluster.devices.len(), 3);
}
