//! Owns the summary of a cluster for people: devices, servers, rates between them, memory, and everything that its file
//! leaves to defaults.
//!
//! [`crate::doubts`] has warnings; the resolved cluster file has every value.

use crate::cluster::Chosen;
use std::fmt::Write;
use uniference_formats::units::{Bandwidth, Duration, counted};
use uniference_sim::cluster::Cluster;
use uniference_sim::network::{Route, Topology};
use uniference_sim::time::{Bytes, Rate};

/// The cluster in a few lines, each a label and a text.
pub fn of(chosen: &Chosen) -> String {
    let resolved = &chosen.resolved;
    let cluster = &resolved.cluster;
    let ranks = cluster.devices.len();
    let servers = servers(cluster);
    let largest = servers.iter().copied().max().unwrap_or(1);
    let mut lines = vec![("devices", devices(chosen))];
    if largest > 1 {
        let sizes = match servers.iter().copied().min() {
            Some(least) if least < largest => format!("{least} to {largest} devices each"),
            _ => format!("{} each", counted(largest, "device")),
        };
        lines.push(("servers", format!("{}, {sizes}", counted(servers.len(), "server"))));
    }
    lines.push(("memory", memory(cluster)));
    let topology = &cluster.topology;
    let first = servers.first().copied().unwrap_or(1);
    let route = |rank: usize| topology.route(cluster.devices[0].host, cluster.devices[rank].host);
    if first > 1 {
        lines.push(("in a server", speed(topology, &route(1))));
    }
    if first < ranks {
        let label = if largest > 1 { "between servers" } else { "between devices" };
        lines.push((label, speed(topology, &route(first))));
    }
    if ranks > 1 {
        let rate = bisection(cluster).map_or("without limit".to_owned(), show);
        lines.push(("bisection", format!("{rate} from the first half of the devices to the second")));
    }
    lines.push(("backend", cluster.backend.name.clone()));
    let mut text = String::new();
    for (label, value) in lines {
        writeln!(text, "  {label:<16} {value}").expect("a string grows");
    }
    if !resolved.assumed.is_empty() {
        text += "assumed, because the file does not say\n";
        resolved.assumed.iter().for_each(|value| writeln!(text, "  {value}").expect("a string grows"));
    }
    text
}

/// The number of devices of each server, in the order of ranks.
fn servers(cluster: &Cluster) -> Vec<usize> {
    let servers: Vec<u32> = cluster.devices.iter().map(|device| cluster.topology.server(device.host)).collect();
    servers.chunk_by(|a, b| a == b).map(<[u32]>::len).collect()
}

/// Numbers of devices by model, or by name without the device's number.
fn devices(chosen: &Chosen) -> String {
    let named = chosen.resolved.cluster.devices.iter().zip(&chosen.resolved.models);
    let names: Vec<&str> = named
        .map(|(device, model)| match model {
            Some(model) => model.as_str(),
            None => device.name.rsplit_once('.').map_or(device.name.as_str(), |(name, _)| name),
        })
        .collect();
    let groups = names.chunk_by(|a, b| a == b).map(|group| format!("{} x {}", group.len(), group[0]));
    let groups: Vec<String> = groups.collect();
    match groups.len() {
        0..5 => groups.join(", "),
        more => format!("{}, and {} more", groups[..3].join(", "), counted(more - 3, "group")),
    }
}

fn memory(cluster: &Cluster) -> String {
    let known: Vec<Bytes> = cluster.devices.iter().filter_map(|device| device.memory).collect();
    let gibibytes = |bytes: f64| format!("{:.1} GiB", bytes / f64::from(1 << 30));
    let total: f64 = known.iter().map(|bytes| bytes.0 as f64).sum();
    match (known.iter().min(), known.iter().max()) {
        _ if known.len() < cluster.devices.len() => "unknown, and so without limit, for some devices".to_owned(),
        (Some(least), Some(most)) if least < most => {
            format!(
                "{} to {} per device, {} in all",
                gibibytes(least.0 as f64),
                gibibytes(most.0 as f64),
                gibibytes(total)
            )
        }
        (Some(each), _) => format!("{} per device, {} in all", gibibytes(each.0 as f64), gibibytes(total)),
        _ => "unknown".to_owned(),
    }
}

/// Rate and latency of a route that carries one message.
fn speed(topology: &Topology, route: &Route) -> String {
    let rates = route.links.iter().map(|link| topology.link(*link).bandwidth.bytes_per_second());
    match rates.reduce(f64::min) {
        Some(rate) => format!("{} each direction, {} latency", show(rate), Duration(route.latency)),
        None => "without limit".to_owned(),
    }
}

/// A rate in bytes and in bits.
fn show(bytes_per_second: f64) -> String {
    let rate = |rate: f64| Rate::new(rate).map_or(String::new(), |rate| Bandwidth(rate).to_string());
    let gigabits = bytes_per_second * 8e-9;
    if gigabits < 1.0 {
        rate(bytes_per_second)
    } else {
        format!("{:.4} Gbps ({:.4} GB/s)", Trim(gigabits), Trim(gigabits / 8.0))
    }
}

