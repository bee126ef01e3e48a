//! Owns the course of each simulation: the run folder and its lock, the observers, the result, and the report.
//!
//! The simulated programs, and how they are driven, are defined by the [`Source`].

use crate::cluster::Chosen;
use crate::compute::{NodeModels, Plan};
use crate::folder::Folder;
use crate::notices::Notices;
use crate::results::{self, Beside, Figures, REPORT, RecordLevel, Recording};
use std::ffi::OsString;
use std::path::PathBuf;
use uniference_formats::cluster::Resolved;
use uniference_formats::report::{Manifest, Report};
use uniference_host::error::{Exit, HostError};
use uniference_lowering::Recorder;
use uniference_lowering::compute::Costed;
use uniference_sim::cluster::Cluster;
use uniference_sim::event::Observer;
use uniference_sim::network::Asymmetry;

/// The run folder, and the files in it.
#[derive(Clone, Debug)]
pub struct Output {
    /// The run folder; `None`: the next free `uniference-out/NAME-N`.
    pub folder: Option<PathBuf>,
    /// The name of the input; for a path, its last component without extension.
    pub name: OsString,
    /// Files in addition to the report.
    pub record: RecordLevel,
    /// Receiver of messages to the user.
    pub notices: Notices,
}

impl Default for Output {
    fn default() -> Output {
        Output { folder: None, name: "run".into(), record: RecordLevel::default(), notices: Notices::ignored() }
    }
}

/// A source of simulated programs.
pub trait Source {
    /// Simulates the programs on `cluster` until they end.
    ///
    /// # Errors
    /// If the programs cannot be simulated, or this machine lacks something. A program that fails is an [`SimulationEnd`].
    fn drive(&mut self, cluster: &Cluster, watch: Watch<'_>) -> Result<End, HostError>;
}

/// Observers of a [`Source`] while it is driven.
pub struct Watch<'a> {
    /// Receives the engine's events.
    pub observer: &'a mut dyn Observer,
    /// Receives the ranks' requests.
    pub recorder: &'a mut dyn Recorder,
}

/// Result of simulating a [`Source`].
#[must_use]
pub struct End {
    /// How the simulation ended.
    pub ending: SimulationEnd,
    /// Source lines of the programs, by [`uniference_sim::ids::Site`].
    pub lines: Vec<String>,
    /// Costs of operators, if they were costed.
    pub(crate) costed: Costed,
}

impl End {
    /// The result of a simulation without costed operators.
    pub fn new(ending: SimulationEnd, lines: Vec<String>) -> End {
        End { ending, lines, costed: Costed::default() }
    }
}

/// How a simulation ended.
#[must_use]
pub enum SimulationEnd {
    /// Every rank's program has returned.
    Finished,
    /// The programs stopped early.
    Stopped(Stop),
    /// Folded ranks are not equivalent, for this reason.
    Unlike(Asymmetry),
}

/// Reason why programs stopped early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Exit code of the command, which tells errors of the program from errors of its use.
    pub exit: Exit,
    /// Message to the user: whole lines, of which the first is the error.
    pub message: String,
}

/// Result of [`Session::carry_out`].
#[must_use]
pub enum Outcome {
    /// Every rank's program has returned.
    Finished(Box<Figures>),
    /// The programs stopped early.
    Stopped(Stop),
    /// Folded ranks are not equivalent, for this reason.
    Unlike(Asymmetry),
}

/// Result of programs that finished, or the reason why they stopped.
#[must_use]
pub enum Ended<T> {
    /// Every rank's program has returned.
    Finished(T),
    /// The programs stopped early.
    Stopped(Stop),
}

/// The report of a simulation, in its run folder.
pub struct RunResults {
    /// Contents of the folder's `report.json`.
    pub report: Box<Report>,
    /// The run folder.
    pub folder: Folder,
}

/// A simulation with a run folder, which no other command writes to while the session exists.
pub struct Session {
    resolved: Resolved,
    manifest: Manifest,
    record: RecordLevel,
    folder: Folder,
    notices: Notices,
    /// Reasons to doubt the figures that are known before the simulation.
    doubts: Vec<String>,
}

