//! Owns explicit graphs: hosts and switches, joined by a user's list of links, and the search for routes.
//!
//! A search finds the routes from all sources to one destination; its result is kept. Hosts on one link share the
//! search for the node at the link's other end, so that a large tree of switches needs one search per switch.

use super::{HostSpec, Link, LinkSpec, TopologyError, check_servers};
use crate::ids::{HostId, LinkId};
use crate::time::{Rate, SimDuration};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::OnceLock;

/// A cable between two nodes, or a medium that two or more share.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphLink {
    /// Names of hosts and switches.
    pub between: Vec<String>,
    /// Rate, latency and headers; of each direction if there are two.
    pub spec: LinkSpec,
    /// Rate from the last of two ends to the first, if it differs; only for [`Duplex::Full`].
    pub back: Option<Rate>,
    /// Whether directions share the link's rate.
    pub duplex: Duplex,
}

/// How the directions of a link are related.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplex {
    /// Each direction has the link's rate to itself.
    #[default]
    Full,
    /// Both directions share the link's rate.
    Half,
}

/// Nodes are the hosts in their order, the switches by name, then a node for each medium: entering a medium crosses a
/// link, leaving it crosses none.
pub(super) struct Graph {
    /// Edges that lead away from each node.
    edges: Vec<Vec<Edge>>,
    /// The routes to each node, once searched for.
    ways: Vec<OnceLock<Ways>>,
    /// Number of consecutive hosts that form a server.
    pub(super) per_server: u32,
}

#[derive(Clone, Copy)]
struct Edge {
    to: usize,
    /// Link of the edge in its direction; `None`: no link.
    link: Option<LinkId>,
    /// Link of the edge in the opposite direction.
    back: Option<LinkId>,
    /// Latency of either link.
    latency: SimDuration,
}

/// For each node the edge towards one destination; `None` at the destination.
type Ways = Vec<Option<Edge>>;

/// Links and graph of a description. The order of the links in the description has no effect.
pub(super) fn lay_out(
    hosts: &[HostSpec],
    links: &[GraphLink],
    per_server: u32,
) -> Result<(Vec<Link>, Graph), TopologyError> {
    check_servers("links", hosts.len() as u32, per_server)?;
    let mut listed: Vec<(Vec<&str>, &GraphLink)> = links.iter().map(|link| (ends(link), link)).collect();
    listed.sort_by(|a, b| a.0.cmp(&b.0));
    for (ends, link) in &listed {
        check_ends(ends, link)?;
    }
    if let Some(pair) = listed.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(TopologyError::DuplicateLink { name: pair[0].0.join(" <-> ") });
    }
    let nodes = number_nodes(hosts, &listed);
    let mut builder = Builder { hosts: hosts.len(), links: Vec::new(), edges: vec![Vec::new(); nodes.len()] };
    for (ends, link) in &listed {
        builder.join(ends, link, &nodes)?;
    }
    check_connected(hosts, &nodes, &listed, &builder.edges)?;
    let ways = builder.edges.iter().map(|_| OnceLock::new()).collect();
    Ok((builder.links, Graph { edges: builder.edges, ways, per_server }))
}

fn ends(link: &GraphLink) -> Vec<&str> {
    let mut ends: Vec<&str> = link.between.iter().map(String::as_str).collect();
    ends.sort_unstable();
    ends
}

fn check_ends(ends: &[&str], link: &GraphLink) -> Result<(), TopologyError> {
    let name = || ends.join(" <-> ");
    if ends.len() < 2 || ends.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(TopologyError::LinkEnds { name: name() });
    }
    if ends.len() > 2 && link.duplex == Duplex::Full {
        return Err(TopologyError::FullDuplexMedium { name: name() });
    }
    Ok(())
}

