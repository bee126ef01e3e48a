//! Owns the checks of a communication call before it is sent: the ranks that it names are in the group, and its tensors
//! have the sizes that it states. Further checks of a library, and their messages, belong to the process group; the
//! engine checks that members agree.

use super::ClientError;
use std::collections::BTreeSet;
use uniference_protocol::memory::Region;
use uniference_sim::ids::GroupRank;
use uniference_sim::program::{Collective, CollectiveKind, Shape};

/// This rank's membership in a process group.
#[derive(Clone, Copy)]
pub(super) struct Membership {
    /// Number of members.
    pub(super) size: usize,
    /// This rank's index among the members.
    pub(super) me: usize,
    /// Whether this rank has closed its connections of the group.
    pub(super) closed: bool,
}

/// Numbers of elements that a member sends and receives; `None`: it does not, or its tensor is not checked.
type Elements = (Option<u64>, Option<u64>);

impl Membership {
    /// The membership of `rank` in the group of `ranks`, in this order.
    ///
    /// # Errors
    /// If `rank` is not a member, or `ranks` are not distinct ranks of a world of `world_size`.
    pub(super) fn of(rank: u32, ranks: &[u32], world_size: u32) -> Result<Membership, ClientError> {
        let Some(me) = ranks.iter().position(|member| *member == rank) else {
            return Err(wrong(format!("rank {rank} is not a member of the group {ranks:?}")));
        };
        let different = ranks.iter().collect::<BTreeSet<_>>().len() == ranks.len();
        if !different || ranks.iter().any(|rank| *rank >= world_size) {
            return Err(wrong(format!("the ranks {ranks:?} are not a valid group for a world size of {world_size}")));
        }
        Ok(Membership { size: ranks.len(), me, closed: false })
    }

    /// # Errors
    /// If the group has no such rank.
    pub(super) fn check_peer(self, peer: GroupRank) -> Result<(), ClientError> {
        if peer.index() < self.size {
            return Ok(());
        }
        Err(wrong(format!("rank {peer} is out of range for a group of size {}", self.size)))
    }

