//! Owns hosts, links and the route between any two hosts. The module does not know the traffic.
//!
//! [`preset`] builds the usual topologies, whose routes have a closed form; [`graph`] accepts any topology and searches
//! for routes. In both cases a route is computed on demand: no table grows with the square of the number of hosts
//! (except the cables of `fully_connected`).
//!
//! Ids depend only on the description: hosts keep their given order, which is the devices' order and part of the
//! description (a ring is one in that order); the switches and links of a graph are numbered in the order of their
//! names.

mod folded;
mod graph;
mod preset;

pub use folded::{Asymmetry, FoldedTopology};
pub use graph::{Duplex, GraphLink};
pub use preset::{Dimension, DimensionKind, Preset, Servers, Spines};

use crate::ids::{HostId, LinkId};
use crate::time::{Bytes, Rate, SimDuration};
use std::fmt;
use std::sync::Arc;

/// A link: one direction of a cable, or a medium that all its users share.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Name, as `orin.0 -> switch`, or `a <-> b` if both directions share it.
    pub name: String,
    /// Raw rate, headers included.
    pub bandwidth: Rate,
    /// Propagation delay.
    pub latency: SimDuration,
    /// Packet headers; `None`: no headers.
    pub overhead: Option<PacketOverhead>,
    /// Size of the queue in front of the link, headers included, up to which senders continue; `None`: no queue, the
    /// link limits senders at once.
    pub queue: Option<Bytes>,
}

/// Every `payload` bytes travel in a packet of `wire` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketOverhead {
    /// Largest payload of a packet; above zero.
    pub payload: u32,
    /// Bytes of a full packet on the link; at least `payload`.
    pub wire: u32,
}

impl Link {
    /// Bandwidth for payload: `bandwidth * payload / wire`.
    pub fn payload_rate(&self) -> Rate {
        let share = self.overhead.map_or(1.0, |packet| f64::from(packet.payload) / f64::from(packet.wire));
        Rate::new(self.bandwidth.bytes_per_second() * share).expect("a packet carries payload")
    }
}

impl PacketOverhead {
    /// Bytes on the link for a message of `bytes`: the message, and the headers of `ceil(bytes / payload)` packets; at
    /// most [`Bytes`].
    pub fn wire_bytes(self, bytes: Bytes) -> Bytes {
        let headers = u128::from(bytes.0.div_ceil(self.payload.into())) * u128::from(self.wire - self.payload);
        bytes + Bytes(headers.try_into().unwrap_or(u64::MAX))
    }

    /// Bytes of payload at [`Link::payload_rate`] that last as long as a message of `bytes`: more than the message if
    /// its last packet is not full, because that packet has a whole header too. Rounded up to a byte.
    pub(crate) fn payload_room(self, bytes: Bytes) -> Bytes {
        let on_wire = u128::from(self.wire_bytes(bytes).0);
        Bytes((on_wire * u128::from(self.payload)).div_ceil(u128::from(self.wire)) as u64)
    }
}

/// Properties of a link, independent of its place in a topology.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// Raw rate, headers included.
    pub bandwidth: Rate,
    /// One-way latency. In a [`Preset`]: between two adjacent hosts.
    pub latency: SimDuration,
    /// Packet headers; `None`: no headers.
    pub overhead: Option<PacketOverhead>,
    /// Queue as in [`Link::queue`], for links from a switch to a host. Other links have no queue: hosts throttle their
    /// own programs.
    pub queue: Option<Bytes>,
}

impl LinkSpec {
    /// A link without headers and queues.
    pub fn new(bandwidth: Rate, latency: SimDuration) -> LinkSpec {
        LinkSpec { bandwidth, latency, overhead: None, queue: None }
    }

    fn named(self, name: String) -> Result<Link, TopologyError> {
        let LinkSpec { bandwidth, latency, overhead, queue } = self;
        match overhead {
            Some(packet) if packet.payload == 0 || packet.wire < packet.payload => {
                Err(TopologyError::Overhead { link: name, packet })
            }
            _ => Ok(Link { name, bandwidth, latency, overhead, queue }),
        }
    }
}

/// Rates of a host's own links, headers included. An access line (ADSL, LTE) or a capped NIC is slower out than in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostRates {
    /// Rate out of the host.
    pub egress: Rate,
    /// Rate into the host.
    pub ingress: Rate,
}

impl HostRates {
    /// The rate `rate` in both directions.
    pub fn both(rate: Rate) -> HostRates {
        HostRates { egress: rate, ingress: rate }
    }

    /// The rate of both directions, if it is the same.
    pub fn single(self) -> Option<Rate> {
        (self.egress == self.ingress).then_some(self.egress)
    }
}

/// One dimension along which hosts, or the ranks on them, are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridDimension {
    /// Number of hosts or ranks along the dimension; at least 1.
    pub size: u32,
    /// Whether each pair of hosts or ranks along the dimension has a link of its own.
    pub meshed: bool,
}

