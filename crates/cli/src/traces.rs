//! Owns the options of `uniference replay` that define how execution traces are interpreted.

use std::path::{Path, PathBuf};
use uniference_session::HostError;
use uniference_session::traces::{ClosedForm, Meaning};

/// Interpretation of execution traces.
#[derive(clap::Args)]
#[command(next_help_heading = "Execution traces")]
pub(super) struct TraceArgs {
    /// Factor by which the durations of compute and memory nodes are multiplied
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    compute_scale: f64,
    /// Factor by which the sizes of communication nodes are multiplied
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    comm_scale: f64,
    /// File of process groups: a JSON object that maps names to lists of ranks, in ASTRA-sim's format
    #[arg(long, value_name = "FILE")]
    astra_comm_groups: Option<PathBuf>,
    /// Network model: Uniference's, or ASTRA-sim's congestion-unaware backend, which replaces the cluster
    #[arg(long, value_enum, default_value_t = Fidelity::Flow, requires_if("astra", "astra_system"), requires_if("astra", "astra_network"))]
    fidelity: Fidelity,
    /// ASTRA-sim system file: algorithms and chunks for --fidelity astra, roofline of nodes without a duration
    #[arg(long, value_name = "FILE")]
    astra_system: Option<PathBuf>,
    /// ASTRA-sim network file, for --fidelity astra
    #[arg(long, value_name = "FILE")]
    astra_network: Option<PathBuf>,
    /// ASTRA-sim remote memory file: the cost of memory nodes
    #[arg(long, value_name = "FILE")]
    astra_memory: Option<PathBuf>,
    /// Number of passes, forward and backward, over the layers of a text workload
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,
    /// Number of queues that share the active chunks of a dimension, for --fidelity astra
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    astra_queues_per_dim: u32,
}

/// Network model of a replay.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Fidelity {
    /// Uniference's model: flows share the bandwidth of links
    Flow,
    /// ASTRA-sim's congestion-unaware analytical model
    Astra,
}

fn factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if factor.is_finite() && factor >= 0.0 { Ok(factor) } else { Err("must be finite and not negative".to_owned()) }
}

impl TraceArgs {
    /// Names of the given options, except those of the closed form.
    fn given_for_any_fidelity(&self) -> impl Iterator<Item = &'static str> {
        [
            (self.compute_scale != 1.0, "--compute-scale"),
            (self.comm_scale != 1.0, "--comm-scale"),
            (self.astra_comm_groups.is_some(), "--astra-comm-groups"),
            (self.astra_system.is_some(), "--astra-system"),
            (self.astra_memory.is_some(), "--astra-memory"),
            (self.passes != 1, "--passes"),
        ]
        .into_iter()
        .filter_map(|(given, name)| given.then_some(name))
    }

    /// Names of the given options that only ASTRA-sim's closed form reads.
    fn given_for_closed_form(&self) -> impl Iterator<Item = &'static str> {
        [(self.astra_network.is_some(), "--astra-network"), (self.astra_queues_per_dim != 1, "--astra-queues-per-dim")]
            .into_iter()
            .filter_map(|(given, name)| given.then_some(name))
    }

    /// Refuses the options, because a program record has no nodes to interpret.
    pub(super) fn refuse_for_record(&self, run: &Path) -> Result<(), HostError> {
        let fidelity = (self.fidelity == Fidelity::Astra).then_some("--fidelity");
        let given: Vec<_> = self.given_for_any_fidelity().chain(fidelity).chain(self.given_for_closed_form()).collect();
        if given.is_empty() {
            return Ok(());
        }
        Err(HostError::Usage(format!(
            "options for execution traces only: {}; {} has a program record\nhint: change the cluster instead (--set, --slowdown), or export traces with `uniference chakra export`",
            given.join(", "),
            run.display()
        )))
    }

    /// The options for a session.
    pub(super) fn meaning(&self) -> Result<Meaning, HostError> {
        let unread: Vec<_> = self.given_for_closed_form().collect();
        if self.fidelity == Fidelity::Flow && !unread.is_empty() {
            return Err(HostError::Usage(format!(
                "{} has no effect without --fidelity astra\nhint: add --fidelity astra, or describe the network with --cluster",
                unread.join(" and ")
            )));
        }
        Ok(Meaning {
            compute_scale: self.compute_scale,
            comm_scale: self.comm_scale,
            groups: self.astra_comm_groups.clone(),
            closed_form: (self.fidelity == Fidelity::Astra)
                .then(|| ClosedForm { network: self.astra_network.clone(), queues_per_dim: self.astra_queues_per_dim }),
            system: self.astra_system.clone(),
            memory: self.astra_memory.clone(),
            passes: self.passes,
            own_database: super::devices::own_file(),
        })
    }
}

#[cfg(test)]
mod tests;
