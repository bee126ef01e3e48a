//! Owns the collective algorithms: the conversion of a collective into one member's sends and receives, lazily, step by
//! step.
//!
//! There is one file per algorithm; [`choose`] picks one, and [`fold`] derives the order in which it combines elements.
//! The engine decides when a step runs; the transport and the network determine its cost.

mod binomial;
mod bruck;
mod chain;
pub mod choose;
mod dataflow;
mod dissemination;
mod double_tree;
pub mod fold;
pub mod given;
mod gloo_binomial;
mod gloo_ring;
mod halving_doubling;
pub mod hierarchical;
mod layout;
mod linear;
mod nccl;
mod nvls;
mod nvls_tree;
mod open_mpi;
mod pairwise;
mod peers;
mod power_of_two;
mod rails;
mod recursive_doubling;
mod ring;
mod rounds;
mod scatter_allgather;
mod table;

#[cfg(test)]
mod tests;

use crate::ids::{GroupRank, RankId};
use crate::network::GridDimension;
use crate::program::{Collective, CollectiveKind, NcclSettings, Shape};
use crate::symmetry::Relabeling;
use crate::time::{Bytes, Rate, SimDuration};
use std::sync::Arc;

/// Algorithm for some kinds of collective.
pub trait Algorithm: Send + Sync {
    /// The name in cluster files and options: `ring`.
    fn name(&self) -> &'static str;

    /// The kinds of collective it can carry out.
    fn kinds(&self) -> &'static [CollectiveKind];

    /// Steps of member `me` of a group of `size`, in order, computed without the plan of the whole group.
    ///
    /// The steps of all members fit together: the n-th send from a to b is received by the n-th receive of b from a,
    /// with the same number of elements. `size` is at least 2 and every block may be empty; an empty message is still a
    /// message.
    ///
    /// # Panics
    /// If `call.kind` is not one of [`Algorithm::kinds`], or lacks its root.
    fn steps(&self, call: &Collective, size: u32, me: GroupRank) -> Steps;

    /// Further lanes of steps that run concurrently with those of [`Algorithm::steps`]; none for most algorithms. The
    /// lane of `steps` is number 0, the others are numbered from 1. All messages between two members belong to one
    /// lane.
    fn other_lanes(&self, _call: &Collective, _size: u32, _me: GroupRank) -> Vec<Steps> {
        Vec::new()
    }

    /// The tensor's pieces in the order in which steps count their elements, each element in one piece; `None`: the
    /// tensor's own order.
    fn order(&self, _call: &Collective, _size: u32) -> Option<Vec<Span>> {
        None
    }

    /// The same algorithm for the group of `ranks` in a world that is laid out on `grid`, if that makes a difference.
    fn on_grid(&self, _grid: &Grid, _ranks: &[RankId]) -> Option<Arc<dyn Algorithm>> {
        None
    }

    /// The algorithm that carries out this collective, if `self` is a choice among algorithms.
    fn decide(&self, _call: &Collective, _size: u32) -> Option<Arc<dyn Algorithm>> {
        None
    }

    /// The same algorithm for a cluster like this, if that makes a difference.
    fn adapted(&self, _surroundings: Surroundings) -> Option<Arc<dyn Algorithm>> {
        None
    }

    /// Effect of the library's protocol on each message of the algorithm; `None`: no effect.
    fn wire(&self) -> Option<Wire> {
        None
    }

    /// Whether members combine their own elements, as the first operand, with the received ones. The order matters for
    /// Gloo's minimum and maximum.
    fn keeps_first(&self) -> bool {
        false
    }

    /// Whether members combine elements in the order of the group's ranks, whatever the order of their steps.
    fn combines_in_order(&self) -> bool {
        false
    }

    /// Whether the algorithm is a kernel of the program, for which no library is called.
    fn is_of_program(&self) -> bool {
        false
    }

    /// The only communication library that has the algorithm, if there is just one.
    fn library(&self) -> Option<&'static str> {
        None
    }

    /// Relabelings of members under which the steps stay the same except for their elements' places: for each
    /// relabeling `p`, the steps of `p(m)` with `p(n)` are those of `m` with `n`, one by one and with as many elements.
    /// `None`: no relabeling is known.
    fn symmetry(&self, _call: &Collective, _size: u32) -> Option<Relabeling> {
        None
    }
}

/// Whether all members have blocks of one size.
fn even_blocks(call: &Collective, size: u32) -> bool {
    match (call.kind, &call.shape) {
        (CollectiveKind::AllReduce, Shape::Even(count)) => count.is_multiple_of(u64::from(size)),
        (CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll, Shape::Even(_)) => true,
        _ => false,
    }
}

/// Layout of ranks on a network: along the first dimension first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Dimensions of the network; the product of their sizes is the number of ranks.
    pub dimensions: Vec<GridDimension>,
}

