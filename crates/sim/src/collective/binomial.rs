//! Owns the binomial tree: broadcast from the root down, largest subtree first, and reduce the same way up.
//!
//! Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA
//! 19(1), 2005. With P members, n bytes, latency a and b seconds per byte: ceil(log2 P) (a + n b). All members together
//! send (P-1) n bytes.
//!
//! Reduce combines at each node its own input first, then its children's from the smallest subtree to the largest.

use super::layout::whole;
use super::rounds::{before, one_by_one, recv, recv_combine, send, wrap};
use super::{Algorithm, GroupRank, Steps, root_of};
use crate::program::{Collective, CollectiveKind};

/// See the module.
pub(super) struct Binomial;

impl Algorithm for Binomial {
    fn name(&self) -> &'static str {
        "binomial"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &[CollectiveKind::Broadcast, CollectiveKind::Reduce]
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        let tree = Tree::new(root_of(call), size, me);
        let span = whole(call);
        match call.kind {
            CollectiveKind::Broadcast => {
                let first = tree.parent().map(|parent| [Some(recv(parent, span)), None]);
                let sends = tree.children().rev().map(move |child| [Some(send(child, span)), None]);
                Box::new(one_by_one(first.into_iter().chain(sends)))
            }
            CollectiveKind::Reduce => {
                let receives = tree.children().map(move |child| [Some(recv_combine(child, span)), None]);
                let last = tree.parent().map(|parent| [Some(send(parent, span)), None]);
                Box::new(one_by_one(receives.chain(last)))
            }
            kind => panic!("binomial cannot carry out {kind}"),
        }
    }
}

/// A member's place in the tree. Numbered from the root, the parent of a member lacks the member's lowest set bit.
#[derive(Clone, Copy)]
struct Tree {
    size: u32,
    root: u32,
    /// The member's number, counted from the root.
    place: u32,
}

impl Tree {
    fn new(GroupRank(root): GroupRank, size: u32, me: u32) -> Tree {
        Tree { size, root, place: before(me, root, size) }
    }

    fn parent(self) -> Option<u32> {
        (self.place != 0).then(|| wrap((self.place & (self.place - 1)) + self.root, self.size))
    }

    /// Children from the smallest subtree to the largest.
    fn children(self) -> impl DoubleEndedIterator<Item = u32> + Send {
        let levels =
            if self.place == 0 { u32::BITS - (self.size - 1).leading_zeros() } else { self.place.trailing_zeros() };
        let exists = move |level: &u32| self.place + (1 << level) < self.size;
        (0..levels).filter(exists).map(move |level| wrap(self.place + (1 << level) + self.root, self.size))
    }
}
