//! Owns a live run: the processes of unmodified programs are the ranks of a simulation.
//!
//! `uniference-host` starts the processes and communicates with them; the [`Console`] shows their output.

mod folded;

use crate::compute::Plan;
use crate::notices::Notices;
use crate::places::{give_gpus, places};
use crate::session::{End, Session, SimulationEnd, Source, Stop, Watch};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uniference_host::error::{Exit, HostError};
use uniference_host::interrupt::Interrupts;
use uniference_host::live::driver::{self, Compute, Console, Driver, LiveEnd, Setup, Terminal};
use uniference_host::live::remote::{self, Gathered};
pub use uniference_host::live::remote::{Door, Synced};
use uniference_host::live::zygote::{Script, describe_status};
use uniference_host::symbols::Torch;
use uniference_lowering::Conversations;
use uniference_lowering::compute::{Costing, Shared};
use uniference_lowering::slice::{Costs, LoweredWork, RankSlice};
use uniference_sim::cluster::Cluster;
use uniference_sim::engine::{Doing, Engine, Halt, HaltReason, Pending, RankReport};
use uniference_sim::event::Observer;
use uniference_sim::fold_plan::{FoldPlan, Unlike};
use uniference_sim::ids::RankId;
use uniference_sim::program::{Origin, Work};
use uniference_sim::time::SimDuration;

/// Number of waiting ranks that are listed when another rank fails.
const MOST_SHOWN: usize = 16;

/// A program, and the settings of its processes on this machine.
pub struct Program {
    /// Python interpreter.
    pub python: PathBuf,
    /// Script, or with `module` the module's name; then its arguments.
    pub argv: Vec<OsString>,
    /// Whether the program runs as with `python -m`.
    pub module: bool,
    /// Modules that are imported once, before ranks are forked.
    pub preload: Vec<String>,
    /// Source of compute durations; the session's manifest must describe the same source ([`Session::plan`]).
    pub plan: Plan,
    /// Number of ranks that run on this machine at once; `None`: one if compute is measured, else one per core.
    pub jobs: Option<u32>,
    /// The torch installation whose GPUs are simulated; `None`: no GPUs, or those of this machine.
    pub gpus: Option<Torch>,
    /// Whether the user named the cluster's backend, which then replaces any backend that the program names; see
    /// [`crate::cluster::Chosen`].
    pub backend_named: bool,
    /// The rank that uses the terminal, if any.
    pub terminal: Option<Terminal>,
    /// Standard input of rank 0, if there is any.
    pub input: Option<OwnedFd>,
    /// Number of elements above which operators on tensors are not computed; `None`: all operators are computed.
    pub values: Option<u64>,
    /// Whether the run ends at the first operator or kernel on a simulated GPU whose values are not computed, whatever
    /// its size.
    pub strict_values: bool,
    /// Whether each operator is timed ([`crate::profile`]).
    pub timed: bool,
    /// Whether equivalent ranks are folded: few of them run as processes, and all are simulated.
    pub fold: bool,
    /// Whether only rank 0 has a program, which uses the GPUs of all ranks.
    pub one_program: bool,
    /// Settings of workers that run ranks on other machines, if any.
    pub workers: Option<Workers>,
}

/// Settings of the workers of a run.
#[derive(Clone)]
pub struct Workers {
    /// Listener of the driver.
    pub door: Arc<Door>,
    /// Time limit for all workers to join.
    pub timeout: Duration,
    /// Files of this machine that workers receive.
    pub synced: Synced,
}

/// Live ranks, before and while they run.
pub struct Live<'a> {
    setup: Setup,
    plan: Plan,
    fold: bool,
    workers: Option<Workers>,
    /// Error that forbids the run.
    refused: Option<HostError>,
    /// Whether compute has no duration, regardless of the program's plan.
    only_for_memory: bool,
    /// Folder of the logs after the run; `None`: no logs are kept.
    folder: Option<&'a Path>,
    console: &'a mut dyn Console,
    observer: &'a mut dyn Observer,
    notices: Notices,
    /// Signals that interrupt the run; `None` once all processes have ended.
    interrupts: Option<Interrupts>,
}

