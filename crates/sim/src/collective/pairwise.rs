//! Owns the pairwise exchange: an all-to-all in which each member has one peer per round and direction.
//!
//! Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA
//! 19(1), 2005. With P members, m bytes per pair, latency a and b seconds per byte: (P-1) (a + m b). A member sends
//! (P-1) m.

use super::layout::Layout;
use super::rounds::{before, one_by_one, recv, send, wrap};
use super::{Algorithm, GroupRank, Steps, even_blocks};
use crate::program::{Collective, CollectiveKind};
use crate::symmetry::Relabeling;

/// See the module.
pub(super) struct Pairwise;

impl Algorithm for Pairwise {
    fn name(&self) -> &'static str {
        "pairwise"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &[CollectiveKind::AllToAll]
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        let (outgoing, incoming) = Layout::of_pairs(call);
        Box::new(one_by_one((1..size).map(move |distance| {
            let (to, from) = (wrap(me + distance, size), before(me, distance, size));
            [Some(send(to, outgoing.block(to))), Some(recv(from, incoming.block(from)))]
        })))
    }

    fn symmetry(&self, call: &Collective, size: u32) -> Option<Relabeling> {
        even_blocks(call, size).then_some(Relabeling::Rotation)
    }
}
