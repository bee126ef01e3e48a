//! Owns NCCL's own model of time: the variants of shape and protocol, and the estimated time of each. [`super`] carries
//! them out, and [`super::timing`] has their measured times inside a server.
//!
//! Source: NVIDIA/nccl 2.27.7, `src/graph/tuning.cc` (times, rates per channel, corrections), `src/enqueue.cc`
//! (channels by size, chunks), `src/include/device.h` (buffers), for Ampere, Hopper and Blackwell GPUs and Intel CPUs.
//! Left out: CollNet, which needs a network that reduces; PAT, which needs one GPU per server; a NIC's own latency; and
//! the search for channels, which is replaced by its usual results.

use super::super::double_tree::Servers;
use super::super::{GpuGeneration, Surroundings};
use crate::program::{Collective, CollectiveKind, DType, NcclSettings, ReduceOp};

/// A combination of shape and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    /// Name, as `ring_ll`.
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) protocol: Protocol,
}

impl Variant {
    /// Whether a program's settings leave the variant to a kind of collective.
    pub(super) fn is_allowed(self, settings: &NcclSettings, kind: CollectiveKind) -> bool {
        let algorithm = match self.shape {
            Shape::Ring => NcclSettings::RING,
            Shape::Tree => NcclSettings::TREE,
            Shape::Nvls | Shape::NvlsTree => NcclSettings::NVLS,
        };
        let protocol = match self.protocol {
            Protocol::Ll => NcclSettings::LL,
            Protocol::Ll128 => NcclSettings::LL128,
            Protocol::Simple => NcclSettings::SIMPLE,
        };
        settings.algorithms_for(kind) & algorithm != 0 && settings.protocols_for(kind) & protocol != 0
    }
}

/// The pattern of communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Ring,
    Tree,
    /// Reduction and multicast by the switches of a server's NVLinks (NVLink SHARP).
    Nvls,
    /// NVLink SHARP inside servers, and trees across servers.
    NvlsTree,
}

/// Encoding of bytes on a link: `Ll` 8 bytes with 8 bytes of flags and no fence, `Ll128` 120 of 128 bytes, `Simple`
/// whole chunks with a fence after each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Ll,
    Ll128,
    Simple,
}

const fn variant(name: &'static str, shape: Shape, protocol: Protocol) -> Variant {
    Variant { name, shape, protocol }
}

pub(super) static VARIANTS: [Variant; 8] = [
    variant("ring_ll", Shape::Ring, Protocol::Ll),
    variant("ring_ll128", Shape::Ring, Protocol::Ll128),
    variant("ring_simple", Shape::Ring, Protocol::Simple),
    variant("tree_ll", Shape::Tree, Protocol::Ll),
    variant("tree_ll128", Shape::Tree, Protocol::Ll128),
    variant("tree_simple", Shape::Tree, Protocol::Simple),
    variant("nvls", Shape::Nvls, Protocol::Simple),
    variant("nvls_tree", Shape::NvlsTree, Protocol::Simple),
];

/// Interconnect of the GPUs of a server. NCCL asks the hardware; here NVLink is a rate of 100 GB/s and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fabric {
    /// PCI Express, through the host's memory.
    Host,
    /// PCI Express, with direct access to other GPUs' memory.
    Pcie,
    /// NVLink of Ampere GPUs.
    Nvlink3,
    /// NVLink of Hopper GPUs, over switches that reduce.
    Nvlink4,
    /// NVLink of Blackwell GPUs, over switches that reduce.
    Nvlink5,
}

impl Fabric {
    pub(super) fn is_nvlink(self) -> bool {
        !matches!(self, Fabric::Host | Fabric::Pcie)
    }
}

/// Microseconds before the first step, of a ring and of a tree, by protocol.
const BASE: [[f64; 3]; 2] = [[6.6, 14.0, 8.4], [6.8, 14.0, 8.4]];
/// Microseconds of a hop, of a ring and of a tree, by protocol.
const NVLINK_HOPS: [[f64; 3]; 2] = [[0.6, 1.9, 3.4], [0.6, 1.25, 4.0]];
const PCIE_HOPS: [[f64; 3]; 2] = [[1.0, 2.5, 5.7], [1.0, 1.9, 4.0]];
pub(super) const NETWORK_HOPS: [[f64; 3]; 2] = [[2.7, 4.0, 14.0], [5.0, 8.5, 14.0]];
/// Microseconds of a whole NVLS call inside a server, and of a hop of its tree between servers.
pub(super) const NVLS: f64 = 25.0;
pub(super) const NVLS_TREE_HOP: f64 = 20.9;
/// Share of the links' rate that NVLS uses, by generation.
const NVLS_SHARE: [f64; 3] = [0.0, 0.85, 0.74];
/// Microseconds between two messages to the network, three times as many in `Simple`.
const NETWORK_OVERHEAD: f64 = 1.0;

