//! Owns the reduction plans of a run: each is derived once and kept while equal collectives recur, as in the layers of
//! a model.

use std::collections::VecDeque;
use std::sync::Arc;
use uniference_sim::collective::choose::{AlgorithmTable, algorithm_by_name};
use uniference_sim::collective::fold::ReductionPlan;
use uniference_sim::ids::RankId;
use uniference_sim::program::{Collective, CollectiveKind, NcclSettings};

/// Number of plans that are kept: enough for the different collectives of one step of a program.
const KEPT: usize = 32;

/// A process group.
pub(super) struct Group {
    pub(super) ranks: Arc<[RankId]>,
    /// Rank that joined first.
    pub(super) first: RankId,
    /// NCCL settings of the rank that joined first; `None` if it made none.
    pub(super) settings: Option<NcclSettings>,
}

/// Reduction plans, and the algorithms that the cluster file defines in addition to the built-in ones.
#[derive(Default)]
pub(super) struct ReductionPlans {
    /// The most recently used plans, the latest first.
    kept: VecDeque<(Key, Arc<ReductionPlan>)>,
    algorithms: AlgorithmTable,
}

/// The key of a plan: the call, the algorithm's name, the group's size, and, if the plan depends on the group's place
/// in the cluster, the group's ranks and NCCL settings.
type Key = (Collective, &'static str, u32, Option<(Arc<[RankId]>, Option<NcclSettings>)>);

impl ReductionPlans {
    /// Plans for collectives of these algorithms.
    pub(super) fn of(algorithms: AlgorithmTable) -> ReductionPlans {
        ReductionPlans { kept: VecDeque::new(), algorithms }
    }

    /// The order in which `algorithm` combines the elements of `call` in a group of at least 2 ranks.
    ///
    /// # Panics
    /// If the plan needs memory beyond the members' inputs, which no built-in algorithm does (see the tests). For a
    /// user's algorithm that does, the elements are combined as in a ring, or for a reduce in order of ranks.
    pub(super) fn get(&mut self, call: &Collective, algorithm: &'static str, group: &Group) -> Arc<ReductionPlan> {
        let size = group.ranks.len() as u32;
        let place = self.algorithms.depends_on_place().then(|| (group.ranks.clone(), group.settings));
        let known = |(key, _): &(Key, _)| key.0 == *call && key.1 == algorithm && key.2 == size && key.3 == place;
        let entry = match self.kept.iter().position(known) {
            Some(at) => self.kept.remove(at).expect("just found"),
            None => {
                let plan = self.derive(call, algorithm, group);
                ((call.clone(), algorithm, size, place), Arc::new(plan))
            }
        };
        let plan = entry.1.clone();
        self.kept.push_front(entry);
        self.kept.truncate(KEPT);
        plan
    }

    /// The algorithm of `call` in the group.
    pub(super) fn choice(&self, call: &Collective, group: &Group) -> &'static str {
        let of_group = self.algorithms.for_group(&group.ranks, group.settings.as_ref());
        of_group.as_ref().unwrap_or(&self.algorithms).algorithm(call, group.ranks.len() as u32).name()
    }

    fn derive(&self, call: &Collective, algorithm: &'static str, group: &Group) -> ReductionPlan {
        let size = group.ranks.len() as u32;
        let has_rules = !self.algorithms.rules(call.kind).is_empty();
        let of_group = self.algorithms.for_group(&group.ranks, group.settings.as_ref());
        let table = of_group.as_ref().unwrap_or(&self.algorithms);
        let chosen = has_rules.then(|| table.algorithm(call, size));
        // The table resolves names that depend on the cluster; other names are self-contained.
        let Some(chosen) = chosen.filter(|chosen| chosen.name() == algorithm) else {
            return derive(call, algorithm, size);
        };
        let plan = ReductionPlan::derive(&*chosen, call, size);
        let standard = if call.kind == CollectiveKind::Reduce { "linear" } else { "ring" };
        if is_in_place(&plan, size) { plan } else { derive(call, standard, size) }
    }
}

fn is_in_place(plan: &ReductionPlan, size: u32) -> bool {
    plan.slots == size && plan.folds.iter().all(|fold| fold.combine)
}

