//! Owns a live run on this machine: its processes, sockets and pipes, in one loop over ready descriptors.
//!
//! `uniference-lowering` interprets messages of ranks, the engine simulates them, and the [`Console`] decides on output
//! for the user. No process outlives the run, however the run ends: [`Zygote`] ends all processes when it is dropped.

mod starts;
mod whereabouts;

use self::whereabouts::{AGAIN, Looks};
use super::connections::{Process, RankConnections, TaskConnection};
use super::output::{Logs, Stream};
use super::phantom::Libraries;
use super::process_probe::{self, ProcessProbe};
use super::remote::remote_worker::{BoardNews, RemoteWorker};
use super::remote::{Joined, Synced};
use super::slots::Slots;
use super::sources::{Source, Sources};
use super::zygote::{self, News, RankPlacement, Script, Zygote, describe_status};
use crate::capacity;
use crate::error::HostError;
use crate::interrupt::{Interrupt, Interrupts};
use crate::symbols::Torch;
use rustix::io::Errno;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uniference_client::processor::Visit;
use uniference_lowering::conversations::{Progress, Ready};
use uniference_lowering::slice::Costs;
use uniference_lowering::{Conversations, Recorder};
use uniference_protocol::arena::{self, Layout};
use uniference_protocol::frame::{self, FrameBuffer};
use uniference_protocol::hello::Hello;
pub use uniference_protocol::messages::Compute;
use uniference_protocol::messages::{Batch, Op, Reply};
use uniference_protocol::wire::Wire;
use uniference_sim::engine::{Engine, Halt};
use uniference_sim::event::Observer;
use uniference_sim::fold_plan::{FoldPlan, Unlike};
use uniference_sim::ids::{RankId, TaskId};
use uniference_sim::program::Outcome;

/// Maximum number of ranks that are requested from the zygote before the first of them has started.
const FORKS_AHEAD: u32 = 16;

/// Interval at which the console may show the progress of the run.
const TICK: Duration = Duration::from_millis(100);

/// Duration without messages after which the driver checks whether a rank's threads all wait for each other.
const SILENCE: Duration = Duration::from_secs(1);

/// Duration without messages after which the user is warned of ranks that wait for external I/O.
const LONG_SILENCE: Duration = Duration::from_secs(10);

/// Time limit for processes to exit after all programs have finished.
const FAREWELL: Duration = Duration::from_secs(10);

/// Time limit for processes to exit after a rank has failed.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The configuration of a live run.
pub struct Setup {
    /// The path of the Python interpreter.
    pub python: PathBuf,
    /// The program of every rank.
    pub script: Script,
    /// Modules that are imported once, before the ranks are forked.
    pub modules: Vec<String>,
    /// Each rank's number, host and device.
    pub places: Vec<RankPlacement>,
    /// The installed torch whose GPUs are simulated; [`RankPlacement::gpus`] lists them.
    pub gpus: Option<Torch>,
    /// By rank, the worker on which it runs; `None`: this machine.
    pub workers: Vec<Option<String>>,
    /// Files of this machine that are sent to workers.
    pub synced: Option<Synced>,
    /// Whether only rank 0 has a program, whose processes use the GPUs of all ranks.
    pub one_program: bool,
    /// Maximum number of ranks that run at once on this machine, and on each worker's machine.
    pub jobs: usize,
    /// Source of the duration of compute, by rank.
    pub compute: Vec<Compute>,
    /// The folder of the ranks' logs.
    pub logs: PathBuf,
    /// The terminal of a rank that is debugged.
    pub terminal: Option<Terminal>,
    /// Standard input of rank 0 if no rank has the terminal. The standard input of the other ranks is empty, as is that
    /// of rank 0 if this is `None`.
    pub input: Option<OwnedFd>,
    /// Limit of the run's duration on this machine; `None`: unlimited.
    pub timeout: Option<Duration>,
}

/// A rank that itself reads the command's standard input and writes to its outputs, for a debugger.
pub struct Terminal {
    /// The rank that has the terminal.
    pub rank: u32,
    /// The terminal's standard input, output and error.
    pub fds: [OwnedFd; 3],
}

