//! Owns process groups: who is in one, and in which order. Groups are known by their members, never by a name.

use crate::ids::{GroupId, GroupRank, RankId};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use std::sync::Arc;

/// All process groups of a run, in the order in which they were first named.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    ids: IndexMap<(Arc<[RankId]>, u32), Group, FxBuildHasher>,
}

/// The members of a process group.
#[derive(Debug)]
pub(crate) struct Group {
    ranks: Arc<[RankId]>,
    /// Members by rank of the world; `None` where the group's order is the world's own.
    sorted: Option<Vec<(RankId, GroupRank)>>,
}

impl Groups {
    /// The group of these ranks, in this order. Members that name the same ranks for the same time get the same id.
    pub(crate) fn join(&mut self, ranks: Arc<[RankId]>, sequence: u32) -> GroupId {
        let next = self.ids.len();
        let entry = self.ids.entry((ranks, sequence));
        let index = entry.index();
        if index == next {
            let group = Group::new(entry.key().0.clone());
            entry.or_insert(group);
        }
        GroupId::from(index)
    }

    pub(crate) fn get(&self, id: GroupId) -> &Group {
        match self.ids.get_index(id.index()) {
            Some((_, group)) => group,
            None => panic!("{id} was never named"),
        }
    }
}

impl Group {
    fn new(ranks: Arc<[RankId]>) -> Group {
        let in_world_order = ranks.iter().enumerate().all(|(index, rank)| rank.index() == index);
        let sorted = (!in_world_order).then(|| {
            let mut sorted: Vec<_> =
                ranks.iter().enumerate().map(|(index, rank)| (*rank, GroupRank::from(index))).collect();
            sorted.sort_unstable();
            sorted
        });
        Group { ranks, sorted }
    }

    pub(crate) fn ranks(&self) -> &[RankId] {
        &self.ranks
    }

    pub(crate) fn size(&self) -> u32 {
        self.ranks.len() as u32
    }

    pub(crate) fn world_rank(&self, member: GroupRank) -> RankId {
        self.ranks[member.index()]
    }

    /// The place of a rank of the world in this group.
    pub(crate) fn position(&self, rank: RankId) -> Option<GroupRank> {
        match &self.sorted {
            None => (rank.index() < self.ranks.len()).then_some(GroupRank(rank.0)),
            Some(sorted) => {
                let index = sorted.binary_search_by_key(&rank, |(rank, _)| *rank).ok()?;
                Some(sorted[index].1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(ids: &[u32]) -> Arc<[RankId]> {
        ids.iter().map(|id| RankId(*id)).collect()
    }

    #[test]
    fn the_same_members_meet_the_second_group_of_them_is_another() {
        let mut groups = Groups::default();
        let first = groups.join(ranks(&[2, 0]), 0);
        assert_eq!(groups.join(ranks(&[2, 0]), 0), first);
        assert_ne!(groups.join(ranks(&[2, 0]), 1), first);
        assert_ne!(groups.join(ranks(&[0, 2]), 0), first);
        assert_eq!(groups.get(first).position(RankId(0)), Some(GroupRank(1)));
        assert_eq!(groups.get(first).position(RankId(1)), None);
        assert_eq!(groups.get(first).world_rank(GroupRank(0)), RankId(2));
    }
}
