//! Owns the order in which trials run, several at once: the first trial of each group runs, and the others replay its
//! record.

use super::journal::{Done, other};
use super::{JOURNAL, Program, SweepFolder, TRIALS, Trial, Undertaking};
use crate::input;
use crate::recorded::{Replay, Told, replay_told};
use crate::results::{RECORD, REPORT};
use crate::session::{Done as Simulated, Output};
use crate::{Notices, RecordLevel};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};
use uniference_formats::report::Report;
use uniference_formats::sweep::Replays;
use uniference_host::error::HostError;
use uniference_host::interrupt::{Interrupt, Interrupts};
use uniference_studies::sweep::{Estimate, Source, figures};

/// Interval between checks for signals.
const PERIOD: Duration = Duration::from_millis(50);

/// Runs programs and jobs.
pub trait Carrier: Sync {
    /// Runs the command of a trial, which writes its results to `folder`; with `keeps_record` also the program record.
    /// The run ends early if `stop` is set.
    ///
    /// # Errors
    /// Reason why the trial did not complete, for the user.
    fn run(&self, trial: &Trial, folder: &Path, keeps_record: bool, stop: &AtomicBool) -> Result<(), String>;

    /// Error after which no trial can run. Trials that fail afterwards did not fail by themselves, and are not
    /// recorded.
    fn lost(&self) -> Option<HostError> {
        None
    }
}

/// Receives the progress of a sweep.
pub trait Watch {
    /// Reports that `done` trials are complete; `left` estimates the duration of the others.
    fn progress(&mut self, done: usize, left: &Estimate);
}

/// Reason why a sweep stopped early.
#[must_use]
pub enum Halted {
    /// All trials are complete.
    No,
    /// A signal interrupted the sweep.
    By(Interrupt),
}

/// Runs all trials that are not complete.
///
/// # Errors
/// If the journal cannot be written. A failed trial is recorded, and the others continue.
pub fn carry_out(
    undertaking: &Undertaking<'_>,
    folder: &mut SweepFolder,
    carrier: &dyn Carrier,
    watch: &mut dyn Watch,
    interrupts: &Interrupts,
) -> Result<Halted, HostError> {
    for (number, (_, ready)) in undertaking.trials.iter().enumerate() {
        let identity = undertaking.identity_of(number);
        match (folder.done.get(&number), ready) {
            (Some(done), _) if done.identity == identity => {}
            (Some(_), _) => return Err(other(&folder.path.join(JOURNAL))),
            // A trial that cannot run has failed.
            (None, Err(error)) => note(folder, number, Done { identity, seconds: 0.0, outcome: Err(error.clone()) })?,
            (None, Ok(_)) => {}
        }
    }
    let pool = Pool::new(undertaking, folder);
    let (sender, receiver) = channel();
    let left = |folder: &SweepFolder| {
        let timed = |is_run: bool| {
            let of = |done: &Done| done.outcome.as_ref().is_ok_and(|(source, _)| (*source == Source::Run) == is_run);
            folder.done.values().filter(|done| of(done)).map(|done| done.seconds).collect::<Vec<f64>>()
        };
        let done = |number| folder.done.contains_key(&number);
        undertaking.plan.estimate(done, undertaking.jobs, (&timed(true), &timed(false)))
    };
    watch.progress(folder.done(), &left(folder));
    std::thread::scope(|scope| {
        for _ in 0..undertaking.jobs {
            let (pool, sender) = (&pool, sender.clone());
            scope.spawn(move || pool.work(carrier, &sender));
        }
        drop(sender);
        let mut halted = Halted::No;
        loop {
            match receiver.recv_timeout(PERIOD) {
                Ok((_, Done { outcome: Err(_), .. })) if carrier.lost().is_some() => {}
                Ok((number, done)) => {
                    if let Err(error) = note(folder, number, done) {
                        pool.stop();
                        return Err(error);
                    }
                    watch.progress(folder.done(), &left(folder));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(halted),
            }
            if let Some(error) = carrier.lost() {
                pool.stop();
                return Err(error);
            }
            if let Some(interrupt) = interrupts.take() {
                halted = Halted::By(interrupt);
                pool.stop();
            }
        }
    })
}

fn note(folder: &mut SweepFolder, number: usize, done: Done) -> Result<(), HostError> {
    folder.journal.add(number, &done)?;
    folder.done.insert(number, done);
    Ok(())
}

/// The trials that workers choose from.
struct Pool<'a> {
    undertaking: &'a Undertaking<'a>,
    /// Folder with the trials' folders.
    trials: PathBuf,
    state: Mutex<State>,
    /// Signalled when a run or a replay ends.
    changed: Condvar,
    stop: AtomicBool,
    /// Cores of this machine, the limit of concurrent replays.
    cores: usize,
}

