//! Owns the page's data of links' load over time. `uniference_formats::trace` counts their bytes.

use serde::Serialize;
use std::cmp::Reverse;
use uniference_formats::trace::LinkRates;
use uniference_sim::cluster::Cluster;
use uniference_sim::ids::LinkId;

/// Maximum number of links on a page: the links that carried most data.
const MOST_LINKS: usize = 64;
/// Maximum number of time intervals in which the load of a link is shown.
const MOST_PIECES: usize = 128;

/// The load of a run's links.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinksChart {
    /// Length of a time interval, in picoseconds.
    pub piece_ps: u64,
    /// The links, in the cluster's order.
    pub links: Vec<LinkChart>,
    /// Names of the hosts; other ends of links are switches and media.
    pub hosts: Vec<String>,
    /// Number of links that carried bytes and are not shown.
    pub left_out: usize,
}

/// The load of one link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkChart {
    /// `a.0 -> switch`.
    pub name: String,
    /// Maximum rate, headers included, in bytes per second, without changes by the cluster file.
    pub bandwidth: f64,
    /// Bytes carried, headers included.
    pub bytes: u64,
    /// Load by time interval, in thousandths of the maximum.
    pub used: Vec<u32>,
}

impl LinksChart {
    /// The chart of a run of `makespan_ps`.
    pub(super) fn new(rates: &LinkRates, cluster: &Cluster, makespan_ps: u64) -> LinksChart {
        let mut all: Vec<(LinkId, &[u64], u64)> =
            rates.bytes().map(|(link, bins)| (link, bins, bins.iter().sum())).filter(|(.., sum)| *sum > 0).collect();
        let left_out = all.len().saturating_sub(MOST_LINKS);
        all.sort_by_key(|(link, _, sum)| (Reverse(*sum), *link));
        all.truncate(MOST_LINKS);
        all.sort_by_key(|(link, ..)| *link);
        let pieces = makespan_ps.div_ceil(rates.width_ps()).max(1) as usize;
        let together = pieces.div_ceil(MOST_PIECES);
        let piece_ps = rates.width_ps() * together as u64;
        let link = |(link, bins, bytes): (LinkId, &[u64], u64)| {
            let link = cluster.topology.link(link);
            let bandwidth = link.bandwidth.bytes_per_second();
            let most = bandwidth * piece_ps as f64 / 1e12;
            let used = bins.chunks(together).map(|bins| bins.iter().sum::<u64>() as f64 / most);
            let used = used.map(|share| (1000.0 * share).round() as u32).collect();
            LinkChart { name: link.name.clone(), bandwidth, bytes, used }
        };
        let hosts = cluster.topology.hosts().to_vec();
        LinksChart { piece_ps, links: all.into_iter().map(link).collect(), hosts, left_out }
    }
}
