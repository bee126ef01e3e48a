//! Owns the detection of results that depend on the order of simultaneous events. Symmetric ranks need not agree on that order, so such a run
//! cannot be folded.

use crate::ids::{GroupId, Handle, RankId};
use crate::network::Asymmetry;
use crate::time::SimTime;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

/// The group (`None` where all groups share one connection), the sender, and the receiver.
type Connection = (Option<GroupId>, RankId, RankId);

/// Detects results that depend on the order of simultaneous events, which is the order of ids: symmetric ranks need not agree on it.
///
/// A rank may send messages of two operations on one connection at one instant: the order decides which message is transmitted first. Posts, which
/// may follow one another on the program's thread, need no such check: a rank learns of operations that complete at one instant in the order in
/// which it issued them.
#[derive(Debug)]
pub(super) struct Ties {
    per_group: bool,
    /// For each connection, the time of its last message and the operation that the message belongs to.
    last: IndexMap<Connection, (SimTime, Handle), FxBuildHasher>,
    found: Option<Asymmetry>,
}

impl Ties {
    /// `per_group`: whether each group has its own connections.
    pub(super) fn new(per_group: bool) -> Ties {
        Ties { per_group, last: IndexMap::default(), found: None }
    }

    /// Records that a message of `operation` is sent from the first to the second rank of `pair`.
    pub(super) fn sends(&mut self, now: SimTime, group: GroupId, pair: (RankId, RankId), operation: Handle) {
        let connection = (self.per_group.then_some(group), pair.0, pair.1);
        let before = self.last.insert(connection, (now, operation));
        if before.is_some_and(|(at, other)| at == now && other != operation) {
            let problem = format!("{} sends {} messages of two operations at the same time, at {now}", pair.0, pair.1);
            self.found.get_or_insert(if self.per_group { Asymmetry::new(problem) } else { Asymmetry::tie(problem) });
        }
    }

    /// Takes the first dependence on order that was detected, if any.
    pub(super) fn take(&mut self) -> Option<Asymmetry> {
        self.found.take()
    }
}
