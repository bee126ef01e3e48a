//! Owns NCCL's choice of shape and protocol for a call, by NCCL's own model of time ([`tuning`]), and the effect of the
//! choice on messages: as measured inside a server ([`timing`]), by NCCL's model across servers.
//!
//! The module implements these shapes: rings with the steps of [`super::ring`], or of [`super::rails`] if servers have
//! several NICs; trees with the steps of [`super::double_tree`]; broadcast and reduce along a [`super::chain`]; NVLink
//! SHARP of [`super::nvls`]; its trees across servers of [`super::nvls_tree`].
//!
//! Channels are the thread blocks that carry out a call concurrently, each with its part of every message. They share
//! links like one connection stream, so this model does not distinguish them: across servers a call that is too small
//! for all channels gets its part of the rate, and trees and chains forward a chunk of each channel at once. A step of a
//! ring is one message: NCCL cuts it into slices, whose overlap is part of the measured hops.

use super::chain::Chain;
use super::double_tree::{DoubleTree, Servers};
use super::linear::Linear;
use super::nvls::Nvls;
use super::nvls_tree::NvlsTree;
use super::rails::Rails;
use super::ring::Ring;
use super::{Algorithm, GroupRank, Hop, Steps, Surroundings, Wire};
use crate::program::{Collective, CollectiveKind};
use crate::symmetry::Relabeling;
use crate::time::SimDuration;
use std::sync::Arc;
use timing::Duration;
use tuning::{Model, Protocol, Shape, VARIANTS, Variant};

mod timing;
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
            CollectiveKind::Barrier => return Arc::new(self.barrier(size)),
            // Sends and receives of one group call.
            CollectiveKind::AllToAll | CollectiveKind::Gather | CollectiveKind::Scatter => {
                return Arc::new(self.messages(call, size));
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

    /// A barrier is an all-reduce of one number; its time is spread over the rounds of a barrier.
    fn barrier(&self, size: u32) -> Carried {
        let model = Model::new(self.surroundings, size);
        let ring = &VARIANTS[0];
        let microseconds = if model.is_across() {
            let time = |variant: &Variant| model.microseconds(variant, CollectiveKind::AllReduce, 4);
            VARIANTS[..6].iter().map(time).fold(f64::INFINITY, f64::min)
        } else {
            let (steps, _) = model.ring_steps(CollectiveKind::AllReduce);
            model.fabric().ring(ring.protocol, model.inside(), size, steps, 4).fixed
        };
        let rounds = f64::from(u32::BITS - (size - 1).leading_zeros());
        let hop = hop(1.0, (microseconds - LAUNCH) / rounds);
        let inner = Arc::new(super::dissemination::Dissemination);
        Carried { name: "dissemination", inner, wire: Wire { inside: hop, between: hop } }
    }

    fn messages(&self, call: &Collective, size: u32) -> Carried {
        let all = call.bytes(size).0;
        let even = matches!(call.shape, crate::program::Shape::Even(_)) && call.kind != CollectiveKind::AllToAll;
        let each = if even { all } else { all / u64::from(size) };
        let wire = wire_of_group(self.surroundings, size - 1, each, call.kind == CollectiveKind::AllToAll);
        Carried { inner: Arc::new(Linear), name: Linear.name(), wire }
    }
}

/// One shape and protocol for every call, as `NCCL_ALGO` and `NCCL_PROTO` force it. Calls that need switches that reduce
/// use a ring if there are none.
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
        let model = Model::new(self.surroundings, size);
        let needs_switches = matches!(self.variant.shape, Shape::Nvls | Shape::NvlsTree);
        let [_, _, ring_simple, ..] = &VARIANTS;
        let variant = if needs_switches && !model.fits(self.variant, call) { ring_simple } else { self.variant };
        carried(&model, self.surroundings, variant, call, size)
    }
}

/// Effect of NCCL on a message of `bytes` between two ranks.
pub(super) fn wire_of_messages(surroundings: Surroundings, bytes: u64) -> Wire {
    wire_of_group(surroundings, 1, bytes, false)
}

/// Effect of NCCL on messages of `bytes` to and from each of `peers` peers in one group call. With `own`, the rank also
/// copies a block of its own. A message between servers leaves through one NIC, and never depends on the access of GPUs
/// to each other's memory.
fn wire_of_group(surroundings: Surroundings, peers: u32, bytes: u64, own: bool) -> Wire {
    let model = Model::new(surroundings, 1);
    let fabric = model.fabric();
    let [inside, between] = model.channels_left();
    let near = peers.min(surroundings.per_server.saturating_sub(1)).max(1);
    let far = fabric.peer() * f64::from(peers.saturating_sub(near)) - LAUNCH;
    let Duration { fixed, carried } = fabric.messages(model.inside(), near, bytes.max(1), own);
    // Only in an all-to-all do all ranks send at once.
    let users = if own { model.users(near + 1) } else { 1.0 };
    let crossing = f64::from(near) * bytes.max(1) as f64 / (model.bus() * 1e3) * users;
    let start = fabric.messages(model.inside(), near, 1, false).fixed;
    let protocol = if bytes <= fabric.largest_ll_message() { Protocol::Ll } else { Protocol::Simple };
    // No other step hides the network's latency, as in a tree.
    let network = start + tuning::NETWORK_HOPS[1][protocol as usize];
    Wire { inside: hop(crossing / carried * inside, fixed + far), between: hop(between, network + far) }
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
        (Shape::NvlsTree, _) => Arc::new(NvlsTree { per_server }),
        (Shape::Tree, _) => Arc::new(DoubleTree { chunk, servers }),
        (Shape::Ring, _) if rails => Arc::new(Rails { per_server, nics }),
        (Shape::Ring, _) => Arc::new(Ring),
    };
    Carried { inner, name: variant.name, wire }
}

