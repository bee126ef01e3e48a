//! Owns the usual topologies: their links, and their routes in closed form.
//!
//! Each host contributes its end of a link: its bandwidths, and half of its latency (the odd picosecond goes to the
//! receiving end). A cable between two hosts has the sum of their halves, and the smaller rate of the sender's egress
//! and the receiver's ingress.

use super::{GridDimension, HostRates, HostSpec, Link, LinkSpec, TopologyError, check_servers};
use crate::ids::{HostId, LinkId};
use crate::time::{Bytes, Rate, SimDuration};

/// The usual topologies.
#[derive(Clone, Debug, PartialEq)]
pub enum Preset {
    /// Each host has a full-duplex port of an ideal switch.
    Switch,
    /// A switch whose backplane carries at most `backplane`, all traffic together; by default the bandwidth of one
    /// link, as in a hub.
    Star {
        /// Raw rate, headers included.
        backplane: Option<Rate>,
    },
    /// Each host has a full-duplex cable to the next, and the last to the first. Routes use the shorter way, if equal
    /// upwards.
    Ring,
    /// Each host has a full-duplex cable to every other.
    FullyConnected,
    /// One radio channel: every message occupies it once, whichever host sends it. The bandwidth is therefore the rate
    /// between two hosts while all others are silent; with an access point between them that is about half of the
    /// radio's rate. A host's own bandwidth bounds the sum of its sent and received traffic.
    Wifi,
    /// A grid whose rows are rings, in any number of dimensions. Hosts are numbered along the first dimension first.
    /// Routes follow one dimension after the other, each the shorter way, if equal upwards.
    Torus {
        /// Hosts in each dimension.
        dims: Vec<u32>,
    },
    /// Two levels of switches. Every link has half of the latency, so that hosts of different leaves are two latencies
    /// apart. A message uses the spine with the number of its receiver modulo `spines` (D-mod-k: Zahavi, "Fat-tree
    /// routing and node ordering providing contention free traffic for MPI global collectives", 2012).
    FatTree {
        /// Hosts on each leaf switch; the last leaf may have fewer.
        hosts_per_leaf: u32,
        /// Spine switches; each leaf has one link to each of them.
        spines: u32,
        /// Total rate of a full leaf's hosts, divided by the rate of its uplinks; 1 is full bisection bandwidth.
        oversubscription: f64,
    },
    /// GPU servers in which every GPU has a NIC on a rail of its own; short for [`Preset::Servers`].
    Rail {
        /// GPUs in a server, which is also the number of rails.
        per_server: u32,
        /// Link between GPUs inside a server.
        fabric: LinkSpec,
    },
    /// GPU servers: every host is a GPU, and consecutive hosts form a server. See [`Servers`].
    Servers(Servers),
    /// A grid in which each row along a dimension is a ring, a full mesh or a switch of its own, with its own kind of
    /// link, as in ASTRA-sim's network files. Hosts are numbered along the first dimension first; routes follow one
    /// dimension after the other.
    Dimensions(Vec<Dimension>),
}

/// GPU servers, and the leaf and spine switches between them.
///
/// Every link is full duplex, and belongs to one GPU, one NIC, or one leaf and one spine switch. The switch inside a
/// server (NVSwitch, PCIe switch or root complex) and the other switches never limit traffic. Consecutive GPUs of a
/// server share a NIC, if there are fewer NICs. The n-th NIC of every server is on rail `n % rails`. A message to another
/// rail leaves by the receiver's NIC number of its own server: over the fabric to the GPU at that NIC (as with NCCL's
/// PXN), or over PCIe alone if there is no fabric. Hosts' own bandwidths, latencies and queues are those of the NIC of
/// which the host is the first GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Servers {
    /// GPUs in a server.
    pub per_server: u32,
    /// NICs of a server; the number of its GPUs is a multiple of it.
    pub nics: u32,
    /// Number of leaf switches to which a server is connected; the number of its NICs is a multiple of it.
    pub rails: u32,
    /// Link of a GPU to the switch that joins the GPUs of its server, such as NVLink; `None`: they use PCIe.
    pub fabric: Option<LinkSpec>,
    /// Link of a GPU to the PCIe switch or the root complex, on its way to NICs; `None`: it never limits traffic.
    pub pcie: Option<LinkSpec>,
    /// Second level of switches; `None`: all servers share the leaf switches.
    pub spines: Option<Spines>,
}

