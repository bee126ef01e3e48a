//! Owns the part of absent ranks in the rehearsal of a folded program: in groups, in calls, and in the comparison of
//! the ranks that run.
//!
//! The simulator's [`FoldPlan`] defines the absent ranks; `data` provides their data.

use std::collections::BTreeMap;
use std::sync::Arc;
use uniference_sim::fold_plan::{DueTo, FoldPlan, ReplicaCheck, Unlike};
use uniference_sim::ids::{GroupId, GroupRank, RankId};
use uniference_sim::program::{Call, CallOp, Collective, Shape};
use uniference_sim::symmetry::Axis;

/// The engine's view of a rehearsal, in which groups consist of the members that run.
pub(super) struct AbsentRanks {
    fold_plan: Arc<FoldPlan>,
    /// The comparison of the requests of the ranks that run.
    pub(super) replica_check: ReplicaCheck,
    /// For each set of running members: the whole groups with these running members, and their sequence numbers, in the
    /// order in which they were first named.
    named: BTreeMap<Arc<[RankId]>, Vec<Named>>,
    groups: BTreeMap<GroupId, Arc<[RankId]>>,
    /// The deviation that ends the rehearsal.
    unlike: Option<Unlike>,
}

/// A whole group, with the sequence number that a rank used.
type Named = (Arc<[RankId]>, u32);

impl AbsentRanks {
    pub(super) fn new(fold_plan: Arc<FoldPlan>) -> AbsentRanks {
        let replica_check = ReplicaCheck::new(&fold_plan);
        AbsentRanks { fold_plan, replica_check, named: BTreeMap::new(), groups: BTreeMap::new(), unlike: None }
    }

    /// The members of a group that run, and a number that distinguishes all groups with the same running members.
    pub(super) fn present(&mut self, ranks: &Arc<[RankId]>, sequence: u32) -> (Arc<[RankId]>, u32) {
        let present: Arc<[RankId]> = ranks.iter().copied().filter(|rank| self.fold_plan.runs(*rank)).collect();
        let named = self.named.entry(present.clone()).or_default();
        let name = (ranks.clone(), sequence);
        let number = named.iter().position(|known| *known == name).unwrap_or_else(|| {
            named.push(name);
            named.len() - 1
        });
        (present, number as u32)
    }

    /// Records the engine's id of a whole group.
    pub(super) fn joined(&mut self, group: GroupId, ranks: &Arc<[RankId]>) {
        self.groups.insert(group, ranks.clone());
    }

    /// Restricts a call to the members that run.
    ///
    /// # Errors
    /// If the call needs data of an absent member.
    pub(super) fn call(&self, rank: RankId, call: &Call) -> Result<Call, Unlike> {
        let ranks = &self.groups[&call.group];
        let runs = |place: usize| self.fold_plan.runs(ranks[place]);
        if (0..ranks.len()).all(runs) {
            return Ok(call.clone());
        }
        let place = |of: GroupRank| {
            let other = ranks[of.index()];
            if !self.fold_plan.runs(other) {
                let problem = format!("{rank} needs data of {other}, which does not run, in a {}", call.op.name());
                return Err(Unlike { due_to: self.between(rank, other), problem });
            }
            Ok(GroupRank::from((0..of.index()).filter(|place| runs(*place)).count()))
        };
        let blocks = |blocks: &[u64]| {
            let present = blocks.iter().enumerate().filter(|(member, _)| runs(*member));
            present.map(|(_, block)| *block).collect::<Vec<u64>>()
        };
        let op = match &call.op {
            CallOp::Send { to, tag, bytes } => CallOp::Send { to: place(*to)?, tag: *tag, bytes: *bytes },
            CallOp::Recv { from: Some(from), tag, bytes } => {
                CallOp::Recv { from: Some(place(*from)?), tag: *tag, bytes: *bytes }
            }
            CallOp::Write { to, bytes } => CallOp::Write { to: place(*to)?, bytes: *bytes },
            CallOp::Recv { from: None, .. } => {
                return Err(Unlike::absence(format!(
                    "{rank} receives from any rank of a group some of whose ranks do not run"
                )));
            }
            CallOp::Collective(collective) => {
                let shape = match &collective.shape {
                    Shape::Even(count) => Shape::Even(*count),
                    Shape::Blocks(all) => Shape::Blocks(blocks(all)),
                    Shape::Pairs { .. } => {
                        return Err(Unlike::absence(format!(
                            "{rank} calls all_to_all with blocks of its own in a group some of whose ranks do not run"
                        )));
                    }
                };
                let root = collective.root.map(place).transpose()?;
                CallOp::Collective(Collective { shape, root, ..collective.clone() })
            }
        };
        Ok(Call { group: call.group, op })
    }

