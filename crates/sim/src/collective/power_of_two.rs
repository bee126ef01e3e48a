//! Owns the core of a group: as many members as the largest power of two, each acting for itself or for two ranks.
//!
//! Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA
//! 19(1), 2005: among the first 2e ranks, where e is the excess over the power of two, each even one hands its part to
//! the next odd one and waits for the end.

/// Reduction of a group to a power of two.
#[derive(Clone, Copy)]
pub(super) struct Core {
    size: u32,
    excess: u32,
}

/// Role of a rank while the core works.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The rank is at this place in the core, and also acts for the previous rank if `partner` is given.
    Member { place: u32, partner: Option<u32> },
    /// The rank `by` acts for this rank.
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

    /// The first rank that `place` acts for. The ranks between the first ranks of two places belong to the places
    /// between them.
    pub(super) fn first_rank(self, place: u32) -> u32 {
        if place < self.excess { 2 * place } else { place + self.excess }
    }

    /// Distances 1, 2, 4, ... below the size of the core.
    pub(super) fn distances(self) -> impl DoubleEndedIterator<Item = u32> + Send {
        (0..self.size.ilog2()).map(|bit| 1 << bit)
    }
}