/// Largest rate of `Ll` in GB/s, by generation: in one server, in two, in more. Across servers the CPU limits it.
const LL: [[f64; 3]; 3] = [[87.7, 39.0, 20.4], [141.0, 39.0, 20.4], [282.0, 39.0, 20.4]];
/// Largest rate of a channel in GB/s, by generation: in one server, in two, in more.
const CHANNEL_RING_LL128: [[f64; 3]; 3] = [[20.0; 3], [36.7; 3], [40.0; 3]];
const CHANNEL_TREE_LL128: [[f64; 3]; 3] = [[20.0; 3], [36.7, 36.7, 29.0], [55.6, 31.67, 20.0]];
const CHANNEL_TREE: [[f64; 3]; 3] = [[24.0, 23.6, 17.8], [38.7, 41.4, 36.0], [70.0, 42.8, 24.0]];
const CHANNEL_NVLS_TREE: [[f64; 3]; 3] = [[0.0; 3], [0.0, 57.7, 45.5], [0.0, 96.0, 80.0]];

/// Factors of a tree's rate at 64 B, 128 B and so on, by protocol. Measured: trees are slower at middle sizes than the
/// rest of the model predicts.
const TREE_CORRECTION: [[f64; 23]; 3] = [
    [1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0],
    [1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0],
    [0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9],
];

/// Number of channels over NVLink, by generation, over PCIe, and to each NIC.
const NVLINK_CHANNELS: [u32; 3] = [24, 24, 32];
const PCIE_CHANNELS: u32 = 2;
const CARD_CHANNELS: u32 = 2;

/// By protocol, the threads of a channel, and the bytes that each must have before another channel is used (for a
/// ring's `Ll`, times the number of ranks).
const THREADS: [(u64, u64); 3] = [(512, 8), (640, 8), (512, 64)];
/// By protocol, payload of a step of a channel's buffer.
const STEP: [u64; 3] = [32 << 10, 576_000, 512 << 10];

/// Pieces of a small tensor, and least payload of a piece per channel.
const PIECES: u64 = 16;
const LEAST_PIECE: u64 = 1 << 10;

/// The model of one group.
pub(super) struct Model {
    surroundings: Surroundings,
    ranks: u32,
}

impl Model {
    pub(super) fn new(surroundings: Surroundings, ranks: u32) -> Model {
        Model { surroundings, ranks }
    }

    pub(super) fn servers(&self) -> u32 {
        self.ranks.div_ceil(self.surroundings.per_server)
    }

    pub(super) fn is_across(&self) -> bool {
        self.servers() > 1
    }

    /// Division of trees and chains among servers, if the group has several equal servers with several ranks each.
    pub(super) fn trees(&self) -> Option<Servers> {
        let Surroundings { per_server: gpus, cards, .. } = self.surroundings;
        let alike = self.is_across() && gpus > 1 && self.ranks.is_multiple_of(gpus);
        alike.then(|| Servers { gpus, cards: cards.clamp(1, gpus) })
    }

    pub(super) fn fabric(&self) -> Fabric {
        let Surroundings { pcie_peers, settings, .. } = self.surroundings;
        match (self.inside(), self.generation()) {
            _ if !settings.peer_access => Fabric::Host,
            (100.0.., GpuGeneration::Ampere) => Fabric::Nvlink3,
            (100.0.., GpuGeneration::Hopper) => Fabric::Nvlink4,
            (100.0.., GpuGeneration::Blackwell) => Fabric::Nvlink5,
            _ if pcie_peers => Fabric::Pcie,
            _ => Fabric::Host,
        }
    }

    /// Generation of the GPUs: of unknown GPUs, the one whose NVLink has a rate like `inside`.
    fn generation(&self) -> GpuGeneration {
        self.surroundings.generation.unwrap_or(match self.inside() {
            600.0.. => GpuGeneration::Blackwell,
            300.0.. => GpuGeneration::Hopper,
            _ => GpuGeneration::Ampere,
        })
    }

