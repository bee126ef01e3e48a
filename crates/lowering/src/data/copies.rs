//! Owns contributions of absent ranks to collectives in a rehearsal: copies of the contributions of running members of
//! their classes, and checksums of the contributions of members that run, for their comparison.

use super::instance::contribution;
use std::collections::BTreeMap;
use std::sync::Arc;
use uniference_protocol::memory::Window;
use uniference_protocol::messages::Offset;
use uniference_sim::fold_plan::FoldPlan;
use uniference_sim::ids::{GroupId, RankId, TaskId};
use uniference_sim::program::{CallOp, Collective, CollectiveKind};

/// Alignment of blocks in bytes, which keeps elements aligned.
const ALIGNMENT: u64 = 64;

/// The absent members of groups, and blocks for their contributions. The blocks are in the parts of the arena that the
/// members' processes would have.
pub(super) struct Copies {
    fold_plan: Arc<FoldPlan>,
    window: Window,
    /// Size in bytes of each rank's part.
    part: u64,
    /// By group, for each member the member whose contribution is used.
    stand_ins: BTreeMap<GroupId, Vec<usize>>,
    rooms: BTreeMap<RankId, Rooms>,
    /// By block that is being filled: destinations of its copies, with sizes.
    waiting: BTreeMap<Offset, Vec<(Offset, u64)>>,
    /// By block that is being filled: the contribution's task, number of the call, and bytes.
    unsummed: BTreeMap<Offset, (RankId, TaskId, u64, u64)>,
    /// Number of calls that a task has announced.
    calls: BTreeMap<(RankId, TaskId), u64>,
    contributions: Vec<(RankId, TaskId, u64, u64)>,
}

/// The blocks in an absent rank's part.
#[derive(Default)]
struct Rooms {
    /// End of the used range of the part.
    end: u64,
    sizes: BTreeMap<Offset, u64>,
    /// Free blocks by size.
    free: BTreeMap<u64, Vec<Offset>>,
}

impl Copies {
    pub(super) fn new(fold_plan: Arc<FoldPlan>, window: Window, part: u64) -> Copies {
        Copies {
            fold_plan,
            window,
            part,
            stand_ins: BTreeMap::new(),
            rooms: BTreeMap::new(),
            waiting: BTreeMap::new(),
            unsummed: BTreeMap::new(),
            calls: BTreeMap::new(),
            contributions: Vec::new(),
        }
    }

    pub(super) fn runs(&self, rank: RankId) -> bool {
        self.fold_plan.runs(rank)
    }

    /// Records the ranks of `group`.
    ///
    /// # Errors
    /// The first absent member whose class has no running rank in the group.
    pub(super) fn join(&mut self, group: GroupId, ranks: &[RankId]) -> Result<(), RankId> {
        if !self.stand_ins.contains_key(&group) {
            self.stand_ins.insert(group, self.fold_plan.stand_ins(ranks)?);
        }
        Ok(())
    }

    /// Whether all members of the group run.
    pub(super) fn all_run(&self, group: GroupId) -> bool {
        self.stand_ins[&group].iter().enumerate().all(|(place, stand_in)| place == *stand_in)
    }

