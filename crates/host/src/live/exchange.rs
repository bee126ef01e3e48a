//! Owns the conversation of live tasks with the engine: what they say goes in, one request after the other; answers come out.
//!
//! It does no I/O: sockets, processes and the host's time are `driver`'s business. So it is tested without any of them.
//!
//! It is long because it is one state machine: what a task may be asked for, and what each of the engine's answers leads to, is read together.

mod dictionary;
mod ranges;
mod streams;
mod times;

pub use streams::{CopyEngine, Launch, Piece};
pub use uniference_protocol::messages::LaunchId;

use super::absent::Absence;
use super::data::{Access, DataPlane};
use dictionary::Dictionary;
use ranges::Ranges;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use streams::Streams;
use times::Times;
use uniference_formats::operators::{Line, of_process};
use uniference_protocol::memory::Window;
use uniference_protocol::messages::{self, Answer, Fetched, LocalHandle, OnStream, Op, Quiet, Reply as Frame};
use uniference_sim::cast::{Cast, Unlike};
use uniference_sim::engine::{Engine, Halt, Resumption, Threads, Turn};
use uniference_sim::event::{Event, Observer};
use uniference_sim::ids::{GroupId, Handle, OfProcess, QueueId, RankId, Site, TaskId};
use uniference_sim::program::{Activity, NcclSettings, Origin, Outcome, POLL_COST, Reply, Request, StoreOp, Work};
use uniference_sim::replay::{RecordedStep, handles_mut};
use uniference_sim::time::{SimDuration, SimTime};

/// Sees every step: those of one rank in their order, and those of several in the order of the ranks' clocks.
pub trait Recorder {
    /// `task` of `rank` does this next; `line` is the text of the step's line, or empty where there is none.
    fn step(&mut self, rank: RankId, task: TaskId, step: &RecordedStep, line: &str);

    /// `site` stands for this line, maybe not for the first time. It is told before any event names it; in which order lines are told depends on the host.
    fn line(&mut self, _site: Site, _line: &str) {}
}

impl Recorder for () {
    fn step(&mut self, _: RankId, _: TaskId, _: &RecordedStep, _: &str) {}
}

/// What a rank's program did between two calls.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    /// The rank whose program it is.
    pub rank: RankId,
    /// The thread that ran.
    pub task: TaskId,
    /// The line of the call that ended it; empty where there is none.
    pub line: &'a str,
    /// How long the rank has measured that it computed; 0 if it did not measure.
    pub measured: SimDuration,
    /// The operators that it ran, as `uniference_formats::operators` reads them; empty if they were not captured. Slices of a rank are one stream, in
    /// the order in which they are shown.
    pub operators: &'a [u8],
}

