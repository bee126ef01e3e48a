//! Owns van de Geijn's broadcast: the root's tensor is scattered down a binomial tree, then gathered around a ring.
//!
//! Sources: Barnett et al., "Interprocessor collective communication library (InterCom)", SHPCC 1994; Thakur,
//! Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19(1), 2005. With P =
//! 2^k members, n bytes, latency a and b seconds per byte: (k + P - 1) a + 2 (P-1)/P n b.

use super::layout::{Layout, elements};
use super::rounds::{before, one_by_one, recv, renumbered, send, wrap};
use super::{Algorithm, GroupRank, Span, Steps, ring, root_of};
use crate::program::{Collective, CollectiveKind};

/// See the module.
pub(super) struct ScatterAllgather;

impl Algorithm for ScatterAllgather {
    fn name(&self) -> &'static str {
        "scatter_allgather"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &[CollectiveKind::Broadcast]
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        let GroupRank(root) = root_of(call);
        let layout = Layout::split(elements(call), size);
        // Members are counted from the root, and so are blocks: the member at place p ends the scatter with block p.
        let place = before(me, root, size);
        let at = move |place: u32| wrap(place + root, size);
        let span = {
            let layout = layout.clone();
            move |place: u32, reach: u32| -> Span { layout.blocks(place, (place + reach).min(size)) }
        };
        let top = size.next_power_of_two();
        let reach = if place == 0 { top } else { place & place.wrapping_neg() };
        let incoming = (place != 0).then(|| [Some(recv(at(place - reach), span(place, reach))), None]);
        let below = std::iter::successors(Some(reach / 2), |reach| Some(reach / 2)).take_while(|reach| *reach > 0);
        let children = below.filter(move |reach| place + reach < size);
        let scatter = children.map(move |reach| [Some(send(at(place + reach), span(place + reach, reach))), None]);
        let gather =
            ring::all_gather(move |part| layout.block(part), size, place).map(move |round| renumbered(round, at));
        Box::new(one_by_one(incoming.into_iter().chain(scatter).chain(gather)))
    }
}
