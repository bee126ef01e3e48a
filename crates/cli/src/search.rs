//! Owns `uniference search`: the process that chooses points, and the output of the best ones. `uniference-session`
//! runs the search, and Optuna chooses the points (`python/uniference/searching.py`).

use super::ray::{OnRay, Place};
use super::sweep::{
    Commands, Progress, Trials, complain_of_failed, measured_on_ray, name, read, script, settings, shown,
};
use serde::Deserialize;
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use uniference_formats::diagnostic::Diagnostic;
use uniference_formats::sweep::{Results, Search, Sweep, Value};
use uniference_formats::units::counted;
use uniference_host::interrupt::{Interrupts, shield};
use uniference_host::supervisor::supervise;
use uniference_session::sweep::{
    Asker, Carrier, Halted, SweepFolder, Told, TrialReady, Undertaking, search as carry_out,
};
use uniference_session::{Exit, HostError};
use uniference_studies::sweep::best;

/// Maximum number of best trials in the output.
const MOST_SHOWN: usize = 10;

/// `uniference search`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Sweep file (TOML) with a table [search], or - for standard input, with paths relative to the current folder
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Sweep folder; continues the same search if the folder contains the beginning of it [default: the next
    /// free uniference-out/NAME-N]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Number of trials that are carried out at once, of the `at_once` that are chosen together [default: all of them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
    /// Machines that run programs and jobs; replays stay on this machine
    #[arg(long, value_name = "PLACE", value_enum, default_value_t)]
    on: Place,
    /// Show neither progress nor the best trials: only warnings and errors
    #[arg(long)]
    quiet: bool,
}

/// Runs a search.
pub(super) fn search(args: &Args, python: &Path) -> Result<Exit, HostError> {
    let (sweep, folder) = read(&args.file)?;
    let Some(wanted) = &sweep.search else {
        let hint =
            "add [search] with minimize = \"makespan_s\" and trials = 60; or try all points with `uniference sweep`";
        let message = format!("{}: the file says nothing of a search", args.file.display());
        return Err(shown(Diagnostic::new(message).hint(hint)));
    };
    let trials = Trials::default();
    let prepare = |point: &[Value]| -> TrialReady {
        let (trial, ready) = trials.prepare(point, sweep.words(point, folder));
        (trial, ready.map_err(|error| super::with_prefix(&error)))
    };
    let measures = check(&sweep, &prepare)?;
    let jobs = args.jobs.map_or(wanted.at_once, |jobs| jobs as usize).min(wanted.at_once);
    if measures && jobs > 1 {
        let hint = "add --jobs 1, or let compute = \"model\"";
        return Err(HostError::Usage(format!(
            "compute is measured, and trials side by side would slow each other down\nhint: {hint}"
        )));
    }
    let mut optuna = Optuna::start(python, &sweep, wanted)?;
    let carrier: Box<dyn Carrier> = match args.on {
        Place::Here => Box::new(Commands::of(&sweep, || Ok(python.to_owned()))?),
        Place::Ray if measures => return Err(measured_on_ray()),
        Place::Ray => Box::new(OnRay::start(python, &sweep, folder, args.out.as_deref())?),
    };
    let mut undertaking = Undertaking::growing(&sweep, jobs);
    let place = (args.out.as_deref(), name(&args.file));
    let mut results = SweepFolder::take(&undertaking, &script(&sweep, folder), place, false, &super::notices())?;
    let path = results.path().display().to_string();
    if !args.quiet {
        super::say(format_args!("results: {path}; what is interrupted there goes on with --out {path}\n"))?;
    }
    let interrupts = Interrupts::new()?;
    let mut progress = Progress::new(wanted.trials, args.quiet);
    let with = (&*carrier, &mut progress as &mut _, &interrupts);
    let halted = carry_out(&mut undertaking, wanted, &prepare, &mut optuna, &mut results, with);
    drop((progress, interrupts, carrier));
    let table = results.write(&undertaking)?;
    if let Halted::By(interrupt) = halted? {
        super::complain(format_args!(
            "interrupted after {}\nhint: go on with --out {path}\n",
            counted(results.done(), "trial")
        ));
        return Ok(interrupt.into());
    }
    conclude(&sweep, wanted, &table, (!args.quiet).then_some(&path))
}

/// Refuses a search whose points fail with both the first and the last value of each parameter; returns whether compute
/// is measured.
fn check(sweep: &Sweep, prepare: &dyn Fn(&[Value]) -> TrialReady) -> Result<bool, HostError> {
    let at = |share| sweep.parameters.iter().map(|parameter| parameter.domain.at(share)).collect::<Vec<Value>>();
    let tried = [0.0, 0.999_999].map(|share| prepare(&at(share)).1);
    match tried {
        [Err(error), Err(_)] => Err(HostError::Usage(error.trim_start_matches("error: ").to_owned())),
        tried => Ok(tried.iter().flatten().any(|ready| ready.measures)),
    }
}

