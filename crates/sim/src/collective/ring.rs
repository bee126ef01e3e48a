//! Owns the ring: each member sends to the next one up and receives from the next one down, one block per round.
//!
//! Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2),
//! 2009. With P members, n bytes in all blocks together, latency a and b seconds per byte:
//! - all-gather, reduce-scatter: (P-1) (a + n/P b); a member sends (P-1)/P n.
//! - all-reduce, a reduce-scatter and then an all-gather: 2 (P-1) (a + n/P b); a member sends 2 (P-1)/P n.
//!
//! A block of the reduced tensor is combined in the order of the ring, starting with the rank after the block's own:
//! block j is `((x[j+1] + x[j+2]) + ...) + x[j]`.

use super::layout::Layout;
use super::rounds::{Round, before, one_by_one, recv, recv_combine, send, wrap};
use super::{Algorithm, GroupRank, Span, Steps, even_blocks};
use crate::program::{Collective, CollectiveKind};
use crate::symmetry::Relabeling;

/// See the module.
pub(super) struct Ring;

impl Algorithm for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &[CollectiveKind::AllReduce, CollectiveKind::AllGather, CollectiveKind::ReduceScatter]
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        let layout = Layout::of_members(call, size);
        let again = layout.clone();
        let scatter = reduce_scatter(move |rank| layout.block(rank), size, me);
        let gather = all_gather(move |rank| again.block(rank), size, me);
        match call.kind {
            CollectiveKind::ReduceScatter => Box::new(one_by_one(scatter)),
            CollectiveKind::AllGather => Box::new(one_by_one(gather)),
            CollectiveKind::AllReduce => Box::new(one_by_one(scatter.chain(gather))),
            kind => panic!("ring cannot carry out {kind}"),
        }
    }

    fn symmetry(&self, call: &Collective, size: u32) -> Option<Relabeling> {
        even_blocks(call, size).then_some(Relabeling::Rotation)
    }
}

/// Reduce-scatter, which ends with the combined block `me` at `me`.
pub(super) fn reduce_scatter(
    block: impl Fn(u32) -> Span + Send,
    size: u32,
    me: u32,
) -> impl Iterator<Item = Round> + Send {
    let (next, previous) = (wrap(me + 1, size), before(me, 1, size));
    (1..size).map(move |round| {
        let outgoing = block(before(me, round, size));
        [Some(send(next, outgoing)), Some(recv_combine(previous, block(before(me, round + 1, size))))]
    })
}

/// All-gather, which starts with block `me` at `me`.
pub(super) fn all_gather(block: impl Fn(u32) -> Span + Send, size: u32, me: u32) -> impl Iterator<Item = Round> + Send {
    let (next, previous) = (wrap(me + 1, size), before(me, 1, size));
    (0..size - 1).map(move |round| {
        let outgoing = block(before(me, round, size));
        [Some(send(next, outgoing)), Some(recv(previous, block(before(me, round + 1, size))))]
    })
}