    /// Rate in GB/s at which a rank can send to another rank of its server: through the host's memory if the GPUs do
    /// not access each other's memory.
    pub(super) fn inside(&self) -> f64 {
        let Surroundings { inside, host, settings, .. } = self.surroundings;
        let [inside, host] = [inside, host].map(|rate| rate.bytes_per_second() / 1e9);
        if settings.peer_access { inside } else { inside.min(host) }
    }

    /// Number of ranks, of `ranks` that send at once, that share a link inside a server.
    pub(super) fn users(&self, ranks: u32) -> f64 {
        f64::from(if self.surroundings.shares_link { ranks } else { 1 })
    }

    /// Whether `variant` can carry out `call`.
    pub(super) fn fits(&self, variant: &Variant, call: &Collective) -> bool {
        use CollectiveKind::{AllGather, AllReduce, ReduceScatter};
        let kind = call.kind;
        let in_server = self.ranks / self.servers();
        let switched = matches!(self.fabric(), Fabric::Nvlink4 | Fabric::Nvlink5);
        let nvls = self.surroundings.nvls && switched && in_server > 2;
        match (variant.shape, variant.protocol) {
            (Shape::Nvls, _) => {
                let reduces = matches!(kind, AllReduce | ReduceScatter) && switches_reduce(call);
                nvls && !self.is_across() && (kind == AllGather || reduces)
            }
            (Shape::NvlsTree, _) => nvls && self.trees().is_some() && kind == AllReduce && switches_reduce(call),
            (Shape::Tree, _) if kind != AllReduce => false,
            // LL128 needs links that keep 128 bytes together.
            (_, Protocol::Ll128) => self.fabric().is_nvlink() || self.surroundings.settings.insists_on_ll128(call.kind),
            _ => true,
        }
    }

    /// Rate of a rank's links in GB/s: across servers, at most the rate of all NICs of a server together.
    pub(super) fn bus(&self) -> f64 {
        self.slowest_of(self.surroundings.inside.bytes_per_second() / 1e9)
    }

    fn slowest_of(&self, inside: f64) -> f64 {
        if self.is_across() { inside.min(self.network()) } else { inside }
    }

    /// Part of the bus rate in GB/s that NCCL uses. NCCL's channels share the rate equally, so a communicator with
    /// fewer channels than NCCL's default uses only a part of it.
    pub(super) fn used(&self) -> f64 {
        let all = self.usual_channels();
        self.slowest_of(self.inside()) * f64::from(self.channels().min(all)) / f64::from(all)
    }

    /// Number of channels.
    pub(super) fn channels(&self) -> u32 {
        self.limited(self.usual_channels())
    }

    /// Number of channels that the settings leave in place of `usual` ones.
    fn limited(&self, usual: u32) -> u32 {
        let Surroundings { max_channels, settings, .. } = self.surroundings;
        let [least, most] = settings.channels;
        usual.max(least).min(most).clamp(1, max_channels.max(1))
    }

    /// Parts of the links' rates, inside a server and between servers, that the settings' channels leave to messages.
    pub(super) fn channels_left(&self) -> [f64; 2] {
        let left = |usual: u32| f64::from(self.limited(usual).min(usual)) / f64::from(usual);
        [left(self.channels_inside()), left(CARD_CHANNELS)]
    }

    fn channels_inside(&self) -> u32 {
        if self.fabric().is_nvlink() { NVLINK_CHANNELS[self.generation() as usize] } else { PCIE_CHANNELS }
    }

    /// Number of channels that NCCL makes without settings.
    pub(super) fn usual_channels(&self) -> u32 {
        let inside = self.channels_inside();
        if self.is_across() { inside.min(CARD_CHANNELS * self.surroundings.cards).max(1) } else { inside }
    }

    /// Number of channels that a call uses, so that each thread of each channel has enough data.
    pub(super) fn channels_for(&self, variant: &Variant, bytes: u64) -> u32 {
        let (threads, least) = THREADS[variant.protocol as usize];
        let per_rank = variant.shape == Shape::Ring && variant.protocol == Protocol::Ll;
        let least = least * if per_rank { u64::from(self.ranks) } else { 1 };
        match variant.shape {
            Shape::Nvls | Shape::NvlsTree => self.channels(),
            _ => ((bytes / (threads * least)) as u32).clamp(1, self.channels()),
        }
    }