/// Switches that join leaf switches: every leaf has one link to each of them. A message uses the spine with the number
/// of its receiver on the leaf, modulo `count`, as in [`Preset::FatTree`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spines {
    /// Servers on each leaf switch; the last leaf may have fewer.
    pub servers_per_leaf: u32,
    /// Number of spine switches.
    pub count: u32,
    /// Total rate of a full leaf's NICs, divided by the rate of its uplinks; 1 is full bisection bandwidth.
    pub oversubscription: f64,
}

/// One dimension of [`Preset::Dimensions`]: the connection of hosts that differ only in this coordinate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dimension {
    /// Kind of connection.
    pub kind: DimensionKind,
    /// Number of hosts along the dimension.
    pub size: u32,
    /// Link between two adjacent hosts.
    pub link: LinkSpec,
}

/// Connection of the hosts of one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DimensionKind {
    /// A ring, as in [`Preset::Ring`].
    Ring,
    /// A link between any two hosts, as in [`Preset::FullyConnected`].
    FullyConnected,
    /// A switch, as in [`Preset::Switch`].
    Switch,
}

impl Dimension {
    /// Number of links that belong to each host.
    pub(super) fn links(self) -> u32 {
        match self.kind {
            _ if self.size == 1 => 0,
            DimensionKind::Ring => (self.size - 1).min(2),
            DimensionKind::FullyConnected => self.size - 1,
            DimensionKind::Switch => 2,
        }
    }
}

/// Parameters of the closed form of a route.
pub(super) enum Shape {
    Star { backplane: Option<LinkId> },
    FullyConnected { hosts: u32 },
    Wifi { channel: LinkId },
    Torus { dims: Vec<u32> },
    FatTree { hosts: u32, hosts_per_leaf: u32, spines: u32 },
    Servers { layout: Servers, hosts: u32 },
    Dimensions(Vec<Dimension>),
}

/// Links and routing of `preset`.
pub(super) fn lay_out(
    preset: &Preset,
    hosts: &[HostSpec],
    link: LinkSpec,
) -> Result<(Vec<Link>, Shape), TopologyError> {
    check_queues(preset, hosts, link)?;
    let (queue, link) = (link.queue, LinkSpec { queue: None, ..link });
    let mut builder = Builder { hosts, link, queue, links: Vec::new() };
    let shape = match *preset {
        Preset::Switch => builder.star("switch", None),
        Preset::Star { backplane } => builder.star("hub", Some(backplane.unwrap_or(link.bandwidth))),
        Preset::Ring => builder.torus("ring", &[hosts.len() as u32]),
        Preset::FullyConnected => builder.fully_connected(),
        Preset::Wifi => builder.wifi(),
        Preset::Torus { ref dims } => builder.torus("torus", dims),
        Preset::FatTree { hosts_per_leaf, spines, oversubscription } => {
            builder.fat_tree(hosts_per_leaf, spines, oversubscription)
        }
        Preset::Rail { per_server, fabric } => {
            let rails = Servers {
                per_server,
                nics: per_server,
                rails: per_server,
                fabric: Some(fabric),
                pcie: None,
                spines: None,
            };
            builder.servers("rail", rails)
        }
        Preset::Servers(servers) => builder.servers("server", servers),
        Preset::Dimensions(ref dims) => builder.dimensions(dims),
    }?;
    Ok((builder.links, shape))
}

/// Checks that queues are only in front of hosts' own links from a switch.
fn check_queues(preset: &Preset, hosts: &[HostSpec], link: LinkSpec) -> Result<(), TopologyError> {
    let name = match preset {
        Preset::Switch | Preset::Star { .. } | Preset::FatTree { .. } => return Ok(()),
        Preset::Rail { .. } | Preset::Servers(_) => return Ok(()),
        Preset::Ring => "ring",
        Preset::FullyConnected => "fully_connected",
        Preset::Wifi => "wifi",
        Preset::Torus { .. } => "torus",
        Preset::Dimensions(_) => "dimensions",
    };
    if link.queue.is_none() && hosts.iter().all(|host| host.queue.is_none()) {
        return Ok(());
    }
    let problem = "this preset has no switch port that a `queue` could belong to".to_owned();
    Err(TopologyError::Shape {
        preset: name,
        key: "queue",
        problem,
        hint: "remove `queue`, or use the preset switch, star, fat_tree, rail or server",
    })
}

