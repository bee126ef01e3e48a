//! Owns the network of a cluster file: the keys of each preset, exceptions by host, and the links of an explicit graph.

use super::devices::Host;
use super::flags::here;
use super::rates::RawRates;
use super::raw::{RawDimension, RawDimensionKind, RawDuplex, RawHost, RawLink, RawLinkSpec, RawNetwork};
use super::source::{Source, split_hint};
use super::{DEFAULT_BANDWIDTH, DEFAULT_LATENCY};
use crate::diagnostic::{Diagnostic, suggest};
use crate::units::{Bandwidth, Duration};
use std::ops::Range;
use toml::Spanned;
use uniference_sim::network::{
    Dimension, DimensionKind, Duplex, GraphLink, HostRates, HostSpec, LinkSpec, PacketOverhead, Preset, Servers,
    Spines, Topology, TopologyError,
};

/// Default rate and latency between ranks of one host: about those of TCP over Linux' loopback interface.
const DEFAULT_LOCAL: (&str, &str) = ("40 Gbps", "10 us");

/// The presets, with the keys that only they have.
const PRESETS: [(&str, &[&str]); 10] = [
    ("switch", &["queue"]),
    ("star", &["backplane", "queue"]),
    ("ring", &[]),
    ("fully_connected", &[]),
    ("wifi", &[]),
    ("torus", &["dims"]),
    ("fat_tree", &["hosts_per_leaf", "spines", "oversubscription", "queue"]),
    ("rail", &["per_server", "fabric", "queue"]),
    (
        "server",
        &["per_server", "fabric", "pcie", "nics", "rails", "servers_per_leaf", "spines", "oversubscription", "queue"],
    ),
    ("dimensions", &["dimensions"]),
];

/// The topology, and the network with defaults.
pub(super) fn resolve(
    raw: Option<&Spanned<RawNetwork>>,
    hosts: &[Host],
    packet: Option<PacketOverhead>,
    source: &Source,
) -> Result<(Topology, Spanned<RawNetwork>), Diagnostic> {
    let Some(network) = raw else {
        let hint = "add a [network], for example with preset = \"switch\"";
        return Err(source.error("the cluster has no [network]", 0..0).hint(hint));
    };
    let filled = here(with_defaults(network.get_ref(), hosts));
    let reader = Reader { raw: filled.get_ref(), span: network.span(), hosts, packet, source };
    let specs = reader.hosts()?;
    let topology = match &reader.raw.links {
        Some(links) => reader.graph(links, &specs)?,
        None => reader.preset(&specs)?,
    };
    Ok((topology, filled))
}

/// The bandwidth and the latency of the network's links for display, as the file spells them: one value, or the least
/// and the greatest value if links differ. `hosts` is the number of hosts.
pub(super) fn headline(raw: &RawNetwork, hosts: usize) -> (Option<String>, Option<String>) {
    let usual = (raw.bandwidth.as_ref().map(|rates| *rates.get_ref()), raw.latency);
    let own = |rates: Option<RawRates>, time: Option<Duration>| {
        let rates = rates.map_or(usual.0, |rates| Some(usual.0.map_or(rates, |usual| rates.or(usual))));
        (rates, time.or(usual.1))
    };
    let given = |rates: &Option<Spanned<RawRates>>| rates.as_ref().map(|rates| *rates.get_ref());
    let of_link = |link: &Spanned<RawLink>| own(given(&link.get_ref().bandwidth), link.get_ref().latency);
    let of_dimension = |dimension: &RawDimension| own(dimension.bandwidth.map(RawRates::both), dimension.latency);
    let of_host = |host: &RawHost| own(given(&host.bandwidth), host.latency.as_ref().map(|time| *time.get_ref()));
    let all: Vec<(Option<RawRates>, Option<Duration>)> = match (&raw.links, &raw.dimensions) {
        (Some(links), _) => links.get_ref().iter().map(of_link).collect(),
        (None, Some(dimensions)) => dimensions.get_ref().iter().map(of_dimension).collect(),
        (None, None) => raw.host.values().map(of_host).chain((raw.host.len() < hosts).then_some(usual)).collect(),
    };
    let bandwidth = if all.windows(2).all(|links| links[0].0 == links[1].0) {
        all.first().and_then(|(rates, _)| Some(rates.as_ref()?.to_string()))
    } else {
        let rates = all.iter().filter_map(|(rates, _)| *rates);
        let rates: Vec<Bandwidth> = rates.flat_map(|rates| [rates.egress(), rates.ingress()]).flatten().collect();
        let least = rates.iter().copied().reduce(|a, b| if b.0 < a.0 { b } else { a });
        range(least, rates.iter().copied().reduce(|a, b| if b.0 > a.0 { b } else { a }))
    };
    let times = || all.iter().filter_map(|(_, time)| *time);
    (bandwidth, range(times().min(), times().max()))
}