/// Result of the processes, and the costs of their compute.
struct Ran {
    ending: Result<SimulationEnd, Unlike>,
    lines: Vec<String>,
    costing: Rc<RefCell<Costing>>,
    /// Warnings of the ranks.
    warnings: Vec<String>,
    /// Memory of the largest process of a rehearsal in bytes.
    largest: u64,
}

impl<'a> Live<'a> {
    /// A program to run. `console` shows the output of its ranks; `observer` receives the engine's events, in addition
    /// to the session's observer. `interrupts` end the run.
    pub fn new(
        program: Program,
        session: &'a Session,
        console: &'a mut dyn Console,
        observer: &'a mut dyn Observer,
        interrupts: Interrupts,
    ) -> Live<'a> {
        let resolved = session.resolved();
        let cluster = &resolved.cluster;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // A script that passes another backend's name to init_process_group must fail, and not be simulated as gloo.
        // Alongside NCCL on GPUs, operations of another backend are allowed with a warning.
        let tells_backend = !program.backend_named || (program.gpus.is_some() && cluster.backend.name == "nccl");
        let default = tells_backend.then(|| ("UNIFERENCE_DEFAULT_BACKEND", cluster.backend.name.clone()));
        let values = program.values.map(|limit| ("UNIFERENCE_VALUES", limit.to_string()));
        let strict = program.strict_values.then(|| ("UNIFERENCE_STRICT_VALUES", "yes".to_owned()));
        let timed = program.timed.then(|| ("UNIFERENCE_TIMED", "yes".to_owned()));
        let python = program.plan.counts_python().then(|| ("UNIFERENCE_PYTHON_CALLS", "yes".to_owned()));
        let told = default.into_iter().chain(values).chain(strict).chain(timed).chain(python);
        let env = told.map(|(name, value)| (name.to_owned(), value)).collect();
        let mut places = places(cluster, &resolved.cores);
        let mut compute = program.plan.of_ranks();
        let mut refused = refuse_workers(&program, &resolved.workers).or_else(|| refuse_one_program(&program, cluster));
        if program.gpus.is_some() {
            refused = refused.or(give_gpus(&mut places, &resolved.models).err());
            // Operators describe the dependencies on CUDA streams, so they are needed even if compute has no duration.
            if program.one_program {
                places[0].gpus =
                    places.iter().flat_map(|place| place.gpus.get(place.local.0 as usize)).cloned().collect();
                places[0].lends = true;
            }
            compute.iter_mut().filter(|way| **way == Compute::None).for_each(|way| *way = Compute::Modelled);
        }
        let setup = Setup {
            python: program.python,
            script: Script { argv: program.argv, module: program.module, env },
            modules: program.preload,
            places,
            gpus: program.gpus,
            workers: resolved.workers.clone(),
            one_program: program.one_program,
            synced: program.workers.as_ref().map(|workers| workers.synced.clone()),
            jobs: program.jobs.map_or(if program.plan.measures() { 1 } else { cores }, |jobs| jobs as usize),
            compute,
            logs: session.folder().path().to_owned(),
            terminal: program.terminal,
            input: program.input,
            timeout: None,
        };
        let (plan, fold, workers) = (program.plan, program.fold, program.workers);
        let (folder, notices) = (Some(session.folder().path()), session.notices().clone());
        let interrupts = Some(interrupts);
        Live {
            setup,
            plan,
            fold,
            workers,
            refused,
            only_for_memory: false,
            folder,
            console,
            observer,
            notices,
            interrupts,
        }
    }

    /// The same program, run only to count the memory of ranks: compute has no duration, no device runs out of memory,
    /// and the run ends after `timeout` of real time. The folder is not kept.
    pub(crate) fn only_for_memory(mut self, timeout: Duration) -> Live<'a> {
        self.setup.compute.fill(Compute::Modelled);
        self.setup.script.env.insert("UNIFERENCE_UNLIMITED".to_owned(), "yes".to_owned());
        self.setup.timeout = Some(timeout);
        Live { only_for_memory: true, folder: None, ..self }
    }
}

