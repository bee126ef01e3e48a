//! Owns the lowering of slices to pieces of work: the source of each rank's compute durations, applied to the measured
//! time and the captured operators of its slices. The caller chooses the sources, and opens databases and records.
//!
//! Module `costing` costs slices, `expansion` expands slices of ranks with simulated GPUs, and `earlier` has the slices
//! of an earlier run.

mod costing;
mod earlier;
mod expansion;

#[cfg(test)]
mod tests;

pub use costing::{Costed, Costing, CostingError, RankSteps, Shared, substituted};
pub use earlier::Earlier;

use std::rc::Rc;
use std::sync::Arc;
use uniference_costs::model::{Coming, Model};
use uniference_costs::operators::Sequences;
use uniference_formats::cluster::KernelCost;
use uniference_formats::lines::LineScale;
use uniference_formats::operators::{CopyKind, Definition};
use uniference_sim::device::{Estimate, HostCosts};
use uniference_sim::time::SimDuration;

/// Source of a rank's compute, after options and keys are resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The rank's CPU time on this machine.
    Measured,
    /// The cost of its operators on the rank's device.
    Modelled,
    /// The duration in an earlier run.
    From,
    /// Compute takes no time.
    None,
    /// For a replay: the recorded duration.
    Recorded,
}

/// Costs of operators on the device of a rank.
pub trait OperatorCosts: Send + Sync {
    /// Cost of an operator that runs alone on the device. `coming` describes the preceding operator, if it matters
    /// ([`OperatorCosts::depend_on_coming`]).
    fn estimate(&self, definition: &Definition, coming: Coming<'_>) -> Estimate;

    /// Device time of an operator, without its host time.
    fn on_device(&self, definition: &Definition) -> Estimate;

    /// Device time of attention with these sequence lengths.
    fn attention(&self, definition: &Definition, sequences: &[Sequences]) -> Estimate;

    /// Cost of a kernel by the user's formula.
    fn by_formula(&self, cost: &KernelCost, definition: &Definition) -> Result<Estimate, String>;

    /// Device time of a kernel outside of all operators that moves `bytes` bytes; 0: the number is unknown.
    fn kernel(&self, bytes: u64) -> Estimate;

    /// A kernel that only spins for this duration.
    fn spin(&self, lasts: SimDuration) -> Estimate;

    /// Device time of a copy of `bytes` bytes.
    fn copy(&self, kind: CopyKind, bytes: u64) -> Estimate;

    /// Whether the cost of an operator depends on the preceding operator.
    fn depend_on_coming(&self) -> bool;

    /// Kind of the operator in reports.
    fn kind(&self, definition: &Definition) -> &'static str;

    /// Lower bound in seconds for an operator of unknown cost, from the bytes that it reads and writes.
    fn at_least(&self, definition: &Definition) -> f64;

    /// Element types for which the device has no rate, and the types whose rates were used instead.
    fn substituted(&self) -> Vec<(&'static str, &'static str)>;
}

impl OperatorCosts for Model {
    fn estimate(&self, definition: &Definition, coming: Coming<'_>) -> Estimate {
        Model::estimate(self, definition, coming)
    }

    fn on_device(&self, definition: &Definition) -> Estimate {
        self.operator(definition)
    }

    fn attention(&self, definition: &Definition, sequences: &[Sequences]) -> Estimate {
        Model::attention(self, definition, sequences)
    }

    fn by_formula(&self, cost: &KernelCost, definition: &Definition) -> Result<Estimate, String> {
        Model::by_formula(self, cost, definition)
    }

    fn kernel(&self, bytes: u64) -> Estimate {
        Model::kernel(self, bytes)
    }

    fn spin(&self, lasts: SimDuration) -> Estimate {
        Model::spin(self, lasts)
    }

    fn copy(&self, kind: CopyKind, bytes: u64) -> Estimate {
        Model::copy(self, kind, bytes)
    }

    fn depend_on_coming(&self) -> bool {
        self.knows_host()
    }

    fn kind(&self, definition: &Definition) -> &'static str {
        Model::kind(definition)
    }

    fn at_least(&self, definition: &Definition) -> f64 {
        Model::at_least(self, definition)
    }

    fn substituted(&self) -> Vec<(&'static str, &'static str)> {
        Model::substituted(self)
    }
}

/// Sources of the compute of a run.
#[derive(Clone)]
pub struct Sources {
    /// The source of each rank.
    pub ranks: Vec<RankPlan>,
    /// The earlier run, if durations come from one.
    pub earlier: Option<Earlier>,
    /// Warning about a replay on the recorded cluster whose costs come from other rows than the run's.
    pub outdated: Option<String>,
    /// Whether a host time of simulated GPUs was requested.
    pub host_asked: bool,
    /// Whether a time of Python functions was requested.
    pub python_asked: bool,
    /// For a replay: lines whose compute is scaled.
    pub lines: Vec<LineScale>,
}

/// Source of the compute of one rank.
#[derive(Clone)]
pub struct RankPlan {
    /// Source of the durations.
    pub way: Way,
    /// Costs of the rank's operators, if they are modelled.
    pub costs: Option<Arc<dyn OperatorCosts>>,
    /// The user's formulas for kernels.
    pub kernels: Rc<[KernelCost]>,
    /// Costs of operators on CPU tensors on the host CPU, if the CPU is known.
    pub host_cpu: Option<HostCpu>,
    /// Whether the device is a GPU, with a CPU that runs the program.
    pub is_gpu: bool,
    /// Factor on the durations of the device.
    pub slowdown: f64,
    /// Time of the host that launches work on the device's CUDA streams, unless it is measured.
    pub host: HostCosts,
    /// Whether the time of that host is measured.
    pub measures_host: bool,
    /// Whether compute is measured, or was measured in the recorded run.
    pub is_measured: bool,
}

/// The CPU that runs the program of a rank with a GPU.
#[derive(Clone)]
pub struct HostCpu {
    /// Costs of operators on the CPU.
    pub costs: Arc<dyn OperatorCosts>,
    /// Number of ranks that share one CPU.
    pub ranks: f64,
}
