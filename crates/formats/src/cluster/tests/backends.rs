//! Tests of backends: their choice, their profiles and parameters, and the surroundings by which NCCL chooses algorithms.

use super::*;
use uniference_sim::cluster::{Handshake, Protocol, Window};
use uniference_sim::collective::choose::AlgorithmTable;
use uniference_sim::program::{Collective, DType, ReduceOp, Shape};
use uniference_sim::time::Rate;

#[test]
fn gloo_pays_for_ethernet_and_ideal_for_nothing() {
    let gloo = resolve(BOARDS).cluster;
    let overhead = gloo.topology.links()[0].overhead.unwrap();
    assert_eq!((overhead.payload, overhead.wire, gloo.backend.concurrency), (1448, 1514, 2));
    let choices =
        Choices { backend: Some("ideal".into()), fallback_backend: Some("gloo".into()), ..Choices::default() };
    let ideal = resolve_with(BOARDS, &[], &choices).unwrap().cluster;
    assert_eq!((ideal.topology.links()[0].overhead, &*ideal.backend.name), (None, "ideal"));
}

#[test]
fn the_backend_is_the_callers_then_the_files_then_the_scripts() {
    let backend = |text: &str, flag: Option<&str>, script: Option<&str>| {
        let choices = Choices {
            backend: flag.map(str::to_owned),
            fallback_backend: script.map(str::to_owned),
            ..Choices::default()
        };
        resolve_with(text, &[], &choices).unwrap().cluster.backend.name
    };
    let silent = with_network("");
    assert_eq!(backend(BOARDS, Some("ideal"), Some("nccl")), "ideal");
    assert_eq!(backend(BOARDS, None, Some("nccl")), "gloo");
    assert_eq!(backend(&silent, None, Some("ideal")), "ideal");
    assert_eq!(backend(&silent, None, None), "gloo");
}

/// NVIDIA GPUs imply NCCL; Jetson boards, GPUs of other vendors, devices with explicit rates and mixed clusters do not.
#[test]
fn models_of_gpus_imply_nccl() {
    let backend = |devices: &[&str], fallback: Option<&str>| {
        let device = |(at, keys): (usize, &&str)| format!("[[device]]\nname = \"d{at}\"\n{keys}\n");
        let devices: String = devices.iter().enumerate().map(device).collect();
        let choices = Choices { fallback_backend: fallback.map(str::to_owned), ..Choices::default() };
        resolve_with(&format!("{devices}[network]\n"), &[], &choices).unwrap().cluster.backend.name
    };
    let rates = "peak_flops = \"1 TFLOPS\"\nmemory_bandwidth = \"1 TB/s\"";
    assert_eq!(backend(&["model = \"h100-sxm\"", "model = \"l40s\"\ncount = 3"], None), "nccl");
    assert_eq!(backend(&["model = \"h100-sxm\""], Some("gloo")), "gloo");
    assert_eq!(backend(&[&format!("model = \"t4\"\n{rates}")], None), "nccl");
    for others in [
        vec!["model = \"jetson-agx-orin\""],
        vec!["model = \"mi300x\""],
        vec!["model = \"h100-sxm\"", "model = \"raspberry-pi-5\""],
        vec!["model = \"h100-sxm\"", ""],
        vec![rates],
        vec![&format!("model = \"h21\"\n{rates}")],
    ] {
        assert_eq!(backend(&others, None), "gloo", "{others:?}");
    }
}

#[test]
fn a_backends_parameters_can_be_overridden() {
    let text = format!(
        "backend = {{ name = \"ideal\", concurrency = 4, packet = {{ payload = \"4 KiB\", wire = \"4200 B\" }} }}\n{}",
        with_network("")
    );
    let Resolved { cluster, .. } = resolve(&text);
    let packet = cluster.topology.links()[0].overhead.unwrap();
    assert_eq!((cluster.backend.concurrency, packet.payload, packet.wire), (4, 4096, 4200));
}

#[test]
fn a_profile_is_overridden_key_by_key_and_only_for_its_own_backend() {
    let backend = "[backend]\nname = \"gloo\"\nwindow = \"none\"\ncopy = \"none\"\nmessage = \"70 us\"\n";
    let text = format!("{}\n{backend}", with_network(""));
    let gloo = resolve(&text).cluster.backend.protocol;
    let profile = resolve(&with_network("")).cluster.backend.protocol;
    let message = SimDuration::from_us(70);
    assert_eq!(gloo, Protocol { window: None, copy: None, message, ..profile });
    let choices = Choices { backend: Some("ideal".into()), ..Choices::default() };
    let ideal = resolve_with(&text, &[], &choices).unwrap().cluster.backend;
    assert_eq!((ideal.protocol, ideal.concurrency), (Protocol::default(), 1));
}