/// A hint for a program that failed while not all values were computed. `more` are options of `--values` that compute
/// more values.
fn zeros(costing: &Costing, ending: &LiveEnd, more: &str) -> String {
    let LiveEnd::Failed { rank, .. } = ending else { return String::new() };
    let read = costing.zeros(|of| of.0 == *rank);
    let read = read.map_or_else(String::new, |places| format!("; it has read such values at {places}"));
    format!(
        "hint: values that are not computed read as zero (--values){read}: if it failed on one, run it with --values {more}\n"
    )
}

/// Costs of zero for all compute.
struct Free;

impl Costs for Free {
    fn lower(&mut self, _: RankSlice<'_>) -> Vec<LoweredWork> {
        vec![LoweredWork::Host(Work::new(SimDuration::ZERO, Origin::None))]
    }
}

impl Source for Live<'_> {
    fn drive(&mut self, cluster: &Cluster, watch: Watch<'_>) -> Result<End, HostError> {
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        if self.fold {
            return folded::drive(self, cluster, watch);
        }
        self.run_all(cluster, watch)
    }
}

impl Live<'_> {
    /// Runs all ranks.
    fn run_all(&mut self, cluster: &Cluster, watch: Watch<'_>) -> Result<End, HostError> {
        let Ran { ending, lines, costing, warnings, .. } = self.run(cluster, None, watch)?;
        self.interrupts = None;
        let mut costed = costing.borrow_mut().finish()?;
        costed.warnings.extend(warnings);
        let ending = ending.unwrap_or_else(|unlike| unreachable!("all ranks run, and {unlike}"));
        Ok(End { ending, lines, costed })
    }

    /// Runs all ranks as processes, or with a fold plan those ranks that the plan names.
    fn run(&mut self, cluster: &Cluster, fold_plan: Option<Arc<FoldPlan>>, watch: Watch<'_>) -> Result<Ran, HostError> {
        let interrupts = self.interrupts.as_ref().expect("nothing is run once interrupts are not heard any more");
        let joined = match self.gather(interrupts)? {
            Gathered::All(joined) => joined,
            Gathered::Interrupted(interrupt) => {
                let stop = Stop { exit: interrupt.into(), message: "interrupted\n".to_owned() };
                let costing = self.plan.costing();
                let (lines, warnings) = (Vec::new(), Vec::new());
                return Ok(Ran { ending: Ok(SimulationEnd::Stopped(stop)), lines, costing, warnings, largest: 0 });
            }
        };
        let mut observer = (watch.observer, &mut *self.observer);
        let costing = self.plan.costing();
        let costs: Box<dyn Costs> =
            if self.only_for_memory { Box::new(Free) } else { Box::new(Shared(Rc::clone(&costing))) };
        let (recorder, console) = (watch.recorder, &mut *self.console);
        let watch = driver::Watch { observer: &mut observer, recorder, console, costs };
        let mut driver = Driver::new(&self.setup, Engine::new(cluster), joined, fold_plan, watch, interrupts)?;
        let ending = driver.run();
        if let Some(workers) = &self.workers {
            // Workers are dismissed before they are told that the run is over, because the end of the run makes them
            // join the next one.
            workers.door.dismiss();
        }
        let ending = ending?;
        let stands = match ending {
            LiveEnd::Finished | LiveEnd::Unlike(_) => Stands::new(),
            LiveEnd::Interrupted(_) | LiveEnd::OutOfTime(_) => driver.whereabouts(MOST_SHOWN),
            _ => driver.stands(MOST_SHOWN),
        };
        let others = if driver.has_ranks() { others(driver.conversations(), &ending, &stands) } else { String::new() };
        let unmet = match ending {
            LiveEnd::Died { rank, .. } if driver.has_ranks() => Unmet::of(driver.conversations(), rank),
            _ => Unmet::default(),
        };
        let lines = driver.conversations().lines();
        let warnings = driver.warnings();
        let limited = self.setup.script.env.contains_key("UNIFERENCE_VALUES");
        let none = self.setup.script.env.get("UNIFERENCE_VALUES").is_some_and(|limit| limit == "0");
        let more = if none { "small or all" } else { "all" };
        let zeros = if limited { zeros(&costing.borrow(), &ending, more) } else { String::new() };
        let ending = match ending {
            LiveEnd::Unlike(unlike) => Err(unlike),
            LiveEnd::Finished => Ok(SimulationEnd::Finished),
            other => {
                let Stop { exit, message } = explain(other, &others, &unmet, &lines, &stands, self.folder);
                Ok(SimulationEnd::Stopped(Stop { exit, message: message + &zeros }))
            }
        };
        Ok(Ran { ending, lines, costing, warnings, largest: driver.largest() })
    }
}

