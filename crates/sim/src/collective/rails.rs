//! Owns the rings through a server's NICs. A server with C NICs has C rings; each ring carries its part of every block,
//! and enters and leaves servers at another GPU.
//!
//! Source: NVIDIA/nccl, `src/graph/search.cc` and `connect.cc`: rings (channels) use different NICs. With C NICs for
//! the G GPUs of a server, each NIC is next to G/C GPUs. Ring c visits the GPUs of a server in order from GPU c G/C on,
//! and the last GPU of a server sends to GPU c G/C of the next server. With M servers, P = M G ranks, n bytes in all
//! blocks together, latency a, and b and d seconds per byte of a GPU's links and of a NIC: all-gather and
//! reduce-scatter last (P-1) (a + n/P max(b, d/C)), and all-reduce lasts twice as long.
//!
//! The operands of a block in ring c are combined in the order of the ring, as in [`super::ring`].

use super::layout::Layout;
use super::rounds::{batches, before, recv, recv_combine, send, wrap};
use super::{Action, Algorithm, GroupRank, Span, Steps, even_blocks};
use crate::program::{Collective, CollectiveKind, Shape};
use crate::symmetry::Relabeling;

/// See the module.
pub(super) struct Rails {
    /// GPUs of a server, which follow each other in the group; the group's size is a multiple.
    pub(super) per_server: u32,
    /// Number of NICs per server; the number of GPUs per server is a multiple of it.
    pub(super) nics: u32,
}

impl Algorithm for Rails {
    fn name(&self) -> &'static str {
        "rails"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &[CollectiveKind::AllReduce, CollectiveKind::AllGather, CollectiveKind::ReduceScatter]
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        let Rails { per_server, nics } = *self;
        let rings = Rings { per_server, nics, size, me, layout: Layout::of_members(call, size) };
        // Rounds of an all-gather begin with a rank's own block, those of a reduce-scatter with the previous rank's
        // block.
        let (combining, spreading) = match call.kind {
            CollectiveKind::AllReduce => (1..size, 0..size - 1),
            CollectiveKind::ReduceScatter => (1..size, 0..0),
            CollectiveKind::AllGather => (1..1, 0..size - 1),
            kind => panic!("rails cannot carry out {kind}"),
        };
        let rounds = combining.map(|round| (round, true)).chain(spreading.map(|round| (round, false)));
        Box::new(batches(rounds.map(move |(round, combine)| rings.round(round, combine))))
    }

    /// A shift by one GPU in every server is a shift by one ring, if rings have equal parts; a shift by one server is
    /// the same in every ring.
    fn symmetry(&self, call: &Collective, size: u32) -> Option<Relabeling> {
        let block = match (call.kind, &call.shape) {
            (CollectiveKind::AllReduce, Shape::Even(count)) => count / u64::from(size),
            (_, Shape::Even(count)) => *count,
            _ => return None,
        };
        let even = even_blocks(call, size) && block.is_multiple_of(self.nics.into()) && self.nics == self.per_server;
        even.then_some(Relabeling::Blocks(self.per_server))
    }
}

/// A member's place in all rings.
struct Rings {
    per_server: u32,
    nics: u32,
    size: u32,
    me: u32,
    layout: Layout,
}

impl Rings {
    /// One message in and one message out in every ring, in an order that is the same at both ends.
    fn round(&self, round: u32, combine: bool) -> Vec<Action> {
        let at = self.me % self.per_server;
        let entries = (0..self.per_server).map(|place| before(at, place, self.per_server));
        let rings = entries.filter(|gpu| gpu.is_multiple_of(self.stride())).map(|gpu| gpu / self.stride());
        rings.flat_map(|ring| self.messages(ring, round, combine)).collect()
    }

    fn messages(&self, ring: u32, round: u32, combine: bool) -> [Action; 2] {
        let position = self.position(ring);
        let neighbour = |position| self.rank(ring, position);
        let (next, previous) = (neighbour(wrap(position + 1, self.size)), neighbour(before(position, 1, self.size)));
        let block = |round: u32| self.piece(neighbour(before(position, round, self.size)), ring);
        // Round P - 1 of a reduce-scatter ends with the rank's own block.
        let incoming = block(round + 1);
        let receive = if combine { recv_combine } else { recv };
        [send(next, block(round)), receive(previous, incoming)]
    }

    /// Number of GPUs that share a NIC.
    fn stride(&self) -> u32 {
        self.per_server / self.nics
    }

    fn position(&self, ring: u32) -> u32 {
        let at = self.me % self.per_server;
        self.me - at + before(at, ring * self.stride(), self.per_server)
    }

    fn rank(&self, ring: u32, position: u32) -> u32 {
        let at = position % self.per_server;
        position - at + wrap(at + ring * self.stride(), self.per_server)
    }

    /// The part of a rank's block that goes round in a ring.
    fn piece(&self, rank: u32, ring: u32) -> Span {
        let block = self.layout.block(rank);
        let Span { start, len } = Layout::split(block.len, self.nics).block(ring);
        Span { start: block.start + start, len }
    }
}
