//! Owns Bruck's all-gather: in round k each member sends all blocks that it has to the member 2^k places down, for any
//! number of members.
//!
//! Source: Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems",
//! IEEE TPDS 8(11), 1997. With P members, n bytes in all blocks together, latency a and b seconds per byte: ceil(log2
//! P) a + (P-1)/P n b. A member sends (P-1)/P n. Blocks are stored in rank order, so that a range which wraps around is
//! two messages.

use super::layout::Layout;
use super::rounds::{batches, before, recv, send, wrap};
use super::{Algorithm, GroupRank, Span, Steps};
use crate::program::{Collective, CollectiveKind};

/// See the module.
pub(super) struct Bruck;

impl Algorithm for Bruck {
    fn name(&self) -> &'static str {
        "bruck"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &[CollectiveKind::AllGather]
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        let layout = Layout::of_members(call, size);
        let rounds = u32::BITS - (size - 1).leading_zeros();
        Box::new(batches((0..rounds).map(move |round| {
            let distance = 1 << round;
            let (to, from) = (before(me, distance, size), wrap(me + distance, size));
            let count = distance.min(size - distance);
            let sends = cyclic(&layout, size, me, count).map(|span| send(to, span));
            sends.chain(cyclic(&layout, size, from, count).map(|span| recv(from, span))).collect()
        })))
    }
}

/// Spans of `count` blocks from `first` on, modulo their number.
fn cyclic(layout: &Layout, size: u32, first: u32, count: u32) -> impl Iterator<Item = Span> {
    let end = first + count;
    let wrapped = (end > size).then(|| layout.blocks(0, end - size));
    std::iter::once(layout.blocks(first, end.min(size))).chain(wrapped)
}
