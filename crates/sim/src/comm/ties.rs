//! Owns the detection of results that depend on the order of simultaneous events. Symmetric ranks need not agree on
//! that order, so such a run cannot be folded.

use crate::ids::{GroupId, Handle, RankId};
use crate::network::Asymmetry;
use crate::time::SimTime;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

/// Group (`None` if all groups share one connection), sender, and receiver.
type Connection = (Option<GroupId>, RankId, RankId);

/// Detects results that depend on the order of simultaneous events. That order is the order of ids, and symmetric ranks
/// need not agree on it.
///
/// A rank may send messages of two operations on one connection at one instant: the order decides which message is
/// transmitted first. Point-to-point messages of the program need no such check: a rank learns of operations that
/// complete at one instant in the order in which it issued them, and therefore posts in the same order as equivalent
/// ranks. Steps of collectives follow arrivals, which have no such order.
#[derive(Debug)]
pub(super) struct Ties {
    per_group: bool,
    /// For each connection, the time of its last message, the operation that the message belongs to, and whether that
    /// is a collective.
    last: IndexMap<Connection, (SimTime, Handle, bool), FxBuildHasher>,
    found: Option<Asymmetry>,
}

impl Ties {
    /// `per_group`: whether each group has its own connections.
    pub(super) fn new(per_group: bool) -> Ties {
        Ties { per_group, last: IndexMap::default(), found: None }
    }

    /// Records that a message of `operation` is sent from the first to the second rank of `pair`.
    pub(super) fn sends(
        &mut self,
        now: SimTime,
        group: GroupId,
        pair: (RankId, RankId),
        operation: Handle,
        collective: bool,
    ) {
        let connection = (self.per_group.then_some(group), pair.0, pair.1);
        let before = self.last.insert(connection, (now, operation, collective));
        let is_tie = |(at, other, of_collective)| at == now && other != operation && (collective || of_collective);
        if before.is_some_and(is_tie) {
            let problem = format!("{} sends {} messages of two operations at the same time, at {now}", pair.0, pair.1);
            self.found.get_or_insert(if self.per_group { Asymmetry::new(problem) } else { Asymmetry::tie(problem) });
        }
    }

    /// Returns and clears the first detected dependence on order, if any.
    pub(super) fn take(&mut self) -> Option<Asymmetry> {
        self.found.take()
    }
}
