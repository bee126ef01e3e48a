//! Owns the dissemination barrier: in round k every member signals the member 2^k places up.
//!
//! Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", IJPP 17(1), 1988. pytorch/gloo's
//! `gloo/barrier.cc` uses the same algorithm. With P members and latency a: ceil(log2 P) a. Messages carry no elements.

use super::rounds::{before, one_by_one, recv, send, wrap};
use super::{Algorithm, GroupRank, Span, Steps};
use crate::program::{Collective, CollectiveKind};
use crate::symmetry::Relabeling;

/// See the module.
pub(super) struct Dissemination;

impl Algorithm for Dissemination {
    fn name(&self) -> &'static str {
        "dissemination"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &[CollectiveKind::Barrier]
    }

    fn steps(&self, _call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        let rounds = u32::BITS - (size - 1).leading_zeros();
        Box::new(one_by_one((0..rounds).map(move |round| {
            let distance = 1 << round;
            [Some(recv(before(me, distance, size), Span::EMPTY)), Some(send(wrap(me + distance, size), Span::EMPTY))]
        })))
    }

    fn symmetry(&self, _call: &Collective, _size: u32) -> Option<Relabeling> {
        Some(Relabeling::Rotation)
    }
}
