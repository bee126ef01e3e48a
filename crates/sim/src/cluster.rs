//! Owns the resolved description of the simulated cluster: devices, network, backend. `uniference-formats` reads it
//! from a file.

use crate::collective::choose::AlgorithmTable;
use crate::network::{Dynamics, FlowNetwork, Topology};
use crate::time::SimDuration;
use std::collections::BTreeSet;

pub use crate::device::{Device, SlowSpell};
pub use crate::transport::{Handshake, Protocol, Window};

/// All properties of a cluster that the engine needs. Rank `r` computes on `devices[r]`.
#[derive(Clone)]
pub struct Cluster {
    /// The cluster's name in reports.
    pub name: String,
    /// Devices, one for each rank.
    pub devices: Vec<Device>,
    /// Hosts, links and routes.
    pub topology: Topology,
    /// Changes of links over time, and background traffic on them.
    pub dynamics: Dynamics,
    /// Model of the communication library.
    pub backend: Backend,
}

impl Cluster {
    /// The network, at time zero.
    pub fn network(&self) -> FlowNetwork {
        FlowNetwork::changing(self.topology.clone(), self.dynamics.clone())
    }

    /// Sizes of the blocks of consecutive ranks that share a host, a server, a row of a torus and so on, by
    /// [`Topology::blocks`], if the first host has as many ranks as the others.
    pub fn blocks(&self) -> Vec<u32> {
        let Some(first) = self.devices.first() else { return Vec::new() };
        let per_host = self.devices.iter().take_while(|device| device.host == first.host).count() as u32;
        let of_hosts = self.topology.blocks().into_iter().map(|hosts| hosts * per_host);
        std::iter::once(per_host).filter(|ranks| *ranks > 1).chain(of_hosts).collect()
    }
}

/// Model of a communication library.
#[derive(Clone)]
pub struct Backend {
    /// Name of the communication library: `gloo`, `ideal`.
    pub name: String,
    /// Algorithm of each kind of collective, by size.
    pub algorithms: AlgorithmTable,
    /// Number of collectives of one group that a rank carries out at once; they start in issue order. At least 1.
    pub concurrency: u32,
    /// Overheads of a message apart from its transfer over links.
    pub protocol: Protocol,
    /// Operations that need no network.
    pub free: Free,
}

/// Operations whose messages and calls take no time, to see their cost. A receiver still waits for its sender, as the
/// algorithm prescribes; a sender does not wait. For point-to-point messages, the name of the sending operation applies
/// to both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Free {
    /// Names of the operations, from [`CallOp::name`](crate::program::CallOp::name).
    pub operations: BTreeSet<&'static str>,
    /// Time that each rank spends in such an operation before it takes part, at any size: zero, except in folded runs.
    pub takes: SimDuration,
}
