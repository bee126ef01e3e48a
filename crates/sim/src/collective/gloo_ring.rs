//! Owns Gloo's rings: all-reduce, reduce, reduce-scatter and all-gather as torch's `ProcessGroupGloo` carries them out.
//!
//! Sources: pytorch/gloo, `gloo/allreduce.cc`, `gloo/reduce.cc`, `gloo/allgather.cc`, `gloo/allgatherv.cc`.
//!
//! **all_reduce** goes down the ring (to rank r-1). The tensor is cut into S = max(ceil(n / 1 MiB), 2P) segments,
//! rounded up to a multiple of P, of ceil(elements / S) elements each, the last ones shorter or absent; S/P consecutive
//! segments are a chunk. Two segments are in flight. The reduce-scatter phase leaves chunk r at rank r, the all-gather
//! phase starts when it is over. Chunk c is combined as x\[c\] + (... + (x\[c-2\] + x\[c-1\])), ranks modulo P: a
//! member's own elements are the first operand.
//!
//! **reduce** is the same reduce-scatter, then every rank sends its chunk to the root. Its segments are min(ceil(n /
//! 2P), 1 MiB) long, and with more than two segments per chunk it continues for S/P - 2 segments that are not needed.
//!
//! **reduce_scatter** of one tensor ([`Shape::Even`]) is one all_reduce of all blocks. For a list of tensors
//! ([`Shape::Blocks`], equal or not) it is one all_reduce per tensor, two at a time (the process group has two worker
//! threads); in this model the second of two advances with the first, segment by segment.
//!
//! **all_gather** goes up the ring (to rank r+1), each block in two halves (in this model of whole elements), two in
//! flight; unequal blocks, which torch refuses, are sent whole and one by one.
//!
//! With n bytes in all blocks together, latency a and b seconds per byte, a rank sends 2 (P-1)/P n in an all_reduce,
//! and twice the bytes of a true reduce-scatter in a reduce_scatter. Small messages: all_reduce 2 (P-1) a, all_gather
//! (P-1) a, plus the cost of a rendezvous. Empty segments are not sent, and with equal shapes empty tensors need no
//! steps.
//!
//! Measured: torch 2.15's results equal those combined in this order bit for bit, with 2, 3, 4, 5 and 7 ranks, 1 to
//! 6,000,000 elements of float32, float64 and bfloat16, for all four calls that reduce; the bytes on the loopback
//! interface are equal too, reduce's needless segments included (P = 2, 16 MiB: 36 MiB in place of 24).

use super::layout::{Layout, elements};
use super::rounds::{IDLE, Round, before, in_flight, one_by_one, recv, recv_combine, send, then_at_once, wrap};
use super::{Action, Algorithm, GroupRank, Span, Steps, ring, root_of};
use crate::program::{Collective, CollectiveKind, Shape};

/// Gloo's `kMaxSegmentSize`, in bytes.
const MAX_SEGMENT: u64 = 1 << 20;

/// See the module.
pub(super) struct GlooRing;

impl Algorithm for GlooRing {
    fn name(&self) -> &'static str {
        "gloo_ring"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &[CollectiveKind::AllReduce, CollectiveKind::Reduce, CollectiveKind::AllGather, CollectiveKind::ReduceScatter]
    }

    fn keeps_first(&self) -> bool {
        true
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        let element = call.dtype.size();
        match (call.kind, &call.shape) {
            (CollectiveKind::AllReduce, _) => {
                let tensor = Span { start: 0, len: elements(call) };
                Box::new(in_flight::<_, 2>(all_reduce(Segments::of_all_reduce(tensor, element, size), me)))
            }
            (CollectiveKind::Reduce, _) => reduce(call, size, me),
            (CollectiveKind::ReduceScatter, Shape::Even(count)) => {
                let tensor = Span { start: 0, len: count * u64::from(size) };
                Box::new(in_flight::<_, 2>(all_reduce(Segments::of_all_reduce(tensor, element, size), me)))
            }
            (CollectiveKind::ReduceScatter, _) => {
                let layout = Layout::of_members(call, size);
                let block = move |rank| Segments::of_all_reduce(layout.block(rank), element, size);
                Box::new(in_flight::<_, 4>(two_at_a_time(block, size, me)))
            }
            (CollectiveKind::AllGather, Shape::Even(count)) => {
                Box::new(in_flight::<_, 2>(all_gather_in_halves(*count, size, me)))
            }
            (CollectiveKind::AllGather, _) => {
                let layout = Layout::of_members(call, size);
                Box::new(one_by_one(ring::all_gather(move |rank| layout.block(rank), size, me)))
            }
            (kind, _) => panic!("gloo_ring cannot carry out {kind}"),
        }
    }
}

/// A tensor cut into segments, the same number for each rank.
#[derive(Clone, Copy)]
struct Segments {
    tensor: Span,
    size: u64,
    per_rank: u64,
    /// Elements of a segment; the last ones may be shorter.
    len: u64,
}

