//! Owns the steps of NVLink SHARP's trees: all-reduce among servers whose switches reduce and multicast.
//!
//! Source: NVIDIA/nccl, `src/device/all_reduce.h` (`NCCL_ALGO_NVLS_TREE`): each GPU combines its part of the tensor by
//! the server's switch, trees combine the parts of all servers' GPUs at the same place, and the switches distribute the
//! result. With M servers of G GPUs, P = M G, n bytes, and b and d seconds per byte of a GPU's links and of its NIC:
//!
//! - inside a server, each member sends its part to every other member, as in [`super::nvls`]: 2 (G-1)/G n b / e for both
//!   directions; the wire's efficiency e ([`super::nccl`]) contains the switch's savings, and the overlap with the
//!   network.
//! - across servers, the network model has no trees: members at the same place exchange pieces of their part directly,
//!   which moves as many bytes through a NIC, 2 (M-1)/M n/G d, and treats all servers alike. The wire's latency contains
//!   the hops of a tree.
//!
//! A piece is combined first at its place in every server, then at its owner, servers modulo M downwards.

use super::layout::{Layout, whole};
use super::rounds::{batches, before, recv, recv_combine, send, wrap};
use super::{Action, Algorithm, GroupRank, Span, Steps, even_blocks};
use crate::program::{Collective, CollectiveKind};
use crate::symmetry::Relabeling;

/// See the module.
pub(super) struct NvlsTree {
    /// GPUs of a server, which follow each other in the group; the group's size is a multiple.
    pub(super) per_server: u32,
}

impl Algorithm for NvlsTree {
    fn name(&self) -> &'static str {
        "nvls_tree"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &[CollectiveKind::AllReduce]
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        let (gpus, servers) = (self.per_server, size / self.per_server);
        let (server, place) = (me / gpus, me % gpus);
        let parts = Layout::split(whole(call).len, gpus);
        let part = |place| parts.block(place);
        let piece = |server| {
            let Span { start, len } = part(place);
            let piece = Layout::split(len, servers).block(server);
            Span { start: start + piece.start, ..piece }
        };
        let near = || (1..gpus).map(|distance| (wrap(place + distance, gpus), before(place, distance, gpus)));
        let far = || (1..servers).map(|distance| (wrap(server + distance, servers), before(server, distance, servers)));
        let here = |place| server * gpus + place;
        let there = |server| server * gpus + place;
        let phases: [Vec<Action>; 4] = [
            near().flat_map(|(to, from)| [send(here(to), part(to)), recv_combine(here(from), part(place))]).collect(),
            far()
                .flat_map(|(to, from)| [send(there(to), piece(to)), recv_combine(there(from), piece(server))])
                .collect(),
            far().flat_map(|(to, from)| [send(there(to), piece(server)), recv(there(from), piece(from))]).collect(),
            near().flat_map(|(to, from)| [send(here(to), part(place)), recv(here(from), part(from))]).collect(),
        ];
        Box::new(batches(phases.into_iter()))
    }

    fn symmetry(&self, call: &Collective, size: u32) -> Option<Relabeling> {
        even_blocks(call, size).then_some(Relabeling::Blocks(self.per_server))
    }
}
