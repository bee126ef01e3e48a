//! Owns what tests of several modules share.

use uniference_formats::cluster::{Choices, ClusterFile, Flags};
use uniference_sim::cluster::Cluster;

/// An ideal switch of 1 GB/s without latency, with one rank per host.
pub(crate) fn cluster(ranks: u32) -> Cluster {
    let flags = Flags {
        ranks,
        bandwidth: Some("8 Gbps".parse().unwrap()),
        latency: Some("0 us".parse().unwrap()),
        slowdown: vec![],
    };
    let choices = Choices { backend: Some("ideal".into()), ..Choices::default() };
    ClusterFile::parse("test", &flags.to_toml().unwrap(), &[]).unwrap().resolve(&choices).unwrap().cluster
}
