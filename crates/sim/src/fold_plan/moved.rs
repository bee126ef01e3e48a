//! Owns the translation of a rank's steps into those of an equivalent rank: the same requests with translated groups
//! and peers.
//!
//! Keys of the store are not translated: the other rank waits for the same keys, and as long.

use super::FoldPlan;
use crate::ids::{GroupId, GroupRank, RankId, TaskId};
use crate::program::{Activity, Call, CallOp, Request};
use crate::replay::RecordedStep;
use crate::symmetry::{Shift, Symmetry};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Translates the steps of a rank to another one, in order.
#[derive(Clone, Debug)]
pub struct Moved {
    symmetry: Symmetry,
    shift: Shift,
    /// Joined groups, by their number in the steps.
    groups: BTreeMap<GroupId, Members>,
    /// For each task, the group that it has joined in a step whose following step assigns the group's number.
    joined: BTreeMap<TaskId, Members>,
}

/// The members of a group before and after translation.
#[derive(Clone, Debug)]
struct Members {
    before: Arc<[RankId]>,
    after: Arc<[RankId]>,
}

impl Moved {
    /// Translation of the steps of `from` into those of `to`, a rank of its class.
    pub fn new(cast: &FoldPlan, from: RankId, to: RankId) -> Moved {
        let symmetry = cast.symmetry.clone();
        let home = symmetry.inverse(symmetry.shift_to(from));
        let shift = symmetry.compose(home, symmetry.shift_to(to));
        Moved { symmetry, shift, groups: BTreeMap::new(), joined: BTreeMap::new() }
    }

    /// The step as the target rank carries it out.
    ///
    /// # Panics
    /// If the step names a group that was not joined.
    pub fn step(&mut self, task: TaskId, mut step: RecordedStep) -> RecordedStep {
        match &mut step {
            RecordedStep::Request(Request::JoinGroup { ranks, .. }) => {
                let after = self.members(ranks);
                let members = Members { before: std::mem::replace(ranks, after.clone()), after };
                self.joined.insert(task, members);
            }
            RecordedStep::Named(group) => {
                let members = self.joined.remove(&task).expect("a group is named once it was joined");
                self.groups.insert(*group, members);
            }
            RecordedStep::Request(Request::Issue { activity: Activity::Call(Call { group, op }), .. }) => match op {
                CallOp::Send { to: peer, .. }
                | CallOp::Recv { from: Some(peer), .. }
                | CallOp::Write { to: peer, .. } => {
                    *peer = self.peer(*group, *peer);
                }
                CallOp::Recv { from: None, .. } | CallOp::Collective(_) => {}
            },
            _ => {}
        }
        step
    }

    /// The translated members; they are in ascending order if `ranks` are.
    fn members(&self, ranks: &[RankId]) -> Arc<[RankId]> {
        let mut moved: Vec<RankId> = ranks.iter().map(|rank| self.symmetry.apply(self.shift, *rank)).collect();
        if ranks.is_sorted() {
            moved.sort_unstable();
        }
        moved.into()
    }

    fn peer(&self, group: GroupId, peer: GroupRank) -> GroupRank {
        let Members { before, after } =
            self.groups.get(&group).unwrap_or_else(|| panic!("{group} was not joined, and a message is sent in it"));
        let moved = self.symmetry.apply(self.shift, before[peer.index()]);
        let place = after.iter().position(|rank| *rank == moved);
        GroupRank::from(place.expect("the members are moved with it"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FoldPlan, axes, ends};
    use super::*;
    use crate::ids::{QueueId, Site};
    use crate::time::Bytes;

    fn send(to: u32) -> RecordedStep {
        let op = CallOp::Send { to: GroupRank(to), tag: 0, bytes: Bytes(4) };
        let activity = Activity::Call(Call { group: GroupId(5), op });
        Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site: Site(0) }.into()
    }

    fn join(ranks: &[u32]) -> RecordedStep {
        Request::JoinGroup {
            ranks: ranks.iter().map(|rank| RankId(*rank)).collect(),
            sequence: 0,
            settings: None,
            rendezvous: false,
        }
        .into()
    }

    /// Ranks 0, 2, 4, 6 of 8, moved by 1 to 1, 3, 5, 7, and by 4 to 4, 6, 0, 2, which are listed in ascending order.
    #[test]
    fn groups_and_peers_move_along() {
        let cast = FoldPlan::new(Symmetry::new(axes(8, 2), 8).unwrap(), 8, ends(8, 2), Vec::new());
        for (to, members, sent) in [(1, [1, 3, 5, 7], 2), (4, [0, 2, 4, 6], 0)] {
            let mut moved = Moved::new(&cast, RankId(0), RankId(to));
            assert_eq!(moved.step(TaskId(0), join(&[0, 2, 4, 6])), join(&members));
            moved.step(TaskId(0), RecordedStep::Named(GroupId(5)));
            assert_eq!(moved.step(TaskId(0), send(2)), send(sent));
        }
    }
}