const ABOVE_ZERO: &str = "each must be greater than 0";

/// The number that is zero, by key; if none is, the oversubscription is at fault.
fn at_fault(numbers: [(&'static str, u32); 2]) -> &'static str {
    numbers.into_iter().find(|(_, number)| *number == 0).map_or("oversubscription", |(key, _)| key)
}

struct Builder<'a> {
    hosts: &'a [HostSpec],
    link: LinkSpec,
    /// Queue in front of each host without a queue of its own.
    queue: Option<Bytes>,
    links: Vec<Link>,
}

/// Limit of the number of links: each needs some 100 bytes, and more links would fill a machine's memory.
const MOST_LINKS: u64 = 1 << 24;

/// Parts of a link's latency from the sender's and the receiver's end.
fn halves(latency: SimDuration) -> (SimDuration, SimDuration) {
    let sender = SimDuration::from_ps(latency.as_ps() / 2);
    (sender, latency - sender)
}

impl Builder<'_> {
    fn add(&mut self, name: String, spec: LinkSpec) -> Result<(), TopologyError> {
        self.links.push(spec.named(name)?);
        Ok(())
    }

    /// Refuses a network with more than [`MOST_LINKS`] links before any link is allocated.
    fn check_count(&self, preset: &'static str, links: u64) -> Result<(), TopologyError> {
        if links <= MOST_LINKS {
            return Ok(());
        }
        let problem = format!("{links} links are more than the {MOST_LINKS} that can be simulated");
        let hint = "use fewer hosts or spines, or a sparser topology";
        Err(TopologyError::Shape { preset, key: "preset", problem, hint })
    }

    /// Rates of this host's own links.
    fn rates(&self, host: &HostSpec) -> HostRates {
        host.bandwidth.unwrap_or(HostRates::both(self.link.bandwidth))
    }

    fn latency(&self, host: &HostSpec) -> SimDuration {
        host.latency.unwrap_or(self.link.latency)
    }

    /// Both directions between a host and a switch.
    fn host_port(&mut self, host: &HostSpec, switch: &str) -> Result<(), TopologyError> {
        let queue = host.queue.or(self.queue);
        let spec = LinkSpec { latency: self.latency(host), queue, ..self.link };
        self.port(&host.name, switch, spec, self.rates(host))
    }

    /// Adds both directions between a host, or a part of it, and a switch, at other rates than `spec`'s; the queue is
    /// the host's.
    fn port(&mut self, host: &str, switch: &str, spec: LinkSpec, rates: HostRates) -> Result<(), TopologyError> {
        let (up, down) = halves(spec.latency);
        self.add(
            format!("{host} -> {switch}"),
            LinkSpec { latency: up, bandwidth: rates.egress, queue: None, ..spec },
        )?;
        self.add(format!("{switch} -> {host}"), LinkSpec { latency: down, bandwidth: rates.ingress, ..spec })
    }

    /// One direction of the cable between two hosts.
    fn cable(&mut self, from: usize, to: usize) -> Result<(), TopologyError> {
        let (a, b) = (&self.hosts[from], &self.hosts[to]);
        let (egress, ingress) = (self.rates(a).egress, self.rates(b).ingress);
        let bandwidth = if ingress < egress { ingress } else { egress };
        let latency = halves(self.latency(a)).0 + halves(self.latency(b)).1;
        self.add(format!("{} -> {}", a.name, b.name), LinkSpec { bandwidth, latency, ..self.link })
    }

    fn star(&mut self, switch: &str, backplane: Option<Rate>) -> Result<Shape, TopologyError> {
        for host in self.hosts {
            self.host_port(host, switch)?;
        }
        let Some(bandwidth) = backplane else { return Ok(Shape::Star { backplane: None }) };
        let id = LinkId::from(self.links.len());
        self.add(format!("{switch} backplane"), LinkSpec { bandwidth, latency: SimDuration::ZERO, ..self.link })?;
        Ok(Shape::Star { backplane: Some(id) })
    }

    fn fully_connected(&mut self) -> Result<Shape, TopologyError> {
        let hosts = self.hosts.len();
        self.check_count("fully_connected", hosts as u64 * (hosts as u64 - 1))?;
        for from in 0..hosts {
            for to in (0..hosts).filter(|to| *to != from) {
                self.cable(from, to)?;
            }
        }
        Ok(Shape::FullyConnected { hosts: hosts as u32 })
    }

    fn wifi(&mut self) -> Result<Shape, TopologyError> {
        for host in self.hosts {
            let Some(bandwidth) = self.rates(host).single() else {
                let problem = format!("`{}` has different egress and ingress bandwidths", host.name);
                let hint = "a radio channel is shared by both directions; give one bandwidth, or use a switch";
                return Err(TopologyError::Shape { preset: "wifi", key: "bandwidth", problem, hint });
            };
            let latency = halves(self.latency(host)).0;
            self.add(format!("{} <-> channel", host.name), LinkSpec { bandwidth, latency, ..self.link })?;
        }
        let channel = LinkId::from(self.links.len());
        let odd = SimDuration::from_ps(self.link.latency.as_ps() % 2);
        self.add("channel".to_owned(), LinkSpec { latency: odd, ..self.link })?;
        Ok(Shape::Wifi { channel })
    }

    fn torus(&mut self, preset: &'static str, dims: &[u32]) -> Result<Shape, TopologyError> {
        let hosts = self.hosts.len();
        if dims.iter().map(|dim| u64::from(*dim)).try_fold(1, u64::checked_mul) != Some(hosts as u64) {
            let problem = format!("the product of the dimensions {dims:?} must be {hosts}, the number of hosts");
            let hint = "change the dimensions, or the number of hosts";
            return Err(TopologyError::Shape { preset, key: "dims", problem, hint });
        }
        self.check_count(preset, hosts as u64 * u64::from(Shape::cables(dims)))?;
        for host in 0..hosts as u32 {
            for (neighbour, _) in neighbours(dims, host) {
                self.cable(host as usize, neighbour as usize)?;
            }
        }
        Ok(Shape::Torus { dims: dims.to_vec() })
    }

    fn fat_tree(&mut self, per_leaf: u32, spines: u32, oversubscription: f64) -> Result<Shape, TopologyError> {
        let uplink =
            self.link.bandwidth.bytes_per_second() * f64::from(per_leaf) / f64::from(spines) / oversubscription;
        let (Some(bandwidth), 1.., 1..) = (Rate::new(uplink), per_leaf, spines) else {
            let problem = format!("{per_leaf} hosts per leaf, {spines} spines, oversubscription {oversubscription}");
            let key = at_fault([("hosts_per_leaf", per_leaf), ("spines", spines)]);
            return Err(TopologyError::Shape { preset: "fat_tree", key, problem, hint: ABOVE_ZERO });
        };
        let hosts = self.hosts.len() as u32;
        let uplinks = u64::from(hosts.div_ceil(per_leaf)) * u64::from(spines);
        self.check_count("fat_tree", 2 * (u64::from(hosts) + uplinks))?;
        for (index, host) in self.hosts.iter().enumerate() {
            self.host_port(host, &format!("leaf.{}", index as u32 / per_leaf))?;
        }
        for leaf in 0..hosts.div_ceil(per_leaf) {
            for spine in 0..spines {
                self.port(&format!("leaf.{leaf}"), &format!("spine.{spine}"), self.link, HostRates::both(bandwidth))?;
            }
        }
        Ok(Shape::FatTree { hosts, hosts_per_leaf: per_leaf, spines })
    }

    /// The links of each NIC's GPUs, then the NIC's, then the leaf switches'.
    fn servers(&mut self, preset: &'static str, servers: Servers) -> Result<Shape, TopologyError> {
        let hosts = self.hosts.len() as u32;
        let Servers { per_server, nics, rails, fabric, pcie, spines } = servers;
        check_servers(preset, hosts, per_server)?;
        let refuse = |key, problem: String, hint| Err(TopologyError::Shape { preset, key, problem, hint });
        if nics == 0 || !per_server.is_multiple_of(nics) {
            let problem = format!("{per_server} GPUs of a server cannot be divided among {nics} NICs");
            return refuse("nics", problem, "`nics` must divide `per_server`: each NIC serves equally many GPUs");
        }
        if rails == 0 || !nics.is_multiple_of(rails) {
            let problem = format!("{nics} NICs of a server cannot be divided among {rails} rails");
            return refuse("rails", problem, "`rails` must divide `nics`: each rail has equally many NICs of a server");
        }
        if fabric.is_none() && pcie.is_none() {
            return refuse(
                "fabric",
                "the GPUs of a server have no links".to_owned(),
                "give them `fabric`, `pcie` or both",
            );
        }
        let layout = Shape::Servers { layout: servers, hosts };
        for (index, host) in self.hosts.iter().enumerate() {
            let index = index as u32;
            let server = index / per_server;
            for (link, switch) in [(fabric, "fabric"), (pcie, "pcie")] {
                if let Some(link) = link {
                    let rates = HostRates::both(link.bandwidth);
                    self.port(&host.name, &format!("{switch}.{server}"), link, rates)?;
                }
            }
            if (index + 1).is_multiple_of(servers.per_nic()) {
                let owner = &self.hosts[(index + 1 - servers.per_nic()) as usize];
                let nic = index % per_server / servers.per_nic();
                let is_own = nics == per_server && pcie.is_none();
                let name = if is_own { host.name.clone() } else { format!("nic.{server}.{nic}") };
                let port = HostSpec { name, ..owner.clone() };
                self.host_port(&port, &servers.leaf_name(servers.leaf(server, nic)))?;
            }
        }
        let Some(Spines { servers_per_leaf, count, oversubscription }) = spines else { return Ok(layout) };
        let per_leaf = u64::from(servers_per_leaf) * u64::from(nics / rails);
        let uplink = self.link.bandwidth.bytes_per_second() * per_leaf as f64 / f64::from(count) / oversubscription;
        let (Some(bandwidth), 1.., 1..) = (Rate::new(uplink), servers_per_leaf, count) else {
            let problem =
                format!("{servers_per_leaf} servers per leaf, {count} spines, oversubscription {oversubscription}");
            let key = at_fault([("servers_per_leaf", servers_per_leaf), ("spines", count)]);
            return refuse(key, problem, ABOVE_ZERO);
        };
        let leaves = (hosts / per_server).div_ceil(servers_per_leaf) * rails;
        self.check_count(preset, self.links.len() as u64 + 2 * u64::from(leaves) * u64::from(count))?;
        for leaf in 0..leaves {
            for spine in 0..count {
                let rates = HostRates::both(bandwidth);
                self.port(&servers.leaf_name(leaf), &format!("spine.{spine}"), self.link, rates)?;
            }
        }
        Ok(layout)
    }
}

impl Servers {
    /// Number of GPUs that share a NIC.
    pub(super) fn per_nic(&self) -> u32 {
        self.per_server / self.nics
    }

    /// Number of links of a GPU, without its NIC's.
    fn own(&self) -> u32 {
        2 * (u32::from(self.fabric.is_some()) + u32::from(self.pcie.is_some()))
    }

    /// Number of links of a NIC and its GPUs.
    pub(super) fn unit(&self) -> u32 {
        self.per_nic() * self.own() + 2
    }

    /// The leaf switch of a NIC: its group of servers, then its rail.
    fn leaf(&self, server: u32, nic: u32) -> u32 {
        self.spines.map_or(0, |spines| server / spines.servers_per_leaf.max(1)) * self.rails + nic % self.rails
    }

    fn leaf_name(&self, leaf: u32) -> String {
        match (self.spines, self.rails) {
            (None, 1) => "leaf".to_owned(),
            (None, _) => format!("rail.{leaf}"),
            (Some(_), 1) => format!("leaf.{leaf}"),
            (Some(_), rails) => format!("leaf.{}.{}", leaf / rails, leaf % rails),
        }
    }

    /// Appends the route between two of `hosts` GPUs.
    fn route(&self, hosts: u32, from: u32, to: u32, links: &mut Vec<LinkId>) {
        let (per_nic, own, unit) = (self.per_nic(), self.own(), self.unit());
        let gpu = |host: u32, link: u32| LinkId(host / per_nic * unit + host % per_nic * own + link);
        let at = |server: u32, nic: u32, link: u32| LinkId((server * self.nics + nic) * unit + per_nic * own + link);
        // The number of a GPU's PCIe link follows its fabric's.
        let pcie = own.saturating_sub(2);
        let [(server, nic), (other, target)] =
            [from, to].map(|host| (host / self.per_server, host % self.per_server / per_nic));
        if server == other {
            links.extend([gpu(from, 0), gpu(to, 1)]);
            return;
        }
        let exit = if nic % self.rails == target % self.rails { nic } else { target };
        let relay = match self.fabric {
            Some(_) if exit != nic => server * self.per_server + to % self.per_server,
            _ => from,
        };
        if relay != from {
            links.extend([gpu(from, 0), gpu(relay, 1)]);
        }
        links.extend(self.pcie.map(|_| gpu(relay, pcie)));
        links.push(at(server, exit, 0));
        let (up, down) = (self.leaf(server, exit), self.leaf(other, target));
        if let Some(spines) = self.spines.filter(|_| up != down) {
            let receiver = other % spines.servers_per_leaf * (self.nics / self.rails) + target / self.rails;
            let port = |leaf: u32| hosts / per_nic * unit + 2 * (leaf * spines.count + receiver % spines.count);
            links.extend([LinkId(port(up)), LinkId(port(down) + 1)]);
        }
        links.push(at(other, target, 1));
        links.extend(self.pcie.map(|_| gpu(to, pcie + 1)));
    }
}

impl Builder<'_> {
    fn dimensions(&mut self, dims: &[Dimension]) -> Result<Shape, TopologyError> {
        let refuse = |problem: String, hint| {
            Err(TopologyError::Shape { preset: "dimensions", key: "dimensions", problem, hint })
        };
        let hosts = self.hosts.len();
        let sizes: Vec<u32> = dims.iter().map(|dim| dim.size).collect();
        if sizes.iter().map(|size| u64::from(*size)).try_fold(1, u64::checked_mul) != Some(hosts as u64) {
            let problem = format!("the product of the dimensions {sizes:?} must be {hosts}, the number of hosts");
            return refuse(problem, "change the dimensions, or the number of hosts");
        }
        if let Some(host) = self.hosts.iter().find(|host| host.bandwidth.is_some() || host.latency.is_some()) {
            let problem = format!("`{}` has a bandwidth or latency of its own", host.name);
            return refuse(problem, "this preset takes bandwidth and latency per dimension, not per host");
        }
        let own: u64 = dims.iter().map(|dim| u64::from(dim.links())).sum();
        self.check_count("dimensions", hosts as u64 * own)?;
        for host in 0..hosts as u32 {
            let mut stride = 1;
            for (index, dim) in dims.iter().enumerate() {
                self.links_along(host, index, *dim, stride)?;
                stride *= dim.size;
            }
        }
        Ok(Shape::Dimensions(dims.to_vec()))
    }

    fn links_along(&mut self, host: u32, index: usize, dim: Dimension, stride: u32) -> Result<(), TopologyError> {
        let name = self.hosts[host as usize].name.clone();
        let at = host / stride % dim.size;
        if dim.kind == DimensionKind::Switch && dim.size > 1 {
            let rates = HostRates::both(dim.link.bandwidth);
            return self.port(&name, &format!("switch.{index}.{}", host - at * stride), dim.link, rates);
        }
        for link in 0..dim.links() {
            // Cables of a ring go up and then down, those of a mesh to all others by their distance upwards.
            let distance = if dim.kind == DimensionKind::Ring && link == 1 { dim.size - 1 } else { link + 1 };
            let to = host - at * stride + (at + distance) % dim.size * stride;
            self.add(format!("{name} -> {}", self.hosts[to as usize].name), dim.link)?;
        }
        Ok(())
    }
}

