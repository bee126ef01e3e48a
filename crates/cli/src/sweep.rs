//! Owns `uniference sweep`: the commands of its trials, checks before the first trial, and the output. Planning is in
//! `uniference-studies`, and execution in `uniference-session`.

use super::progress::{Pace, coarse};
use super::ray::{OnRay, Place};
use super::run::check_script;
use super::{Cli, Command, workload};
use clap::{CommandFactory, Parser};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::process::{Pid, Signal, kill_process};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use uniference_formats::column::Cell;
use uniference_formats::diagnostic::{Diagnostic, suggest};
use uniference_formats::sweep::{Parameter, Replays, Results, Sweep, Value, Words};
use uniference_formats::table::seconds;
use uniference_formats::units::counted;
use uniference_host::interrupt::Interrupts;
use uniference_host::supervisor::{self, supervise};
use uniference_session::compute::Models;
use uniference_session::sweep::{Carrier, Halted, Ready, SweepFolder, Trial, Undertaking, Watch, carry_out};
use uniference_session::{ClusterOptions, Ended, Exit, HostError, Notices, input};
use uniference_studies::sweep::{Estimate, points, useless};

/// Maximum number of failed trials that are printed; the table has all.
const MOST_NAMED: usize = 3;
/// Maximum bytes of a sweep file on standard input.
const LONGEST: u64 = 16 << 20;
/// Maximum number of valid points with which a suspect value is tried.
const MOST_TRIED: usize = 8;
/// Interval between checks whether a command has ended.
const PERIOD: Duration = Duration::from_millis(20);
/// Time that a command has to end after a signal.
const PATIENCE: Duration = Duration::from_secs(5);

/// `uniference sweep`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Sweep file (TOML), or - for standard input, with paths relative to the current folder
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Sweep folder; continues the same sweep if the folder contains the beginning of it [default: the next
    /// free uniference-out/NAME-N]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Number of trials that are carried out at once [default: number of cores, here or of the Ray cluster; 1 with measured compute]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
    /// Machines that run programs and jobs; replays stay on this machine
    #[arg(long, value_name = "PLACE", value_enum, default_value_t)]
    on: Place,
    /// Print the number of runs and replays and their expected duration, and carry out none
    #[arg(long)]
    dry_run: bool,
    /// Show neither progress nor the sweep's result: only warnings and errors
    #[arg(long, conflicts_with = "dry_run")]
    quiet: bool,
    /// Carry out failed trials again
    #[arg(long, requires = "out")]
    retry: bool,
}

/// Runs a sweep.
pub(super) fn sweep(args: &Args, python: impl Fn() -> Result<PathBuf, HostError>) -> Result<Exit, HostError> {
    let (sweep, folder) = read(&args.file)?;
    sweep.check_grid().map_err(shown)?;
    let mut undertaking = prepare(&sweep, folder, args.jobs)?;
    let ray = match args.on {
        Place::Here => None,
        Place::Ray if undertaking.measures() => return Err(measured_on_ray()),
        Place::Ray => Some(OnRay::start(&python()?, &sweep, folder, args.out.as_deref())?),
    };
    if let (Some(ray), None) = (&ray, args.jobs) {
        undertaking.jobs = ray.processors();
    }
    let jobs_text = match undertaking.jobs {
        1 => "one at a time".to_owned(),
        jobs => format!("{jobs} at a time"),
    };
    if undertaking.measures() && undertaking.jobs > 1 {
        let hint = "leave --jobs out, or let compute = \"model\"";
        return Err(HostError::Usage(format!(
            "compute is measured, and trials side by side would slow each other down\nhint: {hint}"
        )));
    }
    let estimate = undertaking.estimate();
    if !args.quiet {
        let (trials, took) =
            (counted(undertaking.trials.len(), "trial"), coarse(Duration::from_secs_f64(estimate.seconds)));
        super::say(format_args!("{trials}: {estimate}, {jobs_text}: about {took}\n"))?;
        describe(&undertaking, folder)?;
    }
    if args.dry_run {
        return Ok(Exit::Ok);
    }
    let here;
    let carrier: &dyn Carrier = match &ray {
        Some(ray) => ray,
        None => {
            here = Commands::of(&sweep, &python)?;
            &here
        }
    };
    let place = (args.out.as_deref(), name(&args.file));
    let mut results = SweepFolder::take(&undertaking, &script(&sweep, folder), place, args.retry, &super::notices())?;
    let before = results.done();
    let path = results.path().display().to_string();
    match before {
        _ if args.quiet => {}
        0 => super::say(format_args!("results: {path}; what is interrupted there goes on with --out {path}\n"))?,
        done => super::say(format_args!("{path} has {done} of them already\n"))?,
    }
    let (begin, interrupts) = (Instant::now(), Interrupts::new()?);
    let mut progress = Progress::new(undertaking.trials.len(), args.quiet);
    let halted = carry_out(&undertaking, &mut results, carrier, &mut progress, &interrupts);
    drop((progress, interrupts, ray));
    let table = results.write(&undertaking)?;
    if let Halted::By(interrupt) = halted? {
        let done = results.done();
        super::complain(format_args!(
            "interrupted after {done} of {}\nhint: go on with --out {path}\n",
            counted(undertaking.trials.len(), "trial")
        ));
        return Ok(interrupt.into());
    }
    conclude(&undertaking, &table, &path, (!args.quiet).then(|| begin.elapsed()))
}

