//! Owns how the trials of a sweep are carried out: which of them may share a record, the folder that they go to and its journal, and the table of their
//! results.
//!
//! Which points there are is `uniference-studies`' business, how a program or a job is run the caller's ([`Carrier`]). What a sweep has finished is in the journal,
//! so that a sweep that was ended, by `kill -9` too, goes on where it was.

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
use journal::{Done, Journal};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use uniference_formats::sweep::{Replays, Results, Sweep, Value, Words};
use uniference_host::error::HostError;
use uniference_studies::sweep::{Estimate, Plan, Row, results};

/// The journal, in the folder of a sweep.
const JOURNAL: &str = "journal.sqlite";
/// The table of results.
const CSV: &str = "results.csv";
/// The same as Parquet.
const PARQUET: &str = "results.parquet";
/// The page of charts.
const PAGE: &str = "sweep.html";
/// The folder with a folder for each trial, named by its number.
const TRIALS: &str = "trials";

/// A generated job takes about so many seconds, where none was timed.
const JOB_S: f64 = 0.5;

/// One point of a sweep, and what it takes to carry it out.
#[derive(Clone)]
pub struct Trial {
    /// The value of each parameter.
    pub settings: Vec<Value>,
    /// The command that carries it out.
    pub words: Words,
    /// What its options say of the cluster.
    pub cluster: ClusterOptions,
    /// The same of how a program is run; a generated job is not one.
    pub program: Option<Program>,
}

/// How a program is run, as its options say.
#[derive(Clone)]
pub struct Program {
    /// Where the duration of compute comes from.
    pub compute: ComputeOptions,
    /// Of everything random in the simulation.
    pub seed: u64,
}

/// What was found out of a trial before anything is run.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Trials with one key have programs that ask for the same, as far as these can see. Each job has a key of its own.
    pub key: String,
    /// Whether compute is measured: then nothing else may run on this machine.
    pub measures: bool,
    /// What it is simulated on, whatever files say later.
    cluster: String,
}

impl Trial {
    /// Finds out whether it can be carried out.
    ///
    /// # Errors
    /// If its options describe no cluster, or compute cannot be had as they say.
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

    /// What its command is told beside what the sweep says.
    pub fn options(&self, keeps_record: bool) -> Vec<String> {
        if self.program.is_none() {
            return Vec::new();
        }
        let record = if keeps_record { "--record=ops" } else { "--record=summary" };
        let is_chosen = self.words.options.iter().any(|option| option.starts_with("--record"));
        ["--quiet"].into_iter().chain((!is_chosen).then_some(record)).map(str::to_owned).collect()
    }

    /// The command that carries it out by itself, as a shell takes it.
    fn command(&self) -> String {
        let words = ["uniference".to_owned()].into_iter().chain(self.words.all(&[]));
        let words: Vec<String> = words.collect();
        shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
    }
}

/// A trial, and what was found out of it, or why it cannot be carried out.
pub type TrialReady = (Trial, Result<Ready, String>);

/// A sweep whose trials are known, or a search with those that are known so far.
pub struct Undertaking<'a> {
    /// The sweep file.
    pub sweep: &'a Sweep,
    /// The trials to carry out.
    pub trials: Vec<TrialReady>,
    /// Which of them share records.
    pub plan: Plan,
    /// Number of trials that are carried out at once.
    pub jobs: usize,
    /// More trials may come, which records can answer.
    grows: bool,
}