/// The network's values that the file leaves to defaults, for people.
pub(super) fn assumed(raw: Option<&RawNetwork>, hosts: &[Host]) -> Vec<String> {
    let Some(network) = raw else { return Vec::new() };
    let links = network.links.as_ref().map(|links| links.get_ref().as_slice()).unwrap_or_default();
    let dimensions = network.dimensions.as_ref().map(|dimensions| dimensions.get_ref().as_slice()).unwrap_or_default();
    let is_servers =
        network.preset.as_ref().is_some_and(|preset| matches!(preset.get_ref().as_str(), "server" | "rail"));
    let per_server = network.per_server.as_ref().map_or(0, |gpus| *gpus.get_ref() as usize);
    let has_network = if is_servers { hosts.len() > per_server } else { hosts.len() > 1 };
    // Links and dimensions may give all values themselves.
    let is_used = |rate: bool| {
        let of_links = links.iter().map(Spanned::get_ref);
        let given = of_links.map(|link| if rate { link.bandwidth.is_some() } else { link.latency.is_some() });
        let of_dimensions = dimensions.iter().map(|dimension| match rate {
            true => dimension.bandwidth.is_some(),
            false => dimension.latency.is_some(),
        });
        let given: Vec<bool> = given.chain(of_dimensions).collect();
        has_network && network.link.is_none() && (given.is_empty() || given.contains(&false))
    };
    let mut assumed = Vec::new();
    if network.preset.is_none() && network.links.is_none() {
        assumed.push("network.preset = \"switch\"".to_owned());
    }
    if network.bandwidth.is_none() && is_used(true) {
        assumed.push(format!("network.bandwidth = \"{DEFAULT_BANDWIDTH}\""));
    }
    if network.latency.is_none() && is_used(false) {
        assumed.push(format!("network.latency = \"{DEFAULT_LATENCY}\""));
    }
    if network.local.is_none() && hosts.iter().any(|host| host.devices > 1) {
        let (rate, time) = DEFAULT_LOCAL;
        assumed.push(format!(
            "network.local = {{ bandwidth = \"{rate}\", latency = \"{time}\" }}, shared by a host's devices"
        ));
    }
    if is_servers && has_network && network.servers_per_leaf.is_none() {
        assumed.push(
            "all servers are on one switch per rail, which does not limit them (no `servers_per_leaf`)".to_owned(),
        );
    }
    assumed
}

fn range<T: PartialEq + std::fmt::Display>(least: Option<T>, greatest: Option<T>) -> Option<String> {
    let (least, greatest) = least.zip(greatest)?;
    Some(if least == greatest { least.to_string() } else { format!("{least} to {greatest}") })
}

fn with_defaults(raw: &RawNetwork, hosts: &[Host]) -> RawNetwork {
    let mut filled = raw.clone();
    let link = filled.link.take();
    let usual = RawRates::both(link.map_or_else(|| bandwidth(DEFAULT_BANDWIDTH), |link| link.bandwidth));
    filled.bandwidth = Some(match filled.bandwidth {
        Some(given) => Spanned::new(given.span(), given.get_ref().or(usual)),
        None => here(usual),
    });
    filled.latency.get_or_insert_with(|| link.map_or_else(|| latency(DEFAULT_LATENCY), |link| link.latency));
    if filled.preset.is_none() && filled.links.is_none() {
        filled.preset = Some(here("switch".to_owned()));
    }
    if filled.local.is_none() && hosts.iter().any(|host| host.devices > 1) {
        let (rate, time) = DEFAULT_LOCAL;
        filled.local = Some(RawLinkSpec { bandwidth: bandwidth(rate), latency: latency(time) });
    }
    filled
}

fn bandwidth(text: &str) -> Bandwidth {
    text.parse().expect("a default is a bandwidth")
}

