//! Owns the backend of a cluster file: the known libraries, their parameters and their algorithms.
//!
//! A library's profile is a part of a cluster file with all parameters; it is a data file of this crate.

use super::dynamics::Attachments;
use super::flags::here;
use super::parameters::{OrNone, Parameters, RawConnections, RawHandshake, RawPacket, RawWindow};
use super::raw::{RawBackend, RawCluster, RawRule, RawRules};
use super::source::{Source, split_hint};
use super::{AlgorithmChoice, Choices, devices, hierarchy, kind_by_name, steps, suggest_kind};
use crate::devices::{self as table, KnownDevice};
use crate::diagnostic::{Diagnostic, suggest};
use crate::units::{Bandwidth, Duration, Size};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use toml::Spanned;
use uniference_sim::cluster::{Backend, Device, Handshake, Protocol, Window};
use uniference_sim::collective::choose::{AlgorithmTable, Rule, algorithm_by_name, algorithms_for};
use uniference_sim::collective::hierarchical::{DEFAULT_CHUNKS, Hierarchical};
use uniference_sim::collective::{Algorithm, Surroundings};
use uniference_sim::ids::{HostId, LinkId};
use uniference_sim::network::{PacketOverhead, Topology};
use uniference_sim::program::{CollectiveKind, NcclSettings};
use uniference_sim::time::{Bytes, Rate};

/// The communication libraries that can be simulated, with their profiles.
const PROFILES: [(&str, &str); 4] = [
    ("gloo", include_str!("../../profiles/gloo.toml")),
    ("ideal", include_str!("../../profiles/ideal.toml")),
    ("mpi", include_str!("../../profiles/mpi.toml")),
    ("nccl", include_str!("../../profiles/nccl.toml")),
];

/// Parameters other than the network on which NCCL's choices depend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuning {
    nvls: bool,
    max_channels: u32,
    pcie_peers: bool,
}

/// The backend with its algorithms, the overhead of headers on each link, and NCCL's tuning, if the backend is NCCL.
pub(super) fn resolve(
    raw: &RawCluster,
    choices: &Choices,
    attached: &Attachments,
    source: &Source,
) -> Result<(Backend, Option<PacketOverhead>, Option<Tuning>), Diagnostic> {
    let profile = by_name(raw, choices, source)?;
    let mut algorithms = AlgorithmTable::default();
    set_all_rules(&mut algorithms, &profile.collective, attached, &Source::new("profile", "", &[])?)?;
    set_all_rules(&mut algorithms, &raw.collective, attached, source)?;
    for choice in &choices.algorithms {
        force(&mut algorithms, choice)?;
    }
    let mut parameters = profile.backend.expect("a profile has a backend").into_inner().0;
    // The file's parameters of one library do not apply to another library that was chosen in its place.
    if let Some(RawBackend(said)) = raw.backend.as_ref().map(Spanned::get_ref)
        && said.name.get_ref() == parameters.name.get_ref()
    {
        parameters = said.clone().over(parameters);
        let has_handshake = parameters.handshake.is_some_and(|handshake| handshake.0.is_some());
        if let Some(buffer) = said.buffer.as_ref().filter(|buffer| has_handshake && buffer.get_ref().0.is_some()) {
            let hint = "add handshake = \"none\", or remove it: with a handshake, `eager` says which messages wait";
            return Err(source.error("`buffer` has no effect with a handshake", buffer.span()).hint(hint));
        }
    }
    let packet = match parameters.packet.as_ref().and_then(|packet| Some((packet.get_ref().0?, packet.span()))) {
        None => None,
        Some((RawPacket { payload, wire }, span)) => match (u32::try_from(payload.0.0), u32::try_from(wire.0.0)) {
            (Ok(payload @ 1..), Ok(wire)) if payload <= wire => Some(PacketOverhead { payload, wire }),
            _ => {
                let message = format!("a packet of {wire} cannot carry a payload of {payload}");
                let hint = "Ethernet with TCP carries \"1448 B\" of payload per \"1514 B\" packet";
                return Err(source.error(message, span).hint(hint));
            }
        },
    };
    let tuning = tuning(&parameters, source)?;
    Ok((backend(&parameters, algorithms, source)?, packet, tuning))
}

