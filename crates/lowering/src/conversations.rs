//! Owns the conversations of live tasks with the engine: operations that tasks send become requests, one after the
//! other, and the engine's replies become answers.
//!
//! The module does no I/O, so tests need no sockets or processes: `driver` handles sockets, processes and this
//! machine's time.
//!
//! The file is long because it is one state machine: the requests for each operation and the effects of each reply are
//! read together.

mod dictionary;
mod ranges;
mod streams;
mod times;

use crate::absent::AbsentRanks;
use crate::data::{Access, DataPlane};
use crate::slice::{Costs, LoweredWork, RankSlice};
use dictionary::Dictionary;
use ranges::Ranges;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use streams::Streams;
use times::Times;
use uniference_formats::operators::{Line, of_process};
use uniference_protocol::memory::Window;
use uniference_protocol::messages::{
    self, Answer, Fetched, LaunchId, LocalHandle, OnStream, Op, Quiet, Reply as Frame,
};
use uniference_sim::engine::{Engine, Halt, Resumption, Threads, Turn};
use uniference_sim::event::{Event, Observer};
use uniference_sim::fold_plan::{FoldPlan, Unlike};
use uniference_sim::ids::{GroupId, Handle, OfProcess, QueueId, RankId, Site, TaskId};
use uniference_sim::program::{Activity, NcclSettings, Origin, Outcome, POLL_COST, Reply, Request, StoreOp, Work};
use uniference_sim::replay::{RecordedStep, handles_mut};
use uniference_sim::time::{SimDuration, SimTime};

/// Receives every recorded step: steps of one rank in their order, steps of several ranks in the order of the ranks'
/// clocks.
pub trait Recorder {
    /// The next step of `task` of `rank`; `line` is the text of the step's line, or empty if the step has none.
    fn step(&mut self, rank: RankId, task: TaskId, step: &RecordedStep, line: &str);

    /// The text of the line `site`; a site may be reported more than once. Each site is reported before any event names
    /// it; the order of sites depends on this machine's scheduling.
    fn line(&mut self, _site: Site, _line: &str) {}
}

impl Recorder for () {
    fn step(&mut self, _: RankId, _: TaskId, _: &RecordedStep, _: &str) {}
}

/// The live ranks of a run, and the engine.
pub struct Conversations {
    engine: Engine,
    costs: Box<dyn Costs>,
    data: DataPlane,
    times: Times,
    ranks: Vec<RankConversation>,
    /// The engine's last answer to any task.
    latest: Option<Cause>,
    /// Answers that are ready, in the engine's order.
    ready: VecDeque<Ready>,
    /// Tasks whose waits are over, but whose data another rank still reduces.
    fetching: Vec<Fetching>,
    /// Data that is available to main tasks before their waits are over.
    early_data: Vec<(RankId, Fetched)>,
    /// Number of main tasks that accept data before their waits are over.
    early_data_wanted: usize,
    /// Time of the last operation of a program's own thread, or of a library's thread that did more than poll.
    acted_at: SimTime,
    /// Steps that the recorder has not received, by clock and rank. The order in which ranks report depends on this
    /// machine's scheduling, and must not show in the record.
    unrecorded: BTreeMap<(SimTime, RankId), Vec<(TaskId, RecordedStep)>>,
    /// Lines that ranks have named and the recorder has not received.
    untold: Vec<Site>,
    /// The absent ranks of a rehearsal.
    absence: Option<AbsentRanks>,
    /// Whether one program, rank 0's, uses the GPUs of all ranks: its processes act as the other ranks.
    lends: bool,
    /// Rank and task as which a task of rank 0 continues after its process moved to another rank.
    moved: BTreeMap<TaskId, (RankId, TaskId)>,
    /// Ranks of those processes of rank 0 that have moved to another rank.
    homes: BTreeMap<u32, RankId>,
}

/// An answer for a task.
#[derive(Debug, PartialEq)]
pub struct Ready {
    /// The rank of the task.
    pub rank: RankId,
    /// The task that continues.
    pub task: TaskId,
    /// The answer to the task's question.
    pub answer: Answer,
    /// The number of the answered question, counted from 1.
    pub question: u64,
}

/// A task whose wait is over. Entries are in the engine's order, because data is delivered in that order: a task here
/// waits only for earlier ones.
struct Fetching {
    rank: RankId,
    task: TaskId,
    complete: Vec<(LocalHandle, Handle)>,
    /// The failed operations among `complete`, with the rank that closed the connection.
    failed: BTreeMap<Handle, RankId>,
}

/// Why [`Conversations::advance`] returned.
#[derive(Debug)]
pub enum Progress {
    /// A task must send its next operation first.
    Blocked,
    /// No task has a request, and the engine would advance time to the end of a sleep or timeout: the caller must first
    /// confirm that all processes still wait.
    Idle,
    /// All programs have ended.
    Finished,
    /// The run cannot go on.
    Halted(Box<Halt>),
}

/// One live rank.
struct RankConversation {
    tasks: Vec<TaskConversation>,
    lines: Lines,
    turn: Turns,
    /// The engine's handles of operations, by the rank's own handles.
    names: BTreeMap<LocalHandle, Handle>,
    /// The inverse of `names`.
    called: BTreeMap<Handle, LocalHandle>,
    /// The highest engine handle in `names`.
    newest: Option<Handle>,
    released: Released,
    /// Operations whose failure was reported to a wait for the device, with the rank that closed the connection. Later
    /// waits for these operations get the same failure.
    failed: BTreeMap<Handle, RankId>,
    dictionary: Dictionary,
    /// Definitions of ids in captured operators, by process, in runs in which one program uses all GPUs: kept in case
    /// the process moves to another rank.
    named: BTreeMap<u32, Vec<u8>>,
    /// The process that communicates for this rank; `None`: the rank's main process.
    communicates: Option<OfProcess>,
    ranges: Ranges,
    /// Number of the rank's recorded activities.
    activities: u32,
    /// The record's handles of activities by engine handle, for ranks with several threads.
    recorded_as: BTreeMap<Handle, Handle>,
    streams: Streams,
}

/// The operations that a rank has released. A thread may wait for an operation that another thread has just released.
#[derive(Default)]
struct Released {
    /// All operations below this handle are released.
    below: LocalHandle,
    /// Released operations at or above `below`.
    others: BTreeSet<LocalHandle>,
}

impl Released {
    fn insert(&mut self, handle: LocalHandle) {
        self.others.insert(handle);
        while self.others.remove(&self.below) {
            self.below += 1;
        }
    }

    fn contains(&self, handle: LocalHandle) -> bool {
        handle < self.below || self.others.contains(&handle)
    }
}

/// Whether the process of a rank runs, and since when. Each process is answered, runs until it is quiet, and is then
/// answered again.
#[derive(Default)]
struct Turns {
    /// Whether the process has ended.
    is_gone: bool,
    /// Number of batches received since the process was last quiet that count towards `Quiet::parts`.
    parts: u32,
    /// Whether the process has been answered since it was last quiet.
    running: bool,
    /// Whether some threads of the process have sent operations since it was last quiet while other threads run.
    speaks: bool,
    /// State of the threads that are not blocked on the driver. `None` while the process runs.
    idle_threads: Option<Threads>,
    /// Number of answers that the process has not been given yet.
    owed: u32,
    /// Whether a thread that does more than poll has run since the process was last quiet.
    acted: bool,
    /// Cause of the process's latest progress: the last answer to this process, or an answer to another rank if the
    /// process has woken by itself since.
    answered: Option<Answered>,
}

/// An answer of the engine: its rank and task, and its number among the answers to that task, counted from 1.
type Cause = (RankId, TaskId, u64);

/// An answer that a task was given.
#[derive(Clone, Copy)]
struct Answered {
    whose: (RankId, TaskId),
    /// Cause of the task's progress: the engine's answer to the task, or the answer to another task that has woken it
    /// since.
    from: Cause,
}

/// The lines of a rank's program.
#[derive(Default)]
struct Lines {
    texts: Vec<String>,
    index: BTreeMap<String, usize>,
    /// Sites of captured lines that have launched work.
    captured: BTreeMap<Line, Site>,
}