    /// The absent members in whose place `me` contributes, each with the block of its contribution to `call`. The
    /// contribution of `me` is `staged`, and may still be being filled. Reductions are in place, so each member needs
    /// its own copy; other operations only read the contribution.
    pub(super) fn of(
        &mut self,
        group: GroupId,
        ranks: &[RankId],
        me: usize,
        call: &Collective,
        staged: Option<Offset>,
        is_filling: bool,
    ) -> Vec<(usize, Option<Offset>)> {
        use CollectiveKind::{AllReduce, Reduce, ReduceScatter};
        let members = self.stand_ins[&group].iter().enumerate();
        let absent: Vec<usize> =
            members.filter(|(place, stand_in)| **stand_in == me && *place != me).map(|(place, _)| place).collect();
        let room = staged.filter(|_| matches!(call.kind, AllReduce | Reduce | ReduceScatter));
        let bytes = contribution(&CallOp::Collective(call.clone()), ranks.len(), me);
        let mut copied = |member: usize| {
            let Some(room) = room else { return (member, staged) };
            let copy = self.rooms.entry(ranks[member]).or_default().take(bytes);
            let copy = self.part * u64::from(ranks[member].0)
                + copy.filter(|end| end + bytes <= self.part).expect(
                    "a rank stages no more than its part of the arena holds, and those that are absent stage the same",
                );
            match is_filling {
                true => self.waiting.entry(room).or_default().push((copy, bytes)),
                false => self.window.copy(room, copy, bytes),
            }
            (member, Some(copy))
        };
        absent.into_iter().map(&mut copied).collect()
    }

    /// Frees the block of an absent rank's contribution.
    pub(super) fn free(&mut self, rank: RankId, room: Option<Offset>) {
        let start = self.part * u64::from(rank.0);
        if let Some((rooms, at)) = self.rooms.get_mut(&rank).zip(room.and_then(|room| room.checked_sub(start)))
            && let Some(size) = rooms.sizes.get(&at)
        {
            rooms.free.entry(*size).or_default().push(at);
        }
    }

    /// Records that a task announces an operation, with the current or future contents of `staged` as its contribution.
    pub(super) fn contributes(
        &mut self,
        (rank, task): (RankId, TaskId),
        (op, size, me): (&CallOp, usize, usize),
        staged: Option<Offset>,
        is_there: bool,
    ) {
        let calls = self.calls.entry((rank, task)).or_default();
        let call = std::mem::replace(calls, *calls + 1);
        let bytes = contribution(op, size, me);
        let Some(room) = staged.filter(|_| bytes > 0) else { return };
        match is_there {
            true => self.contributions.push((rank, task, call, self.window.checksum(room, bytes))),
            false => drop(self.unsummed.insert(room, (rank, task, call, bytes))),
        }
    }

    /// Copies and checksums the input in this block, which has been filled.
    pub(super) fn filled(&mut self, room: Offset) {
        for (copy, bytes) in self.waiting.remove(&room).unwrap_or_default() {
            self.window.copy(room, copy, bytes);
        }
        if let Some((rank, task, call, bytes)) = self.unsummed.remove(&room) {
            self.contributions.push((rank, task, call, self.window.checksum(room, bytes)));
        }
    }

    pub(super) fn take_contributions(&mut self) -> Vec<(RankId, TaskId, u64, u64)> {
        std::mem::take(&mut self.contributions)
    }
}