fn derive(call: &Collective, algorithm: &'static str, size: u32) -> ReductionPlan {
    let found = algorithm_by_name(call.kind, algorithm).unwrap_or_else(|e| panic!("the engine used it: {e}"));
    let plan = ReductionPlan::derive(&*found, call, size);
    assert!(is_in_place(&plan, size), "{algorithm} on {size} ranks needs {} rooms and copies", plan.slots);
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_formats::cluster::{Choices, ClusterFile};
    use uniference_sim::collective::choose::algorithms_for;
    use uniference_sim::ids::GroupRank;
    use uniference_sim::program::{CollectiveKind, DType, ReduceOp, Shape};

    fn group(ranks: impl IntoIterator<Item = u32>, settings: Option<NcclSettings>) -> Group {
        let ranks: Arc<[RankId]> = ranks.into_iter().map(RankId).collect();
        Group { first: ranks[0], ranks, settings }
    }

    fn first(size: u32) -> Group {
        group(0..size, None)
    }

    fn call(kind: CollectiveKind) -> Collective {
        let root = (kind == CollectiveKind::Reduce).then_some(GroupRank(1));
        let (dtype, reduce) = (DType::Float32, Some(ReduceOp::Sum));
        Collective { kind, dtype, reduce, root, shape: Shape::Even(1001), kernel: None }
    }

    /// The name of each algorithm that a backend chooses identifies its steps.
    #[test]
    fn every_backends_choice_has_an_order() {
        let text = "[[device]]\nname = \"a\"\ncount = 8\n[network]\n";
        let file = ClusterFile::parse("test", text, &[]).unwrap();
        for backend in ["gloo", "nccl", "mpi", "ideal"] {
            let choices = Choices { backend: Some(backend.into()), ..Choices::default() };
            let table = file.resolve(&choices).unwrap().cluster.backend.algorithms;
            for kind in [CollectiveKind::AllReduce, CollectiveKind::Reduce, CollectiveKind::ReduceScatter] {
                for (elements, size) in [(1, 2), (8, 4), (5_000, 8), (200_000, 8), (8 << 20, 4)] {
                    let call = Collective { shape: Shape::Even(elements), ..call(kind) };
                    let plan = derive(&call, table.algorithm(&call, size).name(), size);
                    assert!(!plan.folds.is_empty(), "{backend}: {kind} of {elements} on {size} ranks");
                }
            }
        }
    }

    #[test]
    fn every_algorithm_that_reduces_does_so_in_the_members_own_rooms() {
        for kind in [CollectiveKind::AllReduce, CollectiveKind::Reduce, CollectiveKind::ReduceScatter] {
            for algorithm in algorithms_for(kind) {
                for size in 2..=17 {
                    let plan = ReductionPlans::default().get(&call(kind), algorithm.name(), &first(size));
                    // A reduction of n elements from each of P members needs n (P - 1) combinations, in any order.
                    let elements = if kind == CollectiveKind::ReduceScatter { 1001 * u64::from(size) } else { 1001 };
                    let combined: u64 = plan.folds.iter().map(|fold| fold.span.len).sum();
                    assert_eq!(combined, elements * u64::from(size - 1), "{kind} {} {size}", algorithm.name());
                }
            }
        }
    }

    #[test]
    fn a_plan_is_derived_once() {
        let mut plans = ReductionPlans::default();
        let kept = plans.get(&call(CollectiveKind::AllReduce), "ring", &first(4));
        plans.get(&call(CollectiveKind::Reduce), "binomial", &first(4));
        assert!(Arc::ptr_eq(&kept, &plans.get(&call(CollectiveKind::AllReduce), "ring", &first(4))));
        assert!(!Arc::ptr_eq(&kept, &plans.get(&call(CollectiveKind::AllReduce), "ring", &first(5))));
    }

    /// On a 2 x 3 grid, a row of three uses one dimension, and all six ranks use both.
    #[test]
    fn a_groups_plan_is_that_of_its_place() {
        let text = "[[device]]\nname = \"a\"\ncount = 6\n[network]\npreset = \"torus\"\ndims = [2, 3]\n\
                    [collective]\nall_reduce = \"hierarchical\"\n";
        let table = ClusterFile::parse("test", text, &[]).unwrap().resolve(&Choices::default()).unwrap().cluster;
        let mut plans = ReductionPlans::of(table.backend.algorithms.clone());
        for ranks in [vec![0, 1, 2, 3, 4, 5], vec![1, 3, 5], vec![0, 1], vec![0, 1, 2, 3]] {
            let plan = plans.get(&call(CollectiveKind::AllReduce), "hierarchical", &group(ranks.clone(), None));
            let combined: u64 = plan.folds.iter().map(|fold| fold.span.len).sum();
            assert_eq!(combined, 1001 * (ranks.len() as u64 - 1), "{ranks:?}");
        }
    }

    /// With the group's settings, NCCL uses trees whose order depends on the cluster's servers.
    #[test]
    fn a_groups_plan_follows_its_settings() {
        let text = "[[device]]\nname = \"a\"\ncount = 8\n\
                    [network]\npreset = \"rail\"\nper_server = 4\nfabric = \"nvlink4\"\nlink = \"infiniband_ndr\"\n";
        let file = ClusterFile::parse("test", text, &[]).unwrap();
        let choices = Choices { backend: Some("nccl".into()), ..Choices::default() };
        let table = file.resolve(&choices).unwrap().cluster.backend.algorithms;
        let mut plans = ReductionPlans::of(table.clone());
        let large = Collective { shape: Shape::Even(8 << 20), ..call(CollectiveKind::AllReduce) };
        let trees = NcclSettings { algorithms: [NcclSettings::TREE; 5], ..NcclSettings::default() };
        for settings in [None, Some(trees)] {
            let group = group(0..8, settings);
            let of_group = table.for_group(&group.ranks, settings.as_ref());
            let expected = of_group.as_ref().unwrap_or(&table).algorithm(&large, 8);
            assert_eq!(plans.choice(&large, &group), expected.name());
            let plan = plans.get(&large, expected.name(), &group);
            assert_eq!(plan.folds, ReductionPlan::derive(&*expected, &large, 8).folds);
        }
        let tree = plans.choice(&large, &group(0..8, Some(trees)));
        assert!(tree.starts_with("tree"));
        // The name alone identifies the algorithm for a single server.
        let [with, without] = [Some(trees), None].map(|settings| plans.get(&large, tree, &group(0..8, settings)));
        assert_ne!(with.folds, without.folds);
    }
}