/// One thread of a live rank.
struct TaskConversation {
    state: State,
    /// The process whose numbering the task uses.
    process: OfProcess,
    /// Whether the thread has ended without an exit message: answers to it are discarded.
    closed: bool,
    /// Operations received from the task and not yet carried out.
    ops: VecDeque<Op>,
    /// Number of operations carried out.
    carried_out: u64,
    /// Index, counted from 0, of the first operation that the task has sent since its process was last quiet; `None`:
    /// the task has sent none.
    spoken_from: Option<u64>,
    /// Indices of operations that follow from an answer to another task, with that answer.
    causes: VecDeque<(u64, Cause)>,
    /// The task's own table of lines.
    sites: Vec<Site>,
    /// Operators of a slice whose end has not been received.
    operators: Vec<u8>,
    /// For each slice received and not yet carried out: number of dictionary parts received before it.
    slices: VecDeque<u64>,
    /// Pieces of the current slice that have not been handed to the engine.
    pieces: VecDeque<LoweredWork>,
    /// Handle of the task's last work on the launching CPU.
    host: Option<Handle>,
    /// Activities that the task's next work on the launching CPU waits for.
    awaited: Vec<Handle>,
    /// The record's handle of the activity that the task issued last.
    recorded_as: Handle,
    /// Whether the record has a step of the task.
    is_recorded: bool,
    /// Whether the task has been at a line of the program. A task that has not may be a thread of a library.
    is_programs: bool,
    /// Whether the task's last question has no timeout.
    waits_forever: bool,
    /// The line of the task's latest operation that has one.
    line: Site,
    /// Number of the task's questions.
    questions: u64,
    /// The rank's clock at the task's last question that was carried out.
    asked_at: SimTime,
    /// Number of the engine's answers to the task, plus its pauses that were ended early.
    resumptions: u64,
    /// Cause of the task's next request, if an answer to another task woke it.
    woken_by: Option<Cause>,
    /// Cause of the task's progress since the engine's last answer to it, if an answer to another task woke it.
    woken_by_other: Option<Cause>,
    /// The rank to which the task moves with its next operation, and the cause of the move.
    moves_to: Option<(RankId, Cause)>,
    /// Time since which the task has only polled whether other tasks have acted.
    spins: Option<SimTime>,
    /// Number of further polls that the task may make before time passes, although only polling tasks have run.
    looks: u8,
    /// The rank and task by which the driver knows a task that has moved.
    driver_id: Option<(RankId, TaskId)>,
}

/// The side that acts next in the conversation of a task.
enum State {
    /// The task: the engine has it running.
    Free,
    /// The engine: this request is pending.
    Asked(Asked),
    /// The task has ended.
    Ended,
}

/// The kind of a task's pending request.
enum Asked {
    FirstTurn,
    /// One piece of a slice.
    LoweredWork(LoweredWork),
    ComputeEnd,
    Sleep,
    SleepEnd,
    Mark,
    /// Names a process group; the record has no step for this request.
    Name,
    Issue(LocalHandle, Option<OnStream>),
    /// A wait for operations; `ahead`: the task accepts data before the wait is over.
    Wait {
        named: Vec<(LocalHandle, Handle)>,
        ahead: bool,
    },
    Now,
    Pause,
    Yield,
    Group(Arc<[RankId]>, Option<NcclSettings>),
    Store,
    /// A wait for work of the task's device.
    Device(Vec<Handle>, DeviceQuestion),
    Times,
    Elapsed,
}

/// A task's question about work of its device.
#[derive(Clone, Copy)]
enum DeviceQuestion {
    /// Block until the work has ended.
    Synchronize,
    /// Ask whether the work has ended.
    Query,
    /// Exit once the work has ended.
    Exit,
}

impl Conversations {
    /// Creates the conversations of `world_size` ranks with `engine`, all at their start. `script` is the text for
    /// operations without a known line.
    pub fn new(mut engine: Engine, world_size: u32, script: &str) -> Conversations {
        engine.asks_before_it_idles();
        let rank = |rank: u32| {
            let mut lines = Lines::default();
            let line = lines.site(script, rank, world_size);
            RankConversation {
                tasks: vec![TaskConversation::new(State::Asked(Asked::FirstTurn), line)],
                lines,
                turn: Turns::default(),
                names: BTreeMap::new(),
                called: BTreeMap::new(),
                newest: None,
                released: Released::default(),
                failed: BTreeMap::new(),
                dictionary: Dictionary::default(),
                named: BTreeMap::new(),
                communicates: None,
                ranges: Ranges::default(),
                activities: 0,
                recorded_as: BTreeMap::new(),
                streams: Streams::default(),
            }
        };
        Conversations {
            data: DataPlane::of(engine.algorithms().clone()),
            times: Times::new(world_size),
            engine,
            costs: Box::new(()),
            ranks: (0..world_size).map(rank).collect(),
            latest: None,
            ready: VecDeque::new(),
            fetching: Vec::new(),
            early_data: Vec::new(),
            early_data_wanted: 0,
            acted_at: SimTime::ZERO,
            unrecorded: BTreeMap::new(),
            untold: (0..world_size).map(Site).collect(),
            absence: None,
            lends: false,
            moved: BTreeMap::new(),
            homes: BTreeMap::new(),
        }
    }

    /// Declares that only rank 0 has a program. A process of that program that uses another rank's GPU moves to that
    /// rank with its threads, and still keeps rank 0's process from being quiet: the processes wait for each other in
    /// ways that the engine cannot see.
    pub fn lend(&mut self) {
        self.lends = true;
    }

    /// The rank that owns the process of the rank's threads.
    fn head(&self, rank: RankId) -> RankId {
        if self.lends { RankId(0) } else { rank }
    }

    /// The ranks whose threads are in the process of `head`.
    fn family(&self, head: RankId) -> std::ops::Range<usize> {
        if self.lends { 0..self.ranks.len() } else { head.index()..head.index() + 1 }
    }

    /// The rank's clock; if one program uses all GPUs, the engine's time for all ranks.
    fn clock(&self, rank: RankId) -> SimTime {
        if self.lends { self.engine.now() } else { self.engine.clock(rank) }
    }

    fn turn(&mut self, rank: RankId) -> &mut Turns {
        let head = self.head(rank);
        &mut self.ranks[head.index()].turn
    }

    fn set_threads(&mut self, rank: RankId, threads: Threads) {
        let head = self.head(rank);
        self.family(head).map(RankId::from).for_each(|member| self.engine.set_threads(member, threads));
    }

    /// The rank and task that the driver's `rank` and `task` have become.
    fn behind(&self, rank: RankId, task: TaskId) -> (RankId, TaskId) {
        self.moved.get(&task).filter(|_| self.lends).copied().unwrap_or((rank, task))
    }

    /// Starts a rehearsal: only ranks of the cast that run have processes. The other ranks end at once, and contribute
    /// to collectives the data of running ranks of their classes, copied in the arena, of which each rank has `part`
    /// bytes.
    pub fn rehearse(&mut self, cast: &Arc<FoldPlan>, window: Window, part: u64) {
        self.absence = Some(AbsentRanks::new(cast.clone()));
        self.data.rehearse(cast.clone(), window, part);
        (0..self.ranks.len()).map(RankId::from).filter(|rank| !cast.runs(*rank)).for_each(|rank| self.end(rank));
    }

    /// The deviation that ends a rehearsal: ranks that should be equivalent differ.
    pub fn unlike(&self) -> Option<&Unlike> {
        self.absence.as_ref().and_then(AbsentRanks::unlike)
    }

    /// The deviation that a finished rehearsal has found.
    pub fn conclude(&mut self) -> Option<&Unlike> {
        self.absence.as_mut().and_then(AbsentRanks::conclude)
    }

    /// Reduces small collectives in the driver, in the arena, from now on.
    pub fn reduce_in(&mut self, window: Window) {
        self.data.reduce_in(window);
    }

    /// Charges slices the costs of `costs` from now on, instead of measured durations.
    pub fn cost_with(&mut self, costs: Box<dyn Costs>) {
        self.costs = costs;
    }

    /// The engine, read-only.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Warning if members gave one group different NCCL settings.
    pub fn disagreement(&self) -> Option<String> {
        let [first, other] = self.data.disagreement()?;
        Some(format!(
            "ranks {} and {} give one communicator different NCCL settings; the settings of rank {} count",
            first.0, other.0, first.0
        ))
    }

    /// Whether a thread of the rank's process runs or is about to run: other ranks wait for the engine, which waits for
    /// such threads.
    pub fn is_running(&self, rank: RankId) -> bool {
        let turn = &self.ranks[self.head(rank).index()].turn;
        turn.running || turn.owed > 0
    }

    /// The text of a line: `path:line`.
    pub fn line(&self, site: Site) -> &str {
        let world_size = self.ranks.len();
        &self.ranks[site.index() % world_size].lines.texts[site.index() / world_size]
    }

    /// All lines, by [`Site`]; empty for unused sites.
    pub fn lines(&self) -> Vec<String> {
        let most = self.ranks.iter().map(|rank| rank.lines.texts.len()).max().unwrap_or(0);
        let text = |at: usize, rank: &RankConversation| rank.lines.texts.get(at).cloned().unwrap_or_default();
        (0..most).flat_map(|at| self.ranks.iter().map(move |rank| text(at, rank))).collect()
    }

    /// Opens a task for a new thread of `rank` at its first call.
    pub fn open_task(&mut self, rank: RankId) -> TaskId {
        let task = self.engine.open_task(rank);
        let tasks = &mut self.ranks[rank.index()].tasks;
        assert_eq!(task.index(), tasks.len(), "{rank} numbers its tasks as the engine does");
        let line = tasks[0].line;
        tasks.push(TaskConversation::new(State::Free, line));
        if task == TaskId(1) {
            self.took(rank, TaskId(0), RecordedStep::HandlesInOrder);
        }
        task
    }

