//! Owns the list of algorithms, by name, and the backends' choices among them. [`AlgorithmTable`] is the type of a
//! choice.

use super::binomial::Binomial;
use super::bruck::Bruck;
use super::chain::Chain;
use super::dissemination::Dissemination;
use super::double_tree::DoubleTree;
use super::gloo_binomial::GlooBinomial;
use super::gloo_ring::GlooRing;
use super::halving_doubling::HalvingDoubling;
use super::hierarchical::Hierarchical;
use super::linear::Linear;
use super::nccl::{Forced, Nccl};
use super::open_mpi::OpenMpi;
use super::pairwise::Pairwise;
use super::recursive_doubling::RecursiveDoubling;
use super::ring::Ring;
use super::scatter_allgather::ScatterAllgather;
pub use super::table::{AlgorithmTable, ChoiceError, Rule};
use super::{Algorithm, Surroundings};
use crate::program::CollectiveKind::{
    self, AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
};
use crate::program::NcclSettings;
use crate::time::Rate;
use std::sync::Arc;

/// Surroundings until an algorithm is adapted to its cluster: eight GPUs with third-generation NVLink, and one NIC of
/// 200 Gbit/s for each GPU.
const ONE_SERVER: Surroundings = Surroundings {
    per_server: 8,
    inside: Rate::of_bytes_per_second(240e9),
    generation: None,
    between: Rate::of_bytes_per_second(25e9),
    cards: 8,
    nvls: true,
    max_channels: 32,
    pcie_peers: false,
    shares_link: false,
    host: Rate::of_bytes_per_second(25.6e9),
    settings: NcclSettings {
        algorithms: [NcclSettings::ANY; 5],
        protocols: [NcclSettings::ANY; 5],
        channels: [1, u32::MAX],
        peer_access: true,
    },
};

/// All algorithms, by name.
fn algorithms() -> Vec<Arc<dyn Algorithm>> {
    let forced = Forced::all(ONE_SERVER).map(|forced| -> Arc<dyn Algorithm> { Arc::new(forced) });
    let others: [Arc<dyn Algorithm>; 16] = [
        Arc::new(Binomial),
        Arc::new(Bruck),
        Arc::new(Chain::default()),
        Arc::new(Dissemination),
        Arc::new(DoubleTree::default()),
        Arc::new(GlooBinomial),
        Arc::new(GlooRing),
        Arc::new(HalvingDoubling),
        Arc::new(Hierarchical::default()),
        Arc::new(Linear),
        Arc::new(Nccl::new(ONE_SERVER)),
        Arc::new(OpenMpi),
        Arc::new(Pairwise),
        Arc::new(RecursiveDoubling),
        Arc::new(Ring),
        Arc::new(ScatterAllgather),
    ];
    let mut all: Vec<Arc<dyn Algorithm>> = others.into_iter().chain(forced).collect();
    all.sort_by_key(|algorithm| algorithm.name());
    all
}

/// The algorithms that can carry out `kind`, by name.
pub fn algorithms_for(kind: CollectiveKind) -> Vec<Arc<dyn Algorithm>> {
    algorithms().into_iter().filter(|algorithm| algorithm.kinds().contains(&kind)).collect()
}

/// The algorithm called `name`, if it can carry out `kind`.
///
/// # Errors
/// [`ChoiceError::Unknown`], with the known names.
pub fn algorithm_by_name(kind: CollectiveKind, name: &str) -> Result<Arc<dyn Algorithm>, ChoiceError> {
    let mut candidates = algorithms_for(kind).into_iter();
    let found = candidates.find(|algorithm| algorithm.name() == name);
    found.ok_or_else(|| ChoiceError::Unknown { kind, name: name.to_owned(), known: known(kind) })
}

fn known(kind: CollectiveKind) -> String {
    algorithms_for(kind).iter().map(|algorithm| algorithm.name()).collect::<Vec<_>>().join(", ")
}