/// Error for measured compute on Ray, whose nodes differ in speed and may be busy.
pub(super) fn measured_on_ray() -> HostError {
    let hint = "let compute = \"model\", \"none\" or \"from=RUN\"";
    HostError::Usage(format!(
        "compute is measured, which is of this machine and not of a Ray cluster's nodes\nhint: {hint}"
    ))
}

/// Contents of the program's file; empty for other programs.
pub(super) fn script(sweep: &Sweep, folder: &Path) -> Vec<u8> {
    sweep.script(folder).and_then(|path| std::fs::read(path).ok()).unwrap_or_default()
}

/// Default name of the sweep folder.
pub(super) fn name(file: &Path) -> &OsStr {
    file.file_stem().filter(|_| file.as_os_str() != "-").unwrap_or("sweep".as_ref())
}

/// The sweep file, and its folder.
pub(super) fn read(file: &Path) -> Result<(Sweep, &Path), HostError> {
    let is_standard = file.as_os_str() == "-";
    let text = if is_standard { io::read_to_string(io::stdin().take(LONGEST)) } else { input::text(file) };
    let text = text.map_err(|source| HostError::File {
        action: "read",
        path: file.to_owned(),
        source,
        hint: "a sweep file is TOML text; see \"Sweep file\" in the documentation",
    })?;
    let origin = if is_standard { "standard input".to_owned() } else { file.display().to_string() };
    let sweep = Sweep::parse(&origin, &text).map_err(shown)?;
    let folder = file.parent().unwrap_or(Path::new(""));
    if let Some(script) = sweep.script(folder) {
        check_script(&[script.into_os_string()], false)?;
    }
    Ok((sweep, folder))
}

/// Checks which points can run. A value with which no point can run is an error.
fn prepare<'s>(sweep: &'s Sweep, folder: &Path, jobs: Option<u32>) -> Result<Undertaking<'s>, HostError> {
    let points = points(sweep);
    if points.is_empty() {
        let hint = "let `where` hold for some points";
        return Err(HostError::Usage(format!("the sweep has no points\nhint: {hint}")));
    }
    let trials = Trials::default();
    let prepared: Vec<_> = points.iter().map(|point| trials.prepare(point, sweep.words(point, folder))).collect();
    let fails: Vec<bool> = prepared.iter().map(|(_, ready)| ready.is_err()).collect();
    let mistake = match prepared.iter().position(|(_, ready)| ready.is_ok()) {
        Some(_) => {
            // Points that were drawn at random may fail with a value that is valid in other points.
            let works = points.iter().zip(&fails).filter(|(_, fails)| !**fails).take(MOST_TRIED);
            let works: Vec<&Vec<Value>> = works.map(|(point, _)| point).collect();
            let is_mistake = |parameter: usize, value: &Value| {
                works.iter().all(|point| {
                    let mut point = point.to_vec();
                    point[parameter] = value.clone();
                    trials.prepare(&point, sweep.words(&point, folder)).1.is_err()
                })
            };
            let mut left = fails.clone();
            loop {
                match useless(&points, &left) {
                    Some((parameter, point)) if is_mistake(parameter, &points[point][parameter]) => {
                        break Some((point, Some(sweep.place(parameter, &points[point][parameter]))));
                    }
                    Some((_, point)) => left[point] = false,
                    None => break None,
                }
            }
        }
        None => {
            let works = |words: &Words| trials.prepare(&points[0], words.clone()).1.is_ok();
            Some((0, sweep.culprit(&points[0], folder, works)))
        }
    };
    let mut undertaken = Vec::new();
    for (number, (trial, ready)) in prepared.into_iter().enumerate() {
        match (ready, &mistake) {
            (Err(error), Some((of, place))) if *of == number => {
                let Some(place) = place else { return Err(error) };
                return Err(shown(sweep.error(diagnostic(error), place.clone())));
            }
            (ready, _) => undertaken.push((trial, ready.map_err(|error| super::with_prefix(&error)))),
        }
    }
    Ok(Undertaking::new(sweep, undertaken, jobs.map(|jobs| jobs as usize)))
}

