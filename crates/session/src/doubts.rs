//! Owns doubts about a cluster: implausible hardware, and cluster files that omit which GPUs form a server. Reports and
//! `uniference cluster check` show the doubts.
//!
//! Clusters that cannot be simulated at all are errors of `uniference-formats`.

use uniference_formats::cluster::Resolved;
use uniference_formats::devices;
use uniference_sim::ids::HostId;
use uniference_sim::network::Link;

/// Bounds of PCI Express with 16 lanes, in bytes per second: versions 3 to 5 are between the two.
const FASTER_THAN_PCIE: f64 = 100e9;
const SLOWER_THAN_PCIE: f64 = 10e9;

/// Doubts about the cluster's network, each with a hint.
pub fn of_network(resolved: &Resolved) -> Vec<String> {
    [shared_link(resolved), gloo_over_nvlink(resolved), unknown_servers(resolved)].into_iter().flatten().collect()
}

/// Whether any device is a GPU model.
fn has_gpus(resolved: &Resolved) -> bool {
    let mut models = resolved.models.iter().flatten();
    models.any(|model| devices::find(model).is_ok_and(|device| device.host_link().is_some()))
}

/// Warns if the GPUs of a host share one half-duplex link, since on a real server each GPU has its own link.
fn shared_link(resolved: &Resolved) -> Option<String> {
    let cluster = &resolved.cluster;
    if cluster.backend.name != "nccl" && !has_gpus(resolved) {
        return None;
    }
    let mut gpus = vec![0_u32; cluster.topology.hosts().len()];
    cluster.devices.iter().for_each(|device| gpus[device.host.index()] += 1);
    let rate = |host: HostId| {
        let links = cluster.topology.route(host, host).links;
        let rates = links.iter().map(|link| cluster.topology.link(*link).bandwidth.bytes_per_second());
        rates.reduce(f64::min)
    };
    let mut shared = (0..gpus.len()).filter(|host| gpus[*host] > 1).map(|host| (HostId::from(host), gpus[host]));
    let (host, count, rate) = shared.find_map(|(host, count)| Some((host, count, rate(host)?)))?;
    let name = &cluster.topology.hosts()[host.index()];
    let (link, why) = match rate {
        ..SLOWER_THAN_PCIE => ("pcie = \"pcie4_x16\"", "which is slower than PCI Express"),
        FASTER_THAN_PCIE.. => ("fabric = \"nvlink4\"", "where each GPU has NVLinks of its own"),
        _ => ("pcie = \"pcie4_x16\"", "where each GPU has a slot of its own, in both directions at once"),
    };
    // NCCL's model gives a collective on an idle link the time that it has with a link per GPU.
    let slower = match cluster.backend.name.as_str() {
        "nccl" => "collectives across servers, and transfers that overlap others, take",
        _ => "collectives among them take",
    };
    Some(format!(
        "the {count} GPUs of host `{name}` share one link, `local`, of {} GB/s, {why}: {slower} up to {count} times as long\nhint: describe the server by `preset = \"server\"` with `per_server = {count}` and `{link}`, and no `host`",
        rate / 1e9
    ))
}

/// Warns if Gloo would use a route as fast as NVLink between neighbouring ranks on GPUs. Only the first 64 ranks are
/// checked.
fn gloo_over_nvlink(resolved: &Resolved) -> Option<String> {
    let cluster = &resolved.cluster;
    if cluster.backend.name != "gloo" || !has_gpus(resolved) {
        return None;
    }
    let topology = &cluster.topology;
    let hosts: Vec<HostId> = cluster.devices.iter().map(|device| device.host).take(64).collect();
    let slowest = |pair: &[HostId]| {
        let links = topology.route(pair[0], pair[1]).links.into_iter().map(|link| topology.link(link));
        links.min_by(|a, b| a.bandwidth.bytes_per_second().total_cmp(&b.bandwidth.bytes_per_second()))
    };
    let is_fast = |link: &&Link| link.bandwidth.bytes_per_second() > FASTER_THAN_PCIE;
    let fast = hosts.windows(2).filter_map(slowest).find(is_fast)?;
    Some(format!(
        "Gloo communicates over TCP through the memory of the hosts and uses no NVLink: here it uses `{}` at {} GB/s\nhint: simulate NCCL with `backend = \"nccl\"` in the cluster file, or --backend nccl; or give the link the rate of TCP",
        fast.name,
        fast.bandwidth.bytes_per_second() / 1e9
    ))
}