/// Output of a run for the user.
pub trait Console {
    /// Shows a line that a rank printed; the line ends with a newline unless it is very long.
    fn line(&mut self, rank: u32, stream: Stream, line: &[u8]);

    /// Shows a warning; the run continues.
    fn warn(&mut self, message: &str);

    /// Shows the progress of the run: after each event of the run, and ten times per second otherwise.
    fn tick(&mut self, conversations: &Conversations);

    /// Whether `tick` has an effect.
    fn wants_ticks(&self) -> bool;
}

/// How a live run ended.
#[derive(Debug)]
pub enum LiveEnd {
    /// Every rank's program returned.
    Finished,
    /// A rank's program failed; its output has been shown.
    Failed {
        /// The rank whose program failed.
        rank: u32,
        /// Its process's exit code, or minus the signal's number; `None`: the process has not ended.
        status: Option<i32>,
    },
    /// A rank's process ended without an exit message.
    Died {
        /// The rank whose process ended.
        rank: u32,
        /// The id of the rank's process.
        pid: i32,
        /// Exit code, or minus the signal's number.
        status: i32,
    },
    /// A rank's process has closed its connection without ending.
    Severed {
        /// The rank that closed its connection.
        rank: u32,
    },
    /// A worker is gone.
    WorkerLost {
        /// The worker's name.
        name: String,
        /// The reason for the loss.
        why: String,
    },
    /// Deadlock or mismatch.
    Halted(Box<Halt>),
    /// The user interrupted the run.
    Interrupted(Interrupt),
    /// [`Setup::timeout`] has passed.
    OutOfTime(Duration),
    /// The rehearsal failed: ranks that should be equivalent differ.
    Unlike(Unlike),
}

/// A live run.
pub struct Driver<'a> {
    setup: &'a Setup,
    /// In a rehearsal: the fold plan, which names the ranks with processes.
    fold_plan: Option<Arc<FoldPlan>>,
    conversations: Conversations,
    slots: Slots<Ready>,
    zygote: Zygote,
    ranks: Vec<RankConnections>,
    /// The workers. They are dropped after the ranks, to whose outputs they write.
    boards: Vec<RemoteWorker>,
    /// For each rank, the index of its worker in `boards`.
    board_of: Vec<Option<usize>>,
    lost: Option<LiveEnd>,
    sources: Sources,
    arena: (OwnedFd, Layout),
    lookout: ProcessProbe,
    started: Instant,
    /// Time of the latest message from any process.
    heard: Instant,
    /// Ranks of which the user was told that they wait for something outside the simulation.
    waiting_outside: BTreeSet<u32>,
    /// Whether time passes as soon as all processes are found to be still waiting.
    idles: bool,
    looks: Looks,
    /// Warnings, each with the ranks that gave it; without ranks if the run itself warns.
    warned: BTreeMap<String, BTreeSet<u32>>,
    /// The CPU on which the driver waits, as do ranks between calls in quick succession.
    stay: Option<Visit>,
    asked: u32,
    logs: Logs,
    watch: Watch<'a>,
    signals: &'a Interrupts,
    interrupted: Option<Interrupt>,
    /// Private memory in bytes of the largest process at the end of a rehearsal.
    largest: u64,
}

/// The observers of a run.
pub struct Watch<'a> {
    /// Receives the engine's events.
    pub observer: &'a mut dyn Observer,
    /// Receives the ranks' requests.
    pub recorder: &'a mut dyn Recorder,
    /// Receives output for the user.
    pub console: &'a mut dyn Console,
    /// Assigns costs to the ranks' slices; `()`: measured durations.
    pub costs: Box<dyn Costs>,
}