/// Each part of the transport can be added to a library without it, and removed from a library that has it.
#[test]
fn each_part_of_the_transport_goes_on_and_off_by_itself() {
    let with = |name: &str, parameter: &str| {
        resolve(&format!("{}\n[backend]\nname = \"{name}\"\n{parameter}\n", with_network(""))).cluster.backend.protocol
    };
    let none = Protocol::default;
    let sizes = |control, eager| Some(Handshake { control: Bytes(control), preamble: Bytes(7), eager });
    let rate = Rate::new(2e9);
    let on = [
        ("handshake = { control = \"9 B\", preamble = \"7 B\" }", Protocol { handshake: sizes(9, None), ..none() }),
        (
            "handshake = { control = \"9 B\", preamble = \"7 B\", eager = \"1 KiB\" }",
            Protocol { handshake: sizes(9, Some(Bytes(1024))), ..none() },
        ),
        (
            "window = { first = \"3 B\", cap = \"5 B\", idle = \"none\" }",
            Protocol { window: Some(Window { first: Bytes(3), cap: Bytes(5), idle: None }), ..none() },
        ),
        ("connections = \"group\"", Protocol { connections_per_group: true, ..none() }),
        ("call = \"2 us\"", Protocol { call: SimDuration::from_us(2), ..none() }),
        ("message = \"2 us\"", Protocol { message: SimDuration::from_us(2), ..none() }),
        ("hand_over = \"2 us\"", Protocol { hand_over: SimDuration::from_us(2), ..none() }),
        ("wake = \"2 us\"", Protocol { wake: SimDuration::from_us(2), ..none() }),
        ("copy = \"2 GB/s\"", Protocol { copy: rate, ..none() }),
        ("reduce = \"2 GB/s\"", Protocol { reduce: rate, ..none() }),
        ("staging = \"2 GB/s\"", Protocol { staging: rate, ..none() }),
    ];
    for (parameter, expected) in on {
        assert_eq!(with("ideal", parameter), expected, "{parameter}");
    }
    let gloo = || with("gloo", "");
    let off = [
        ("handshake = \"none\"", Protocol { handshake: None, ..gloo() }),
        (
            "handshake = \"none\"\nbuffer = \"3 MB\"",
            Protocol { handshake: None, buffer: Some(Bytes(3_000_000)), ..gloo() },
        ),
        ("window = \"none\"", Protocol { window: None, ..gloo() }),
        ("connections = \"pair\"", Protocol { connections_per_group: false, ..gloo() }),
        ("call = \"0 s\"", Protocol { call: SimDuration::ZERO, ..gloo() }),
        ("message = \"0 s\"", Protocol { message: SimDuration::ZERO, ..gloo() }),
        ("hand_over = \"0 s\"", Protocol { hand_over: SimDuration::ZERO, ..gloo() }),
        ("wake = \"0 s\"", Protocol { wake: SimDuration::ZERO, ..gloo() }),
        ("copy = \"none\"", Protocol { copy: None, ..gloo() }),
        ("reduce = \"none\"", Protocol { reduce: None, ..gloo() }),
    ];
    for (parameter, expected) in off {
        assert_ne!(gloo(), expected, "{parameter} changes nothing");
        assert_eq!(with("gloo", parameter), expected, "{parameter}");
    }
}

#[test]
fn profiles_choose_the_algorithms_that_the_simulator_knows_them_by() {
    let chosen = |name: &str| {
        let choices = Choices { backend: Some(name.into()), ..Choices::default() };
        format!("{:?}", resolve_with(&with_network(""), &[], &choices).unwrap().cluster.backend.algorithms)
    };
    assert_eq!(chosen("gloo"), format!("{:?}", AlgorithmTable::gloo()));
    assert_eq!(chosen("ideal"), format!("{:?}", AlgorithmTable::ideal()));
}

