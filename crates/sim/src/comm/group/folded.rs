//! Owns folded process groups: the member that each representative plays, and the check that the group looks the same
//! from all equivalent members. The module does not know messages or collectives.
//!
//! `M` is the group, and `H` are the shifts that map it to itself. A member and its images under `H` are played by one
//! rank, at the first of their places. Shifts relabel places. If all of them do so by one kind of [`Relabeling`], a
//! collective whose algorithm permits that kind ([`crate::collective::Algorithm::symmetry`]) has the same course at
//! every image.
//!
//! The course is also the same if shifts move places in another way, but every `p`-th place belongs to the same class
//! (`p` members are played), so that rotations by `p` places keep classes, and if the network does not distinguish
//! these rotations ([`Folded::may_rotate`]). An example is a ring around two expert-parallel groups: shifts within the
//! groups do not rotate the ring, and yet each member sends to a member of its class and receives from one. Ranks of a
//! class need not be images of each other under one group of shifts then. But as long as all have made the same steps,
//! each link of a class carries as many messages of each kind as the next, so all of them continue with the same steps
//! (the classes are an equitable partition of ranks and links). Each group must have its own connections; otherwise
//! messages would follow others on some connections and not on the rest.

use super::Group;
use crate::ids::{GroupRank, RankId};
use crate::network::Asymmetry;
use crate::symmetry::{Relabeling, Shift, Symmetry};
use std::cell::{Cell, OnceCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Folding of a group: the members that run, and the members that they represent.
#[derive(Debug)]
pub(crate) struct Folded {
    /// For each member, by group rank, the group rank of the member that represents it.
    player: Vec<GroupRank>,
    players: u32,
    /// Effect of shifts on places.
    moves: Moves,
    /// Whether places may be rotated by `players` although no shift rotates them in this way.
    rotates: bool,
    /// Kind of relabeling under which the group's collectives were admitted.
    course: OnceCell<Relabeling>,
    /// Whether members have sent point-to-point messages.
    has_messages: Cell<bool>,
    /// For each representative its place, and the ranks in the order in which it named them.
    views: BTreeMap<RankId, (GroupRank, Arc<[RankId]>)>,
}

/// Properties that all relabelings of places so far share.
#[derive(Clone, Debug)]
struct Moves {
    /// Whether all relabelings so far leave every place unchanged.
    none: bool,
    /// Kinds of relabeling that fit all relabelings so far.
    all: Vec<Relabeling>,
}

impl Moves {
    /// Properties without any relabeling, for `size` places.
    fn new(size: u32) -> Moves {
        let blocks = (2..size).filter(|block| size.is_multiple_of(*block)).map(Relabeling::Blocks);
        Moves { none: true, all: [Relabeling::Rotation, Relabeling::Flip].into_iter().chain(blocks).collect() }
    }

    /// Adds a relabeling, given as pairs of places.
    fn add(&mut self, size: u32, pairs: &[(GroupRank, GroupRank)]) {
        self.none &= pairs.iter().all(|(from, to)| from == to);
        self.all.retain(|relabeling| {
            let by = |(from, to): &(GroupRank, GroupRank)| relabeling.between(from.0, to.0, size);
            pairs.iter().all(|pair| by(pair) == by(&pairs[0]))
        });
    }
}

impl Folded {
    /// The group moved to the place where the lowest representative of its members is itself a member, in the group's
    /// order.
    pub(in crate::comm) fn move_home(ranks: &[RankId], symmetry: &Symmetry) -> Vec<RankId> {
        let lowest = ranks.iter().min_by_key(|rank| symmetry.representative(**rank)).expect("a group has members");
        let home = symmetry.inverse(symmetry.shift_to(*lowest));
        ranks.iter().map(|rank| symmetry.apply(home, *rank)).collect()
    }

    /// The folding of a group that `move_home` has returned.
    pub(in crate::comm) fn new(group: &Group, symmetry: &Symmetry) -> Result<Folded, Asymmetry> {
        let mut classes: BTreeMap<RankId, Vec<GroupRank>> = BTreeMap::new();
        for (place, rank) in group.ranks().iter().enumerate() {
            classes.entry(symmetry.representative(*rank)).or_default().push(GroupRank::from(place));
        }
        let (_, lowest) = classes.first_key_value().expect("a group has members");
        let shifts: Vec<Shift> = lowest.iter().map(|place| symmetry.shift_to(group.world_rank(*place))).collect();
        if classes.values().any(|places| places.len() != shifts.len()) {
            return Err(Asymmetry::new("a process group has different numbers of ranks of equivalent classes"));
        }
        let mut player = vec![GroupRank(0); group.ranks().len()];
        for places in classes.values() {
            places.iter().for_each(|place| player[place.index()] = places[0]);
        }
        let (moves, players) = (Moves::new(group.size()), classes.len() as u32);
        let (course, has_messages, views) = (OnceCell::new(), Cell::new(false), BTreeMap::new());
        let mut folded = Folded { player, players, moves, rotates: false, course, has_messages, views };
        for shift in generators(&shifts, symmetry) {
            folded.check(shift, group.ranks(), group, symmetry)?;
        }
        Ok(folded)
    }

    /// Checks whether places may be rotated by `players`; `places` are [`crate::network::FoldedTopology::places`].
    /// Ranks that share a host, a server or a rail must move to ranks that share one too.
    pub(in crate::comm) fn may_rotate(&mut self, group: &Group, places: &[[u32; 3]]) {
        let size = self.player.len();
        let dealt = (0..size).all(|place| self.player[place].index() == place % self.players as usize);
        let moves_wholes = |kind: usize| {
            let mut images = BTreeMap::new();
            let at = |place: usize| places[group.ranks()[place % size].index()][kind];
            (0..size).all(|place| {
                let to = at(place + self.players as usize);
                *images.entry(at(place)).or_insert(to) == to
            })
        };
        self.rotates = dealt && (0..3).all(moves_wholes);
    }

    /// Records that the representative `rank` names the group as `ranks`.
    pub(in crate::comm) fn welcome(
        &mut self,
        rank: RankId,
        ranks: Arc<[RankId]>,
        group: &Group,
        symmetry: &Symmetry,
    ) -> Result<(), Asymmetry> {
        let of_class = |place: &usize| symmetry.representative(group.ranks()[*place]) == rank;
        let place = (0..group.ranks().len()).find(of_class);
        let Some(place) = place.filter(|_| ranks.contains(&rank)) else {
            return Err(Asymmetry::new(format!("{rank} uses a process group that it is not a member of")));
        };
        let pairs = self.check(symmetry.shift_to(group.ranks()[place]), &ranks, group, symmetry)?;
        let mut seen = Moves::new(group.size());
        seen.add(group.size(), &pairs);
        self.rotates &= seen.all.contains(&Relabeling::Rotation);
        self.views.insert(rank, (GroupRank::from(place), ranks));
        Ok(())
    }

    /// Checks that `shift` maps `ranks` onto the group, and records its effect on places.
    fn check(
        &mut self,
        shift: Shift,
        ranks: &[RankId],
        group: &Group,
        symmetry: &Symmetry,
    ) -> Result<Vec<(GroupRank, GroupRank)>, Asymmetry> {
        let image =
            |(place, rank): (usize, &RankId)| Some((GroupRank::from(place), group.find(symmetry.apply(shift, *rank))?));
        let pairs: Option<Vec<_>> = ranks.iter().enumerate().map(image).collect();
        let pairs =
            pairs.ok_or_else(|| Asymmetry::new("ranks that should be equivalent are in groups that are not"))?;
        self.moves.add(ranks.len() as u32, &pairs);
        Ok(pairs)
    }

    pub(in crate::comm) fn players(&self) -> u32 {
        self.players
    }

    pub(in crate::comm) fn player(&self, member: GroupRank) -> GroupRank {
        self.player[member.index()]
    }

    pub(in crate::comm) fn played_by(&self, rank: RankId) -> Option<GroupRank> {
        self.views.get(&rank).map(|(place, _)| *place)
    }

    pub(in crate::comm) fn seen_by(&self, rank: RankId) -> Option<&[RankId]> {
        self.views.get(&rank).map(|(_, ranks)| &ranks[..])
    }

    /// Whether a collective may run in this group if its algorithm permits relabelings of the kind `symmetry`.
    pub(crate) fn admits(&self, symmetry: Option<Relabeling>) -> bool {
        let Some(relabeling) = symmetry.filter(|_| !self.moves.none) else { return self.moves.none };
        let by_rotation_alone = self.rotates && relabeling == Relabeling::Rotation && !self.has_messages.get();
        if !self.is_of_shifts(relabeling) && !by_rotation_alone {
            return false;
        }
        // All collectives of a group share its connections. If several kinds of relabeling fit the shifts, they have
        // the same effect on the places.
        let course = *self.course.get_or_init(|| relabeling);
        course == relabeling || self.is_of_shifts(course) && self.is_of_shifts(relabeling)
    }

    /// Whether shifts move places by this kind of relabeling.
    fn is_of_shifts(&self, relabeling: Relabeling) -> bool {
        self.moves.all.contains(&relabeling)
    }

    /// Whether members may also send point-to-point messages. These move along with shifts of the ranks, so collectives
    /// must, too.
    pub(crate) fn admits_messages(&self) -> bool {
        self.has_messages.set(true);
        self.moves.none || self.course.get().is_none_or(|course| self.is_of_shifts(*course))
    }

    /// Maps a collective's message to simulated members: sender and receiver.
    pub(in crate::comm) fn arrival(&self, from: GroupRank, to: GroupRank) -> (GroupRank, GroupRank) {
        let (size, player) = (self.player.len() as u32, self.player(to));
        if player == to {
            return (from, to);
        }
        let course = self.course.get().expect("a collective is admitted before its messages arrive");
        (GroupRank(course.moved(from.0, course.between(to.0, player.0, size), size)), player)
    }
}

/// A subset of the shifts that generates all of them, with at most as many elements as the logarithm of their number.
fn generators(shifts: &[Shift], symmetry: &Symmetry) -> Vec<Shift> {
    let mut reached = BTreeSet::from([Shift::default()]);
    let mut generators = Vec::new();
    for shift in shifts {
        if reached.contains(shift) {
            continue;
        }
        generators.push(*shift);
        let mut coset: Vec<Shift> = reached.iter().copied().collect();
        loop {
            coset = coset.into_iter().map(|other| symmetry.compose(other, *shift)).collect();
            if coset.first().is_none_or(|first| !reached.insert(*first)) {
                break;
            }
            reached.extend(coset.iter().copied());
        }
    }
    generators
}