struct State {
    waiting: BTreeSet<usize>,
    /// Number of replays in progress.
    replaying: usize,
    /// The state of each group's record, by group.
    records: Vec<Record>,
}

/// The record that the trials of a group replay.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Record {
    None,
    /// A running trial writes the record.
    UnderWay,
    /// The trial with this number wrote the record.
    Of(usize),
}

/// Next task of a worker.
enum Task {
    Run { number: usize, keeps_record: bool },
    Replay { number: usize, of: usize },
}

impl<'a> Pool<'a> {
    fn new(undertaking: &'a Undertaking<'a>, folder: &SweepFolder) -> Pool<'a> {
        let waiting = (0..undertaking.trials.len()).filter(|number| !folder.done.contains_key(number)).collect();
        let mut records = vec![Record::None; undertaking.plan.first.len()];
        for (number, done) in &folder.done {
            let is_run = done.outcome.as_ref().is_ok_and(|(source, _)| *source == Source::Run);
            // In a search that continues, the journal may have trials that were not asked for yet.
            if let Some(Some(group)) = undertaking.plan.groups.get(*number).copied()
                && is_run
                && folder.trial(*number).join(RECORD).exists()
            {
                records[group] = Record::Of(*number);
            }
        }
        let state = Mutex::new(State { waiting, replaying: 0, records });
        Pool {
            undertaking,
            trials: folder.path.join(TRIALS),
            state,
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            cores: super::cores(),
        }
    }

    fn stop(&self) {
        // With the lock held, each worker either has not checked `stop` yet, or is waiting and gets notified.
        let _state = self.state.lock().expect("nobody panics who holds it");
        self.stop.store(true, Relaxed);
        self.changed.notify_all();
    }

    fn work(&self, carrier: &dyn Carrier, sender: &Sender<(usize, Done)>) {
        while let Some(task) = self.next() {
            let begin = Instant::now();
            let (number, outcome) = match task {
                Task::Run { number, keeps_record } => (number, self.run(number, keeps_record, carrier)),
                Task::Replay { number, of } => {
                    let outcome = self.replay(number, of, carrier);
                    self.state.lock().expect("nobody panics who holds it").replaying -= 1;
                    self.changed.notify_all();
                    (number, outcome)
                }
            };
            if self.stop.load(Relaxed) && outcome.is_err() {
                return;
            }
            let made_record = matches!(outcome, Ok((Source::Run, _))) && self.record(number).exists();
            // The run is sent to the journal before another worker can replay its record.
            let identity = self.undertaking.identity_of(number);
            let done = Done { identity, seconds: begin.elapsed().as_secs_f64(), outcome };
            if sender.send((number, done)).is_err() {
                return;
            }
            if let (Task::Run { keeps_record: true, .. }, Some(group)) = (&task, self.undertaking.plan.groups[number]) {
                let mut state = self.state.lock().expect("nobody panics who holds it");
                state.records[group] = if made_record { Record::Of(number) } else { Record::None };
                self.changed.notify_all();
            }
        }
    }

    /// The next task. Runs come first, because replays need their records.
    fn next(&self) -> Option<Task> {
        let mut state = self.state.lock().expect("nobody panics who holds it");
        loop {
            if self.stop.load(Relaxed) || state.waiting.is_empty() {
                return None;
            }
            let group = |number: usize| self.undertaking.plan.groups[number].expect("the others have failed");
            let may_replay = state.replaying < self.cores;
            let mut first = |wanted: fn(Record) -> bool| {
                let found = state.waiting.iter().copied().find(|number| wanted(state.records[group(*number)]))?;
                state.waiting.remove(&found);
                Some((found, state.records[group(found)]))
            };
            if let Some((number, _)) = first(|record| record == Record::None) {
                let of = group(number);
                let others = state.waiting.iter().any(|other| group(*other) == of);
                let keeps_record = others || self.undertaking.may_be_answered(number);
                if keeps_record {
                    state.records[of] = Record::UnderWay;
                }
                return Some(Task::Run { number, keeps_record });
            }
            if let Some((number, Record::Of(of))) =
                may_replay.then(|| first(|record| matches!(record, Record::Of(_)))).flatten()
            {
                state.replaying += 1;
                return Some(Task::Replay { number, of });
            }
            state = self.changed.wait(state).expect("nobody panics who holds it");
        }
    }

    fn record(&self, number: usize) -> PathBuf {
        self.trials.join(number.to_string()).join(RECORD)
    }

    fn run(&self, number: usize, keeps_record: bool, carrier: &dyn Carrier) -> Outcome {
        let folder = self.trials.join(number.to_string());
        self.guarded(|| {
            clear(&folder)?;
            carrier.run(&self.undertaking.trials[number].0, &folder, keeps_record, &self.stop)?;
            Ok((Source::Run, figures(&report(&folder)?)))
        })
    }

    /// Replays the record; runs the program if it could have diverged from the record and exact results are requested.
    fn replay(&self, number: usize, of: usize, carrier: &dyn Carrier) -> Outcome {
        let folder = self.trials.join(number.to_string());
        let trial = &self.undertaking.trials[number].0;
        let is_exact = self.undertaking.sweep.replays == Replays::Exact;
        let replayed = self.guarded(|| {
            clear(&folder)?;
            let program = trial.program.as_ref().expect("jobs have no records");
            let record = self.trials.join(of.to_string());
            let replay = replay_of(trial, program, &record, &folder).map_err(|error| said(&error))?;
            match replay_told(&replay).map_err(|error| said(&error))? {
                Told { done: Simulated::Finished { .. }, depends_on_time } if depends_on_time && is_exact => {
                    Err(String::new())
                }
                Told { done: Simulated::Finished { report, .. }, .. } => Ok((Source::Replay(of), figures(&report))),
                Told { done: Simulated::Stopped(stop), .. } => Err(stop.message.trim_end().to_owned()),
            }
        });
        match replayed {
            Err(_) if is_exact && !self.stop.load(Relaxed) => self.run(number, false, carrier),
            other => other,
        }
    }

    /// A panic ends the trial, but not the sweep.
    fn guarded(&self, task: impl FnOnce() -> Outcome) -> Outcome {
        catch_unwind(AssertUnwindSafe(task)).unwrap_or_else(|_| {
            Err("this is a bug in Uniference; please report it together with the lines on standard error".to_owned())
        })
    }
}

