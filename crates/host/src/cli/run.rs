//! Owns `uniference run`: a live run from its options to its results.

use super::cluster::ClusterArgs;
use super::console::{Console, Counter};
use super::doctor;
use super::export;
use super::folder::Folder;
use super::results::{self, Beside, OutputArgs, RecordLevel, Recording};
use crate::capacity;
use crate::error::{Exit, HostError};
use crate::interrupt::Interrupts;
use crate::live::driver::{Driver, Ending, Setup, Terminal, Watch};
use crate::live::exchange::Exchange;
use crate::live::zygote::{Place, Script, describe_status};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use uniference_sim::cluster::Cluster;
use uniference_sim::engine::{Doing, Engine, RankReport};

/// `uniference run`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// How long compute takes: its CPU time here times the device's slowdown, or nothing
    #[arg(long, value_enum, default_value_t = Compute::Measured)]
    compute: Compute,
    /// How many ranks run on this host at once [default: 1 with measured compute, else one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
    /// The seed of everything random in the simulation
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    output: OutputArgs,
    /// Write an execution trace of each rank into this folder: chakra.RANK.et
    #[arg(long, value_name = "DIR")]
    chakra: Option<PathBuf>,
    /// The simulated devices are NVIDIA GPUs, though this machine may have none [default: if the program cannot do without]
    #[arg(long, conflicts_with = "no_cuda")]
    cuda: bool,
    /// The simulated devices are no GPUs
    #[arg(long)]
    no_cuda: bool,
    /// Give the terminal to this rank, for breakpoint(), pdb and input(); the others wait for it in virtual time
    #[arg(long, value_name = "R")]
    debug_rank: Option<u32>,
    /// Run a module, as python -m does
    #[arg(short = 'm', long)]
    module: bool,
    /// The program, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "SCRIPT")]
    script: Vec<OsString>,
}

/// Where the duration of compute comes from.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Compute {
    /// Measured here
    Measured,
    /// No time at all
    None,
}

/// How many ranks that wait are named when another one fails.
const MOST_SHOWN: usize = 16;

/// Runs a program.
pub(super) fn run(args: &Args, argv: &[OsString], python: &Path) -> Result<Exit, HostError> {
    // Before anything is started that would outlive a Ctrl-C.
    let interrupts = Interrupts::new()?;
    check_script(args)?;
    check_record(args)?;
    check_order(args)?;
    let mut chosen = args.cluster.resolve()?;
    chosen.resolved.cluster.dynamics.seed = args.seed;
    let cluster = &chosen.resolved.cluster;
    let ranks = cluster.devices.len() as u32;
    let versions = doctor::versions(python)?;
    let tight = capacity::check_memory(ranks)?;
    capacity::check_descriptors(ranks)?;
    let folder = Folder::prepare(args.output.out.as_deref(), &args.script[0])?;
    let traces = args.chakra.as_ref().map(|out| Folder::prepare_traces(out, Some(&folder))).transpose()?;
    let terminal = args.debug_rank.map(|rank| terminal(rank, ranks, args.output.json)).transpose()?;
    let setup = Setup { terminal, ..setup(args, &chosen.resolved, python, &folder, chosen.backend_named) };
    let counter = Counter::default();
    let mut console = Console::new(args.output.json, args.debug_rank.is_none(), counter.clone());
    if let Some(warning) = tight {
        crate::live::driver::Console::warn(&mut console, &warning);
    }
    let mut manifest = results::manifest(argv, args.seed, &chosen.resolved);
    manifest.versions.extend(versions);
    let mut recording = Recording::start(args.output.record, &chosen.resolved, &manifest, &folder, counter)?;
    let ended = drive(&setup, cluster, &mut recording, &mut console, &interrupts);
    // What is left to write needs nobody to end anything first.
    drop(interrupts);
    let lost = console.finish();
    let end = ended?;
    let figures = recording.finish(end.lines.clone())?;
    if let Ending::Finished = end.ending {
        let shown = results::report(figures, &chosen.resolved, Beside::default(), manifest, &folder, args.output.json);
        // Files first: they are there even if standard output is not.
        match shown {
            Ok(()) | Err(HostError::Output { .. }) => {}
            Err(error) => return Err(error),
        }
        traces.map(|traces| export::export(folder.path(), &traces)).transpose()?;
        lost.map_or(shown, |lost| Err(HostError::Output { source: lost }))?;
    }
    Ok(conclude(end, &folder))
}