fn latency(text: &str) -> Duration {
    text.parse().expect("a default is a time")
}

/// A network with defaults.
struct Reader<'a> {
    raw: &'a RawNetwork,
    span: Range<usize>,
    hosts: &'a [Host],
    packet: Option<PacketOverhead>,
    source: &'a Source,
}

impl Reader<'_> {
    fn error(&self, message: impl Into<String>, span: Range<usize>) -> Diagnostic {
        self.source.error(message, span)
    }

    /// The rates of the links of a host that is no exception.
    fn rates(&self) -> RawRates {
        *self.raw.bandwidth.as_ref().expect("defaults are filled in").get_ref()
    }

    /// A link with the backend's headers. A link that belongs to no host has the higher of two rates.
    fn link(&self, bandwidth: Option<Bandwidth>, latency: Option<Duration>) -> LinkSpec {
        let HostRates { egress, ingress } = bandwidth.map_or(self.rates(), RawRates::both).resolved();
        let latency = latency.or(self.raw.latency).expect("defaults are filled in");
        let bandwidth = if egress < ingress { ingress } else { egress };
        LinkSpec { bandwidth, latency: latency.0, overhead: self.packet, queue: None }
    }

    /// The hosts with their exceptions. Hosts with one device have no local link unless they name one.
    fn hosts(&self) -> Result<Vec<HostSpec>, Diagnostic> {
        for (name, exception) in &self.raw.host {
            self.check_exception(name, exception)?;
        }
        Ok(self.hosts.iter().map(|host| self.host(host)).collect())
    }

    fn host(&self, host: &Host) -> HostSpec {
        let exception =
            self.raw.host.iter().find(|(name, _)| *name.get_ref() == host.name).map(|(_, exception)| exception);
        let shared = self.raw.local.filter(|_| host.devices > 1);
        let rates = self.rates();
        let own = exception.and_then(|host| Some(host.bandwidth.as_ref()?.get_ref().or(rates)));
        HostSpec {
            name: host.name.clone(),
            bandwidth: own.or(Some(rates).filter(|rates| rates.single().is_none())).map(RawRates::resolved),
            latency: exception.and_then(|host| Some(host.latency.as_ref()?.get_ref().0)),
            queue: exception.and_then(|host| Some(host.queue.as_ref()?.get_ref().0)),
            local: exception
                .and_then(|host| host.local)
                .or(shared)
                .map(|spec| LinkSpec::new(spec.bandwidth.0, spec.latency.0)),
        }
    }

    fn check_exception(&self, name: &Spanned<String>, exception: &RawHost) -> Result<(), Diagnostic> {
        if !self.is_host(name.get_ref()) {
            let message = format!("unknown host `{}`", name.get_ref());
            return Err(self.error(message, name.span()).hint(self.suggest_host(name.get_ref())));
        }
        let RawHost { bandwidth, latency, queue, .. } = exception;
        let own = place(bandwidth).or_else(|| place(latency)).or_else(|| place(queue));
        match own.filter(|_| self.raw.links.is_some()) {
            Some(span) => {
                let hint = "give bandwidth, latency and queue with the host's link in `links`";
                Err(self.error("per-host settings cannot be combined with `links`", span).hint(hint))
            }
            None => Ok(()),
        }
    }

    fn suggest_host(&self, word: &str) -> String {
        suggest(word, "hosts", self.hosts.iter().map(|host| host.name.as_str()))
    }

    fn preset(&self, hosts: &[HostSpec]) -> Result<Topology, Diagnostic> {
        let name = self.raw.preset.as_ref().expect("defaults are filled in");
        let Some((preset, keys)) = PRESETS.iter().find(|(preset, _)| preset == name.get_ref()) else {
            let hint = suggest(name.get_ref(), "presets", PRESETS.map(|(preset, _)| preset));
            return Err(self.error(format!("unknown preset `{}`", name.get_ref()), name.span()).hint(hint));
        };
        if let Some((key, span)) = self.own_keys().into_iter().find(|(key, _)| !keys.contains(key)) {
            let owners = PRESETS.iter().filter(|(_, keys)| keys.contains(&key));
            let owners: Vec<String> = owners.map(|(owner, _)| format!("`{owner}`")).collect();
            let graphs = if key == "per_server" { " and of networks with `links`" } else { "" };
            let message = format!("the preset `{preset}` has no key `{key}`");
            return Err(self.error(message, span).hint(format!("it is a key of {}{graphs}", owners.join(", "))));
        }
        if matches!(*preset, "wifi" | "dimensions") {
            self.refuse_directions(preset)?;
        }
        let shape = self.shape(preset)?;
        let queue = self.raw.queue.as_ref().map(|size| size.get_ref().0);
        let link = LinkSpec { queue, ..self.link(None, None) };
        Topology::preset(&shape, hosts, link).map_err(|error| self.topology_error(&error))
    }

    /// Refuses different rates out and in for presets whose links belong to several hosts, or carry both directions.
    fn refuse_directions(&self, preset: &str) -> Result<(), Diagnostic> {
        let exceptions = self.raw.host.values().filter_map(|host| host.bandwidth.as_ref());
        let given = self.raw.bandwidth.iter().chain(exceptions);
        match given.into_iter().find(|rates| rates.get_ref().single().is_none()) {
            Some(rates) => {
                let message =
                    format!("the preset `{preset}` does not support separate `egress` and `ingress` bandwidths");
                Err(self
                    .error(message, rates.span())
                    .hint("give one bandwidth, use another preset, or list the `links`"))
            }
            None => Ok(()),
        }
    }

    /// The keys in the file that not every preset has.
    fn own_keys(&self) -> Vec<(&'static str, Range<usize>)> {
        let RawNetwork { backplane, dims, dimensions, .. } = self.raw;
        let RawNetwork { hosts_per_leaf, spines, oversubscription, per_server, fabric, queue, .. } = self.raw;
        let RawNetwork { pcie, nics, rails, servers_per_leaf, .. } = self.raw;
        let keys = [
            ("backplane", place(backplane)),
            ("dims", place(dims)),
            ("dimensions", place(dimensions)),
            ("hosts_per_leaf", place(hosts_per_leaf)),
            ("spines", place(spines)),
            ("oversubscription", place(oversubscription)),
            ("per_server", place(per_server)),
            ("fabric", place(fabric)),
            ("pcie", place(pcie)),
            ("nics", place(nics)),
            ("rails", place(rails)),
            ("servers_per_leaf", place(servers_per_leaf)),
            ("queue", place(queue)),
        ];
        let of_hosts = self.raw.host.values().map(|host| ("queue", place(&host.queue)));
        keys.into_iter().chain(of_hosts).filter_map(|(key, span)| Some((key, span?))).collect()
    }

    fn shape(&self, preset: &str) -> Result<Preset, Diagnostic> {
        Ok(match preset {
            "star" => Preset::Star { backplane: self.raw.backplane.as_ref().map(|rate| rate.get_ref().0) },
            "ring" => Preset::Ring,
            "fully_connected" => Preset::FullyConnected,
            "wifi" => Preset::Wifi,
            "torus" => Preset::Torus { dims: self.required(&self.raw.dims, "dims = [4, 4]")?.clone() },
            "fat_tree" => Preset::FatTree {
                hosts_per_leaf: *self.required(&self.raw.hosts_per_leaf, "hosts_per_leaf = 16")?,
                spines: *self.required(&self.raw.spines, "spines = 4")?,
                oversubscription: self.raw.oversubscription.as_ref().map_or(1.0, |factor| *factor.get_ref()),
            },
            "rail" => {
                let example = "fabric = { bandwidth = \"3600 Gbps\", latency = \"1 us\" }";
                let fabric = self.required(&self.raw.fabric, example)?;
                Preset::Rail {
                    per_server: *self.required(&self.raw.per_server, "per_server = 8")?,
                    fabric: LinkSpec::new(fabric.bandwidth.0, fabric.latency.0),
                }
            }
            "server" => Preset::Servers(self.servers()?),
            "dimensions" => {
                let example = "dimensions = [{ kind = \"ring\", size = 4 }, { kind = \"switch\", size = 8 }]";
                let dimensions = self.required(&self.raw.dimensions, example)?;
                let dimension = |raw: &RawDimension| {
                    let kind = match raw.kind {
                        RawDimensionKind::Ring => DimensionKind::Ring,
                        RawDimensionKind::FullyConnected => DimensionKind::FullyConnected,
                        RawDimensionKind::Switch => DimensionKind::Switch,
                    };
                    Dimension { kind, size: raw.size, link: self.link(raw.bandwidth, raw.latency) }
                };
                Preset::Dimensions(dimensions.iter().map(dimension).collect())
            }
            _ => Preset::Switch,
        })
    }

    /// The keys of the preset `server`. Each GPU is a host of the network.
    fn servers(&self) -> Result<Servers, Diagnostic> {
        let RawNetwork { fabric, pcie, nics, rails, servers_per_leaf, spines, oversubscription, .. } = self.raw;
        let per_server = *self.required(&self.raw.per_server, "per_server = 8")?;
        let preset = self.raw.preset.as_ref().map_or(self.span.clone(), Spanned::span);
        if let Some(host) = self.hosts.iter().find(|host| host.devices > 1) {
            let message =
                format!("the preset `server` makes servers of single GPUs, but `{}` is a host of several", host.name);
            let hint = "remove `host` and `per_host` from [[device]]: `per_server` says how many GPUs form a server";
            return Err(self.error(message, preset).hint(hint));
        }
        if fabric.is_none() && pcie.is_none() {
            let hint = "add fabric = \"nvlink4\", or for GPUs without NVLink pcie = \"pcie5_x16\"";
            return Err(self.error("the preset `server` needs `fabric`, `pcie` or both", preset).hint(hint));
        }
        let link = |given: &Option<Spanned<RawLinkSpec>>| {
            given.as_ref().map(|link| LinkSpec::new(link.get_ref().bandwidth.0, link.get_ref().latency.0))
        };
        let number =
            |given: &Option<Spanned<u32>>, usual: u32| given.as_ref().map_or(usual, |number| *number.get_ref());
        let nics = number(nics, per_server);
        let exceptions = self
            .raw
            .host
            .iter()
            .find(|(_, host)| host.bandwidth.is_some() || host.latency.is_some() || host.queue.is_some());
        if let (true, Some((name, _))) = (nics != per_server, exceptions) {
            let hint = "remove it, give every GPU a NIC (without `nics`), or list the `links`";
            let message =
                format!("`{}` shares its NIC with other GPUs and has no bandwidth of its own", name.get_ref());
            return Err(self.error(message, name.span()).hint(hint));
        }
        let spines = match (servers_per_leaf, place(spines).or_else(|| place(oversubscription))) {
            (Some(servers), _) => Some(Spines {
                servers_per_leaf: *servers.get_ref(),
                count: *self.required(spines, "spines = 4")?,
                oversubscription: oversubscription.as_ref().map_or(1.0, |factor| *factor.get_ref()),
            }),
            (None, Some(span)) => {
                let hint = "add servers_per_leaf = 4, the number of servers on a leaf switch, or remove it";
                return Err(self.error("spines and oversubscription need `servers_per_leaf`", span).hint(hint));
            }
            (None, None) => None,
        };
        // By default, every NIC of a server has a rail of its own.
        let rails = number(rails, nics);
        Ok(Servers { per_server, nics, rails, fabric: link(fabric), pcie: link(pcie), spines })
    }

    fn required<'a, T>(&self, value: &'a Option<Spanned<T>>, example: &str) -> Result<&'a T, Diagnostic> {
        let preset = self.raw.preset.as_ref().expect("defaults are filled in");
        let key = example.split(' ').next().unwrap_or_default();
        value.as_ref().map(Spanned::get_ref).ok_or_else(|| {
            let message = format!("the preset `{}` needs `{key}`", preset.get_ref());
            self.error(message, preset.span()).hint(format!("add it, for example {example}"))
        })
    }

    fn graph(&self, links: &Spanned<Vec<Spanned<RawLink>>>, hosts: &[HostSpec]) -> Result<Topology, Diagnostic> {
        if let Some(preset) = &self.raw.preset {
            let hint = "remove one of them";
            return Err(self.error("`preset` and `links` are mutually exclusive", preset.span()).hint(hint));
        }
        if let Some((key, span)) = self.own_keys().into_iter().find(|(key, _)| !["queue", "per_server"].contains(key)) {
            let message = format!("`{key}` applies only to presets and cannot be combined with `links`");
            return Err(self.error(message, span).hint("remove it, or use a preset"));
        }
        let graph: Result<Vec<GraphLink>, Diagnostic> =
            links.get_ref().iter().map(|link| self.graph_link(link)).collect();
        let per_server = self.raw.per_server.as_ref().map_or(1, |hosts| *hosts.get_ref());
        Topology::graph_of_servers(hosts, &graph?, per_server).map_err(|error| self.topology_error(&error))
    }

    /// Egress is the rate out of the host if the link joins one host to a switch, else out of the end that is named
    /// first.
    fn graph_link(&self, link: &Spanned<RawLink>) -> Result<GraphLink, Diagnostic> {
        let raw = link.get_ref();
        let rates = raw.bandwidth.as_ref().map_or(self.rates(), |rates| rates.get_ref().or(self.rates()));
        let half = matches!(raw.duplex, Some(RawDuplex::Half));
        if half && rates.single().is_none() {
            let place = raw.bandwidth.as_ref().map_or(link.span(), Spanned::span);
            let hint = "give one bandwidth, or use `duplex = \"full\"`";
            return Err(self.error("a half-duplex link has one bandwidth for both directions", place).hint(hint));
        }
        let is_host = |end: usize| raw.between.get(end).is_some_and(|name| self.is_host(name.get_ref()));
        let HostRates { egress, ingress } = rates.resolved();
        let (there, back) = if is_host(1) && !is_host(0) { (ingress, egress) } else { (egress, ingress) };
        // The network's queue applies to links that can have one; a queue of a link itself is an error for other links.
        let has_queue = raw.between.len() == 2 && !half && is_host(0) != is_host(1);
        let queue = raw.queue.as_ref().or(self.raw.queue.as_ref().filter(|_| has_queue)).map(|size| size.get_ref().0);
        Ok(GraphLink {
            between: raw.between.iter().map(|name| name.get_ref().clone()).collect(),
            spec: LinkSpec { bandwidth: there, queue, ..self.link(None, raw.latency) },
            back: Some(back).filter(|_| !half),
            duplex: if half { Duplex::Half } else { Duplex::Full },
        })
    }

    fn is_host(&self, name: &str) -> bool {
        self.hosts.iter().any(|host| host.name == name)
    }

    fn topology_error(&self, error: &TopologyError) -> Diagnostic {
        let text = error.to_string();
        let (message, hint) = split_hint(&text);
        let diagnostic = self.error(message, self.place_of(error));
        match error {
            TopologyError::UnknownNode { name, .. } => {
                diagnostic.hint(format!("{} (a switch needs at least two links)", self.suggest_host(name)))
            }
            _ => diagnostic.hint(hint.unwrap_or_default()),
        }
    }

    /// The place of the link, or of the preset's key, for an error.
    fn place_of(&self, error: &TopologyError) -> Range<usize> {
        let links = self.raw.links.iter().flat_map(Spanned::get_ref);
        let link_named =
            |wanted: &str| links.clone().rfind(|link| name_of(link.get_ref()) == wanted).map(Spanned::span);
        let place = match error {
            TopologyError::UnknownNode { name, .. } => {
                let mut ends = links.clone().flat_map(|link| &link.get_ref().between);
                ends.find(|end| end.get_ref() == name).map(Spanned::span)
            }
            TopologyError::DuplicateLink { name }
            | TopologyError::LinkEnds { name }
            | TopologyError::FullDuplexMedium { name }
            | TopologyError::Queue { link: name } => link_named(name),
            TopologyError::Shape { key, .. } => {
                let keys = self.own_keys();
                keys.iter().find(|(own, _)| own == key).or(keys.first()).map(|(_, span)| span.clone())
            }
            _ => self.raw.links.as_ref().map(Spanned::span),
        };
        place.unwrap_or_else(|| self.span.clone())
    }
}