/// A host, and its differences from the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostSpec {
    /// The host's name: `orin.0`.
    pub name: String,
    /// Bandwidths of the host's own links in a [`Preset`].
    pub bandwidth: Option<HostRates>,
    /// Latency as in [`LinkSpec::latency`]: a link gets half of it from the host on either end.
    pub latency: Option<SimDuration>,
    /// The receive queue, as in [`LinkSpec::queue`].
    pub queue: Option<Bytes>,
    /// Link between ranks on this host; `None`: their messages last no time.
    pub local: Option<LinkSpec>,
}

impl HostSpec {
    /// A host like the others.
    pub fn new(name: impl Into<String>) -> HostSpec {
        HostSpec { name: name.into(), ..HostSpec::default() }
    }
}

/// The route from one host to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Links in order; a message occupies all of them at once. No link occurs twice.
    pub links: Vec<LinkId>,
    /// Sum of the links' latencies.
    pub latency: SimDuration,
}

/// Hosts, links, and the route between any two hosts. Cheap to clone.
#[derive(Clone)]
pub struct Topology(Arc<Layout>);

struct Layout {
    hosts: Vec<String>,
    links: Vec<Link>,
    /// Number of links that join hosts; they come first, and the others are local.
    shared: u32,
    /// The local link of each host.
    local: Vec<Option<LinkId>>,
    routing: Routing,
}

enum Routing {
    Preset(preset::Shape),
    Graph(graph::Graph),
}

impl Topology {
    /// One of the usual topologies, made of links like `link`. Ports are full duplex unless the preset says otherwise.
    ///
    /// # Errors
    /// If host names repeat, a parameter does not fit the number of hosts, or a packet has no room for payload.
    pub fn preset(preset: &Preset, hosts: &[HostSpec], link: LinkSpec) -> Result<Topology, TopologyError> {
        check_names(hosts)?;
        let (links, shape) = preset::lay_out(preset, hosts, link)?;
        Topology::new(hosts, links, Routing::Preset(shape))
    }

    /// `hosts` joined by `links`; names in links that are not hosts are switches. A route has the fewest links, among
    /// those the lowest latency, among those the lowest link id at each step. The hosts' own bandwidths and latencies
    /// are ignored.
    ///
    /// # Errors
    /// If names or links repeat, a link is malformed, or two hosts have no route.
    pub fn graph(hosts: &[HostSpec], links: &[GraphLink]) -> Result<Topology, TopologyError> {
        Topology::graph_of_servers(hosts, links, 1)
    }

    /// Like [`Topology::graph`], with every `per_server` consecutive hosts as the GPUs of one server, as in a
    /// [`Preset::Rail`].
    ///
    /// # Errors
    /// The errors of [`Topology::graph`], and an error if the hosts do not form a whole number of servers.
    pub fn graph_of_servers(
        hosts: &[HostSpec],
        links: &[GraphLink],
        per_server: u32,
    ) -> Result<Topology, TopologyError> {
        check_names(hosts)?;
        let (links, graph) = graph::lay_out(hosts, links, per_server)?;
        Topology::new(hosts, links, Routing::Graph(graph))
    }

    fn new(hosts: &[HostSpec], mut links: Vec<Link>, routing: Routing) -> Result<Topology, TopologyError> {
        let shared = links.len() as u32;
        let mut local = Vec::with_capacity(hosts.len());
        for host in hosts {
            local.push(host.local.map(|_| LinkId::from(links.len())));
            if let Some(spec) = host.local {
                links.push(spec.named(format!("{0} <-> {0}", host.name))?);
            }
        }
        let hosts = hosts.iter().map(|host| host.name.clone()).collect();
        Ok(Topology(Arc::new(Layout { hosts, links, shared, local, routing })))
    }

    /// The hosts' names, by [`HostId`].
    pub fn hosts(&self) -> &[String] {
        &self.0.hosts
    }

    /// The host of this name.
    pub fn host(&self, name: &str) -> Option<HostId> {
        self.0.hosts.iter().position(|host| host == name).map(HostId::from)
    }

    /// All links, by [`LinkId`].
    pub fn links(&self) -> &[Link] {
        &self.0.links
    }

    /// The link with this id.
    pub fn link(&self, id: LinkId) -> &Link {
        &self.0.links[id.index()]
    }

    /// The route from one host to another. From a host to itself it is the host's local link, or no link at all.
    pub fn route(&self, from: HostId, to: HostId) -> Route {
        let mut links = Vec::new();
        if from == to {
            links.extend(self.0.local[from.index()]);
        } else {
            match &self.0.routing {
                Routing::Preset(shape) => shape.route(from, to, &mut links),
                Routing::Graph(graph) => graph.route(from, to, &mut links),
            }
        }
        let latency = links.iter().map(|id| self.link(*id).latency).sum();
        Route { links, latency }
    }