impl Rooms {
    /// Allocates a block of `bytes` bytes, by its offset in the part; `None`: the part is exhausted.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let size = bytes.next_multiple_of(ALIGNMENT);
        if let Some(room) = self.free.get_mut(&size).and_then(Vec::pop) {
            return Some(room);
        }
        let room = self.end;
        self.end = room.checked_add(size)?;
        self.sizes.insert(room, size);
        Some(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_protocol::arena;
    use uniference_protocol::arena::Layout;
    use uniference_protocol::memory::Region;
    use uniference_sim::fold_plan::{axes, ends};
    use uniference_sim::program::{DType, ReduceOp, Shape};
    use uniference_sim::symmetry::Symmetry;

    const PART: u64 = 1 << 16;

    /// 8 ranks, one per machine: 0, 1, 2, 4 and 7 run.
    fn copies() -> Copies {
        let fold_plan = FoldPlan::new(Symmetry::new(axes(8, 1), 8).unwrap(), 8, ends(8, 1), Vec::new());
        let file = arena::create(Layout { part: PART, total: 8 * PART, retain: 0 }).unwrap();
        Copies::new(Arc::new(fold_plan), arena::map(&file, 8 * PART).unwrap(), PART)
    }

    fn stage(copies: &Copies, at: Offset, mut data: [u8; 8]) {
        // SAFETY: the region is that of `data`, which outlives it and is not accessed meanwhile.
        #[allow(unsafe_code)]
        let region = unsafe { Region::new(data.as_mut_ptr() as usize, data.len()) };
        copies.window.write(at, &[region]);
    }

    fn sum_of_8(kind: CollectiveKind) -> Collective {
        Collective {
            kind,
            dtype: DType::Int8,
            reduce: Some(ReduceOp::Sum),
            root: None,
            shape: Shape::Even(8),
            kernel: None,
        }
    }

    /// Rank 1 contributes in place of 3 and 5: inputs of reductions in place are copied to their parts, at once or once
    /// the input is filled.
    #[test]
    fn what_is_reduced_is_copied_for_each_absent_member() {
        let mut copies = copies();
        let (group, ranks): (_, Vec<RankId>) = (GroupId(0), (0..8).map(RankId).collect());
        copies.join(group, &ranks).unwrap();
        assert!(!copies.all_run(group));
        let (staged, call) = (PART + 64, sum_of_8(CollectiveKind::AllReduce));
        stage(&copies, staged, [7; 8]);
        let at_once = copies.of(group, &ranks, 1, &call, Some(staged), false);
        assert_eq!(at_once, [(3, Some(3 * PART)), (5, Some(5 * PART))]);
        let later = copies.of(group, &ranks, 1, &call, Some(staged), true);
        assert_eq!(later, [(3, Some(3 * PART + 64)), (5, Some(5 * PART + 64))]);
        stage(&copies, staged, [9; 8]);
        copies.filled(staged);
        let sum = |at| copies.window.checksum(at, 8);
        assert_eq!((sum(5 * PART + 64), sum(3 * PART + 64)), (sum(staged), sum(staged)));
        assert_eq!(sum(3 * PART), sum(5 * PART));
        assert_ne!(sum(3 * PART), sum(staged));
        // A free block is used again.
        copies.free(RankId(3), Some(3 * PART));
        assert_eq!(copies.of(group, &ranks, 1, &call, Some(staged), false)[0], (3, Some(3 * PART)));
    }

    /// Inputs that are only read need no copy, and inputs without values cannot be copied.
    #[test]
    fn what_is_not_reduced_is_read_where_it_is() {
        let mut copies = copies();
        let (group, ranks): (_, Vec<RankId>) = (GroupId(0), (0..8).map(RankId).collect());
        copies.join(group, &ranks).unwrap();
        let call = sum_of_8(CollectiveKind::AllGather);
        assert_eq!(copies.of(group, &ranks, 2, &call, Some(99), false), [(6, Some(99))]);
        let call = sum_of_8(CollectiveKind::AllReduce);
        assert_eq!(copies.of(group, &ranks, 2, &call, None, false), [(6, None)]);
        assert_eq!(copies.of(group, &ranks, 0, &call, None, false), []);
    }

    #[test]
    fn contributions_are_summed_when_they_are_there() {
        let mut copies = copies();
        let (of, op) = ((RankId(1), TaskId(0)), CallOp::Collective(sum_of_8(CollectiveKind::AllReduce)));
        stage(&copies, PART, [1; 8]);
        copies.contributes(of, (&op, 8, 1), Some(PART), true);
        copies.contributes(of, (&op, 8, 1), None, false);
        copies.contributes(of, (&op, 8, 1), Some(PART), false);
        let first = copies.window.checksum(PART, 8);
        assert_eq!(copies.take_contributions(), [(RankId(1), TaskId(0), 0, first)]);
        stage(&copies, PART, [2; 8]);
        copies.filled(PART);
        let third = copies.window.checksum(PART, 8);
        assert_ne!(first, third);
        assert_eq!(copies.take_contributions(), [(RankId(1), TaskId(0), 2, third)]);
    }
}