#[test]
fn nccl_chooses_by_the_network_it_is_on() {
    let choices = Choices { backend: Some("nccl".into()), ..Choices::default() };
    let servers = "[[device]]\nname = \"gpu\"\ncount = 16\n[network]\npreset = \"rail\"\nper_server = 8\nbandwidth = \"400 Gbps\"\n\
                   fabric = { bandwidth = \"1800 Gbps\", latency = \"1 us\" }\n";
    let cluster = resolve_with(servers, &[], &choices).unwrap().cluster;
    let (reduce, shape) = (Some(ReduceOp::Sum), |count| Shape::Even(count));
    let call = |count| Collective {
        kind: CollectiveKind::AllReduce,
        dtype: DType::UInt8,
        reduce,
        root: None,
        shape: shape(count),
        kernel: None,
    };
    let chosen = |count, ranks| cluster.backend.algorithms.algorithm(&call(count), ranks).name();
    assert!(chosen(64, 8).ends_with("_ll"));
    assert_eq!((chosen(1 << 30, 8), chosen(1 << 30, 16)), ("ring_simple", "ring_simple"));
    // Slower links make a message of the same size a large one.
    let slow = resolve_with(servers, &["network.bandwidth=1 Gbps"], &choices).unwrap().cluster;
    let at = |cluster: &Cluster| cluster.backend.algorithms.algorithm(&call(200_000), 16).name();
    assert_ne!(at(&slow), at(&cluster));
}

#[test]
fn nccl_uses_what_its_parameters_leave_it() {
    let server = "[backend]\nname = \"nccl\"\n[[device]]\nname = \"gpu\"\ncount = 8\n\
                  [network]\npreset = \"rail\"\nper_server = 8\nfabric = \"nvlink4\"\nlink = \"infiniband_ndr\"\n";
    let chosen = |sets: &[&str]| {
        let cluster = resolve_with(server, sets, &Choices::default()).unwrap().cluster;
        let (reduce, shape) = (Some(ReduceOp::Sum), Shape::Even(1 << 28));
        let call = Collective {
            kind: CollectiveKind::AllReduce,
            dtype: DType::Float32,
            reduce,
            root: None,
            shape,
            kernel: None,
        };
        cluster.backend.algorithms.algorithm(&call, 8).name()
    };
    assert_eq!((chosen(&[]), chosen(&["backend.nvls=false"])), ("nvls", "ring_simple"));
    assert_eq!(chosen(&["collective.all_reduce=tree_simple"]), "tree_simple");
    let resolved = resolve_with(server, &["backend.max_channels=4"], &Choices::default()).unwrap();
    assert!(resolved.toml.contains("nvls = true\nmax_channels = 4\npcie_peers = false"), "{}", resolved.toml);
    assert_eq!(resolve(&resolved.toml).toml, resolved.toml);
    let none = mistake_with(server, &["backend.max_channels=0"], &Choices::default());
    assert!(none.contains("`max_channels` must be at least 1"), "{none}");
    for key in ["nvls=true", "max_channels=8", "pcie_peers=true"] {
        let sets = ["backend.name=gloo", &format!("backend.{key}")];
        let gloo = mistake_with(server, &sets, &Choices::default());
        let name = key.split('=').next().unwrap();
        assert!(gloo.contains(&format!("`{name}` requires the backend `nccl`")), "{gloo}");
        assert!(gloo.contains("hint: remove it"), "{gloo}");
    }
}

/// H800 and A100 have NVLinks of similar rates, but only switches of H800's generation reduce. GPUs of other vendors
/// have no such switches at any rate.
#[test]
fn nccl_knows_the_generation_of_models() {
    let call = Collective {
        kind: CollectiveKind::AllReduce,
        dtype: DType::Float32,
        reduce: Some(ReduceOp::Sum),
        root: None,
        shape: Shape::Even(1 << 28),
        kernel: None,
    };
    for (cluster, expected) in [
        ("dgx-a100", "ring_simple"),
        ("dgx-h100", "nvls"),
        ("hgx-h20", "nvls"),
        ("hgx-h800", "nvls"),
        ("dgx-b300", "nvls"),
        ("mi300x", "ring_simple"),
        ("mi355x", "ring_simple"),
        ("h100-pcie", "ring_simple"),
        ("rtx-5090", "ring_simple"),
    ] {
        let cluster = resolve(&named::text(cluster).unwrap()).cluster;
        assert_eq!(cluster.backend.algorithms.algorithm(&call, 8).name(), expected, "{}", cluster.name);
    }
}