/// Hosts to which `host` has a cable in a torus, in the order of its links, each with the number of the host's cables
/// up to and including this one. In a dimension of two hosts, up and down are the same cable.
fn neighbours(dims: &[u32], host: u32) -> impl Iterator<Item = (u32, u32)> {
    let mut stride = 1;
    let both = dims.iter().flat_map(move |&dim| {
        let (at, below) = (host / stride % dim, stride);
        stride *= dim;
        let to = move |place: u32| host - at * below + place % dim * below;
        let up = (dim > 1).then(|| to(at + 1));
        up.into_iter().chain((dim > 2).then(|| to(at + dim - 1)))
    });
    both.zip(1..)
}

impl Shape {
    /// The server of a host.
    pub(super) fn server(&self, host: HostId) -> u32 {
        match *self {
            Shape::Servers { layout, .. } => host.0 / layout.per_server,
            _ => host.0,
        }
    }

    /// The dimensions along which the hosts are numbered, the first one first.
    pub(super) fn dimensions(&self, hosts: u32) -> Vec<GridDimension> {
        let plain = |size| GridDimension { size, meshed: false };
        match self {
            Shape::FullyConnected { hosts } => vec![GridDimension { size: *hosts, meshed: true }],
            Shape::Torus { dims } => dims.iter().copied().map(plain).collect(),
            Shape::FatTree { hosts, hosts_per_leaf, .. } if hosts.is_multiple_of(*hosts_per_leaf) => {
                vec![plain(*hosts_per_leaf), plain(hosts / hosts_per_leaf)]
            }
            Shape::Servers { layout, .. } => vec![plain(layout.per_server), plain(hosts / layout.per_server)],
            Shape::Dimensions(dims) => {
                let meshed = |dim: &Dimension| dim.kind == DimensionKind::FullyConnected;
                dims.iter().map(|dim| GridDimension { size: dim.size, meshed: meshed(dim) }).collect()
            }
            Shape::Star { .. } | Shape::Wifi { .. } | Shape::FatTree { .. } => vec![plain(hosts)],
        }
    }