type Outcome = Result<(Source, std::collections::BTreeMap<String, uniference_formats::column::Cell>), String>;

/// The replay of a record on a trial's cluster.
fn replay_of(trial: &Trial, program: &Program, record: &Path, folder: &Path) -> Result<Replay, HostError> {
    let mut cluster = trial.cluster.clone();
    if !cluster.resolve()?.backend_named {
        // The recorded program has named its backend.
        cluster.overrides.backend = Some(crate::recorded::backend(record)?);
    }
    Ok(Replay {
        run: record.to_owned(),
        cluster,
        seed: Some(program.seed),
        repeat: 1,
        command: ["uniference".to_owned()].into_iter().chain(trial.words.all(&[])).collect(),
        compute: program.compute.clone(),
        arrangement: None,
        output: Output {
            folder: Some(folder.to_owned()),
            record: RecordLevel::Summary,
            notices: Notices::ignored(),
            ..Output::default()
        },
    })
}

/// Removes the files of an interrupted attempt.
fn clear(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("error: cannot remove {}: {error}", folder.display()))
        }
        _ => fs::create_dir_all(folder).map_err(|error| format!("error: cannot create {}: {error}", folder.display())),
    }
}

fn report(folder: &Path) -> Result<Report, String> {
    let path = folder.join(REPORT);
    let text = input::text(&path).map_err(|error| format!("error: cannot read {}: {error}", path.display()))?;
    let report = Report::from_json(&text).map_err(|error| format!("error: {}: {error}", path.display()))?;
    report.failure.clone().map_or(Ok(report), Err)
}

/// An error in the form that a command prints.
pub(super) fn said(error: &HostError) -> String {
    match error {
        HostError::Diagnostic(diagnostic) => diagnostic.to_string(),
        other => format!("error: {other}"),
    }
}