fn tuning(parameters: &Parameters, source: &Source) -> Result<Option<Tuning>, Diagnostic> {
    let Parameters { name, nvls, max_channels, pcie_peers, .. } = parameters;
    let span = Spanned::span;
    let given = [
        ("nvls", nvls.as_ref().map(span)),
        ("max_channels", max_channels.as_ref().map(Spanned::span)),
        ("pcie_peers", pcie_peers.as_ref().map(span)),
    ];
    match (name.get_ref().as_str(), nvls, max_channels) {
        ("nccl", Some(nvls), Some(channels)) if *channels.get_ref() > 0 => Ok(Some(Tuning {
            nvls: *nvls.get_ref(),
            max_channels: *channels.get_ref(),
            pcie_peers: pcie_peers.as_ref().is_some_and(|peers| *peers.get_ref()),
        })),
        ("nccl", _, Some(channels)) => {
            let hint = "NCCL uses 1 to 32 channels";
            Err(source.error("`max_channels` must be at least 1", channels.span()).hint(hint))
        }
        _ => match given.into_iter().find_map(|(key, span)| Some((key, span?))) {
            Some((key, span)) => {
                Err(source.error(format!("`{key}` requires the backend `nccl`"), span).hint("remove it"))
            }
            None => Ok(None),
        },
    }
}

/// The profile of the chosen backend. In order of precedence, the backend is the caller's choice, the file's, the
/// script's, or the backend that the devices imply.
fn by_name(raw: &RawCluster, choices: &Choices, source: &Source) -> Result<RawCluster, Diagnostic> {
    if let Some(name) = &choices.backend {
        return profile(name, |message| Diagnostic::new(message).at("--backend", name, 0..name.len()));
    }
    if let Some(backend) = &raw.backend {
        let name = &backend.get_ref().0.name;
        let span = place_of(name, backend.span());
        return profile(name.get_ref(), |message| source.error(message, span));
    }
    let implied = if devices::all_use_nccl(&raw.device) { "nccl" } else { "gloo" };
    profile(choices.fallback_backend.as_deref().unwrap_or(implied), Diagnostic::new)
}

fn profile(name: &str, error: impl FnOnce(String) -> Diagnostic) -> Result<RawCluster, Diagnostic> {
    if let Some((_, text)) = PROFILES.iter().find(|(known, _)| *known == name) {
        return Ok(toml::from_str(text).unwrap_or_else(|error| panic!("the profile {name} is no profile: {error}")));
    }
    let names = PROFILES.map(|(name, _)| name);
    Err(error(format!("unknown backend `{name}`")).hint(suggest(name, "backends", names)))
}

/// The position of the backend's name in the file; if `backend` is a string and not a table, the position of the
/// string.
fn place_of(name: &Spanned<String>, whole: Range<usize>) -> Range<usize> {
    if name.span().is_empty() { whole } else { name.span() }
}

/// The backend of complete parameters.
fn backend(parameters: &Parameters, algorithms: AlgorithmTable, source: &Source) -> Result<Backend, Diagnostic> {
    let concurrency = parameters.concurrency.as_ref().expect("a profile says how many operations run at once");
    if *concurrency.get_ref() == 0 {
        let hint = "with 1, the operations of a group run one after the other";
        return Err(source.error("`concurrency` must be at least 1", concurrency.span()).hint(hint));
    }
    let name = parameters.name.get_ref().clone();
    let protocol = protocol(parameters, source)?;
    Ok(Backend { name, algorithms, concurrency: *concurrency.get_ref(), protocol, free: Default::default() })
}

fn protocol(parameters: &Parameters, source: &Source) -> Result<Protocol, Diagnostic> {
    let time = |time: Option<Duration>| time.map(|time| time.0).unwrap_or_default();
    let rate = |rate: Option<OrNone<Bandwidth>>| -> Option<Rate> { Some(rate?.0?.0) };
    let handshake = parameters.handshake.and_then(|handshake| handshake.0);
    let window = match parameters.window.as_ref().and_then(|window| Some((window.get_ref().0?, window.span()))) {
        None => None,
        Some((RawWindow { first, cap, idle }, _)) if first.0.0 > 0 && first.0 <= cap.0 => {
            Some(Window { first: first.0, cap: cap.0, idle: idle.0.map(|idle| idle.0) })
        }
        Some((RawWindow { first, cap, .. }, span)) => {
            let hint = "Linux starts with \"14480 B\"; for a warm connection set first = cap";
            return Err(source.error(format!("the window cannot grow from {first} to {cap}"), span).hint(hint));
        }
    };
    Ok(Protocol {
        handshake: handshake.map(|raw| Handshake {
            control: raw.control.0,
            preamble: raw.preamble.0,
            eager: raw.eager.map(|eager| eager.0),
        }),
        buffer: parameters.buffer.as_ref().and_then(|buffer| Some(buffer.get_ref().0?.0)),
        window,
        connections_per_group: parameters.connections == Some(RawConnections::Group),
        call: time(parameters.call),
        // The time of a call of NCCL passes on the GPU, once per group of messages.
        calls_overlap: parameters.name.get_ref() == "nccl",
        hand_over: time(parameters.hand_over),
        message: time(parameters.message),
        wake: time(parameters.wake),
        copy: rate(parameters.copy),
        reduce: rate(parameters.reduce),
        staging: rate(parameters.staging),
    })
}