    /// Closes the task of a thread that has ended without an exit message; its rank continues.
    pub fn close_task(&mut self, rank: RankId, task: TaskId) {
        let (rank, task) = self.behind(rank, task);
        let closed = self.task(rank, task);
        closed.closed = true;
        closed.hear([Op::Exit(Outcome::Ok)]);
        // A running process keeps time from passing as long as the engine has one of its tasks running.
        if !self.turn(rank).running {
            self.pump(rank, task);
        }
    }

    /// Whether the rank's process runs: it has been answered, and has not been quiet since.
    pub fn runs(&self, rank: RankId) -> bool {
        self.ranks[self.head(rank).index()].turn.running
    }

    /// Whether the rank's process has reported that all of its threads wait, and one of them for something outside the
    /// simulation.
    pub fn waits_outside(&self, rank: RankId) -> bool {
        self.engine.waits_outside(rank)
    }

    /// Whether the rank has crashed as the cluster file specifies. Later operations of its process are ignored.
    pub fn has_crashed(&self, rank: RankId) -> bool {
        self.engine.has_crashed(rank)
    }

    /// Marks the rank's process as quiet although it has not reported so: all of its threads wait for each other, and
    /// it no longer keeps time from passing.
    pub fn stuck(&mut self, rank: RankId) {
        self.quiet(rank, Quiet::default());
    }

    /// Marks the rank's process as gone: its threads send nothing more, and answers to it are discarded. If its program
    /// `has_ended`, time passes without its threads; otherwise time stops, because the run ends.
    pub fn gone(&mut self, rank: RankId, has_ended: bool) {
        let turn = self.turn(rank);
        turn.is_gone = true;
        if turn.running && has_ended || self.lends {
            self.quiet(rank, Quiet::default());
        }
    }

    /// Ends a rank whose process has ended as its program intended, without an exit message.
    pub fn end(&mut self, rank: RankId) {
        self.task(rank, TaskId(0)).hear([Op::Exit(Outcome::Ok)]);
        self.quiet(rank, Quiet::default());
    }

    /// Receives operations of a task; `quiet` marks the last batch until the process is answered. Returns whether the
    /// rank is quiet now.
    pub fn say(&mut self, rank: RankId, task: TaskId, mut ops: Vec<Op>, quiet: Option<Quiet>) -> bool {
        let (rank, task) = self.behind(rank, task);
        self.take_at_once(rank, task, &mut ops);
        let asks = ops.last().is_some_and(Op::asks);
        let ends = ops.iter().any(|op| matches!(op, Op::Exit(_)));
        let speaking = self.task(rank, task);
        speaking.questions += u64::from(asks);
        speaking.hear(ops);
        let turn = self.turn(rank);
        turn.parts += u32::from(quiet.is_some());
        turn.speaks = true;
        match quiet {
            Some(quiet) if quiet.parts <= turn.parts => {
                self.quiet(rank, quiet);
                return true;
            }
            // Tasks of ranks without a program of their own ask nothing, and would keep time from passing.
            None if ends && self.lends && task == TaskId(0) => {
                self.quiet(rank, Quiet::default());
                return true;
            }
            // Operations that several threads send between two answers are carried out in the order of the threads,
            // once all are received.
            None if self.ranks[self.head(rank).index()].tasks.len() == 1 => {
                self.turn(rank).speaks = false;
                self.pump(rank, task);
            }
            _ => {}
        }
        false
    }

    /// Carries out at once the operations that need no turn: copied inputs, finished reductions, and definitions of ids
    /// in captured operators. A task that copies its input may already wait for an answer, and other tasks wait for a
    /// reduction before time passes for further operations.
    fn take_at_once(&mut self, rank: RankId, task: TaskId, ops: &mut Vec<Op>) {
        let (before, mut folded) = (ops.len(), Vec::new());
        ops.retain_mut(|op| {
            match op {
                Op::Issue { staged: Some(room), filled: false, .. } => self.data.filling(room.at),
                Op::Filled(room) => self.data.filled(*room),
                Op::Folded(handle) => {
                    let name = self.name(rank, *handle);
                    self.data.folded(rank, name);
                    folded.push(name);
                }
                Op::Dictionary { process, entries, .. } => self.names(rank, *process, std::mem::take(entries)),
                Op::Compute(_) => {
                    let RankConversation { tasks, dictionary, .. } = &mut self.ranks[rank.index()];
                    tasks[task.index()].slices.push_back(dictionary.heard());
                }
                _ => {}
            }
            !matches!(op, Op::Filled(_) | Op::Folded(_) | Op::Dictionary { .. })
        });
        if ops.len() < before {
            self.retry_fetches();
        }
        for name in folded {
            self.hand_ahead(rank, name);
        }
    }

    /// Adds definitions of ids that operators of one of the rank's processes use from now on.
    fn names(&mut self, rank: RankId, process: u32, entries: Vec<u8>) {
        let entries = written_by(OfProcess::new(process), entries);
        let rank = self.homes.get(&process).copied().unwrap_or(rank);
        let RankConversation { dictionary, named, .. } = &mut self.ranks[rank.index()];
        if self.lends && rank == RankId(0) && process > 0 {
            named.entry(process).or_default().extend(&entries);
        }
        dictionary.hear(entries);
    }

    /// Carries out the operations of the rank's process, whose threads all wait.
    fn quiet(&mut self, rank: RankId, quiet: Quiet) {
        let goes_on_by_itself = self.goes_on_by_itself(rank);
        let turn = self.turn(rank);
        (turn.parts, turn.running, turn.speaks) = (0, false, false);
        turn.idle_threads = Some(if quiet.outside { Threads::WaitOutside } else { Threads::Wait });
        turn.answered = goes_on_by_itself.or(turn.answered);
        let answered = turn.answered;
        // A task is opened once it has sent something: tasks are numbered in the order of their first messages.
        for task in (0..self.ranks[rank.index()].tasks.len()).map(TaskId::from) {
            let speaking = self.task(rank, task);
            if !speaking.ops.is_empty()
                && let Some(to) = speaking.moves_to.take()
            {
                self.moves(rank, task, to);
            }
        }
        for (member, task) in self.tasks_with(rank) {
            self.goes_on(member, task, answered);
            self.pump(member, task);
            self.introduce(member, task);
        }
        self.let_look(rank, answered);
        self.rest(rank);
    }

    /// Cause of the progress of a process that was quiet and has continued without an answer. Such a process was woken
    /// from outside the simulation, for example by a byte that another rank wrote to a socket; the writer is unknown.
    /// The engine's latest answer counts as the cause: its task has run since, and no time has passed in it.
    fn goes_on_by_itself(&self, rank: RankId) -> Option<Answered> {
        let head = self.head(rank);
        let was_quiet = !self.ranks[head.index()].turn.running;
        let now = self.engine.now();
        let is_behind = || self.family(head).all(|member| self.engine.clock(member.into()) < now);
        let from = self.latest.filter(|_| was_quiet && is_behind())?;
        Some(Answered { whose: (from.0, from.1), from })
    }

    /// The tasks in the process of a rank, in order.
    fn tasks_with(&self, rank: RankId) -> Vec<(RankId, TaskId)> {
        let members = self.family(self.head(rank));
        let tasks = |member: usize| (0..self.ranks[member].tasks.len()).map(move |task| (member.into(), task.into()));
        members.flat_map(tasks).collect()
    }

    /// Ends the yields of polling tasks, as another task may have acted. A poll may itself be an action that others
    /// wait for, but not without end.
    fn let_look(&mut self, rank: RankId, answered: Option<Answered>) {
        /// A woken task may do what a second one waits for, and so on.
        const LOOKS: u8 = 2;
        let acted = std::mem::take(&mut self.turn(rank).acted);
        let Some(Answered { whose, from }) = answered else { return };
        for (member, task) in self.tasks_with(rank) {
            let looking = self.task(member, task);
            if !matches!(looking.state, State::Asked(Asked::Yield)) {
                continue;
            }
            if acted {
                looking.looks = LOOKS;
            }
            let has_just_looked = whose == (member, task) && !acted;
            if looking.looks > 0 && !has_just_looked {
                looking.looks -= 1;
                looking.state = State::Free;
                looking.woken_by_other = Some(from);
                self.took(member, task, follows_from(from));
                self.release(member, task);
                self.answer(member, task, Answer::Go);
            }
        }
    }

    /// Lets time pass once the engine has carried out the operations of a quiet rank, although some of its threads have
    /// asked nothing.
    fn rest(&mut self, rank: RankId) {
        let head = self.head(rank);
        let turn = &self.ranks[head.index()].turn;
        let asks_nothing = |task: &TaskConversation| matches!(task.state, State::Free);
        let any_asks_nothing = || self.ranks[self.family(head)].iter().any(|rank| rank.tasks.iter().any(asks_nothing));
        if let Some(idle_threads) = turn.idle_threads.filter(|_| turn.owed == 0 && any_asks_nothing()) {
            self.set_threads(rank, idle_threads);
        }
    }