/// A number with at most so many decimals as the format has, without zeros at its end.
struct Trim(f64);

impl std::fmt::Display for Trim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.*}", f.precision().unwrap_or(2), self.0);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// Bytes per second if each device of the first half sends to its counterpart in the second half, all at once, and
/// messages share each link equally. `None`: no link limits the messages.
fn bisection(cluster: &Cluster) -> Option<f64> {
    let half = cluster.devices.len() / 2;
    let pairs =
        (0..half).map(|rank| [rank, rank + cluster.devices.len() - half].map(|rank| cluster.devices[rank].host));
    let routes: Vec<Route> = pairs.map(|[from, to]| cluster.topology.route(from, to)).collect();
    let mut messages = vec![0_u32; cluster.topology.links().len()];
    routes.iter().flat_map(|route| &route.links).for_each(|link| messages[link.index()] += 1);
    let share = |route: &Route| {
        let rates = route
            .links
            .iter()
            .map(|link| cluster.topology.link(*link).bandwidth.bytes_per_second() / f64::from(messages[link.index()]));
        rates.reduce(f64::min)
    };
    routes.iter().map(share).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ClusterOptions;
    use std::path::PathBuf;

    fn shown(cluster: &str, set: &[&str]) -> String {
        let mut options = ClusterOptions { file: Some(PathBuf::from(cluster)), ..ClusterOptions::default() };
        options.overrides.set = set.iter().map(|set| (*set).to_owned()).collect();
        of(&options.resolve().unwrap_or_else(|error| panic!("{error}")))
    }

    /// 64 x 79.18 GiB (in whole MiB) are 5067.5 GiB.
    #[test]
    fn servers_of_gpus_are_summed_up() {
        let text = shown("dgx-h100:8", &[]);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for line in [
            "devices          64 x h100-sxm-80gb",
            "servers          8 servers, 8 devices each",
            "memory           79.2 GiB per device, 5067.5 GiB in all",
            "in a server      2880 Gbps (360 GB/s) each direction, 700 ns latency",
            "between servers  400 Gbps (50 GB/s) each direction, 2 us latency",
            "bisection        12800 Gbps (1600 GB/s) from the first half of the devices to the second",
            "backend          nccl",
            "all servers are on one switch per rail, which does not limit them (no `servers_per_leaf`)",
        ] {
            assert!(lines.contains(&line), "{line} in\n{text}");
        }
    }

    #[test]
    fn values_that_the_file_leaves_open_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("boards.toml");
        std::fs::write(&file, "[[device]]\nname = \"board\"\ncount = 4\nhost = \"h\"\nper_host = 2\n[network]\n")
            .unwrap();
        let text = shown(file.to_str().unwrap(), &[]);
        let (summary, assumed) = text.split_once("assumed, because the file does not say\n").unwrap();
        assert!(summary.contains("4 x board\n") && summary.contains("unknown, and so without limit"), "{text}");
        for value in [
            "network.preset = \"switch\"",
            "network.bandwidth = \"10 Gbps\"",
            "network.latency = \"10 us\"",
            "network.local = { bandwidth = \"40 Gbps\", latency = \"10 us\" }",
            "device `board` computes as fast as this machine",
            "device `board` has memory without limit",
        ] {
            assert!(assumed.contains(value), "{value} in\n{text}");
        }
        // A single server has no network between servers.
        std::fs::write(
            &file,
            "[[device]]\nname = \"a\"\nmodel = \"l4\"\ncount = 2\n[network]\npreset = \"server\"\nper_server = 2\npcie = \"pcie4_x16\"\n",
        )
        .unwrap();
        let alone = shown(file.to_str().unwrap(), &[]);
        assert!(!alone.contains("assumed"), "{alone}");
        let boards = shown("raspberry-pi-5:4", &[]);
        assert!(boards.contains("between devices  1 Gbps (0.125 GB/s) each direction, 50 us latency"), "{boards}");
        assert!(!boards.contains("assumed") && !boards.contains("servers"), "{boards}");
    }

    /// 64 NICs of 50 GB/s: 32 send. Behind leaves of 4 servers with uplinks of a fourth, they have 1/4 of that.
    #[test]
    fn a_bisection_follows_from_leaves_and_nics() {
        let rate = |set: &[&str]| {
            let text = shown("dgx-h100:8", set);
            text.lines().find_map(|line| line.trim().strip_prefix("bisection")).unwrap().trim().to_owned()
        };
        assert!(rate(&[]).starts_with("12800 Gbps (1600 GB/s) from"), "{}", rate(&[]));
        let leaves = ["network.servers_per_leaf=4", "network.spines=4", "network.oversubscription=4.0"];
        assert!(rate(&leaves).starts_with("3200 Gbps (400 GB/s) from"), "{}", rate(&leaves));
        let shared = ["network.nics=2", "network.rails=1"];
        assert!(rate(&shared).starts_with("3200 Gbps (400 GB/s) from"), "{}", rate(&shared));
    }
}