/// Warns if NCCL, whose rings and trees depend on servers, runs on a graph of links whose file does not say which GPUs
/// are in one server.
fn unknown_servers(resolved: &Resolved) -> Option<String> {
    let Resolved { cluster, lacks_servers, .. } = resolved;
    // A host with several devices counts as a server.
    let one_each = cluster.topology.hosts().len() == cluster.devices.len();
    (cluster.backend.name == "nccl" && *lacks_servers && one_each && cluster.devices.len() > 1).then(|| {
        "NCCL sees each host of `links` as a server with one GPU and one NIC: the cluster file does not say which hosts are GPUs of one server\nhint: add `per_server` to [network]: the number of consecutive hosts that make a server, for example per_server = 8; 1 if each is a server of its own".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_formats::cluster::{Choices, ClusterFile};

    fn said(text: &str) -> Vec<String> {
        of_network(&ClusterFile::parse("c.toml", text, &[]).unwrap().resolve(&Choices::default()).unwrap())
    }

    fn the_one(text: &str) -> String {
        let said = said(text);
        assert_eq!(said.len(), 1, "{said:?}");
        said.into_iter().next().unwrap()
    }

    #[test]
    fn gpus_that_share_a_link_are_named() {
        let gpus = |count: u32| format!("backend = \"nccl\"\n[[device]]\nname = \"gpu\"\ncount = {count}\n");
        let one_host = |count: u32, local: &str| {
            format!("{}host = \"server\"\n[network]\n{local}\n", gpus(count)).replace("local", "local = ")
        };
        let nvlink = the_one(&one_host(4, "local\"nvlink4\""));
        assert!(nvlink.starts_with(
            "the 4 GPUs of host `server` share one link, `local`, of 360 GB/s, where each GPU has NVLinks"
        ));
        assert!(nvlink.contains(
            "\nhint: describe the server by `preset = \"server\"` with `per_server = 4` and `fabric = \"nvlink4\"`"
        ));
        // On a real server, eight GPUs have eight PCI Express slots and share no link.
        let pcie = the_one(&one_host(8, "local\"pcie4_x16\""));
        assert!(
            pcie.contains("the 8 GPUs of host `server` share one link, `local`, of 25 GB/s, where each GPU has a slot"),
            "{pcie}"
        );
        assert!(
            pcie.contains("up to 8 times") && pcie.contains("`per_server = 8` and `pcie = \"pcie4_x16\"`"),
            "{pcie}"
        );
        assert!(the_one(&one_host(2, "local\"pcie4_x16\"")).contains("up to 2 times as long"));
        // The default link of a host is too slow for GPUs.
        let slow = the_one(&one_host(2, ""));
        assert!(slow.contains("share one link, `local`, of 5 GB/s, which is slower than PCI Express"), "{slow}");
        // CPUs share their host's memory; GPU models do not, whatever the communication library.
        assert_eq!(said(&one_host(8, "").replace("nccl", "gloo")), [""; 0]);
        let mpi = one_host(8, "").replace("nccl", "mpi").replace("count", "model = \"l40s\"\ncount");
        let mpi = the_one(&mpi);
        assert!(mpi.contains("the 8 GPUs of host `server` share") && mpi.contains(": collectives among them"), "{mpi}");
        assert!(slow.contains(": collectives across servers, and transfers that overlap others"), "{slow}");
        let rail = "[network]\npreset = \"rail\"\nper_server = 4\nfabric = \"nvlink4\"\nlink = \"infiniband_ndr\"\n";
        assert_eq!(said(&format!("{}{rail}", gpus(4))), [""; 0]);
        let server = "[network]\npreset = \"server\"\nper_server = 4\npcie = \"pcie4_x16\"\nnics = 1\n";
        assert_eq!(said(&format!("{}{server}", gpus(8))), [""; 0]);
    }

    #[test]
    fn gloo_on_links_that_it_does_not_use_is_named() {
        let cluster = |backend: &str, network: &str| {
            format!(
                "backend = \"{backend}\"\n[[device]]\nname = \"gpu\"\nmodel = \"h100-sxm\"\ncount = 8\n[network]\n{network}\n"
            )
        };
        let rail = "preset = \"rail\"\nper_server = 8\nfabric = \"nvlink4\"";
        let warning = the_one(&cluster("gloo", rail));
        assert!(warning.contains("here it uses `gpu.0 -> fabric.0` at 360 GB/s\nhint: simulate NCCL"), "{warning}");
        assert_eq!(said(&cluster("nccl", rail)), [""; 0]);
        // CPUs that share their host's memory have no NVLink.
        assert_eq!(said(&cluster("gloo", rail).replace("model = \"h100-sxm\"\n", "")), [""; 0]);
        // 800 Gbps are 100 GB/s: as fast as two NICs, and slower than any NVLink.
        for rate in ["400", "800"] {
            assert_eq!(said(&cluster("gloo", &format!("bandwidth = \"{rate} Gbps\""))), [""; 0]);
        }
        // Links between switches may be shared: 4 x 400 Gbps.
        let tree = "preset = \"fat_tree\"\nhosts_per_leaf = 4\nspines = 1\nbandwidth = \"400 Gbps\"";
        assert_eq!(said(&cluster("gloo", tree)), [""; 0]);
        let graph = "links = [{ between = [\"gpu.0\", \"gpu.1\"], bandwidth = \"450 GB/s\" }]";
        let graph = the_one(&cluster("gloo", graph).replace("count = 8", "count = 2"));
        assert!(graph.contains("`gpu.0 -> gpu.1` at 450 GB/s"), "{graph}");
    }

    #[test]
    fn nccl_on_links_needs_to_know_the_servers() {
        let cluster = |device: &str, more: &str| {
            let hosts = if device.contains("host") { ["node.0", "node.1"] } else { ["gpu.0", "gpu.1"] };
            format!(
                "backend = \"nccl\"\n[[device]]\nname = \"gpu\"\n{device}\n[network]\nlinks = [{{ between = [\"{}\", \"{}\"] }}]\n{more}\n",
                hosts[0], hosts[1]
            )
        };
        let warning = the_one(&cluster("count = 2", ""));
        assert!(
            warning.starts_with("NCCL sees each host of `links` as a server with one GPU")
                && warning.contains("\nhint: add `per_server`")
        );
        for silent in ["per_server = 1", "per_server = 2"] {
            assert_eq!(said(&cluster("count = 2", silent)), [""; 0]);
        }
        assert_eq!(said(&cluster("count = 2", "").replace("nccl", "gloo")), [""; 0]);
        let servers = "count = 4\nhost = \"node\"\nper_host = 2";
        let shared = the_one(&cluster(servers, "local = \"pcie4_x16\""));
        assert!(shared.starts_with("the 2 GPUs of host `node.0` share one link"), "{shared}");
    }
}