/// Prints the best trials, and the path of all results; without `path`, only failures.
fn conclude(sweep: &Sweep, search: &Search, table: &Results, path: Option<&str>) -> Result<Exit, HostError> {
    complain_of_failed(sweep, table);
    let best = best(search, table);
    let exit = if best.is_empty() { Exit::ProgramFailed } else { Exit::Ok };
    let Some(path) = path else { return Ok(exit) };
    let trials = counted(table.columns.first().map_or(0, |column| column.cells.len()), "trial");
    match (&best[..], &search.objectives[..]) {
        ([], _) => super::say(format_args!("{trials}: none that meets the constraints has finished\n"))?,
        (_, [_]) => super::say(format_args!("the best of {trials}:\n"))?,
        (best, _) => super::say(format_args!("{} of {trials} that no other beats in all objectives:\n", best.len()))?,
    }
    for row in best.iter().take(MOST_SHOWN) {
        let cell = |name: &String| table.column(name).map(|column| column.cells[*row].text()).unwrap_or_default();
        let goals: Vec<String> = search
            .objectives
            .iter()
            .map(|objective| format!("{} {}", objective.column, cell(&objective.column)))
            .collect();
        super::say(format_args!("  trial {row}: {} ({})\n", goals.join(", "), settings(sweep, table, *row)))?;
    }
    super::say(format_args!("results: {path} (results.csv, results.parquet; open sweep.html in a browser)\n"))?;
    Ok(exit)
}

/// The process that runs Optuna. It ends when this is dropped.
struct Optuna {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

#[derive(Deserialize)]
struct Answer {
    points: Vec<Vec<f64>>,
}

impl Optuna {
    fn start(python: &Path, sweep: &Sweep, search: &Search) -> Result<Optuna, HostError> {
        let is_there = shield(Command::new(python).args(["-P", "-c", "import optuna"])).output();
        if !is_there.is_ok_and(|output| output.status.success()) {
            return Err(HostError::Host {
                what: "`uniference search` requires Optuna".to_owned(),
                hint: "pip install \"uniference[search]\"".to_owned(),
            });
        }
        let mut command = Command::new(python);
        command.args(["-P", "-m", "uniference.searching"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = supervise(shield(&mut command)).spawn().map_err(HostError::system("starting Optuna"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("it is piped"));
        let mut optuna = Optuna { child, input, output: BufReader::new(output) };
        let parameters = sweep.parameters.iter().map(|parameter| {
            let kind = match (parameter.domain.count(), parameter.domain.is_ordered()) {
                (None, _) => "interval",
                (Some(_), true) => "ordered",
                (Some(_), false) => "unordered",
            };
            json!({ "name": parameter.name, "kind": kind, "count": parameter.domain.count() })
        });
        let directions =
            search.objectives.iter().map(|objective| if objective.maximize { "maximize" } else { "minimize" });
        optuna.send(&json!({
            "parameters": parameters.collect::<Vec<_>>(),
            "directions": directions.collect::<Vec<_>>(),
            "seed": search.seed % (1 << 32),
        }))?;
        Ok(optuna)
    }

    fn send(&mut self, message: &serde_json::Value) -> Result<(), HostError> {
        let input = self.input.as_mut().expect("it is open until the end");
        writeln!(input, "{message}").and_then(|()| input.flush()).map_err(|_| ended())
    }
}

/// Error for the ended process, which has written its reason to standard error.
fn ended() -> HostError {
    HostError::Host {
        what: "the process that Optuna is asked in has ended; what it said is above".to_owned(),
        hint: "check the installation: pip install \"uniference[search]\"".to_owned(),
    }
}

impl Asker for Optuna {
    fn ask(&mut self, count: usize) -> Result<Vec<Vec<f64>>, HostError> {
        self.send(&json!({ "ask": count }))?;
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|_| ended())?;
        let Answer { points } = serde_json::from_str(&line).map_err(|_| ended())?;
        Ok(points)
    }

    fn tell(&mut self, told: &[Told]) -> Result<(), HostError> {
        let told = told.iter().map(|Told { values, violations }| json!({ "values": values, "violations": violations }));
        self.send(&json!({ "tell": told.collect::<Vec<_>>() }))
    }

    fn enqueue(&mut self, point: &[f64]) -> Result<(), HostError> {
        self.send(&json!({ "enqueue": point }))
    }
}

impl Drop for Optuna {
    fn drop(&mut self) {
        // The process ends when its input ends.
        self.input = None;
        let _ = self.child.wait();
    }
}