fn number_nodes<'a>(hosts: &'a [HostSpec], links: &[(Vec<&'a str>, &GraphLink)]) -> BTreeMap<&'a str, usize> {
    let mut nodes: BTreeMap<&str, usize> =
        hosts.iter().enumerate().map(|(at, host)| (host.name.as_str(), at)).collect();
    let mut switches: Vec<&str> = links.iter().flat_map(|(ends, _)| ends).copied().collect();
    switches.retain(|name| !nodes.contains_key(name));
    switches.sort_unstable();
    switches.dedup();
    nodes.extend(switches.into_iter().zip(hosts.len()..));
    nodes
}

struct Builder {
    /// Number of hosts, which are the first nodes.
    hosts: usize,
    links: Vec<Link>,
    edges: Vec<Vec<Edge>>,
}

impl Builder {
    fn join(&mut self, ends: &[&str], link: &GraphLink, nodes: &BTreeMap<&str, usize>) -> Result<(), TopologyError> {
        let places: Vec<usize> = ends.iter().map(|name| nodes[name]).collect();
        let hosts = places.iter().filter(|place| **place < self.hosts).count();
        if link.spec.queue.is_some() && (link.duplex, places.len(), hosts) != (Duplex::Full, 2, 1) {
            return Err(TopologyError::Queue { link: ends.join(" <-> ") });
        }
        match (link.duplex, &places[..]) {
            (Duplex::Full, &[a, b]) => {
                let reverse = LinkSpec { bandwidth: link.back.unwrap_or(link.spec.bandwidth), ..link.spec };
                let first_is_first = link.between[0] == ends[0];
                let (out, home) = if first_is_first { (link.spec, reverse) } else { (reverse, link.spec) };
                let to =
                    |node: usize, spec: LinkSpec| LinkSpec { queue: spec.queue.filter(|_| node < self.hosts), ..spec };
                let (out, home) = (to(b, out), to(a, home));
                let there = self.add(format!("{} -> {}", ends[0], ends[1]), out)?;
                let back = self.add(format!("{} -> {}", ends[1], ends[0]), home)?;
                self.connect(a, b, there, Some(back), link.spec.latency);
            }
            _ => {
                let medium = self.edges.len();
                self.edges.push(Vec::new());
                let enter = self.add(ends.join(" <-> "), link.spec)?;
                places.iter().for_each(|place| self.connect(*place, medium, enter, None, link.spec.latency));
            }
        }
        Ok(())
    }

    fn connect(&mut self, a: usize, b: usize, there: LinkId, back: Option<LinkId>, latency: SimDuration) {
        self.edges[a].push(Edge { to: b, link: Some(there), back, latency });
        self.edges[b].push(Edge { to: a, link: back, back: Some(there), latency });
    }

    fn add(&mut self, name: String, spec: LinkSpec) -> Result<LinkId, TopologyError> {
        self.links.push(spec.named(name)?);
        Ok(LinkId::from(self.links.len() - 1))
    }
}

fn check_connected(
    hosts: &[HostSpec],
    nodes: &BTreeMap<&str, usize>,
    links: &[(Vec<&str>, &GraphLink)],
    edges: &[Vec<Edge>],
) -> Result<(), TopologyError> {
    let mut links_at: BTreeMap<&str, u32> = BTreeMap::new();
    for (ends, _) in links {
        ends.iter().collect::<BTreeSet<_>>().into_iter().for_each(|end| *links_at.entry(end).or_default() += 1);
    }
    let leads_nowhere = |name: &str| links_at.get(name) == Some(&1);
    if let Some((name, _)) = nodes.iter().find(|(name, at)| **at >= hosts.len() && leads_nowhere(name)) {
        let mut known: Vec<&str> = hosts.iter().take(4).map(|host| host.name.as_str()).collect();
        known.extend((hosts.len() > 4).then_some("..."));
        return Err(TopologyError::UnknownNode { name: (*name).to_owned(), hosts: known.join(", ") });
    }
    let mut reached = vec![false; edges.len()];
    let mut waiting = vec![0];
    while let Some(node) = waiting.pop() {
        if !std::mem::replace(&mut reached[node], true) {
            waiting.extend(edges[node].iter().map(|edge| edge.to));
        }
    }
    match hosts.iter().zip(&reached).find(|(_, reached)| !**reached) {
        Some((host, _)) => Err(TopologyError::NoRoute { from: hosts[0].name.clone(), to: host.name.clone() }),
        None => Ok(()),
    }
}

impl Graph {
    /// Appends the links from one host to another.
    pub(super) fn route(&self, from: HostId, to: HostId, links: &mut Vec<LinkId>) {
        let (target, last) = match self.edges[to.index()][..] {
            [only] => (only.to, only.back),
            _ => (to.index(), None),
        };
        let ways = self.ways[target].get_or_init(|| search(&self.edges, target));
        let mut node = from.index();
        while let Some(edge) = ways[node] {
            links.extend(edge.link);
            node = edge.to;
        }
        links.extend(last);
    }
}

/// Dijkstra's algorithm, from the target backwards.
fn search(edges: &[Vec<Edge>], target: usize) -> Ways {
    let mut distance = vec![(u32::MAX, SimDuration::MAX); edges.len()];
    let mut ways: Ways = vec![None; edges.len()];
    distance[target] = (0, SimDuration::ZERO);
    let mut waiting = BinaryHeap::from([Reverse((distance[target], target))]);
    while let Some(Reverse((reached, node))) = waiting.pop() {
        if reached > distance[node] {
            continue;
        }
        for edge in &edges[node] {
            let cost = edge.back.map_or((0, SimDuration::ZERO), |_| (1, edge.latency));
            let through = (reached.0 + cost.0, reached.1 + cost.1);
            let best = (distance[edge.to], ways[edge.to].and_then(|way| way.link));
            if (through, edge.back) < best {
                if through < distance[edge.to] {
                    waiting.push(Reverse((through, edge.to)));
                }
                distance[edge.to] = through;
                ways[edge.to] = Some(Edge { to: node, link: edge.back, back: edge.link, latency: edge.latency });
            }
        }
    }
    ways
}