/// Says what slices cost. Each is asked for once, and those of a rank in the order of its calls.
pub trait Costs {
    /// What a slice comes to: work of the host, the last piece being some, and what it hands to streams meanwhile.
    fn pieces(&mut self, slice: Slice<'_>) -> Vec<Piece>;

    /// The text of a captured line that a piece of the rank's has; empty where it is not known.
    fn line(&self, _rank: RankId, _line: Line) -> String {
        String::new()
    }
}

/// A slice takes as long as was measured.
impl Costs for () {
    fn pieces(&mut self, slice: Slice<'_>) -> Vec<Piece> {
        vec![Piece::Host(Work::new(slice.measured, Origin::Measured))]
    }
}

/// The live ranks of a run, and the engine.
pub struct Exchange {
    engine: Engine,
    costs: Box<dyn Costs>,
    data: DataPlane,
    times: Times,
    ranks: Vec<RankConversation>,
    /// The engine's last answer to anybody.
    latest: Option<Cause>,
    /// Answers that are ready, in the engine's order.
    ready: VecDeque<Ready>,
    /// Tasks whose waits are over, but whose data another rank is reducing.
    fetching: Vec<Fetching>,
    /// Data for main tasks whose waits are not over.
    ahead: Vec<(RankId, Fetched)>,
    /// How many main tasks would take theirs so.
    would_take_ahead: usize,
    /// Time of the last operation of a program's own thread, or of a library's thread that did more than poll.
    acted_at: SimTime,
    /// What ranks have done, by their clocks and numbers, and the recorder has not been told: which rank is heard of first is the
    /// host's doing, and must not show in what is recorded.
    unrecorded: BTreeMap<(SimTime, RankId), Vec<(TaskId, RecordedStep)>>,
    /// Lines that ranks have named, and the recorder has not been told.
    untold: Vec<Site>,
    /// Of a rehearsal.
    absence: Option<Absence>,
    /// There is one program, which is rank 0's: processes of it are those of the other ranks.
    lends: bool,
    /// In which rank a task of rank 0 goes on.
    moved: BTreeMap<TaskId, (RankId, TaskId)>,
    /// Of processes of rank 0 that have moved: where they are.
    homes: BTreeMap<u32, RankId>,
}

/// A task that may go on.
#[derive(Debug, PartialEq)]
pub struct Ready {
    /// The rank of the task.
    pub rank: RankId,
    /// The task that may go on.
    pub task: TaskId,
    /// The answer to its question.
    pub answer: Answer,
    /// The question that is answered, counted from 1.
    pub question: u64,
}

/// A task whose wait is over, in the order in which the engine said so: data is handed out in that order, so whoever waits here waits
/// for tasks that were told before it.
struct Fetching {
    rank: RankId,
    task: TaskId,
    complete: Vec<(LocalHandle, Handle)>,
    /// Those of them that have failed, and who has closed the connection.
    failed: BTreeMap<Handle, RankId>,
}

/// Why [`Exchange::advance`] returned.
#[derive(Debug)]
pub enum Standing {
    /// Some task must say something first.
    Blocked,
    /// Nobody asks for anything, so that time would pass to the end of a sleep or of somebody's patience: if all still wait.
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
    /// How the rank calls its operations, and how the engine does.
    names: BTreeMap<LocalHandle, Handle>,
    /// The same the other way round.
    called: BTreeMap<Handle, LocalHandle>,
    /// The last of the engine's names that the rank's was found for.
    newest: Option<Handle>,
    released: Released,
    /// Operations that have failed, as a wait for the device was told, and who has closed the connection: who waits for one is told as well.
    failed: BTreeMap<Handle, RankId>,
    dictionary: Dictionary,
    /// Where ranks lend their GPUs: what each of its processes names by number, in case that moves.
    named: BTreeMap<u32, Vec<u8>>,
    /// Which of its processes communicates, if that is not its own one.
    communicates: Option<OfProcess>,
    ranges: Ranges,
    /// How many of its activities have been recorded.
    activities: u32,
    /// Of a rank with several threads: how the record calls an activity, by the engine's name.
    recorded_as: BTreeMap<Handle, Handle>,
    streams: Streams,
}

/// The operations that a rank has released. A thread may ask for one that another thread has just done with.
#[derive(Default)]
struct Released {
    /// All below this.
    below: LocalHandle,
    /// And these, at or above it.
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

/// Whether the process of a rank runs, and since when. It is answered once; then it runs until it is quiet; then it is answered again.
#[derive(Default)]
struct Turns {
    /// It has ended.
    is_gone: bool,
    /// Heard of what its threads have said since it was quiet last.
    parts: u32,
    /// It has been answered since.
    running: bool,
    /// Some of its threads have said something since, and others run.
    speaks: bool,
    /// Since it was quiet and until it is answered: what those of its threads wait for that ask nothing.
    rests: Option<Threads>,
    /// Answers that it has not been given yet.
    owed: u32,
    /// Since it was quiet last, a thread ran that does not only look whether others have done something.
    acted: bool,
    /// What it goes on from: the last answer to it, or one to another rank where it has gone on by itself since.
    answered: Option<Answered>,
}

/// An answer of the engine: whose task it was for, and its number among the answers to that task, counted from 1.
type Cause = (RankId, TaskId, u64);

/// A task has been answered.
#[derive(Clone, Copy)]
struct Answered {
    whose: (RankId, TaskId),
    /// What it goes on from: the engine's answer to it or, if another task has let it go on since, that one's.
    from: Cause,
}

/// The lines of a rank's program.
#[derive(Default)]
struct Lines {
    texts: Vec<String>,
    index: BTreeMap<String, usize>,
    /// Of those that have launched something.
    captured: BTreeMap<Line, Site>,
}

/// One thread of a live rank.
struct TaskConversation {
    state: State,
    /// Whose numbers it uses.
    process: OfProcess,
    /// It has ended without a word: nobody hears what it is answered.
    closed: bool,
    /// What it has said and the engine was not asked yet.
    ops: VecDeque<Op>,
    /// How many of them have been carried out.
    carried_out: u64,
    /// Which of them, counted from 0, is the first that it has said since its process was quiet last, if it has said any.
    spoken_from: Option<u64>,
    /// From which of them on it says what follows from an answer to another task.
    causes: VecDeque<(u64, Cause)>,
    /// Its own table of lines.
    sites: Vec<Site>,
    /// Operators of a slice whose end was not said yet.
    operators: Vec<u8>,
    /// Of slices that were said and not carried out, how much of the dictionary was heard before.
    slices: VecDeque<u64>,
    /// Of the slice that is carried out, what was not handed to the engine yet.
    pieces: VecDeque<Piece>,
    /// The last of its work on the host.
    host: Option<Handle>,
    /// What its next work on the host waits for.
    awaited: Vec<Handle>,
    /// How the record calls the activity that it issued last.
    recorded_as: Handle,
    /// The record has a step of it.
    is_recorded: bool,
    /// Whether the task has been at a line of the program. A task that has not may be a thread of a library.
    is_programs: bool,
    /// Whether the task's last question has no timeout.
    waits_forever: bool,
    /// The line it stood on last.
    line: Site,
    /// Questions it has asked.
    questions: u64,
    /// What the rank's clock showed at the last one that was carried out.
    asked_at: SimTime,
    /// Answers of the engine to it, and pauses of it that were ended before their time.
    resumptions: u64,
    /// What its next request follows from, where that is an answer to another task.
    woken_by: Option<Cause>,
    /// What it has gone on from since the engine's last answer to it, if something else has let it.
    let_on_by: Option<Cause>,
    /// To which rank it moves when it says something, and what let it do so.
    moves_to: Option<(RankId, Cause)>,
    /// Since when it does nothing but look whether others have done something.
    spins: Option<SimTime>,
    /// How often it may look again before time passes, though none but such threads has run.
    looks: u8,
    /// By what the driver knows it, if it has moved.
    wire: Option<(RankId, TaskId)>,
}

/// Whose turn it is in the conversation of one task.
enum State {
    /// The task's: the engine has it running.
    Free,
    /// The engine's: it was asked on behalf of this.
    Asked(Asked),
    /// It has ended.
    Ended,
}

/// What the engine was asked for.
enum Asked {
    FirstTurn,
    /// Of a slice, this piece.
    Piece(Piece),
    ComputeEnd,
    Sleep,
    SleepEnd,
    Mark,
    /// Names a process group; the record has no step for this request.
    Name,
    Issue(LocalHandle, Option<OnStream>),
    /// Whether it takes the data before the wait is over.
    Wait {
        named: Vec<(LocalHandle, Handle)>,
        ahead: bool,
    },
    Now,
    Pause,
    Yield,
    Group(Arc<[RankId]>, Option<NcclSettings>),
    Store,
    /// The end of work of its device.
    Device(Vec<Handle>, DeviceQuestion),
    Times,
    Elapsed,
}

/// What a task wants of the work of its device.
#[derive(Clone, Copy)]
enum DeviceQuestion {
    /// To go on when the work has ended.
    Synchronize,
    /// To know whether the work has ended.
    Query,
    /// To end, once the work has ended.
    Exit,
}

impl Exchange {
    /// A conversation of `world_size` ranks with `engine`, all at their beginning. `script` stands where no line is known.
    pub fn new(mut engine: Engine, world_size: u32, script: &str) -> Exchange {
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
        Exchange {
            data: DataPlane::of(engine.algorithms().clone()),
            times: Times::new(world_size),
            engine,
            costs: Box::new(()),
            ranks: (0..world_size).map(rank).collect(),
            latest: None,
            ready: VecDeque::new(),
            fetching: Vec::new(),
            ahead: Vec::new(),
            would_take_ahead: 0,
            acted_at: SimTime::ZERO,
            unrecorded: BTreeMap::new(),
            untold: (0..world_size).map(Site).collect(),
            absence: None,
            lends: false,
            moved: BTreeMap::new(),
            homes: BTreeMap::new(),
        }
    }

