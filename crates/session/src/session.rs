//! Owns the way of every simulation: the folder and its lock, who looks on while it goes on, how it ended, and its report.
//!
//! What is simulated, and how that is driven, is the [`Source`]'s business.

use crate::cluster::Chosen;
use crate::compute::{Costed, NodeModels, Plan};
use crate::folder::Folder;
use crate::notices::Notices;
use crate::results::{self, Beside, Figures, REPORT, RecordLevel, Recording};
use std::ffi::OsString;
use std::path::PathBuf;
use uniference_formats::cluster::Resolved;
use uniference_formats::report::{Manifest, Report};
use uniference_host::error::{Exit, HostError};
use uniference_host::live::exchange::Recorder;
use uniference_sim::cluster::Cluster;
use uniference_sim::event::Observer;
use uniference_sim::network::Asymmetry;

/// Where results go, and how much is kept.
#[derive(Clone, Debug)]
pub struct Output {
    /// The folder; without one, the next free `uniference-out/NAME-N`.
    pub folder: Option<PathBuf>,
    /// NAME: of a path, its last part without its ending.
    pub name: OsString,
    /// What is kept besides the report.
    pub record: RecordLevel,
    /// Who is told of what the user should know.
    pub notices: Notices,
}

impl Default for Output {
    fn default() -> Output {
        Output { folder: None, name: "run".into(), record: RecordLevel::default(), notices: Notices::ignored() }
    }
}

/// What is simulated.
pub trait Source {
    /// Simulates it on `cluster` to its end.
    ///
    /// # Errors
    /// If it cannot be simulated, or the host lacks something. A program that fails is an [`Ending`].
    fn drive(&mut self, cluster: &Cluster, watch: Watch<'_>) -> Result<End, HostError>;
}

/// Who looks on while a [`Source`] is driven.
pub struct Watch<'a> {
    /// Sees the engine's events.
    pub observer: &'a mut dyn Observer,
    /// Sees the ranks' requests.
    pub recorder: &'a mut dyn Recorder,
}

/// What a [`Source`] has come to.
#[must_use]
pub struct End {
    /// How the simulation ended.
    pub ending: Ending,
    /// The programs' lines, by [`uniference_sim::ids::Site`].
    pub lines: Vec<String>,
    /// What their operators cost, where they were costed.
    pub(crate) costed: Costed,
}

impl End {
    /// Of programs whose compute is not one of operators.
    pub fn new(ending: Ending, lines: Vec<String>) -> End {
        End { ending, lines, costed: Costed::default() }
    }
}

/// How a simulation ended.
#[must_use]
pub enum Ending {
    /// Every rank's program has returned.
    Finished,
    /// The programs did not come to their end.
    Stopped(Stop),
    /// Ranks that should be alike are not, because of this.
    Unlike(Asymmetry),
}

/// Why programs did not come to their end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The exit code of the command, which says whose fault it is.
    pub exit: Exit,
    /// What the user should know: whole lines, the first of which says what has happened.
    pub message: String,
}

/// What [`Session::carry_out`] has come to.
#[must_use]
pub enum Outcome {
    /// Every rank's program has returned.
    Finished(Box<Figures>),
    /// The programs did not come to their end.
    Stopped(Stop),
    /// Ranks that should be alike are not, because of this.
    Unlike(Asymmetry),
}

/// What a simulation with its report has come to.
#[must_use]
pub enum Done {
    /// Every rank's program has returned: the report is in the folder.
    Finished {
        /// What the folder's `report.json` says.
        report: Box<Report>,
        /// The folder with the results.
        folder: Folder,
    },
    /// The programs did not come to their end.
    Stopped(Stop),
}

/// A simulation that has a folder for its results, which nobody else writes to while this lives.
pub struct Session {
    resolved: Resolved,
    manifest: Manifest,
    record: RecordLevel,
    folder: Folder,
    notices: Notices,
    /// Reasons, known before the simulation, to doubt its figures.
    doubts: Vec<String>,
}

impl Session {
    /// Takes a folder for a simulation on a cluster. `seed` is that of everything random in it; `command` is what the report calls it by.
    ///
    /// # Errors
    /// If the folder is somebody else's, or cannot be written to.
    pub fn new(chosen: Chosen, seed: u64, command: Vec<String>, output: &Output) -> Result<Session, HostError> {
        let manifest = results::manifest(command, seed, &chosen.resolved);
        Session::with_manifest(chosen, manifest, output)
    }

    /// The same for what has a manifest already.
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

    /// The output folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Adds versions of what takes part to those that the report names.
    pub fn add_versions(&mut self, versions: impl IntoIterator<Item = (String, String)>) {
        self.manifest.versions.extend(versions);
    }

    /// Writes down where the duration of compute comes from.
    pub fn plan(&mut self, plan: &Plan) {
        plan.describe(&mut self.manifest);
    }

    /// The same where nodes list their operators.
    pub(crate) fn models(&mut self, models: &NodeModels) {
        models.describe(&mut self.manifest);
    }

    /// Carries a simulation out, and completes all files of its results but the report.
    ///
    /// # Errors
    /// The source's, and where the results cannot be written.
    pub fn carry_out(&self, source: &mut (impl Source + ?Sized)) -> Result<Outcome, HostError> {
        let mut recording = Recording::start(self.record, &self.resolved, &self.manifest, &self.folder, &self.notices)?;
        let (observer, recorder) = recording.watchers();
        let End { ending, lines, costed } = source.drive(&self.resolved.cluster, Watch { observer, recorder })?;
        let figures = recording.finish(lines, costed)?;
        Ok(match ending {
            Ending::Finished => Outcome::Finished(Box::new(figures)),
            Ending::Stopped(mut stop) => {
                // The run's error is shown before the warning that its report cannot be written.
                if let Err(error) = self.write(&self.report_of_failure(figures, &stop)) {
                    stop.message += &format!("warning: {error}\n");
                }
                Outcome::Stopped(stop)
            }
            Ending::Unlike(asymmetry) => Outcome::Unlike(asymmetry),
        })
    }

    /// The report of a run that stopped, with figures up to that time.
    fn report_of_failure(&self, figures: Figures, stop: &Stop) -> Report {
        let message = stop.message.trim_end();
        let first = message.lines().next().unwrap_or("error: the run was stopped");
        let first = first.strip_prefix("error: ").unwrap_or(first);
        let warning = format!("the run did not finish: {first}; all figures are of what happened until then");
        let mut report = self.report(figures, Vec::new());
        report.warnings.insert(0, warning);
        Report { failure: Some(message.to_owned()), interval: None, ..report }
    }

    /// The report of a simulation that has finished, with further reasons to doubt its figures.
    pub fn report(&self, figures: Figures, warnings: Vec<String>) -> Report {
        self.report_of_several(figures, Beside { warnings, ..Beside::default() })
    }

    /// The same with what simulations with other seeds came to.
    pub(crate) fn report_of_several(&self, figures: Figures, beside: Beside) -> Report {
        let warnings = self.doubts.iter().cloned().chain(beside.warnings).collect();
        results::of_run(figures, &self.resolved, Beside { warnings, ..beside }, self.manifest.clone())
    }

    /// Writes the report into the folder.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, report: &Report) -> Result<(), HostError> {
        self.folder.write(REPORT, report.to_json().as_bytes())
    }

    /// Writes the report, and ends the session.
    pub(crate) fn finish(self, report: Report) -> Result<Done, HostError> {
        self.write(&report)?;
        Ok(Done::Finished { report: Box::new(report), folder: self.folder })
    }
}