fn set_all_rules(
    table: &mut AlgorithmTable,
    collective: &BTreeMap<Spanned<String>, Spanned<RawRules>>,
    attached: &Attachments,
    source: &Source,
) -> Result<(), Diagnostic> {
    for (kind, rules) in collective {
        let Some(known) = kind_by_name(kind.get_ref()) else {
            let message = format!("unknown collective `{}`", kind.get_ref());
            return Err(source.error(message, kind.span()).hint(suggest_kind(kind.get_ref())));
        };
        set_rules(table, known, rules, attached, source)?;
    }
    Ok(())
}

fn set_rules(
    table: &mut AlgorithmTable,
    kind: CollectiveKind,
    raw: &Spanned<RawRules>,
    attached: &Attachments,
    source: &Source,
) -> Result<(), Diagnostic> {
    let mut rules: Vec<Rule> = Vec::new();
    for rule in &raw.get_ref().0 {
        let algorithm = algorithm(kind, rule, table, raw.span(), attached, source)?;
        if rule.steps.is_some() && rules.iter().any(|other| other.algorithm.name() == algorithm.name()) {
            let message = format!("duplicate algorithm name `{}` for {kind}", algorithm.name());
            return Err(source.error(message, raw.span()).hint("give each algorithm a unique name"));
        }
        rules.push(Rule { up_to: rule.up_to.map(|size| size.0), algorithm });
    }
    table.set_rules(kind, rules).map_err(|error| {
        let text = error.to_string();
        let (message, hint) = split_hint(&text);
        source.error(message, raw.span()).hint(hint.unwrap_or_default())
    })
}

/// The algorithm that one rule names or defines. If its steps are for groups of one size, `table`'s rules so far serve
/// the other sizes.
fn algorithm(
    kind: CollectiveKind,
    rule: &RawRule,
    table: &AlgorithmTable,
    whole: Range<usize>,
    attached: &Attachments,
    source: &Source,
) -> Result<Arc<dyn Algorithm>, Diagnostic> {
    let hierarchical = hierarchy::algorithm(rule, table, source)?;
    match (&rule.algorithm, &rule.steps) {
        (Some(_), None) if hierarchical.as_ref().is_some_and(|algorithm| algorithm.kinds().contains(&kind)) => {
            Ok(Arc::new(hierarchical.expect("just seen")))
        }
        (Some(name), None) => algorithm_by_name(kind, name.get_ref()).map_err(|_| {
            unknown_algorithm(kind, name.get_ref(), |message| source.error(message, place_of(name, whole)))
        }),
        (None, Some(steps)) => Ok(Arc::new(steps::algorithm(kind, steps, table.clone(), attached, source)?)),
        _ => {
            let hint = "give either the name of an `algorithm`, or `steps`";
            Err(source.error(format!("the rule for {kind} must have either `algorithm` or `steps`"), whole).hint(hint))
        }
    }
}

fn unknown_algorithm(kind: CollectiveKind, name: &str, error: impl FnOnce(String) -> Diagnostic) -> Diagnostic {
    let known: Vec<&str> = algorithms_for(kind).iter().map(|algorithm| algorithm.name()).collect();
    error(format!("unknown algorithm `{name}` for {kind}")).hint(suggest(name, "algorithms", known))
}

fn force(table: &mut AlgorithmTable, choice: &AlgorithmChoice) -> Result<(), Diagnostic> {
    let AlgorithmChoice { kind, name } = choice;
    let mut algorithm = algorithm_by_name(*kind, name).map_err(|_| {
        let text = format!("{kind}={name}");
        unknown_algorithm(*kind, name, |message| {
            Diagnostic::new(message).at("--algorithm", &text, text.len() - name.len()..text.len())
        })
    })?;
    if name == hierarchy::NAME {
        algorithm = Arc::new(Hierarchical::new(Vec::new(), DEFAULT_CHUNKS, table.clone()));
    }
    table.force(*kind, algorithm);
    Ok(())
}

