//! Owns the resolved description of what is simulated: devices, network, backend. Reading it from a file is `uniference-formats`' business.

use crate::collective::choose::AlgorithmTable;
use crate::network::{Dynamics, FlowNetwork, Topology};
use crate::time::SimDuration;
use std::collections::BTreeSet;

pub use crate::device::{Device, SlowSpell};
pub use crate::transport::{Handshake, Protocol, Window};

/// Everything the engine must know about a cluster. Rank `r` computes on `devices[r]`.
#[derive(Clone)]
pub struct Cluster {
    /// The cluster's name in reports.
    pub name: String,
    /// One for every rank.
    pub devices: Vec<Device>,
    /// Hosts, links and routes.
    pub topology: Topology,
    /// How links change, and others' traffic on them.
    pub dynamics: Dynamics,
    /// How the communication library behaves.
    pub backend: Backend,
}

impl Cluster {
    /// The network, at time zero.
    pub fn network(&self) -> FlowNetwork {
        FlowNetwork::changing(self.topology.clone(), self.dynamics.clone())
    }

    /// How many consecutive ranks share a host, a server, a row of a torus and so on, by [`Topology::blocks`], where the first host has as many ranks
    /// as the others.
    pub fn blocks(&self) -> Vec<u32> {
        let Some(first) = self.devices.first() else { return Vec::new() };
        let per_host = self.devices.iter().take_while(|device| device.host == first.host).count() as u32;
        let of_hosts = self.topology.blocks().into_iter().map(|hosts| hosts * per_host);
        std::iter::once(per_host).filter(|ranks| *ranks > 1).chain(of_hosts).collect()
    }
}

/// How a communication library behaves.
#[derive(Clone)]
pub struct Backend {
    /// Name of the communication library: `gloo`, `ideal`.
    pub name: String,
    /// Which algorithm each kind of collective uses, by size.
    pub algorithms: AlgorithmTable,
    /// How many collectives of one group one rank carries out at once; they start in issue order. At least 1.
    pub concurrency: u32,
    /// What happens to a message besides its way over links.
    pub protocol: Protocol,
    /// Operations that do without the network.
    pub free: Free,
}

/// Operations whose messages and calls take no time: to see what they cost. Who receives still waits for who sends, as the algorithm has it; who
/// sends waits for nobody. Of messages between two ranks, the sender's name counts for both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Free {
    /// Names of the operations, as [`CallOp::name`](crate::program::CallOp::name) gives them.
    pub operations: BTreeSet<&'static str>,
    /// The time that each rank spends in such an operation before it takes part, whatever its size: zero, but in rehearsals of folded programs.
    pub takes: SimDuration,
}
