//! Owns the search for what would follow, in a run of symmetric ranks, from the order of events within an instant.

use crate::ids::{GroupId, Handle, RankId};
use crate::network::Asymmetry;
use crate::time::SimTime;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

/// Its group, where each has connections of its own; its sender; its receiver.
type Connection = (Option<GroupId>, RankId, RankId);

/// Looks for what follows from the order of events within an instant, which is that of ids: ranks that are alike need not agree about it.
///
/// That is which message goes first where one rank puts those of two operations on one connection at one instant. Where posting a message
/// between two ranks keeps the program's thread busy, it is also which of two is posted first: a rank that hears of two ends at one instant may ask for
/// what follows from either first, or for both at once. What follows from one end has one order, the program's.
#[derive(Debug)]
pub(super) struct Ties {
    per_group: bool,
    /// Does posting a message take the program's thread time?
    posting_takes_time: bool,
    /// By connection: when a message was sent last, and for which operation.
    last: IndexMap<Connection, (SimTime, Handle), FxBuildHasher>,
    /// By rank, where posting takes time: what it has heard and posted last.
    instants: IndexMap<RankId, Moment, FxBuildHasher>,
    found: Option<Asymmetry>,
}

/// What a rank has heard and posted at one instant.
#[derive(Clone, Copy, Debug)]
struct Moment {
    at: SimTime,
    ended: u32,
    posted: u32,
}

impl Ties {
    /// `per_group`: each group has connections of its own.
    pub(super) fn new(per_group: bool, posting_takes_time: bool) -> Ties {
        let (last, instants) = (IndexMap::default(), IndexMap::default());
        Ties { per_group, posting_takes_time, last, instants, found: None }
    }

    /// An activity of `rank` is complete.
    pub(super) fn ends(&mut self, now: SimTime, rank: RankId) {
        if self.posting_takes_time {
            self.moment(now, rank).ended += 1;
        }
    }

    /// `rank` calls for a message to another rank, or from one.
    pub(super) fn posts(&mut self, now: SimTime, rank: RankId) {
        if !self.posting_takes_time {
            return;
        }
        let instant = self.moment(now, rank);
        instant.posted += 1;
        if instant.posted > 1 && instant.ended > 1 {
            let problem = format!(
                "{rank} hears of two ends at one instant, at {now}, and posts two messages: which is first is open"
            );
            self.found.get_or_insert(Asymmetry::new(problem));
        }
    }

    fn moment(&mut self, now: SimTime, rank: RankId) -> &mut Moment {
        let fresh = Moment { at: now, ended: 0, posted: 0 };
        let instant = self.instants.entry(rank).or_insert(fresh);
        if instant.at != now {
            *instant = fresh;
        }
        instant
    }

    pub(super) fn sends(&mut self, now: SimTime, group: GroupId, pair: (RankId, RankId), operation: Handle) {
        let connection = (self.per_group.then_some(group), pair.0, pair.1);
        let before = self.last.insert(connection, (now, operation));
        if before.is_some_and(|(at, other)| at == now && other != operation) {
            let problem = format!("{} sends {} messages of two operations at one instant, at {now}", pair.0, pair.1);
            self.found.get_or_insert(if self.per_group { Asymmetry::new(problem) } else { Asymmetry::tie(problem) });
        }
    }

    pub(super) fn take(&mut self) -> Option<Asymmetry> {
        self.found.take()
    }
}
