//! Owns Gloo's broadcast: a binomial tree whose low bits come first, in which a member starts all its sends at once.
//!
//! Source: pytorch/gloo, `gloo/broadcast.cc`. Numbered from the root, a member receives from the member without its
//! highest set bit, and sends to the members that add one higher bit each. With P = 2^k members, n bytes, latency a and
//! b seconds per byte, and a member's sends sharing its link: the root's link is busy for k n b, and at P = 2 the time
//! is a + n b. All members together send (P-1) n bytes.

use super::layout::whole;
use super::rounds::{before, one_by_one, recv, send, then_at_once, wrap};
use super::{Algorithm, GroupRank, Steps, root_of};
use crate::program::{Collective, CollectiveKind};

/// See the module.
pub(super) struct GlooBinomial;

impl Algorithm for GlooBinomial {
    fn name(&self) -> &'static str {
        "gloo_binomial"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &[CollectiveKind::Broadcast]
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        let (GroupRank(root), span) = (root_of(call), whole(call));
        let place = before(me, root, size);
        let bits = u32::BITS - place.leading_zeros();
        let parent = (place != 0).then(|| wrap(place - (1 << (bits - 1)) + root, size));
        let children = (bits..u32::BITS - (size - 1).leading_zeros()).map(move |bit| place + (1 << bit));
        let sends = children.filter(move |child| *child < size).map(move |child| send(wrap(child + root, size), span));
        Box::new(then_at_once(one_by_one(parent.map(|parent| [Some(recv(parent, span)), None]).into_iter()), sends))
    }
}