impl Session {
    /// Reserves a run folder for a simulation on a cluster. `seed` is the seed of all random values of the simulation;
    /// `command` is the command in the report.
    ///
    /// # Errors
    /// If another command uses the folder, or it cannot be written to.
    pub fn new(chosen: Chosen, seed: u64, command: Vec<String>, output: &Output) -> Result<Session, HostError> {
        let manifest = results::manifest(command, seed, &chosen.resolved);
        Session::with_manifest(chosen, manifest, output)
    }

    /// As [`Session::new`], with an existing manifest.
    pub(crate) fn with_manifest(chosen: Chosen, manifest: Manifest, output: &Output) -> Result<Session, HostError> {
        let Output { folder, name, record, notices } = output;
        let folder = Folder::prepare(folder.as_deref(), name, notices)?;
        if let Some(note) = chosen.note() {
            notices.say(note);
        }
        let Chosen { mut resolved, doubts, .. } = chosen;
        resolved.cluster.dynamics.seed = manifest.seed;
        Ok(Session { resolved, manifest, record: *record, folder, notices: notices.clone(), doubts })
    }

    /// The cluster that is simulated.
    pub fn resolved(&self) -> &Resolved {
        &self.resolved
    }

    pub(crate) fn notices(&self) -> &Notices {
        &self.notices
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The run folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Adds versions of further components to the report.
    pub fn add_versions(&mut self, versions: impl IntoIterator<Item = (String, String)>) {
        self.manifest.versions.extend(versions);
    }

    /// Writes the source of compute durations into the manifest.
    pub fn plan(&mut self, plan: &Plan) {
        plan.describe(&mut self.manifest);
    }

    /// Writes the cost models of nodes that list operators into the manifest.
    pub(crate) fn models(&mut self, models: &NodeModels) {
        models.describe(&mut self.manifest);
    }

    /// Simulates `source`, and completes all files of the run folder except the report.
    ///
    /// # Errors
    /// Errors of the source, and if the results cannot be written.
    pub fn carry_out(&self, source: &mut (impl Source + ?Sized)) -> Result<Outcome, HostError> {
        let mut recording = Recording::start(self.record, &self.resolved, &self.manifest, &self.folder, &self.notices)?;
        let (observer, recorder) = recording.watchers();
        let End { ending, lines, costed } = source.drive(&self.resolved.cluster, Watch { observer, recorder })?;
        let figures = recording.finish(lines, costed)?;
        Ok(match ending {
            SimulationEnd::Finished => Outcome::Finished(Box::new(figures)),
            SimulationEnd::Stopped(mut stop) => {
                // The run's error is shown before the warning that its report cannot be written.
                if let Err(error) = self.write(&self.report_of_failure(figures, &stop)) {
                    stop.message += &format!("warning: {error}\n");
                }
                Outcome::Stopped(stop)
            }
            SimulationEnd::Unlike(asymmetry) => Outcome::Unlike(asymmetry),
        })
    }

    /// The report of a stopped run, with figures up to the stop.
    fn report_of_failure(&self, figures: Figures, stop: &Stop) -> Report {
        let message = stop.message.trim_end();
        let first = message.lines().next().unwrap_or("error: the run was stopped");
        let first = first.strip_prefix("error: ").unwrap_or(first);
        let warning = format!("the run did not finish: {first}; all figures are of what happened until then");
        let mut report = self.report(figures, Vec::new());
        report.warnings.insert(0, warning);
        Report { failure: Some(message.to_owned()), interval: None, ..report }
    }

    /// The report of a finished simulation, with further reasons to doubt its figures.
    pub fn report(&self, figures: Figures, warnings: Vec<String>) -> Report {
        self.report_of_several(figures, Beside { warnings, ..Beside::default() })
    }

    /// The report of a finished simulation, with the results of other seeds.
    pub(crate) fn report_of_several(&self, figures: Figures, beside: Beside) -> Report {
        let warnings = self.doubts.iter().cloned().chain(beside.warnings).collect();
        results::of_run(figures, &self.resolved, Beside { warnings, ..beside }, self.manifest.clone())
    }

    /// Writes the report into the folder.
    ///
    /// # Errors
    /// If the report cannot be written.
    pub fn write(&self, report: &Report) -> Result<(), HostError> {
        self.folder.write(REPORT, report.to_json().as_bytes())
    }

    /// Writes the report, and ends the session.
    pub(crate) fn finish(self, report: Report) -> Result<Ended<RunResults>, HostError> {
        self.write(&report)?;
        Ok(Ended::Finished(RunResults { report: Box::new(report), folder: self.folder }))
    }
}