    /// Server of a host. Hosts share a server if the preset or the graph declares servers; any other host is a server of
    /// its own.
    pub fn server(&self, host: HostId) -> u32 {
        match &self.0.routing {
            Routing::Preset(shape) => shape.server(host),
            Routing::Graph(graph) => host.0 / graph.per_server,
        }
    }

    /// The dimensions along which hosts are numbered, the first one first; networks without dimensions have one.
    pub fn dimensions(&self) -> Vec<GridDimension> {
        let hosts = self.0.hosts.len() as u32;
        match &self.0.routing {
            Routing::Preset(shape) => shape.dimensions(hosts),
            Routing::Graph(graph) => {
                let sizes = [graph.per_server, hosts / graph.per_server].into_iter().filter(|size| *size > 1);
                let grid: Vec<GridDimension> = sizes.map(|size| GridDimension { size, meshed: false }).collect();
                if grid.is_empty() { vec![GridDimension { size: hosts, meshed: false }] } else { grid }
            }
        }
    }

    /// Packet headers on the first link of `route` that has them, where a message enters the network. `None`: no
    /// headers.
    pub fn overhead(&self, route: &Route) -> Option<PacketOverhead> {
        route.links.iter().find_map(|id| self.link(*id).overhead)
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Topology({} hosts, {} links)", self.0.hosts.len(), self.0.links.len())
    }
}

fn check_names(hosts: &[HostSpec]) -> Result<(), TopologyError> {
    let mut names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        _ if names.is_empty() => Err(TopologyError::NoHosts),
        Some(pair) => Err(TopologyError::DuplicateHost { name: pair[0].to_owned() }),
        None => Ok(()),
    }
}

/// Checks that the hosts form a whole number of servers.
fn check_servers(preset: &'static str, hosts: u32, per_server: u32) -> Result<(), TopologyError> {
    if per_server > 0 && hosts.is_multiple_of(per_server) {
        return Ok(());
    }
    let problem = format!("{hosts} GPUs cannot be divided into servers of {per_server}");
    let hint = "use a number of GPUs that is a multiple of `per_server`";
    Err(TopologyError::Shape { preset, key: "per_server", problem, hint })
}

/// Fault of the description of a network.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TopologyError {
    /// The network has no hosts.
    #[error("a network needs at least one host\nhint: give the cluster a [[device]]")]
    NoHosts,
    /// Two hosts have one name.
    #[error("duplicate host name `{name}`\nhint: give every host a unique name")]
    DuplicateHost {
        /// The name that both hosts have.
        name: String,
    },
    /// Two links join the same nodes.
    #[error(
        "duplicate link `{name}`\nhint: use one link with the sum of the bandwidths, or add a switch to one of them"
    )]
    DuplicateLink {
        /// The name that both links have.
        name: String,
    },
    /// A link with one end, or with the same node twice.
    #[error("link `{name}` must connect different nodes\nhint: give two or more different names in `between`")]
    LinkEnds {
        /// The link's name.
        name: String,
    },
    /// A full-duplex link with more than two ends.
    #[error(
        "link `{name}` has more than two ends and cannot be full duplex\nhint: use `duplex = \"half\"` for a medium that several nodes share"
    )]
    FullDuplexMedium {
        /// The link's name.
        name: String,
    },
    /// A name on a single link that is not a host.
    #[error("`{name}` is not a host, and a switch needs at least two links\nhint: the hosts are: {hosts}")]
    UnknownNode {
        /// The unknown name.
        name: String,
        /// Some names of hosts, as suggestions.
        hosts: String,
    },
    /// Two hosts that no links connect.
    #[error("no route from `{from}` to `{to}`\nhint: connect every host to every other host by links and switches")]
    NoRoute {
        /// The host at one end of the missing route.
        from: String,
        /// The host at the link's other end.
        to: String,
    },
    /// Packets without payload, or with more payload than their size.
    #[error("link `{link}`: a packet of {} bytes cannot carry {} bytes of payload\nhint: Ethernet with TCP carries 1448 bytes of payload per packet of 1514 bytes", packet.wire, packet.payload)]
    Overhead {
        /// The link's name.
        link: String,
        /// The packet sizes that were given.
        packet: PacketOverhead,
    },
    /// A queue in front of a link that does not lead from a switch to a host.
    #[error(
        "link `{link}` cannot have a queue: it must be a full-duplex link between one host and a switch\nhint: remove `queue`; only the port from a switch to a host is modelled with a queue"
    )]
    Queue {
        /// The link's name.
        link: String,
    },
    /// A preset's parameters do not fit.
    #[error("{preset}: {problem}\nhint: {hint}")]
    Shape {
        /// The preset's name.
        preset: &'static str,
        /// The key of a cluster file at fault.
        key: &'static str,
        /// The misfit.
        problem: String,
        /// Advice to the user.
        hint: &'static str,
    },
}

#[cfg(test)]
mod tests;
