//! Owns the resolved description of what is simulated: devices, network, backend. Reading it from a file is `uniference-formats`' business.

use crate::collective::choose::AlgorithmTable;
use crate::ids::HostId;
use crate::network::Topology;
use crate::time::Bytes;

/// Everything the engine must know about a cluster. Rank `r` computes on `devices[r]`.
#[derive(Clone)]
pub struct Cluster {
    /// For people.
    pub name: String,
    /// One for every rank.
    pub devices: Vec<Device>,
    /// Hosts, links and routes.
    pub topology: Topology,
    /// How the communication library behaves.
    pub backend: Backend,
}

/// What a rank computes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// `orin.0`.
    pub name: String,
    /// Where it is.
    pub host: HostId,
    /// Compute takes this many times as long as on the reference device; finite, above zero.
    pub slowdown: f64,
    /// How much it has, if that is known.
    pub memory: Option<Bytes>,
}

/// How a communication library behaves.
#[derive(Clone)]
pub struct Backend {
    /// `gloo`, `ideal`.
    pub name: String,
    /// Which algorithm each kind of collective uses, by size.
    pub algorithms: AlgorithmTable,
    /// How many collectives of one group one rank carries out at once; they start in issue order. At least 1.
    pub concurrency: u32,
}