/// The backend as a table with all parameters.
pub(super) fn canonical(
    backend: &Backend,
    packet: Option<PacketOverhead>,
    tuning: Option<Tuning>,
) -> Spanned<RawBackend> {
    let size = |bytes: u32| Size(Bytes(bytes.into()));
    let Protocol {
        handshake,
        buffer,
        window,
        call,
        hand_over,
        message,
        wake,
        copy,
        reduce,
        staging,
        connections_per_group,
        calls_overlap: _,
    } = &backend.protocol;
    let rate = |rate: Option<Rate>| Some(OrNone(rate.map(Bandwidth)));
    here(RawBackend(Parameters {
        name: here(backend.name.clone()),
        concurrency: Some(here(backend.concurrency)),
        connections: Some(if *connections_per_group { RawConnections::Group } else { RawConnections::Pair }),
        call: Some(Duration(*call)),
        hand_over: Some(Duration(*hand_over)),
        message: Some(Duration(*message)),
        wake: Some(Duration(*wake)),
        copy: rate(*copy),
        reduce: rate(*reduce),
        staging: rate(*staging),
        packet: Some(here(OrNone(
            packet.map(|packet| RawPacket { payload: size(packet.payload), wire: size(packet.wire) }),
        ))),
        handshake: Some(OrNone(handshake.map(|handshake| RawHandshake {
            control: Size(handshake.control),
            preamble: Size(handshake.preamble),
            eager: handshake.eager.map(Size),
        }))),
        buffer: Some(here(OrNone(buffer.map(Size)))),
        window: Some(here(OrNone(window.map(|window| RawWindow {
            first: Size(window.first),
            cap: Size(window.cap),
            idle: OrNone(window.idle.map(Duration)),
        })))),
        nvls: tuning.map(|tuning| here(tuning.nvls)),
        max_channels: tuning.map(|tuning| here(tuning.max_channels)),
        pcie_peers: tuning.map(|tuning| here(tuning.pcie_peers)),
    }))
}

/// Adapts algorithms that depend on the network to it: to one link inside a server and one link between two servers, if
/// the network has both.
pub(super) fn adapt(
    algorithms: &mut AlgorithmTable,
    tuning: Option<Tuning>,
    topology: &Topology,
    devices: &[Device],
    models: &[Option<String>],
) {
    let server = |rank: usize| topology.server(devices[rank].host);
    let per_server = (0..devices.len()).take_while(|rank| server(*rank) == server(0)).count();
    let hosts: Vec<HostId> = devices.iter().map(|device| device.host).collect();
    let nics = nics_of_server(topology, &hosts[..per_server], &hosts[per_server..]);
    let rate = |rank: usize| {
        let route = topology.route(devices.first()?.host, devices.get(rank)?.host);
        route
            .links
            .iter()
            .map(|id| topology.link(*id).payload_rate())
            .min_by(|a, b| a.bytes_per_second().total_cmp(&b.bytes_per_second()))
    };
    let inside = rate(1).filter(|_| per_server > 1);
    let Some((inside, between)) = inside.or(rate(per_server)).zip(rate(per_server).or(inside)) else { return };
    let per_server = per_server as u32;
    // NCCL's default tuning applies if the file selects an algorithm of NCCL for another backend.
    let usual = Tuning { nvls: true, max_channels: 32, pcie_peers: false };
    let Tuning { nvls, max_channels, pcie_peers } = tuning.unwrap_or(usual);
    let known = models.first().and_then(|model| table::find(model.as_deref()?).ok());
    let memory = devices[0].rates.map_or(0.0, |rates| rates.memory);
    // A device that shares the host's memory may have no memory bandwidth here.
    let host = [table::host_rate(known, memory), table::host_rate(None, memory)].into_iter().find_map(Rate::new);
    let (host, settings) = (host.expect("PCI Express has a rate"), NcclSettings::default());
    algorithms.adapt(Surroundings {
        per_server,
        inside,
        // Ranks of one host use its local link.
        shares_link: per_server > 1 && devices[0].host == devices[1].host,
        generation: known.and_then(KnownDevice::generation),
        between,
        cards: nics,
        nvls,
        max_channels,
        pcie_peers,
        host,
        settings,
    });
}

