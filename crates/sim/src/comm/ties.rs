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
/// There are two cases. First, a rank sends messages of two operations on one connection at one instant: the order decides which message is
/// transmitted first. Second, where posting a message takes time on the program's thread, two activities of a rank complete at one instant, and the
/// rank posts two or more messages at that instant: the order of the completions decides which message is posted first. Messages that follow from
/// one completion have the order in which the program posts them.
#[derive(Debug)]
pub(super) struct Ties {
    per_group: bool,
    /// Whether posting a message takes time on the program's thread.
    posting_takes_time: bool,
    /// For each connection, the time of its last message and the operation that the message belongs to.
    last: IndexMap<Connection, (SimTime, Handle), FxBuildHasher>,
    /// For each rank, its completions and posts at the latest instant that had any. Empty unless posting takes time.
    instants: IndexMap<RankId, Moment, FxBuildHasher>,
    found: Option<Asymmetry>,
}

/// The number of a rank's activities that completed, and of the messages that it posted, at one instant.
#[derive(Clone, Copy, Debug)]
struct Moment {
    at: SimTime,
    completed: u32,
    posted: u32,
}

impl Ties {
    /// `per_group`: whether each group has its own connections.
    pub(super) fn new(per_group: bool, posting_takes_time: bool) -> Ties {
        let (last, instants) = (IndexMap::default(), IndexMap::default());
        Ties { per_group, posting_takes_time, last, instants, found: None }
    }

    /// Records that an activity of `rank` has completed.
    pub(super) fn completes(&mut self, now: SimTime, rank: RankId) {
        if self.posting_takes_time {
            self.moment(now, rank).completed += 1;
        }
    }

    /// Records that `rank` posts a send or a receive.
    pub(super) fn posts(&mut self, now: SimTime, rank: RankId) {
        if !self.posting_takes_time {
            return;
        }
        let instant = self.moment(now, rank);
        instant.posted += 1;
        if instant.posted > 1 && instant.completed > 1 {
            let problem = format!(
                "two activities of {rank} complete at the same time, at {now}, and it posts two messages: their order is undetermined"
            );
            self.found.get_or_insert(Asymmetry::new(problem));
        }
    }

    fn moment(&mut self, now: SimTime, rank: RankId) -> &mut Moment {
        let fresh = Moment { at: now, completed: 0, posted: 0 };
        let instant = self.instants.entry(rank).or_insert(fresh);
        if instant.at != now {
            *instant = fresh;
        }
        instant
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