    /// The reason why one of two ranks lacks the other's data: the axis along which they differ, if there is exactly
    /// one, such as pipeline stages.
    fn between(&self, rank: RankId, other: RankId) -> DueTo {
        let differ = |axis: &Axis| rank.0 / axis.stride % axis.extent != other.0 / axis.stride % axis.extent;
        let axes = self.fold_plan.symmetry().axes().iter().enumerate();
        match axes.filter(|(_, axis)| differ(axis)).collect::<Vec<_>>()[..] {
            [(axis, _)] => DueTo::Axis(axis),
            _ => DueTo::Absence,
        }
    }

    /// Ends the rehearsal with this deviation.
    pub(super) fn deviates(&mut self, unlike: Unlike) {
        self.unlike.get_or_insert(unlike);
    }

    /// The deviation that ends the rehearsal.
    pub(super) fn unlike(&self) -> Option<&Unlike> {
        self.unlike.as_ref().or(self.replica_check.unlike())
    }

    /// The deviation found by a finished rehearsal.
    pub(super) fn conclude(&mut self) -> Option<&Unlike> {
        self.unlike.as_ref().or(self.replica_check.conclude())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_sim::fold_plan::{axes, ends};
    use uniference_sim::program::{CollectiveKind, DType};
    use uniference_sim::symmetry::Symmetry;
    use uniference_sim::time::Bytes;

    /// 16 ranks, 8 per machine: 0, 1, 2, 4, 7, 8 and 15 run.
    fn absent() -> AbsentRanks {
        let symmetry = Symmetry::new(axes(16, 8), 16).unwrap();
        AbsentRanks::new(Arc::new(FoldPlan::new(symmetry, 16, ends(16, 8), Vec::new())))
    }

    fn ranks(ranks: &[u32]) -> Arc<[RankId]> {
        ranks.iter().map(|rank| RankId(*rank)).collect()
    }

    fn collective(root: Option<u32>, shape: Shape) -> Call {
        let kind = CollectiveKind::Gather;
        let collective =
            Collective { kind, dtype: DType::Int8, reduce: None, root: root.map(GroupRank), shape, kernel: None };
        Call { group: GroupId(3), op: CallOp::Collective(collective) }
    }

    #[test]
    fn groups_with_the_same_members_that_run_stay_apart() {
        let mut absent = absent();
        assert_eq!(absent.present(&ranks(&[0, 1, 3]), 0), (ranks(&[0, 1]), 0));
        assert_eq!(absent.present(&ranks(&[0, 1]), 0), (ranks(&[0, 1]), 1));
        assert_eq!(absent.present(&ranks(&[0, 1, 3]), 1), (ranks(&[0, 1]), 2));
        assert_eq!(absent.present(&ranks(&[0, 1, 3]), 0), (ranks(&[0, 1]), 0));
    }

    /// Members 0, 2 and 3 of [0, 3, 4, 8] run, and become members 0, 1 and 2.
    #[test]
    fn calls_are_among_the_members_that_run() {
        let mut absent = absent();
        absent.joined(GroupId(3), &ranks(&[0, 3, 4, 8]));
        let call = collective(Some(3), Shape::Blocks(vec![5, 6, 7, 8]));
        let heard = collective(Some(2), Shape::Blocks(vec![5, 7, 8]));
        assert_eq!(absent.call(RankId(0), &call), Ok(heard));
        let send = |to| Call { group: GroupId(3), op: CallOp::Send { to: GroupRank(to), tag: 1, bytes: Bytes(4) } };
        assert_eq!(absent.call(RankId(0), &send(2)), Ok(send(1)));
        for refused in [send(1), collective(Some(1), Shape::Even(1))] {
            let unlike = absent.call(RankId(0), &refused).unwrap_err();
            assert!(unlike.problem.starts_with("rank 0 needs data of rank 3, which does not run"), "{unlike}");
            // Ranks 0 and 3 differ along two axes (3 = 1 + 2); ranks 1 and 3 differ along the second axis only.
            assert_eq!(unlike.due_to, DueTo::Absence);
            assert_eq!(absent.call(RankId(1), &refused).unwrap_err().due_to, DueTo::Axis(1));
        }
    }
}
