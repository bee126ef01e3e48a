//! Owns how long an operation takes at least on a network, whatever the algorithm: what must leave and enter each host, and the way of a byte
//! between those that are farthest apart. It knows no library, no host's work and no other traffic, all of which make an operation longer.
//!
//! For each host, the bytes that must cross its own links are compared with what these carry. Members on one host exchange for nothing and
//! combine before they send. Together, hosts must move `2 (H - 1) n` bytes to all-reduce `n` on `H` hosts (Patarasuk and Yuan, "Bandwidth optimal
//! all-reduce algorithms for clusters of workstations", 2009) and `(H - 1) n` to broadcast or reduce them (Chan, Heimlich, Purkayastha and van de Geijn,
//! "Collective communication: theory, practice, and experience", 2007). Which member is the root is not looked at: it is the one for which the bound is least.

use std::collections::{BTreeMap, BTreeSet};
use uniference_sim::cluster::Cluster;
use uniference_sim::ids::{HostId, LinkId, RankId};
use uniference_sim::network::Link;
use uniference_sim::program::{Collective, CollectiveKind, Shape};
use uniference_sim::time::Bytes;

/// Groups on more hosts have no bounds: the ways between all pairs of them are looked at.
const MOST_HOSTS: usize = 256;

/// What the hosts of a group can do at most.
pub(super) struct Reach {
    members: f64,
    hosts: Vec<HostReach>,
    /// What leaves all hosts, and enters all: links that several share count once. In bytes per second.
    egress: f64,
    ingress: f64,
    /// Of the slowest link that lies on the way of every pair; infinite if there is none.
    common: f64,
    /// Seconds between the hosts that are farthest apart, and between those that are nearest.
    diameter: f64,
    nearest: f64,
    /// The same from the host from which, or to which, all others are nearest.
    radius: f64,
}

struct HostReach {
    members: f64,
    /// What its links to and from the other hosts carry, in bytes per second.
    egress: f64,
    ingress: f64,
}

impl Reach {
    /// Of the group with these members; `None`: they are on one host, or on too many.
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

    /// Seconds from when the first member begins the collective until the last one is through; `None`: nothing is known.
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
        // What passes through such switches is less than what members exchange, and how much less is the library's business.
        if combined_by_switches {
            return Some(latency);
        }
        let (members, hosts) = (self.members, self.hosts.len() as f64);
        let rest = |host: &HostReach| (members - host.members) * bytes;
        let own = |host: &HostReach| host.members * bytes;
        // What leaves and enters the hosts, and what all together move.
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
        // The last byte to leave still has its way before it.
        let way = if kind == Barrier { 0.0 } else { self.nearest };
        Some((transfer.max(together) + way).max(latency))
    }

    /// The time of the host that needs most, of all whose links must carry so many bytes out and in.
    fn most(&self, out: impl Fn(&HostReach) -> f64, into: impl Fn(&HostReach) -> f64) -> f64 {
        let times = self.hosts.iter().map(|host| (out(host) / host.egress).max(into(host) / host.ingress));
        times.fold(0.0, f64::max)
    }

    /// The least of all hosts, each of which may be the root.
    fn least(&self, figure: impl Fn(&HostReach) -> f64) -> f64 {
        self.hosts.iter().map(figure).fold(f64::INFINITY, f64::min)
    }

    /// The time of the host that needs most but one, which may be the root.
    fn second(&self, time: impl Fn(&HostReach) -> f64) -> f64 {
        let mut times: Vec<f64> = self.hosts.iter().map(time).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() - 2]
    }
}

/// Seconds that a message of this size takes at least from one rank to another; `None`: they are on one host.
pub(super) fn of_message(cluster: &Cluster, from: RankId, to: RankId, bytes: Bytes) -> Option<f64> {
    let [from, to] = [from, to].map(|rank| cluster.devices[rank.index()].host);
    let links = (from != to).then(|| cluster.topology.route(from, to).links)?;
    let rate = links.iter().map(|link| fastest(cluster, *link)).fold(f64::INFINITY, f64::min);
    Some(bytes.0 as f64 / rate + least_latency(cluster, &links))
}

/// The size of a block of a collective: that of every rank where they are equal, else `None`.
pub(super) fn block(collective: &Collective) -> Option<Bytes> {
    let elements = match &collective.shape {
        Shape::Even(elements) => *elements,
        Shape::Blocks(blocks) if blocks.windows(2).all(|pair| pair[0] == pair[1]) => *blocks.first()?,
        Shape::Blocks(_) | Shape::Pairs { .. } => return None,
    };
    Some(Bytes(elements.saturating_mul(collective.dtype.size())))
}

/// The most payload that a link ever carries, in bytes per second.
fn fastest(cluster: &Cluster, id: LinkId) -> f64 {
    let link = cluster.topology.link(id);
    let profile = cluster.dynamics.links.get(&id).and_then(|changes| changes.profile.as_ref());
    let points = profile.iter().flat_map(|profile| profile.points.iter());
    let rates = points.filter_map(|point| point.bandwidth).map(|bandwidth| Link { bandwidth, ..link.clone() });
    rates.map(|link| link.payload_rate().bytes_per_second()).fold(link.payload_rate().bytes_per_second(), f64::max)
}

/// The least time that a byte ever takes over links, in seconds.
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
