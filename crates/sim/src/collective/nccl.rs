//! Owns NCCL's choice: ring or tree, and which of its protocols, by what its own model of time says is fastest.
//!
//! Source: NVIDIA/nccl 2.20.3, `src/graph/tuning.cc`: base latencies, latencies of a hop over NVLink, PCIe and the network, and what each
//! protocol makes of the bandwidth, for Ampere and Hopper GPUs. Left out: NVLS and CollNet, the limits of single channels, and the correction factors of
//! trees of middle sizes. A ring's steps are those of [`super::ring`], a tree's those of [`super::double_tree`], broadcast and reduce go
//! along a [`super::chain`]. All of these are chunked finely enough in NCCL that a step's transfer and the next one's overlap; here a
//! ring's step is one message, whose time is the same.
//!
//! `LL` sends 8 bytes with 8 bytes of flags and needs no fence, `LL128` 120 of 128 bytes, `Simple` whole chunks with a fence after each.

use super::chain::Chain;
use super::double_tree::DoubleTree;
use super::linear::Linear;
use super::ring::Ring;
use super::{Algorithm, GroupRank, Steps, Surroundings, Wire};
use crate::program::{Collective, CollectiveKind};
use crate::symmetry::Relabeling;
use crate::time::SimDuration;
use std::sync::Arc;

/// See the module.
pub(super) struct Nccl {
    surroundings: Surroundings,
}

/// A shape and a protocol: the name, microseconds before the first step, microseconds of a hop inside a server (NVLink) and between
/// servers, and how many bytes of payload take the time of 1,000.
struct Variant {
    name: &'static str,
    tree: bool,
    base: f64,
    hops: [f64; 2],
    /// Of 1,000 bytes: inside one server, and across several.
    efficiency: [u32; 2],
}

const VARIANTS: [Variant; 6] = [
    Variant { name: "ring_ll", tree: false, base: 6.6, hops: [0.6, 2.7], efficiency: [250, 250] },
    Variant { name: "ring_ll128", tree: false, base: 14.0, hops: [1.9, 4.0], efficiency: [920, 920] },
    Variant { name: "ring_simple", tree: false, base: 8.4, hops: [3.4, 14.0], efficiency: [1000, 1000] },
    Variant { name: "tree_ll", tree: true, base: 6.8, hops: [0.6, 5.0], efficiency: [242, 242] },
    Variant { name: "tree_ll128", tree: true, base: 14.0, hops: [1.25, 8.5], efficiency: [716, 862] },
    Variant { name: "tree_simple", tree: true, base: 0.0, hops: [28.0, 28.0], efficiency: [920, 920] },
];

/// What the model adds to a tree's hops for a chunk of 256 KiB is a message of its own here; what is left is a ring's hop.
const TREE_SIMPLE_HOPS: [f64; 2] = VARIANTS[2].hops;

impl Nccl {
    pub(super) fn new(surroundings: Surroundings) -> Nccl {
        Nccl { surroundings }
    }

    fn choose(&self, call: &Collective, size: u32) -> Arc<dyn Algorithm> {
        let inner: Arc<dyn Algorithm> = match call.kind {
            CollectiveKind::AllReduce | CollectiveKind::AllGather | CollectiveKind::ReduceScatter => Arc::new(Ring),
            CollectiveKind::Broadcast | CollectiveKind::Reduce => Arc::new(Chain),
            // A barrier is an all-reduce of one number; the others are sends and receives of one group call.
            CollectiveKind::Barrier => return Arc::new(super::dissemination::Dissemination),
            CollectiveKind::AllToAll | CollectiveKind::Gather | CollectiveKind::Scatter => return Arc::new(Linear),
        };
        let trees = call.kind == CollectiveKind::AllReduce;
        let fitting = VARIANTS.iter().filter(|variant| trees || !variant.tree);
        let time = |variant: &&Variant| self.microseconds(variant, call, size);
        let variant = fitting.min_by(|a, b| time(a).total_cmp(&time(b))).expect("there are variants");
        let inner = if variant.tree { Arc::new(DoubleTree) } else { inner };
        Arc::new(Carried { inner, name: variant.name, wire: self.wire(variant, size) })
    }

    fn servers(&self, size: u32) -> u32 {
        size.div_ceil(self.surroundings.per_server)
    }

