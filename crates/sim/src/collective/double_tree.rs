//! Owns the double binary tree: all-reduce as two trees that each carry half of the tensor, up to their roots and down again, in chunks.
//!
//! Sources: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35(12),
//! 2009; NCCL 2.4 and later use it across servers (NVIDIA/nccl, `src/graph/trees.cc`). In the first tree a member's children are its
//! neighbours at half of its lowest set bit; the second is the first for members counted one further (an odd number of members) or backwards
//! (an even one), so that an inner node of one is a leaf of the other. With P members, n bytes, chunks of c, latency a and b
//! seconds a byte: about (2 log2 P + n / 2c) rounds of a + 4 c b.

use super::layout::whole;
use super::rounds::{batches, recv, recv_combine, send, wrap};
use super::{Action, Algorithm, GroupRank, Span, Steps};
use crate::program::{Collective, CollectiveKind};

/// See the module.
pub(super) struct DoubleTree {
    /// Bytes of a chunk; above zero.
    pub(super) chunk: u64,
}

impl Default for DoubleTree {
    /// With what NCCL's `Simple` sends at once: a half of its buffer's step of 512 KiB.
    fn default() -> DoubleTree {
        DoubleTree { chunk: 256 << 10 }
    }
}

impl Algorithm for DoubleTree {
    fn name(&self) -> &'static str {
        "double_tree"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &[CollectiveKind::AllReduce]
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        let Span { len, .. } = whole(call);
        let half = len / 2;
        let chunk = (self.chunk / call.dtype.size()).max(1);
        let first = Pipeline { place: TreePosition::new(size, me), span: Span { start: 0, len: half }, chunk };
        let span = Span { start: half, len: len - half };
        let second = Pipeline { place: TreePosition::mirrored(size, me), span, chunk };
        let rounds = second.chunks() + 2 * u64::from(first.place.top) + 1;
        Box::new(batches((0..rounds).map(move |round| first.actions(round).chain(second.actions(round)).collect())))
    }
}

/// A member's place in one tree.
struct TreePosition {
    /// Rounds until a chunk that all leaves have sent at once has come here; 0 at a leaf.
    height: u32,
    /// Height of the root.
    top: u32,
    /// Messages from the root.
    depth: u32,
    parent: Option<u32>,
    /// The children, each with its height.
    children: Vec<(u32, u32)>,
}

/// The parent in a tree of `size` members: 0 is the root, below it hangs a binary tree of the others in which the lowest set bit tells the height.
fn parent(size: u32, me: u32) -> Option<u32> {
    let bit = (me != 0).then(|| me & me.wrapping_neg())?;
    let up = (me ^ bit) | (bit << 1);
    Some(if up < size { up } else { me ^ bit })
}

impl TreePosition {
    fn new(size: u32, me: u32) -> TreePosition {
        let top = (size - 1).ilog2();
        let height = if me == 0 { top + 1 } else { me.trailing_zeros() };
        let depth = std::iter::successors(parent(size, me), |member| parent(size, *member)).count() as u32;
        // Of two neighbours at half of the lowest set bit, the upper one may not exist; then one nearer by is in its place.
        let below = || (0..height).rev().map(|level| 1 << level);
        let left = if me == 0 { None } else { below().next().map(|half: u32| me - half) };
        let right = below().map(|half| me + half).find(|child| *child < size);
        let children = left.into_iter().chain(right).map(|child: u32| (child, child.trailing_zeros())).collect();
        TreePosition { height, top: top + 1, depth, parent: parent(size, me), children }
    }

    /// The position in the second tree, in which members have other numbers.
    fn mirrored(size: u32, me: u32) -> TreePosition {
        let even = size.is_multiple_of(2);
        let there = |member: u32| if even { size - 1 - member } else { wrap(member + size - 1, size) };
        let back = |place: u32| if even { size - 1 - place } else { wrap(place + 1, size) };
        let place = TreePosition::new(size, there(me));
        let children = place.children.into_iter().map(|(child, height)| (back(child), height)).collect();
        TreePosition { parent: place.parent.map(back), children, ..place }
    }
}

/// Carries a part of the tensor up a tree and down again, in chunks that follow each other. In round t a member of height h hands chunk
/// t - h up, and one of depth d takes chunk t - top - (d - 1) from above: both sides of a message have it in the same round.
struct Pipeline {
    place: TreePosition,
    span: Span,
    chunk: u64,
}

impl Pipeline {
    fn chunks(&self) -> u64 {
        self.span.len.div_ceil(self.chunk).max(1)
    }

    /// The chunk that is due in a round, `lag` rounds after the first.
    fn due(&self, round: u64, lag: u32) -> Option<Span> {
        let index = round.checked_sub(lag.into()).filter(|index| *index < self.chunks())?;
        let start = index * self.chunk;
        Some(Span { start: self.span.start + start, len: self.chunk.min(self.span.len - start) })
    }

    fn actions(&self, round: u64) -> impl Iterator<Item = Action> {
        let TreePosition { height, top, depth, parent, ref children } = self.place;
        let combined =
            children.iter().filter_map(move |(child, height)| Some(recv_combine(*child, self.due(round, *height)?)));
        let up = parent.and_then(|parent| Some(send(parent, self.due(round, height)?)));
        let down = parent.and_then(|parent| Some(recv(parent, self.due(round, top + depth - 1)?)));
        let passed_on = children.iter().filter_map(move |(child, _)| Some(send(*child, self.due(round, top + depth)?)));
        combined.chain(up).chain(down).chain(passed_on)
    }
}
