//! Owns `uniference run`: the options of a live run.

use super::cluster::ClusterArgs;
use super::compute::ComputeArgs;
use super::console::{Console, Counter};
use super::interpreter::{Gpus, Survey, survey};
use super::output::{OutputArgs, RecordArg, Showing, show};
use super::progress::{Expected, ProgressArgs};
use super::worker::WorkerArgs;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use uniference_formats::report::Report;
use uniference_formats::table::seconds;
use uniference_formats::units::counted;
use uniference_host::capacity;
use uniference_host::interrupt::Interrupts;
use uniference_host::live::driver::{self, Terminal};
use uniference_session::cluster::Chosen;
use uniference_session::compute::Plan;
use uniference_session::export::export;
use uniference_session::folder::Folder;
use uniference_session::live::{Live, Program, Workers};
use uniference_session::repeated::Repeated;
use uniference_session::results::command;
use uniference_session::sweep;
use uniference_session::{ClusterOptions, Exit, HostError, Outcome, Output, Session};

/// `uniference run`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Tensor values to compute; other tensors need no memory and read as zeros, and their operators are costed all the
    /// same
    #[arg(long, value_name = "all|small[=ELEMENTS]|none", default_value_t)]
    values: Values,
    /// End the run at the first operator or kernel whose values cannot be computed on simulated GPUs
    #[arg(long)]
    strict_values: bool,
    /// Number of ranks that run on this host at once [default: 1 with measured compute, otherwise the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
    /// Seed of all random numbers of the simulation
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Number of runs, with consecutive seeds; the results are those of the median, with an interval of the makespan
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    progress: ProgressArgs,
    /// Write an execution trace of each rank to this folder: chakra.RANK.et
    #[arg(long, value_name = "DIR")]
    chakra: Option<PathBuf>,
    /// Connect the terminal to this rank, for breakpoint(), pdb and input(); virtual time waits for it
    #[arg(long, value_name = "R", conflicts_with_all = ["repeat", "fold"])]
    debug_rank: Option<u32>,
    /// Whether only a few representatives of equivalent ranks run as processes; all ranks are simulated
    #[arg(long, value_enum, default_value_t)]
    fold: Fold,
    /// Start the program once, as rank 0, with the GPUs of all ranks; each process that it starts belongs to the rank
    /// whose GPU it uses
    #[arg(long, conflicts_with = "fold")]
    one_program: bool,
    #[command(flatten)]
    workers: WorkerArgs,
    #[command(flatten)]
    program: ProgramArgs,
}

/// Whether all ranks of a program run as processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Fold {
    /// Run every rank
    #[default]
    Off,
    /// Run as few ranks as represent all others
    Auto,
}

/// A program, and its devices: options of all commands that run a program.
#[derive(clap::Args)]
pub(super) struct ProgramArgs {
    /// Simulate NVIDIA GPUs, even if this machine has none [default: if the program requires CUDA, or can use it and the cluster's devices are NVIDIA GPUs]
    #[arg(long, conflicts_with = "no_cuda")]
    cuda: bool,
    /// Do not simulate GPUs
    #[arg(long)]
    no_cuda: bool,
    /// Import these modules once, before the ranks are forked, instead of once in every rank
    #[arg(long, value_name = "MODULE,...", value_delimiter = ',')]
    pub(super) preload: Vec<String>,
    /// Run a module, like python -m
    #[arg(short = 'm', long)]
    pub(super) module: bool,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "SCRIPT")]
    pub(super) script: Vec<OsString>,
}

/// Cluster and interpreter of a program that can run.
pub(super) struct Place {
    pub(super) chosen: Chosen,
    /// Versions of the interpreter, and needs of the program.
    pub(super) survey: Survey,
    /// A warning if this machine hardly has enough memory.
    pub(super) tight: Option<String>,
}