    /// # Errors
    /// If the root or the reduction is missing, the root is not in the group, the number of blocks differs from the
    /// group's size, sizes overflow, or tensors do not have the size of their blocks.
    pub(super) fn check(
        self,
        call: &Collective,
        input: Option<&[Region]>,
        output: Option<&[Region]>,
    ) -> Result<(), ClientError> {
        use CollectiveKind::{AllReduce, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
        let kind = call.kind;
        if matches!(kind, Reduce | Broadcast | Gather | Scatter) {
            self.check_peer(call.root.ok_or_else(|| wrong(format!("{kind} requires a root")))?)?;
        }
        if matches!(kind, AllReduce | Reduce | ReduceScatter) && call.reduce.is_none() {
            return Err(wrong(format!("{kind} requires a reduce operation")));
        }
        let counts = match &call.shape {
            shape if !kind.takes(shape) => return Err(wrong(format!("{kind} does not support these split sizes"))),
            Shape::Even(_) => vec![],
            Shape::Blocks(blocks) => vec![blocks.len()],
            Shape::Pairs { send, recv } => vec![send.len(), recv.len()],
        };
        if let Some(count) = counts.into_iter().find(|count| *count != self.size) {
            return Err(wrong(format!("{kind} got {count} blocks in a group of size {}", self.size)));
        }
        let (sent, received) = self.elements(call).ok_or_else(|| wrong(format!("{kind} has too many elements")))?;
        let fits = |memory: Option<&[Region]>, elements: Option<u64>, role: &str| {
            let (Some(memory), Some(elements)) = (memory, elements) else { return Ok(()) };
            let given = memory.iter().map(Region::bytes).sum::<u64>();
            let needed = elements.checked_mul(call.dtype.size());
            if needed == Some(given) {
                return Ok(());
            }
            let dtype = call.dtype.name();
            Err(wrong(format!("{kind} of {elements} elements of {dtype} has {given} bytes of {role}")))
        };
        fits(input, sent, "input")?;
        fits(output, received, "output")
    }

    /// `None`: the number of elements overflows.
    fn elements(self, call: &Collective) -> Option<Elements> {
        use CollectiveKind::*;
        let is_root = call.root.is_some_and(|root| root.index() == self.me);
        let sum = |blocks: &[u64]| blocks.iter().try_fold(0_u64, |sum, block| sum.checked_add(*block));
        let (block, all) = match &call.shape {
            Shape::Even(count) => (*count, count.checked_mul(self.size as u64)?),
            Shape::Blocks(blocks) => (blocks[self.me], sum(blocks)?),
            Shape::Pairs { send, recv } => return Some((Some(sum(send)?), Some(sum(recv)?))),
        };
        all.checked_mul(call.dtype.size())?;
        Some(match call.kind {
            Barrier => (None, None),
            AllReduce => (Some(block), Some(block)),
            Reduce => (Some(block), is_root.then_some(block)),
            Broadcast => (is_root.then_some(block), (!is_root).then_some(block)),
            AllGather => (Some(block), Some(all)),
            Gather => (Some(block), is_root.then_some(all)),
            ReduceScatter => (Some(all), Some(block)),
            Scatter => (is_root.then_some(all), Some(block)),
            AllToAll => (Some(all), Some(all)),
        })
    }
}

pub(super) fn wrong(what: String) -> ClientError {
    ClientError::Arguments { what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_sim::program::{DType, ReduceOp};

    const ME: Membership = Membership { size: 3, me: 1, closed: false };

    fn call(kind: CollectiveKind, shape: Shape) -> Collective {
        Collective {
            kind,
            dtype: DType::Float32,
            reduce: Some(ReduceOp::Sum),
            root: Some(GroupRank(1)),
            shape,
            kernel: None,
        }
    }

    fn bytes(count: usize) -> Vec<Region> {
        // SAFETY: the region is neither read nor written.
        #[allow(unsafe_code)]
        let region = unsafe { Region::new(8, count) };
        vec![region]
    }

    /// Sizes in bytes of each kind's tensors, with four bytes per element; all other sizes are refused.
    #[test]
    fn tensors_are_as_large_as_their_blocks() {
        use CollectiveKind::*;
        let blocks = || Shape::Blocks(vec![1, 2, 3]);
        let pairs = || Shape::Pairs { send: vec![1, 1, 1], recv: vec![0, 4, 1] };
        for (kind, shape, sent, received) in [
            (AllReduce, Shape::Even(5), 20, 20),
            (Reduce, Shape::Even(5), 20, 20),
            (AllGather, Shape::Even(5), 20, 60),
            (AllGather, blocks(), 8, 24),
            (Gather, blocks(), 8, 24),
            (ReduceScatter, blocks(), 24, 8),
            (Scatter, Shape::Even(2), 24, 8),
            (AllToAll, Shape::Even(2), 24, 24),
            (AllToAll, pairs(), 12, 20),
            (AllReduce, Shape::Even(0), 0, 0),
        ] {
            let call = call(kind, shape);
            let check = |sent, received| ME.check(&call, Some(&bytes(sent)), Some(&bytes(received)));
            check(sent, received).unwrap_or_else(|error| panic!("{kind}: {error}"));
            assert!(check(sent + 4, received).is_err() && check(sent, received + 1).is_err(), "{kind}");
        }
    }

    #[test]
    fn what_no_group_can_carry_out_is_an_error() {
        use CollectiveKind::*;
        let even = |kind| call(kind, Shape::Even(2));
        let wrong: Vec<Collective> = vec![
            Collective { root: None, ..even(Broadcast) },
            Collective { root: Some(GroupRank(3)), ..even(Gather) },
            Collective { reduce: None, ..even(AllReduce) },
            call(ReduceScatter, Shape::Blocks(vec![])),
            call(ReduceScatter, Shape::Blocks(vec![1, 2])),
            call(AllToAll, Shape::Pairs { send: vec![1, 1, 1], recv: vec![1; 4] }),
            call(AllReduce, Shape::Blocks(vec![1, 2, 3])),
            call(AllGather, Shape::Even(u64::MAX / 3)),
            call(AllGather, Shape::Blocks(vec![u64::MAX, 1, 1])),
        ];
        for call in wrong {
            assert!(ME.check(&call, None, None).is_err(), "{call:?}");
        }
        assert!(ME.check_peer(GroupRank(3)).is_err() && ME.check_peer(GroupRank(2)).is_ok());
    }
}
