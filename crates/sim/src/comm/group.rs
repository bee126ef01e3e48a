//! Owns process groups: their members, in order. A group is identified by its members. Names are only used to detect
//! that ranks create groups with different members as the same group.

mod folded;

use crate::collective::choose::AlgorithmTable;
use crate::ids::{GroupId, GroupRank, RankId, Site};
use crate::network::Asymmetry;
use crate::program::NcclSettings;
use crate::symmetry::Symmetry;
use folded::Folded;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use std::cell::OnceCell;
use std::sync::Arc;

/// All process groups of a run, in the order in which they were first named. Groups that are equivalent under the run's
/// symmetry are one group.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    ids: IndexMap<(Arc<[RankId]>, u32), Group, FxBuildHasher>,
    symmetry: Symmetry,
    /// [`crate::network::FoldedTopology::places`], if each group has its own connections.
    places: Option<Vec<[u32; 3]>>,
    /// For each name of a group, the first member's call.
    named: IndexMap<Arc<str>, NamedBy, FxBuildHasher>,
}

/// A rank's call that creates a process group under a name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedBy {
    /// Rank of the call.
    pub rank: RankId,
    /// User's line of the call.
    pub site: Site,
    /// Number of members of the group.
    pub members: u32,
    /// Text of the call, which includes the parameters on which all members must agree.
    pub call: Arc<str>,
}

/// Clash of two ranks that create different process groups under one name, so that each rank would look for the other
/// group's members.
#[derive(Clone, Debug, PartialEq)]
pub struct NameClash {
    /// First call with this name.
    pub first: NamedBy,
    /// Later call, which differs from the first one.
    pub second: NamedBy,
}

/// The members of a process group.
#[derive(Debug)]
pub(crate) struct Group {
    ranks: Arc<[RankId]>,
    /// Members sorted by world rank; `None` if the group's order is the world's order.
    sorted: Option<Vec<(RankId, GroupRank)>>,
    /// The members that run and those that they represent, if the run is folded.
    folded: Option<Folded>,
    /// NCCL settings that the first member's program makes for the group; `None` if it makes none.
    settings: Option<NcclSettings>,
    /// Algorithm table of the group, set by its first collective; `None` in the cell: the table of all ranks.
    table: OnceCell<Option<AlgorithmTable>>,
}

impl Groups {
    pub(crate) fn new(symmetry: Symmetry) -> Groups {
        Groups { ids: IndexMap::default(), symmetry, places: None, named: IndexMap::default() }
    }

    /// Sets the places of ranks in a network with interchangeable hosts.
    pub(crate) fn set_places(&mut self, places: Option<Vec<[u32; 3]>>) {
        self.places = places;
    }

    pub(crate) fn symmetry(&self) -> &Symmetry {
        &self.symmetry
    }

    /// The group of these ranks, in this order. Members that name the same ranks for the n-th time get the same id.
    ///
    /// # Errors
    /// If ranks that should be equivalent would name groups that are not.
    pub(crate) fn join(
        &mut self,
        rank: RankId,
        ranks: Arc<[RankId]>,
        sequence: u32,
        settings: Option<NcclSettings>,
    ) -> Result<GroupId, Asymmetry> {
        if !self.symmetry.is_trivial() {
            return self.join_folded(rank, ranks, sequence, settings);
        }
        let entry = self.ids.entry((ranks, sequence));
        let index = entry.index();
        entry.or_insert_with_key(|(ranks, _)| Group { settings, ..Group::new(ranks.clone()) });
        Ok(GroupId::from(index))
    }

    /// Joins a group of a folded run. The group's key is the set of its ranks, translated to the place where the first
    /// of their representatives is a member.
    fn join_folded(
        &mut self,
        rank: RankId,
        ranks: Arc<[RankId]>,
        sequence: u32,
        settings: Option<NcclSettings>,
    ) -> Result<GroupId, Asymmetry> {
        let symmetry = self.symmetry.clone();
        let moved = Folded::move_home(&ranks, &symmetry);
        let mut key = moved.clone();
        key.sort_unstable();
        let entry = self.ids.entry((key.into(), sequence));
        let index = entry.index();
        if let indexmap::map::Entry::Vacant(vacant) = entry {
            let mut group = Group { settings, ..Group::new(moved.into()) };
            let mut folded = Folded::new(&group, &symmetry)?;
            if let Some(places) = &self.places {
                folded.may_rotate(&group, places);
            }
            group.folded = Some(folded);
            vacant.insert(group);
        }
        let group = &mut self.ids[index];
        let mut folded = group.folded.take().expect("made with it");
        folded.welcome(rank, ranks, group, &symmetry)?;
        group.folded = Some(folded);
        Ok(GroupId::from(index))
    }

    /// Records the name that a member gives to its group.
    ///
    /// # Errors
    /// If another group has the name, and one of both has several members: the only member of a group looks for
    /// no other member.
    pub(crate) fn name(&mut self, name: Arc<str>, second: NamedBy) -> Result<(), NameClash> {
        let first = self.named.entry(name).or_insert_with(|| second.clone());
        let agree = first.call == second.call || (first.members == 1 && second.members == 1);
        if agree { Ok(()) } else { Err(NameClash { first: first.clone(), second }) }
    }