/// A further database, and the device that is ignored in all databases.
type Databases = (Option<PathBuf>, Option<String>);

/// State that all trials share.
#[derive(Default)]
pub(super) struct Trials {
    /// Device models of the databases that `--device-db` and `--leave-out` choose.
    models: RefCell<BTreeMap<Databases, Models>>,
}

impl Trials {
    /// The trial of a point, or the reason why it cannot run.
    pub(super) fn prepare(&self, point: &[Value], words: Words) -> (Trial, Result<Ready, HostError>) {
        let mut trial = Trial { settings: point.to_vec(), words, cluster: ClusterOptions::default(), program: None };
        let ready = parsed(&trial.words.all(&[])).and_then(|command| {
            match command {
                Command::Run(args) => {
                    check_options(args.script())?;
                    let (cluster, mut program) = args.simulated();
                    let databases = &mut program.compute.databases;
                    let named = (databases.named.clone(), databases.left_out.clone());
                    databases.models = self.models.borrow_mut().entry(named).or_default().clone();
                    (trial.cluster, trial.program) = (cluster, Some(program));
                }
                Command::Workload(job) => trial.cluster = job.cluster(),
                _ => unreachable!("a trial is a run or a job"),
            }
            trial.prepare()
        });
        (trial, ready)
    }
}

/// Parses a command.
fn parsed(words: &[String]) -> Result<Command, HostError> {
    let argv = ["uniference"].into_iter().chain(words.iter().map(String::as_str));
    Cli::try_parse_from(argv).map(|cli| cli.command).map_err(|error| {
        let text = error.render().to_string();
        let mut paragraphs = text.trim_start_matches("error: ").split("\n\n");
        let message = paragraphs.next().unwrap_or_default().trim().to_owned();
        let tip = paragraphs.find_map(|part| part.trim().strip_prefix("tip: ").map(str::to_owned));
        let command = words.iter().take_while(|word| !word.starts_with('-')).take(2).map(String::as_str);
        let command = if words[0] == "run" { "run".to_owned() } else { command.collect::<Vec<_>>().join(" ") };
        let hint = tip.unwrap_or_else(|| format!("`uniference {command} --help` lists the options"));
        HostError::Usage(format!("{message}\nhint: {hint}"))
    })
}

/// Refuses an unknown option, which the command line would parse as the script.
fn check_options(script: &OsStr) -> Result<(), HostError> {
    let word = script.to_string_lossy();
    let Some(option) = word.strip_prefix("--") else { return Ok(()) };
    let name = option.split('=').next().unwrap_or_default();
    let command = Cli::command();
    let run = command.find_subcommand("run").expect("it is one");
    let hint = suggest(name, "options", run.get_arguments().filter_map(clap::Arg::get_long));
    Err(HostError::Usage(format!("`uniference run` has no option `{name}`\nhint: {hint}")))
}

/// Converts an error to a diagnostic that can be shown at a place in the file.
fn diagnostic(error: HostError) -> Diagnostic {
    match error {
        HostError::Diagnostic(diagnostic) => *diagnostic,
        other => {
            let text = other.to_string();
            let (message, hint) = text.split_once("\nhint: ").unwrap_or((&text, ""));
            let diagnostic = Diagnostic::new(message);
            if hint.is_empty() { diagnostic } else { diagnostic.hint(hint) }
        }
    }
}

pub(super) fn shown(diagnostic: Diagnostic) -> HostError {
    HostError::Diagnostic(Box::new(diagnostic))
}

