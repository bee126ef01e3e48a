//! Owns collectives that kernels of the program carry out by reading other GPUs' memory, such as the custom all-reduce
//! of vLLM and SGLang.
//!
//! Source of the steps: vllm-project/vllm, `csrc/custom_all_reduce.cuh` (`cross_device_reduce_1stage`,
//! `cross_device_reduce_2stage`), whose kernels sgl-project/sglang has, too. In the one-shot kernel each member waits
//! until all have begun, reads every other member's tensor and combines the tensors in the order of ranks. In the
//! two-shot kernel it combines only its own block, from its own elements upwards, and reads the other blocks once all
//! members have combined theirs. Members wait for each other by flags that they write into each other's memory.
//!
//! The time is a start, plus bytes at a rate. With P members and n bytes a one-shot all-reduce reads (P-1) n, a
//! two-shot one 2 (P-1)/P n.
//!
//! - The start is 3.35 us plus 0.37 us for each other member: sgl-project/sglang, pull request 2904, has 3.7, 4.8 and
//!   5.9 us for a one-shot kernel on 2, 4 and 8 H100. A second shot adds 8 us: vllm-project/vllm, pull requests 24111
//!   and 24532, the tables of both kernels on 4 and 6 GPUs, 0.5 to 4 MiB, less the bytes. The larger part of these 8 us
//!   is the fence that makes the combined blocks visible to the others.
//! - The rate of one shot is the link's rate, but at most the rate at which 36 blocks of 512 threads, each waiting for
//!   16 bytes of each other member (`block_limit`, `launch_bounds` and `packed_t` of the source), can have their bytes
//!   in flight for 1.2 us: the rates of the same tables with 2 members (205 to 280 GB/s on A100 and H100), for which
//!   that is the limit. Two shots have three quarters of the link's rate (4 and 6 GPUs in the same tables: 197 and 318
//!   GB/s on links of 450).

use super::layout::Layout;
use super::rounds::{batches, before, recv, recv_combine, send, wrap};
use super::{Action, Algorithm, GroupRank, Hop, Steps, Wire, even_blocks};
use crate::program::{Collective, CollectiveKind, PeerKernel, Shape};
use crate::symmetry::Relabeling;
use crate::time::{Bytes, Rate, SimDuration};

/// Parts of the start, in nanoseconds; see the module.
const BASE: u64 = 3_350;
const EACH_OTHER: u64 = 370;
const SECOND_SHOT: u64 = 8_000;

/// Bytes in flight to a member from each other member, and their round trip in nanoseconds.
const ON_THEIR_WAY: u64 = 36 * 512 * PACK;
const ROUND_TRIP: u64 = 1_200;

/// Bytes that a thread moves at once.
const PACK: u64 = 16;

/// Rate of two shots, in thousandths of the link's rate.
const TWO_SHOTS_RATE: u32 = 750;

/// See the module.
pub(super) struct Peers {
    kernel: PeerKernel,
    wire: Wire,
}

impl Peers {
    /// A kernel in a group of `size` members that send to each other at the rate `inside`.
    pub(super) fn new(kernel: PeerKernel, size: u32, inside: Rate) -> Peers {
        let others = u64::from(size.saturating_sub(1));
        let start = BASE + EACH_OTHER * others;
        let (efficiency, hop) = match kernel {
            PeerKernel::OneShot => (share(ON_THEIR_WAY * others, inside), start),
            // Each of the two phases has half of the start.
            PeerKernel::TwoShot => (TWO_SHOTS_RATE, (start + SECOND_SHOT) / 2),
        };
        let hop = Hop { efficiency, latency: SimDuration::from_ns(hop) };
        Peers { kernel, wire: Wire { inside: hop, between: hop } }
    }

    /// Layout of the members' blocks. In an all-reduce each block has equally many packs, and the last one also gets
    /// the rest.
    fn layout(&self, call: &Collective, size: u32) -> Layout {
        let (CollectiveKind::AllReduce, Shape::Even(count)) = (call.kind, &call.shape) else {
            return Layout::of_members(call, size);
        };
        let (packs, each) = packs(call);
        let block = packs / u64::from(size) * each;
        let last = count - block * u64::from(size - 1);
        Layout::listed(&[vec![block; size as usize - 1], vec![last]].concat())
    }
}

/// Number of whole packs (16 bytes) of a tensor, and number of elements per pack; the remainder counts as part of the
/// last pack.
fn packs(call: &Collective) -> (u64, u64) {
    let each = (PACK / call.dtype.size()).max(1);
    (call.bytes(1).0 / PACK, each)
}

/// Thousandths of a rate at which the given bytes last one round trip; at most 1000.
fn share(bytes: u64, of: Rate) -> u32 {
    // Picoseconds divided by nanoseconds are thousandths.
    (of.time_for(Bytes(bytes)).as_ps() / ROUND_TRIP).clamp(1, 1000) as u32
}

impl Algorithm for Peers {
    fn name(&self) -> &'static str {
        self.kernel.name()
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        self.kernel.kinds()
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        let layout = self.layout(call, size);
        let everything = layout.blocks(0, size);
        let others = move || (1..size).map(move |distance| (before(me, distance, size), wrap(me + distance, size)));
        let each = |step: &dyn Fn(u32, u32) -> [Action; 2]| -> Vec<Action> {
            others().flat_map(|(to, from)| step(to, from)).collect()
        };
        // Sent data is the input before any combination.
        let whole = || -> Vec<Action> {
            let sends = others().map(|(to, _)| send(to, everything));
            sends.chain(others().map(|(_, from)| recv_combine(from, everything))).collect()
        };
        let combine = || each(&|to, from| [send(to, layout.block(to)), recv_combine(from, layout.block(me))]);
        let spread = || each(&|to, from| [send(to, layout.block(me)), recv(from, layout.block(from))]);
        let phases = match (call.kind, self.kernel) {
            (CollectiveKind::AllReduce, PeerKernel::OneShot) => vec![whole()],
            (CollectiveKind::AllReduce, PeerKernel::TwoShot) => vec![combine(), spread()],
            (CollectiveKind::ReduceScatter, _) => vec![combine()],
            (CollectiveKind::AllGather, _) => vec![spread()],
            (kind, _) => panic!("{} cannot carry out {kind}", self.name()),
        };
        Box::new(batches(phases.into_iter()))
    }

    fn wire(&self) -> Option<Wire> {
        Some(self.wire)
    }

    fn is_of_program(&self) -> bool {
        true
    }

    fn combines_in_order(&self) -> bool {
        self.kernel == PeerKernel::OneShot
    }

    fn symmetry(&self, call: &Collective, size: u32) -> Option<Relabeling> {
        let alike = match (call.kind, self.kernel) {
            (CollectiveKind::AllReduce, PeerKernel::OneShot) => true,
            (CollectiveKind::AllReduce, PeerKernel::TwoShot) => packs(call).0.is_multiple_of(u64::from(size)),
            _ => even_blocks(call, size),
        };
        alike.then_some(Relabeling::Rotation)
    }
}
