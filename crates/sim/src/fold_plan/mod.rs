//! Owns the fold of a program's ranks: the ranks that run, and for each absent rank the running rank whose steps it
//! repeats, translated.
//!
//! This module does not run ranks. [`Moved`] translates the steps of one rank into those of another, and [`ReplicaCheck`]
//! checks that running ranks are equivalent.

mod moved;
mod replica_check;

pub use moved::Moved;
pub use replica_check::{DueTo, ReplicaCheck, Unlike};

use crate::ids::RankId;
use crate::symmetry::{Axis, Relabeling, Symmetry};
use std::collections::{BTreeMap, BTreeSet};

/// The last ranks along all axes with these strides. For a mesh dimension made of these axes they are the last
/// coordinates, which get the remainder of an uneven division.
pub type End = BTreeSet<u32>;

/// The ranks of a program that run, and those that are absent.
///
/// Ranks that the symmetry maps onto each other form a class, except ranks at an end that is a class of its own. For
/// each class a *representative* runs, and as *replicas* (`replicas`) the ranks one step away from it along each axis,
/// the ranks at other ends, and those just before the ends that are classes of their own.
#[derive(Clone, Debug)]
pub struct FoldPlan {
    symmetry: Symmetry,
    /// Ends at which replicas run.
    ends: Vec<End>,
    /// Ends that are classes of their own.
    apart: Vec<End>,
    runs: Vec<bool>,
}

impl FoldPlan {
    /// Folds a program of `world` ranks by `symmetry`. The ranks at the ends in `apart` are classes of their own;
    /// replicas run at those in `ends`.
    pub fn new(symmetry: Symmetry, world: u32, ends: Vec<End>, apart: Vec<End>) -> FoldPlan {
        let cast = FoldPlan { symmetry, ends, apart, runs: Vec::new() };
        let mut runs = vec![false; world as usize];
        for representative in (0..world).map(RankId).filter(|rank| cast.representative(*rank) == *rank) {
            runs[representative.index()] = true;
            cast.replicas(representative).keys().for_each(|replica| runs[replica.index()] = true);
        }
        FoldPlan { runs, ..cast }
    }

    /// The symmetry of ranks that are assumed equivalent, apart from the ends that are classes of their own.
    pub fn symmetry(&self) -> &Symmetry {
        &self.symmetry
    }

    /// The ends at which replicas run.
    pub fn ends(&self) -> &[End] {
        &self.ends
    }

    /// Whether `rank` runs.
    pub fn runs(&self, rank: RankId) -> bool {
        self.runs[rank.index()]
    }

    /// The ranks that run.
    pub fn running(&self) -> impl Iterator<Item = RankId> {
        (0..self.runs.len()).map(RankId::from).filter(|rank| self.runs(*rank))
    }

    /// The representative of the class of `rank`.
    pub fn representative(&self, rank: RankId) -> RankId {
        RankId(rank.0 - self.free(rank).map(|axis| axis.at(rank.0) * axis.stride).sum::<u32>())
    }

    /// The replicas of a representative, each with the assumption that does not hold if the replica differs.
    fn replicas(&self, representative: RankId) -> BTreeMap<RankId, DueTo> {
        let is_free = |axis: &Axis| self.free(representative).any(|free| free == axis);
        let farthest = |end: &End| -> u32 {
            let axes = self.free(representative).filter(|axis| end.contains(&axis.stride));
            axes.map(|axis| (axis.extent - 1) * axis.stride).sum()
        };
        let axes = self.symmetry.axes().iter().enumerate().filter(|(_, axis)| is_free(axis));
        let steps = axes.map(|(place, axis)| (axis.stride, DueTo::Axis(place)));
        let ends = self.ends.iter().enumerate().map(|(place, end)| (farthest(end), DueTo::End(place)));
        let before = self.apart.iter().filter_map(|end| {
            // An axis with only a first and a last coordinate needs no such replica: the ranks at ends show the
            // difference.
            let last = self.free(representative).find(|axis| end.contains(&axis.stride) && axis.extent > 2)?;
            Some((farthest(end) - last.stride, DueTo::Uneven))
        });
        let mut replicas = BTreeMap::new();
        for (shift, due_to) in steps.chain(ends).chain(before) {
            let rank = RankId(representative.0 + shift);
            if shift > 0 && self.representative(rank) == representative {
                replicas.entry(rank).or_insert(due_to);
            }
        }
        replicas
    }

    /// The axes along which the class of `rank` extends: all axes except those of ends apart at which the rank is.
    fn free(&self, rank: RankId) -> impl Iterator<Item = &Axis> {
        let axes = self.symmetry.axes();
        let is_at = move |end: &End| {
            let mut of_end = axes.iter().filter(|axis| end.contains(&axis.stride)).peekable();
            of_end.peek().is_some() && of_end.all(|axis| axis.at(rank.0) == axis.extent - 1)
        };
        let held: Vec<&End> = self.apart.iter().filter(|end| is_at(end)).collect();
        axes.iter().filter(move |axis| !held.iter().any(|end| end.contains(&axis.stride)))
    }