fn place<T>(value: &Option<Spanned<T>>) -> Option<Range<usize>> {
    value.as_ref().map(Spanned::span)
}

/// The name of a link in the simulator: its ends by name.
fn name_of(link: &RawLink) -> String {
    let mut ends: Vec<&str> = link.between.iter().map(|end| end.get_ref().as_str()).collect();
    ends.sort_unstable();
    ends.join(" <-> ")
}

#[cfg(test)]
mod tests {
    use super::super::{Choices, ClusterFile};

    const DEVICES: &str = "name = \"c\"\n[[device]]\nname = \"gpu\"\ncount = 4\n[network]\n";

    fn links(more: &str) -> String {
        let link = |gpu: u32, rate: &str| format!("{{ between = [\"gpu.{gpu}\", \"sw\"]{rate} }}");
        let own = ", bandwidth = \"400 Gbps\", latency = \"2 us\"";
        let all = [link(0, own), link(1, own), link(2, ", bandwidth = \"25 Gbps\", latency = \"2 us\""), link(3, more)];
        format!("{DEVICES}links = [{}]\n", all.join(", "))
    }

    /// The headline of a report shows the values that links have, and not a default that every link overrides.
    #[test]
    fn a_headline_says_what_links_carry() {
        let headline = |text: &str| {
            let resolved = ClusterFile::parse("c.toml", text, &[]).unwrap().resolve(&Choices::default()).unwrap();
            ClusterFile::parse("manifest", &resolved.toml, &[]).unwrap().summary()
        };
        let own = ", bandwidth = \"100 Gbps\", latency = \"3 us\"";
        assert_eq!(headline(&links(own)), "c (4 links, 25 Gbps to 50 GB/s, 2 us to 3 us, gloo)");
        // The last link uses the network's defaults.
        assert_eq!(headline(&links("")), "c (4 links, 10 Gbps to 50 GB/s, 2 us to 10 us, gloo)");
        let usual = format!("{}bandwidth = \"1 Gbps\"\nlatency = \"2 us\"\n", links(""));
        assert_eq!(headline(&usual), "c (4 links, 1 Gbps to 50 GB/s, 2 us, gloo)");
        let grid = "preset = \"dimensions\"\ndimensions = [{ kind = \"ring\", size = 2, bandwidth = \"200 GB/s\", latency = \"50 ns\" }, \
                    { kind = \"switch\", size = 2, bandwidth = \"400 Gbps\", latency = \"2 us\" }]\n";
        assert_eq!(headline(&format!("{DEVICES}{grid}")), "c (dimensions, 50 GB/s to 1.6 Tbps, 50 ns to 2 us, gloo)");
        assert_eq!(headline(&format!("{DEVICES}bandwidth = \"25 Gbps\"\n")), "c (switch, 25 Gbps, 10 us, gloo)");
        let host = |gpu: u32| format!("[network.host.\"gpu.{gpu}\"]\nbandwidth = \"1 Gbps\"\nlatency = \"20 us\"\n");
        assert_eq!(headline(&format!("{DEVICES}{}", host(0))), "c (switch, 1 Gbps to 10 Gbps, 10 us to 20 us, gloo)");
        let all: String = (0..4).map(host).collect();
        assert_eq!(headline(&format!("{DEVICES}{all}")), "c (switch, 1 Gbps, 20 us, gloo)");
        let directions = "bandwidth = { egress = \"1 Gbps\", ingress = \"2 Gbps\" }\n";
        let directions = headline(&format!("{DEVICES}{directions}"));
        assert_eq!(directions, "c (switch, 1 Gbps out and 2 Gbps in, 10 us, gloo)");
    }

