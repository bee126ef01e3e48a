//! Owns NVLink SHARP's steps: all-reduce, all-gather and reduce-scatter among the GPUs of a server, whose switches
//! reduce and multicast.
//!
//! Source: NVIDIA/nccl, `src/device/all_reduce.h` (`NCCL_ALGO_NVLS`). Each member reads its block combined by the
//! switch, and writes it once for all. The network model has no switch that computes: every member sends its block to
//! every other member, both phases last as long as that, and the wire's efficiency ([`super::nccl`]) contains the
//! switch's savings. With P members, n bytes in all blocks together, b seconds per byte and an efficiency of e, a phase
//! lasts (P-1)/P n b / e.
//!
//! A block is combined at its owner, ranks modulo P downwards: `((x[j] + x[j-1]) + x[j-2]) + ...`. The order in which
//! switches combine is not published.

use super::layout::Layout;
use super::rounds::{batches, before, recv, recv_combine, send, wrap};
use super::{Action, Algorithm, GroupRank, Steps, even_blocks};
use crate::program::{Collective, CollectiveKind};
use crate::symmetry::Relabeling;

/// See the module.
pub(super) struct Nvls;

impl Algorithm for Nvls {
    fn name(&self) -> &'static str {
        "nvls"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &[CollectiveKind::AllReduce, CollectiveKind::AllGather, CollectiveKind::ReduceScatter]
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        let layout = Layout::of_members(call, size);
        let others = move || (1..size).map(move |distance| (wrap(me + distance, size), before(me, distance, size)));
        let combine: Vec<Action> = others()
            .flat_map(|(to, from)| [send(to, layout.block(to)), recv_combine(from, layout.block(me))])
            .collect();
        let spread: Vec<Action> =
            others().flat_map(|(to, from)| [send(to, layout.block(me)), recv(from, layout.block(from))]).collect();
        let phases = match call.kind {
            CollectiveKind::AllReduce => vec![combine, spread],
            CollectiveKind::ReduceScatter => vec![combine],
            CollectiveKind::AllGather => vec![spread],
            kind => panic!("nvls cannot carry out {kind}"),
        };
        Box::new(batches(phases.into_iter()))
    }

    fn symmetry(&self, call: &Collective, size: u32) -> Option<Relabeling> {
        even_blocks(call, size).then_some(Relabeling::Rotation)
    }
}