    /// Records the answer that woke the task, if the task has sent operations although another task was `answered`.
    fn goes_on(&mut self, rank: RankId, task: TaskId, answered: Option<Answered>) {
        let state = self.task(rank, task);
        let Some(first) = state.spoken_from.take().filter(|_| !state.ops.is_empty()) else { return };
        let driver_id = state.driver_id;
        let other = answered.filter(|answered| ![Some((rank, task)), driver_id].contains(&Some(answered.whose)));
        let acts = other.is_some();
        state.causes.extend(other.map(|other| (first, other.from)));
        self.turn(rank).acted |= acts;
    }

    /// Passes to the recorder the steps before the engine's time, to which none will be added.
    fn record_past(&mut self, recorder: &mut dyn Recorder) {
        let rest = self.unrecorded.split_off(&(self.engine.now(), RankId(0)));
        let past = std::mem::replace(&mut self.unrecorded, rest);
        self.tell(recorder, past);
    }

    /// Passes all remaining steps to the recorder at the end of the run.
    pub fn record_rest(&mut self, recorder: &mut dyn Recorder) {
        let rest = std::mem::take(&mut self.unrecorded);
        self.tell(recorder, rest);
    }

    fn tell(&mut self, recorder: &mut dyn Recorder, steps: BTreeMap<(SimTime, RankId), Vec<(TaskId, RecordedStep)>>) {
        let mut absence = self.absence.take();
        for ((_, rank), steps) in steps {
            for (task, step) in steps {
                let line = step.site().map_or("", |site| self.line(site));
                if let Some(absence) = &mut absence {
                    absence.likeness.hear(rank, task, &step, line);
                }
                recorder.step(rank, task, &step, line);
            }
        }
        if let Some(absence) = &mut absence {
            for (rank, task, call, sum) in self.data.take_contributions() {
                absence.likeness.contributes(rank, task, call, sum);
            }
        }
        self.absence = absence;
    }

    /// Advances the engine as far as possible. [`Conversations::take_ready`] then returns the answers.
    pub fn advance(&mut self, observer: &mut dyn Observer, recorder: &mut dyn Recorder) -> Progress {
        self.record_past(recorder);
        loop {
            for site in std::mem::take(&mut self.untold) {
                recorder.line(site, self.line(site));
            }
            let mut seen = (Seen { data: &mut self.data, times: &mut self.times }, &mut *observer);
            match self.engine.next(&mut seen) {
                Turn::Resume(resumption) => self.resumed(resumption),
                Turn::Blocked if !self.engine.waits_to_idle() => return Progress::Blocked,
                Turn::Blocked if self.is_dead() => self.engine.gives_up(),
                Turn::Blocked if self.wakeable().next().is_none() => self.engine.idle(),
                Turn::Blocked => {
                    let speaks = |rank: RankId| self.lives(rank) && self.ranks[rank.index()].turn.speaks;
                    let any_speaks = (0..self.ranks.len()).map(RankId::from).any(speaks);
                    return if any_speaks { Progress::Blocked } else { Progress::Idle };
                }
                Turn::Finished => return Progress::Finished,
                Turn::Halted(halt) => return Progress::Halted(halt),
            }
        }
    }

    /// Whether the run can only keep polling: every main task and every thread of a program has ended, or waits for the
    /// store or for an operation without a timeout, and threads of libraries have only polled for a minute, as NCCL's
    /// watchdog does. A run is not dead as long as the engine has work or communication under way.
    fn is_dead(&mut self) -> bool {
        /// Time within which a library's thread must notice that it has work.
        const PATIENCE: SimDuration = SimDuration::from_us(60_000_000);
        let waits = |task: &TaskConversation| {
            matches!(task.state, State::Asked(Asked::Store | Asked::Wait { .. })) && task.waits_forever
        };
        let is_over = |task: &TaskConversation| matches!(task.state, State::Ended) || waits(task);
        let is_idle = |task: &TaskConversation| !task.is_programs || is_over(task);
        let is_stuck = |rank: &RankConversation| is_over(&rank.tasks[0]) && rank.tasks.iter().all(is_idle);
        self.engine.now().since(self.acted_at.min(self.engine.now())) > PATIENCE
            && self.ranks.iter().all(is_stuck)
            && self.ranks.iter().any(|rank| waits(&rank.tasks[0]))
            && !self.ranks.iter().any(|rank| rank.turn.idle_threads == Some(Threads::WaitOutside))
            && !self.engine.may_still_act()
    }

    /// Whether operations of the rank's process still count.
    fn lives(&self, rank: RankId) -> bool {
        !self.ranks[rank.index()].turn.is_gone && !self.engine.has_crashed(rank)
    }

    /// Lets time pass once, after the ranks of [`Conversations::wakeable`] were found to be still waiting.
    pub fn still_waits(&mut self) {
        self.engine.idle();
    }

    /// Ranks whose processes may be woken from outside the simulation while all of them wait, for example by a byte
    /// that another rank wrote to a socket before it waited. Empty in a run with one process.
    pub fn wakeable(&self) -> impl Iterator<Item = RankId> {
        let pauses = |task: &TaskConversation| matches!(task.state, State::Asked(Asked::Pause));
        let has_others = !self.lends && self.ranks.len() > 1;
        let wakes = move |rank: &RankId| {
            let rank = &self.ranks[rank.index()];
            rank.turn.idle_threads == Some(Threads::WaitOutside) || rank.tasks.iter().any(pauses)
        };
        (0..self.ranks.len()).map(RankId::from).filter(move |rank| has_others && self.lives(*rank) && wakes(rank))
    }

    /// The next answer.
    pub fn take_ready(&mut self) -> Option<Ready> {
        self.ready.pop_front()
    }

    /// Data to write to a rank's main task while its wait continues.
    pub fn take_ahead(&mut self) -> Option<(RankId, Frame)> {
        let (rank, fetched) = self.early_data.pop()?;
        Some((
            rank,
            Frame {
                now: self.clock(rank),
                asked: self.task(rank, TaskId(0)).asked_at,
                freed: Vec::new(),
                over: Vec::new(),
                failed: Vec::new(),
                answer: Answer::Ahead(fetched),
            },
        ))
    }

    /// The message to write to the task of `ready`; its rank then runs. `None`: the task has ended, or has left the
    /// pause whose end this is.
    pub fn frame(&mut self, ready: Ready) -> Option<Frame> {
        let Ready { rank, task, answer, question } = ready;
        let (rank, task) = self.behind(rank, task);
        let turn = self.turn(rank);
        turn.owed -= 1;
        let is_gone = turn.is_gone;
        let RankConversation { tasks, communicates, .. } = &self.ranks[rank.index()];
        let asking = &tasks[task.index()];
        if question != asking.questions || asking.closed || is_gone {
            self.rest(rank);
            return None;
        }
        let asked = asking.asked_at;
        let answered =
            Answered { whose: (rank, task), from: asking.woken_by_other.unwrap_or((rank, task, asking.resumptions)) };
        let acts = asking.spins.is_none() && !matches!(answer, Answer::Over);
        // These answers are for the relay thread that asks on behalf of another process, not for the process itself.
        let is_its_own = !matches!(answer, Answer::Over | Answer::Moved);
        let hears = communicates.is_none_or(|process| process == asking.process && is_its_own);
        let turn = self.turn(rank);
        (turn.running, turn.idle_threads) = (true, None);
        turn.acted |= acts;
        turn.answered = Some(answered);
        let now = self.clock(rank);
        let mut frame = Frame { now, asked, freed: Vec::new(), over: Vec::new(), failed: Vec::new(), answer };
        if hears {
            frame.over = self.take_over(rank);
            (frame.freed, frame.failed) = (self.data.take_freed(rank), self.data.take_failed(rank));
        }
        Some(frame)
    }

    /// Handles of the rank's finished communication that has not been reported to it. Operations that the engine has
    /// started and not yet named have no handle, and are kept for the next call.
    fn take_over(&mut self, rank: RankId) -> Vec<LocalHandle> {
        let RankConversation { called, newest, .. } = &self.ranks[rank.index()];
        let (named, unnamed): (Vec<Handle>, Vec<Handle>) =
            self.data.take_over(rank).into_iter().partition(|name| Some(*name) <= *newest);
        self.data.keep_over(rank, unnamed);
        named.iter().filter_map(|name| called.get(name).copied()).collect()
    }

    fn task(&mut self, rank: RankId, task: TaskId) -> &mut TaskConversation {
        &mut self.ranks[rank.index()].tasks[task.index()]
    }

    fn answer(&mut self, rank: RankId, task: TaskId, answer: Answer) {
        self.owe(rank);
        self.push(rank, task, answer);
    }

