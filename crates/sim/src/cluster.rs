//! Owns the resolved description of what is simulated: devices, network, backend. Reading it from a file is `uniference-formats`' business.

use crate::collective::choose::AlgorithmTable;
use crate::ids::HostId;
use crate::network::{Dynamics, FlowNetwork, Topology};
use crate::time::{Bytes, SimDuration, SimTime};

pub use crate::transport::{Handshake, Protocol, Window};

/// Everything the engine must know about a cluster. Rank `r` computes on `devices[r]`.
#[derive(Clone)]
pub struct Cluster {
    /// For people.
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
    /// When it is slower than that: in order, none overlapping another.
    pub spells: Vec<SlowSpell>,
    /// When its rank crashes, unless it has ended before: its process is gone, and its connections are closed.
    pub crash: Option<SimTime>,
}

/// A time in which a device takes longer still.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowSpell {
    /// Since when.
    pub from: SimTime,
    /// Until when.
    pub to: SimTime,
    /// So many times as long as otherwise; finite, above zero.
    pub factor: f64,
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

impl Device {
    /// How long work takes that begins at `start` and takes `base` on the reference device.
    pub fn time_for(&self, start: SimTime, base: SimDuration) -> SimDuration {
        let mut left = base.scaled(self.slowdown);
        let mut now = start;
        for spell in self.spells.iter().filter(|spell| spell.to > start) {
            let before = spell.from.as_ps().saturating_sub(now.as_ps());
            if left.as_ps() <= before {
                break;
            }
            left = SimDuration::from_ps(left.as_ps() - before);
            now = now.max(spell.from);
            let (during, length) = (left.scaled(spell.factor), spell.to.since(now));
            if during <= length {
                return SimDuration::from_ps(now.since(start).as_ps().saturating_add(during.as_ps()));
            }
            left = left.saturating_sub(length.scaled(1.0 / spell.factor));
            now = spell.to;
        }
        SimDuration::from_ps(now.since(start).as_ps().saturating_add(left.as_ps()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::PS_PER_SECOND;

    /// Twice as slow as the reference, and from second 3 to 5 four times as slow again. Work of `base` seconds that begins at `start` ends:
    /// before the spell, start + 2 base; in the spell, 8 seconds go by for each of the base; what is left after it, 2 again.
    #[test]
    fn a_spell_slows_what_falls_into_it() {
        let second = |s: f64| SimTime::from_ps((s * PS_PER_SECOND as f64) as u64);
        let spells = vec![SlowSpell { from: second(3.0), to: second(5.0), factor: 4.0 }];
        let device = Device { name: "a".into(), host: HostId(0), slowdown: 2.0, memory: None, spells, crash: None };
        let cases = [
            (0.0, 1.0, 2.0),
            (0.0, 1.5, 3.0),
            // 2 s before it, in which 1 s of work is done, and 0.125 * 8 s in it.
            (1.0, 1.125, 4.0),
            // From its beginning: 2 s do 0.25 s of work, the other 0.75 take 1.5 s.
            (3.0, 1.0, 6.5),
            (4.0, 0.125, 5.0),
            (5.0, 1.0, 7.0),
        ];
        for (start, base, end) in cases {
            let lasts = device.time_for(second(start), second(base).since(SimTime::ZERO));
            assert_eq!(second(start) + lasts, second(end), "{base} s of work from {start} s on");
        }
    }
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
    /// What happens to a message besides its way over links.
    pub protocol: Protocol,
}