/// Says on standard error why a run did not finish.
fn conclude(end: End, folder: &Folder) -> Exit {
    let End { ending, lines, others, stands } = end;
    match ending {
        Ending::Finished => Exit::Ok,
        Ending::Failed { rank, status } => {
            let how = status.filter(|status| ![0, 1].contains(status)).map(|code| format!(" (exit status {code})"));
            let hint = log(folder, rank).map_or_else(String::new, |log| format!("hint: its output is also in {log}\n"));
            let how = how.unwrap_or_default();
            super::complain(format_args!("error: the program failed on rank {rank}{how}\n{others}{hint}"));
            Exit::ProgramFailed
        }
        Ending::Died { rank, pid, status } => {
            super::complain(format_args!("{}", obituary(rank, pid, status, &others, folder)));
            Exit::ProgramFailed
        }
        Ending::Severed { rank } => {
            let what = "or has become another program (os.exec)";
            let hint = "close only what the program has opened itself, not every number, as os.closerange() does";
            super::complain(format_args!(
                "error: the program has closed the descriptors through which rank {rank} takes part in the run, {what}\n{others}hint: {hint}\n"
            ));
            Exit::ProgramFailed
        }
        Ending::Halted(halt) => {
            super::complain(format_args!(
                "error: {}",
                halt.render(&|site| lines.get(site.index()).cloned().unwrap_or_default(), &|rank| stands
                    .get(&rank.0)
                    .cloned()
                    .unwrap_or_default())
            ));
            Exit::Halted
        }
        Ending::Interrupted(interrupt) => {
            super::complain(format_args!("interrupted\n{others}"));
            interrupt.into()
        }
    }
}

fn check_script(args: &Args) -> Result<(), HostError> {
    let script = Path::new(&args.script[0]);
    if !args.module && script.is_dir() && !script.join("__main__.py").exists() {
        let hint = "give the path of a Python file; a folder can be run if it has a __main__.py";
        return Err(HostError::Usage(format!("{} is a folder\nhint: {hint}", script.display())));
    }
    if args.module || script.exists() {
        return Ok(());
    }
    if args.script[0].as_encoded_bytes().starts_with(b"-") {
        let hint = "`uniference run --help` lists the options; the script comes after them";
        return Err(HostError::Usage(format!("there is no option {}\nhint: {hint}", script.display())));
    }
    let hint = "give the path of a Python file, or a module's name after -m; options of uniference stand before it";
    Err(HostError::Usage(format!("there is no script {}\nhint: {hint}", script.display())))
}

fn check_record(args: &Args) -> Result<(), HostError> {
    if args.chakra.is_none() || args.output.record != RecordLevel::Summary {
        return Ok(());
    }
    let hint = "leave out --record summary";
    Err(HostError::Usage(format!("--chakra makes traces of the program record, and none is kept\nhint: {hint}")))
}

/// A cluster that is described behind the script has been given to the script.
fn check_order(args: &Args) -> Result<(), HostError> {
    let ours = |word: &&str| ["--ranks", "--cluster"].contains(&word.split('=').next().unwrap_or_default());
    match args.script[1..].iter().filter_map(|word| word.to_str()).find(ours) {
        Some(word) if !args.cluster.is_given() => Err(HostError::Usage(format!(
            "no cluster to run on: {word} stands behind the script, so it is the script's\nhint: options of uniference stand before the script"
        ))),
        _ => Ok(()),
    }
}

fn setup(
    args: &Args,
    resolved: &uniference_formats::cluster::Resolved,
    python: &Path,
    folder: &Folder,
    backend_named: bool,
) -> Setup {
    let cluster = &resolved.cluster;
    let measure = args.compute == Compute::Measured;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // A script that passes another backend's name to init_process_group must not be simulated as gloo unawares.
    let default = (!backend_named).then(|| ("UNIFERENCE_DEFAULT_BACKEND", cluster.backend.name.clone()));
    let cuda = wants_cuda(args, cluster).map(|wish| ("UNIFERENCE_CUDA", wish.to_owned()));
    let env = default.into_iter().chain(cuda).map(|(name, value)| (name.to_owned(), value)).collect();
    Setup {
        python: python.to_owned(),
        script: Script { argv: args.script.clone(), module: args.module, env },
        places: places(cluster, &resolved.cores),
        jobs: args.jobs.map_or(if measure { 1 } else { cores }, |jobs| jobs as usize),
        measure,
        logs: folder.path().to_owned(),
        terminal: None,
    }
}

/// This process's standard streams for a rank. Standard output may be for the report alone.
fn terminal(rank: u32, ranks: u32, report_only: bool) -> Result<Terminal, HostError> {
    if rank >= ranks {
        let hint = "ranks are counted from 0";
        return Err(HostError::Usage(format!("there is no rank {rank} of {ranks} to debug\nhint: {hint}")));
    }
    let copy = |fd: std::os::fd::BorrowedFd<'_>| {
        fd.try_clone_to_owned().map_err(HostError::system("copying a standard stream"))
    };
    let (input, out, err) = (io::stdin(), io::stdout(), io::stderr());
    let out = if report_only { copy(err.as_fd())? } else { copy(out.as_fd())? };
    Ok(Terminal { rank, fds: [copy(input.as_fd())?, out, copy(err.as_fd())?] })
}

/// Whether the devices are GPUs, as far as it is said: a backend that needs GPUs says it too.
fn wants_cuda(args: &Args, cluster: &Cluster) -> Option<&'static str> {
    match (args.cuda, args.no_cuda) {
        (true, _) => Some("yes"),
        (_, true) => Some("no"),
        _ => (cluster.backend.name == "nccl").then_some("yes"),
    }
}

