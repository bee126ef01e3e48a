//! Owns symmetric ranks: ranks that are equivalent under shifts of a grid of ranks, and the representatives of their
//! classes. The module does not know whether a job or a cluster really looks the same from each of them:
//! [`crate::network::FoldedTopology`] checks the cluster, and the engine checks the job during the run.
//!
//! Rank `r` has the coordinate `r / stride % extent` along each [`Axis`]. A [`Shift`] moves all ranks by the same steps
//! along the axes. The shifts form a group `G` that moves every rank (it acts freely), so the ranks fall into classes
//! of `|G|` each. The representative of a class is the rank with the coordinates 0.

use crate::ids::RankId;

/// Effect of shifts along an axis on its coordinate `x`, and on the places of a process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relabeling {
    /// Maps `x` to `(x + k) mod n`.
    Rotation,
    /// Maps `x` to `x xor k`; `n` is a power of two.
    Flip,
    /// Maps `x` in consecutive blocks of `b`: to block `(x div b + k div b) mod (n div b)`, and in it to `(x + k) mod
    /// b`; `b` divides `n`.
    Blocks(u32),
}

impl Relabeling {
    /// Image of `x` (`from`) among `n` places under `k` (`by`).
    pub(crate) fn moved(self, from: u32, by: u32, n: u32) -> u32 {
        match self {
            Relabeling::Rotation => (from + by) % n,
            Relabeling::Flip => from ^ by,
            Relabeling::Blocks(b) => (from / b + by / b) % (n / b) * b + (from + by) % b,
        }
    }

    /// The `k` that moves `from` to `to`.
    pub(crate) fn between(self, from: u32, to: u32, n: u32) -> u32 {
        match self {
            Relabeling::Rotation => (to + n - from) % n,
            Relabeling::Flip => from ^ to,
            Relabeling::Blocks(b) => (to / b + n / b - from / b) % (n / b) * b + (to % b + b - from % b) % b,
        }
    }

    /// Whether the relabeling maps `n` places onto each other.
    pub(crate) fn fits(self, n: u32) -> bool {
        match self {
            Relabeling::Rotation => true,
            Relabeling::Flip => n.is_power_of_two(),
            Relabeling::Blocks(b) => b > 0 && n.is_multiple_of(b),
        }
    }
}

/// A direction in the grid of ranks along which all ranks are equivalent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Distance in ranks between neighbouring coordinates.
    pub stride: u32,
    /// Number of coordinates.
    pub extent: u32,
    /// Effect of shifts on the coordinates.
    pub relabeling: Relabeling,
}

/// Equivalence of ranks. Without axes, each rank is equivalent only to itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symmetry {
    axes: Vec<Axis>,
}

/// A shift of every rank, written as the image of rank 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shift(u32);

/// Axes that do not form a grid of the ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "axes {axes:?} do not form a grid of {world} ranks\nhint: each stride must be a multiple of the stride times the extent before it, the extent of a flip a power of two, and that of blocks a multiple of the block size"
)]
pub struct GridError {
    /// The axes that were given.
    pub axes: Vec<Axis>,
    /// Number of ranks.
    pub world: u32,
}

impl Symmetry {
    /// The symmetry of `world` ranks along `axes`, given by increasing stride. Axes of extent 1 are left out.
    ///
    /// # Errors
    /// If the axes do not form a grid.
    pub fn new(mut axes: Vec<Axis>, world: u32) -> Result<Symmetry, GridError> {
        axes.retain(|axis| axis.extent != 1);
        let size = |axis: &Axis| u64::from(axis.stride) * u64::from(axis.extent);
        let nested = axes.windows(2).all(|pair| u64::from(pair[1].stride).is_multiple_of(size(&pair[0]).max(1)));
        let whole = axes.iter().all(|axis| size(axis) > 0 && u64::from(world).is_multiple_of(size(axis)));
        let fits = axes.iter().all(|axis| axis.relabeling.fits(axis.extent));
        if nested && whole && fits { Ok(Symmetry { axes }) } else { Err(GridError { axes, world }) }
    }

    /// The axes along which ranks are equivalent.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// Whether every rank is equivalent only to itself.
    pub fn is_trivial(&self) -> bool {
        self.axes.is_empty()
    }

    /// Number of ranks in each class.
    pub fn order(&self) -> u32 {
        self.axes.iter().map(|axis| axis.extent).product()
    }

    /// The representative of the class of `rank`.
    pub fn representative(&self, rank: RankId) -> RankId {
        RankId(rank.0 - self.shift_to(rank).0)
    }

    /// Whether `rank` is the representative of its class.
    pub fn is_representative(&self, rank: RankId) -> bool {
        self.shift_to(rank).0 == 0
    }

    /// The shift from the representative to `rank`.
    pub fn shift_to(&self, rank: RankId) -> Shift {
        Shift(self.axes.iter().map(|axis| axis.at(rank.0) * axis.stride).sum())
    }

