use super::measurement::Pair;
use super::model::{HostLink, Model, Network, Placement, Setting};
use super::*;
use crate::profile::Reached;
use std::collections::BTreeMap;
use uniference_sim::device::Precision;

const SIZES: [u64; 7] = [1, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22];

/// Predictions of the simulator for a network, with repetitions that scatter by `noise`, in the form of a probe's
/// measurements.
fn measured(network: &Network, world: u32, noise: f64) -> Vec<Measurement> {
    measured_on(network, &Placement((0..world as usize).collect()), noise)
}

fn measured_on(network: &Network, placement: &Placement, noise: f64) -> Vec<Measurement> {
    measured_of(&Setting::of("gloo"), &SIZES, network, placement, noise)
}

fn measured_of(
    setting: &Setting,
    sizes: &[u64],
    network: &Network,
    placement: &Placement,
    noise: f64,
) -> Vec<Measurement> {
    let world = placement.0.len() as u32;
    let local = |ranks: [u32; 2]| placement.0[ranks[0] as usize] == placement.0[ranks[1] as usize];
    let pairs: Vec<[u32; 2]> =
        (0..world).flat_map(|first| (first + 1..world).map(move |second| [first, second])).collect();
    let case = |ranks: [u32; 2], plain, bytes| Pair {
        plain,
        local: local(ranks),
        ranks,
        bytes,
        back: bytes,
        seconds: Vec::new(),
    };
    let largest = sizes.iter().copied().max().unwrap();
    let ping = |ranks| Pair { back: 1, ..case(ranks, false, largest) };
    let cases: Vec<Pair> = pairs
        .into_iter()
        .flat_map(|pair| {
            let others = [case(pair, true, 1), ping(pair), ping([pair[1], pair[0]])];
            sizes.iter().map(move |bytes| case(pair, false, *bytes)).chain(others)
        })
        .collect();
    let times = Model { setting, cases: &cases, placement }.predict(network);
    // Repetitions: the truth times 1 - noise, 1 and 1 + noise, and one that was disturbed.
    let seconds = |logarithm: f64, plain: bool| {
        let spread = if plain { 0.0 } else { noise };
        [1.0 - spread, 1.0, 1.0, 1.0 + spread, 3.0].map(|factor| logarithm.exp() * factor).to_vec()
    };
    cases
        .iter()
        .zip(times)
        .map(|(case, time)| Measurement {
            operation: case.operation().to_owned(),
            ranks: case.ranks.to_vec(),
            bytes: case.bytes,
            seconds: seconds(time, case.plain),
            local: case.local,
            cold: false,
            device: None,
        })
        .collect()
}

fn near(found: f64, expected: f64, tolerance: f64) {
    assert!((found / expected - 1.0).abs() < tolerance, "{found} is not {expected}");
}

#[test]
fn the_numbers_of_a_network_are_found_again() {
    // the parameters 1 Gbit/s, 1 ms and 60 us are found to 2 %
    let network = Network { message: 60e-6, solo: None, links: vec![HostLink::both(1e-3, 125e6)], local: None };
    let observed = measurement::of_pairs(&measured(&network, 2, 0.02)).unwrap();
    let observations: Vec<Observation> = observed.iter().map(Observation::new).collect();
    let placement = Placement(vec![0, 1]);
    let model = Model { setting: &Setting::of("gloo"), cases: &observed, placement: &placement };
    let start = Network::guess(&observed, &placement, Form::default()).logarithms();
    let found = fit::fit(&observations, &start, &|point| model.predict(&Network::at(point, Form::default())), 1);
    for (found, truth) in found.point.iter().zip(network.logarithms()) {
        near(found.exp(), truth.exp(), 0.02);
    }
    for (index, truth) in network.logarithms().into_iter().enumerate() {
        // 1 % is allowed for the model, whose derivatives use steps of 1 %
        assert!(found.low[index] - 0.01 <= truth && truth <= found.high[index] + 0.01, "interval of {index}");
    }
}

#[test]
fn a_slow_host_is_told_apart() {
    // three hosts, the last with a tenth of the bandwidth and 2 ms more
    let network = Network {
        message: 60e-6,
        solo: None,
        links: vec![HostLink::both(1e-3, 125e6), HostLink::both(1e-3, 125e6), HostLink::both(3e-3, 12.5e6)],
        local: None,
    };
    let calibration = calibrate(&measured(&network, 3, 0.01), "gloo", 1).unwrap();
    assert!(calibration.worst_error < 0.02, "{}", calibration.worst_error);
    let value = |name: &str| &calibration.parameters.iter().find(|parameter| parameter.name == name).unwrap().value;
    let rate: Bandwidth = value("host 2 bandwidth").parse().unwrap();
    near(rate.0.bytes_per_second(), 12.5e6, 0.02);
    let latency: Duration = value("host 2 latency").parse().unwrap();
    near(latency.0.as_secs_f64(), 3e-3, 0.05);
}

