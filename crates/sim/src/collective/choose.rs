//! Owns the choice: which algorithms exist, and which one carries out which kind of collective at which size.

use super::binomial::Binomial;
use super::bruck::Bruck;
use super::chain::Chain;
use super::dissemination::Dissemination;
use super::double_tree::DoubleTree;
use super::gloo_binomial::GlooBinomial;
use super::gloo_ring::GlooRing;
use super::halving_doubling::HalvingDoubling;
use super::hierarchical::{Grid, Hierarchical};
use super::linear::Linear;
use super::nccl::{Forced, Nccl};
use super::open_mpi::OpenMpi;
use super::pairwise::Pairwise;
use super::recursive_doubling::RecursiveDoubling;
use super::ring::Ring;
use super::scatter_allgather::ScatterAllgather;
use super::{Algorithm, Surroundings};
use crate::ids::RankId;
use crate::program::Collective;
use crate::program::CollectiveKind::{
    self, AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
};
use crate::time::{Bytes, Rate};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// For each kind the algorithms by size: the first entry whose bound is not exceeded is used.
#[derive(Clone, Debug, Default)]
pub struct AlgorithmTable {
    rules: BTreeMap<CollectiveKind, Vec<Rule>>,
    /// Where all ranks are, if that matters to any of the algorithms.
    surroundings: Option<Surroundings>,
    /// How ranks are laid out on the network, where that is known.
    grid: Option<Arc<Grid>>,
}

/// One line of the table.
#[derive(Clone)]
pub struct Rule {
    /// Up to this size of [`crate::program::Collective::bytes`], inclusive; `None`: any.
    pub up_to: Option<Bytes>,
    /// What carries it out.
    pub algorithm: Arc<dyn Algorithm>,
}

/// A choice that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// No algorithm of that name can carry out the kind.
    #[error("no algorithm {name:?} for {kind}\nhint: {kind} has {}", known(*kind))]
    Unknown {
        /// Of the collective.
        kind: CollectiveKind,
        /// What was asked for.
        name: String,
    },
    /// Rules whose bounds do not rise up to a last one without any.
    #[error(
        "the rules for {kind} do not cover every size once\nhint: let `up_to` rise from rule to rule, and leave it out of the last one"
    )]
    Bounds {
        /// Of the collective.
        kind: CollectiveKind,
    },
}

/// Until an algorithm is told where it is: eight GPUs with third-generation NVLink, one network card of 200 Gbit/s each.
const ONE_SERVER: Surroundings = Surroundings {
    per_server: 8,
    inside: Rate::of_bytes_per_second(240e9),
    between: Rate::of_bytes_per_second(25e9),
    cards: 8,
    nvls: true,
    max_channels: 32,
};

