//! Owns Open MPI's choice: the algorithm of its `tuned` component by number of ranks and bytes.
//!
//! Source: open-mpi/ompi, `ompi/mca/coll/tuned/coll_tuned_decision_fixed.c` of 4.1 and 5.0 ("averaged" switch points of
//! several clusters), for operations that commute. Algorithms that this crate does not have are replaced by the nearest
//! one: binary, k-nomial and split-binary trees by `binomial`, a pipeline by `chain`, a segmented ring and the
//! neighbour exchange by `ring`, a butterfly by `halving_doubling`, the non-overlapping all-reduce by
//! `recursive_doubling`, an all-to-all by Bruck by `linear`, and gathers and scatters by trees by `linear` too. Switch
//! points between two equal replacements are left out.

use super::binomial::Binomial;
use super::bruck::Bruck;
use super::chain::Chain;
use super::dissemination::Dissemination;
use super::halving_doubling::HalvingDoubling;
use super::linear::Linear;
use super::pairwise::Pairwise;
use super::recursive_doubling::RecursiveDoubling;
use super::ring::Ring;
use super::scatter_allgather::ScatterAllgather;
use super::{Algorithm, GroupRank, Steps};
use crate::program::{Collective, CollectiveKind, Shape};
use std::sync::Arc;

/// See the module.
pub(super) struct OpenMpi;

#[derive(Clone, Copy)]
enum Choice {
    Binomial,
    Bruck,
    Chain,
    HalvingDoubling,
    Linear,
    Pairwise,
    RecursiveDoubling,
    Ring,
    ScatterAllgather,
}

/// Algorithms by upper bounds (exclusive) of the number of ranks, then of the number of bytes.
type Table = &'static [(u32, &'static [(u64, Choice)])];

const ANY: u64 = u64::MAX;
const MORE: u32 = u32::MAX;

const ALL_REDUCE: Table = &[
    (
        4,
        &[
            (8, Choice::Ring),
            (4_096, Choice::RecursiveDoubling),
            (8_192, Choice::Ring),
            (16_384, Choice::RecursiveDoubling),
            (262_144, Choice::Ring),
            (ANY, Choice::HalvingDoubling),
        ],
    ),
    (8, &[(16, Choice::Ring), (8_192, Choice::RecursiveDoubling), (ANY, Choice::HalvingDoubling)]),
    (16, &[(8_192, Choice::RecursiveDoubling), (ANY, Choice::HalvingDoubling)]),
    (32, &[(64, Choice::Ring), (4_096, Choice::RecursiveDoubling), (ANY, Choice::HalvingDoubling)]),
    (64, &[(128, Choice::Ring), (ANY, Choice::HalvingDoubling)]),
    (256, &[(262_144, Choice::RecursiveDoubling), (ANY, Choice::HalvingDoubling)]),
    (512, &[(4_096, Choice::RecursiveDoubling), (ANY, Choice::HalvingDoubling)]),
    (2_048, &[(16_384, Choice::RecursiveDoubling), (ANY, Choice::HalvingDoubling)]),
    (
        4_096,
        &[
            (2_048, Choice::RecursiveDoubling),
            (4_096, Choice::Ring),
            (16_384, Choice::RecursiveDoubling),
            (ANY, Choice::HalvingDoubling),
        ],
    ),
    (
        MORE,
        &[
            (2_048, Choice::RecursiveDoubling),
            (16_384, Choice::Ring),
            (32_768, Choice::RecursiveDoubling),
            (ANY, Choice::HalvingDoubling),
        ],
    ),
];

const BROADCAST: Table = &[
    (
        4,
        &[
            (32, Choice::Chain),
            (256, Choice::Binomial),
            (512, Choice::Chain),
            (1_024, Choice::Binomial),
            (32_768, Choice::Linear),
            (131_072, Choice::Binomial),
            (262_144, Choice::Chain),
            (524_288, Choice::Linear),
            (ANY, Choice::Binomial),
        ],
    ),
    (8, &[(8_192, Choice::Binomial), (1_048_576, Choice::Linear), (ANY, Choice::Chain)]),
    (16, &[(32_768, Choice::Binomial), (ANY, Choice::Linear)]),
    (32, &[(1_048_576, Choice::Binomial), (ANY, Choice::ScatterAllgather)]),
    (128, &[(ANY, Choice::Binomial)]),
    (256, &[(16_384, Choice::Binomial), (32_768, Choice::Linear), (ANY, Choice::Binomial)]),
    (1_024, &[(ANY, Choice::Binomial)]),
    (2_048, &[(524_288, Choice::Binomial), (ANY, Choice::ScatterAllgather)]),
    (MORE, &[(262_144, Choice::Binomial), (ANY, Choice::ScatterAllgather)]),
];

