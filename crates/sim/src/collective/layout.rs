//! Owns the offsets of a collective's blocks in its tensor, independent of the algorithm.

use super::Span;
use crate::program::{Collective, CollectiveKind, Shape};
use std::sync::Arc;

/// A tensor cut into consecutive blocks, one for each of a number of parts.
#[derive(Clone)]
pub(super) enum Layout {
    /// Equal blocks of `quotient` elements; the first `remainder` blocks have one element more.
    Regular { quotient: u64, remainder: u64 },
    /// First element of each block, and end of the last one.
    Listed(Arc<[u64]>),
}

impl Layout {
    /// Splits `elements` into `parts`, as equally as possible, larger blocks first.
    pub(super) fn split(elements: u64, parts: u32) -> Layout {
        Layout::Regular { quotient: elements / u64::from(parts), remainder: elements % u64::from(parts) }
    }

    /// Blocks of these lengths.
    pub(super) fn listed(lengths: &[u64]) -> Layout {
        let ends = lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        Layout::Listed(std::iter::once(0).chain(ends).collect())
    }

    /// The members' blocks of `call`: the data that each contributes or receives.
    pub(super) fn of_members(call: &Collective, size: u32) -> Layout {
        match &call.shape {
            Shape::Even(_) if reduces_or_copies_whole(call.kind) => Layout::split(elements(call), size),
            Shape::Even(count) => Layout::Regular { quotient: *count, remainder: 0 },
            Shape::Blocks(blocks) => Layout::listed(blocks),
            Shape::Pairs { .. } => panic!("{} cannot have unequal pairs", call.kind),
        }
    }

    /// Blocks that a member sends to each rank, and blocks that it receives from each, in an all-to-all.
    pub(super) fn of_pairs(call: &Collective) -> (Layout, Layout) {
        match &call.shape {
            Shape::Even(count) => {
                let same = || Layout::Regular { quotient: *count, remainder: 0 };
                (same(), same())
            }
            Shape::Pairs { send, recv } => (Layout::listed(send), Layout::listed(recv)),
            Shape::Blocks(_) => panic!("all_to_all has one block a pair of ranks, not one a rank"),
        }
    }

    /// Blocks from each of `size` members to each, in an all-to-all, member by member, as far as `me` knows: if pairs
    /// differ, blocks between other members count as empty.
    pub(super) fn of_all_pairs(call: &Collective, size: u32, me: u32) -> Layout {
        let Shape::Pairs { send, recv } = &call.shape else { return Layout::of_pairs(call).0 };
        let length = |from: u32, to: u32| match (from == me, to == me) {
            (true, _) => send[to as usize],
            (false, true) => recv[from as usize],
            (false, false) => 0,
        };
        Layout::listed(&(0..size).flat_map(|from| (0..size).map(move |to| length(from, to))).collect::<Vec<u64>>())
    }

    /// The blocks of `size` members, starting with the block of `root`.
    pub(super) fn counted_from(&self, root: u32, size: u32) -> Layout {
        let length = |place| self.block((root + place) % size).len;
        Layout::listed(&(0..size).map(length).collect::<Vec<u64>>())
    }

    /// The same layout with each of `parts` blocks cut into `pieces`, as equally as possible, larger ones first.
    pub(super) fn cut(&self, parts: u32, pieces: u32) -> Layout {
        let lengths = |part| {
            let whole = self.block(part).len;
            (0..pieces).map(move |piece| Layout::split(whole, pieces).block(piece).len)
        };
        Layout::listed(&(0..parts).flat_map(lengths).collect::<Vec<u64>>())
    }

    #[inline]
    fn start(&self, part: u32) -> u64 {
        match self {
            Layout::Regular { quotient, remainder } => u64::from(part) * quotient + u64::from(part).min(*remainder),
            Layout::Listed(starts) => starts[part as usize],
        }
    }

    /// The block of one part.
    #[inline]
    pub(super) fn block(&self, part: u32) -> Span {
        self.blocks(part, part + 1)
    }

    /// The blocks of the parts from `first` up to, not including, `end`.
    pub(super) fn blocks(&self, first: u32, end: u32) -> Span {
        let start = self.start(first);
        Span { start, len: self.start(end) - start }
    }
}

/// Number of elements in the tensor of a collective without blocks.
pub(super) fn elements(call: &Collective) -> u64 {
    match &call.shape {
        Shape::Even(count) => *count,
        Shape::Blocks(_) | Shape::Pairs { .. } => panic!("{} has no blocks", call.kind),
    }
}

/// The whole tensor of a collective without blocks.
pub(super) fn whole(call: &Collective) -> Span {
    Span { start: 0, len: elements(call) }
}

fn reduces_or_copies_whole(kind: CollectiveKind) -> bool {
    matches!(kind, CollectiveKind::AllReduce | CollectiveKind::Reduce | CollectiveKind::Broadcast)
}