    /// Only rank 0 has a program. A process of it that uses another rank's GPU moves to that rank with its threads, and takes part in the time of rank 0
    /// as before: they wait for each other in ways that the engine cannot see.
    pub fn lend(&mut self) {
        self.lends = true;
    }

    /// Whose process the rank's threads are in.
    fn head(&self, rank: RankId) -> RankId {
        if self.lends { RankId(0) } else { rank }
    }

    /// The ranks whose threads are in the process of this one.
    fn family(&self, head: RankId) -> std::ops::Range<usize> {
        if self.lends { 0..self.ranks.len() } else { head.index()..head.index() + 1 }
    }

    /// What the rank's clock shows: where they lend their GPUs all have the one of the program.
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

    /// The task behind a wire of the driver's.
    fn behind(&self, rank: RankId, task: TaskId) -> (RankId, TaskId) {
        self.moved.get(&task).filter(|_| self.lends).copied().unwrap_or((rank, task))
    }

    /// Only ranks of the cast that run have processes: the others end at once, and contribute to collectives what their stand-ins do, copied in the
    /// arena, of which each rank has a part of so many bytes.
    pub fn rehearse(&mut self, cast: &Arc<Cast>, window: Window, part: u64) {
        self.absence = Some(Absence::new(cast.clone()));
        self.data.rehearse(cast.clone(), window, part);
        (0..self.ranks.len()).map(RankId::from).filter(|rank| !cast.runs(*rank)).for_each(|rank| self.end(rank));
    }

    /// Why a rehearsal cannot go on: ranks that should be alike are not.
    pub fn unlike(&self) -> Option<&Unlike> {
        self.absence.as_ref().and_then(Absence::unlike)
    }

    /// Why a rehearsal that is over has led to nothing.
    pub fn conclude(&mut self) -> Option<&Unlike> {
        self.absence.as_mut().and_then(Absence::conclude)
    }

    /// Small reductions are done here, in the arena, from here on.
    pub fn reduce_in(&mut self, window: Window) {
        self.data.reduce_in(window);
    }

    /// Slices cost what `costs` says from here on, and not what was measured.
    pub fn cost_with(&mut self, costs: Box<dyn Costs>) {
        self.costs = costs;
    }

    /// The engine, to look at.
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