impl ProgramArgs {
    /// Resolves the cluster, and refuses programs that cannot run on it.
    pub(super) fn place(&self, cluster: &ClusterArgs, python: &Path) -> Result<Place, HostError> {
        check_script(&self.script, self.module)?;
        check_order(&self.script, cluster)?;
        let chosen = cluster.resolve()?;
        let ranks = chosen.resolved.cluster.devices.len() as u32;
        let gpus = match (self.cuda, self.no_cuda) {
            (true, _) => Gpus::Yes,
            (_, true) => Gpus::No,
            // GPU devices imply simulated GPUs for programs that can use CUDA. A backend that needs GPUs implies them
            // for every program.
            _ if chosen.implied => Gpus::IfUsed,
            _ if chosen.resolved.cluster.backend.name == "nccl" => Gpus::Yes,
            _ => Gpus::IfNeeded,
        };
        let survey = survey(python, &self.script, self.module, gpus)?;
        let mut chosen = match (survey.gpus.is_some(), chosen.implied) {
            (true, _) => cluster.resolve_with("nccl")?,
            (false, true) => cluster.resolve_with("gloo")?,
            (false, false) => chosen,
        };
        if gpus == Gpus::IfUsed && survey.gpus.is_some() {
            super::complain(format_args!(
                "note: the devices are NVIDIA GPUs; simulating GPUs and NCCL (undo it with --no-cuda, --backend, or `backend` in the cluster file)\n"
            ));
        } else if gpus == Gpus::IfUsed {
            chosen.doubts.push("the devices are NVIDIA GPUs, but the program names no CUDA device: it ran without GPUs and with Gloo\nhint: simulate GPUs and NCCL with --cuda, or set `backend` in the cluster file".to_owned());
        }
        let tight = capacity::check_memory(ranks)?;
        capacity::check_descriptors(ranks)?;
        Ok(Place { chosen, survey, tight })
    }
}

/// Which tensor values are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Values {
    #[default]
    All,
    /// Values of tensors with at most this many elements.
    Small(u64),
}

impl Values {
    /// The maximum number of elements if `--values small` gives none.
    const SMALL: u64 = 4096;

    /// The default number of elements.
    pub(super) fn small() -> Values {
        Values::Small(Values::SMALL)
    }

    /// Maximum number of elements of tensors whose values are computed.
    pub(super) fn limit(self) -> Option<u64> {
        match self {
            Values::All => None,
            Values::Small(elements) => Some(elements),
        }
    }
}

impl FromStr for Values {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Values, &'static str> {
        match text.split_once('=') {
            None if text == "all" => Ok(Values::All),
            None if text == "small" => Ok(Values::small()),
            None if text == "none" => Ok(Values::Small(0)),
            Some(("small", elements)) => elements.parse().map(Values::Small).map_err(|_| "ELEMENTS is a number"),
            _ => Err("expected all, small, small=ELEMENTS or none"),
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Values::All => f.write_str("all"),
            Values::Small(0) => f.write_str("none"),
            Values::Small(elements) => write!(f, "small={elements}"),
        }
    }
}

/// Runs a program.
pub(super) fn run(args: &Args, argv: &[OsString], python: &Path) -> Result<Exit, HostError> {
    // Signals are caught before child processes start, which would otherwise outlive a Ctrl-C.
    let interrupts = Interrupts::new()?;
    check_record(args)?;
    let place = args.program.place(&args.cluster, python)?;
    let plan = Plan::live(&args.compute.options(), &place.chosen.resolved)?;
    check_values(args, &plan)?;
    check_repeat(args, &plan, &place.chosen)?;
    let ranks = place.chosen.resolved.cluster.devices.len() as u32;
    let terminal = args.debug_rank.map(|rank| terminal(rank, ranks, args.output.json)).transpose()?;
    let output = args.output.output(&args.program.script[0], &super::notices());
    let once = Once { args, argv, python, place: &place, workers: None };
    let workers = args.workers.open(&args.program.script, args.program.module)?;
    let once = Once { workers, ..once };
    if args.repeat == 1 {
        let session = once.session(args.seed, &plan, &output)?;
        let traces = traces(args, session.folder())?;
        return match once.run(&session, plan, terminal, interrupts)? {
            (Outcome::Finished(figures), lost) => {
                let report = session.report(*figures, Vec::new());
                session.write(&report)?;
                conclude(args, &report, session.folder(), traces, lost)
            }
            (Outcome::Stopped(stop), _) => Ok(super::stopped(&stop)),
            (Outcome::Unlike(_), _) => unreachable!("every rank is simulated"),
        };
    }
    let folder = Folder::prepare(output.folder.as_deref(), &output.name, &output.notices)?;
    let traces = traces(args, &folder)?;
    let (mut repeated, mut lost, mut interrupts) = (Repeated::new(&folder), None, Some(interrupts));
    for number in 0..args.repeat {
        let plan = Plan::live(&args.compute.options(), &place.chosen.resolved)?;
        let seed = args.seed.wrapping_add(number.into());
        let session = once.session(seed, &plan, &Output { folder: Some(repeated.next()), ..output.clone() })?;
        let interrupts = interrupts.take().map_or_else(Interrupts::new, Ok)?;
        match once.run(&session, plan, None, interrupts)? {
            (Outcome::Finished(figures), lost_now) => {
                lost = lost.or(lost_now);
                let makespan = seconds(repeated.finished(session, *figures)?);
                super::complain(format_args!("run {} of {}: makespan {makespan}\n", number + 1, args.repeat));
            }
            (Outcome::Stopped(stop), _) => return Ok(super::stopped(&stop)),
            (Outcome::Unlike(_), _) => unreachable!("every rank is simulated"),
        }
    }
    let report = repeated.conclude()?;
    conclude(args, &report, &folder, traces, lost)
}