impl Live<'_> {
    /// Waits for the workers that the cluster names.
    fn gather(&self, interrupts: &Interrupts) -> Result<Gathered, HostError> {
        let names: BTreeSet<String> = self.setup.workers.iter().flatten().cloned().collect();
        match &self.workers {
            Some(workers) if !names.is_empty() => {
                let tell = |text: &str| self.notices.say(text);
                remote::gather(&workers.door, &names, workers.timeout, interrupts, tell)
            }
            _ => Ok(Gathered::All(Vec::new())),
        }
    }
}

/// Reason why workers cannot run ranks of this program; `None` if they can, or no workers are named.
fn refuse_workers(program: &Program, workers: &[Option<String>]) -> Option<HostError> {
    let named = || workers.iter().flatten().next();
    let refused = |what: String, hint: &str| Some(HostError::Usage(format!("{what}\nhint: {hint}")));
    let (Some(name), Some(_)) = (named(), &program.workers) else {
        return match (named(), &program.workers) {
            (Some(name), None) => refused(
                format!("the cluster has a device at worker {name}, and nobody listens for workers"),
                "use `uniference run --listen ADDRESS:PORT --token-file FILE`, or remove `at` from the cluster file",
            ),
            (None, Some(_)) => refused(
                "--listen has no effect: no device of the cluster is at a worker".to_owned(),
                "give a [[device]] of the cluster file at = \"NAME\", or remove --listen",
            ),
            _ => None,
        };
    };
    if program.gpus.is_some() {
        return refused(
            format!("simulated GPUs are not supported at workers, and a device is at {name}"),
            "add --no-cuda, or remove `at` from the cluster file",
        );
    }
    if program.fold {
        return refused(
            format!("--fold auto is not supported with workers, and a device is at {name}"),
            "remove --fold auto; with `count` one worker stands for all boards of its kind",
        );
    }
    let debugged = program.terminal.as_ref().and_then(|terminal| workers.get(terminal.rank as usize)?.as_ref());
    debugged.and_then(|name| {
        refused(
            format!("--debug-rank is a rank at worker {name}, and the terminal is here"),
            "debug a rank that runs on this machine",
        )
    })
}

