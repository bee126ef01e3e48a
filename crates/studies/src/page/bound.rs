//! Owns lower bounds of an operation's duration on a network, for any algorithm: the bytes that must leave and enter
//! each host, and the latency between the hosts that are farthest apart. Libraries, hosts' work and other traffic make
//! an operation longer; the bounds ignore them.
//!
//! For each host, the bytes that must cross its own links are compared with the links' rates. Members on one host
//! exchange bytes at no cost and combine before they send. Together, hosts must move `2 (H - 1) n` bytes to all-reduce
//! `n` on `H` hosts (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009)
//! and `(H - 1) n` to broadcast or reduce them (Chan, Heimlich, Purkayastha and van de Geijn, "Collective
//! communication: theory, practice, and experience", 2007). The root is assumed to be the member with the least bound.

use std::collections::{BTreeMap, BTreeSet};
use uniference_sim::cluster::Cluster;
use uniference_sim::ids::{HostId, LinkId, RankId};
use uniference_sim::network::Link;
use uniference_sim::program::{Collective, CollectiveKind, Shape};
use uniference_sim::time::Bytes;

/// Maximum number of hosts of a group with bounds: the routes between all pairs of hosts are examined.
const MOST_HOSTS: usize = 256;

/// Upper limits of the hosts of a group.
pub(super) struct Reach {
    members: f64,
    hosts: Vec<HostReach>,
    /// Rate at which all hosts together send, in bytes per second, and rate at which they receive: links that several
    /// hosts share count once.
    egress: f64,
    ingress: f64,
    /// Rate of the slowest link on the routes of all pairs; infinite if there is none.
    common: f64,
    /// Latency in seconds between the hosts that are farthest apart, and between the nearest.
    diameter: f64,
    nearest: f64,
    /// The largest latency from, or to, the host for which it is least.
    radius: f64,
}

struct HostReach {
    members: f64,
    /// Rates of the host's links to and from the other hosts, in bytes per second.
    egress: f64,
    ingress: f64,
}

impl Reach {
    /// The reach of the group with these members; `None`: they are on one host, or on too many.
    pub(super) fn new(cluster: &Cluster, members: &BTreeSet<RankId>) -> Option<Reach> {
        let mut on_host: BTreeMap<HostId, f64> = BTreeMap::new();
        members.iter().for_each(|rank| *on_host.entry(cluster.devices[rank.index()].host).or_default() += 1.0);
        if !(2..=MOST_HOSTS).contains(&on_host.len()) {
            return None;
        }
        let rate = |links: &BTreeSet<LinkId>| links.iter().map(|link| fastest(cluster, *link)).sum::<f64>();
        let (mut all_first, mut all_last) = (BTreeSet::new(), BTreeSet::new());
        let mut common: Option<BTreeSet<LinkId>> = None;
        let (mut hosts, mut diameter, mut nearest, mut radius) = (Vec::new(), 0.0_f64, f64::INFINITY, f64::INFINITY);
        for (host, members) in &on_host {
            let (mut first, mut last) = (BTreeSet::new(), BTreeSet::new());
            let [mut farthest_to, mut farthest_from] = [0.0_f64; 2];
            for other in on_host.keys().filter(|other| *other != host) {
                let [to, from] = [(*host, *other), (*other, *host)].map(|(a, b)| cluster.topology.route(a, b).links);
                first.extend(to.first());
                last.extend(from.last());
                let [after, before] = [&to, &from].map(|links| least_latency(cluster, links));
                (farthest_to, farthest_from) = (farthest_to.max(after), farthest_from.max(before));
                nearest = nearest.min(after);
                common = Some(match common {
                    None => to.into_iter().collect(),
                    Some(common) => common.into_iter().filter(|link| to.contains(link)).collect(),
                });
            }
            hosts.push(HostReach { members: *members, egress: rate(&first), ingress: rate(&last) });
            (all_first, all_last) = (&all_first | &first, &all_last | &last);
            diameter = diameter.max(farthest_to);
            radius = radius.min(farthest_to).min(farthest_from);
        }
        let common = common.into_iter().flatten().map(|link| fastest(cluster, link)).fold(f64::INFINITY, f64::min);
        let (egress, ingress) = (rate(&all_first), rate(&all_last));
        Some(Reach { members: members.len() as f64, hosts, egress, ingress, common, diameter, nearest, radius })
    }

