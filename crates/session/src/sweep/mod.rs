//! Owns the execution of a sweep's trials: which trials may share a record, the sweep's folder and journal, and the
//! table of results.
//!
//! The points are defined in `uniference-studies`; the caller runs programs and jobs ([`Carrier`]). Completed trials
//! are in the journal, so a sweep that was interrupted, even by `kill -9`, continues where it stopped.

mod journal;
mod pool;
mod search;

pub use pool::{Carrier, Halted, Watch, carry_out};
pub use search::{Asker, Told, search};

use crate::cluster::ClusterOptions;
use crate::compute::{ComputeOptions, Plan as ComputePlan};
use crate::folder::{next_default, unwritable};
use crate::lock::{LOCK, Lock, Writer};
use crate::notices::Notices;
use crate::places::seen;
use crate::whole;
use journal::{CompletedTrial, Journal};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use uniference_formats::sweep::{Replays, Results, Sweep, Value, Words};
use uniference_host::error::HostError;
use uniference_studies::sweep::{Estimate, Plan, Row, results};

/// File name of the journal in a sweep's folder.
const JOURNAL: &str = "journal.sqlite";
/// File name of the results as CSV.
const CSV: &str = "results.csv";
/// File name of the results as Parquet.
const PARQUET: &str = "results.parquet";
/// File name of the page with charts.
const PAGE: &str = "sweep.html";
/// Folder with one folder per trial, named by its number.
const TRIALS: &str = "trials";

/// Estimated seconds of a generated job, if no job was timed yet.
const JOB_S: f64 = 0.5;

/// One point of a sweep, and the command that simulates it.
#[derive(Clone)]
pub struct Trial {
    /// The value of each parameter.
    pub settings: Vec<Value>,
    /// The command of the trial.
    pub words: Words,
    /// Options of the cluster.
    pub cluster: ClusterOptions,
    /// Options of the program's run; `None` for a generated job.
    pub program: Option<Program>,
}

/// Options of a program's run.
#[derive(Clone)]
pub struct Program {
    /// Source of compute durations.
    pub compute: ComputeOptions,
    /// Seed of all random values in the simulation.
    pub seed: u64,
}

/// Information about a trial that is known before it runs.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Trials with equal keys have programs that make the same requests, as far as these can query the cluster. Each
    /// job has its own key.
    pub key: String,
    /// Whether compute is measured; no other trial may then run on this machine at the same time.
    pub measures: bool,
    /// The resolved cluster of the trial, independent of later changes to files.
    cluster: String,
}

impl Trial {
    /// Checks whether the trial can run.
    ///
    /// # Errors
    /// If its options describe no cluster, or compute durations are not available as the options request.
    pub fn prepare(&self) -> Result<Ready, HostError> {
        let chosen = self.cluster.resolve()?;
        let Some(Program { compute, .. }) = &self.program else {
            let key = self.words.all(&[]).join("\0");
            return Ok(Ready { key, measures: false, cluster: chosen.resolved.toml });
        };
        let measures = ComputePlan::live(compute, &chosen.resolved)?.measures();
        let words = [&self.words.command, &self.words.options, &self.words.program].map(|words| words.join("\0"));
        let key = format!("{}\0{}", words.join("\0"), seen(&chosen));
        Ok(Ready { key, measures, cluster: chosen.resolved.toml })
    }

    /// Options of the trial's command in addition to those of the sweep.
    pub fn options(&self, keeps_record: bool) -> Vec<String> {
        if self.program.is_none() {
            return Vec::new();
        }
        let record = if keeps_record { "--record=ops" } else { "--record=summary" };
        let is_chosen = self.words.options.iter().any(|option| option.starts_with("--record"));
        ["--quiet"].into_iter().chain((!is_chosen).then_some(record)).map(str::to_owned).collect()
    }

    /// The command that runs the trial alone, quoted for a shell.
    fn command(&self) -> String {
        let words = ["uniference".to_owned()].into_iter().chain(self.words.all(&[]));
        let words: Vec<String> = words.collect();
        shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
    }
}

/// A trial, and the information about it, or the reason why it cannot run.
pub type TrialReady = (Trial, Result<Ready, String>);

/// A sweep with all its trials, or a search with the trials known so far.
pub struct Undertaking<'a> {
    /// The sweep file.
    pub sweep: &'a Sweep,
    /// The trials to run.
    pub trials: Vec<TrialReady>,
    /// Groups of trials that share records.
    pub plan: Plan,
    /// Number of trials that run at once.
    pub jobs: usize,
    /// Whether more trials may follow, which can replay the records of earlier ones.
    grows: bool,
}

