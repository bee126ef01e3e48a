//! Compares flow completion times with those of another simulator: `cargo run --release --example flows -- DIRECTORY`.
//!
//! The directory contains pairs of `NAME.json` (links, and flows with start, bytes and route) and `NAME.csv` (flow,
//! start, finish), gzipped or not. In these files a flow enters the network one latency of its route after its start,
//! and finishes when its last byte has left.
#![allow(clippy::disallowed_types, reason = "a check on files")]

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use uniference_sim::ids::LinkId;
use uniference_sim::network::{
    Duplex, FlowNetwork, GraphLink, HostSpec, LinkSpec, Network, NetworkEvent, Route, Topology,
};
use uniference_sim::time::{Bytes, Rate, SimDuration, SimTime};

#[derive(Deserialize)]
struct Case {
    hosts: Vec<String>,
    links: Vec<CaseLink>,
    flows: Vec<CaseFlow>,
}

#[derive(Deserialize)]
struct CaseLink {
    id: String,
    /// Bytes per second.
    bandwidth: f64,
    /// Latency in seconds.
    latency: f64,
}

#[derive(Deserialize)]
struct CaseFlow {
    /// Start time in seconds.
    start: f64,
    bytes: u64,
    route: Vec<String>,
}

fn main() {
    let directory = std::env::args().nth(1).expect("usage: flows DIRECTORY");
    let mut names: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.to_string_lossy().trim_end_matches(".gz").ends_with(".json"));
    names.sort();
    println!(
        "{:<28} {:>7} {:>12} {:>12} {:>9} {:>8}",
        "case", "flows", "max error s", "tolerated", "verdict", "wall s"
    );
    let failed = names.iter().filter(|path| !check(path)).count();
    assert_eq!(failed, 0, "cases outside of 1e-9 s + 1e-9 of the finish time");
}

/// Prints one line, and returns whether each finish time is within 1e-9 s plus 1e-9 of its value.
fn check(path: &Path) -> bool {
    let case: Case = serde_json::from_str(&read(path)).unwrap();
    let expected = read(Path::new(&path.to_string_lossy().replace(".json", ".csv")));
    let expected = expected.lines().skip(1).map(|line| line.rsplit(',').next().unwrap().parse::<f64>().unwrap());
    let before = Instant::now();
    let finished = finish_times(&case);
    let wall = before.elapsed().as_secs_f64();
    let errors = finished.iter().zip(expected).map(|(ours, theirs)| ((ours - theirs).abs(), 1e-9 + 1e-9 * theirs));
    let (error, tolerated) = errors.max_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1))).unwrap();
    let name = path.file_stem().unwrap().to_string_lossy();
    let verdict = if error <= tolerated { "equal" } else { "DIFFERENT" };
    println!("{name:<28} {:>7} {error:>12.3e} {tolerated:>12.3e} {verdict:>9} {wall:>8.4}", finished.len());
    error <= tolerated
}

fn read(path: &Path) -> String {
    if path.extension().is_some_and(|extension| extension == "gz") {
        let output = Command::new("gzip").arg("-dc").arg(path).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    } else {
        std::fs::read_to_string(path).unwrap()
    }
}

fn picoseconds(seconds: f64) -> SimDuration {
    SimDuration::from_ps((seconds * 1e12).round() as u64)
}

/// Time at which each flow's last byte has left, in seconds.
fn finish_times(case: &Case) -> Vec<f64> {
    let (mut network, streams) = build(case);
    let entry = |flow: &CaseFlow, latency| SimTime::ZERO + picoseconds(flow.start) + latency;
    let entries = case.flows.iter().zip(&streams).map(|(flow, id)| entry(flow, network.latency(*id)));
    let mut entries: Vec<_> = entries.zip(0..case.flows.len()).collect();
    entries.sort();
    let mut finished = vec![f64::NAN; case.flows.len()];
    let (mut events, mut entries) = (Vec::new(), entries.into_iter().peekable());
    loop {
        let entry = entries.peek().map(|(at, _)| *at);
        let Some(now) = network.next_event().into_iter().chain(entry).min() else { break };
        network.advance(now, &mut events);
        for event in events.drain(..) {
            if let NetworkEvent::Sent { tag, .. } = event {
                finished[tag as usize] = now.as_secs_f64();
            }
        }
        while let Some((_, flow)) = entries.next_if(|(at, _)| *at == now) {
            network.push(streams[flow], Bytes(case.flows[flow].bytes), flow as u64);
        }
    }
    finished
}

/// The case's links as a chain of nodes. Flows have given routes, so no route is computed from the chain.
fn build(case: &Case) -> (FlowNetwork, Vec<uniference_sim::ids::StreamId>) {
    assert!(!case.hosts.is_empty());
    let node = |index: usize| format!("{index:09}");
    let link = |(index, link): (usize, &CaseLink)| GraphLink {
        between: vec![node(index), node(index + 1)],
        spec: LinkSpec::new(Rate::new(link.bandwidth).unwrap(), picoseconds(link.latency)),
        back: None,
        duplex: Duplex::Half,
    };
    let hosts: Vec<_> = (0..=case.links.len()).map(|index| HostSpec::new(node(index))).collect();
    let links: Vec<_> = case.links.iter().enumerate().map(link).collect();
    let topology = Topology::graph(&hosts, &links).unwrap();
    let ids: BTreeMap<&str, LinkId> = case.links.iter().enumerate().map(|(at, link)| (&*link.id, at.into())).collect();
    let mut network = FlowNetwork::new(topology);
    let open = |flow: &CaseFlow| {
        let links: Vec<_> = flow.route.iter().map(|name| ids[name.as_str()]).collect();
        let latency = links.iter().map(|id| picoseconds(case.links[id.index()].latency)).sum();
        network.open_along(Route { links, latency }, None)
    };
    let streams = case.flows.iter().map(open).collect();
    (network, streams)
}