    /// Whether a thread of the rank's process runs, or is about to: others wait for the engine, which waits for those.
    pub fn is_running(&self, rank: RankId) -> bool {
        let turn = &self.ranks[self.head(rank).index()].turn;
        turn.running || turn.owed > 0
    }

    /// The text of a line: `path:line`.
    pub fn line(&self, site: Site) -> &str {
        let world_size = self.ranks.len();
        &self.ranks[site.index() % world_size].lines.texts[site.index() / world_size]
    }

    /// All lines, by [`Site`]; empty where there is none.
    pub fn lines(&self) -> Vec<String> {
        let most = self.ranks.iter().map(|rank| rank.lines.texts.len()).max().unwrap_or(0);
        let text = |at: usize, rank: &RankConversation| rank.lines.texts.get(at).cloned().unwrap_or_default();
        (0..most).flat_map(|at| self.ranks.iter().map(move |rank| text(at, rank))).collect()
    }

    /// A new thread of `rank` makes its first call.
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

    /// A thread has ended without a word; its rank goes on.
    pub fn close_task(&mut self, rank: RankId, task: TaskId) {
        let (rank, task) = self.behind(rank, task);
        let closed = self.task(rank, task);
        closed.closed = true;
        closed.hear([Op::Exit(Outcome::Ok)]);
        // A rank that runs keeps time from passing as long as the engine has one of its tasks running.
        if !self.turn(rank).running {
            self.pump(rank, task);
        }
    }

    /// Whether the rank's process runs: it has been answered, and was not quiet since.
    pub fn runs(&self, rank: RankId) -> bool {
        self.ranks[self.head(rank).index()].turn.running
    }

    /// Whether the rank's process has said that all of its threads wait, and one of them for something outside.
    pub fn waits_outside(&self, rank: RankId) -> bool {
        self.engine.waits_outside(rank)
    }

    /// Whether the rank has crashed, as the cluster wants. What its process still says does not count.
    pub fn has_crashed(&self, rank: RankId) -> bool {
        self.engine.has_crashed(rank)
    }

    /// All threads of the rank's process wait for each other, though it has not said so: it does not keep time from passing any more.
    pub fn stuck(&mut self, rank: RankId) {
        self.quiet(rank, Quiet::default());
    }

    /// The rank's process is gone: its threads that were answered do not say anything any more, and nobody hears what others are told. If its program
    /// `has_ended`, time passes without them; else it stands still, as the run ends.
    pub fn gone(&mut self, rank: RankId, has_ended: bool) {
        let turn = self.turn(rank);
        turn.is_gone = true;
        if turn.running && has_ended || self.lends {
            self.quiet(rank, Quiet::default());
        }
    }

    /// The rank's process has ended, as its program wanted, without a word.
    pub fn end(&mut self, rank: RankId) {
        self.task(rank, TaskId(0)).hear([Op::Exit(Outcome::Ok)]);
        self.quiet(rank, Quiet::default());
    }

    /// A task has said something; with `quiet`, the last that it says until it is answered. Returns whether the rank is quiet now.
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
            // The ranks that lend their GPUs have tasks that ask nothing, and would keep time from passing.
            None if ends && self.lends && task == TaskId(0) => {
                self.quiet(rank, Quiet::default());
                return true;
            }
            // What several threads say between two answers is carried out in the order of the threads, once all have.
            None if self.ranks[self.head(rank).index()].tasks.len() == 1 => {
                self.turn(rank).speaks = false;
                self.pump(rank, task);
            }
            _ => {}
        }
        false
    }

    /// Which inputs have been copied and what has been reduced are no words in a conversation: who copies may wait for an answer already, and others
    /// wait for a reduction before time passes for what else was said. Nor is what operators name by number.
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

    /// Operators of one of the rank's processes name this by number from here on.
    fn names(&mut self, rank: RankId, process: u32, entries: Vec<u8>) {
        let entries = written_by(OfProcess::new(process), entries);
        let rank = self.homes.get(&process).copied().unwrap_or(rank);
        let RankConversation { dictionary, named, .. } = &mut self.ranks[rank.index()];
        if self.lends && rank == RankId(0) && process > 0 {
            named.entry(process).or_default().extend(&entries);
        }
        dictionary.hear(entries);
    }