/// Time before the first step that the profile's `call` contains, in microseconds: less than any GPU's.
const LAUNCH: f64 = 4.0;

/// Effect of a variant on messages.
fn wire(model: &Model, variant: &Variant, kind: CollectiveKind, bytes: u64, size: u32) -> Wire {
    match variant.shape {
        Shape::NvlsTree => wire_of_nvls_tree(model, bytes.max(1)),
        Shape::Ring | Shape::Nvls if !model.is_across() => measured(model, variant, kind, bytes.max(1), size),
        _ => estimated(model, variant, kind, bytes, size),
    }
}

/// Effect on messages that gives a call on an idle server its measured time.
fn measured(model: &Model, variant: &Variant, kind: CollectiveKind, bytes: u64, size: u32) -> Wire {
    let (fabric, rate, ranks) = (model.fabric(), model.inside(), f64::from(size));
    let left = f64::from(model.channels().min(model.usual_channels())) / f64::from(model.usual_channels());
    let is_chain = matches!(kind, CollectiveKind::Broadcast | CollectiveKind::Reduce);
    let (rounds, crossing, Duration { fixed, carried }) = match variant.shape {
        Shape::Nvls => {
            // Without the switches' help each block would cross every link of the others.
            let crossing = phases(kind) * (ranks - 1.0) / ranks * bytes as f64;
            (phases(kind), crossing, fabric.nvls(rate, size, bytes))
        }
        _ if is_chain => {
            let fixed = fabric.start(variant.protocol) + (ranks - 1.0) * fabric.hop(variant.protocol, rate);
            let carried = bytes as f64 / (fabric.used(variant.protocol, rate, ranks) * 1e3);
            (ranks - 1.0, bytes as f64, Duration { fixed, carried })
        }
        _ => {
            let (steps, _) = model.ring_steps(kind);
            let crossing = steps / ranks * bytes as f64;
            (steps, crossing, fabric.ring(variant.protocol, rate, size, steps, bytes))
        }
    };
    let occupied = crossing / (model.bus() * 1e3) * model.users(size);
    let hop = hop(occupied / carried * left, (fixed - LAUNCH) / rounds);
    Wire { inside: hop, between: hop }
}

/// Effect on messages of NVLink SHARP's trees: a pipeline of the switches and the network, whose slower part
/// determines the time. Phases follow each other, so that the switches' phases have the time that the network leaves.
fn wire_of_nvls_tree(model: &Model, bytes: u64) -> Wire {
    let gpus = f64::from(model.trees().expect("several equal servers").gpus);
    let (servers, bytes) = (f64::from(model.servers()), bytes as f64 / 1e3);
    let switched = bytes / model.fabric().nvls_rate(model.inside(), gpus);
    let across = 2.0 * (servers - 1.0) / servers * bytes / model.network();
    let crossing = 2.0 * (gpus - 1.0) / gpus * bytes / model.inside();
    let left = (switched - across).max(crossing / 1e3);
    let hops = f64::from(model.servers().ilog2()) * tuning::NVLS_TREE_HOP;
    Wire { inside: hop(crossing / left, (tuning::NVLS - LAUNCH) / 2.0), between: hop(1.0, hops) }
}

/// Effect of NCCL's own model on messages: the rate of their bytes, the latency of hops, and the model's start time,
/// which is spread over the hops.
fn estimated(model: &Model, variant: &Variant, kind: CollectiveKind, bytes: u64, size: u32) -> Wire {
    let used = f64::from(model.channels_for(variant, bytes)) / f64::from(model.channels());
    let share = model.rate(variant, kind) / model.bus() * used;
    let start = start(model, variant, kind, size);
    let [inside, between] = model.hops(variant).map(|microseconds| hop(share, microseconds + start));
    Wire { inside, between }
}

/// Part of each hop in the time before the first step, in microseconds.
fn start(model: &Model, variant: &Variant, kind: CollectiveKind, size: u32) -> f64 {
    let rounds = match variant.shape {
        Shape::Nvls | Shape::NvlsTree => phases(kind),
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
            Shape::Tree | Shape::NvlsTree => &[AllReduce],
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
