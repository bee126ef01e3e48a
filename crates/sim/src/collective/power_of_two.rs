//! Owns the core of a group: as many members as the largest power of two, each standing for itself or for two ranks.
//!
//! Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19(1), 2005: of the
//! first 2e ranks, where e is the excess over the power of two, each even one hands its part to the next odd one and waits for the end.

/// How a group is folded into a power of two.
#[derive(Clone, Copy)]
pub(super) struct Core {
    size: u32,
    excess: u32,
}

/// What a rank does while the core works.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Belongs to the core at this place, and stands for the rank before it too if `partner` is given.
    Member { place: u32, partner: Option<u32> },
    /// Is represented by this rank.
    Represented { by: u32 },
}

impl Core {
    pub(super) fn of(group: u32) -> Core {
        let size = 1 << group.ilog2();
        Core { size, excess: group - size }
    }

    /// Members of the core, a power of two.
    pub(super) fn size(self) -> u32 {
        self.size
    }

    pub(super) fn role(self, rank: u32) -> Role {
        if rank >= 2 * self.excess {
            Role::Member { place: rank - self.excess, partner: None }
        } else if rank % 2 == 1 {
            Role::Member { place: rank / 2, partner: Some(rank - 1) }
        } else {
            Role::Represented { by: rank + 1 }
        }
    }

    /// The rank at `place`.
    pub(super) fn rank(self, place: u32) -> u32 {
        if place < self.excess { 2 * place + 1 } else { place + self.excess }
    }

    /// The first rank that `place` stands for. The ranks from here up to the first of another place are all those between the two.
    pub(super) fn first_rank(self, place: u32) -> u32 {
        if place < self.excess { 2 * place } else { place + self.excess }
    }

    /// Distances 1, 2, 4, ... below the size of the core.
    pub(super) fn distances(self) -> impl DoubleEndedIterator<Item = u32> + Send {
        (0..self.size.ilog2()).map(|bit| 1 << bit)
    }
}