/// Ranks numbered on each machine in order, and machines in the order of their first rank. A machine is a host, or the server that hosts
/// are cards of.
fn places(cluster: &Cluster, cores: &[Option<u32>]) -> Vec<Place> {
    let mut machines = Vec::new();
    let mut counts = Vec::new();
    let numbered: Vec<(u32, u32)> = cluster
        .devices
        .iter()
        .map(|device| {
            let machine = cluster.topology.server(device.host);
            let at = machines.iter().position(|known| *known == machine).unwrap_or_else(|| {
                machines.push(machine);
                counts.push(0);
                machines.len() - 1
            });
            counts[at] += 1;
            (at as u32, counts[at] - 1)
        })
        .collect();
    let world_size = numbered.len() as u32;
    let place = |rank: usize| {
        let ((group, local), device) = (numbered[rank], &cluster.devices[rank]);
        Place {
            rank: rank as u32,
            world_size,
            local: (local, counts[group as usize]),
            group: (group, machines.len() as u32),
            device: device.name.clone(),
            memory: device.memory.map(|bytes| bytes.0),
            cores: cores[rank],
        }
    };
    (0..numbered.len()).map(place).collect()
}

/// How a run ended, and what it is explained with.
struct End {
    ending: Ending,
    /// The table of the program's lines.
    lines: Vec<String>,
    /// What ranks are waiting for.
    others: String,
    /// Where threads stand that wait inside their process.
    stands: Stands,
}

/// By rank.
type Stands = BTreeMap<u32, Vec<String>>;

/// Runs to the end.
fn drive(
    setup: &Setup,
    cluster: &Cluster,
    recording: &mut Recording,
    console: &mut Console,
    interrupts: &Interrupts,
) -> Result<End, HostError> {
    let engine = Engine::new(cluster);
    let (observer, recorder) = recording.watchers();
    let watch = Watch { observer, recorder, console };
    let mut driver = Driver::new(setup, engine, watch, interrupts)?;
    let ending = driver.run()?;
    let interrupted = matches!(ending, Ending::Interrupted(_));
    let stands = match ending {
        Ending::Finished => Stands::new(),
        Ending::Interrupted(_) => driver.whereabouts(MOST_SHOWN),
        _ => driver.stands(MOST_SHOWN),
    };
    let exchange = driver.exchange();
    let gone = match ending {
        Ending::Failed { rank, .. } | Ending::Died { rank, .. } | Ending::Severed { rank } => Some(rank),
        _ => None,
    };
    let others = match (&ending, driver.has_ranks()) {
        (Ending::Finished, _) | (_, false) => String::new(),
        _ => doing(exchange, &stands, gone, interrupted),
    };
    Ok(End { ending, lines: exchange.lines(), others, stands })
}

/// What the ranks that wait are waiting for, a line each, but for the one that is gone; `with_running`: and what the others do.
fn doing(exchange: &Exchange, stands: &Stands, gone: Option<u32>, with_running: bool) -> String {
    let line = |site| exchange.line(site).to_owned();
    let ranks = exchange.engine().report();
    let waits = |rank: &RankReport| rank.tasks.iter().any(|task| task.doing != Doing::Running);
    let shown: Vec<&RankReport> =
        ranks.iter().filter(|rank| Some(rank.rank.0) != gone && (with_running || waits(rank))).collect();
    let known = |rank: &RankReport| stands.get(&rank.rank.0).map_or(&[][..], Vec::as_slice);
    let lines: String = shown.iter().take(MOST_SHOWN).map(|rank| rank.render(&line, known(rank))).collect();
    let more = shown.len().saturating_sub(MOST_SHOWN);
    let rest = if more > 0 { format!("  and {more} ranks more\n") } else { String::new() };
    lines + &rest
}

/// The rank's output, if it has printed anything.
fn log(folder: &Folder, rank: u32) -> Option<String> {
    let path = folder.path().join(format!("rank-{rank}.log"));
    path.exists().then(|| path.display().to_string())
}

fn obituary(rank: u32, pid: i32, status: i32, others: &str, folder: &Folder) -> String {
    let what = format!("error: rank {rank} (process {pid}) {} before its program had ended", describe_status(status));
    let hint = match (-status, log(folder, rank)) {
        (9, _) => "the host may have run out of memory (dmesg says so), or somebody killed it".to_owned(),
        (_, Some(log)) => format!("its last output is in {log}"),
        (_, None) => "it has printed nothing; python's faulthandler shows where a process ends".to_owned(),
    };
    format!("{what}\n{others}hint: {hint}\n")
}

#[cfg(test)]
mod tests {
    use crate::cli::Cli;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_options_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_follows_the_script_is_the_scripts() {
        let words = ["uniference", "run", "--ranks", "2", "train.py", "--ranks", "7", "-m", "--help"];
        let crate::cli::Command::Run(args) = Cli::try_parse_from(words).unwrap().command else { panic!("it is run") };
        assert_eq!(args.script, ["train.py", "--ranks", "7", "-m", "--help"]);
        assert_eq!((args.cluster.ranks, args.module), (Some(2), false));
    }
}