    /// The rank that `shift` moves `rank` to.
    pub fn apply(&self, shift: Shift, rank: RankId) -> RankId {
        let moved = |at: u32, axis: &Axis| {
            let (from, by) = (axis.at(at), axis.at(shift.0));
            let to = axis.relabeling.moved(from, by, axis.extent);
            at - from * axis.stride + to * axis.stride
        };
        RankId(self.axes.iter().fold(rank.0, moved))
    }

    /// The inverse of `shift`.
    pub fn inverse(&self, shift: Shift) -> Shift {
        let back = |axis: &Axis| axis.relabeling.between(axis.at(shift.0), 0, axis.extent) * axis.stride;
        Shift(self.axes.iter().map(back).sum())
    }

    /// Shifts both ranks so that the first is a representative.
    pub(crate) fn normalised(&self, first: RankId, second: RankId) -> (RankId, RankId) {
        if self.is_trivial() {
            return (first, second);
        }
        let home = self.inverse(self.shift_to(first));
        (self.apply(home, first), self.apply(home, second))
    }

    /// The shift `first`, followed by `second`.
    pub(crate) fn compose(&self, first: Shift, second: Shift) -> Shift {
        Shift(self.apply(second, RankId(first.0)).0)
    }

    /// A set of shifts from which all other shifts can be composed.
    pub fn generators(&self) -> impl Iterator<Item = Shift> {
        self.axes.iter().flat_map(|axis| {
            let steps = match axis.relabeling {
                Relabeling::Rotation => vec![1],
                Relabeling::Flip => (0..axis.extent.ilog2()).map(|bit| 1 << bit).collect(),
                Relabeling::Blocks(b) => [1, b].into_iter().filter(|step| *step < axis.extent).collect(),
            };
            steps.into_iter().map(|step| Shift(axis.stride * step))
        })
    }

    /// The ranks of a representative's class, the representative first.
    pub fn class(&self, representative: RankId) -> impl Iterator<Item = RankId> {
        let place = move |index: u32| {
            let mut left = index;
            let offsets = self.axes.iter().map(|axis| {
                let at = left % axis.extent;
                left /= axis.extent;
                at * axis.stride
            });
            RankId(representative.0 + offsets.sum::<u32>())
        };
        (0..self.order()).map(place)
    }
}

impl Axis {
    /// The coordinate of `rank` along the axis.
    pub(crate) fn at(&self, rank: u32) -> u32 {
        rank / self.stride % self.extent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn symmetry() -> impl Strategy<Value = (Symmetry, u32)> {
        let axis = (1..4u32, 0..4u32, 0..3u32);
        prop::collection::vec(axis, 0..4).prop_map(|axes| {
            let mut stride = 1;
            let laid_out = axes.into_iter().map(|(gap, bits, kind)| {
                let (relabeling, extent) = match kind {
                    0 => (Relabeling::Rotation, bits + 1),
                    1 => (Relabeling::Flip, 1 << bits),
                    _ => (Relabeling::Blocks(gap), gap * (bits + 1)),
                };
                let axis = Axis { stride: stride * gap, extent, relabeling };
                stride = axis.stride * axis.extent;
                axis
            });
            let axes: Vec<Axis> = laid_out.collect();
            (Symmetry::new(axes, stride * 2).unwrap(), stride * 2)
        })
    }

    proptest! {
        /// G acts freely; x = shift_to(x)(representative(x)); an inverse undoes its shift; classes are the orbits.
        #[test]
        fn shifts_are_a_group_that_moves_every_rank((symmetry, world) in symmetry()) {
            for rank in (0..world).map(RankId) {
                let (representative, shift) = (symmetry.representative(rank), symmetry.shift_to(rank));
                prop_assert_eq!(symmetry.apply(shift, representative), rank);
                prop_assert_eq!(symmetry.apply(symmetry.inverse(shift), rank), representative);
                prop_assert!(symmetry.class(representative).any(|image| image == rank));
                for generator in symmetry.generators() {
                    let image = symmetry.apply(generator, rank);
                    prop_assert_ne!(image, rank);
                    prop_assert_eq!(symmetry.representative(image), representative);
                    prop_assert_eq!(symmetry.compose(shift, generator), symmetry.shift_to(image));
                }
            }
            let classes = (0..world).map(RankId).filter(|rank| symmetry.is_representative(*rank)).count();
            prop_assert_eq!(classes as u32 * symmetry.order(), world);
        }
    }

    #[test]
    fn axes_that_overlap_are_refused() {
        let axis = |stride, extent| Axis { stride, extent, relabeling: Relabeling::Rotation };
        assert!(Symmetry::new(vec![axis(1, 4), axis(2, 4)], 16).is_err());
        assert!(Symmetry::new(vec![axis(1, 3)], 16).is_err());
        assert!(Symmetry::new(vec![Axis { relabeling: Relabeling::Flip, ..axis(1, 6) }], 12).is_err());
        assert!(Symmetry::new(vec![Axis { relabeling: Relabeling::Blocks(4), ..axis(1, 6) }], 12).is_err());
        assert!(Symmetry::new(vec![axis(1, 4), axis(8, 2)], 16).is_ok());
    }
}