    #[test]
    fn links_may_say_which_hosts_are_one_server() {
        let file = |more: &str| ClusterFile::parse("c.toml", &format!("{}{more}\n", links("")), &[]).unwrap();
        let resolve = |more: &str| file(more).resolve(&Choices::default());
        let [silent, servers] = ["", "per_server = 2"].map(|more| resolve(more).unwrap());
        let of = |resolved: &super::super::Resolved| {
            let topology = &resolved.cluster.topology;
            resolved.cluster.devices.iter().map(|device| topology.server(device.host)).collect::<Vec<u32>>()
        };
        assert_eq!((of(&silent), silent.lacks_servers), (vec![0, 1, 2, 3], true));
        assert_eq!((of(&servers), servers.lacks_servers), (vec![0, 0, 1, 1], false));
        let again = ClusterFile::parse("c.toml", &servers.toml, &[]).unwrap().resolve(&Choices::default()).unwrap();
        assert_eq!((of(&again), again.toml), (of(&servers), servers.toml));
        let refused = resolve("per_server = 3").err().unwrap().to_string();
        assert!(refused.contains("4 GPUs cannot be divided into servers of 3"), "{refused}");
        let preset = ClusterFile::parse("c.toml", &format!("{DEVICES}per_server = 2\n"), &[]).unwrap();
        let preset = preset.resolve(&Choices::default()).err().unwrap().to_string();
        assert!(preset.contains("it is a key of `rail`, `server` and of networks with `links`"), "{preset}");
    }
}