    /// Rate of a variant with all channels, in GB/s.
    pub(super) fn rate(&self, variant: &Variant, kind: CollectiveKind) -> f64 {
        let (bus, channels) = (self.estimated_bus(), f64::from(self.channels()));
        let generation = self.generation() as usize;
        let scale = self.servers().min(3) as usize - 1;
        let tree = (bus * 0.92).min(channels * CHANNEL_TREE[generation][scale]);
        match (variant.shape, variant.protocol) {
            (Shape::Ring, Protocol::Ll) => (bus * 0.5).min(LL[generation][scale]),
            (Shape::Ring, Protocol::Ll128) => (bus * 0.92).min(channels * CHANNEL_RING_LL128[generation][scale]),
            (Shape::Ring, Protocol::Simple) => bus,
            (Shape::Tree, Protocol::Ll) => (tree / 3.8).min(LL[generation][scale]),
            (Shape::Tree, Protocol::Ll128) => {
                let payload = if scale == 0 { 7.0 / 9.0 } else { 120.0 / 128.0 };
                (tree * payload).min(channels * CHANNEL_TREE_LL128[generation][scale])
            }
            (Shape::Tree, Protocol::Simple) => tree,
            (Shape::Nvls | Shape::NvlsTree, _) => {
                // An all-reduce combines and distributes at once.
                let channels = self.fabric().nvls_channels();
                let ranks = f64::from(self.ranks / self.servers());
                let phases = if kind == CollectiveKind::AllReduce { 2.0 } else { (ranks - 1.0) / ranks };
                let inside = self.inside() * NVLS_SHARE[generation] * (channels - 1.0) / channels * phases;
                if !self.is_across() {
                    return inside;
                }
                let network = self.network() * if self.servers() == 2 { 2.0 } else { 1.0 };
                inside.min(network).min(channels * CHANNEL_NVLS_TREE[generation][scale])
            }
        }
    }

    /// Rate in GB/s that NCCL expects of the links. Between more than two GPUs through the host's memory, NCCL expects
    /// the link between the CPU's sockets to have half of a GPU's rate.
    fn estimated_bus(&self) -> f64 {
        let halved = self.fabric() == Fabric::Host && !self.is_across() && self.ranks > 2;
        self.used() * if halved { 0.5 } else { 1.0 }
    }

    /// Rate of all NICs of a server in GB/s.
    pub(super) fn network(&self) -> f64 {
        let Surroundings { between, cards, .. } = self.surroundings;
        between.bytes_per_second() / 1e9 * f64::from(cards)
    }

    /// Number of steps of a ring, and number of those that lead to another server.
    pub(super) fn ring_steps(&self, kind: CollectiveKind) -> (f64, f64) {
        let (ranks, servers) = (f64::from(self.ranks), f64::from(self.servers()));
        match kind {
            CollectiveKind::AllReduce => (2.0 * (ranks - 1.0), 2.0 * (servers - 1.0)),
            CollectiveKind::AllGather | CollectiveKind::ReduceScatter => (ranks - 1.0, servers - 1.0),
            _ => (ranks, servers),
        }
    }

    /// Microseconds of a hop inside a server and between two.
    pub(super) fn hops(&self, variant: &Variant) -> [f64; 2] {
        let shape = usize::from(variant.shape == Shape::Tree);
        let inside = if self.fabric().is_nvlink() { NVLINK_HOPS } else { PCIE_HOPS };
        // With one GPU per server, no other GPU's step hides the network's latency.
        let alone = usize::from(shape == 1 || self.ranks == self.servers());
        [inside[shape], NETWORK_HOPS[alone]].map(|hops| hops[variant.protocol as usize])
    }

    /// Microseconds of a step of a ring, on average.
    pub(super) fn mean_hop(&self, variant: &Variant, kind: CollectiveKind) -> f64 {
        let ([inside, between], (steps, between_steps)) = (self.hops(variant), self.ring_steps(kind));
        ((steps - between_steps).max(0.0) * inside + between_steps * between) / steps
    }

    /// Microseconds before the first step.
    pub(super) fn base(&self, variant: &Variant) -> f64 {
        match variant.shape {
            Shape::Nvls | Shape::NvlsTree => 0.0,
            shape => BASE[usize::from(shape == Shape::Tree)][variant.protocol as usize],
        }
    }