/// A host whose upload is a tenth of its download, among two and among three hosts: `ping`s show the direction and the
/// host.
#[test]
fn a_slow_egress_is_told_from_a_slow_ingress() {
    for hosts in [2, 3] {
        let mut links = vec![HostLink::both(1e-3, 125e6); hosts];
        links[hosts - 1].egress = Some(12.5e6);
        let network = Network { message: 60e-6, solo: None, links, local: None };
        let calibration = calibrate(&measured(&network, hosts as u32, 0.01), "gloo", 1).unwrap();
        assert!(calibration.worst_error < 0.02, "{}", calibration.worst_error);
        let file = uniference_formats::cluster::ClusterFile::parse("calibrated", &calibration.toml, &[]).unwrap();
        let topology = file.resolve(&Default::default()).unwrap().cluster.topology;
        // A message has the lower of the sender's and the receiver's rate, so two hosts cannot be distinguished.
        let carries = |from: usize, to: usize| {
            let hosts = [from, to].map(|host| uniference_sim::ids::HostId(host as u32));
            let links = topology.route(hosts[0], hosts[1]).links;
            links.iter().map(|link| topology.link(*link).bandwidth.bytes_per_second()).fold(f64::INFINITY, f64::min)
        };
        near(carries(hosts - 1, 0), 12.5e6, 0.02);
        near(carries(0, hosts - 1), 125e6, 0.02);
    }
}

#[test]
fn ranks_that_share_a_host_have_a_link_of_their_own() {
    // two ranks on each of two hosts: 1 Gbit/s and 1 ms between them, 20 Gbit/s and 20 us within
    let network =
        Network { message: 60e-6, solo: None, links: vec![HostLink::both(1e-3, 125e6)], local: Some((20e-6, 2.5e9)) };
    let calibration = calibrate(&measured_on(&network, &Placement(vec![0, 0, 1, 1]), 0.01), "gloo", 1).unwrap();
    let value = |name: &str| &calibration.parameters.iter().find(|parameter| parameter.name == name).unwrap().value;
    for (name, seconds) in [("latency", 1e-3), ("local latency", 20e-6)] {
        near(value(name).parse::<Duration>().unwrap().0.as_secs_f64(), seconds, 0.03);
    }
    for (name, rate) in [("bandwidth", 125e6), ("local bandwidth", 2.5e9)] {
        near(value(name).parse::<Bandwidth>().unwrap().0.bytes_per_second(), rate, 0.03);
    }
    let file = uniference_formats::cluster::ClusterFile::parse("calibrated", &calibration.toml, &[]).unwrap();
    let cluster = file.resolve(&Default::default()).unwrap().cluster;
    assert_eq!(cluster.devices.iter().map(|device| device.host.0).collect::<Vec<_>>(), [0, 0, 1, 1]);
}

#[test]
fn the_result_is_a_cluster_file_that_predicts_what_was_measured() {
    let network = Network { message: 80e-6, solo: None, links: vec![HostLink::both(200e-6, 12.5e6)], local: None };
    let calibration = calibrate(&measured(&network, 2, 0.01), "gloo", 7).unwrap();
    let file = uniference_formats::cluster::ClusterFile::parse("calibrated", &calibration.toml, &[]).unwrap();
    let cluster = file.resolve(&Default::default()).unwrap().cluster;
    for case in calibration.errors.iter().filter(|case| case.operation == "pingpong") {
        near(model::pingpong(&cluster, [uniference_sim::time::Bytes(case.bytes); 2]), case.measured_s, 0.03);
    }
    assert_eq!(calibrate(&measured(&network, 2, 0.01), "gloo", 7).unwrap().toml, calibration.toml);
}

#[test]
fn handing_over_is_what_a_collective_takes_alone() {
    // solo = call + 2 hand_over, with a call of 1.6 messages
    let network = Network { message: 50e-6, solo: None, links: vec![HostLink::both(1e-3, 12.5e6)], local: None };
    let mut measurements = measured(&network, 2, 0.0);
    let solo = |rank| Measurement {
        operation: "solo".into(),
        ranks: vec![rank],
        bytes: 0,
        seconds: vec![400e-6; 3],
        local: false,
        cold: false,
        device: None,
    };
    measurements.extend([solo(0), solo(1)]);
    let toml = calibrate(&measurements, "gloo", 0).unwrap().toml;
    let line = toml.lines().find_map(|line| line.strip_prefix("hand_over = ")).unwrap();
    let found: Duration = line.trim_matches('"').parse().unwrap();
    near(found.0.as_secs_f64(), (400e-6 - 1.6 * 50e-6) / 2.0, 0.03);
}

