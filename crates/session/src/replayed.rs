//! Owns the inputs that can be simulated without a program: the record of a run, or execution traces.

use crate::cluster::{ClusterOptions, Overrides};
use crate::compute::Compute;
use crate::notices::Notices;
use crate::recorded::{self, Replay};
use crate::session::{Ended, RunResults, Source};
use crate::simulated::{Look, Simulated};
use crate::traces::{self, TraceReplay};
use uniference_formats::cluster::Resolved;
use uniference_formats::lines::{LineName, LineScale};
use uniference_host::error::HostError;
use uniference_sim::cluster::Cluster;
use uniference_studies::critical::Explanation;
use uniference_studies::overlap::Chances;

/// An input that can be simulated without a program.
#[derive(Clone)]
pub enum Replayed {
    /// The record of a run.
    Record(Replay),
    /// Chakra execution traces.
    Traces(TraceReplay),
}

impl Replayed {
    /// Simulates the input, and writes the results.
    ///
    /// # Errors
    /// If it cannot be read or does not fit the cluster, or the results cannot be written.
    pub fn replay(&self) -> Result<Ended<RunResults>, HostError> {
        match self {
            Replayed::Record(replay) => recorded::replay(replay),
            Replayed::Traces(replay) => traces::replay(replay),
        }
    }

    /// The critical path; with `whole_path` also all its spans.
    ///
    /// # Errors
    /// As [`Replayed::replay`]; and for a simulation without causes.
    pub fn explain(&self, whole_path: bool) -> Result<Ended<Explanation>, HostError> {
        let look = if whole_path { Look::WholePath } else { Look::Causes };
        Ok(match self.simulate(look)? {
            Ended::Finished(simulated) => {
                simulated.noticed.iter().for_each(|warning| self.notices().warn(warning));
                Ended::Finished(simulated.explained())
            }
            Ended::Stopped(stop) => Ended::Stopped(stop),
        })
    }

    /// Passes the input and the cluster of its simulation to a function that drives the simulation.
    pub(crate) fn driven<T>(
        &self,
        with: impl FnOnce(&Cluster, &mut dyn Source) -> Result<T, HostError>,
    ) -> Result<T, HostError> {
        match self {
            Replayed::Record(replay) => recorded::driven(replay, with),
            Replayed::Traces(replay) => traces::driven(replay, with),
        }
    }

    /// Simulates the input without writing a run folder.
    pub(crate) fn simulate(&self, look: Look) -> Result<Ended<Simulated>, HostError> {
        match self {
            Replayed::Record(replay) => recorded::simulate(replay, look),
            Replayed::Traces(replay) => traces::simulate(replay, look),
        }
    }

    /// The cluster of the simulation, and the command of its program, if it has one.
    pub(crate) fn origin(&self) -> Result<(Resolved, Vec<String>), HostError> {
        match self {
            Replayed::Record(replay) => recorded::origin(replay),
            Replayed::Traces(replay) => Ok((traces::origin(replay)?, Vec::new())),
        }
    }

    /// The command that runs its program with further options, if it is known.
    pub(crate) fn command_with(&self, options: &[String]) -> Result<Option<String>, HostError> {
        let (_, command) = self.origin()?;
        let Some(verb) = command.iter().position(|word| word == "run") else { return Ok(None) };
        // The command writes its results to another folder.
        let mut words: Vec<&str> =
            ["uniference", "run"].into_iter().chain(options.iter().map(String::as_str)).collect();
        let mut rest = command[verb + 1..].iter();
        while let Some(word) = rest.next() {
            match &**word {
                "--out" => drop(rest.next()),
                word if word.starts_with("--out=") => {}
                word => words.push(word),
            }
        }
        Ok(shlex::try_join(words).ok())
    }

    /// The input without the changes to its cluster, and these changes.
    #[must_use]
    pub fn apart(mut self) -> (Replayed, Overrides) {
        let changes = std::mem::take(&mut self.cluster_mut().overrides);
        (self, changes)
    }

    fn notices(&self) -> &Notices {
        match self {
            Replayed::Record(replay) => &replay.output.notices,
            Replayed::Traces(replay) => &replay.output.notices,
        }
    }

    fn cluster_mut(&mut self) -> &mut ClusterOptions {
        match self {
            Replayed::Record(replay) => &mut replay.cluster,
            Replayed::Traces(replay) => &mut replay.cluster,
        }
    }

    /// The input with further changes to its cluster.
    #[must_use]
    pub(crate) fn changed(&self, change: &Overrides) -> Replayed {
        let mut changed = self.clone();
        let Overrides { backend, algorithms, set, free } = &mut changed.cluster_mut().overrides;
        *backend = change.backend.clone().or(backend.take());
        algorithms.extend_from_slice(&change.algorithms);
        set.extend_from_slice(&change.set);
        free.extend_from_slice(&change.free);
        changed
    }

    /// The input with scaled compute at these lines.
    ///
    /// # Errors
    /// If it does not have its program's lines.
    pub(crate) fn with_lines(self, lines: &[LineScale]) -> Result<Replayed, HostError> {
        match self {
            Replayed::Record(mut replay) => {
                replay.compute.lines.extend_from_slice(lines);
                Ok(Replayed::Record(replay))
            }
            traces @ Replayed::Traces(_) if lines.is_empty() => Ok(traces),
            Replayed::Traces(_) => Err(HostError::Usage(
                "--line has no effect on execution traces: their nodes have no lines\nhint: give a run folder of `uniference run`, or change nodes' durations with --compute-scale".into(),
            )),
        }
    }

    /// Compute that could overlap its operations.
    pub(crate) fn chances(&self) -> Result<Chances, HostError> {
        match self {
            Replayed::Record(replay) => Ok(recorded::examined(replay)?.chances),
            Replayed::Traces(_) => {
                let why = "execution traces do not say which memory their nodes read and write";
                Ok(Chances { operations: Vec::new(), unexamined: Some(why.to_owned()) })
            }
        }
    }

    /// The input with compute that overlaps the operations at these lines.
    ///
    /// # Errors
    /// If it does not have its program's operators, or has no such operation.
    pub(crate) fn with_overlap(self, lines: &[LineName]) -> Result<Replayed, HostError> {
        match self {
            unchanged if lines.is_empty() => Ok(unchanged),
            Replayed::Record(mut replay) => {
                if let Some(Compute::From(_)) = replay.compute.source {
                    return Err(HostError::Usage(
                        "--overlap divides slices of compute, and --compute from=RUN knows each as a whole\nhint: use --compute model, or none of both".into(),
                    ));
                }
                replay.arrangement = Some(recorded::examined(&replay)?.arranged(lines)?);
                Ok(Replayed::Record(replay))
            }
            Replayed::Traces(_) => Err(HostError::Usage(
                "--overlap has no effect on execution traces: their nodes do not say which memory they read and write\nhint: give a run folder of `uniference run`".into(),
            )),
        }
    }
}