    fn latency(&self, variant: &Variant, kind: CollectiveKind) -> f64 {
        let [inside, between] = self.hops(variant);
        let (steps, between_steps) = self.ring_steps(kind);
        let base = self.base(variant);
        match (variant.shape, kind) {
            (Shape::Nvls, _) => NVLS,
            (Shape::NvlsTree, _) => NVLS + 2.0 * f64::from(self.servers().ilog2()) * NVLS_TREE_HOP,
            // All channels of a broadcast go the same way round, so that their hops overlap.
            (Shape::Ring, CollectiveKind::Broadcast | CollectiveKind::Reduce) => {
                base + if self.is_across() { between } else { inside }
            }
            (Shape::Ring, _) => {
                let posts = if variant.protocol == Protocol::Simple { 3.0 } else { 1.0 } * NETWORK_OVERHEAD;
                let inside = if self.is_across() { inside.max(posts) } else { inside };
                base + (steps - between_steps).max(0.0) * inside + between_steps * between
            }
            (Shape::Tree, _) => {
                let servers = self.servers();
                base + 2.0 * (f64::from(self.ranks / servers - 1) * inside + f64::from(servers.ilog2()) * between)
            }
        }
    }

    /// NCCL's estimate of the time of `variant` for a call of `bytes` in total.
    pub(super) fn microseconds(&self, variant: &Variant, kind: CollectiveKind, bytes: u64) -> f64 {
        let (steps, _) = self.ring_steps(kind);
        let mut rate = self.rate(variant, kind);
        let mut latency = self.latency(variant, kind);
        match variant.shape {
            Shape::Ring => rate *= f64::from(self.ranks) / steps,
            Shape::Tree => {
                let size = (bytes >> 6).max(1).ilog2() as usize;
                rate *= 0.5 * TREE_CORRECTION[variant.protocol as usize].get(size).unwrap_or(&1.0);
            }
            Shape::Nvls | Shape::NvlsTree if kind == CollectiveKind::AllReduce => rate *= f64::from(self.ranks) / steps,
            Shape::Nvls | Shape::NvlsTree => {}
        }
        let is_large = bytes / u64::from(self.channels() * self.ranks) >= 64;
        let has_plateau = variant.shape == Shape::Ring && variant.protocol == Protocol::Simple && self.is_across();
        if has_plateau && kind == CollectiveKind::AllReduce && is_large {
            latency *= 1.4;
        }
        latency + bytes as f64 / rate / 1e3
    }

    /// Bytes of a chunk, for all channels together, that is forwarded before the next one. `Ll` and `Ll128` forward the
    /// received part of a chunk before its rest arrives: in chains, and in trees across servers, a chunk of a sixteenth
    /// of a small tensor models that.
    pub(super) fn chunk(&self, variant: &Variant, kind: CollectiveKind, bytes: u64) -> u64 {
        let channels = u64::from(self.channels_for(variant, bytes));
        let mut step = STEP[variant.protocol as usize];
        if variant.shape == Shape::Tree && variant.protocol == Protocol::Simple {
            let depth = u64::from((self.ranks / self.servers()).max(1) - 1 + self.servers().ilog2()).max(1);
            for (chunks, smallest) in [(8 * depth, 128 << 10), (4 * depth, 64 << 10), (depth, 32 << 10)] {
                while bytes / (channels * step) < chunks && step > smallest {
                    step /= 2;
                }
            }
        }
        let is_chain = matches!(kind, CollectiveKind::Broadcast | CollectiveKind::Reduce);
        let passed_on_at_once = variant.protocol != Protocol::Simple && (is_chain || self.trees().is_some());
        let chunk = channels * step;
        if passed_on_at_once { chunk.min(bytes / PIECES).max(channels * LEAST_PIECE) } else { chunk }
    }
}

/// Whether NVLink's switches can combine a call's elements.
fn switches_reduce(call: &Collective) -> bool {
    use DType::{BFloat16, Float16, Float32, Float64, Int32, Int64, UInt32, UInt64};
    use ReduceOp::{Max, Min, Sum};
    match call.dtype {
        Int32 | UInt32 | Int64 | UInt64 | Float16 | BFloat16 => matches!(call.reduce, Some(Sum | Min | Max)),
        Float32 | Float64 => call.reduce == Some(Sum),
        _ => false,
    }
}