impl AlgorithmTable {
    /// The choices of the `ideal` backend, the same at every size.
    pub fn ideal() -> AlgorithmTable {
        AlgorithmTable::of(&[
            (AllReduce, "ring"),
            (Reduce, "binomial"),
            (Broadcast, "binomial"),
            (AllGather, "ring"),
            (ReduceScatter, "ring"),
            (AllToAll, "linear"),
            (Gather, "linear"),
            (Scatter, "linear"),
            (Barrier, "dissemination"),
        ])
    }

    /// The choices of the `gloo` backend, the same at every size: those of `ProcessGroupGloo` in torch 2.15.
    pub fn gloo() -> AlgorithmTable {
        AlgorithmTable::of(&[
            (AllReduce, "gloo_ring"),
            (Reduce, "gloo_ring"),
            (Broadcast, "gloo_binomial"),
            (AllGather, "gloo_ring"),
            (ReduceScatter, "gloo_ring"),
            (AllToAll, "linear"),
            (Gather, "linear"),
            (Scatter, "linear"),
            (Barrier, "dissemination"),
        ])
    }

    fn of(choices: &[(CollectiveKind, &str)]) -> AlgorithmTable {
        let mut table = AlgorithmTable::default();
        for &(kind, name) in choices {
            table.force(kind, algorithm_by_name(kind, name).unwrap_or_else(|error| panic!("{error}")));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RankId;
    use crate::program::{Collective, DType, Shape};
    use crate::time::Bytes;

    fn named(kind: CollectiveKind, name: &str) -> Arc<dyn Algorithm> {
        algorithm_by_name(kind, name).unwrap()
    }

    fn two_rules(up_to: [Option<u64>; 2]) -> Vec<Rule> {
        let algorithms = [named(AllReduce, "recursive_doubling"), named(AllReduce, "ring")];
        let rules = up_to.into_iter().zip(algorithms);
        rules.map(|(bytes, algorithm)| Rule { up_to: bytes.map(Bytes), algorithm }).collect()
    }

    #[test]
    fn a_bound_is_inclusive() {
        let mut table = AlgorithmTable::ideal();
        table.set_rules(AllReduce, two_rules([Some(65_536), None])).unwrap();
        assert_eq!(table.choose(AllReduce, Bytes(65_536)).name(), "recursive_doubling");
        assert_eq!(table.choose(AllReduce, Bytes(65_537)).name(), "ring");
    }

    #[test]
    fn rules_that_leave_a_size_out_are_refused() {
        let mut table = AlgorithmTable::ideal();
        for bad in [[Some(8), Some(16)], [None, Some(8)], [None, None]] {
            assert_eq!(table.set_rules(AllReduce, two_rules(bad)), Err(ChoiceError::Bounds { kind: AllReduce }));
        }
        assert_eq!(table.set_rules(AllReduce, Vec::new()), Err(ChoiceError::Bounds { kind: AllReduce }));
        assert_eq!(table.rules(AllReduce).len(), 1);
    }

    #[test]
    fn a_group_across_servers_is_told_where_it_is() {
        use crate::program::ReduceOp;
        let hopper = Rate::new(360e9).unwrap();
        let servers = Surroundings { inside: hopper, ..ONE_SERVER };
        let mut table = AlgorithmTable::ideal();
        assert!(table.for_group(&[RankId(0), RankId(8)], None).is_none(), "nothing here depends on it");
        table.force(AllReduce, named(AllReduce, "nccl"));
        table.adapt(servers);
        let (shape, reduce) = (Shape::Even(1 << 28), Some(ReduceOp::Sum));
        let call = Collective { kind: AllReduce, dtype: DType::Float32, reduce, root: None, shape, kernel: None };
        // Eight consecutive ranks are one server, whose NVLink switches reduce; a group of one rank per server has only
        // traffic between servers.
        let ranks = |stride: u32| (0..8).map(|rank| RankId(5 * 8 + stride * rank)).collect::<Vec<_>>();
        assert!(table.for_group(&ranks(1), None).is_none());
        assert_eq!(table.algorithm(&call, 8).name(), "nvls");
        let strided = table.for_group(&ranks(8), None).unwrap();
        let mut alone = table.clone();
        alone.adapt(Surroundings { per_server: 1, cards: 1, ..servers });
        let of = |table: &AlgorithmTable| (table.algorithm(&call, 8).name(), table.algorithm(&call, 8).wire());
        assert_eq!(of(&strided), of(&alone));
        assert_ne!(of(&strided), of(&table));
    }

    #[test]
    fn a_group_has_the_settings_of_its_program() {
        use crate::program::ReduceOp;
        let mut table = AlgorithmTable::ideal();
        let rings = NcclSettings { algorithms: [NcclSettings::RING; 5], ..NcclSettings::default() };
        let ranks: Vec<RankId> = (0..8).map(RankId).collect();
        assert!(table.for_group(&ranks, Some(&rings)).is_none(), "another library's algorithms do not read them");
        table.force(AllReduce, named(AllReduce, "nccl"));
        table.adapt(Surroundings { inside: Rate::new(360e9).unwrap(), ..ONE_SERVER });
        let (shape, reduce) = (Shape::Even(1 << 28), Some(ReduceOp::Sum));
        let call = Collective { kind: AllReduce, dtype: DType::Float32, reduce, root: None, shape, kernel: None };
        assert_eq!(table.algorithm(&call, 8).name(), "nvls");
        assert_eq!(table.for_group(&ranks, Some(&rings)).unwrap().algorithm(&call, 8).name(), "ring_simple");
    }

    #[test]
    fn an_unknown_name_gets_those_that_exist() {
        let error = algorithm_by_name(ReduceScatter, "binomial").err().unwrap();
        assert_eq!(
            error.to_string(),
            "unknown algorithm \"binomial\" for reduce_scatter\nhint: the algorithms are: gloo_ring, halving_doubling, hierarchical, nccl, nvls, open_mpi, ring, ring_ll, ring_ll128, ring_simple"
        );
    }

    #[test]
    fn names_are_unique_and_sorted() {
        let names: Vec<_> = algorithms().iter().map(|algorithm| algorithm.name()).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    }

    #[test]
    fn both_backends_have_an_algorithm_for_every_kind() {
        for table in [AlgorithmTable::ideal(), AlgorithmTable::gloo()] {
            for kind in CollectiveKind::ALL {
                assert!(table.choose(kind, Bytes(0)).kinds().contains(&kind));
            }
        }
    }

    #[test]
    fn a_forced_algorithm_is_used_at_every_size() {
        let mut table = AlgorithmTable::ideal();
        table.set_rules(AllReduce, two_rules([Some(8), None])).unwrap();
        table.force(AllReduce, named(AllReduce, "halving_doubling"));
        assert_eq!(table.choose(AllReduce, Bytes(1)).name(), "halving_doubling");
        assert_eq!(table.choose(AllReduce, Bytes(1 << 40)).name(), "halving_doubling");
    }

    #[test]
    fn sizes_of_all_to_alls_are_all_that_a_member_sends() {
        let mut table = AlgorithmTable::ideal();
        let algorithm = |name| algorithm_by_name(AllToAll, name).unwrap();
        let rules = vec![
            Rule { up_to: Some(Bytes(64)), algorithm: algorithm("linear") },
            Rule { up_to: None, algorithm: algorithm("pairwise") },
        ];
        table.set_rules(AllToAll, rules).unwrap();
        // Blocks of 8 elements of 4 bytes: 2 members send 64 bytes each, 3 members 96, with equal and with explicit
        // block sizes.
        for (members, expected) in [(2, "linear"), (3, "pairwise")] {
            let blocks = vec![8; members as usize];
            for shape in [Shape::Even(8), Shape::Pairs { send: blocks.clone(), recv: blocks }] {
                let call =
                    Collective { kind: AllToAll, dtype: DType::Float32, reduce: None, root: None, shape, kernel: None };
                assert_eq!(table.algorithm(&call, members).name(), expected);
            }
        }
    }
}