    /// What NCCL's model says.
    fn microseconds(&self, variant: &Variant, call: &Collective, size: u32) -> f64 {
        let (ranks, servers) = (f64::from(size), f64::from(self.servers(size)));
        let across = usize::from(servers > 1.0);
        let [inside, between] = variant.hops;
        let blocks = matches!(call.kind, CollectiveKind::AllGather | CollectiveKind::ReduceScatter);
        let bytes = call.bytes().0 as f64 * if blocks { ranks } else { 1.0 };
        let steps = match call.kind {
            CollectiveKind::AllReduce => 2.0 * (ranks - 1.0),
            CollectiveKind::AllGather | CollectiveKind::ReduceScatter => ranks - 1.0,
            _ => ranks,
        };
        let between_steps = match (across, call.kind) {
            (0, _) => 0.0,
            (_, CollectiveKind::AllReduce) => 2.0 * servers,
            (_, CollectiveKind::AllGather | CollectiveKind::ReduceScatter) => servers - 1.0,
            _ => servers,
        };
        let hops = if variant.tree {
            2.0 * ((ranks / servers - 1.0) * inside + servers.log2().floor() * between)
        } else {
            (steps - between_steps).max(0.0) * inside + between_steps * between
        };
        let ratio = if variant.tree { 0.5 } else { ranks / steps };
        let bus = if across == 1 { self.surroundings.between } else { self.surroundings.inside };
        let rate = bus.bytes_per_second() * f64::from(variant.efficiency[across]) / 1000.0 * ratio;
        variant.base + hops + bytes / rate * 1e6
    }

    fn wire(&self, variant: &Variant, size: u32) -> Wire {
        let across = usize::from(self.servers(size) > 1);
        let hops = if variant.name == "tree_simple" { TREE_SIMPLE_HOPS } else { variant.hops };
        let [inside, between] = hops.map(|hop| SimDuration::from_ns((hop * 1e3) as u64));
        Wire { efficiency: variant.efficiency[across], inside, between }
    }
}

/// Whose steps the algorithm called `name` takes, where that is one over one of the protocols.
pub(super) fn steps_of(kind: CollectiveKind, name: &str) -> Option<Arc<dyn Algorithm>> {
    let variant = VARIANTS.iter().find(|variant| variant.name == name)?;
    Some(match kind {
        CollectiveKind::Broadcast | CollectiveKind::Reduce => Arc::new(Chain),
        _ if variant.tree => Arc::new(DoubleTree),
        _ => Arc::new(Ring),
    })
}

impl Algorithm for Nccl {
    fn name(&self) -> &'static str {
        "nccl"
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

/// Another algorithm's steps over one of the protocols.
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
mod tests {
    use super::*;
    use crate::program::{DType, ReduceOp, Shape};
    use crate::time::Rate;

    fn chosen(per_server: u32, ranks: u32, kind: CollectiveKind, bytes: u64) -> &'static str {
        let rate = |bytes| Rate::new(bytes).unwrap();
        let nccl = Nccl::new(Surroundings { per_server, inside: rate(230e9), between: rate(100e9) });
        let (reduce, root) = (Some(ReduceOp::Sum), Some(GroupRank(0)));
        let call = Collective { kind, dtype: DType::UInt8, reduce, root, shape: Shape::Even(bytes) };
        nccl.decide(&call, ranks).unwrap().name()
    }

    #[test]
    fn small_messages_go_without_fences_and_large_ones_in_whole_chunks() {
        use CollectiveKind::{AllGather, AllReduce, Broadcast};
        // Eight GPUs in one server: 2 (P - 1) 0.6 + 6.6 us in LL against 2 (P - 1) 3.4 + 8.4 us in Simple at 8 bytes.
        assert!(chosen(8, 8, AllReduce, 8).ends_with("_ll"));
        assert_eq!(chosen(8, 8, AllReduce, 1 << 30), "ring_simple");
        assert_eq!(chosen(8, 8, AllGather, 1 << 27), "ring_simple");
        assert_eq!(chosen(8, 8, Broadcast, 1 << 30), "ring_simple");
        // 32 servers: a ring has 510 steps, a tree 2 (7 x 0.6 + 5 x 5) us.
        assert_eq!(chosen(8, 256, AllReduce, 1 << 10), "tree_ll");
        assert_eq!(chosen(8, 256, AllReduce, 1 << 33), "ring_simple");
    }
}
