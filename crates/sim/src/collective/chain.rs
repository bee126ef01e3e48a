//! Owns the pipelined chain: broadcast from each member to the next one up, in chunks that follow each other, and reduce the same way to
//! the root.
//!
//! Sources: Open MPI, `coll_base_bcast.c` (`pipeline`); NCCL carries out broadcast and reduce this way on a ring. With P members, n bytes, chunks of c,
//! latency a and b seconds a byte: (P - 2 + ceil(n / c)) (a + c b).
//!
//! Reduce combines from the far end on: `((x[root-1] + ...) + x[root])`, each member its own input after what comes from below.

use super::layout::whole;
use super::rounds::{Round, before, one_by_one, recv, recv_combine, send, wrap};
use super::{Algorithm, GroupRank, Span, Steps, root_of};
use crate::program::{Collective, CollectiveKind};

/// See the module.
pub(super) struct Chain {
    /// Bytes of a chunk; above zero.
    pub(super) chunk: u64,
}

impl Default for Chain {
    /// Chunks of the size of Open MPI's segments for large messages.
    fn default() -> Chain {
        Chain { chunk: 128 << 10 }
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
        let tensor = whole(call);
        let chunk = (self.chunk / call.dtype.size()).max(1);
        let place = before(me, root, size);
        let (above, below) = (wrap(me + 1, size), before(me, 1, size));
        let (first, last) = (place == 0, place == size - 1);
        match call.kind {
            CollectiveKind::Broadcast => {
                let from = (!first).then_some(below);
                let to = (!last).then_some(above);
                Box::new(one_by_one(relay(tensor, chunk, move |span| Some(recv(from?, span)), to)))
            }
            CollectiveKind::Reduce => {
                let from = (!last).then_some(above);
                let to = (!first).then_some(below);
                Box::new(one_by_one(relay(tensor, chunk, move |span| Some(recv_combine(from?, span)), to)))
            }
            kind => panic!("chain cannot carry out {kind}"),
        }
    }
}

/// In each round one chunk comes in, and the one before goes out.
fn relay(
    tensor: Span,
    chunk: u64,
    receive: impl Fn(Span) -> Option<super::Action> + Send,
    to: Option<u32>,
) -> impl Iterator<Item = Round> + Send {
    let chunks = tensor.len.div_ceil(chunk).max(1);
    let at = move |index: u64| {
        let start = index * chunk;
        (index < chunks).then(|| Span { start: tensor.start + start, len: chunk.min(tensor.len - start) })
    };
    (0..=chunks).map(move |round| {
        let outgoing = round.checked_sub(1).and_then(at);
        [at(round).and_then(&receive), outgoing.and_then(|span| Some(send(to?, span)))]
    })
}