    /// The groups that a rank is in.
    pub(crate) fn of(&self, rank: RankId) -> Vec<GroupId> {
        let groups = self.ids.values().enumerate();
        groups.filter(|(_, group)| group.find(rank).is_some()).map(|(index, _)| GroupId::from(index)).collect()
    }

    pub(crate) fn get(&self, id: GroupId) -> &Group {
        match self.ids.get_index(id.index()) {
            Some((_, group)) => group,
            None => panic!("{id} was never named"),
        }
    }
}

impl Group {
    pub(super) fn new(ranks: Arc<[RankId]>) -> Group {
        let in_world_order = ranks.iter().enumerate().all(|(index, rank)| rank.index() == index);
        let sorted = (!in_world_order).then(|| {
            let mut sorted: Vec<_> =
                ranks.iter().enumerate().map(|(index, rank)| (*rank, GroupRank::from(index))).collect();
            sorted.sort_unstable();
            sorted
        });
        Group { ranks, sorted, folded: None, settings: None, table: OnceCell::new() }
    }

    /// The group's table; `all` is the table of all ranks.
    pub(super) fn table<'a>(&'a self, all: &'a AlgorithmTable) -> &'a AlgorithmTable {
        self.table.get_or_init(|| all.for_group(&self.ranks, self.settings.as_ref())).as_ref().unwrap_or(all)
    }

    pub(crate) fn ranks(&self) -> &[RankId] {
        &self.ranks
    }

    pub(crate) fn size(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// Number of simulated members: all members, unless the run is folded.
    pub(crate) fn players(&self) -> u32 {
        self.folded.as_ref().map_or(self.size(), Folded::players)
    }

    /// Whether this member is simulated.
    pub(crate) fn plays(&self, member: GroupRank) -> bool {
        self.folded.as_ref().is_none_or(|folded| folded.player(member) == member)
    }

    /// Group rank of the representative of `member`.
    pub(super) fn player(&self, member: GroupRank) -> GroupRank {
        self.folded.as_ref().map_or(member, |folded| folded.player(member))
    }

    /// [`Folded::admits_messages`]
    pub(crate) fn admits_messages(&self) -> bool {
        self.folded.as_ref().is_none_or(Folded::admits_messages)
    }

    pub(crate) fn folded(&self) -> Option<&Folded> {
        self.folded.as_ref()
    }

    pub(crate) fn world_rank(&self, member: GroupRank) -> RankId {
        self.ranks[member.index()]
    }

    /// The ranks of the group in the order in which `rank` names them.
    pub(crate) fn seen_by(&self, rank: RankId) -> &[RankId] {
        self.folded.as_ref().and_then(|folded| folded.seen_by(rank)).unwrap_or(&self.ranks)
    }

    /// Group rank of a simulated rank in this group.
    pub(crate) fn position(&self, rank: RankId) -> Option<GroupRank> {
        match &self.folded {
            None => self.find(rank),
            Some(folded) => folded.played_by(rank),
        }
    }

    /// Group rank of a rank of the world.
    pub(super) fn find(&self, rank: RankId) -> Option<GroupRank> {
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
    fn a_name_belongs_to_the_group_that_was_created_first_with_it() {
        let mut groups = Groups::default();
        let by = |rank, call: &str| {
            let members = call.split(", ").count() as u32;
            NamedBy { rank: RankId(rank), site: Site(rank), members, call: call.into() }
        };
        assert_eq!(groups.name("1".into(), by(0, "[0, 3]")), Ok(()));
        assert_eq!(groups.name("2".into(), by(1, "[1, 2]")), Ok(()));
        assert_eq!(groups.name("1".into(), by(3, "[0, 3]")), Ok(()));
        let clash = NameClash { first: by(0, "[0, 3]"), second: by(1, "[1, 2]") };
        assert_eq!(groups.name("1".into(), by(1, "[1, 2]")), Err(clash));
        assert_eq!(groups.name("3".into(), by(0, "[0]")), Ok(()));
        assert_eq!(groups.name("3".into(), by(1, "[1]")), Ok(()));
        let clash = NameClash { first: by(0, "[0]"), second: by(1, "[1, 2]") };
        assert_eq!(groups.name("3".into(), by(1, "[1, 2]")), Err(clash));
    }

    #[test]
    fn the_same_members_meet_the_second_group_of_them_is_another() {
        let mut groups = Groups::default();
        let first = groups.join(RankId(0), ranks(&[2, 0]), 0, None).unwrap();
        assert_eq!(groups.join(RankId(0), ranks(&[2, 0]), 0, None).unwrap(), first);
        assert_ne!(groups.join(RankId(0), ranks(&[2, 0]), 1, None).unwrap(), first);
        assert_ne!(groups.join(RankId(0), ranks(&[0, 2]), 0, None).unwrap(), first);
        assert_eq!(groups.get(first).position(RankId(0)), Some(GroupRank(1)));
        assert_eq!(groups.get(first).position(RankId(1)), None);
        assert_eq!(groups.get(first).world_rank(GroupRank(0)), RankId(2));
    }
}
