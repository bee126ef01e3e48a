//! Owns the ranks of a folded program: which of them run, and whose steps those of the others are made from.
//!
//! It does not know how they run. What a rank would have done in another's place is [`Moved`]'s business, whether ranks that run are alike
//! [`Likeness`]'s.

mod likeness;
mod moved;

pub use likeness::{DueTo, Likeness, Unlike};
pub use moved::Moved;

use crate::ids::RankId;
use crate::symmetry::{Axis, Relabeling, Symmetry};
use std::ops::Range;

/// Which ranks of a program run: of each class its representative, and as witnesses the ranks one step away from it along each axis, and those that
/// are farthest on the axes of a machine, on those of machines, and on all, where what is left over of an uneven division goes. The others are absent.
#[derive(Clone, Debug)]
pub struct Cast {
    symmetry: Symmetry,
    runs: Vec<bool>,
}

impl Cast {
    /// The ranks of a program of `world` ranks that are alike under `symmetry`, `per_machine` consecutive ones on each machine.
    pub fn new(symmetry: Symmetry, world: u32, per_machine: u32) -> Cast {
        let ends = [0..per_machine, per_machine..world, 0..world];
        Cast::with_ends(symmetry, world, &ends)
    }

    /// The same without those that are farthest.
    pub fn without_ends(symmetry: Symmetry, world: u32) -> Cast {
        Cast::with_ends(symmetry, world, &[])
    }

    fn with_ends(symmetry: Symmetry, world: u32, ends: &[Range<u32>]) -> Cast {
        let mut runs = vec![false; world as usize];
        let ends = ends.iter().map(|strides| symmetry.farthest(strides.clone()));
        let shifts: Vec<_> = symmetry.generators().chain(ends).collect();
        for rank in (0..world).map(RankId).filter(|rank| symmetry.is_representative(*rank)) {
            runs[rank.index()] = true;
            shifts.iter().for_each(|shift| runs[symmetry.apply(*shift, rank).index()] = true);
        }
        Cast { symmetry, runs }
    }

    /// Which ranks are taken to be alike.
    pub fn symmetry(&self) -> &Symmetry {
        &self.symmetry
    }

    /// Does `rank` run?
    pub fn runs(&self, rank: RankId) -> bool {
        self.runs[rank.index()]
    }

    /// The ranks that run.
    pub fn running(&self) -> impl Iterator<Item = RankId> {
        (0..self.runs.len()).map(RankId::from).filter(|rank| self.runs(*rank))
    }

    /// The rank whose steps those of `rank` are made from: itself if it runs; else the witness one step along the first axis on which it is elsewhere
    /// than its representative. So what distinguishes the first of neighbours, as rank 0 that prints, is nobody else's.
    pub fn model(&self, rank: RankId) -> RankId {
        if self.runs(rank) {
            return rank;
        }
        self.symmetry.apply(self.symmetry.first_step(rank), self.symmetry.representative(rank))
    }

    /// For each member of a group the place of the member that runs and contributes to collectives in its place: its own, if it runs; else that
    /// of a member of its class, its model before its representative before others.
    ///
    /// # Errors
    /// The first absent member of whose class nobody in the group runs.
    pub fn stand_ins(&self, group: &[RankId]) -> Result<Vec<usize>, RankId> {
        let class = |rank: RankId| self.symmetry.representative(rank);
        let place = |(place, rank): (usize, &RankId)| {
            if self.runs(*rank) {
                return Ok(place);
            }
            let alike = |other: &&RankId| self.runs(**other) && class(**other) == class(*rank);
            let preferred = |other: &RankId| (*other != self.model(*rank), *other != class(*rank), *other);
            let found = group.iter().filter(alike).min_by_key(|other| preferred(other)).ok_or(*rank)?;
            Ok(group.iter().position(|other| other == found).expect("it was found there"))
        };
        group.iter().enumerate().map(place).collect()
    }
}

/// The axes along which ranks of a program may be alike, where `per_machine` consecutive ones share each machine: the prime factors of both numbers,
/// so that the groups of a mesh whose dimensions are made of whole factors are mapped onto groups.
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

    fn cast(world: u32, per_machine: u32) -> Cast {
        Cast::new(Symmetry::new(axes(world, per_machine), world).unwrap(), world, per_machine)
    }

    fn running(cast: &Cast) -> Vec<u32> {
        cast.running().map(|rank| rank.0).collect()
    }

    /// 16 = (2 * 2 * 2) * 2: rank 0, a step of 1, 2, 4 and 8, the last of the first machine, and the last; 12 = (2 * 2) * 3; 512 = 2^9, and 7, 504
    /// and 511 are the ends.
    #[test]
    fn a_representative_its_neighbours_and_the_ends_run() {
        assert_eq!(running(&cast(16, 8)), [0, 1, 2, 4, 7, 8, 15]);
        assert_eq!(running(&cast(12, 4)), [0, 1, 2, 3, 4, 8, 11]);
        assert_eq!(cast(512, 8).running().count(), 1 + 9 + 3);
    }

    #[test]
    fn ranks_that_cannot_be_dealt_to_machines_are_on_one() {
        let extents = |world, per_machine| axes(world, per_machine).iter().map(|axis| axis.extent).collect::<Vec<_>>();
        assert_eq!(extents(12, 6), [2, 3, 2]);
        assert_eq!(extents(10, 4), [2, 5]);
        assert_eq!(extents(1, 1), [0_u32; 0]);
        assert_eq!(extents(49, 7), [7, 7]);
    }

    /// Two stages of 8: of each class its own ranks run.
    #[test]
    fn an_axis_that_is_not_folded_has_ranks_of_both_sides() {
        let mut axes = axes(16, 8);
        axes.pop();
        let cast = Cast::new(Symmetry::new(axes, 16).unwrap(), 16, 8);
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