    /// Appends the links from one host to another.
    pub(super) fn route(&self, from: HostId, to: HostId, links: &mut Vec<LinkId>) {
        let (from, to) = (from.0, to.0);
        match *self {
            Shape::Star { backplane } => {
                links.push(LinkId(2 * from));
                links.extend(backplane);
                links.push(LinkId(2 * to + 1));
            }
            Shape::FullyConnected { hosts } => links.push(LinkId(from * (hosts - 1) + to - u32::from(to > from))),
            Shape::Wifi { channel } => links.extend([LinkId(from), channel, LinkId(to)]),
            Shape::Torus { ref dims } => route_torus(dims, from, to, links),
            Shape::FatTree { hosts, hosts_per_leaf, spines } => {
                let (up, down) = (from / hosts_per_leaf, to / hosts_per_leaf);
                links.push(LinkId(2 * from));
                if up != down {
                    let port = |leaf: u32| 2 * (hosts + leaf * spines + to % spines);
                    links.extend([LinkId(port(up)), LinkId(port(down) + 1)]);
                }
                links.push(LinkId(2 * to + 1));
            }
            Shape::Servers { ref layout, hosts } => layout.route(hosts, from, to, links),
            Shape::Dimensions(ref dims) => route_dimensions(dims, from, to, links),
        }
    }
}