impl<'a> Undertaking<'a> {
    /// Plans the trials. So many are carried out at once, or with `None` as many as there are cores, but one where compute is measured.
    pub fn new(sweep: &'a Sweep, trials: Vec<TrialReady>, jobs: Option<usize>) -> Undertaking<'a> {
        let plan = plan_of(sweep, &trials);
        let measures = trials.iter().any(|(_, ready)| ready.as_ref().is_ok_and(|ready| ready.measures));
        let jobs = jobs.unwrap_or(if measures { 1 } else { cores() });
        Undertaking { sweep, trials, plan, jobs, grows: false }
    }

    /// A search, without trials yet.
    pub fn growing(sweep: &'a Sweep, jobs: usize) -> Undertaking<'a> {
        Undertaking { sweep, trials: Vec::new(), plan: plan_of(sweep, &[]), jobs, grows: true }
    }

    /// One trial more.
    fn add(&mut self, trial: TrialReady) {
        self.trials.push(trial);
        self.plan = plan_of(self.sweep, &self.trials);
    }

    /// Whether the compute of any trial is measured.
    pub fn measures(&self) -> bool {
        self.trials.iter().any(|(_, ready)| ready.as_ref().is_ok_and(|ready| ready.measures))
    }

    /// Whether a trial that is yet to come may ask for the record of this one.
    fn may_be_answered(&self, number: usize) -> bool {
        self.grows && self.sweep.replays != Replays::Never && self.trials[number].0.program.is_some()
    }

    /// About how long it takes as a whole.
    pub fn estimate(&self) -> Estimate {
        let timed: &[f64] = if self.sweep.is_of_jobs() { &[JOB_S] } else { &[] };
        self.plan.estimate(|_| false, self.jobs, (timed, &[]))
    }

    /// Tells this sweep from others: the program's file and this program's version, and of a sweep all its trials.
    fn identity(&self, script: &[u8]) -> String {
        let trials = (0..self.trials.len()).map(|number| self.identity_of(number));
        let kind = if self.grows { "search" } else { "sweep" };
        let replays = format!("{:?}", self.sweep.replays);
        let parts = [kind.to_owned(), env!("CARGO_PKG_VERSION").to_owned(), replays].into_iter().chain(trials);
        let parts: Vec<String> = parts.collect();
        hashed(parts.iter().map(String::as_bytes).chain([script]))
    }

    /// Tells a trial from others: its command, and what it is simulated on.
    fn identity_of(&self, number: usize) -> String {
        let (trial, ready) = &self.trials[number];
        let cluster = ready.as_ref().map_or("", |ready| &ready.cluster);
        hashed([trial.command().as_bytes(), cluster.as_bytes()])
    }
}

/// Number of processor cores of this machine.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn plan_of(sweep: &Sweep, trials: &[TrialReady]) -> Plan {
    let keys: Vec<Option<&String>> =
        trials.iter().map(|(_, ready)| ready.as_ref().ok().map(|ready| &ready.key)).collect();
    uniference_studies::sweep::plan(&keys, sweep.replays)
}

/// The SHA-256 of parts that are told apart, in hexadecimal digits.
fn hashed<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The folder of a sweep, which nobody else writes to while this lives.
pub struct SweepFolder {
    path: PathBuf,
    journal: Journal,
    done: BTreeMap<usize, Done>,
    _lock: Option<Lock>,
}

impl SweepFolder {
    /// Takes a folder: a new one, or one in which the same sweep was begun, which then goes on. `out`, or else the next free `uniference-out/NAME-N`.
    /// `script` is what the program's file says. With `again` trials that have failed are carried out again.
    ///
    /// # Errors
    /// If it is somebody else's, another sweep's, or cannot be written to.
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

    /// How many trials were carried out, here or before.
    pub fn done(&self) -> usize {
        self.done.len()
    }

    /// Number of trials that failed.
    pub fn failed(&self) -> usize {
        self.done.values().filter(|done| done.outcome.is_err()).count()
    }

    /// Where the results of a trial are.
    fn trial(&self, number: usize) -> PathBuf {
        self.path.join(TRIALS).join(number.to_string())
    }

    /// The table of what was carried out.
    pub fn table(&self, undertaking: &Undertaking<'_>) -> Results {
        let row = |(number, done): (&usize, &Done)| {
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
    /// If they cannot be written.
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
