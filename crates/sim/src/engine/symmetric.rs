//! Owns runs in which one rank stands for all that are alike: what must be true of the cluster before, and of each request as it comes.
//! Whether groups and collectives are alike is `comm`'s to check, whether the network is [`FoldedTopology`]'s.

use super::Engine;
use super::rank::Rank;
use crate::cluster::{Cluster, Device, Protocol};
use crate::ids::HostId;
use crate::network::{Asymmetry, FlowNetwork, FoldedTopology};
use crate::program::{Activity, Call, CallOp};
use crate::symmetry::Symmetry;

impl Engine {
    /// A run of ranks that are alike under `symmetry`: only representatives are resumed, and what they do counts for their class.
    /// Each rank of a class finishes when its representative does; of other events only the representatives' are observed. That
    /// programs of one class ask for the same, each in its own place, whatever the order in which they hear of what happens at one instant, is
    /// the caller's promise. Where requests themselves show that ranks are not alike, and where an order within an instant would
    /// count, the run halts with [`super::Cause::Asymmetry`].
    ///
    /// # Errors
    /// If the cluster does not look the same from ranks that should be alike.
    pub fn folded(cluster: &Cluster, symmetry: &Symmetry) -> Result<Engine, Asymmetry> {
        if symmetry.is_trivial() {
            return Ok(Engine::new(cluster));
        }
        if !cluster.dynamics.is_empty() {
            return Err(Asymmetry::new("links that change, and others' traffic, are not alike for all"));
        }
        if !serves_in_no_order(&cluster.backend.protocol) {
            let backend = &cluster.backend.name;
            return Err(Asymmetry::new(format!("the backend `{backend}` may serve ranks in an order")));
        }
        let like = |device: &Device| Device { name: String::new(), host: HostId(0), ..device.clone() };
        for (rank, device) in cluster.devices.iter().enumerate() {
            let representative = &cluster.devices[symmetry.representative(rank.into()).index()];
            if like(device) != like(representative) {
                return Err(Asymmetry::new(format!("device `{}` is unlike `{}`", device.name, representative.name)));
            }
        }
        let hosts = cluster.devices.iter().map(|device| device.host).collect();
        let topology = FoldedTopology::new(&cluster.topology, hosts, symmetry)?;
        let places = topology.places().filter(|_| cluster.backend.protocol.connections_per_group);
        let mut engine = Engine::of(cluster, Box::new(FlowNetwork::folded(topology)), symmetry.clone());
        engine.comm.groups.set_places(places);
        Ok(engine)
    }

    /// Which ranks stand for which.
    pub fn symmetry(&self) -> &Symmetry {
        self.comm.groups.symmetry()
    }

    pub(super) fn simulated(&self) -> impl Iterator<Item = &Rank> {
        self.ranks.iter().filter(|rank| self.symmetry().is_representative(rank.id))
    }

    pub(super) fn check_symmetry(&self, activity: &Activity) -> Result<(), Asymmetry> {
        if self.symmetry().is_trivial() {
            return Ok(());
        }
        match activity {
            Activity::Store(_) => Err(Asymmetry::store()),
            Activity::Call(Call { group, op: CallOp::Collective(collective) }) => {
                self.comm.check_symmetry(*group, collective)
            }
            Activity::Call(Call { op: CallOp::Recv { from: None, .. }, .. }) => {
                Err(Asymmetry::new("a receive from any rank takes what comes first"))
            }
            Activity::Call(Call { group, .. }) if !self.comm.groups.get(*group).admits_messages() => {
                Err(Asymmetry::new(format!("{group} has messages between members besides its collectives")))
            }
            _ => Ok(()),
        }
    }
}

/// As `ideal` does: threads take messages one after the other, windows and handshakes follow what came before.
fn serves_in_no_order(protocol: &Protocol) -> bool {
    *protocol == Protocol { connections_per_group: protocol.connections_per_group, ..Protocol::default() }
}