    /// The running rank whose steps `rank` repeats: `rank` itself if it runs; else the replica one step along the first
    /// axis on which `rank` and its representative differ. Special behaviour of a representative, such as printing on
    /// rank 0, is therefore not copied.
    pub fn model(&self, rank: RankId) -> RankId {
        if self.runs(rank) {
            return rank;
        }
        let representative = self.representative(rank);
        let elsewhere = self.free(rank).filter(|axis| axis.at(rank.0) > 0);
        let mut steps = elsewhere.map(|axis| RankId(representative.0 + axis.stride));
        steps.find(|replica| self.representative(*replica) == representative).unwrap_or(representative)
    }

    /// For each member of a group the index of the running member that contributes to collectives in its place: its own
    /// index, if it runs; else a member of its class, preferably its model, then its representative, then others.
    ///
    /// # Errors
    /// The first absent member whose class has no running rank in the group.
    pub fn stand_ins(&self, group: &[RankId]) -> Result<Vec<usize>, RankId> {
        let running: Vec<(usize, RankId, RankId)> = group
            .iter()
            .enumerate()
            .filter(|(_, rank)| self.runs(**rank))
            .map(|(place, rank)| (place, *rank, self.representative(*rank)))
            .collect();
        let place = |(place, rank): (usize, &RankId)| {
            if self.runs(*rank) {
                return Ok(place);
            }
            let (model, class) = (self.model(*rank), self.representative(*rank));
            let alike = running.iter().filter(|(_, _, of)| *of == class);
            let found = alike.min_by_key(|(_, other, _)| (*other != model, *other != class, *other));
            found.map(|(place, ..)| *place).ok_or(*rank)
        };
        group.iter().enumerate().map(place).collect()
    }
}

/// The ends along which programs often divide work: the ranks of a machine, the machines, and all ranks.
pub fn ends(world: u32, per_machine: u32) -> Vec<End> {
    let strides: End = axes(world, per_machine).into_iter().map(|axis| axis.stride).collect();
    let (inside, over): (End, End) = strides.iter().partition(|stride| **stride < per_machine);
    vec![inside, over, strides]
}

/// The widest ends that contain none of the ends in `apart`. If ranks at these ends equal their representatives, all
/// other ranks in no end apart do too: a rank at the end of more axes has a smaller part of a division.
pub fn rest(world: u32, per_machine: u32, apart: &[End]) -> Vec<End> {
    let strides: End = axes(world, per_machine).into_iter().map(|axis| axis.stride).collect();
    // The smallest sets of axes to omit so that each end apart lacks an axis.
    let mut left_out = vec![End::new()];
    for end in apart {
        let (hit, missed): (Vec<End>, Vec<End>) = left_out.into_iter().partition(|set| !set.is_disjoint(end));
        let larger = missed.iter().flat_map(|set| end.iter().map(move |stride| set | &End::from([*stride])));
        let least = larger.filter(|set| !hit.iter().any(|other| other.is_subset(set))).collect::<Vec<_>>();
        left_out = hit.into_iter().chain(least).collect();
    }
    left_out.iter().map(|set| &strides - set).filter(|end| !end.is_empty()).collect()
}

/// The axes along which ranks may be equivalent if `per_machine` consecutive ranks share each machine: the prime
/// factors of both numbers, so that groups of a mesh whose dimensions are products of whole factors are mapped onto
/// groups.
pub fn axes(world: u32, per_machine: u32) -> Vec<Axis> {
    let machines = if per_machine > 0 && world.is_multiple_of(per_machine) { world / per_machine } else { 1 };
    let mut stride = 1;
    let axis = |extent| {
        let axis = Axis { stride, extent, relabeling: Relabeling::Rotation };
        stride *= extent;
        axis
    };
    prime_factors(world / machines).into_iter().chain(prime_factors(machines)).map(axis).collect()
}