    /// Notes that the rank will be given an answer: until it has been, and is quiet again, the rank keeps time from
    /// passing.
    fn owe(&mut self, rank: RankId) {
        self.turn(rank).owed += 1;
        self.set_threads(rank, Threads::Run);
    }

    fn push(&mut self, rank: RankId, task: TaskId, answer: Answer) {
        let TaskConversation { questions: question, driver_id, .. } = *self.task(rank, task);
        let (rank, task) = driver_id.unwrap_or((rank, task));
        self.ready.push_back(Ready { rank, task, answer, question });
    }

    /// Carries out the task's operations, until the engine must answer or none is left.
    fn pump(&mut self, rank: RankId, task: TaskId) {
        while self.may_carry_out(rank, task)
            && let Some(op) = self.task(rank, task).ops.pop_front()
        {
            let answered = self.turn(rank).answered.map(|answered| answered.from);
            let starts_at = self.task(rank, TaskId(0)).line;
            let speaking = self.task(rank, task);
            if speaking.carried_out == 0 {
                speaking.line = starts_at;
            }
            while let Some((_, cause)) = speaking.causes.front().filter(|(from, _)| *from <= speaking.carried_out) {
                let cause = *cause;
                speaking.causes.pop_front();
                (speaking.woken_by, speaking.woken_by_other) = (Some(cause), Some(cause));
            }
            speaking.carried_out += 1;
            if matches!(speaking.state, State::Asked(Asked::Pause)) {
                speaking.state = State::Free;
                speaking.woken_by = speaking.woken_by.or(answered);
                self.after_another(rank, task);
                self.release(rank, task);
            }
            self.carry_out(rank, task, op);
        }
    }

    /// Whether it is the task's turn, and everything that its next operation refers to is known: another thread may
    /// just have issued the operation that the task waits for. A slice starts only after the pieces of other threads'
    /// slices are handed over, as it may refer to them; a question about the device waits for work that other threads
    /// have sent and that it may refer to.
    fn may_carry_out(&self, rank: RankId, task: TaskId) -> bool {
        let RankConversation { tasks, names, released, streams, .. } = &self.ranks[rank.index()];
        let TaskConversation { state, ops, spoken_from, carried_out, process, .. } = &tasks[task.index()];
        let known = |handle: &LocalHandle| names.contains_key(handle) || released.contains(*handle);
        let unknown = match ops.front() {
            Some(Op::Wait { handles, .. }) => !handles.iter().all(known),
            Some(Op::Compute(_)) => tasks.iter().any(|task| !task.pieces.is_empty()),
            Some(Op::Synchronize { work, .. } | Op::Query { work, .. }) if !streams.knows(*process, *work) => {
                let hands_over = |op: &Op| matches!(op, Op::Compute(_) | Op::Issue { stream: Some(_), .. });
                let others = tasks.iter().enumerate().filter(|(other, _)| *other != task.index());
                others.map(|(_, said)| said).any(|said| !said.pieces.is_empty() || said.ops.iter().any(hands_over))
            }
            _ => false,
        };
        // A thread that sends an operation has left the pause before it.
        let has_left = !ops.is_empty() && spoken_from.is_none_or(|from| from > *carried_out);
        let is_its_turn = matches!(state, State::Free) || matches!(state, State::Asked(Asked::Pause)) && has_left;
        is_its_turn && !unknown
    }

    fn pump_siblings(&mut self, rank: RankId, task: TaskId) {
        for sibling in (0..self.ranks[rank.index()].tasks.len()).map(TaskId::from).filter(|sibling| *sibling != task) {
            self.pump(rank, sibling);
        }
    }

    fn carry_out(&mut self, rank: RankId, task: TaskId, op: Op) {
        let world_size = self.ranks.len() as u32;
        if op.asks() {
            self.task(rank, task).asked_at = self.clock(rank);
        }
        let line = own_line(&op);
        let has_line = line.is_some_and(|site| {
            let named = self.ranks[rank.index()].tasks[task.index()].sites.get(site.index());
            named.is_some_and(|site| !self.line(*site).is_empty())
        });
        let speaking = self.task(rank, task);
        speaking.is_programs |= has_line || task == TaskId(0);
        if speaking.is_programs || !polls(&op) {
            self.acted_at = self.acted_at.max(self.clock(rank));
        }
        if !only_looks(&op) {
            self.task(rank, task).spins = None;
            self.turn(rank).acted |= !matches!(op, Op::Pause(_));
        }
        match op {
            Op::Site(text) => {
                let state = &mut self.ranks[rank.index()];
                let site = state.lines.site(&text, rank.0, world_size);
                state.tasks[task.index()].sites.push(site);
                self.untold.push(site);
            }
            Op::Release(handle) => {
                let state = &mut self.ranks[rank.index()];
                if let Some(name) = state.names.remove(&handle) {
                    state.called.remove(&name);
                    state.recorded_as.remove(&name);
                    state.failed.remove(&name);
                    state.released.insert(handle);
                    self.data.release(rank, name);
                    self.retry_fetches();
                }
            }
            Op::At(_) => drop(self.task(rank, task).line_of(&op)),
            Op::Start | Op::Settle => self.answer(rank, task, Answer::Go),
            Op::Moves(to) => {
                assert!(self.lends && rank == RankId(0), "{rank} {task} moves to rank {to}, which lends nothing");
                let speaking = self.task(rank, task);
                let follows = speaking.woken_by_other.unwrap_or((rank, task, speaking.resumptions));
                let process = speaking.process.number();
                if RankId(to) != rank {
                    speaking.moves_to = Some((RankId(to), follows));
                    self.settles(process, RankId(to));
                }
                self.answer(rank, task, Answer::Moved);
            }
            Op::Process(number) => {
                self.task(rank, task).process = process(OfProcess::new(number));
                if self.task(rank, task).driver_id.is_some() {
                    self.settles(number, rank);
                }
            }
            Op::Thread(number) => {
                let process = self.task(rank, task).process;
                self.ranks[rank.index()].ranges.is_thread(process, number, task);
            }
            Op::Operators(piece) => self.task(rank, task).operators.extend(piece),
            Op::Compute(slice) => self.compute(rank, task, slice),
            asking => self.ask(rank, task, asking),
        }
    }

    /// Continues the task as a task of the rank whose GPU its process uses.
    fn moves(&mut self, from: RankId, task: TaskId, (to, follows): (RankId, Cause)) {
        let moved = self.open_task(to);
        let world_size = self.ranks.len() as u32;
        let [home, other] = self.ranks.get_disjoint_mut([from.index(), to.index()]).expect("two ranks of this run");
        let leaves = &mut home.tasks[task.index()];
        let known =
            |site: &Site| other.lines.site(&home.lines.texts[site.index() / world_size as usize], to.0, world_size);
        let sites: Vec<Site> = leaves.sites.iter().map(known).collect();
        self.untold.extend(&sites);
        let goes_on = &mut other.tasks[moved.index()];
        *goes_on = TaskConversation {
            process: leaves.process,
            sites,
            questions: leaves.questions,
            asked_at: leaves.asked_at,
            ops: std::mem::take(&mut leaves.ops),
            carried_out: leaves.carried_out,
            spoken_from: leaves.spoken_from,
            causes: std::mem::take(&mut leaves.causes),
            woken_by_other: Some(follows),
            operators: std::mem::take(&mut leaves.operators),
            slices: std::mem::take(&mut leaves.slices),
            driver_id: Some((from, task)),
            ..TaskConversation::new(State::Free, goes_on.line)
        };
        self.moved.insert(task, (to, moved));
        self.took(to, moved, follows_from(follows));
        self.end_task(from, task, Outcome::Ok);
    }

    /// Assigns a numbered process to a rank from now on: its definitions of ids belong to that rank, including earlier
    /// ones.
    fn settles(&mut self, process: u32, at: RankId) {
        if process > 0
            && self.homes.insert(process, at).is_none()
            && let Some(named) = self.ranks[0].named.remove(&process)
        {
            self.ranks[at.index()].dictionary.hear(named);
        }
    }