/// Prints which parameters need a new run for other values, and which are replayed: other values of each parameter are
/// tried with the first valid point.
fn describe(undertaking: &Undertaking<'_>, folder: &Path) -> Result<(), HostError> {
    let (sweep, trials) = (undertaking.sweep, Trials::default());
    let first = undertaking.trials.iter().find_map(|(trial, ready)| Some((trial, ready.as_ref().ok()?)));
    let Some((trial, ready)) = first.filter(|_| !sweep.is_of_jobs() && sweep.replays != Replays::Never) else {
        return Ok(());
    };
    let takes_runs = |(number, parameter): (usize, &Parameter)| {
        let takes_run = |share: f64| {
            let mut point = trial.settings.clone();
            point[number] = parameter.domain.at(share);
            trials.prepare(&point, sweep.words(&point, folder)).1.is_ok_and(|other| other.key != ready.key)
        };
        [0.0, 0.25, 0.5, 0.75, 0.999_999].into_iter().any(takes_run)
    };
    let (again, answered): (Vec<_>, Vec<_>) =
        sweep.parameters.iter().enumerate().partition(|(number, parameter)| takes_runs((*number, parameter)));
    let named =
        |of: Vec<(usize, &Parameter)>| of.iter().map(|(_, parameter)| &*parameter.name).collect::<Vec<_>>().join(", ");
    if !again.is_empty() {
        super::say(format_args!("the program runs again for another: {}\n", named(again)))?;
    }
    if !answered.is_empty() {
        let unless = match sweep.replays {
            Replays::Exact => " (where the program does not depend on time; else it runs again)",
            Replays::Always | Replays::Never => "",
        };
        super::say(format_args!("replays answer for another: {}{unless}\n", named(answered)))?;
    }
    Ok(())
}

/// Prints the result of a sweep; without `took`, only failures.
fn conclude(
    undertaking: &Undertaking<'_>,
    table: &Results,
    path: &str,
    took: Option<Duration>,
) -> Result<Exit, HostError> {
    let cells = |name: &str| table.column(name).map(|column| &column.cells[..]).unwrap_or_default();
    let count =
        |name: &str, wanted: &str| cells(name).iter().filter(|cell| **cell == Cell::Text(wanted.to_owned())).count();
    let (runs, replays, failed) = (count("source", "run"), count("source", "replay"), count("status", "failed"));
    let carried = Estimate { runs, replays, seconds: 0.0 };
    let settings = |row: usize| settings(undertaking.sweep, table, row);
    complain_of_failed(undertaking.sweep, table);
    let planned = undertaking.estimate();
    if let Some(more) =
        runs.checked_sub(planned.runs).filter(|more| *more > 0 && undertaking.sweep.replays == Replays::Exact)
    {
        super::complain(format_args!(
            "the program depends on time, so it ran again for {} in place of a replay; replays = \"always\" in the sweep file replays them\n",
            counted(more, "trial")
        ));
    }
    let exit = if runs + replays > 0 { Exit::Ok } else { Exit::ProgramFailed };
    let Some(took) = took else { return Ok(exit) };
    let with_failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
    super::say(format_args!("{carried} finished{with_failed}, in {}\n", coarse(took)))?;
    let makespans = cells("makespan_s").iter().enumerate().filter_map(|(row, cell)| Some((cell.number()?, row)));
    if let Some((least, row)) = makespans.min_by(|a, b| a.0.total_cmp(&b.0)) {
        super::say(format_args!("least makespan: {} in trial {row} ({})\n", seconds(least), settings(row)))?;
    }
    super::say(format_args!("results: {path} (results.csv, results.parquet; open sweep.html in a browser)\n"))?;
    Ok(exit)
}

/// Values of a trial's parameters: `prompt 64, ranks 2`.
pub(super) fn settings(sweep: &Sweep, table: &Results, row: usize) -> String {
    let of = |parameter: &Parameter| {
        let cell = table.column(&parameter.name).map_or(&Cell::Null, |column| &column.cells[row]);
        format!("{} {}", parameter.name, cell.text())
    };
    sweep.parameters.iter().map(of).collect::<Vec<_>>().join(", ")
}

