//! Owns the pipelined chain: broadcast from each member to the next one up, in chunks that follow each other, and
//! reduce the same way to the root.
//!
//! Sources: Open MPI, `coll_base_bcast.c` (`pipeline`); NCCL carries out broadcast and reduce this way on a ring. With
//! P members, n bytes, chunks of c, latency a and b seconds per byte: (P - 2 + ceil(n / c)) (a + c b).
//!
//! Across servers each NIC has its own chain, with its part of the tensor: the chain follows the ring of
//! [`super::rails`] that leaves servers by this NIC.
//!
//! Reduce combines from the far end on: `((x[root-1] + ...) + x[root])`, each member its own input after the elements
//! from below.

use super::double_tree::Servers;
use super::layout::{Layout, whole};
use super::rounds::{batches_in_flight, before, one_by_one, recv, recv_combine, send, wrap};
use super::{Action, Algorithm, GroupRank, Span, Steps, root_of};
use crate::program::{Collective, CollectiveKind};

/// See the module.
pub(super) struct Chain {
    /// Bytes of a chunk, for all NICs of a server together; above zero.
    pub(super) chunk: u64,
    pub(super) servers: Servers,
}

impl Default for Chain {
    /// Chunks have the size of Open MPI's segments for large messages.
    fn default() -> Chain {
        Chain { chunk: 128 << 10, servers: Servers::ALONE }
    }
}

impl Algorithm for Chain {
    fn name(&self) -> &'static str {
        "chain"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &[CollectiveKind::Broadcast, CollectiveKind::Reduce]
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        let GroupRank(root) = root_of(call);
        let Servers { gpus, cards } = self.servers;
        let chunk = (self.chunk / u64::from(cards) / call.dtype.size()).max(1);
        let is_reduced = match call.kind {
            CollectiveKind::Broadcast => false,
            CollectiveKind::Reduce => true,
            kind => panic!("chain cannot carry out {kind}"),
        };
        let links = (0..cards).map(|card| {
            let first = self.servers.first_at(card);
            let position = |rank: u32| rank - rank % gpus + before(rank % gpus, first, gpus);
            let rank = |position: u32| position - position % gpus + wrap(position % gpus + first, gpus);
            let (own, begin) = (position(me), position(root));
            let place = before(own, begin, size);
            let above = (place != size - 1).then(|| rank(wrap(own + 1, size)));
            let below = (place != 0).then(|| rank(before(own, 1, size)));
            let (from, to) = if is_reduced { (above, below) } else { (below, above) };
            let hops = if is_reduced { size - 1 - place } else { place };
            Link {
                tensor: Layout::split(whole(call).len, cards).block(card),
                chunk,
                from,
                to,
                is_reduced,
                hops: hops.into(),
            }
        });
        let links: Vec<Link> = links.collect();
        let chunks = links.iter().map(Link::chunks).max().unwrap_or(0);
        if let [link] = links[..] {
            return Box::new(one_by_one(
                (0..=chunks).map(move |round| [link.incoming(Some(round)), link.outgoing(round.checked_sub(1))]),
            ));
        }
        // A member has other places in other chains: both sides of a message have it in the same round.
        let in_flight = self.servers.chunks_in_flight();
        let round = move |round: u64| {
            let actions = links.iter().flat_map(|link| {
                let chunk = |hops: Option<u64>| round.checked_sub(in_flight * hops?);
                [link.incoming(chunk(link.hops.checked_sub(1))), link.outgoing(chunk(Some(link.hops)))]
            });
            actions.flatten().collect()
        };
        Box::new(batches_in_flight((0..chunks + in_flight * u64::from(size)).map(round), in_flight))
    }
}

/// Neighbours of a member in a chain: the sender and the receiver of its part of the tensor.
#[derive(Clone, Copy)]
struct Link {
    tensor: Span,
    chunk: u64,
    from: Option<u32>,
    to: Option<u32>,
    is_reduced: bool,
    /// Number of members before this one.
    hops: u64,
}

impl Link {
    fn chunks(&self) -> u64 {
        self.tensor.len.div_ceil(self.chunk).max(1)
    }

    fn span(&self, chunk: u64) -> Option<Span> {
        let start = chunk * self.chunk;
        let len = self.chunk.min(self.tensor.len.saturating_sub(start));
        (chunk < self.chunks()).then_some(Span { start: self.tensor.start + start, len })
    }

    fn incoming(&self, chunk: Option<u64>) -> Option<Action> {
        let receive = if self.is_reduced { recv_combine } else { recv };
        Some(receive(self.from?, self.span(chunk?)?))
    }

    fn outgoing(&self, chunk: Option<u64>) -> Option<Action> {
        Some(send(self.to?, self.span(chunk?)?))
    }
}