    /// Turns an operation of a task into a request to the engine.
    fn ask(&mut self, rank: RankId, task: TaskId, op: Op) {
        let now = self.clock(rank);
        let speaking = self.task(rank, task);
        let (line, process) = (speaking.line_of(&op), speaking.process);
        let (request, asked) = match op {
            Op::Sleep(span) => (issue(Activity::Sleep(span.from(now)), task, line), Asked::Sleep),
            Op::Mark(mark) => {
                let mark = self.ranks[rank.index()].ranges.renumber(process, task, mark);
                (issue(Activity::Mark(mark), task, line), Asked::Mark)
            }
            Op::NameGroup { name, call, .. } => {
                self.task(rank, task).state = State::Asked(Asked::Name);
                let request = Request::NameGroup { name: name.into(), call: call.into(), site: line };
                return self.engine.submit(rank, task, request);
            }
            Op::Close(group) => (issue(Activity::Close(GroupId(group)), task, line), Asked::Mark),
            Op::Abort(group) => (issue(Activity::Abort(GroupId(group)), task, line), Asked::Mark),
            Op::Issue { handle, call, staged, stream, .. } => {
                let heard = match self.absence.as_mut().map(|absence| absence.call(rank, &call)) {
                    None => call.clone(),
                    Some(Ok(heard)) => heard,
                    // The rank is not answered: the rehearsal is over.
                    Some(Err(unlike)) => return self.deviates(unlike),
                };
                let stream = stream.map(|on| numbered_by(process, on));
                self.data.announce((rank, task), heard.clone(), call.clone(), staged.map(|room| room.at));
                let after = stream.map(|on| self.ranks[rank.index()].streams.before_call(on)).unwrap_or_default();
                let queue = stream.map_or(QueueId(task.0), |on| QueueId::of_stream(on.stream));
                self.times.issues(rank, &launch_ids(stream));
                let issue =
                    |call| Request::Issue { activity: Activity::Call(call), queue, after: after.clone(), site: line };
                return self.submit_as(rank, task, issue(call), issue(heard), Asked::Issue(handle, stream));
            }
            Op::Wait { handles, any, timeout, ahead, .. } => {
                let asked = handles.len();
                let named = self.not_released(rank, handles);
                if named.is_empty() || (any && named.len() < asked) {
                    return self.answer(rank, task, Answer::Complete(Vec::new()));
                }
                let handles = named.iter().map(|(_, handle)| *handle).collect();
                self.early_data_wanted += usize::from(ahead);
                (Request::Wait { handles, any, timeout, site: line }, Asked::Wait { named, ahead })
            }
            Op::Now => (Request::Look, Asked::Now),
            Op::Yield => {
                // Models one million polls per second; the longer the task has waited, the less one more poll matters.
                let since = *self.task(rank, task).spins.get_or_insert(now);
                let moment = POLL_COST.max(SimDuration::from_ps(now.since(since).as_ps() / 16));
                (Request::Pause { timeout: moment, site: line }, Asked::Yield)
            }
            Op::Pause(span) => (Request::Pause { timeout: span.from(now), site: line }, Asked::Pause),
            Op::Group { ranks, sequence, settings, rendezvous } => {
                if process != OfProcess::default() {
                    self.ranks[rank.index()].communicates = Some(process);
                }
                let ranks: Arc<[RankId]> = ranks.into_iter().map(RankId).collect();
                let named = (ranks.clone(), sequence);
                let (present, number) =
                    self.absence.as_mut().map_or(named, |absence| absence.present(&ranks, sequence));
                let join = |ranks, sequence| Request::JoinGroup { ranks, sequence, settings, rendezvous };
                let request = join(ranks.clone(), sequence);
                return self.submit_as(rank, task, request, join(present, number), Asked::Group(ranks, settings));
            }
            Op::Store { operation, timeout, .. } => (Request::Store { operation, timeout, site: line }, Asked::Store),
            Op::Synchronize { work, .. } => {
                let handles = self.ranks[rank.index()].streams.ends(process, work);
                if handles.is_empty() {
                    return self.answer(rank, task, Answer::Go);
                }
                return self.await_device(rank, task, handles, DeviceQuestion::Synchronize);
            }
            Op::Query { work, .. } => {
                let handles = self.ranks[rank.index()].streams.ends(process, work);
                if handles.is_empty() {
                    return self.answer(rank, task, Answer::Ended(true));
                }
                return self.await_device(rank, task, handles, DeviceQuestion::Query);
            }
            Op::Times => (Request::Look, Asked::Times),
            Op::Elapsed { from, to, .. } => {
                let Some((from, to)) = process.short(from).zip(process.short(to)) else {
                    return self.answer(rank, task, Answer::Elapsed(None));
                };
                (Request::Elapsed { from, to, site: line }, Asked::Elapsed)
            }
            Op::Exit(outcome) => return self.exit(rank, task, outcome),
            other => panic!("{other:?} is not for the engine"),
        };
        self.submit(rank, task, request, asked);
    }

    /// Obtains the costs of a slice and hands its first piece to the engine.
    fn compute(&mut self, rank: RankId, task: TaskId, slice: messages::ComputeSlice) {
        let messages::ComputeSlice { measured, operators: last } = slice;
        let world_size = self.ranks.len();
        let RankConversation { tasks, lines, dictionary, .. } = &mut self.ranks[rank.index()];
        let speaking = &mut tasks[task.index()];
        let heard = speaking.slices.pop_front().expect("it was numbered when it was heard");
        // The dictionary arrives on the main task's wire: a slice of another task may have arrived before its
        // definitions.
        let mut operators = dictionary.take(if task == TaskId(0) { heard } else { dictionary.heard() });
        let mut ran = std::mem::take(&mut speaking.operators);
        ran.extend(last);
        operators.extend(written_by(Some(speaking.process), ran));
        let site = speaking.line_of_compute();
        let line = &lines.texts[site.index() / world_size];
        let pieces = self.costs.lower(RankSlice { rank, task, line, measured, operators: &operators });
        self.after_another(rank, task);
        if !operators.is_empty() || pieces != [LoweredWork::Host(Work::new(measured, Origin::Measured))] {
            self.took(rank, task, RecordedStep::Operators { operators, measured });
        }
        self.task(rank, task).pieces = pieces.into();
        self.next_piece(rank, task);
    }

    /// Hands the next piece of the task's slice to the engine. All pieces are handed over at once and wait for each
    /// other in the engine: work on the launching CPU is in the task's own queue, and work on CUDA streams waits for
    /// it. The task waits for the end of the work on the launching CPU. Launched work gets the line of the operator
    /// that launched it, other work the line of the call that ends the slice.
    fn next_piece(&mut self, rank: RankId, task: TaskId) {
        let world_size = self.ranks.len() as u32;
        let RankConversation { tasks, lines, streams, .. } = &mut self.ranks[rank.index()];
        let speaking = &mut tasks[task.index()];
        while let Some(piece) = speaking.pieces.pop_front() {
            let mut after = streams.dependencies(&piece);
            let (activity, queue) = match &piece {
                LoweredWork::Host(work) => {
                    after = std::mem::take(&mut speaking.awaited);
                    (Activity::Compute(work.clone()), QueueId(task.0))
                }
                LoweredWork::Launch(launch) => {
                    (Activity::Compute(launch.work.clone()), QueueId::of_stream(launch.stream))
                }
                LoweredWork::Record { event, stream } => (Activity::Reach(*event), QueueId::of_stream(*stream)),
                LoweredWork::Wait { stream, event } => {
                    streams.wait(*stream, *event);
                    continue;
                }
            };
            if queue.stream().is_some() {
                after.extend(speaking.host);
            }
            let mut site = speaking.line;
            if let LoweredWork::Launch(launch) = &piece {
                self.times.issues(rank, &launch.ids);
                site = lines.captured.get(&launch.line).copied().unwrap_or_else(|| {
                    let named = lines.site(&self.costs.line(rank, launch.line), rank.0, world_size);
                    lines.captured.insert(launch.line, named);
                    self.untold.push(named);
                    named
                });
            }
            return self.submit(rank, task, Request::Issue { activity, queue, after, site }, Asked::LoweredWork(piece));
        }
        let host = speaking.host.take().expect("the last piece is the host's");
        self.await_end(rank, task, host, Asked::ComputeEnd);
        self.forget_names(rank);
        self.pump_siblings(rank, task);
    }

    /// Records the engine's handle of a piece of a slice, and hands over the next piece.
    fn piece_issued(&mut self, rank: RankId, task: TaskId, piece: &LoweredWork, handle: Handle) {
        let RankConversation { tasks, streams, .. } = &mut self.ranks[rank.index()];
        let speaking = &mut tasks[task.index()];
        match piece {
            LoweredWork::Host(_) => speaking.host = Some(handle),
            _ => speaking.awaited.extend(streams.handed(piece, handle)),
        }
        if let LoweredWork::Launch(launch) = piece {
            self.times.issued(rank, &launch.ids, handle, speaking.host);
        }
        self.next_piece(rank, task);
    }

    /// Drops the record's handles of stream activities that no later operation can wait for.
    fn forget_names(&mut self, rank: RankId) {
        const MANY: usize = 1 << 14;
        let RankConversation { tasks, called, streams, recorded_as, .. } = &mut self.ranks[rank.index()];
        if recorded_as.len() > MANY {
            let mut known = streams.known();
            known.extend(tasks.iter().flat_map(|task| task.host.iter().chain(&task.awaited)));
            recorded_as.retain(|handle, _| called.contains_key(handle) || known.contains(handle));
        }
    }

    /// Records that the task's next request follows from the answer to another task, if it does.
    fn after_another(&mut self, rank: RankId, task: TaskId) {
        if let Some(cause) = self.task(rank, task).woken_by.take() {
            self.took(rank, task, follows_from(cause));
        }
    }

