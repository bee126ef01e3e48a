//! Owns NCCL's choice of shape and protocol for a call, by NCCL's own model of time ([`tuning`]), and the effect of the
//! choice on messages.
//!
//! The module implements these shapes: rings with the steps of [`super::ring`], or of [`super::rails`] if servers have
//! several NICs; trees with the steps of [`super::double_tree`]; broadcast and reduce along a [`super::chain`]; NVLink
//! SHARP of [`super::nvls`].
//!
//! Channels are the thread blocks that carry out a call concurrently, each with its part of every message. They share
//! links like one connection stream, so this model does not distinguish them: a call that is too small for all channels
//! gets its part of the rate, and trees and chains forward a chunk of each channel at once. A step of a ring is one
//! message: NCCL cuts it into slices, whose overlap is part of the measured hops.

use super::chain::Chain;
use super::double_tree::{DoubleTree, Servers};
use super::linear::Linear;
use super::nvls::Nvls;
use super::rails::Rails;
use super::ring::Ring;
use super::{Algorithm, GroupRank, Hop, Steps, Surroundings, Wire};
use crate::program::{Collective, CollectiveKind};
use crate::symmetry::Relabeling;
use crate::time::SimDuration;
use std::sync::Arc;
use tuning::{Model, Protocol, Shape, VARIANTS, Variant};

mod tuning;

/// NCCL's own choice.
pub(super) struct Nccl {
    surroundings: Surroundings,
}

impl Nccl {
    pub(super) fn new(surroundings: Surroundings) -> Nccl {
        Nccl { surroundings }
    }

    fn choose(&self, call: &Collective, size: u32) -> Arc<dyn Algorithm> {
        match call.kind {
            // A barrier is an all-reduce of one number; the others are sends and receives of one group call.
            CollectiveKind::Barrier => return Arc::new(super::dissemination::Dissemination),
            CollectiveKind::AllToAll | CollectiveKind::Gather | CollectiveKind::Scatter => {
                return match wire_of_messages(self.surroundings) {
                    Some(wire) => Arc::new(Carried { inner: Arc::new(Linear), name: Linear.name(), wire }),
                    None => Arc::new(Linear),
                };
            }
            _ => {}
        }
        let model = Model::new(self.surroundings, size);
        let bytes = total_bytes(call, size);
        let time = |variant: &&Variant| model.microseconds(variant, call.kind, bytes);
        let fitting = || VARIANTS.iter().filter(|variant| model.fits(variant, call));
        let allowed = fitting().filter(|variant| variant.is_allowed(&self.surroundings.settings, call.kind));
        let fastest = allowed.min_by(|a, b| time(a).total_cmp(&time(b)));
        // If the program's settings exclude every variant for a call, NCCL fails. The simulation then ignores the
        // settings; a warning says so.
        let variant = fastest.or_else(|| fitting().min_by(|a, b| time(a).total_cmp(&time(b))));
        let variant = variant.expect("a ring carries out any of these");
        Arc::new(carried(&model, self.surroundings, variant, call, size))
    }
}

/// One shape and protocol for every call, as `NCCL_ALGO` and `NCCL_PROTO` force it.
pub(super) struct Forced {
    variant: &'static Variant,
    surroundings: Surroundings,
}

impl Forced {
    /// All variants.
    pub(super) fn all(surroundings: Surroundings) -> impl Iterator<Item = Forced> {
        VARIANTS.iter().map(move |variant| Forced { variant, surroundings })
    }

    fn carried(&self, call: &Collective, size: u32) -> Carried {
        carried(&Model::new(self.surroundings, size), self.surroundings, self.variant, call, size)
    }
}

/// Share of the links' rate that the program's settings leave to messages between two ranks; `None` if they have the
/// full rate.
pub(super) fn wire_of_messages(surroundings: Surroundings) -> Option<Wire> {
    let [inside, between] = tuning::message_shares(surroundings).map(|share| hop(share, 0.0));
    (inside.efficiency < 1000 || between.efficiency < 1000).then_some(Wire { inside, between })
}

/// Size of a call by NCCL's definition: the bytes of all blocks together.
fn total_bytes(call: &Collective, size: u32) -> u64 {
    let blocks = matches!(call.kind, CollectiveKind::AllGather | CollectiveKind::ReduceScatter);
    call.bytes(size).0.saturating_mul(if blocks { u64::from(size) } else { 1 })
}

fn carried(model: &Model, surroundings: Surroundings, variant: &Variant, call: &Collective, size: u32) -> Carried {
    let bytes = total_bytes(call, size);
    let chunk = model.chunk(variant, call.kind, bytes);
    let per_server = surroundings.per_server;
    let nics = surroundings.cards;
    let has_rails = model.servers() > 1 && nics > 1 && per_server.is_multiple_of(nics);
    let rails = has_rails && size.is_multiple_of(per_server);
    let mut wire = wire(model, variant, call.kind, bytes, size);
    let servers = model.trees().unwrap_or(Servers::ALONE);
    if rails && variant.shape == Shape::Ring {
        // Rings that wait for each other would wait for the longest hop in every round; each ring alone has few long
        // hops.
        let mean = model.mean_hop(variant, call.kind) + start(model, variant, call.kind, size);
        (wire.inside.latency, wire.between.latency) = (latency(mean), latency(mean));
    }
    let inner: Arc<dyn Algorithm> = match (variant.shape, call.kind) {
        (_, CollectiveKind::Broadcast | CollectiveKind::Reduce) => Arc::new(Chain { chunk, servers }),
        (Shape::Nvls, _) => Arc::new(Nvls),
        (Shape::Tree, _) => Arc::new(DoubleTree { chunk, servers }),
        (Shape::Ring, _) if rails => Arc::new(Rails { per_server, nics }),
        (Shape::Ring, _) => Arc::new(Ring),
    };
    Carried { inner, name: variant.name, wire }
}

