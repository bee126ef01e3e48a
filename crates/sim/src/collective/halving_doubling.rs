//! Owns recursive halving: a reduce-scatter in which each round halves the blocks that a member is responsible for,
//! and, with recursive doubling after it, Rabenseifner's all-reduce.
//!
//! Sources: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur, Rabenseifner and Gropp,
//! "Optimization of collective communication operations in MPICH", IJHPCA 19(1), 2005. The farthest member comes first,
//! so that each member keeps consecutive blocks. With P = 2^k members, n bytes in all blocks together, latency a and b
//! seconds per byte:
//! - reduce-scatter: k a + (P-1)/P n b; a member sends (P-1)/P n.
//! - all-reduce: 2 (k a + (P-1)/P n b); a member sends 2 (P-1)/P n.
//!
//! For another P, with e ranks above the power of two, 2e ranks first pair up and at the end one rank of each pair
//! receives its result: two more rounds, of n and n (all-reduce), or of n and a block (reduce-scatter).

use super::layout::{Layout, whole};
use super::power_of_two::{Core, Role};
use super::recursive_doubling::{double, hand_over};
use super::rounds::{Round, one_by_one, recv_combine, send};
use super::{Algorithm, GroupRank, Span, Steps, even_blocks};
use crate::program::{Collective, CollectiveKind};
use crate::symmetry::Relabeling;

/// See the module.
pub(super) struct HalvingDoubling;

impl Algorithm for HalvingDoubling {
    fn name(&self) -> &'static str {
        "halving_doubling"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &[CollectiveKind::AllReduce, CollectiveKind::ReduceScatter]
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        match call.kind {
            CollectiveKind::AllReduce => all_reduce(whole(call), size, me),
            CollectiveKind::ReduceScatter => reduce_scatter(Layout::of_members(call, size), size, me),
            kind => panic!("halving_doubling cannot carry out {kind}"),
        }
    }

    fn symmetry(&self, call: &Collective, size: u32) -> Option<Relabeling> {
        (size.is_power_of_two() && even_blocks(call, size)).then_some(Relabeling::Flip)
    }
}

fn all_reduce(tensor: Span, size: u32, me: u32) -> Steps {
    let core = Core::of(size);
    let (place, partner) = match core.role(me) {
        Role::Represented { by } => return hand_over(by, tensor, tensor),
        Role::Member { place, partner } => (place, partner),
    };
    let layout = Layout::split(tensor.len, core.size());
    let blocks = move |layout: Layout| move |first, end| layout.blocks(first, end);
    let first = partner.map(|partner| [Some(recv_combine(partner, tensor)), None]);
    let last = partner.map(|partner| [Some(send(partner, tensor)), None]);
    let halvings = halve(core, place, blocks(layout.clone()));
    let doublings = double(core, place, blocks(layout));
    Box::new(one_by_one(first.into_iter().chain(halvings).chain(doublings).chain(last)))
}

fn reduce_scatter(layout: Layout, size: u32, me: u32) -> Steps {
    let core = Core::of(size);
    let everything = layout.blocks(0, size);
    let (place, partner) = match core.role(me) {
        Role::Represented { by } => return hand_over(by, everything, layout.block(me)),
        Role::Member { place, partner } => (place, partner),
    };
    let first = partner.map(|partner| [Some(recv_combine(partner, everything)), None]);
    let last = partner.map(|partner| [Some(send(partner, layout.block(partner))), None]);
    let halvings = halve(core, place, move |from, to| layout.blocks(core.first_rank(from), core.first_rank(to)));
    Box::new(one_by_one(first.into_iter().chain(halvings).chain(last)))
}

/// Recursive halving: the member at `place` ends with the combined `span(place, place + 1)`; `span(first, end)` is the
/// span of the places from `first` up to `end`.
pub(super) fn halve(
    core: Core,
    place: u32,
    span: impl Fn(u32, u32) -> Span + Send,
) -> impl Iterator<Item = Round> + Send {
    core.distances().rev().map(move |distance| {
        let kept = place & !(distance - 1);
        let given = kept ^ distance;
        let peer = core.rank(place ^ distance);
        [Some(send(peer, span(given, given + distance))), Some(recv_combine(peer, span(kept, kept + distance)))]
    })
}
