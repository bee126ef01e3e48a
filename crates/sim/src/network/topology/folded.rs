//! Owns the network of symmetric ranks: the check that a topology looks the same after every shift, and routes over the
//! representatives of equivalent links. The module does not know the work of ranks.
//!
//! A shift of the ranks moves hosts, and with them the links that belong to hosts. If each route moves along with its
//! ends, and links move to equal links, no flow can distinguish the shifted network from the original. If, in addition,
//! no shift other than the identity leaves any host in its place (`G` acts freely), then exactly one of the `|G|`
//! images of a flow crosses a given image of a link for each time that the flow itself crosses a link of that class. A
//! representative link therefore carries, in a network with one flow of each class, as many flows as it would carry
//! with all of them.

use super::preset::{Dimension, Shape};
use super::{Link, Route, Routing, Topology};
use crate::ids::{HostId, LinkId, RankId};
use crate::symmetry::{Relabeling, Symmetry};

/// A topology in which symmetric links are one. Cheap to clone, except for a few bytes per host.
#[derive(Clone, Debug)]
pub struct FoldedTopology {
    topology: Topology,
    symmetry: Symmetry,
    /// The host of each rank.
    hosts: Vec<HostId>,
    /// The first rank on each host.
    ranks: Vec<RankId>,
    /// The representative of each host.
    representatives: Vec<HostId>,
}

/// Difference between ranks that should be equivalent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}\nhint: {hint}")]
pub struct Asymmetry {
    /// The difference, as a sentence for the user.
    pub problem: String,
    /// Advice to the user.
    pub hint: &'static str,
}

impl Asymmetry {
    pub(crate) fn store() -> Asymmetry {
        Asymmetry::new("results of the store depend on the order of requests")
    }

    /// Asymmetry that only a simulation of every rank avoids.
    pub fn new(problem: impl Into<String>) -> Asymmetry {
        Asymmetry { problem: problem.into(), hint: "simulate every rank with --fold off" }
    }

    /// Asymmetry of two operations on a shared connection, one of which would have to wait for the other.
    pub(crate) fn tie(problem: String) -> Asymmetry {
        let hint = "use backend = { name = \"ideal\", connections = \"group\" } for separate connections per group, or --fold off";
        Asymmetry { problem, hint }
    }
}

impl FoldedTopology {
    /// The network of ranks on `hosts` (by rank, at least one on each) that are equivalent under `symmetry`.
    ///
    /// # Errors
    /// If the ranks' network positions are not equivalent, or if the symmetries of the topology are unknown.
    pub fn new(topology: &Topology, hosts: Vec<HostId>, symmetry: &Symmetry) -> Result<FoldedTopology, Asymmetry> {
        let ranks = first_ranks(topology, &hosts)?;
        for generator in symmetry.generators() {
            let moved = |rank| hosts[symmetry.apply(generator, rank).index()];
            let moves: Vec<HostId> = ranks.iter().map(|rank| moved(*rank)).collect();
            let together = |(rank, host): (usize, &HostId)| moved(RankId::from(rank)) == moves[host.index()];
            if !hosts.iter().enumerate().all(together) {
                return Err(Asymmetry::new("ranks of one host would have to be equivalent to ranks of several hosts"));
            }
            topology.check_shift(&moves, symmetry)?;
        }
        let representatives: Vec<HostId> =
            ranks.iter().map(|rank| hosts[symmetry.representative(*rank).index()]).collect();
        let classes = (0..ranks.len()).filter(|host| representatives[*host].index() == *host).count();
        if classes * symmetry.order() as usize != ranks.len() {
            return Err(Asymmetry::new("ranks of the same host would have to be equivalent"));
        }
        let (topology, symmetry) = (topology.clone(), symmetry.clone());
        let folded = FoldedTopology { topology, symmetry, hosts, ranks, representatives };
        folded.check_links()?;
        Ok(folded)
    }

    /// The links of the whole network; routes contain only representatives.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Route from one host to another, each link replaced by its representative. If a message crosses several links of
    /// one class, the representative occurs as often.
    pub fn route(&self, from: HostId, to: HostId) -> Route {
        if from == to {
            let host = self.representatives[from.index()];
            return self.topology.route(host, host);
        }
        let Route { links, latency } = self.topology.route(from, to);
        Route { links: links.into_iter().map(|link| self.representative(link)).collect(), latency }
    }

    /// Host, server and rail of each rank, if a route depends only on which of these its ends have in common, and every
    /// link belongs to one host.
    pub(crate) fn places(&self) -> Option<Vec<[u32; 3]>> {
        let (per_server, rails) = match self.topology.0.routing {
            Routing::Preset(Shape::Star { backplane: None }) => (1, 1),
            Routing::Preset(Shape::Servers { layout, .. }) => (layout.per_server, layout.rails),
            _ => return None,
        };
        Some(self.hosts.iter().map(|HostId(host)| [*host, host / per_server, host % rails]).collect())
    }

    /// Checks that links equal their representatives.
    fn check_links(&self) -> Result<(), Asymmetry> {
        let traits = |link: &Link| (link.bandwidth, link.latency, link.overhead, link.queue);
        let local = |host: HostId| self.topology.0.local[host.index()].map(|link| self.topology.link(link));
        let unlike = |name: &str| Asymmetry::new(format!("link `{name}` differs from the others"));
        for (link, id) in self.topology.links().iter().zip(0..self.topology.0.shared) {
            let other = self.topology.link(self.representative(LinkId(id)));
            if traits(link) != traits(other) {
                return Err(unlike(&link.name));
            }
        }
        for (index, representative) in self.representatives.iter().enumerate() {
            let host = HostId::from(index);
            if local(host).map(traits) != local(*representative).map(traits) {
                return Err(unlike(&format!("{0} <-> {0}", self.topology.hosts()[index])));
            }
        }
        Ok(())
    }