    /// Records a task whose first request must wait before tasks that were opened later: a record has tasks in their
    /// order.
    fn introduce(&mut self, rank: RankId, task: TaskId) {
        let TaskConversation { is_recorded, woken_by, causes, .. } = self.task(rank, task);
        if !*is_recorded && let Some(cause) = woken_by.or(causes.front().map(|(_, cause)| *cause)) {
            self.took(rank, task, follows_from(cause));
        }
    }

    /// Ends the task's pause early.
    fn release(&mut self, rank: RankId, task: TaskId) {
        self.engine.release(rank, task);
        self.task(rank, task).resumptions += 1;
    }

    fn submit(&mut self, rank: RankId, task: TaskId, request: Request, asked: Asked) {
        self.submit_as(rank, task, request.clone(), request, asked);
    }

    /// Submits a request whose form for the engine differs from the recorded form.
    fn submit_as(&mut self, rank: RankId, task: TaskId, request: Request, heard: Request, asked: Asked) {
        self.after_another(rank, task);
        let asking = self.task(rank, task);
        asking.waits_forever =
            matches!(request, Request::Store { timeout: None, .. } | Request::Wait { timeout: None, .. });
        asking.state = State::Asked(asked);
        self.took(rank, task, RecordedStep::Request(request));
        self.engine.submit(rank, task, heard);
    }

    fn deviates(&mut self, unlike: Unlike) {
        if let Some(absence) = &mut self.absence {
            absence.deviates(unlike);
        }
    }

    /// Stores a step for the recorder.
    fn took(&mut self, rank: RankId, task: TaskId, mut step: RecordedStep) {
        let at = self.engine.clock(rank).max(self.engine.now());
        let steps = self.unrecorded.entry((at, rank)).or_default();
        let RankConversation { tasks, activities, recorded_as, .. } = &mut self.ranks[rank.index()];
        tasks[task.index()].is_recorded = true;
        if let RecordedStep::Request(Request::Issue { .. }) = step {
            tasks[task.index()].recorded_as = Handle(*activities);
            *activities += 1;
        }
        // A single thread's activities are issued in the order of the record.
        if tasks.len() > 1
            && let RecordedStep::Request(request) = &mut step
            && let Some(handles) = handles_mut(request)
        {
            handles.iter_mut().for_each(|handle| *handle = recorded_as.get(handle).copied().unwrap_or(*handle));
        }
        steps.push((task, step));
    }

    /// Ends a task. The main task's end waits until its device has no work left, as the end of a process does.
    fn exit(&mut self, rank: RankId, task: TaskId, outcome: Outcome) {
        let handles = self.ranks[rank.index()].streams.all_ends();
        if (task, outcome) == (TaskId(0), Outcome::Ok) && !handles.is_empty() {
            return self.await_device(rank, task, handles, DeviceQuestion::Exit);
        }
        self.end_task(rank, task, outcome);
    }

    fn await_device(&mut self, rank: RankId, task: TaskId, handles: Vec<Handle>, question: DeviceQuestion) {
        let site = self.task(rank, task).line;
        let timeout = matches!(question, DeviceQuestion::Query).then_some(POLL_COST);
        let request = Request::Wait { handles: handles.clone(), any: false, timeout, site };
        self.submit(rank, task, request, Asked::Device(handles, question));
    }

    fn device_has_ended(&mut self, rank: RankId, task: TaskId, question: DeviceQuestion) {
        match question {
            DeviceQuestion::Synchronize => self.answer(rank, task, Answer::Go),
            DeviceQuestion::Query => self.answer(rank, task, Answer::Ended(true)),
            DeviceQuestion::Exit => self.end_task(rank, task, Outcome::Ok),
        }
    }

    fn end_task(&mut self, rank: RankId, task: TaskId, outcome: Outcome) {
        self.submit(rank, task, Request::Exit(outcome), Asked::FirstTurn);
        let ended = self.task(rank, task);
        ended.state = State::Ended;
        let follows = Some((rank, task, ended.resumptions));
        if self.lends && (rank, task) == (RankId(0), TaskId(0)) {
            for other in (1..self.ranks.len()).map(RankId::from) {
                self.task(other, TaskId(0)).woken_by = follows;
                self.end_task(other, TaskId(0), Outcome::Ok);
            }
        }
    }

    /// Handles the engine's answer to a task.
    fn resumed(&mut self, resumption: Resumption) {
        let Resumption { rank, task, now, reply } = resumption;
        let resumed = self.task(rank, task);
        if matches!(resumed.state, State::Asked(Asked::Name)) {
            resumed.state = State::Free;
            self.pump(rank, task);
            return self.rest(rank);
        }
        resumed.resumptions += 1;
        resumed.woken_by_other = None;
        let latest = (rank, task, resumed.resumptions);
        let state = std::mem::replace(&mut resumed.state, State::Free);
        let State::Asked(asked) = state else {
            panic!("{rank} {task} was resumed with {reply:?} and had asked nothing")
        };
        self.latest = Some(latest);
        self.early_data_wanted -= usize::from(matches!(asked, Asked::Wait { ahead: true, .. }));
        if let Reply::Issued(handle) = reply {
            self.issued(rank, task, handle);
        }
        match (asked, reply) {
            (Asked::LoweredWork(piece), Reply::Issued(handle)) => self.piece_issued(rank, task, &piece, handle),
            (Asked::Sleep, Reply::Issued(handle)) => self.await_end(rank, task, handle, Asked::SleepEnd),
            (Asked::SleepEnd, Reply::Complete(_)) => self.answer(rank, task, Answer::Go),
            (Asked::Issue(handle, stream), Reply::Issued(name)) => {
                self.times.issued(rank, &launch_ids(stream), name, None);
                let state = &mut self.ranks[rank.index()];
                if let Some(on) = stream {
                    state.streams.called(on, name);
                }
                state.names.insert(handle, name);
                state.called.insert(name, handle);
                state.newest = state.newest.max(Some(name));
                self.pump_siblings(rank, task);
            }
            (Asked::Wait { named, .. }, Reply::Complete(complete)) => {
                self.complete(rank, task, &named, &complete, Vec::new());
            }
            (Asked::Wait { named, .. }, Reply::Failed { complete, failed }) => {
                self.complete(rank, task, &named, &complete, failed);
            }
            (Asked::Wait { .. } | Asked::Store, Reply::TimedOut) => self.answer(rank, task, Answer::TimedOut),
            (Asked::Now, Reply::Now(now)) => {
                let computed = self.engine.times(rank).compute;
                self.answer(rank, task, Answer::Now(now, computed));
            }
            (Asked::Device(_, question), Reply::Complete(_)) => self.device_has_ended(rank, task, question),
            // A stream continues after a failed operation: the remaining work must still be waited for.
            (Asked::Device(handles, question), Reply::Failed { failed, .. }) => {
                let RankConversation { called, failed: known, .. } = &mut self.ranks[rank.index()];
                known.extend(failed.into_iter().filter(|(name, _)| called.contains_key(name)));
                self.await_device(rank, task, handles, question);
            }
            (Asked::Device(_, DeviceQuestion::Query), Reply::TimedOut) => {
                self.answer(rank, task, Answer::Ended(false));
            }
            (Asked::Times, Reply::Now(_)) => {
                let process = self.task(rank, task).process;
                let (launches, more) = self.times.take(rank, process);
                self.answer(rank, task, Answer::Times { launches, more });
            }
            (Asked::Elapsed, Reply::Elapsed(elapsed)) => self.answer(rank, task, Answer::Elapsed(elapsed)),
            (Asked::Pause, Reply::TimedOut) => self.answer(rank, task, Answer::Over),
            (Asked::Yield, Reply::TimedOut) => self.answer(rank, task, Answer::Go),
            (Asked::Group(ranks, settings), Reply::Group(group)) => {
                self.took(rank, task, RecordedStep::Named(group));
                self.joined(rank, task, group, &ranks, settings);
            }
            (Asked::Store, Reply::Store(value)) => self.answer(rank, task, Answer::Store(value)),
            (Asked::FirstTurn, Reply::Start)
            | (Asked::ComputeEnd, Reply::Complete(_))
            | (Asked::Mark, Reply::Issued(_)) => {}
            (_, reply) => panic!("{rank} {task} was answered {reply:?} at {now}, which is not what it had asked for"),
        }
        self.pump(rank, task);
        self.rest(rank);
    }

    /// Keeps the record's handle of an activity of a rank with several threads, until no task can wait for it.
    fn issued(&mut self, rank: RankId, task: TaskId, handle: Handle) {
        let RankConversation { tasks, recorded_as, .. } = &mut self.ranks[rank.index()];
        if tasks.len() > 1 && tasks[task.index()].recorded_as != handle {
            recorded_as.insert(handle, tasks[task.index()].recorded_as);
        }
    }

    fn await_end(&mut self, rank: RankId, task: TaskId, handle: Handle, asked: Asked) {
        let site = self.task(rank, task).line;
        let request = Request::Wait { handles: vec![handle], any: false, timeout: None, site };
        self.submit(rank, task, request, asked);
        self.ranks[rank.index()].recorded_as.remove(&handle);
    }