    /// Least seconds from the first member's start of the collective to the last member's end; `None`: unknown.
    pub(super) fn of(&self, kind: CollectiveKind, block: Option<Bytes>, combined_by_switches: bool) -> Option<f64> {
        use CollectiveKind::{
            AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
        };
        let bytes = match block {
            Some(Bytes(bytes)) if bytes > 0 => bytes as f64,
            _ if kind == Barrier => 0.0,
            _ => return None,
        };
        let latency = if matches!(kind, Broadcast | Reduce | Gather | Scatter) { self.radius } else { self.diameter };
        // With in-switch reduction, fewer bytes cross the links than members exchange, and their number depends on the
        // library.
        if combined_by_switches {
            return Some(latency);
        }
        let (members, hosts) = (self.members, self.hosts.len() as f64);
        let rest = |host: &HostReach| (members - host.members) * bytes;
        let own = |host: &HostReach| host.members * bytes;
        // The transfer times of the hosts, and of all together.
        let (transfer, total) = match kind {
            Barrier => (0.0, 0.0),
            AllReduce => (self.most(|_| bytes, |_| bytes), 2.0 * (hosts - 1.0) * bytes),
            AllGather => (self.most(own, rest), members * (hosts - 1.0) * bytes),
            ReduceScatter => (self.most(rest, own), members * (hosts - 1.0) * bytes),
            AllToAll => {
                let pairs = |host: &HostReach| host.members * rest(host);
                (self.most(pairs, pairs), self.hosts.iter().map(pairs).sum())
            }
            Broadcast => {
                let root = self.least(|host| bytes / host.egress);
                (root.max(self.second(|host| bytes / host.ingress)), (hosts - 1.0) * bytes)
            }
            Reduce => {
                let root = self.least(|host| bytes / host.ingress);
                (root.max(self.second(|host| bytes / host.egress)), (hosts - 1.0) * bytes)
            }
            Gather => {
                let root = self.least(|host| rest(host) / host.ingress);
                (root.max(self.second(|host| own(host) / host.egress)), self.least(rest))
            }
            Scatter => {
                let root = self.least(|host| rest(host) / host.egress);
                (root.max(self.second(|host| own(host) / host.ingress)), self.least(rest))
            }
        };
        let together = total / self.egress.min(self.ingress).min(self.common);
        // The last byte that leaves arrives one latency later.
        let way = if kind == Barrier { 0.0 } else { self.nearest };
        Some((transfer.max(together) + way).max(latency))
    }

    /// The time of the slowest host if the links of each must carry so many bytes out and in.
    fn most(&self, out: impl Fn(&HostReach) -> f64, into: impl Fn(&HostReach) -> f64) -> f64 {
        let times = self.hosts.iter().map(|host| (out(host) / host.egress).max(into(host) / host.ingress));
        times.fold(0.0, f64::max)
    }

    /// The minimum over all hosts, each of which may be the root.
    fn least(&self, figure: impl Fn(&HostReach) -> f64) -> f64 {
        self.hosts.iter().map(figure).fold(f64::INFINITY, f64::min)
    }

    /// The time of the second slowest host: the slowest may be the root.
    fn second(&self, time: impl Fn(&HostReach) -> f64) -> f64 {
        let mut times: Vec<f64> = self.hosts.iter().map(time).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() - 2]
    }
}

/// Least seconds of a message of this size from one rank to another; `None`: they are on one host.
pub(super) fn of_message(cluster: &Cluster, from: RankId, to: RankId, bytes: Bytes) -> Option<f64> {
    let [from, to] = [from, to].map(|rank| cluster.devices[rank.index()].host);
    let links = (from != to).then(|| cluster.topology.route(from, to).links)?;
    let rate = links.iter().map(|link| fastest(cluster, *link)).fold(f64::INFINITY, f64::min);
    Some(bytes.0 as f64 / rate + least_latency(cluster, &links))
}

/// The size of a collective's block if all ranks' blocks are equal, else `None`.
pub(super) fn block(collective: &Collective) -> Option<Bytes> {
    let elements = match &collective.shape {
        Shape::Even(elements) => *elements,
        Shape::Blocks(blocks) if blocks.windows(2).all(|pair| pair[0] == pair[1]) => *blocks.first()?,
        Shape::Blocks(_) | Shape::Pairs { .. } => return None,
    };
    Some(Bytes(elements.saturating_mul(collective.dtype.size())))
}

/// The highest payload rate that a link ever has, in bytes per second.
fn fastest(cluster: &Cluster, id: LinkId) -> f64 {
    let link = cluster.topology.link(id);
    let profile = cluster.dynamics.links.get(&id).and_then(|changes| changes.profile.as_ref());
    let points = profile.iter().flat_map(|profile| profile.points.iter());
    let rates = points.filter_map(|point| point.bandwidth).map(|bandwidth| Link { bandwidth, ..link.clone() });
    rates.map(|link| link.payload_rate().bytes_per_second()).fold(link.payload_rate().bytes_per_second(), f64::max)
}

/// The least latency that a byte ever has over the links, in seconds.
fn least_latency(cluster: &Cluster, links: &[LinkId]) -> f64 {
    let least = |id: &LinkId| {
        let (link, changes) = (cluster.topology.link(*id), cluster.dynamics.links.get(id));
        if changes.is_some_and(|changes| changes.jitter.is_some()) {
            return 0.0;
        }
        let points =
            changes.and_then(|changes| changes.profile.as_ref()).into_iter().flat_map(|profile| profile.points.iter());
        points.filter_map(|point| point.latency).fold(link.latency, Ord::min).as_secs_f64()
    };
    links.iter().map(least).sum()
}