/// Reason why one program cannot use the GPUs of all ranks; `None` if it can, or this is not requested.
fn refuse_one_program(program: &Program, cluster: &Cluster) -> Option<HostError> {
    let refused = |what: &str, hint: &str| Some(HostError::Usage(format!("{what}\nhint: {hint}")));
    if !program.one_program {
        return None;
    }
    if program.gpus.is_none() {
        return refused("--one-program uses the GPUs of all ranks, and there are none", "add --cuda");
    }
    if program.workers.is_some() {
        return refused("--one-program is not supported with workers", "remove --listen");
    }
    if cluster.devices.iter().any(|device| device.crash.is_some()) {
        return refused(
            "--one-program is not supported with ranks that crash: they have no process of their own",
            "remove `crash` from the cluster file",
        );
    }
    let debugged = program.terminal.as_ref().is_some_and(|terminal| terminal.rank > 0);
    debugged.then_some(()).and_then(|()| {
        refused("--debug-rank is a rank without a program of its own", "with --one-program, use --debug-rank 0")
    })
}

/// Positions of threads that are blocked inside their process, by rank.
type Stands = BTreeMap<u32, Vec<String>>;

/// Default timeout of PyTorch's NCCL process groups. On simulated GPUs it is in virtual time, and a watchdog in the
/// rank's process enforces it.
const DEFAULT_TIMEOUT: SimDuration = SimDuration::from_us(600_000_000);

/// Operations in which an ended rank had waited for other ranks.
#[derive(Default)]
struct Unmet {
    /// One line that summarises all these operations; empty if there are none.
    text: String,
    /// Longest time for which the rank had waited in one of these operations.
    longest: SimDuration,
}

impl Unmet {
    fn of(conversations: &Conversations, rank: u32) -> Unmet {
        let unmet = conversations.engine().unmet(RankId(rank));
        let longest = unmet.iter().map(|(_, since)| *since).max().unwrap_or_default();
        let line = |call: &Pending| match conversations.line(call.site) {
            "" => call.to_string(),
            line => format!("{call}, issued at {line}"),
        };
        let calls: Vec<String> = unmet.iter().take(MOST_SHOWN).map(|(call, _)| line(call)).collect();
        let text = match calls.is_empty() {
            true => String::new(),
            false => format!("  rank {rank} had waited {longest} for {}\n", calls.join("; ")),
        };
        Unmet { text, longest }
    }
}

/// States of the other ranks when a run ended early.
fn others(conversations: &Conversations, ending: &LiveEnd, stands: &Stands) -> String {
    let gone = match ending {
        LiveEnd::Finished | LiveEnd::Unlike(_) => return String::new(),
        LiveEnd::Failed { rank, .. } | LiveEnd::Died { rank, .. } | LiveEnd::Severed { rank } => Some(*rank),
        LiveEnd::WorkerLost { .. } | LiveEnd::Halted(_) | LiveEnd::Interrupted(_) | LiveEnd::OutOfTime(_) => None,
    };
    doing(conversations, stands, gone, matches!(ending, LiveEnd::Interrupted(_) | LiveEnd::OutOfTime(_)))
}

/// States of the blocked ranks except `gone`, one line per rank; `with_running`: also of running ranks.
fn doing(conversations: &Conversations, stands: &Stands, gone: Option<u32>, with_running: bool) -> String {
    let line = |site| conversations.line(site).to_owned();
    let ranks = conversations.engine().report();
    let waits = |rank: &RankReport| rank.tasks.iter().any(|task| task.doing != Doing::Running);
    let shown: Vec<&RankReport> =
        ranks.iter().filter(|rank| Some(rank.rank.0) != gone && (with_running || waits(rank))).collect();
    let known = |rank: &RankReport| stands.get(&rank.rank.0).map_or(&[][..], Vec::as_slice);
    let lines: String = shown.iter().take(MOST_SHOWN).map(|rank| rank.render(&line, known(rank))).collect();
    let more = shown.len().saturating_sub(MOST_SHOWN);
    let rest = if more > 0 { format!("  and {more} more ranks\n") } else { String::new() };
    lines + &rest
}