impl Segments {
    fn of_all_reduce(tensor: Span, element: u64, size: u32) -> Segments {
        let size = u64::from(size);
        let largest = (MAX_SEGMENT / element).max(1) * element;
        let count = (tensor.len * element).div_ceil(largest).max(2 * size);
        let per_rank = count.div_ceil(size);
        Segments { tensor, size, per_rank, len: tensor.len.div_ceil(per_rank * size) }
    }

    fn of_reduce(tensor: Span, element: u64, size: u32) -> Segments {
        let size = u64::from(size);
        let bytes = tensor.len * element;
        let largest = (MAX_SEGMENT / element).max(1) * element;
        let len = bytes.div_ceil(2 * size).min(largest).div_ceil(element);
        let count = tensor.len.div_ceil(len.max(1)).max(2 * size);
        Segments { tensor, size, per_rank: count.div_ceil(size), len }
    }

    fn count(self) -> u64 {
        self.per_rank * self.size
    }

    /// Elements from the start of segment `index` on, at most `len`; `None` if the tensor ends before.
    fn span(self, index: u64, len: u64) -> Option<Span> {
        let start = index * self.len;
        let left = self.tensor.len.saturating_sub(start);
        (left > 0).then(|| Span { start: self.tensor.start + start, len: len.min(left) })
    }

    /// Segment `index`, modulo their number.
    fn segment(self, index: u64) -> Option<Span> {
        self.span(index % self.count(), self.len)
    }

    fn chunk(self, rank: u32) -> Option<Span> {
        self.span(u64::from(rank) * self.per_rank, self.per_rank * self.len)
    }
}

/// `count` rounds down the ring: the first sends the segments from chunk `first` on, and receives those from the next
/// chunk on.
fn down_the_ring(
    segments: Segments,
    me: u32,
    first: u32,
    count: u64,
    receive: fn(u32, Span) -> Action,
) -> impl Iterator<Item = Round> + Send {
    let size = segments.size as u32;
    let (to, from) = (before(me, 1, size), wrap(me + 1, size));
    let sent = u64::from(first) * segments.per_rank;
    (sent..sent + count).map(move |index| {
        let incoming = segments.segment(index + segments.per_rank).map(|span| receive(from, span));
        [incoming, segments.segment(index).map(|span| send(to, span))]
    })
}

fn all_reduce(segments: Segments, me: u32) -> impl Iterator<Item = Round> + Send {
    let rounds = segments.count() - segments.per_rank;
    let reduce_scatter = down_the_ring(segments, me, me + 1, rounds, recv_combine);
    // The idle round, with two rounds in flight, makes the next phase wait for the end of this one.
    reduce_scatter.chain([IDLE]).chain(down_the_ring(segments, me, me, rounds, recv))
}

fn reduce(call: &Collective, size: u32, me: u32) -> Steps {
    let GroupRank(root) = root_of(call);
    let segments = Segments::of_reduce(Span { start: 0, len: elements(call) }, call.dtype.size(), size);
    let reduce_scatter = in_flight::<_, 2>(down_the_ring(segments, me, me + 1, segments.count() - 2, recv_combine));
    let gathered = (0..size).filter_map(move |rank| {
        let span = segments.chunk(rank)?;
        match (me == root, rank == me) {
            (true, false) => Some(recv(rank, span)),
            (false, true) => Some(send(root, span)),
            _ => None,
        }
    });
    Box::new(then_at_once(reduce_scatter, gathered))
}

/// An all-reduce of each block, two of them in lock-step; each has two of the four rounds in flight.
fn two_at_a_time(
    block: impl Fn(u32) -> Segments + Send + 'static,
    size: u32,
    me: u32,
) -> impl Iterator<Item = Round> + Send {
    (0..size).step_by(2).flat_map(move |rank| {
        let mut first = all_reduce(block(rank), me);
        let mut second = (rank + 1 < size).then(|| all_reduce(block(rank + 1), me));
        let pairs = std::iter::from_fn(move || {
            let pair = (first.next(), second.as_mut().and_then(Iterator::next));
            (pair != (None, None)).then(|| [pair.0.unwrap_or(IDLE), pair.1.unwrap_or(IDLE)])
        });
        pairs.flatten().chain([IDLE; 3])
    })
}

fn all_gather_in_halves(count: u64, size: u32, me: u32) -> impl Iterator<Item = Round> + Send {
    let (to, from) = (wrap(me + 1, size), before(me, 1, size));
    let halves = [(0, count / 2), (count / 2, count - count / 2)];
    let half = move |rank: u32, (offset, len)| Span { start: u64::from(rank) * count + offset, len };
    let rounds = if count == 0 { 0 } else { size - 1 };
    (0..rounds).flat_map(move |round| {
        let (outgoing, incoming) = (before(me, round, size), before(me, round + 1, size));
        halves.map(|part| [Some(send(to, half(outgoing, part))), Some(recv(from, half(incoming, part)))])
    })
}
