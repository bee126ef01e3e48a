//! Owns recursive doubling: in round k each member exchanges all its data with the member 2^k places away.
//!
//! Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA
//! 19(1), 2005. With P = 2^k members, latency a, b seconds per byte, n bytes in the tensor (all-reduce) or in all
//! blocks together (all-gather):
//! - all-reduce: k (a + n b); a member sends k n.
//! - all-gather: k a + (P-1)/P n b; a member sends (P-1)/P n.
//!
//! For another P, with e ranks above the power of two, 2e ranks first pair up and at the end one rank of each pair
//! receives the result: two more rounds, of n (all-reduce), or of one block and n (all-gather).

use super::layout::{Layout, whole};
use super::power_of_two::{Core, Role};
use super::rounds::{Round, one_by_one, recv, recv_combine, send};
use super::{Algorithm, GroupRank, Span, Steps, even_blocks};
use crate::program::{Collective, CollectiveKind};
use crate::symmetry::Relabeling;

/// See the module.
pub(super) struct RecursiveDoubling;

impl Algorithm for RecursiveDoubling {
    fn name(&self) -> &'static str {
        "recursive_doubling"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &[CollectiveKind::AllReduce, CollectiveKind::AllGather]
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        match call.kind {
            CollectiveKind::AllReduce => all_reduce(whole(call), size, me),
            CollectiveKind::AllGather => all_gather(Layout::of_members(call, size), size, me),
            kind => panic!("recursive_doubling cannot carry out {kind}"),
        }
    }

    fn symmetry(&self, call: &Collective, size: u32) -> Option<Relabeling> {
        let alike = call.kind == CollectiveKind::AllReduce || even_blocks(call, size);
        (size.is_power_of_two() && alike).then_some(Relabeling::Flip)
    }
}

fn all_reduce(tensor: Span, size: u32, me: u32) -> Steps {
    let core = Core::of(size);
    let (place, partner) = match core.role(me) {
        Role::Represented { by } => return hand_over(by, tensor, tensor),
        Role::Member { place, partner } => (place, partner),
    };
    let exchanges = core.distances().map(move |distance| {
        let peer = core.rank(place ^ distance);
        [Some(send(peer, tensor)), Some(recv_combine(peer, tensor))]
    });
    let first = partner.map(|partner| [Some(recv_combine(partner, tensor)), None]);
    let last = partner.map(|partner| [Some(send(partner, tensor)), None]);
    Box::new(one_by_one(first.into_iter().chain(exchanges).chain(last)))
}

fn all_gather(layout: Layout, size: u32, me: u32) -> Steps {
    let core = Core::of(size);
    let everything = layout.blocks(0, size);
    let (place, partner) = match core.role(me) {
        Role::Represented { by } => return hand_over(by, layout.block(me), everything),
        Role::Member { place, partner } => (place, partner),
    };
    let first = partner.map(|partner| [Some(recv(partner, layout.block(partner))), None]);
    let last = partner.map(|partner| [Some(send(partner, everything)), None]);
    let exchanges = double(core, place, move |from, to| layout.blocks(core.first_rank(from), core.first_rank(to)));
    Box::new(one_by_one(first.into_iter().chain(exchanges).chain(last)))
}

/// Steps of a rank for which another rank acts: it hands over its part and receives the result.
pub(super) fn hand_over(to: u32, part: Span, result: Span) -> Steps {
    Box::new(one_by_one([[Some(send(to, part)), None], [Some(recv(to, result)), None]].into_iter()))
}

/// Recursive doubling: the member at `place` exchanges, at distances 1, 2, 4, ..., the data of both: `span(first, end)`
/// is the span of the places from `first` up to `end`.
pub(super) fn double(
    core: Core,
    place: u32,
    span: impl Fn(u32, u32) -> Span + Send,
) -> impl Iterator<Item = Round> + Send {
    core.distances().map(move |distance| {
        let mine = place & !(distance - 1);
        let theirs = mine ^ distance;
        let peer = core.rank(place ^ distance);
        [Some(send(peer, span(mine, mine + distance))), Some(recv(peer, span(theirs, theirs + distance)))]
    })
}