impl<'a> Undertaking<'a> {
    /// Plans the trials. `jobs` trials run at once; `None`: one per core, or one if compute is measured.
    pub fn new(sweep: &'a Sweep, trials: Vec<TrialReady>, jobs: Option<usize>) -> Undertaking<'a> {
        let plan = plan_of(sweep, &trials);
        let measures = trials.iter().any(|(_, ready)| ready.as_ref().is_ok_and(|ready| ready.measures));
        let jobs = jobs.unwrap_or(if measures { 1 } else { cores() });
        Undertaking { sweep, trials, plan, jobs, grows: false }
    }

    /// A search without trials.
    pub fn growing(sweep: &'a Sweep, jobs: usize) -> Undertaking<'a> {
        Undertaking { sweep, trials: Vec::new(), plan: plan_of(sweep, &[]), jobs, grows: true }
    }

    /// Adds a trial.
    fn add(&mut self, trial: TrialReady) {
        self.trials.push(trial);
        self.plan = plan_of(self.sweep, &self.trials);
    }

    /// Whether the compute of any trial is measured.
    pub fn measures(&self) -> bool {
        self.trials.iter().any(|(_, ready)| ready.as_ref().is_ok_and(|ready| ready.measures))
    }

    /// Whether a later trial may replay the record of this one.
    fn may_be_answered(&self, number: usize) -> bool {
        self.grows && self.sweep.replays != Replays::Never && self.trials[number].0.program.is_some()
    }

    /// Estimated duration of the whole sweep.
    pub fn estimate(&self) -> Estimate {
        let timed: &[f64] = if self.sweep.is_of_jobs() { &[JOB_S] } else { &[] };
        self.plan.estimate(|_| false, self.jobs, (timed, &[]))
    }

    /// Identity of this sweep: the program's file and this program's version, and for a sweep all its trials.
    fn identity(&self, script: &[u8]) -> String {
        let trials = (0..self.trials.len()).map(|number| self.identity_of(number));
        let kind = if self.grows { "search" } else { "sweep" };
        let replays = format!("{:?}", self.sweep.replays);
        let parts = [kind.to_owned(), env!("CARGO_PKG_VERSION").to_owned(), replays].into_iter().chain(trials);
        let parts: Vec<String> = parts.collect();
        hashed(parts.iter().map(String::as_bytes).chain([script]))
    }

    /// Identity of a trial: its command and its resolved cluster.
    fn identity_of(&self, number: usize) -> String {
        let (trial, ready) = &self.trials[number];
        let cluster = ready.as_ref().map_or("", |ready| &ready.cluster);
        hashed([trial.command().as_bytes(), cluster.as_bytes()])
    }
}

/// Number of CPU cores of this machine.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn plan_of(sweep: &Sweep, trials: &[TrialReady]) -> Plan {
    let keys: Vec<Option<&String>> =
        trials.iter().map(|(_, ready)| ready.as_ref().ok().map(|ready| &ready.key)).collect();
    uniference_studies::sweep::plan(&keys, sweep.replays)
}

/// The SHA-256 of delimited parts, in hexadecimal digits.
fn hashed<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The folder of a sweep; no other command writes to it while this exists.
pub struct SweepFolder {
    path: PathBuf,
    journal: Journal,
    done: BTreeMap<usize, CompletedTrial>,
    _lock: Option<Lock>,
}

impl SweepFolder {
    /// Opens the folder `out`, or creates the next free `uniference-out/NAME-N`. A sweep that was begun in the folder
    /// continues. `script` is the contents of the program's file. With `again`, failed trials run again.
    ///
    /// # Errors
    /// If the folder belongs to another command or another sweep, or it cannot be written to.
    pub fn take(
        undertaking: &Undertaking<'_>,
        script: &[u8],
        (out, name): (Option<&Path>, &OsStr),
        again: bool,
        notices: &Notices,
    ) -> Result<SweepFolder, HostError> {
        let path = match out {
            Some(path) => path.to_owned(),
            None => next_default(name)?,
        };
        fs::create_dir_all(&path).map_err(|source| unwritable("create", &path, source))?;
        let lock = Lock::of_folder(&path, Writer::Alone, notices)?;
        let file = path.join(JOURNAL);
        let own = [LOCK, JOURNAL, "journal.sqlite-journal", CSV, PARQUET, PAGE, TRIALS];
        let is_other = |name: &str| !own.contains(&whole::unfinished(name).unwrap_or(name));
        let entries = fs::read_dir(&path).map_err(|source| unwritable("read", &path, source))?;
        let names = entries.filter_map(Result::ok).map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name != LOCK).collect();
        names.sort();
        if let Some(name) = names.iter().find(|name| is_other(name) || !file.exists()) {
            let hint = "choose another folder with --out";
            let (path, name) = (path.display(), name);
            return Err(HostError::Usage(format!("{path} contains {name}, which is not of a sweep\nhint: {hint}")));
        }
        let mut journal = Journal::open(&file, &undertaking.identity(script))?;
        if again {
            journal.forget_failed()?;
        }
        let done = journal.done()?;
        Ok(SweepFolder { path, journal, done, _lock: lock })
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of completed trials, in this command or an earlier one.
    pub fn done(&self) -> usize {
        self.done.len()
    }

    /// Number of trials that failed.
    pub fn failed(&self) -> usize {
        self.done.values().filter(|done| done.outcome.is_err()).count()
    }

    /// Run folder of a trial.
    fn trial(&self, number: usize) -> PathBuf {
        self.path.join(TRIALS).join(number.to_string())
    }

    /// The table of completed trials.
    pub fn table(&self, undertaking: &Undertaking<'_>) -> Results {
        let row = |(number, done): (&usize, &CompletedTrial)| {
            let (trial, _) = undertaking.trials.get(*number)?;
            let (settings, command) = (trial.settings.clone(), trial.command());
            Some(Row { trial: *number, settings, command, outcome: done.outcome.clone() })
        };
        let rows: Vec<Row> = self.done.iter().filter_map(row).collect();
        results(undertaking.sweep, &rows)
    }

    /// Writes the table as CSV and Parquet, and a page of charts.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn write(&self, undertaking: &Undertaking<'_>) -> Result<Results, HostError> {
        let table = self.table(undertaking);
        let page = uniference_studies::page::sweep(undertaking.sweep, &table);
        for (name, bytes) in [(CSV, table.to_csv()), (PARQUET, table.to_parquet()), (PAGE, page.into_bytes())] {
            let path = self.path.join(name);
            whole::write(&path, &bytes).map_err(|source| unwritable("write", &path, source))?;
        }
        Ok(table)
    }
}
