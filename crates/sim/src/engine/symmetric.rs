//! Owns folded runs, in which one rank stands for all equivalent ones: the conditions on the cluster, and on each
//! request. `comm` checks groups and collectives, and [`FoldedTopology`] checks the network.

use super::Engine;
use super::rank::RankState;
use crate::cluster::{Cluster, Device, Protocol};
use crate::ids::{HostId, RankId};
use crate::network::{Asymmetry, FlowNetwork, FoldedTopology};
use crate::program::{Activity, Call, CallOp};
use crate::symmetry::Symmetry;
use crate::time::SimDuration;

impl Engine {
    /// A run of ranks that are equivalent under `symmetry`: only representatives are resumed, and their actions count
    /// for their class. Each rank of a class finishes when its representative does; of all other events only the
    /// representatives' are observed. The caller guarantees that programs of one class make the same requests, each
    /// with its own groups and peers, whatever the order in which they learn of simultaneous events. If requests show
    /// that ranks are not equivalent, or if an order within an instant would matter, the run halts with
    /// [`super::HaltReason::Asymmetry`].
    ///
    /// # Errors
    /// If the cluster does not look the same from all ranks that should be equivalent.
    pub fn folded(cluster: &Cluster, symmetry: &Symmetry) -> Result<Engine, Asymmetry> {
        if symmetry.is_trivial() {
            return Ok(Engine::new(cluster));
        }
        if !cluster.dynamics.is_empty() {
            return Err(Asymmetry::new("dynamic links and background traffic do not affect all ranks equally"));
        }
        if let Some(key) = order_of_service(&cluster.backend.protocol) {
            let problem = format!(
                "the backend `{}` processes simultaneous messages in a fixed order (`{key}`)",
                cluster.backend.name
            );
            return Err(Asymmetry::new(problem));
        }
        if !keeps_servers(cluster, symmetry) {
            let problem = "ranks of one server would have to be equivalent to ranks of several servers";
            return Err(Asymmetry::new(problem));
        }
        let like = |device: &Device| Device { name: String::new(), host: HostId(0), ..device.clone() };
        for (rank, device) in cluster.devices.iter().enumerate() {
            let representative = &cluster.devices[symmetry.representative(rank.into()).index()];
            if like(device) != like(representative) {
                return Err(Asymmetry::new(format!("device `{}` differs from `{}`", device.name, representative.name)));
            }
        }
        let hosts = cluster.devices.iter().map(|device| device.host).collect();
        let topology = FoldedTopology::new(&cluster.topology, hosts, symmetry)?;
        let places = topology.places().filter(|_| cluster.backend.protocol.connections_per_group);
        let mut engine = Engine::of(cluster, Box::new(FlowNetwork::folded(topology)), symmetry.clone());
        engine.comm.groups.set_places(places);
        Ok(engine)
    }

    /// The symmetry that maps ranks to their representatives.
    pub fn symmetry(&self) -> &Symmetry {
        self.comm.groups.symmetry()
    }

    pub(super) fn simulated(&self) -> impl Iterator<Item = &RankState> {
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
                Err(Asymmetry::new("a receive from any source depends on the order of arrival"))
            }
            Activity::Call(Call { group, .. }) if !self.comm.groups.get(*group).admits_messages() => Err(
                Asymmetry::new(format!("{group} has point-to-point messages between members that are not symmetric")),
            ),
            _ => Ok(()),
        }
    }
}

/// Key of the backend's table that makes time depend on the order of simultaneous messages: threads that process
/// messages one after the other, or windows and handshakes that depend on earlier messages. The costs of a call, of the
/// way to another thread and of copying a tensor to the host are independent of other events. Point-to-point messages
/// are posted one after the other by each rank: `comm` checks that their order is the program's.
fn order_of_service(protocol: &Protocol) -> Option<&'static str> {
    // Every field is named, so that a new field must be considered in this function.
    let Protocol {
        connections_per_group: _,
        call: _,
        calls_overlap: _,
        hand_over: _,
        staging: _,
        buffer: _,
        handshake,
        window,
        message,
        wake,
        copy,
        reduce,
    } = protocol;
    let keys = [
        ("handshake", handshake.is_some()),
        ("window", window.is_some()),
        ("message", *message > SimDuration::ZERO),
        ("wake", *wake > SimDuration::ZERO),
        ("copy", copy.is_some()),
        ("reduce", reduce.is_some()),
    ];
    keys.into_iter().find(|(_, in_use)| *in_use).map(|(key, _)| key)
}

/// Whether shifts map servers onto servers, if algorithms depend on the number of a group's servers.
fn keeps_servers(cluster: &Cluster, symmetry: &Symmetry) -> bool {
    let Some(per_server) = cluster.backend.algorithms.per_server() else { return true };
    let server = |RankId(rank): RankId| rank / per_server;
    let ranks = (0..cluster.devices.len()).map(RankId::from);
    symmetry.generators().all(|shift| {
        let moved = |rank| server(symmetry.apply(shift, rank));
        ranks.clone().all(|rank| moved(rank) == moved(RankId(server(rank) * per_server)))
    })
}