    /// All threads of the rank's process wait: carries out what they have said.
    fn quiet(&mut self, rank: RankId, quiet: Quiet) {
        let goes_on_by_itself = self.goes_on_by_itself(rank);
        let turn = self.turn(rank);
        (turn.parts, turn.running, turn.speaks) = (0, false, false);
        turn.rests = Some(if quiet.outside { Threads::WaitOutside } else { Threads::Wait });
        turn.answered = goes_on_by_itself.or(turn.answered);
        let answered = turn.answered;
        // A task is there once it has something to say: tasks are numbered in the order in which they are heard of.
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

    /// If a process has gone on that was quiet and was not answered since, something has let it that is not of the simulation: a byte in a socket, say, that
    /// another rank has written. Which one is not known. It is taken to be the one that the engine has answered last: it has run since, and no time has
    /// passed in it.
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

    /// Tasks that wait in a loop for what others do look again, as one of those may have done it. That one of them has looked may be something, too, but
    /// not without end.
    fn let_look(&mut self, rank: RankId, answered: Option<Answered>) {
        /// What one of them does when it is let go on may be what another one waits for, and so on.
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
                looking.let_on_by = Some(from);
                self.took(member, task, follows_from(from));
                self.release(member, task);
                self.answer(member, task, Answer::Go);
            }
        }
    }

    /// Lets time pass once the engine has carried out what a quiet rank has said, though some of its threads have asked nothing.
    fn rest(&mut self, rank: RankId) {
        let head = self.head(rank);
        let turn = &self.ranks[head.index()].turn;
        let asks_nothing = |task: &TaskConversation| matches!(task.state, State::Free);
        let any_asks_nothing = || self.ranks[self.family(head)].iter().any(|rank| rank.tasks.iter().any(asks_nothing));
        if let Some(rests) = turn.rests.filter(|_| turn.owed == 0 && any_asks_nothing()) {
            self.set_threads(rank, rests);
        }
    }

    /// If the task has just said something though not it but another one was `answered`, that one has let it go on.
    fn goes_on(&mut self, rank: RankId, task: TaskId, answered: Option<Answered>) {
        let state = self.task(rank, task);
        let Some(first) = state.spoken_from.take().filter(|_| !state.ops.is_empty()) else { return };
        let wire = state.wire;
        let other = answered.filter(|answered| ![Some((rank, task)), wire].contains(&Some(answered.whose)));
        let acts = other.is_some();
        state.causes.extend(other.map(|other| (first, other.from)));
        self.turn(rank).acted |= acts;
    }

    /// Tells the recorder what was asked for before the engine's time: nothing will be added to that.
    fn record_past(&mut self, recorder: &mut dyn Recorder) {
        let rest = self.unrecorded.split_off(&(self.engine.now(), RankId(0)));
        let past = std::mem::replace(&mut self.unrecorded, rest);
        self.tell(recorder, past);
    }

    /// Tells the recorder everything that it does not know: nobody will ask for more.
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

    /// Lets the engine go on as far as it can. Answers are then [`Exchange::take_ready`].
    pub fn advance(&mut self, observer: &mut dyn Observer, recorder: &mut dyn Recorder) -> Standing {
        self.record_past(recorder);
        loop {
            for site in std::mem::take(&mut self.untold) {
                recorder.line(site, self.line(site));
            }
            let mut seen = (Seen { data: &mut self.data, times: &mut self.times }, &mut *observer);
            match self.engine.next(&mut seen) {
                Turn::Resume(resumption) => self.resumed(resumption),
                Turn::Blocked if !self.engine.waits_to_idle() => return Standing::Blocked,
                Turn::Blocked if self.is_dead() => self.engine.gives_up(),
                Turn::Blocked if self.wakeable().next().is_none() => self.engine.idle(),
                Turn::Blocked => {
                    let speaks = |rank: RankId| self.lives(rank) && self.ranks[rank.index()].turn.speaks;
                    let any_speaks = (0..self.ranks.len()).map(RankId::from).any(speaks);
                    return if any_speaks { Standing::Blocked } else { Standing::Idle };
                }
                Turn::Finished => return Standing::Finished,
                Turn::Halted(halt) => return Standing::Halted(halt),
            }
        }
    }

    /// Whether the run can only go on polling: every main task and every thread of a program has ended, or waits for
    /// the store or for an operation without a timeout, and threads of libraries have only polled for a minute, as
    /// NCCL's watchdog does. A run is not dead as long as the engine has work or communication under way.
    fn is_dead(&mut self) -> bool {
        /// Time within which a library's thread must notice that it has work.
        const PATIENCE: SimDuration = SimDuration::from_us(60_000_000);
        let waits = |task: &TaskConversation| {
            matches!(task.state, State::Asked(Asked::Store | Asked::Wait { .. })) && task.waits_forever
        };
        let is_over = |task: &TaskConversation| matches!(task.state, State::Ended) || waits(task);
        let rests = |task: &TaskConversation| !task.is_programs || is_over(task);
        let is_stuck = |rank: &RankConversation| is_over(&rank.tasks[0]) && rank.tasks.iter().all(rests);
        self.engine.now().since(self.acted_at.min(self.engine.now())) > PATIENCE
            && self.ranks.iter().all(is_stuck)
            && self.ranks.iter().any(|rank| waits(&rank.tasks[0]))
            && !self.ranks.iter().any(|rank| rank.turn.rests == Some(Threads::WaitOutside))
            && !self.engine.may_still_act()
    }

    /// Whether what the rank's process says still counts.
    fn lives(&self, rank: RankId) -> bool {
        !self.ranks[rank.index()].turn.is_gone && !self.engine.has_crashed(rank)
    }

    /// Those that [`Exchange::wakeable`] names were found to wait still: time may pass, once.
    pub fn still_waits(&mut self) {
        self.engine.idle();
    }

    /// Ranks whose processes something may let go on that is not of the simulation, while all of them wait: a byte in a socket, say, that another
    /// rank had written before it said that it waits. None if there are no others.
    pub fn wakeable(&self) -> impl Iterator<Item = RankId> {
        let pauses = |task: &TaskConversation| matches!(task.state, State::Asked(Asked::Pause));
        let has_others = !self.lends && self.ranks.len() > 1;
        let wakes = move |rank: &RankId| {
            let rank = &self.ranks[rank.index()];
            rank.turn.rests == Some(Threads::WaitOutside) || rank.tasks.iter().any(pauses)
        };
        (0..self.ranks.len()).map(RankId::from).filter(move |rank| has_others && self.lives(*rank) && wakes(rank))
    }

    /// The next task that may go on.
    pub fn take_ready(&mut self) -> Option<Ready> {
        self.ready.pop_front()
    }

    /// Data that may be written to a rank's main task, which waits for more than that.
    pub fn take_ahead(&mut self) -> Option<(RankId, Frame)> {
        let (rank, fetched) = self.ahead.pop()?;
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

    /// What is written to the task when it goes on now; its rank then runs. `None`: the end of a pause that the task did not wait for, or the task has ended.
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
            Answered { whose: (rank, task), from: asking.let_on_by.unwrap_or((rank, task, asking.resumptions)) };
        let acts = asking.spins.is_none() && !matches!(answer, Answer::Over);
        // These answers are not for the process itself, but for who asks in its name.
        let is_its_own = !matches!(answer, Answer::Over | Answer::Moved);
        let hears = communicates.is_none_or(|process| process == asking.process && is_its_own);
        let turn = self.turn(rank);
        (turn.running, turn.rests) = (true, None);
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

    /// The rank's names for its communication that is over and that it has not been told of. What the engine has begun with, but not
    /// answered for yet, has no name and is kept for the next time.
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

    /// The rank will be given an answer: until it has been, and is quiet again, it keeps time from passing.
    fn owe(&mut self, rank: RankId) {
        self.turn(rank).owed += 1;
        self.set_threads(rank, Threads::Run);
    }

    fn push(&mut self, rank: RankId, task: TaskId, answer: Answer) {
        let TaskConversation { questions: question, wire, .. } = *self.task(rank, task);
        let (rank, task) = wire.unwrap_or((rank, task));
        self.ready.push_back(Ready { rank, task, answer, question });
    }

    /// Carries out what the task has said, until the engine must answer or nothing is left.
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
                (speaking.woken_by, speaking.let_on_by) = (Some(cause), Some(cause));
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

    /// Whether it is the task's turn, and all it speaks of is known: what it waits for, another thread may have issued just now. What a slice hands to
    /// streams is handed over before another thread's slice begins, which may name it; and so is, before one asks about the device, what other threads have said
    /// that it may ask about.
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
        // Whoever says something has left the pause before it.
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
                let follows = speaking.let_on_by.unwrap_or((rank, task, speaking.resumptions));
                let process = speaking.process.number();
                if RankId(to) != rank {
                    speaking.moves_to = Some((RankId(to), follows));
                    self.settles(process, RankId(to));
                }
                self.answer(rank, task, Answer::Moved);
            }
            Op::Process(number) => {
                self.task(rank, task).process = process(OfProcess::new(number));
                if self.task(rank, task).wire.is_some() {
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

    /// The task goes on as one of another rank, whose GPU its process uses.
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
            let_on_by: Some(follows),
            operators: std::mem::take(&mut leaves.operators),
            slices: std::mem::take(&mut leaves.slices),
            wire: Some((from, task)),
            ..TaskConversation::new(State::Free, goes_on.line)
        };
        self.moved.insert(task, (to, moved));
        self.took(to, moved, follows_from(follows));
        self.end_task(from, task, Outcome::Ok);
    }

    /// A process that has a number is of this rank from here on: what it names by number belongs there, also what it has named before.
    fn settles(&mut self, process: u32, at: RankId) {
        if process > 0
            && self.homes.insert(process, at).is_none()
            && let Some(named) = self.ranks[0].named.remove(&process)
        {
            self.ranks[at.index()].dictionary.hear(named);
        }
    }

    /// Turns what a task said into a request to the engine.
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
                self.would_take_ahead += usize::from(ahead);
                (Request::Wait { handles, any, timeout, site: line }, Asked::Wait { named, ahead })
            }
            Op::Now => (Request::Look, Asked::Now),
            Op::Yield => {
                // As if it looked a million times a second; the longer it has waited, the less does a look more matter.
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

    /// The program has computed: what that costs is another's to say.
    fn compute(&mut self, rank: RankId, task: TaskId, slice: messages::Slice) {
        let messages::Slice { measured, operators: last } = slice;
        let world_size = self.ranks.len();
        let RankConversation { tasks, lines, dictionary, .. } = &mut self.ranks[rank.index()];
        let speaking = &mut tasks[task.index()];
        let heard = speaking.slices.pop_front().expect("it was numbered when it was heard");
        // It comes on the main task's wire: another task's slice may have been heard before what it needs.
        let mut operators = dictionary.take(if task == TaskId(0) { heard } else { dictionary.heard() });
        let mut ran = std::mem::take(&mut speaking.operators);
        ran.extend(last);
        operators.extend(written_by(Some(speaking.process), ran));
        let site = speaking.line_of_compute();
        let line = &lines.texts[site.index() / world_size];
        let pieces = self.costs.pieces(Slice { rank, task, line, measured, operators: &operators });
        self.after_another(rank, task);
        if !operators.is_empty() || pieces != [Piece::Host(Work::new(measured, Origin::Measured))] {
            self.took(rank, task, RecordedStep::Operators { operators, measured });
        }
        self.task(rank, task).pieces = pieces.into();
        self.next_piece(rank, task);
    }

    /// Hands the next piece of the task's slice to the engine. They are handed over all at once, and wait for each other there: the host's work stands
    /// in a queue of the task's own, and what it hands to streams waits for it. The task waits for the end of the host's work. What was launched has
    /// the line of the operator that has launched it, all else that of the call that ends the slice.
    fn next_piece(&mut self, rank: RankId, task: TaskId) {
        let world_size = self.ranks.len() as u32;
        let RankConversation { tasks, lines, streams, .. } = &mut self.ranks[rank.index()];
        let speaking = &mut tasks[task.index()];
        while let Some(piece) = speaking.pieces.pop_front() {
            let mut after = streams.dependencies(&piece);
            let (activity, queue) = match &piece {
                Piece::Host(work) => {
                    after = std::mem::take(&mut speaking.awaited);
                    (Activity::Compute(work.clone()), QueueId(task.0))
                }
                Piece::Launch(launch) => (Activity::Compute(launch.work.clone()), QueueId::of_stream(launch.stream)),
                Piece::Record { event, stream } => (Activity::Reach(*event), QueueId::of_stream(*stream)),
                Piece::Wait { stream, event } => {
                    streams.wait(*stream, *event);
                    continue;
                }
            };
            if queue.stream().is_some() {
                after.extend(speaking.host);
            }
            let mut site = speaking.line;
            if let Piece::Launch(launch) = &piece {
                self.times.issues(rank, &launch.ids);
                site = lines.captured.get(&launch.line).copied().unwrap_or_else(|| {
                    let named = lines.site(&self.costs.line(rank, launch.line), rank.0, world_size);
                    lines.captured.insert(launch.line, named);
                    self.untold.push(named);
                    named
                });
            }
            return self.submit(rank, task, Request::Issue { activity, queue, after, site }, Asked::Piece(piece));
        }
        let host = speaking.host.take().expect("the last piece is the host's");
        self.await_end(rank, task, host, Asked::ComputeEnd);
        self.forget_names(rank);
        self.pump_siblings(rank, task);
    }

    /// The engine has named a piece of a slice.
    fn piece_issued(&mut self, rank: RankId, task: TaskId, piece: &Piece, handle: Handle) {
        let RankConversation { tasks, streams, .. } = &mut self.ranks[rank.index()];
        let speaking = &mut tasks[task.index()];
        match piece {
            Piece::Host(_) => speaking.host = Some(handle),
            _ => speaking.awaited.extend(streams.handed(piece, handle)),
        }
        if let Piece::Launch(launch) = piece {
            self.times.issued(rank, &launch.ids, handle, speaking.host);
        }
        self.next_piece(rank, task);
    }

    /// What the record calls activities of streams need not be known once nothing can be made to wait for them.
    fn forget_names(&mut self, rank: RankId) {
        const MANY: usize = 1 << 14;
        let RankConversation { tasks, called, streams, recorded_as, .. } = &mut self.ranks[rank.index()];
        if recorded_as.len() > MANY {
            let mut known = streams.known();
            known.extend(tasks.iter().flat_map(|task| task.host.iter().chain(&task.awaited)));
            recorded_as.retain(|handle, _| called.contains_key(handle) || known.contains(handle));
        }
    }

    /// Takes note that what the task asks for next follows from the answer to another task, if it does.
    fn after_another(&mut self, rank: RankId, task: TaskId) {
        if let Some(cause) = self.task(rank, task).woken_by.take() {
            self.took(rank, task, follows_from(cause));
        }
    }

    /// A record has tasks in their order: one that must wait with what it asks for first is in it before those that were heard of later.
    fn introduce(&mut self, rank: RankId, task: TaskId) {
        let TaskConversation { is_recorded, woken_by, causes, .. } = self.task(rank, task);
        if !*is_recorded && let Some(cause) = woken_by.or(causes.front().map(|(_, cause)| *cause)) {
            self.took(rank, task, follows_from(cause));
        }
    }

    /// The task's pause is over before its time.
    fn release(&mut self, rank: RankId, task: TaskId) {
        self.engine.release(rank, task);
        self.task(rank, task).resumptions += 1;
    }

    fn submit(&mut self, rank: RankId, task: TaskId, request: Request, asked: Asked) {
        self.submit_as(rank, task, request.clone(), request, asked);
    }

    /// The same where the engine hears of it in other words than the record.
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

    /// Takes note of a step for the recorder.
    fn took(&mut self, rank: RankId, task: TaskId, mut step: RecordedStep) {
        let at = self.engine.clock(rank).max(self.engine.now());
        let steps = self.unrecorded.entry((at, rank)).or_default();
        let RankConversation { tasks, activities, recorded_as, .. } = &mut self.ranks[rank.index()];
        tasks[task.index()].is_recorded = true;
        if let RecordedStep::Request(Request::Issue { .. }) = step {
            tasks[task.index()].recorded_as = Handle(*activities);
            *activities += 1;
        }
        // Of one thread, activities are issued as they are recorded.
        if tasks.len() > 1
            && let RecordedStep::Request(request) = &mut step
            && let Some(handles) = handles_mut(request)
        {
            handles.iter_mut().for_each(|handle| *handle = recorded_as.get(handle).copied().unwrap_or(*handle));
        }
        steps.push((task, step));
    }

    /// The main task's program returns when its device has nothing left to do: the end of a process waits for that.
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

    /// The engine has answered a task.
    fn resumed(&mut self, resumption: Resumption) {
        let Resumption { rank, task, now, reply } = resumption;
        let resumed = self.task(rank, task);
        if matches!(resumed.state, State::Asked(Asked::Name)) {
            resumed.state = State::Free;
            self.pump(rank, task);
            return self.rest(rank);
        }
        resumed.resumptions += 1;
        resumed.let_on_by = None;
        let latest = (rank, task, resumed.resumptions);
        let state = std::mem::replace(&mut resumed.state, State::Free);
        let State::Asked(asked) = state else {
            panic!("{rank} {task} was resumed with {reply:?} and had asked nothing")
        };
        self.latest = Some(latest);
        self.would_take_ahead -= usize::from(matches!(asked, Asked::Wait { ahead: true, .. }));
        if let Reply::Issued(handle) = reply {
            self.issued(rank, task, handle);
        }
        match (asked, reply) {
            (Asked::Piece(piece), Reply::Issued(handle)) => self.piece_issued(rank, task, &piece, handle),
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
            // A stream goes on behind a call that has failed: the rest is still to be waited for.
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

    /// The engine has named an activity of one of several threads: until nobody can wait for it any more, the record's name is kept.
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
        // The engine names them in the order in which it was asked.
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

    /// Tells a task that its operations are complete, once all of their data can be had.
    fn fetch(&mut self, fetching: Fetching) {
        let Fetching { rank, task, ref complete, ref failed } = fetching;
        let mut told = Vec::with_capacity(complete.len());
        // Another thread of the rank may have fetched and released some meanwhile.
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

    /// The collective that `rank` calls `name` has its result: who still waits for it, and for nothing else, may copy that already.
    fn hand_ahead(&mut self, rank: RankId, name: Handle) {
        if self.would_take_ahead == 0 {
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
                self.would_take_ahead -= 1;
                self.ahead.push((other, fetched));
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

/// Sees the engine's events for what the exchange keeps of them.
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

/// What one of a rank's processes has written, as a part of the rank's stream of operators.
fn written_by(of: Option<OfProcess>, operators: Vec<u8>) -> Vec<u8> {
    match process(of).number() {
        0 => operators,
        _ if operators.is_empty() => operators,
        other => of_process(other, &operators),
    }
}

/// The client gives no other numbers.
fn process(of: Option<OfProcess>) -> OfProcess {
    of.expect("a rank has no more processes")
}

/// The stream and the number of an operation that a process has named by numbers of its own.
fn numbered_by(process: OfProcess, on: OnStream) -> OnStream {
    let stream = process.short(on.stream).expect("a process has no more streams");
    OnStream { stream, number: on.number.map(|number| process.long(number)), ..on }
}

/// As the record says it.
fn follows_from((rank, task, resumption): Cause) -> RecordedStep {
    RecordedStep::Follows { rank, task, resumption }
}

/// By what the rank asks for the times of an operation on a stream.
fn launch_ids(on: Option<OnStream>) -> Vec<LaunchId> {
    on.and_then(|on| on.number).map(|launch| LaunchId { launch, node: 0 }).into_iter().collect()
}

/// Threads compute and sleep side by side: each in a queue of its own.
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
            let_on_by: None,
            moves_to: None,
            spins: None,
            looks: 0,
            wire: None,
        }
    }

    fn hear(&mut self, ops: impl IntoIterator<Item = Op>) {
        let first = self.carried_out + self.ops.len() as u64;
        self.ops.extend(ops);
        if self.carried_out + self.ops.len() as u64 > first {
            self.spoken_from.get_or_insert(first);
        }
    }

    /// The line that `op` belongs to: its own, or the one before.
    fn line_of(&mut self, op: &Op) -> Site {
        let site = own_line(op);
        self.stand_at(site)
    }

    /// The line that compute belongs to which the task says next: that of what it led to, or the one before.
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

/// Whether a thread that says no more than this has only looked whether others have done something.
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
    /// The id of a line, the same whichever rank is faster: the rank's own number of the line, dealt among ranks.
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
