//! Owns the choice of algorithm by kind and size of a collective, and the adaptation of algorithms to the cluster. The
//! module does not know which algorithms exist, except that kernels of programs are not a matter of choice.

use super::nccl;
use super::peers::Peers;
use super::{Algorithm, Grid, Surroundings, Wire};
use crate::ids::RankId;
use crate::program::{Collective, CollectiveKind, NcclSettings};
use crate::time::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// Algorithms of each kind by size: the first entry whose bound is not exceeded is used.
#[derive(Clone, Debug, Default)]
pub struct AlgorithmTable {
    rules: BTreeMap<CollectiveKind, Vec<Rule>>,
    /// Distribution of all ranks in the cluster, if any of the algorithms depends on it.
    surroundings: Option<Surroundings>,
    /// Layout of ranks on the network, if known.
    grid: Option<Arc<Grid>>,
}

/// One line of the table.
#[derive(Clone)]
pub struct Rule {
    /// Largest size, inclusive, of [`crate::program::Collective::bytes`]; `None`: any size.
    pub up_to: Option<Bytes>,
    /// The algorithm for these sizes.
    pub algorithm: Arc<dyn Algorithm>,
}

/// A choice that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// No algorithm of that name can carry out the kind.
    #[error("unknown algorithm {name:?} for {kind}\nhint: the algorithms are: {known}")]
    Unknown {
        /// The kind of collective.
        kind: CollectiveKind,
        /// The requested name.
        name: String,
        /// The names of the kind's algorithms, separated by commas.
        known: String,
    },
    /// The rules' bounds do not increase up to a last rule without a bound.
    #[error(
        "the rules for {kind} must cover every size exactly once\nhint: increase `up_to` from rule to rule, and omit it in the last rule"
    )]
    Bounds {
        /// The kind of collective.
        kind: CollectiveKind,
    },
}

impl AlgorithmTable {
    /// Uses `algorithm` for `kind` at every size.
    ///
    /// # Panics
    /// If `algorithm` cannot carry out `kind`; [`super::choose::algorithm_by_name`] finds only those that can.
    pub fn force(&mut self, kind: CollectiveKind, algorithm: Arc<dyn Algorithm>) {
        let rules = vec![Rule { up_to: None, algorithm }];
        self.set_rules(kind, rules).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Adapts all algorithms to a cluster.
    pub fn adapt(&mut self, surroundings: Surroundings) {
        for rule in self.rules.values_mut().flatten() {
            if let Some(adapted) = rule.algorithm.adapted(surroundings) {
                rule.algorithm = adapted;
                self.surroundings = Some(surroundings);
            }
        }
    }

    /// Number of consecutive ranks that share a server, if any of the algorithms depends on it.
    pub(crate) fn per_server(&self) -> Option<u32> {
        self.surroundings.map(|surroundings| surroundings.per_server)
    }

    /// Adapts all algorithms to the network layout of a world of `ranks` ranks.
    pub fn lay_out(&mut self, grid: Grid, ranks: u32) {
        let ranks: Vec<RankId> = (0..ranks).map(RankId).collect();
        self.grid = Some(Arc::new(grid));
        if let Some(table) = self.on_grid(&ranks) {
            *self = table;
        }
    }

    /// The table for the group of `ranks` at its place in the grid; `None`: no algorithm depends on the place.
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

    /// Whether a group's table may differ from the table of all ranks.
    pub fn depends_on_place(&self) -> bool {
        self.surroundings.is_some() || self.grid.is_some()
    }

    /// Table for a group of these ranks with these settings; `None` if the group uses this table.
    pub fn for_group(&self, ranks: &[RankId], settings: Option<&NcclSettings>) -> Option<AlgorithmTable> {
        let placed = self.placed(ranks);
        let Some((settings, all)) = settings.zip(placed.as_ref().unwrap_or(self).surroundings) else { return placed };
        let mut table = placed.unwrap_or_else(|| self.clone());
        table.adapt(Surroundings { settings: *settings, ..all });
        Some(table)
    }

    /// Effect of the library on a message of `bytes` between two ranks; `None`: no effect.
    pub(crate) fn wire_of_messages(&self, bytes: Bytes) -> Option<Wire> {
        // Only NCCL's own choice carries out an all-to-all, as a group of messages.
        let is_nccl = self.rules(CollectiveKind::AllToAll).iter().any(|rule| rule.algorithm.library() == Some("nccl"));
        self.surroundings.filter(|_| is_nccl).map(|surroundings| nccl::wire_of_messages(surroundings, bytes.0))
    }

    fn placed(&self, ranks: &[RankId]) -> Option<AlgorithmTable> {
        match self.across_servers(ranks) {
            Some(table) => Some(table.on_grid(ranks).unwrap_or(table)),
            None => self.on_grid(ranks),
        }
    }

    /// Table for a group that spans more servers than equally many consecutive ranks would, and that uses fewer NICs of
    /// each server.
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

    /// Replaces the rules of `kind` by `rules`.
    ///
    /// # Errors
    /// [`ChoiceError::Bounds`] if the bounds do not increase, or if a rule other than the last has none, or the last
    /// has one. The table is then unchanged.
    ///
    /// # Panics
    /// If an algorithm cannot carry out `kind`; [`super::choose::algorithm_by_name`] finds only those that can.
    pub fn set_rules(&mut self, kind: CollectiveKind, rules: Vec<Rule>) -> Result<(), ChoiceError> {
        if let Some(rule) = rules.iter().find(|rule| !rule.algorithm.kinds().contains(&kind)) {
            panic!("{} cannot carry out {kind}", rule.algorithm.name());
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

    /// Algorithm of a call in a group of `size`: the rule's algorithm, or its decision if the rule's algorithm is a
    /// choice. A call of one of the program's kernels uses that kernel if the group is known to be in one server; in a
    /// replay the group may span servers, and programs then call the library.
    pub fn algorithm(&self, call: &Collective, size: u32) -> Arc<dyn Algorithm> {
        let server = self.surroundings.filter(|surroundings| size <= surroundings.per_server);
        if let (Some(kernel), Some(server)) = (call.kernel, server) {
            return Arc::new(Peers::new(kernel, size, server.inside));
        }
        let chosen = self.choose(call.kind, call.bytes(size));
        chosen.decide(call, size).unwrap_or_else(|| chosen.clone())
    }

    /// Algorithm of the rule for collectives of `kind` and `bytes`.
    ///
    /// # Panics
    /// If the table has no rule for `kind`; [`AlgorithmTable::ideal`] and [`AlgorithmTable::gloo`] have one for each.
    pub fn choose(&self, kind: CollectiveKind, bytes: Bytes) -> &Arc<dyn Algorithm> {
        let rules = self.rules.get(&kind).map_or(&[][..], Vec::as_slice);
        let rule = rules.iter().find(|rule| rule.up_to.is_none_or(|bound| bytes <= bound));
        &rule.unwrap_or_else(|| panic!("no algorithm for {kind} of {} bytes", bytes.0)).algorithm
    }

    /// Rules of `kind`, by increasing bound.
    pub fn rules(&self, kind: CollectiveKind) -> &[Rule] {
        self.rules.get(&kind).map_or(&[], Vec::as_slice)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule").field("up_to", &self.up_to).field("algorithm", &self.algorithm.name()).finish()
    }
}