/// A program and its cluster, for one run or several.
struct Once<'a> {
    args: &'a Args,
    argv: &'a [OsString],
    python: &'a Path,
    place: &'a Place,
    workers: Option<Workers>,
}

impl Once<'_> {
    fn session(&self, seed: u64, plan: &Plan, output: &Output) -> Result<Session, HostError> {
        let mut session = Session::new(self.place.chosen.clone(), seed, command(self.argv), output)?;
        session.add_versions(self.place.survey.versions.clone());
        session.plan(plan);
        Ok(session)
    }

    /// Standard input for rank 0 if it is a file, a pipe or a socket. Programs that run several times or on remote
    /// workers get no standard input.
    fn input(&self, console: &mut dyn driver::Console) -> Result<Option<OwnedFd>, HostError> {
        let input = io::stdin();
        let is_given = rustix::fs::fstat(&input).is_ok_and(|found| {
            let kind = rustix::fs::FileType::from_raw_mode(found.st_mode);
            use rustix::fs::FileType::{Fifo, RegularFile, Socket};
            matches!(kind, RegularFile | Fifo | Socket)
        });
        let once = self.args.repeat == 1 && self.args.fold != Fold::Auto && self.workers.is_none();
        if !is_given {
            return Ok(None);
        }
        if !once {
            if rustix::io::ioctl_fionread(&input).is_ok_and(|bytes| bytes > 0) {
                console.warn("standard input is not passed to the program with --repeat, --fold auto or --listen; it reads as empty");
            }
            return Ok(None);
        }
        input.as_fd().try_clone_to_owned().map(Some).map_err(HostError::system("copying standard input"))
    }

    /// Runs the program, and returns the error if output was lost.
    fn run(
        &self,
        session: &Session,
        plan: Plan,
        terminal: Option<Terminal>,
        interrupts: Interrupts,
    ) -> Result<(Outcome, Option<io::Error>), HostError> {
        let Once { args, place, .. } = self;
        let mut counter = Counter::default();
        let expected = || {
            let ranks = place.chosen.resolved.cluster.devices.len();
            let earlier = args.compute.earlier().and_then(Expected::of_run);
            earlier.or_else(|| Expected::of_earlier(&args.program.script[0], &args.program.script, ranks))
        };
        // The debugged rank uses the terminal.
        let progress = match args.debug_rank {
            None => args.progress.start(expected)?,
            Some(_) => None,
        };
        let mut console = Console::new(args.output.json, progress, counter.clone());
        if let Some(warning) = &place.tight {
            driver::Console::warn(&mut console, warning);
        }
        let ProgramArgs { module, script, preload, .. } = &args.program;
        let program = Program {
            python: self.python.to_owned(),
            argv: script.clone(),
            module: *module,
            preload: preload.clone(),
            plan,
            jobs: args.jobs,
            gpus: place.survey.gpus.clone(),
            backend_named: place.chosen.backend_named,
            input: if terminal.is_none() { self.input(&mut console)? } else { None },
            terminal,
            values: args.values.limit(),
            strict_values: args.strict_values,
            timed: false,
            fold: args.fold == Fold::Auto,
            one_program: args.one_program,
            workers: self.workers.clone(),
        };
        let mut live = Live::new(program, session, &mut console, &mut counter, interrupts);
        let outcome = session.carry_out(&mut live);
        let lost = console.finish();
        Ok((outcome?, lost))
    }
}

/// Folder for execution traces.
fn traces(args: &Args, results: &Folder) -> Result<Option<Folder>, HostError> {
    args.chakra.as_ref().map(|out| Folder::prepare_traces(out, Some(results), &super::notices())).transpose()
}

/// Shows the report of a finished run, and exports its record.
fn conclude(
    args: &Args,
    report: &Report,
    folder: &Folder,
    traces: Option<Folder>,
    lost: Option<io::Error>,
) -> Result<Exit, HostError> {
    let shown = show(report, folder, Showing::new(args.output.json, args.progress.quiet));
    // Traces are exported even if the report could not be printed.
    traces.map(|traces| export(folder.path(), &traces, &super::notices())).transpose()?;
    lost.map_or(shown, |lost| Err(HostError::Output { source: lost })).map(|()| Exit::Ok)
}