fn prime_factors(mut number: u32) -> Vec<u32> {
    let mut factors = Vec::new();
    let mut factor = 2;
    while number > 1 {
        if factor * factor > number {
            factor = number;
        }
        while number.is_multiple_of(factor) {
            factors.push(factor);
            number /= factor;
        }
        factor += 1;
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cast_with(world: u32, per_machine: u32, apart: Vec<End>) -> FoldPlan {
        let symmetry = Symmetry::new(axes(world, per_machine), world).unwrap();
        FoldPlan::new(symmetry, world, ends(world, per_machine), apart)
    }

    fn cast(world: u32, per_machine: u32) -> FoldPlan {
        cast_with(world, per_machine, Vec::new())
    }

    fn running(cast: &FoldPlan) -> Vec<u32> {
        cast.running().map(|rank| rank.0).collect()
    }

    /// 16 = (2 * 2 * 2) * 2: rank 0, a step of 1, 2, 4 and 8, the last rank of the first machine, and the last rank; 12
    /// = (2 * 2) * 3; 512 = 2^9, with the ends 7, 504 and 511.
    #[test]
    fn a_representative_its_neighbours_and_the_ends_run() {
        assert_eq!(running(&cast(16, 8)), [0, 1, 2, 4, 7, 8, 15]);
        assert_eq!(running(&cast(12, 4)), [0, 1, 2, 3, 4, 8, 11]);
        assert_eq!(cast(512, 8).running().count(), 1 + 9 + 3);
    }

    /// 64 ranks: the last machine gets the remainder of a division among machines, so its ranks are a class of their
    /// own. Replicas of this class are neighbours inside that machine, and its last rank. Ranks 55, 47 and 31 run to
    /// show whether other machines differ too.
    #[test]
    fn an_end_that_is_apart_has_a_class_and_the_rest_is_looked_at() {
        let [_, over, _]: [End; 3] = ends(64, 8).try_into().unwrap();
        assert_eq!(over, End::from([8, 16, 32]));
        let looked_at = [ends(64, 8), rest(64, 8, std::slice::from_ref(&over))].concat();
        let cast = FoldPlan::new(Symmetry::new(axes(64, 8), 64).unwrap(), 64, looked_at, vec![over]);
        assert_eq!(running(&cast), [0, 1, 2, 4, 7, 8, 16, 31, 32, 47, 55, 56, 57, 58, 60, 63]);
        assert_eq!(cast.representative(RankId(59)), RankId(56));
        assert_eq!([51, 54, 59, 61].map(|rank| cast.model(RankId(rank)).0), [1, 2, 57, 57]);
        let last: Vec<RankId> = (56..64).map(RankId).collect();
        assert_eq!(cast.stand_ins(&last), Ok(vec![0, 1, 2, 1, 4, 1, 2, 7]));
    }

    /// Ranks 9 to 15 of 16 have less: they are at the end along axis 8 and one further axis.
    #[test]
    fn the_rest_is_what_is_in_none_of_the_ends_apart() {
        assert_eq!(rest(16, 4, &[]), [End::from([1, 2, 4, 8])]);
        let apart = [End::from([4, 8])];
        assert_eq!(rest(16, 4, &apart), [End::from([1, 2, 8]), End::from([1, 2, 4])]);
        let apart = [End::from([4, 8]), End::from([2, 8]), End::from([1, 8])];
        assert_eq!(rest(16, 4, &apart), [End::from([1, 2, 4]), End::from([8])]);
        assert!(rest(4, 2, &[End::from([1]), End::from([2])]).is_empty());
    }

    /// 3 machines of 5 ranks: a rank just before the last ones shows whether only the last ones have less.
    #[test]
    fn who_is_just_before_an_end_is_looked_at() {
        let symmetry = Symmetry::new(axes(15, 5), 15).unwrap();
        let cast = FoldPlan::new(symmetry, 15, ends(15, 5), vec![End::from([1])]);
        // Ranks 4, 9 and 14 are apart; rank 3 is just before the first of them.
        assert_eq!(running(&cast), [0, 1, 3, 4, 5, 9, 10, 14]);
        assert_eq!(cast.replicas(RankId(0))[&RankId(3)], DueTo::Uneven);
    }

    #[test]
    fn ranks_that_cannot_be_dealt_to_machines_are_on_one() {
        let extents = |world, per_machine| axes(world, per_machine).iter().map(|axis| axis.extent).collect::<Vec<_>>();
        assert_eq!(extents(12, 6), [2, 3, 2]);
        assert_eq!(extents(10, 4), [2, 5]);
        assert_eq!(extents(1, 1), [0_u32; 0]);
        assert_eq!(extents(49, 7), [7, 7]);
    }

    /// Two pipeline stages of 8 ranks: each class has its own running ranks.
    #[test]
    fn an_axis_that_is_not_folded_has_ranks_of_both_sides() {
        let mut axes = axes(16, 8);
        axes.pop();
        let cast = FoldPlan::new(Symmetry::new(axes, 16).unwrap(), 16, ends(16, 8), Vec::new());
        assert_eq!(running(&cast), [0, 1, 2, 4, 7, 8, 9, 10, 12, 15]);
        assert_eq!(cast.model(RankId(11)), RankId(9));
    }

    #[test]
    fn an_absent_rank_follows_its_first_neighbour() {
        let cast = cast(16, 8);
        let models: Vec<u32> = (0..16).map(|rank| cast.model(RankId(rank)).0).collect();
        assert_eq!(models, [0, 1, 2, 1, 4, 1, 2, 7, 8, 1, 2, 1, 4, 1, 2, 15]);
    }

    #[test]
    fn members_that_run_stand_in_for_others_of_their_class() {
        let ranks = |ranks: &[u32]| ranks.iter().map(|rank| RankId(*rank)).collect::<Vec<_>>();
        let cast = cast(16, 8);
        assert_eq!(cast.stand_ins(&ranks(&[0, 1, 2, 3])), Ok(vec![0, 1, 2, 1]));
        assert_eq!(cast.stand_ins(&ranks(&[8, 9, 10, 11])), Ok(vec![0, 0, 0, 0]));
        assert_eq!(cast.stand_ins(&ranks(&[3, 5])), Err(RankId(3)));
    }
}