/// The number of NICs that the ranks on the hosts `inside` of one server share: the links by which routes to `outside`
/// leave the routes between the server's own hosts. With one server, the number of its hosts.
fn nics_of_server(topology: &Topology, inside: &[HostId], outside: &[HostId]) -> u32 {
    let Some(last) = outside.len().checked_sub(1) else {
        return inside.iter().collect::<BTreeSet<_>>().len() as u32;
    };
    let first = inside[0];
    let pairs = inside.iter().zip(&inside[1..]).chain(inside.iter().map(|host| (host, &first)));
    let within: BTreeSet<LinkId> = pairs
        .flat_map(|(a, b)| [topology.route(*a, *b), topology.route(*b, *a)])
        .flat_map(|route| route.links)
        .collect();
    // The first link outside the server on the route of a host to its counterpart in the next server.
    let exit = |(at, host): (usize, &HostId)| {
        let route = topology.route(*host, outside[at.min(last)]);
        route.links.into_iter().find(|link| !within.contains(link))
    };
    let exits: BTreeSet<LinkId> = inside.iter().enumerate().filter_map(exit).collect();
    (exits.len() as u32).max(1)
}

/// The complete rules for algorithms.
pub(super) fn canonical_rules(table: &AlgorithmTable) -> BTreeMap<Spanned<String>, Spanned<RawRules>> {
    let rule = |rule: &Rule| RawRule {
        up_to: rule.up_to.map(Size),
        algorithm: Some(here(rule.algorithm.name().to_owned())),
        chunks: None,
        dimensions: None,
        steps: None,
    };
    CollectiveKind::ALL
        .into_iter()
        .map(|kind| (here(kind.name().to_owned()), here(RawRules(table.rules(kind).iter().map(rule).collect()))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ClusterFile;

    /// Servers have four GPUs on one NVSwitch: their NICs are the links that leave the switch or the GPUs.
    #[test]
    fn nics_are_the_links_that_leave_a_server() {
        let nics = |network: &str| {
            let text = format!("[[device]]\nname = \"g\"\ncount = 8\n[network]\n{network}\n");
            let resolved = ClusterFile::parse("c.toml", &text, &[]).unwrap().resolve(&Choices::default()).unwrap();
            let hosts: Vec<HostId> = resolved.cluster.devices.iter().map(|device| device.host).collect();
            let (inside, outside) = hosts.split_at(4);
            nics_of_server(&resolved.cluster.topology, inside, outside)
        };
        let link = |a: String, b: String| format!("{{ between = [\"{a}\", \"{b}\"] }}");
        let graph = |uplink: &dyn Fn(u32) -> String| {
            let inside = |gpu| format!("{{ between = [\"g.{gpu}\", \"nvswitch.{}\"], latency = \"350 ns\" }}", gpu / 4);
            let inside = (0..8).map(inside);
            let mut links: Vec<String> = inside.chain((0..8).map(uplink)).collect();
            links.sort();
            links.dedup();
            format!("per_server = 4\nlinks = [{}]", links.join(", "))
        };
        // Topologies: one NIC per GPU on one leaf; one NIC per GPU on rails; two NICs per server; one NIC on the
        // NVSwitch; and 4:1 uplinks, with one NIC per GPU, too.
        assert_eq!(nics(&graph(&|gpu| link(format!("g.{gpu}"), "leaf".to_owned()))), 4);
        assert_eq!(nics(&graph(&|gpu| link(format!("g.{gpu}"), format!("rail.{}", gpu % 4)))), 4);
        let two = |gpu: u32| link(format!("g.{}", gpu / 2 * 2), "leaf".to_owned());
        assert_eq!(nics(&graph(&two)), 2);
        assert_eq!(nics(&graph(&|gpu| link(format!("nvswitch.{}", gpu / 4), "leaf".to_owned()))), 1);
        let tree = graph(&|gpu| link(format!("g.{gpu}"), format!("leaf.{}", gpu / 4)));
        let spine = link("leaf.0".to_owned(), "leaf.1".to_owned());
        assert_eq!(nics(&tree.replace("links = [", &format!("links = [{spine}, "))), 4);
        assert_eq!(nics("preset = \"rail\"\nper_server = 4\nfabric = \"nvlink4\""), 4);
    }
}