fn route_dimensions(dims: &[Dimension], from: u32, to: u32, links: &mut Vec<LinkId>) {
    let own: u32 = dims.iter().map(|dim| dim.links()).sum();
    let (mut host, mut stride, mut first) = (from, 1, 0);
    for dim in dims {
        let size = dim.size;
        let (at, target) = (host / stride % size, to / stride % size);
        let along = |place: u32| host - at * stride + place % size * stride;
        let distance = (target + size - at) % size;
        match dim.kind {
            _ if distance == 0 => {}
            DimensionKind::Switch => links.extend([host * own + first, along(target) * own + first + 1].map(LinkId)),
            DimensionKind::FullyConnected => links.push(LinkId(host * own + first + distance - 1)),
            DimensionKind::Ring if 2 * distance <= size => {
                links.extend((0..distance).map(|hop| LinkId(along(at + hop) * own + first)));
            }
            DimensionKind::Ring => {
                links.extend((0..size - distance).map(|hop| LinkId(along(at + size - hop) * own + first + 1)));
            }
        }
        host = along(target);
        (stride, first) = (stride * size, first + dim.links());
    }
}

fn route_torus(dims: &[u32], from: u32, to: u32, links: &mut Vec<LinkId>) {
    let cables: u32 = dims.iter().map(|dim| (dim - 1).min(2)).sum();
    let (mut host, mut stride, mut first) = (from, 1, 0);
    for &dim in dims {
        let (target, distance) = (to / stride % dim, |at: u32| (to / stride % dim + dim - at) % dim);
        while host / stride % dim != target {
            let at = host / stride % dim;
            let up = 2 * distance(at) <= dim;
            links.push(LinkId(host * cables + first + u32::from(!up)));
            host = host - at * stride + (at + if up { 1 } else { dim - 1 }) % dim * stride;
        }
        (stride, first) = (stride * dim, first + (dim - 1).min(2));
    }
}