/// Error that describes why a run did not finish.
///
/// # Panics
/// If the run finished, or must be repeated with other running ranks.
fn explain(
    ending: LiveEnd,
    others: &str,
    unmet: &Unmet,
    lines: &[String],
    stands: &Stands,
    folder: Option<&Path>,
) -> Stop {
    match ending {
        LiveEnd::Finished | LiveEnd::Unlike(_) => panic!("{ending:?} needs no explanation"),
        LiveEnd::Failed { rank, status } => {
            let how = status.filter(|status| ![0, 1].contains(status)).map(|code| format!(" (exit status {code})"));
            let hint = log(folder, rank).map_or_else(String::new, |log| format!("hint: see its output {log}\n"));
            let how = how.unwrap_or_default();
            let message = format!("error: the program failed on rank {rank}{how}\n{others}{hint}");
            Stop { exit: Exit::ProgramFailed, message }
        }
        // PyTorch's watchdog ends a process with this signal.
        LiveEnd::Died { rank, status: -6, .. } if unmet.longest >= DEFAULT_TIMEOUT => Stop {
            exit: Exit::Halted,
            message: format!(
                "error: time-out: PyTorch has ended rank {rank}, as its process group had waited for too long\n{}{others}hint: {}\n",
                unmet.text,
                HaltReason::Deadlock.hint()
            ),
        },
        LiveEnd::Died { rank, pid, status } => {
            let doing = unmet.text.clone() + others;
            Stop { exit: Exit::ProgramFailed, message: obituary(rank, pid, status, &doing, folder) }
        }
        LiveEnd::Severed { rank } => {
            let what = "or has replaced itself by another program (os.exec)";
            let hint = "close only descriptors that the program has opened, not a whole range as os.closerange() does";
            let message = format!(
                "error: rank {rank} has closed the descriptors that connect it to Uniference, {what}\n{others}hint: {hint}\n"
            );
            Stop { exit: Exit::ProgramFailed, message }
        }
        LiveEnd::WorkerLost { name, why } => {
            let hint = "see the worker's output, and whether its machine and the network are up";
            let message = format!("error: worker {name} is lost: {why}\n{others}hint: {hint}\n");
            Stop { exit: Exit::ProgramFailed, message }
        }
        LiveEnd::Halted(halt) => {
            Stop { exit: Exit::Halted, message: format!("error: {}", render(&halt, lines, stands)) }
        }
        LiveEnd::Interrupted(interrupt) => Stop { exit: interrupt.into(), message: format!("interrupted\n{others}") },
        LiveEnd::OutOfTime(timeout) => {
            let hint = "let the program do fewer steps, or give it more time with --timeout";
            let message =
                format!("error: the program did not end within {} s\n{others}hint: {hint}\n", timeout.as_secs_f64());
            Stop { exit: Exit::Usage, message }
        }
    }
}

fn render(halt: &Halt, lines: &[String], stands: &Stands) -> String {
    let line = |site: uniference_sim::ids::Site| lines.get(site.index()).cloned().unwrap_or_default();
    halt.render(&line, &|rank| stands.get(&rank.0).cloned().unwrap_or_default())
}

/// Path of the rank's log, if the rank has printed output.
fn log(folder: Option<&Path>, rank: u32) -> Option<String> {
    let Some(folder) = folder else { return Some("above".to_owned()) };
    let path = folder.join(format!("rank-{rank}.log"));
    path.exists().then(|| format!("in {}", path.display()))
}

fn obituary(rank: u32, pid: i32, status: i32, others: &str, folder: Option<&Path>) -> String {
    let what = format!("error: rank {rank} (process {pid}) {} before its program finished", describe_status(status));
    let hint = match (-status, log(folder, rank)) {
        (9, _) => "the host may have run out of memory (check dmesg; large tensors take none with --values small), or another process killed it".to_owned(),
        (_, Some(log)) => format!("see its last output {log}"),
        (_, None) => "it printed nothing; enable Python's faulthandler to see where the process ended".to_owned(),
    };
    format!("{what}\n{others}hint: {hint}\n")
}
