//! Owns the double binary tree: all-reduce as two trees that each carry half of the tensor, up to their roots and down
//! again, in chunks. Across servers the trees connect one GPU per server, and the server's other GPUs are a chain below
//! it.
//!
//! Sources: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
//! Computing 35(12), 2009; NCCL 2.4 and later use it across servers (NVIDIA/nccl, `src/graph/trees.cc`). In the first
//! tree a member's children are its neighbours at half of its lowest set bit; the second tree is the first one for
//! members numbered one further (an odd number of members) or backwards (an even one), so that an inner node of one
//! tree is a leaf of the other. With P members, n bytes, chunks of c, latency a and b seconds per byte: about
//! (2 log2 P + n / 2c) rounds of a + 4 c b.
//!
//! Across servers each NIC has two trees of its own (`src/graph/connect.cc`), with its part of the tensor: the GPU at
//! the NIC is in the trees of servers, and the server's other GPUs follow it in a chain. With M servers of G GPUs a
//! chunk passes 2 (G - 1 + log2 M) hops. Several chunks are in flight on each hop, so that the hop's latency does not
//! delay each chunk.

use super::layout::{Layout, whole};
use super::rounds::{batches_in_flight, before, recv, recv_combine, send, wrap};
use super::{Action, Algorithm, GroupRank, Span, Steps};
use crate::program::{Collective, CollectiveKind};

/// See the module.
pub(super) struct DoubleTree {
    /// Bytes of a chunk, for all NICs of a server together; above zero.
    pub(super) chunk: u64,
    pub(super) servers: Servers,
}

impl Default for DoubleTree {
    /// Trees of single members, with the message size of NCCL's `Simple`: half of its buffer's step of 512 KiB.
    fn default() -> DoubleTree {
        DoubleTree { chunk: 256 << 10, servers: Servers::ALONE }
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
        let Servers { gpus, cards } = self.servers;
        let chunk = (self.chunk / u64::from(cards) / call.dtype.size()).max(1);
        let (count, server) = (size / gpus, me / gpus);
        let in_flight = self.servers.chunks_in_flight();
        let trees = (0..cards).flat_map(|card| {
            let Span { start, len } = Layout::split(len, cards).block(card);
            let chain = self.servers.chain(card, me);
            let of = |tree: TreePosition, start, len| Pipeline {
                place: tree.with(&chain),
                span: Span { start, len },
                chunk,
                in_flight,
            };
            let half = len / 2;
            let first = of(TreePosition::new(count, server), start, half);
            [first, of(TreePosition::mirrored(count, server), start + half, len - half)]
        });
        let trees: Vec<Pipeline> = trees.collect();
        let chunks = trees.iter().map(Pipeline::chunks).max().unwrap_or(0);
        let rounds = chunks + in_flight * 2 * u64::from(trees[0].place.top) + 1;
        let round = move |round| trees.iter().flat_map(|tree| tree.actions(round)).collect();
        Box::new(batches_in_flight((0..rounds).map(round), in_flight))
    }
}

/// Distribution of members among servers, equally many in each, one server after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Servers {
    /// Members of a server; at least 1.
    pub(super) gpus: u32,
    /// NICs of a server, each at one of its members; at least 1, at most `gpus`.
    pub(super) cards: u32,
}

impl Servers {
    /// Each member is a server.
    pub(super) const ALONE: Servers = Servers { gpus: 1, cards: 1 };

    /// Number of chunks in flight on a hop. Between single members each chunk waits for the previous one.
    pub(super) fn chunks_in_flight(self) -> u64 {
        if self == Servers::ALONE { 1 } else { 4 }
    }

    /// Index in its server of the first member that uses a NIC.
    pub(super) fn first_at(self, card: u32) -> u32 {
        card * self.gpus / self.cards
    }

    fn chain(self, card: u32, me: u32) -> ServerChain {
        let first = self.first_at(card);
        ServerChain { gpus: self.gpus, first, server: me / self.gpus, place: before(me % self.gpus, first, self.gpus) }
    }
}

/// A member's place in the chain of its server, 0 at the NIC.
struct ServerChain {
    gpus: u32,
    first: u32,
    server: u32,
    place: u32,
}

impl ServerChain {
    fn member(&self, server: u32, place: u32) -> u32 {
        server * self.gpus + wrap(self.first + place, self.gpus)
    }
}

/// A member's place in one tree.
struct TreePosition {
    /// Rounds until a chunk that all leaves have sent at once arrives; 0 at a leaf.
    height: u32,
    /// Height of the root.
    top: u32,
    /// Number of messages from the root.
    depth: u32,
    parent: Option<u32>,
    /// The children, each with its height.
    children: Vec<(u32, u32)>,
}

/// The parent in a tree of `size` members: 0 is the root, and below it hangs a binary tree of the others in which the
/// lowest set bit is the height.
fn parent(size: u32, me: u32) -> Option<u32> {
    let bit = (me != 0).then(|| me & me.wrapping_neg())?;
    let up = (me ^ bit) | (bit << 1);
    Some(if up < size { up } else { me ^ bit })
}

impl TreePosition {
    /// A member's position in this tree of servers, each with a chain below the member at its NIC.
    fn with(self, chain: &ServerChain) -> TreePosition {
        let (longest, place) = (chain.gpus - 1, chain.place);
        let next = (place < longest).then(|| (chain.member(chain.server, place + 1), longest - place - 1));
        let top = self.top + longest;
        if place > 0 {
            let parent = Some(chain.member(chain.server, place - 1));
            let children = next.into_iter().collect();
            return TreePosition { height: longest - place, top, depth: self.depth + place, parent, children };
        }
        let below = self.children.into_iter().map(|(server, height)| (chain.member(server, 0), height + longest));
        TreePosition {
            height: self.height + longest,
            top,
            depth: self.depth,
            parent: self.parent.map(|server| chain.member(server, 0)),
            children: next.into_iter().chain(below).collect(),
        }
    }

    fn new(size: u32, me: u32) -> TreePosition {
        let top = (size - 1).ilog2();
        let height = if me == 0 { top + 1 } else { me.trailing_zeros() };
        let depth = std::iter::successors(parent(size, me), |member| parent(size, *member)).count() as u32;
        // Children are the two neighbours at half of the lowest set bit. If the upper neighbour does not exist, a
        // nearer one replaces it.
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

/// Pipeline that carries a part of the tensor up a tree and down again, in chunks. With one chunk in flight, in round t
/// a member of height h sends chunk t - h up, and a member of depth d receives chunk t - top - (d - 1) from above: both
/// sides of a message have it in the same round. With more chunks in flight, a hop lasts as many rounds.
struct Pipeline {
    place: TreePosition,
    span: Span,
    chunk: u64,
    in_flight: u64,
}

impl Pipeline {
    fn chunks(&self) -> u64 {
        self.span.len.div_ceil(self.chunk).max(1)
    }

    /// The chunk that is due in a round, the given number of hops behind the first.
    fn due(&self, round: u64, hops: u32) -> Option<Span> {
        let index = round.checked_sub(self.in_flight * u64::from(hops)).filter(|index| *index < self.chunks())?;
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