/// Time before the first step that the profile's `call` contains, in microseconds: the start of a ring with `Ll`.
const LAUNCH: f64 = 6.6;

/// Effect of the model on messages: the rate of their bytes, the latency of hops, and the model's start time, which is
/// spread over the hops.
fn wire(model: &Model, variant: &Variant, kind: CollectiveKind, bytes: u64, size: u32) -> Wire {
    let (ranks, phases) = (f64::from(size), phases(kind));
    let used = f64::from(model.channels_for(variant, bytes)) / f64::from(model.channels());
    let share = model.rate(variant, kind) / model.bus() * used;
    let (efficiency, hops) = match variant.shape {
        // Without the switches' help each block would cross every link of the others.
        Shape::Nvls => (share * phases * (ranks - 1.0) / ranks, [tuning::NVLS / phases; 2]),
        Shape::Ring => (share, model.hops(variant)),
        Shape::Tree => {
            // The model adds time to `Simple` for a chunk. In this simulation a chunk is a message of its own; the rest
            // is a ring's hop.
            let ring = VARIANTS.iter().find(|ring| ring.shape == Shape::Ring && ring.protocol == Protocol::Simple);
            let hops = ring.filter(|_| variant.protocol == Protocol::Simple).unwrap_or(variant);
            (share, model.hops(hops))
        }
    };
    let start = start(model, variant, kind, size);
    let [inside, between] = hops.map(|microseconds| hop(efficiency, microseconds + start));
    Wire { inside, between }
}

/// Part of each hop in the time before the first step, in microseconds.
fn start(model: &Model, variant: &Variant, kind: CollectiveKind, size: u32) -> f64 {
    let rounds = match variant.shape {
        Shape::Nvls => phases(kind),
        Shape::Ring => phases(kind) * f64::from(size - 1),
        Shape::Tree if model.trees().is_some() => 2.0 * f64::from(size / model.servers() - 1 + model.servers().ilog2()),
        Shape::Tree => 2.0 * f64::from(size.next_power_of_two().ilog2()),
    };
    (model.base(variant) - LAUNCH).max(0.0) / rounds
}

/// Number of times that elements cross the group: once to be combined, once to be distributed.
fn phases(kind: CollectiveKind) -> f64 {
    if kind == CollectiveKind::AllReduce { 2.0 } else { 1.0 }
}

fn hop(efficiency: f64, microseconds: f64) -> Hop {
    Hop { efficiency: ((efficiency * 1000.0).round() as u32).max(1), latency: latency(microseconds) }
}

fn latency(microseconds: f64) -> SimDuration {
    SimDuration::from_ns((microseconds * 1e3).round() as u64)
}

impl Algorithm for Nccl {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn library(&self) -> Option<&'static str> {
        Some("nccl")
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &CollectiveKind::ALL
    }

    fn steps(&self, call: &Collective, size: u32, me: GroupRank) -> Steps {
        self.choose(call, size).steps(call, size, me)
    }

    fn decide(&self, call: &Collective, size: u32) -> Option<Arc<dyn Algorithm>> {
        Some(self.choose(call, size))
    }

    fn adapted(&self, surroundings: Surroundings) -> Option<Arc<dyn Algorithm>> {
        Some(Arc::new(Nccl { surroundings }))
    }
}

impl Algorithm for Forced {
    fn name(&self) -> &'static str {
        self.variant.name
    }

    fn library(&self) -> Option<&'static str> {
        Some("nccl")
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        use CollectiveKind::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
        match self.variant.shape {
            Shape::Ring => &[AllReduce, AllGather, ReduceScatter, Broadcast, Reduce],
            Shape::Nvls => &[AllReduce, AllGather, ReduceScatter],
            Shape::Tree => &[AllReduce],
        }
    }

    fn steps(&self, call: &Collective, size: u32, me: GroupRank) -> Steps {
        self.carried(call, size).steps(call, size, me)
    }

    fn decide(&self, call: &Collective, size: u32) -> Option<Arc<dyn Algorithm>> {
        Some(Arc::new(self.carried(call, size)))
    }

    fn adapted(&self, surroundings: Surroundings) -> Option<Arc<dyn Algorithm>> {
        Some(Arc::new(Forced { variant: self.variant, surroundings }))
    }

    fn symmetry(&self, call: &Collective, size: u32) -> Option<Relabeling> {
        self.carried(call, size).symmetry(call, size)
    }
}

/// Steps of another algorithm, with the overheads of one of the protocols.
struct Carried {
    inner: Arc<dyn Algorithm>,
    name: &'static str,
    wire: Wire,
}

impl Algorithm for Carried {
    fn name(&self) -> &'static str {
        self.name
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        self.inner.kinds()
    }

    fn steps(&self, call: &Collective, size: u32, me: GroupRank) -> Steps {
        self.inner.steps(call, size, me)
    }

    fn wire(&self) -> Option<Wire> {
        Some(self.wire)
    }

    fn symmetry(&self, call: &Collective, size: u32) -> Option<Relabeling> {
        self.inner.symmetry(call, size)
    }
}

#[cfg(test)]
mod tests;