const REDUCE: Table = &[
    (4, &[(16, Choice::Binomial), (32, Choice::Chain), (262_144, Choice::Linear), (ANY, Choice::Chain)]),
    (
        8,
        &[
            (4_096, Choice::Binomial),
            (65_536, Choice::Chain),
            (262_144, Choice::Binomial),
            (524_288, Choice::Linear),
            (1_048_576, Choice::Binomial),
            (ANY, Choice::Linear),
        ],
    ),
    (MORE, &[(ANY, Choice::Binomial)]),
];

const ALL_GATHER: Table = &[
    (32, &[(ANY, Choice::RecursiveDoubling)]),
    (64, &[(1_024, Choice::RecursiveDoubling), (ANY, Choice::Ring)]),
    (256, &[(512, Choice::RecursiveDoubling), (ANY, Choice::Ring)]),
    (
        512,
        &[
            (32, Choice::RecursiveDoubling),
            (128, Choice::Bruck),
            (1_024, Choice::RecursiveDoubling),
            (ANY, Choice::Ring),
        ],
    ),
    (
        1_024,
        &[
            (64, Choice::RecursiveDoubling),
            (256, Choice::Bruck),
            (2_048, Choice::RecursiveDoubling),
            (ANY, Choice::Ring),
        ],
    ),
    (MORE, &[(512, Choice::Bruck), (4_096, Choice::RecursiveDoubling), (ANY, Choice::Ring)]),
];

const REDUCE_SCATTER: Table = &[
    (4, &[(65_536, Choice::Ring), (131_072, Choice::HalvingDoubling), (ANY, Choice::Ring)]),
    (32, &[(262_144, Choice::HalvingDoubling), (ANY, Choice::Ring)]),
    (64, &[(524_288, Choice::HalvingDoubling), (ANY, Choice::Ring)]),
    (MORE, &[(ANY, Choice::HalvingDoubling)]),
];

const ALL_TO_ALL: Table = &[
    (3, &[(32_768, Choice::Pairwise), (262_144, Choice::Linear), (ANY, Choice::Pairwise)]),
    (8, &[(524_288, Choice::Linear), (1_048_576, Choice::Pairwise), (ANY, Choice::Linear)]),
    (64, &[(ANY, Choice::Linear)]),
    (256, &[(262_144, Choice::Linear), (ANY, Choice::Pairwise)]),
    (512, &[(32_768, Choice::Linear), (ANY, Choice::Pairwise)]),
    (1_024, &[(262_144, Choice::Linear), (ANY, Choice::Pairwise)]),
    (MORE, &[(ANY, Choice::Linear)]),
];

const LINEAR: Table = &[(MORE, &[(ANY, Choice::Linear)])];

impl Algorithm for OpenMpi {
    fn name(&self) -> &'static str {
        "open_mpi"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        &CollectiveKind::ALL
    }

    fn steps(&self, call: &Collective, size: u32, me: GroupRank) -> Steps {
        decide(call, size).steps(call, size, me)
    }

    fn decide(&self, call: &Collective, size: u32) -> Option<Arc<dyn Algorithm>> {
        Some(decide(call, size))
    }
}

fn decide(call: &Collective, size: u32) -> Arc<dyn Algorithm> {
    // The size is the whole tensor's; for gathers and all-to-alls a rank's block; for a reduce-scatter all blocks
    // together.
    let (table, bytes) = match call.kind {
        CollectiveKind::AllReduce => (ALL_REDUCE, call.bytes(size).0),
        CollectiveKind::Broadcast => (BROADCAST, call.bytes(size).0),
        CollectiveKind::Reduce => (REDUCE, call.bytes(size).0),
        CollectiveKind::AllGather => (ALL_GATHER, call.bytes(size).0),
        CollectiveKind::ReduceScatter => (REDUCE_SCATTER, call.bytes(size).0.saturating_mul(u64::from(size))),
        CollectiveKind::AllToAll => match call.shape {
            Shape::Even(_) => (ALL_TO_ALL, call.bytes(size).0 / u64::from(size)),
            _ => (ALL_TO_ALL, call.bytes(size).0),
        },
        CollectiveKind::Gather | CollectiveKind::Scatter => (LINEAR, 0),
        CollectiveKind::Barrier => return Arc::new(Dissemination),
    };
    let (_, rules) = table.iter().find(|(bound, _)| size < *bound).expect("tables end with any number of ranks");
    let (_, choice) = rules.iter().find(|(bound, _)| bytes < *bound).expect("tables end with any size");
    choice.algorithm()
}

impl Choice {
    fn algorithm(self) -> Arc<dyn Algorithm> {
        match self {
            Choice::Binomial => Arc::new(Binomial),
            Choice::Bruck => Arc::new(Bruck),
            Choice::Chain => Arc::new(Chain::default()),
            Choice::HalvingDoubling => Arc::new(HalvingDoubling),
            Choice::Linear => Arc::new(Linear),
            Choice::Pairwise => Arc::new(Pairwise),
            Choice::RecursiveDoubling => Arc::new(RecursiveDoubling),
            Choice::Ring => Arc::new(Ring),
            Choice::ScatterAllgather => Arc::new(ScatterAllgather),
        }
    }
}