/// MPI messages above the eager limit wait for a handshake of two more latencies.
#[test]
fn an_eager_limit_is_found_again() {
    let sizes: Vec<u64> = (0..12).map(|log| 2 << (2 * log)).chain([1 << 15, 3 << 15, 1 << 17, 1 << 18]).collect();
    for limit in [16 << 10, 40_000] {
        let network = Network { message: 12e-6, solo: None, links: vec![HostLink::both(60e-6, 125e6)], local: None };
        let setting = Setting { eager: Some(limit), ..Setting::of("mpi") };
        let measured = measured_of(&setting, &sizes, &network, &Placement(vec![0, 1]), 0.01);
        let calibration = calibrate(&measured, "mpi", 1).unwrap();
        let [change] = &calibration.changes[..] else { panic!("{limit}: {:?}", calibration.changes) };
        assert!(change.at.low <= limit && limit < change.at.high, "{limit}: {change:?}");
        assert!(change.at.last <= limit && limit < change.at.first && change.at.jump > 1.1, "{limit}: {change:?}");
        let file = uniference_formats::cluster::ClusterFile::parse("calibrated", &calibration.toml, &[]).unwrap();
        let handshake = file.resolve(&Default::default()).unwrap().cluster.backend.protocol.handshake.unwrap();
        assert_eq!(handshake.eager.unwrap().0, change.at.last);
        let value = |name: &str| &calibration.parameters.iter().find(|parameter| parameter.name == name).unwrap().value;
        near(value("latency").parse::<Duration>().unwrap().0.as_secs_f64(), 60e-6, 0.05);
        near(value("bandwidth").parse::<Bandwidth>().unwrap().0.bytes_per_second(), 125e6, 0.03);
        assert!(calibration.worst_error < 0.1, "{limit}: {}", calibration.worst_error);
    }
}

/// Gloo has no such limit, and none is found.
#[test]
fn where_nothing_changes_nothing_is_found() {
    let network = Network { message: 60e-6, solo: None, links: vec![HostLink::both(1e-3, 12.5e6)], local: None };
    let calibration = calibrate(&measured(&network, 2, 0.02), "gloo", 1).unwrap();
    assert!(calibration.changes.is_empty() && !calibration.toml.contains("eager"), "{:?}", calibration.changes);
}

/// Ranks 0 and 2 have one kind of device, which was profiled on rank 0, and rank 1 has another; rank 3 computes as long
/// as rank 1, on an unknown device.
#[test]
fn profiled_processors_have_rates_and_others_a_slowdown() {
    let network = Network { message: 60e-6, solo: None, links: vec![HostLink::both(1e-3, 12.5e6)], local: None };
    let mut measurements = measured(&network, 4, 0.0);
    let like = measurements[0].clone();
    let case = |operation: &str, ranks: &[u32], seconds| Measurement {
        operation: operation.into(),
        ranks: ranks.to_vec(),
        bytes: 0,
        seconds: vec![seconds],
        ..like.clone()
    };
    let times = [2e-3, 8e-3, 3e-3, 8e-3];
    measurements.extend((0..).zip(times).map(|(rank, time)| case("compute", &[rank], time)));
    let profile = |ranks: &[u32], name: &str, flops: f64| {
        let peak_flops = BTreeMap::from([("float32".to_owned(), flops), ("int64".to_owned(), 3e9)]);
        let reached = Reached { peak_flops, memory_bandwidth: Some(20e9) };
        let processor = Processor { name: name.into(), database: "operators.sqlite".into(), reached };
        Measurement { device: Some(processor), ..case("profile", ranks, 30.0) }
    };
    // An earlier profile of rank 1 does not count.
    measurements.extend([profile(&[1], "board", 1e9), profile(&[0, 2], "server", 80e9), profile(&[1], "board", 5e9)]);
    let calibration = calibrate(&measurements, "gloo", 0).unwrap();
    let file = uniference_formats::cluster::ClusterFile::parse("calibrated", &calibration.toml, &[]).unwrap();
    let resolved = file.resolve(&Default::default()).unwrap();
    let models: Vec<Option<&str>> = resolved.models.iter().map(Option::as_deref).collect();
    assert_eq!(models, [Some("server"), Some("board"), Some("server"), None]);
    let flops = |rank: usize| resolved.rates[rank].map(|rates| rates.peaks.known(Precision::Float32));
    assert_eq!([flops(0), flops(1), flops(3)], [Some(Some(80e9)), Some(Some(5e9)), None]);
    // slowdown = time / time of the rank on which the device was profiled, or of the fastest rank: 3 / 2, 8 / 2
    let slowdowns: Vec<f64> = resolved.cluster.devices.iter().map(|device| device.slowdown).collect();
    assert_eq!(slowdowns, [1.0, 1.0, 1.5, 4.0]);
    let ranks: Vec<&[u32]> = calibration.processors.iter().map(|profiled| &profiled.ranks[..]).collect();
    assert_eq!(ranks, [&[0, 2][..], &[1]]);
    assert!(fitted(&calibration).contains("server"), "{}", fitted(&calibration));
}

#[test]
fn too_few_measurements_are_refused() {
    let network = Network { message: 80e-6, solo: None, links: vec![HostLink::both(200e-6, 12.5e6)], local: None };
    let one_size: Vec<Measurement> = measured(&network, 2, 0.0).into_iter().filter(|case| case.bytes == 1).collect();
    assert!(matches!(calibrate(&one_size, "gloo", 0), Err(MeasurementError::TooFew)));
    assert!(matches!(measurement::parse("{}\n"), Err(MeasurementError::Line { line: 1, .. })));
    // An incomplete last line is measured again.
    assert_eq!(
        measurement::parse("{\"operation\":\"x\",\"ranks\":[0],\"bytes\":1,\"seconds\":[1]}\n{\"op").unwrap().len(),
        1
    );
}