/// Prints the errors of the first failed trials.
pub(super) fn complain_of_failed(sweep: &Sweep, table: &Results) {
    let errors = table.column("error").map(|column| &column.cells[..]).unwrap_or_default();
    let failed: Vec<(usize, &String)> = errors
        .iter()
        .enumerate()
        .filter_map(|(row, cell)| match cell {
            Cell::Text(error) => Some((row, error)),
            _ => None,
        })
        .collect();
    for (row, error) in failed.iter().take(MOST_NAMED) {
        let settings = settings(sweep, table, *row);
        super::complain(format_args!("trial {row} failed ({settings}):\n{}\n", indented(error)));
    }
    if failed.len() > MOST_NAMED {
        super::complain(format_args!("{} more failed; results.csv says why\n", failed.len() - MOST_NAMED));
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Progress display of a sweep: a bar on a terminal, otherwise a few plain lines.
pub(super) enum Progress {
    Bar(ProgressBar),
    Lines { of: usize, pace: Pace },
    Quiet,
}

impl Progress {
    pub(super) fn new(trials: usize, quiet: bool) -> Progress {
        if quiet {
            return Progress::Quiet;
        }
        if !io::stderr().is_terminal() {
            return Progress::Lines { of: trials, pace: Pace::begin() };
        }
        let bar = ProgressBar::with_draw_target(Some(trials as u64), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:30} {pos} of {len} trials, {msg}");
        bar.set_style(style.expect("a template without errors"));
        Progress::Bar(bar)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Progress::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

impl Watch for Progress {
    fn progress(&mut self, done: usize, left: &Estimate) {
        let rest = || format!("{left} left: about {}", coarse(Duration::from_secs_f64(left.seconds)));
        match self {
            Progress::Bar(bar) => {
                bar.set_position(done as u64);
                bar.set_message(rest());
            }
            Progress::Lines { of, pace } => {
                if pace.is_due() {
                    pace.told();
                    super::complain(format_args!("progress: {done} of {of} trials, {}\n", rest()));
                }
            }
            Progress::Quiet => {}
        }
    }
}

/// Runs programs as child processes, and jobs in this process.
pub(super) struct Commands {
    /// Python interpreter of programs.
    python: Option<PathBuf>,
}

impl Commands {
    /// Commands for the trials of a sweep.
    pub(super) fn of(
        sweep: &Sweep,
        python: impl FnOnce() -> Result<PathBuf, HostError>,
    ) -> Result<Commands, HostError> {
        let python = if sweep.is_of_jobs() { None } else { Some(python()?) };
        Ok(Commands { python })
    }
}

impl Carrier for Commands {
    fn run(&self, trial: &Trial, folder: &Path, keeps_record: bool, stop: &AtomicBool) -> Result<(), String> {
        let out = format!("--out={}", folder.display());
        let Some(python) = &self.python else { return run_job(&trial.words.all(&[out])) };
        let further: Vec<String> = [out].into_iter().chain(trial.options(keeps_record)).collect();
        let failed = |error: io::Error| format!("error: cannot start {}: {error}", python.display());
        let mut said = tempfile::tempfile().map_err(failed)?;
        let mut command = std::process::Command::new(python);
        command.args(["-m", "uniference"]).args(trial.words.all(&further));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.try_clone().map_err(failed)?);
        // Ctrl-C reaches only the sweep, which ends its child processes.
        command.process_group(0);
        let mut child = supervise(&mut command).spawn().map_err(failed)?;
        let status = ended(&mut child, stop).map_err(failed)?;
        if status.success() {
            return Ok(());
        }
        let mut text = Vec::new();
        said.rewind().and_then(|()| said.read_to_end(&mut text)).map_err(failed)?;
        Err(super::reason(&String::from_utf8_lossy(&text), &status.to_string()))
    }
}

/// Waits for a command, which is ended if `stop` is set.
fn ended(child: &mut Child, stop: &AtomicBool) -> io::Result<ExitStatus> {
    let mut asked: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match asked {
            None if stop.load(Relaxed) => {
                let _ = kill_process(Pid::from_child(child), Signal::TERM);
                asked = Some(Instant::now());
            }
            // All descendants of the command end with it.
            Some(at) if at.elapsed() > PATIENCE => return supervisor::end(child),
            _ => {}
        }
        std::thread::sleep(PERIOD);
    }
}

fn run_job(words: &[String]) -> Result<(), String> {
    let said = |error: HostError| super::with_prefix(&error);
    let argv: Vec<OsString> = ["uniference".to_owned()].iter().chain(words).map(OsString::from).collect();
    let Command::Workload(job) = parsed(words).map_err(said)? else { unreachable!("it was one before") };
    match workload::carry_out(&job, &argv, &Notices::ignored()).map_err(said)? {
        Ended::Finished(_) => Ok(()),
        Ended::Stopped(stop) => Err(stop.message.trim_end().to_owned()),
    }
}

#[cfg(test)]
mod tests;