/// Generation of a GPU, for which NCCL has tables of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuGeneration {
    /// Compute capability 8, and all GPUs without tables of their own.
    Ampere,
    /// Compute capability 9.
    Hopper,
    /// Compute capability 10 and later.
    Blackwell,
}

/// Properties of the cluster that a library's choice may depend on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Surroundings {
    /// Consecutive ranks that share a server; at least 1.
    pub per_server: u32,
    /// Rate at which a rank can send to another rank of its server.
    pub inside: Rate,
    /// Whether the ranks of a server share one link of the rate `inside`; otherwise each rank has links of its own.
    pub shares_link: bool,
    /// Generation of the GPUs; `None`: unknown, and derived from `inside`.
    pub generation: Option<GpuGeneration>,
    /// Rate at which a rank can send to another server.
    pub between: Rate,
    /// NICs of a server, each with the rate `between`; at least 1.
    pub cards: u32,
    /// Whether NCCL may let NVLink's switches combine elements, if they can.
    pub nvls: bool,
    /// Largest number of channels that NCCL may use; at least 1.
    pub max_channels: u32,
    /// Whether GPUs that are connected by PCI Express access each other's memory directly.
    pub pcie_peers: bool,
    /// Rate between a GPU and its host's memory.
    pub host: Rate,
    /// NCCL settings that the program makes for the communicator.
    pub settings: NcclSettings,
}

/// Effect of a protocol on messages, by where the receiver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wire {
    /// Messages to a rank in the same server.
    pub inside: Hop,
    /// Messages to another server.
    pub between: Hop,
}

/// Effect of a protocol on a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// Bytes of payload that a link carries in the time of 1,000 bytes; above zero.
    pub efficiency: u32,
    /// Shortest time from the departure of the last byte until the receiver can go on.
    pub latency: SimDuration,
}

impl Hop {
    /// Bytes for which `bytes` of payload occupy links.
    pub(crate) fn stretched(&self, bytes: Bytes) -> Bytes {
        let stretched = (u128::from(bytes.0) * 1000).div_ceil(self.efficiency.into());
        Bytes(stretched.try_into().unwrap_or(u64::MAX))
    }
}

/// One member's steps of one collective.
pub type Steps = Box<dyn Iterator<Item = Step> + Send>;

/// One send or receive of one member. Steps of a lane start in order; those that may start, start at the same instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The send or receive.
    pub action: Action,
    /// The step may start once the first `after` steps of its lane are complete; at most the step's own index in the
    /// lane.
    pub after: u64,
    /// The step also waits until these steps of another lane are complete.
    pub beside: Beside,
}

/// The first steps of another lane of the same member ([`Algorithm::other_lanes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beside {
    /// The other lane.
    pub lane: u32,
    /// Number of the lane's first steps that must be complete; 0: the step does not wait for the lane.
    pub count: u32,
}

impl Beside {
    /// Waits for no steps of another lane.
    pub const NOTHING: Beside = Beside { lane: 0, count: 0 };
}

impl Step {
    /// A step that waits for its own lane only.
    pub const fn new(action: Action, after: u64) -> Step {
        Step { action, after, beside: Beside::NOTHING }
    }
}

/// All lanes of one member.
fn lanes(algorithm: &dyn Algorithm, call: &Collective, size: u32, me: GroupRank) -> Vec<Steps> {
    std::iter::once(algorithm.steps(call, size, me)).chain(algorithm.other_lanes(call, size, me)).collect()
}

/// Action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends the values that elements have when the step starts.
    Send {
        /// The receiver.
        to: GroupRank,
        /// The elements that are sent.
        span: Span,
    },
    /// Receives elements into the same place.
    Recv {
        /// The sender.
        from: GroupRank,
        /// The elements that are received.
        span: Span,
        /// Whether received elements are combined with the present ones rather than replacing them. Several receives
        /// combine at one place in the order of their steps, whichever arrives first, so that values never depend on
        /// time.
        combine: bool,
    },
}

/// A range of elements. In collectives that reduce or broadcast, elements are counted in the tensor (reduce-scatter:
/// all blocks one after the other). In the others, they are counted over all blocks one after the other, in the order
/// of the ranks that they come from or go to (all-to-all: in the sent data for a send, in the received data for a
/// receive). All sends of a barrier are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The first element.
    pub start: u64,
    /// Number of elements.
    pub len: u64,
}

impl Span {
    /// A span without elements.
    pub const EMPTY: Span = Span { start: 0, len: 0 };

    /// The element after the last.
    pub const fn end(self) -> u64 {
        self.start + self.len
    }
}

/// The root of a collective that has one.
fn root_of(call: &Collective) -> GroupRank {
    call.root.unwrap_or_else(|| panic!("{} has no root", call.kind))
}