fn check_repeat(args: &Args, plan: &Plan, chosen: &Chosen) -> Result<(), HostError> {
    if args.repeat == 1 || plan.measures() || chosen.is_random() {
        return Ok(());
    }
    Err(HostError::Usage(
        "--repeat has no effect: compute is not measured, and nothing on this cluster is random\nhint: add --compute measured, or give a link jitter in a [[network.change]]".into(),
    ))
}

impl Args {
    /// The script, or the module's name.
    pub(super) fn script(&self) -> &OsStr {
        &self.program.script[0]
    }

    /// The simulated cluster and the compute options, for checks before the run.
    pub(super) fn simulated(&self) -> (ClusterOptions, sweep::Program) {
        (self.cluster.options(), sweep::Program { compute: self.compute.options(), seed: self.seed })
    }
}

/// Refuses a missing program: `words` are a script, or with `module` a module's name, and its arguments.
pub(super) fn check_script(words: &[OsString], module: bool) -> Result<(), HostError> {
    let script = Path::new(&words[0]);
    if !module && script.is_dir() && !script.join("__main__.py").exists() {
        let hint = "give the path of a Python file, or a folder that contains a __main__.py";
        return Err(HostError::Usage(format!("{} is a folder without __main__.py\nhint: {hint}", script.display())));
    }
    if module || script.exists() {
        return Ok(());
    }
    if words[0].as_encoded_bytes().starts_with(b"-") {
        let hint = "put options before the script; `uniference run --help` lists them";
        return Err(HostError::Usage(format!("unknown option {}\nhint: {hint}", script.display())));
    }
    let hint = "give the path of a Python file, or -m and the name of a module; put options before it";
    Err(HostError::Usage(format!("script {} does not exist\nhint: {hint}", script.display())))
}

fn check_record(args: &Args) -> Result<(), HostError> {
    if args.chakra.is_some() && args.program.cuda {
        let hint = "remove --chakra; `uniference replay` runs the record again";
        return Err(HostError::Usage(format!(
            "execution traces cannot hold streams of simulated GPUs (--chakra with --cuda)\nhint: {hint}"
        )));
    }
    if args.chakra.is_none() || args.output.record != RecordArg::Summary {
        return Ok(());
    }
    let hint = "remove --record summary";
    Err(HostError::Usage(format!(
        "--chakra needs the program record, which --record summary does not write\nhint: {hint}"
    )))
}

fn check_values(args: &Args, plan: &Plan) -> Result<(), HostError> {
    if args.values == Values::All || !plan.measures() {
        return Ok(());
    }
    let hint = "add --compute none, or --compute model with devices that have a `model` or rates";
    Err(HostError::Usage(format!(
        "--values {} lets operators go uncomputed, so their time cannot be measured\nhint: {hint}",
        args.values
    )))
}

/// Refuses cluster options behind the script, which would be the script's arguments.
fn check_order(words: &[OsString], cluster: &ClusterArgs) -> Result<(), HostError> {
    let ours = |word: &&str| ["--ranks", "--cluster"].contains(&word.split('=').next().unwrap_or_default());
    match words[1..].iter().filter_map(|word| word.to_str()).find(ours) {
        Some(word) if !cluster.is_given() => Err(HostError::Usage(format!(
            "no cluster given: {word} comes after the script and is passed to it\nhint: put options before the script"
        ))),
        _ => Ok(()),
    }
}

/// This process's standard streams for a rank. With `report_only`, standard output is reserved for the report.
fn terminal(rank: u32, ranks: u32, report_only: bool) -> Result<Terminal, HostError> {
    if rank >= ranks {
        let hint = "ranks are numbered from 0";
        return Err(HostError::Usage(format!(
            "--debug-rank {rank} is out of range: the cluster has {}\nhint: {hint}",
            counted(ranks, "rank")
        )));
    }
    let copy = |fd: std::os::fd::BorrowedFd<'_>| {
        fd.try_clone_to_owned().map_err(HostError::system("copying a standard stream"))
    };
    let (input, out, err) = (io::stdin(), io::stdout(), io::stderr());
    let out = if report_only { copy(err.as_fd())? } else { copy(out.as_fd())? };
    Ok(Terminal { rank, fds: [copy(input.as_fd())?, out, copy(err.as_fd())?] })
}

#[cfg(test)]
mod tests {
    use crate::Cli;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_options_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_follows_the_script_is_the_scripts() {
        let words = ["uniference", "run", "--ranks", "2", "train.py", "--ranks", "7", "-m", "--help"];
        let crate::Command::Run(args) = Cli::try_parse_from(words).unwrap().command else { panic!("it is run") };
        assert_eq!(args.program.script, ["train.py", "--ranks", "7", "-m", "--help"]);
        assert_eq!((args.cluster.ranks, args.program.module), (Some(2), false));
    }
}
