//! Owns the direct algorithms: no forwarding, all messages posted at once; shared links determine the time.
//!
//! pytorch/gloo carries out all-to-all, gather and scatter this way (`gloo/alltoall.cc`, `gloo/gather.cc`,
//! `gloo/scatter.cc`). With P members, blocks (or a tensor) of m bytes, latency a and b seconds per byte, one link per
//! member: a + (P-1) m b for each kind. Reduce combines at the root: its own input first, then the others' by ascending
//! distance from the root.

use super::layout::{Layout, whole};
use super::rounds::{before, recv, recv_combine, send, wrap};
use super::{Action, Algorithm, GroupRank, Span, Step, Steps, even_blocks, root_of};
use crate::program::{Collective, CollectiveKind};
use crate::symmetry::Relabeling;

/// See the module.
pub(super) struct Linear;

impl Algorithm for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &[
            CollectiveKind::AllToAll,
            CollectiveKind::AllGather,
            CollectiveKind::Gather,
            CollectiveKind::Scatter,
            CollectiveKind::Broadcast,
            CollectiveKind::Reduce,
        ]
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        let members = move || (1..size).map(move |distance| (wrap(me + distance, size), before(me, distance, size)));
        match call.kind {
            CollectiveKind::AllToAll => {
                let (outgoing, incoming) = Layout::of_pairs(call);
                at_once(
                    members()
                        .flat_map(move |(to, from)| [send(to, outgoing.block(to)), recv(from, incoming.block(from))]),
                )
            }
            CollectiveKind::AllGather => {
                let layout = Layout::of_members(call, size);
                at_once(
                    members().flat_map(move |(to, from)| [send(to, layout.block(me)), recv(from, layout.block(from))]),
                )
            }
            CollectiveKind::Gather | CollectiveKind::Scatter => {
                let layout = Layout::of_members(call, size);
                rooted(call, me, members().map(|(peer, _)| peer), move |rank| layout.block(rank))
            }
            CollectiveKind::Broadcast | CollectiveKind::Reduce => {
                let tensor = whole(call);
                rooted(call, me, members().map(|(peer, _)| peer), move |_| tensor)
            }
            kind => panic!("linear cannot carry out {kind}"),
        }
    }

    fn symmetry(&self, call: &Collective, size: u32) -> Option<Relabeling> {
        even_blocks(call, size).then_some(Relabeling::Rotation)
    }
}

/// Messages between the root and each of the others; `span` is the span that one of the others sends or receives.
fn rooted(
    call: &Collective,
    me: u32,
    others: impl Iterator<Item = u32> + Send + 'static,
    span: impl Fn(u32) -> Span + Send + 'static,
) -> Steps {
    let GroupRank(root) = root_of(call);
    let to_root = matches!(call.kind, CollectiveKind::Gather | CollectiveKind::Reduce);
    let receive = if call.kind == CollectiveKind::Reduce { recv_combine } else { recv };
    match (me == root, to_root) {
        (true, true) => at_once(others.map(move |peer| receive(peer, span(peer)))),
        (true, false) => at_once(others.map(move |peer| send(peer, span(peer)))),
        (false, true) => at_once(std::iter::once(send(root, span(me)))),
        (false, false) => at_once(std::iter::once(receive(root, span(me)))),
    }
}

fn at_once(actions: impl Iterator<Item = Action> + Send + 'static) -> Steps {
    Box::new(actions.map(|action| Step::new(action, 0)))
}