impl<'a> Driver<'a> {
    /// Starts the zygote, and those of the workers that have `joined`, which are all workers of the setup. `signals`
    /// becomes readable when the user interrupts the run. With a fold plan, only the ranks that the plan names are
    /// started.
    pub fn new(
        setup: &'a Setup,
        engine: Engine,
        joined: Vec<Joined>,
        fold_plan: Option<Arc<FoldPlan>>,
        mut watch: Watch<'a>,
        signals: &'a Interrupts,
    ) -> Result<Driver<'a>, HostError> {
        let world_size = setup.places.len() as u32;
        let layout = Layout::for_world(world_size);
        let arena = arena::create(layout).map_err(HostError::system("creating the shared arena"))?;
        let mut conversations = Conversations::new(engine, world_size, &setup.script.argv[0].to_string_lossy());
        conversations.cost_with(std::mem::replace(&mut watch.costs, Box::new(())));
        if setup.one_program {
            conversations.lend();
        }
        let window = arena::map(&arena, layout.total).map_err(HostError::system("mapping the shared arena"))?;
        if let Some(fold_plan) = &fold_plan {
            conversations.rehearse(fold_plan, window.clone(), layout.part);
        }
        conversations.reduce_in(window.clone());
        let mut sources = Sources::new()?;
        let mut boards: Vec<RemoteWorker> = Vec::new();
        for worker in joined {
            let ranks = setup.workers.iter().filter(|name| name.as_ref() == Some(&worker.name)).count() as u32;
            let synced = setup.synced.as_ref().expect("with workers comes what they get");
            let board = RemoteWorker::start(worker, window.clone(), ranks, &setup.modules, synced)?;
            sources.add(board.news(), Source::RemoteWorker(boards.len()))?;
            boards.push(board);
        }
        let board_of = |name: &Option<String>| {
            name.as_ref()
                .map(|name| boards.iter().position(|board| board.name() == name).expect("all workers have joined"))
        };
        let board_of: Vec<Option<usize>> = setup.workers.iter().map(board_of).collect();
        let gpus = setup.gpus.as_ref().zip(zygote::package());
        let gpus = gpus.map(|(torch, package)| Libraries::write(package, torch)).transpose()?;
        let zygote = Zygote::start(&setup.python, &setup.modules, gpus)?;
        // The limit is raised after the start of the zygote: the zygote and its children run with the user's limits and
        // on any CPU.
        capacity::raise_descriptors()?;
        let stay = Visit::here();
        if let Some(stay) = &stay {
            boards.iter().for_each(|board| board.stay_on(stay.processor()));
        }
        sources.add(signals.as_fd(), Source::Signal)?;
        sources.add(zygote.socket(), Source::Zygote)?;
        Ok(Driver {
            setup,
            fold_plan,
            conversations,
            slots: Slots::new(setup.jobs, board_of.iter().map(|board| board.map_or(0, |board| board + 1))),
            zygote,
            ranks: Vec::new(),
            boards,
            board_of,
            lost: None,
            sources,
            arena: (arena, layout),
            lookout: ProcessProbe::new(zygote::package())
                .map_err(HostError::system("creating a file for stack traces"))?,
            started: Instant::now(),
            heard: Instant::now(),
            waiting_outside: BTreeSet::new(),
            idles: false,
            looks: Looks::default(),
            warned: BTreeMap::new(),
            stay,
            asked: 0,
            logs: Logs::new(&setup.logs, world_size),
            watch,
            signals,
            interrupted: None,
            largest: 0,
        })
    }

    /// The conversations of the ranks, for lines and the state of the engine.
    pub fn conversations(&self) -> &Conversations {
        &self.conversations
    }

    /// Warnings of the run and its ranks, for the report.
    pub fn warnings(&self) -> Vec<String> {
        let said = |(text, ranks): (&String, &BTreeSet<u32>)| match ranks.first() {
            None => text.clone(),
            Some(rank) if ranks.len() == 1 => format!("rank {rank}: {text}"),
            _ => format!("{} ranks: {text}", ranks.len()),
        };
        self.warned.iter().map(said).collect()
    }

    /// Drives the run to its end.
    pub fn run(&mut self) -> Result<LiveEnd, HostError> {
        loop {
            if let Some(ending) = self.step()? {
                if self.fold_plan.is_some() {
                    let pids = self.ranks.iter().filter_map(|state| match state.process {
                        Process::Alive { pid } => Some(pid),
                        _ => None,
                    });
                    self.largest = pids.filter_map(capacity::private_memory).max().unwrap_or_default();
                }
                let ending = self.farewell(ending)?;
                self.conversations.record_rest(self.watch.recorder);
                // A rank may have failed because of data that absent ranks contributed.
                let is_over = matches!(ending, LiveEnd::Finished | LiveEnd::Halted(_) | LiveEnd::Failed { .. });
                let unlike = self.conversations.conclude().filter(|_| is_over).cloned();
                return Ok(unlike.map_or(ending, LiveEnd::Unlike));
            }
            let timeout = self.next_timeout();
            self.listen(timeout)?;
        }
    }

    /// Advances the run as far as possible without reading new messages.
    fn step(&mut self) -> Result<Option<LiveEnd>, HostError> {
        if let Some(interrupt) = self.interrupted {
            return Ok(Some(LiveEnd::Interrupted(interrupt)));
        }
        if let Some(timeout) = self.setup.timeout.filter(|timeout| self.started.elapsed() >= *timeout) {
            return Ok(Some(LiveEnd::OutOfTime(timeout)));
        }
        let standing = self.go_on_when_idle()?;
        self.end_crashed();
        if let Some(unlike) = self.conversations.unlike() {
            return Ok(Some(LiveEnd::Unlike(unlike.clone())));
        }
        if let (Some(lost), false) = (self.lost.take(), matches!(standing, Progress::Finished)) {
            return Ok(Some(lost));
        }
        // A rank whose process has ended explains why the other ranks cannot continue.
        Ok(self.casualty().or(match standing {
            Progress::Finished => Some(LiveEnd::Finished),
            Progress::Halted(halt) => Some(LiveEnd::Halted(halt)),
            Progress::Blocked | Progress::Idle => None,
        }))
    }

    fn go_on(&mut self) -> Progress {
        let standing = self.conversations.advance(self.watch.observer, self.watch.recorder);
        while let Some(ready) = self.conversations.take_ready() {
            self.slots.offer(ready.rank, ready);
        }
        while let Some((rank, frame)) = self.conversations.take_ahead() {
            self.write(rank, TaskId(0), &frame);
        }
        if let Some(text) = self.conversations.disagreement()
            && let Entry::Vacant(entry) = self.warned.entry(text)
        {
            self.watch.console.warn(entry.key());
            entry.insert(BTreeSet::new());
        }
        self.slots.expire(Instant::now());
        while let Some(ready) = self.slots.take(Instant::now()) {
            self.answer(ready);
        }
        if self.watch.console.wants_ticks() {
            self.watch.console.tick(&self.conversations);
        }
        standing
    }

    /// Ends the processes of ranks that have crashed in the simulation.
    fn end_crashed(&mut self) {
        for ((rank, state), board) in (0..).map(RankId).zip(&mut self.ranks).zip(&self.board_of) {
            let Process::Alive { pid } = state.process else { continue };
            if state.crashed || !self.conversations.has_crashed(rank) {
                continue;
            }
            state.crashed = true;
            if let Some(board) = board {
                self.boards[*board].kill(rank.0);
            } else if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                // The kill fails if the process has ended on its own in the meantime.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            self.slots.blocked(rank);
            let at = self.conversations.engine().clock(rank);
            self.watch.console.warn(&format!("rank {} crashed at {at}, as the cluster file specifies", rank.0));
        }
    }

    /// The end of the run caused by the lowest rank that failed or died.
    fn casualty(&self) -> Option<LiveEnd> {
        let mut ranks = (0..).zip(&self.ranks).filter(|(_, state)| !state.crashed);
        ranks.find_map(|(rank, state)| match (state.tasks[0].exited, state.process) {
            (Some(Outcome::Failed), _) => Some(LiveEnd::Failed { rank, status: None }),
            (None, _) if state.tasks[0].severed => Some(LiveEnd::Severed { rank }),
            (None, Process::Ended { pid, status }) => Some(LiveEnd::Died { rank, pid, status }),
            _ => None,
        })
    }

    /// Sends a task its answer.
    fn answer(&mut self, ready: Ready) {
        let (rank, task) = (ready.rank, ready.task);
        let Some(frame) = self.conversations.frame(ready) else { return self.slots.blocked(rank) };
        self.write(rank, task, &frame);
    }

    fn write(&self, rank: RankId, task: TaskId, frame: &Reply) {
        let mut bytes = Vec::with_capacity(128);
        frame::encode(frame, &mut bytes);
        // A failed write is ignored: if the rank no longer exists, the end of its process is reported separately.
        if let Some(wire) = &self.ranks[rank.index()].tasks[task.index()].wire {
            let _ = wire.write(&bytes);
        }
    }

    /// Waits for messages, and handles them.
    fn listen(&mut self, timeout: Option<Duration>) -> Result<(), HostError> {
        let sources = self.sources.wait(timeout)?;
        match sources.is_empty() {
            true => self.look_out(),
            false => self.heard = Instant::now(),
        }
        for source in sources {
            match source {
                Source::Signal => self.hear_signals(),
                Source::Zygote => self.hear_zygote()?,
                Source::RemoteWorker(board) => self.hear_board(board)?,
                Source::Task(rank, task) => self.hear_task(rank, task)?,
                Source::Pipe(rank, stream) => drop(self.hear_pipe(rank, stream)?),
            }
        }
        Ok(())
    }

    /// Private memory in bytes of the largest process at the end of a rehearsal, if the process still existed.
    pub fn largest(&self) -> u64 {
        self.largest
    }

    /// Whether any rank has been started.
    pub fn has_ranks(&self) -> bool {
        self.ranks.iter().any(|rank| rank.process != Process::Coming)
    }

    /// Handles signals. Ctrl-C belongs to the debugger, unless the debugged rank waits for others and cannot receive
    /// it.
    fn hear_signals(&mut self) {
        let taken = self.signals.take();
        let debugs = self.setup.terminal.as_ref().is_some_and(|terminal| {
            (terminal.rank as usize) < self.ranks.len() && self.conversations.runs(RankId(terminal.rank))
        });
        self.interrupted = taken.filter(|interrupt| *interrupt != Interrupt::Int || !debugs).or(self.interrupted);
        if self.interrupted.is_some() {
            // After a second interrupt, the command ends without a list of the ranks' positions.
            self.signals.end_at_next();
        }
    }

    fn hear_zygote(&mut self) -> Result<(), HostError> {
        for news in self.zygote.hear()? {
            match news {
                News::Error { message, hint } => return Err(HostError::Zygote { what: message, hint }),
                other => self.hear_news(other)?,
            }
        }
        Ok(())
    }

    fn hear_news(&mut self, news: News) -> Result<(), HostError> {
        match news {
            News::Ready { .. } => self.ask_for_ranks(FORKS_AHEAD),
            News::Error { message, hint } => Err(HostError::Zygote { what: message, hint }),
            News::Forked { rank, pid } => {
                self.ranks[rank as usize].process = Process::Alive { pid };
                self.ask_for_ranks(1)
            }
            News::Exited { rank, pid, status } => self.rank_ended(RankId(rank), pid, status),
        }
    }

    fn hear_board(&mut self, board: usize) -> Result<(), HostError> {
        let name = self.boards[board].name().to_owned();
        for news in self.boards[board].hear() {
            match news {
                BoardNews::Zygote(News::Error { message, hint }) => {
                    return Err(HostError::Zygote { what: format!("worker {name}: {message}"), hint });
                }
                BoardNews::Zygote(news) => self.hear_news(news)?,
                BoardNews::Folded { rank, task, handle } => {
                    self.conversations.say(RankId(rank), TaskId(task), vec![Op::Folded(handle)], None);
                }
                BoardNews::Lost(why) => {
                    for (state, _) in self.ranks.iter_mut().zip(&self.board_of).filter(|(_, at)| **at == Some(board)) {
                        if state.process.status().is_none() {
                            state.process = Process::Ended { pid: 0, status: -9 };
                        }
                    }
                    self.lost = Some(LiveEnd::WorkerLost { name: name.clone(), why });
                }
            }
        }
        Ok(())
    }

    fn hear_task(&mut self, rank: RankId, task: TaskId) -> Result<(), HostError> {
        let state = &mut self.ranks[rank.index()].tasks[task.index()];
        let Some(wire) = &state.wire else { return Ok(()) };
        match state.frames.fill(&**wire, false) {
            Ok(count) if count > 0 => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
                return Err(HostError::system("taking the socket of a rank's thread")(error));
            }
            _ => return self.task_closed(rank, task),
        }
        let broken = HostError::system::<io::Error>;
        let state = &mut self.ranks[rank.index()];
        if task == TaskId(0) && !state.greeted {
            let theirs = state.tasks[0].frames.next_frame::<Hello>().map_err(broken("reading a rank's first frame"))?;
            let Some(theirs) = theirs else { return Ok(()) };
            Hello::new(true).check(theirs).map_err(|why| HostError::Disagreement { rank: rank.0, why })?;
            state.greeted = true;
        }
        while let Some(batch) =
            self.ranks[rank.index()].tasks[task.index()].frames.next_frame().map_err(broken("reading a frame"))?
        {
            self.hear_batch(rank, task, batch)?;
        }
        Ok(())
    }

    fn hear_batch(&mut self, rank: RankId, task: TaskId, batch: Batch) -> Result<(), HostError> {
        let Batch { opens_task, ops, quiet } = batch;
        if let Some(ticket) = opens_task {
            let main = &mut self.ranks[rank.index()].tasks[task.index()];
            let wire = main.wire.as_ref().expect("it has just been read");
            let opened = main.frames.accept(&**wire, ticket);
            let opened = opened.unwrap_or_else(|error| panic!("{rank} opens a task without its wire: {error}"));
            self.task_opened(rank, opened)?;
        }
        if let Some(lack) = ops.iter().find_map(|op| if let Op::LacksMemory(lack) = op { Some(lack) } else { None }) {
            return Err(capacity::lacks(rank.0, lack, self.board(rank.0).map(RemoteWorker::name)));
        }
        if let [Op::LacksValues(text)] = &ops[..] {
            return Err(HostError::MissingValues(text.clone()));
        }
        if let [Op::Warn(text)] = &ops[..] {
            self.watch.console.warn(&format!("rank {}: {text}", rank.0));
            self.warned.entry(text.clone()).or_default().insert(rank.0);
            return Ok(());
        }
        if self.conversations.has_crashed(rank) {
            return Ok(());
        }
        self.slots.heard(rank, Instant::now());
        let exit = ops.iter().find_map(|op| if let Op::Exit(outcome) = op { Some(*outcome) } else { None });
        let state = &mut self.ranks[rank.index()].tasks[task.index()];
        state.exited = state.exited.or(exit);
        let quiet = self.conversations.say(rank, task, ops, quiet);
        if quiet || (exit.is_some() && task == TaskId(0)) {
            self.slots.blocked(rank);
        }
        Ok(())
    }

    fn task_opened(&mut self, rank: RankId, wire: Arc<dyn Wire>) -> Result<(), HostError> {
        let task = self.conversations.open_task(rank);
        self.sources.add(wire.as_fd(), Source::Task(rank, task))?;
        self.ranks[rank.index()].tasks.push(TaskConnection::new(wire));
        Ok(())
    }

    /// Handles the closed connection of a task: its thread has ended or, for the main task, the rank, which the end of
    /// the process confirms.
    fn task_closed(&mut self, rank: RankId, task: TaskId) -> Result<(), HostError> {
        let state = &mut self.ranks[rank.index()].tasks[task.index()];
        if let Some(wire) = state.wire.take() {
            self.sources.remove(wire.as_fd())?;
        }
        state.frames = FrameBuffer::default();
        state.ran_to_its_end = self.conversations.runs(rank);
        let process = self.ranks[rank.index()].process;
        let exits = |pid| match self.board(rank.0) {
            Some(board) => board.is_exiting(rank.0, task.0),
            None => process_probe::is_exiting(pid),
        };
        let severed = process.pid().is_some_and(|pid| !exits(pid));
        let state = &mut self.ranks[rank.index()].tasks[task.index()];
        state.severed = severed;
        if task == TaskId(0) {
            self.slots.blocked(rank);
        } else if state.exited.is_none() && !self.conversations.has_crashed(rank) {
            state.exited = Some(Outcome::Ok);
            self.conversations.close_task(rank, task);
        }
        Ok(())
    }

    /// Handles the end of a rank's process: earlier messages and output still count.
    fn rank_ended(&mut self, rank: RankId, pid: i32, status: i32) -> Result<(), HostError> {
        let mut task = TaskId(0);
        // A message of one task may open another task.
        while let Some(state) = self.ranks[rank.index()].tasks.get(task.index()) {
            match state.readable() {
                true => self.hear_task(rank, task)?,
                false => task = TaskId(task.0 + 1),
            }
        }
        let state = &mut self.ranks[rank.index()];
        state.process = Process::Ended { pid, status };
        if state.crashed || self.conversations.has_crashed(rank) {
            return Ok(());
        }
        let main = &mut state.tasks[0];
        if status == 0 && main.exited.is_none() && main.ran_to_its_end {
            // An exit by `os._exit(0)` counts as success if no other rank waits for this rank.
            main.exited = Some(Outcome::Ok);
            self.conversations.end(rank);
        }
        let has_ended = main.exited == Some(Outcome::Ok);
        self.conversations.gone(rank, has_ended);
        let state = &self.ranks[rank.index()];
        if state.tasks[0].exited == Some(Outcome::Ok) && status != 0 {
            let how = describe_status(status);
            self.watch.console.warn(&format!("the process of rank {} {how} after its program finished", rank.0));
        }
        Ok(())
    }

    /// Reads a rank's output. Returns whether more may follow.
    fn hear_pipe(&mut self, rank: RankId, stream: Stream) -> Result<bool, HostError> {
        let slot = &mut self.ranks[rank.index()].pipes[stream as usize];
        let Some(pipe) = slot else { return Ok(false) };
        let open = pipe.read(|line| {
            self.watch.console.line(rank.0, stream, line);
            self.logs.append(rank.0, line)
        })?;
        if !open && let Some(pipe) = slot.take() {
            self.sources.remove(pipe.source().as_fd())?;
        }
        Ok(open)
    }

    /// Handles the last messages and output of ranks that have ended or are about to end.
    fn farewell(&mut self, ending: LiveEnd) -> Result<LiveEnd, HostError> {
        let finished = matches!(ending, LiveEnd::Finished);
        let deadline = Instant::now() + if finished { FAREWELL } else { LAST_WORDS };
        // The report includes the operations for which the other ranks are about to wait.
        let mut others_go_on = matches!(ending, LiveEnd::Failed { .. } | LiveEnd::Died { .. });
        while self.interrupted.is_none() && !(self.have_ended(&ending) && !(others_go_on && self.anybody_runs())) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() && finished {
                self.watch.console.warn("ranks did not exit within 10 s after their program finished and were killed");
            }
            if left.is_zero() {
                break;
            }
            others_go_on = others_go_on && matches!(self.go_on_when_idle()?, Progress::Blocked | Progress::Idle);
            self.listen(Some(if self.idles { left.min(AGAIN) } else { left }))?;
        }
        self.hear_last_words()?;
        let ending = match ending {
            LiveEnd::Failed { rank, .. } => {
                LiveEnd::Failed { rank, status: self.ranks[rank as usize].process.status() }
            }
            other => other,
        };
        Ok(self.interrupted.map_or(ending, LiveEnd::Interrupted))
    }

    /// Handles output that ranks printed before their processes ended. Children of these processes may keep the outputs
    /// open indefinitely.
    fn hear_last_words(&mut self) -> Result<(), HostError> {
        for (rank, state) in (0..).zip(&mut self.ranks) {
            if state.process.status().is_none() {
                continue;
            }
            for (stream, slot) in [Stream::Out, Stream::Err].into_iter().zip(&mut state.pipes) {
                let Some(mut pipe) = slot.take() else { continue };
                self.sources.remove(pipe.source().as_fd())?;
                pipe.drain(|line| {
                    self.watch.console.line(rank, stream, line);
                    self.logs.append(rank, line)
                })?;
            }
        }
        Ok(())
    }

    fn have_ended(&self, ending: &LiveEnd) -> bool {
        let has_ended = |rank: &RankConnections| rank.process.status().is_some();
        match ending {
            LiveEnd::Finished => self.ranks.iter().all(has_ended),
            LiveEnd::Failed { rank, .. } | LiveEnd::Died { rank, .. } | LiveEnd::Severed { rank } => {
                has_ended(&self.ranks[*rank as usize])
            }
            LiveEnd::WorkerLost { .. }
            | LiveEnd::Halted(_)
            | LiveEnd::Interrupted(_)
            | LiveEnd::OutOfTime(_)
            | LiveEnd::Unlike(_) => true,
        }
    }
}
