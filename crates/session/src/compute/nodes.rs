//! Owns the costs of operators in nodes of traces and generated jobs: a model for each rank's device, and the totals of
//! a run.

use super::DatabaseOptions;
use std::collections::BTreeMap;
use std::sync::Arc;
use uniference_costs::database::Databases;
use uniference_costs::model::{Model, Target};
use uniference_formats::report::{ComputeReport, Manifest};
use uniference_host::error::HostError;
use uniference_lowering::compute::{Costed, OperatorCosts, substituted};
use uniference_programs::chakra::replay::{self, CostedOperator};
use uniference_sim::device::Origin;

/// Cost models of the ranks' devices.
pub(crate) struct NodeModels {
    ranks: Vec<Option<Arc<Model>>>,
    databases: Arc<Databases>,
}

impl NodeModels {
    /// Models for the devices of the ranks; `None`: the device is unknown. Ranks on equal devices share a model.
    ///
    /// # Errors
    /// If a database cannot be read, or has no rows of a device that is left out.
    pub(crate) fn new(options: &DatabaseOptions, devices: Vec<Option<Target>>) -> Result<NodeModels, HostError> {
        let databases = options.open()?;
        let model = |target| options.models.of(target, &databases);
        let ranks = devices.into_iter().map(|target| target.map(&model)).collect();
        Ok(NodeModels { ranks, databases })
    }

    /// The ranks' models in the form that replays of traces need.
    pub(crate) fn of_ranks(&self) -> Vec<Option<replay::Model>> {
        self.ranks.iter().map(|model| model.clone().map(|model| replay::Model(model))).collect()
    }

    /// Writes the databases and models into the manifest.
    pub(crate) fn describe(&self, manifest: &mut Manifest) {
        manifest.compute = super::Compute::Model.to_string();
        manifest.models = BTreeMap::from([
            ("devices".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("databases".to_owned(), self.databases.version().to_owned()),
        ]);
    }

    /// Totals of a run: `operators` has, for each simulated rank, its operators and the `slowdown` of its device; other
    /// ranks have none.
    pub(crate) fn costed<'a>(
        &self,
        operators: impl Iterator<Item = (usize, f64, Box<dyn Iterator<Item = &'a CostedOperator> + 'a>)>,
    ) -> Costed {
        let ranks = self.ranks.len();
        let mut costed = Costed { modelled: vec![false; ranks], spreads: vec![Vec::new(); ranks], ..Costed::default() };
        for (rank, slowdown, operators) in operators {
            let mut sums: BTreeMap<(usize, &'static str), f64> = BTreeMap::new();
            for CostedOperator { operator, estimate, executions } in operators {
                let seconds = estimate.duration.as_secs_f64() * *executions as f64 * slowdown;
                let place = Origin::ALL.iter().position(|origin| *origin == estimate.origin).unwrap_or_default();
                *sums.entry((place, operator.family.name())).or_default() += seconds;
                costed.spreads[rank].push((seconds, estimate.spread));
            }
            costed.modelled[rank] = !sums.is_empty();
            costed.rows.extend(sums.into_iter().map(|((place, kind), seconds)| ComputeReport {
                rank: rank as u32,
                origin: Origin::ALL[place].name().to_owned(),
                kind: Some(kind.to_owned()),
                seconds,
            }));
        }
        let costs = self.ranks.iter().flatten().map(|model| &**model as &dyn OperatorCosts);
        costed.warnings.extend(substituted(costs));
        costed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without(device: &str) -> Result<NodeModels, HostError> {
        let options = DatabaseOptions { left_out: Some(device.to_owned()), ..DatabaseOptions::default() };
        NodeModels::new(&options, Vec::new())
    }

    #[test]
    fn a_device_is_left_out_of_the_databases_of_nodes() {
        let mut manifest = Manifest::default();
        without("h100-sxm").unwrap().describe(&mut manifest);
        assert!(manifest.models["databases"].ends_with(" without h100-sxm-80gb"), "{:?}", manifest.models);
        let refused = without("no-device").err().expect("no database has its rows").to_string();
        assert!(refused.starts_with("--leave-out no-device: no database has operators measured on it"), "{refused}");
    }
}