/// Every algorithm there is, by name.
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
/// [`ChoiceError::Unknown`], with the names that there are.
pub fn algorithm_by_name(kind: CollectiveKind, name: &str) -> Result<Arc<dyn Algorithm>, ChoiceError> {
    let mut candidates = algorithms_for(kind).into_iter();
    let found = candidates.find(|algorithm| algorithm.name() == name);
    found.ok_or_else(|| ChoiceError::Unknown { kind, name: name.to_owned() })
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

    /// The choices of the `gloo` backend: those of torch 2.15's `ProcessGroupGloo`, the same at every size.
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

    /// Uses `algorithm` for `kind` at every size.
    ///
    /// # Panics
    /// If it cannot carry out `kind`; [`algorithm_by_name`] finds only those that can.
    pub fn force(&mut self, kind: CollectiveKind, algorithm: Arc<dyn Algorithm>) {
        let rules = vec![Rule { up_to: None, algorithm }];
        self.set_rules(kind, rules).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Tells all algorithms what cluster they are for.
    pub fn adapt(&mut self, surroundings: Surroundings) {
        for rule in self.rules.values_mut().flatten() {
            if let Some(adapted) = rule.algorithm.adapted(surroundings) {
                rule.algorithm = adapted;
                self.surroundings = Some(surroundings);
            }
        }
    }

    /// How many consecutive ranks share a server, where that matters to any of the algorithms.
    pub(crate) fn per_server(&self) -> Option<u32> {
        self.surroundings.map(|surroundings| surroundings.per_server)
    }

    /// Tells all algorithms how so many ranks are laid out on the network.
    pub fn lay_out(&mut self, grid: Grid, ranks: u32) {
        let ranks: Vec<RankId> = (0..ranks).map(RankId).collect();
        self.grid = Some(Arc::new(grid));
        if let Some(table) = self.on_grid(&ranks) {
            *self = table;
        }
    }

    /// The same with algorithms that depend on where in the grid a group is; `None`: none of them does.
    fn on_grid(&self, ranks: &[RankId]) -> Option<AlgorithmTable> {
        self.told_of(self.grid.as_ref()?, ranks)
    }

    pub(super) fn told_of(&self, grid: &Grid, ranks: &[RankId]) -> Option<AlgorithmTable> {
        let (mut table, mut differs) = (self.clone(), false);
        for rule in table.rules.values_mut().flatten() {
            if let Some(placed) = rule.algorithm.on_grid(grid, ranks) {
                rule.algorithm = placed;
                differs = true;
            }
        }
        differs.then_some(table)
    }

    /// May a group's table be another one than that of all ranks?
    pub fn depends_on_place(&self) -> bool {
        self.surroundings.is_some() || self.grid.is_some()
    }

    /// The table for a group of these ranks, if it is another one.
    pub fn for_group(&self, ranks: &[RankId]) -> Option<AlgorithmTable> {
        match self.across_servers(ranks) {
            Some(table) => Some(table.on_grid(ranks).unwrap_or(table)),
            None => self.on_grid(ranks),
        }
    }

    /// Where the ranks are on more servers than as many consecutive ranks would be, and fewer of each server's network cards are theirs.
    fn across_servers(&self, ranks: &[RankId]) -> Option<AlgorithmTable> {
        let all = self.surroundings?;
        let size = ranks.len() as u32;
        let servers: BTreeSet<u32> = ranks.iter().map(|rank| rank.0 / all.per_server).collect();
        let servers = servers.len() as u32;
        if servers <= size.div_ceil(all.per_server) {
            return None;
        }
        let per_server = size.div_ceil(servers);
        let cards = (all.cards * per_server / all.per_server).max(1);
        let mut table = self.clone();
        table.adapt(Surroundings { per_server, cards, ..all });
        Some(table)
    }

    /// Uses `rules` for `kind` in place of those it had.
    ///
    /// # Errors
    /// [`ChoiceError::Unknown`] if an algorithm cannot carry out `kind`, [`ChoiceError::Bounds`] if the bounds do not rise, or if a
    /// rule other than the last has none, or the last has one. The table is then as it was.
    pub fn set_rules(&mut self, kind: CollectiveKind, rules: Vec<Rule>) -> Result<(), ChoiceError> {
        if let Some(rule) = rules.iter().find(|rule| !rule.algorithm.kinds().contains(&kind)) {
            return Err(ChoiceError::Unknown { kind, name: rule.algorithm.name().to_owned() });
        }
        // `None` is below every bound in the order of options but means above all of them.
        let bound = |rule: &Rule| rule.up_to.map_or(u128::MAX, |Bytes(bytes)| u128::from(bytes));
        let covers_all = rules.last().is_some_and(|rule| rule.up_to.is_none());
        if !covers_all || !rules.is_sorted_by(|a, b| bound(a) < bound(b)) {
            return Err(ChoiceError::Bounds { kind });
        }
        self.rules.insert(kind, rules);
        Ok(())
    }

    /// What carries out a call in a group of `size`, where the rule's algorithm is a choice among others: the one it chooses.
    pub fn algorithm(&self, call: &Collective, size: u32) -> Arc<dyn Algorithm> {
        let chosen = self.choose(call.kind, call.bytes());
        chosen.decide(call, size).unwrap_or_else(|| chosen.clone())
    }

    /// What carries out a collective of `kind` and `bytes`.
    ///
    /// # Panics
    /// If the table has no rule for `kind`; [`AlgorithmTable::ideal`] and [`AlgorithmTable::gloo`] have one for each.
    pub fn choose(&self, kind: CollectiveKind, bytes: Bytes) -> &Arc<dyn Algorithm> {
        let rules = self.rules.get(&kind).map_or(&[][..], Vec::as_slice);
        let rule = rules.iter().find(|rule| rule.up_to.is_none_or(|bound| bytes <= bound));
        &rule.unwrap_or_else(|| panic!("no algorithm for {kind} of {} bytes", bytes.0)).algorithm
    }

    /// The rules for `kind`, by rising bound.
    pub fn rules(&self, kind: CollectiveKind) -> &[Rule] {
        self.rules.get(&kind).map_or(&[], Vec::as_slice)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule").field("up_to", &self.up_to).field("algorithm", &self.algorithm.name()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        use crate::program::{DType, ReduceOp, Shape};
        let hopper = Rate::new(360e9).unwrap();
        let servers = Surroundings { inside: hopper, ..ONE_SERVER };
        let mut table = AlgorithmTable::ideal();
        assert!(table.for_group(&[RankId(0), RankId(8)]).is_none(), "nothing here depends on it");
        table.force(AllReduce, named(AllReduce, "nccl"));
        table.adapt(servers);
        let (shape, reduce) = (Shape::Even(1 << 28), Some(ReduceOp::Sum));
        let call = Collective { kind: AllReduce, dtype: DType::Float32, reduce, root: None, shape };
        // Eight consecutive ranks are one server, whose switches reduce; of one rank of each server all traffic is between servers.
        let ranks = |stride: u32| (0..8).map(|rank| RankId(5 * 8 + stride * rank)).collect::<Vec<_>>();
        assert!(table.for_group(&ranks(1)).is_none());
        assert_eq!(table.algorithm(&call, 8).name(), "nvls");
        let strided = table.for_group(&ranks(8)).unwrap();
        let mut alone = table.clone();
        alone.adapt(Surroundings { per_server: 1, cards: 1, ..servers });
        let of = |table: &AlgorithmTable| (table.algorithm(&call, 8).name(), table.algorithm(&call, 8).wire());
        assert_eq!(of(&strided), of(&alone));
        assert_ne!(of(&strided), of(&table));
    }

    #[test]
    fn an_unknown_name_gets_those_that_exist() {
        let error = algorithm_by_name(ReduceScatter, "binomial").err().unwrap();
        assert_eq!(
            error.to_string(),
            "no algorithm \"binomial\" for reduce_scatter\nhint: reduce_scatter has gloo_ring, halving_doubling, hierarchical, nccl, nvls, open_mpi, ring, ring_ll, ring_ll128, ring_simple"
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
}