    fn complete(
        &mut self,
        rank: RankId,
        task: TaskId,
        named: &[(LocalHandle, Handle)],
        complete: &[Handle],
        failed: Vec<(Handle, RankId)>,
    ) {
        // The engine lists complete handles in the order of the request.
        let mut rest = complete.iter().peekable();
        let complete = named.iter().filter(|(_, name)| rest.next_if_eq(&name).is_some()).copied().collect();
        self.owe(rank);
        let known = &self.ranks[rank.index()].failed;
        let before = named.iter().filter_map(|(_, name)| known.get_key_value(name)).map(|(name, peer)| (*name, *peer));
        let failed = before.chain(failed).collect();
        self.fetch(Fetching { rank, task, complete, failed });
    }

    fn joined(
        &mut self,
        rank: RankId,
        task: TaskId,
        group: GroupId,
        ranks: &Arc<[RankId]>,
        settings: Option<NcclSettings>,
    ) {
        if let Some(absence) = &mut self.absence {
            absence.joined(group, ranks);
        }
        if let Err(member) = self.data.join(group, rank, ranks, settings) {
            let size = ranks.len();
            let problem = format!("{rank} is in a group of {size} ranks in which nobody that runs is like {member}");
            return self.deviates(Unlike::absence(problem));
        }
        self.answer(rank, task, Answer::Group(group.0));
    }

    /// Reports to a task that its operations are complete, once all of their data is available.
    fn fetch(&mut self, fetching: Fetching) {
        let Fetching { rank, task, ref complete, ref failed } = fetching;
        let mut told = Vec::with_capacity(complete.len());
        // Another thread of the rank may already have fetched and released some operations.
        let left = complete.iter().filter(|(handle, _)| !self.ranks[rank.index()].released.contains(*handle));
        let mut busy = false;
        for (handle, name) in left {
            if let Some(peer) = failed.get(name) {
                told.push((*handle, Fetched { closed_by: Some(peer.0), ..Fetched::default() }));
                continue;
            }
            match self.data.fetch(rank, *name) {
                Access::Ready(fetched) => told.push((*handle, fetched)),
                Access::Busy => busy = true,
            }
        }
        if busy {
            return self.fetching.push(fetching);
        }
        self.push(rank, task, Answer::Complete(told));
        for (_, name) in fetching.complete.iter().filter(|(_, name)| !fetching.failed.contains_key(name)) {
            self.hand_ahead(rank, *name);
        }
    }

    /// Hands the result of the collective `name` of `rank` to members that still wait for this collective alone: they
    /// may copy the result already.
    fn hand_ahead(&mut self, rank: RankId, name: Handle) {
        if self.early_data_wanted == 0 {
            return;
        }
        for (other, name) in self.data.members(rank, name) {
            let state = &mut self.ranks[other.index()].tasks[0].state;
            let State::Asked(Asked::Wait { named, ahead }) = state else { continue };
            if *ahead
                && matches!(named[..], [(_, waits_for)] if waits_for == name)
                && let Access::Ready(fetched) = self.data.fetch(other, name)
            {
                *ahead = false;
                self.early_data_wanted -= 1;
                self.early_data.push((other, fetched));
            }
        }
    }

    fn retry_fetches(&mut self) {
        for fetching in std::mem::take(&mut self.fetching) {
            self.fetch(fetching);
        }
    }

    fn not_released(&self, rank: RankId, handles: Vec<LocalHandle>) -> Vec<(LocalHandle, Handle)> {
        let released = &self.ranks[rank.index()].released;
        let left = handles.into_iter().filter(|handle| !released.contains(*handle));
        left.map(|handle| (handle, self.name(rank, handle))).collect()
    }

    fn name(&self, rank: RankId, handle: LocalHandle) -> Handle {
        let name = self.ranks[rank.index()].names.get(&handle);
        *name.unwrap_or_else(|| panic!("{rank} names its operation {handle}, which is not there or was released"))
    }
}

/// Observes the engine's events for the data plane and the times of launches.
struct Seen<'a> {
    data: &'a mut DataPlane,
    times: &'a mut Times,
}

impl Observer for Seen<'_> {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        self.data.observe(event);
        self.times.observe(at, event);
    }
}

/// Operators that one of a rank's processes has captured, as a part of the rank's stream of operators.
fn written_by(of: Option<OfProcess>, operators: Vec<u8>) -> Vec<u8> {
    match process(of).number() {
        0 => operators,
        _ if operators.is_empty() => operators,
        other => of_process(other, &operators),
    }
}

/// The client gives valid numbers only.
fn process(of: Option<OfProcess>) -> OfProcess {
    of.expect("a rank has no more processes")
}

/// Converts the stream and number that a process gave an operation to the rank's numbering.
fn numbered_by(process: OfProcess, on: OnStream) -> OnStream {
    let stream = process.short(on.stream).expect("a process has no more streams");
    OnStream { stream, number: on.number.map(|number| process.long(number)), ..on }
}

/// The recorded form of a cause.
fn follows_from((rank, task, resumption): Cause) -> RecordedStep {
    RecordedStep::Follows { rank, task, resumption }
}

/// The id by which the rank asks for the times of an operation on a stream.
fn launch_ids(on: Option<OnStream>) -> Vec<LaunchId> {
    on.and_then(|on| on.number).map(|launch| LaunchId { launch, node: 0 }).into_iter().collect()
}

/// Compute and sleep of threads overlap: each thread has a queue of its own.
fn issue(activity: Activity, task: TaskId, site: Site) -> Request {
    Request::Issue { activity, queue: QueueId(task.0), after: Vec::new(), site }
}

impl TaskConversation {
    fn new(state: State, line: Site) -> TaskConversation {
        let ops = VecDeque::new();
        TaskConversation {
            state,
            process: OfProcess::default(),
            closed: false,
            ops,
            carried_out: 0,
            spoken_from: None,
            causes: VecDeque::new(),
            sites: Vec::new(),
            operators: Vec::new(),
            slices: VecDeque::new(),
            pieces: VecDeque::new(),
            host: None,
            awaited: Vec::new(),
            recorded_as: Handle(0),
            is_recorded: false,
            is_programs: false,
            waits_forever: false,
            line,
            questions: 0,
            asked_at: SimTime::ZERO,
            resumptions: 0,
            woken_by: None,
            woken_by_other: None,
            moves_to: None,
            spins: None,
            looks: 0,
            driver_id: None,
        }
    }

    fn hear(&mut self, ops: impl IntoIterator<Item = Op>) {
        let first = self.carried_out + self.ops.len() as u64;
        self.ops.extend(ops);
        if self.carried_out + self.ops.len() as u64 > first {
            self.spoken_from.get_or_insert(first);
        }
    }

    /// The line of `op`: its own, or the previous line of the task.
    fn line_of(&mut self, op: &Op) -> Site {
        let site = own_line(op);
        self.stand_at(site)
    }

    /// The line of the task's next compute: the line of the operation after it, or the previous line.
    fn line_of_compute(&mut self) -> Site {
        let site = self.ops.front().and_then(own_line);
        self.stand_at(site)
    }

    fn stand_at(&mut self, site: Option<Site>) -> Site {
        if let Some(known) = site.and_then(|site| self.sites.get(site.index())) {
            self.line = *known;
        }
        self.line
    }
}

/// Whether this operation only polls the progress of other threads.
fn only_looks(op: &Op) -> bool {
    match op {
        Op::Yield | Op::Now | Op::Settle | Op::Site(_) | Op::At(_) | Op::Process(_) | Op::Thread(_) => true,
        Op::Compute(slice) => slice.operators.is_empty(),
        _ => false,
    }
}

/// Whether a library's thread may repeat this operation forever without making progress.
fn polls(op: &Op) -> bool {
    match op {
        Op::Pause(_) | Op::Sleep(_) | Op::Query { .. } | Op::Release(_) => true,
        Op::Store { operation, .. } => matches!(operation, StoreOp::Check { .. }),
        other => only_looks(other),
    }
}

fn own_line(op: &Op) -> Option<Site> {
    match op {
        Op::Issue { site, .. }
        | Op::Wait { site, .. }
        | Op::Store { site, .. }
        | Op::NameGroup { site, .. }
        | Op::Synchronize { site, .. }
        | Op::Query { site, .. }
        | Op::Elapsed { site, .. }
        | Op::At(site) => Some(*site),
        _ => None,
    }
}

impl Lines {
    /// The id of a line. It does not depend on which rank is faster: it combines the rank's own number of the line with
    /// the rank.
    fn site(&mut self, text: &str, rank: u32, world_size: u32) -> Site {
        let at = *self.index.entry(text.to_owned()).or_insert_with(|| {
            self.texts.push(text.to_owned());
            self.texts.len() - 1
        });
        Site::from(at * world_size as usize + rank as usize)
    }
}

#[cfg(test)]
mod tests;