    /// The representative of a link that joins hosts.
    fn representative(&self, LinkId(link): LinkId) -> LinkId {
        let own = |count: u32| LinkId(self.representatives[(link / count) as usize].0 * count + link % count);
        match &self.topology.0.routing {
            Routing::Preset(Shape::Star { .. }) => own(2),
            Routing::Preset(Shape::Servers { layout, .. }) => own(layout.unit()),
            Routing::Preset(Shape::Torus { dims }) => own(Shape::cables(dims)),
            Routing::Preset(Shape::Dimensions(dims)) => own(Shape::own_links(dims)),
            Routing::Preset(Shape::FullyConnected { hosts }) => {
                let (from, place) = (link / (hosts - 1), link % (hosts - 1));
                let to = place + u32::from(place >= from);
                let back = self.symmetry.inverse(self.symmetry.shift_to(self.ranks[from as usize]));
                let HostId(to) = self.hosts[self.symmetry.apply(back, self.ranks[to as usize]).index()];
                let HostId(from) = self.representatives[from as usize];
                LinkId(from * (hosts - 1) + to - u32::from(to > from))
            }
            Routing::Preset(Shape::Wifi { .. } | Shape::FatTree { .. }) | Routing::Graph(_) => LinkId(link),
        }
    }
}

fn first_ranks(topology: &Topology, hosts: &[HostId]) -> Result<Vec<RankId>, Asymmetry> {
    let mut ranks = vec![None; topology.hosts().len()];
    for (rank, host) in hosts.iter().enumerate().rev() {
        ranks[host.index()] = Some(RankId::from(rank));
    }
    let all: Option<Vec<RankId>> = ranks.into_iter().collect();
    all.ok_or_else(|| Asymmetry::new("some hosts have no ranks"))
}

impl Topology {
    /// Numbers of consecutive hosts that form a server, or a row, a plane and so on of a grid, if there are several of
    /// them: a network may be symmetric under shifts within and of these blocks, and not under others.
    pub fn blocks(&self) -> Vec<u32> {
        let hosts = self.hosts().len() as u32;
        let sizes = match &self.0.routing {
            Routing::Preset(Shape::Servers { layout, .. }) => vec![layout.per_server],
            Routing::Preset(Shape::Torus { dims }) => dims.clone(),
            Routing::Preset(Shape::Dimensions(dims)) => dims.iter().map(|dim| dim.size).collect(),
            Routing::Preset(_) | Routing::Graph(_) => Vec::new(),
        };
        let products = sizes.iter().scan(1, |product, size| {
            *product *= size;
            Some(*product)
        });
        products.filter(|block| (2..hosts).contains(block)).collect()
    }

    /// Checks that every route moves along when hosts move by `moves`.
    fn check_shift(&self, moves: &[HostId], symmetry: &Symmetry) -> Result<(), Asymmetry> {
        let constant = |sizes: &[u32]| is_translation(sizes, moves);
        let flips = || symmetry.axes().iter().any(|axis| axis.relabeling == Relabeling::Flip);
        let alike = match &self.0.routing {
            // Every pair of hosts is joined in the same way, so any move of hosts moves the routes along.
            Routing::Preset(Shape::Star { backplane: None } | Shape::FullyConnected { .. }) => true,
            Routing::Preset(Shape::Torus { dims }) => !flips() && constant(dims),
            Routing::Preset(Shape::Dimensions(dims)) => {
                !flips() && constant(&dims.iter().map(|dim| dim.size).collect::<Vec<_>>())
            }
            // If GPUs share NICs, or NICs share uplinks, links belong to several hosts.
            Routing::Preset(Shape::Servers { layout, .. }) if layout.per_nic() == 1 && layout.spines.is_none() => {
                keeps_servers_and_rails(layout.per_server, moves)
            }
            Routing::Preset(
                Shape::Star { .. } | Shape::Wifi { .. } | Shape::FatTree { .. } | Shape::Servers { .. },
            )
            | Routing::Graph(_) => {
                let what = "hosts share links of this network, or its symmetries are unknown";
                return Err(Asymmetry::new(what));
            }
        };
        if alike {
            Ok(())
        } else {
            Err(Asymmetry::new("the network is not symmetric for ranks that should be equivalent"))
        }
    }
}

/// Whether all hosts move by the same steps along each dimension.
fn is_translation(sizes: &[u32], moves: &[HostId]) -> bool {
    let mut stride = 1;
    sizes.iter().all(|&size| {
        let below = stride;
        stride *= size;
        let steps = |(host, to): (usize, &HostId)| (to.0 / below % size + size - host as u32 / below % size) % size;
        let mut all = moves.iter().enumerate().map(steps);
        let first = all.next();
        all.all(|steps| Some(steps) == first)
    })
}

fn keeps_servers_and_rails(per_server: u32, moves: &[HostId]) -> bool {
    moves.iter().enumerate().all(|(host, to)| {
        let host = host as u32;
        let server = moves[(host - host % per_server) as usize].0 / per_server;
        let rail = moves[(host % per_server) as usize].0 % per_server;
        (to.0 / per_server, to.0 % per_server) == (server, rail)
    })
}

impl Shape {
    /// Number of links of a torus that belong to each host.
    pub(super) fn cables(dims: &[u32]) -> u32 {
        dims.iter().map(|dim| (dim - 1).min(2)).sum()
    }

    fn own_links(dims: &[Dimension]) -> u32 {
        dims.iter().map(|dim| dim.links()).sum()
    }
}
