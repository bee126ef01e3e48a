//! Owns the turns of processes: which of them run, which wait, and when virtual time may pass although some of their
//! threads have asked nothing.

use super::causes::{Answered, Cause, follows_from};
use super::task::{Asked, State, TaskConversation};
use super::{Conversations, RankConversation};
use uniference_protocol::messages::{Answer, Quiet};
use uniference_sim::engine::Threads;
use uniference_sim::ids::{RankId, TaskId};
use uniference_sim::time::SimDuration;

/// Whether the process of a rank runs, and since when. Each process is answered, runs until it is quiet, and is then
/// answered again.
#[derive(Default)]
pub(super) struct Turns {
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

impl Turns {
    /// Receives a batch of operations. Returns whether the process is quiet now.
    pub(super) fn hear(&mut self, quiet: Option<Quiet>) -> bool {
        self.parts += u32::from(quiet.is_some());
        self.speaks = true;
        quiet.is_some_and(|quiet| quiet.parts <= self.parts)
    }

    /// Notes that all received operations may be carried out at once, before the process is quiet.
    pub(super) fn needs_no_turn(&mut self) {
        self.speaks = false;
    }

    /// Notes that a thread that does more than poll has run.
    pub(super) fn act(&mut self) {
        self.acted = true;
    }

    /// Whether the process runs: it has been answered, and has not been quiet since.
    pub(super) fn runs(&self) -> bool {
        self.running
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Marks the process as gone: its threads send nothing more.
    pub(super) fn end(&mut self) {
        self.is_gone = true;
    }

    pub(super) fn cause(&self) -> Option<Cause> {
        self.answered.map(|answered| answered.from)
    }

    /// Notes that an answer that was ready is given to the process, or discarded.
    pub(super) fn pay(&mut self) {
        self.owed -= 1;
    }

    /// Lets the process run after an answer to a task, which `acts` if it does more than poll.
    pub(super) fn go_on(&mut self, answered: Answered, acts: bool) {
        (self.running, self.idle_threads) = (true, None);
        self.acted |= acts;
        self.answered = Some(answered);
    }
}

impl Conversations {
    /// Whether a thread of the rank's process runs or is about to run: other ranks wait for the engine, which waits for
    /// such threads.
    pub fn is_running(&self, rank: RankId) -> bool {
        let turn = &self.ranks[self.processes.head(rank).index()].turn;
        turn.running || turn.owed > 0
    }

    /// Whether the rank's process runs: it has been answered, and has not been quiet since.
    pub fn runs(&self, rank: RankId) -> bool {
        self.ranks[self.processes.head(rank).index()].turn.running
    }

    /// Whether the rank's process has reported that all of its threads wait, and one of them for something outside the
    /// simulation.
    pub fn waits_outside(&self, rank: RankId) -> bool {
        self.engine.waits_outside(rank)
    }

    pub(super) fn turn(&mut self, rank: RankId) -> &mut Turns {
        let head = self.processes.head(rank);
        &mut self.ranks[head.index()].turn
    }

    fn set_threads(&mut self, rank: RankId, threads: Threads) {
        let head = self.processes.head(rank);
        self.processes.family(head).map(RankId::from).for_each(|member| self.engine.set_threads(member, threads));
    }

    /// Notes that the rank will be given an answer: until it has been, and is quiet again, the rank keeps time from
    /// passing.
    pub(super) fn owe(&mut self, rank: RankId) {
        self.turn(rank).owed += 1;
        self.set_threads(rank, Threads::Run);
    }

    /// Carries out the operations of the rank's process, whose threads all wait.
    pub(super) fn quiet(&mut self, rank: RankId, quiet: Quiet) {
        let goes_on_by_itself = self.goes_on_by_itself(rank);
        let turn = self.turn(rank);
        (turn.parts, turn.running, turn.speaks) = (0, false, false);
        turn.idle_threads = Some(if quiet.outside { Threads::WaitOutside } else { Threads::Wait });
        turn.answered = goes_on_by_itself.or(turn.answered);
        let answered = turn.answered;
        // A task is opened once it has sent something: tasks are numbered in the order of their first messages.
        for task in (0..self.ranks[rank.index()].tasks.len()).map(TaskId::from) {
            let speaking = self.task(rank, task);
            if !speaking.inbox.ops().is_empty()
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
        let head = self.processes.head(rank);
        let was_quiet = !self.ranks[head.index()].turn.running;
        let now = self.engine.now();
        let is_behind = || self.processes.family(head).all(|member| self.engine.clock(member.into()) < now);
        let from = self.latest.filter(|_| was_quiet && is_behind())?;
        Some(Answered { whose: (from.0, from.1), from })
    }

    /// The tasks in the process of a rank, in order.
    fn tasks_with(&self, rank: RankId) -> Vec<(RankId, TaskId)> {
        let members = self.processes.family(self.processes.head(rank));
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
                looking.polls.looks = LOOKS;
            }
            let has_just_looked = whose == (member, task) && !acted;
            if looking.polls.looks > 0 && !has_just_looked {
                looking.polls.looks -= 1;
                looking.state = State::Free;
                looking.causes.woken_by_other = Some(from);
                self.took(member, task, follows_from(from));
                self.release(member, task);
                self.answer(member, task, Answer::Go);
            }
        }
    }

    /// Lets time pass once the engine has carried out the operations of a quiet rank, although some of its threads have
    /// asked nothing.
    pub(super) fn rest(&mut self, rank: RankId) {
        let head = self.processes.head(rank);
        let turn = &self.ranks[head.index()].turn;
        let asks_nothing = |task: &TaskConversation| matches!(task.state, State::Free);
        let any_asks_nothing =
            || self.ranks[self.processes.family(head)].iter().any(|rank| rank.tasks.iter().any(asks_nothing));
        if let Some(idle_threads) = turn.idle_threads.filter(|_| turn.owed == 0 && any_asks_nothing()) {
            self.set_threads(rank, idle_threads);
        }
    }

    /// Records the answer that woke the task, if the task has sent operations although another task was `answered`.
    fn goes_on(&mut self, rank: RankId, task: TaskId, answered: Option<Answered>) {
        let state = self.task(rank, task);
        let Some(first) = state.inbox.next_turn() else { return };
        let is_own = |answered: &Answered| [Some((rank, task)), state.driver_id].contains(&Some(answered.whose));
        if let Some(other) = answered.filter(|answered| !is_own(answered)) {
            state.inbox.follows(first, other.from);
            self.turn(rank).acted = true;
        }
    }

    /// Ends the task's pause early.
    pub(super) fn release(&mut self, rank: RankId, task: TaskId) {
        self.engine.release(rank, task);
        self.task(rank, task).causes.resumptions += 1;
    }

    /// Whether the run can only keep polling: every main task and every thread of a program has ended, or waits for the
    /// store or for an operation without a timeout, and threads of libraries have only polled for a minute, as NCCL's
    /// watchdog does. A run is not dead as long as the engine has work or communication under way.
    pub(super) fn is_dead(&mut self) -> bool {
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

    /// Whether some threads of a process have sent operations while its other threads run.
    pub(super) fn any_speaks(&self) -> bool {
        let speaks = |rank: RankId| self.lives(rank) && self.ranks[rank.index()].turn.speaks;
        (0..self.ranks.len()).map(RankId::from).any(speaks)
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
        let has_others = !self.processes.lends() && self.ranks.len() > 1;
        let wakes = move |rank: &RankId| {
            let rank = &self.ranks[rank.index()];
            rank.turn.idle_threads == Some(Threads::WaitOutside) || rank.tasks.iter().any(pauses)
        };
        (0..self.ranks.len()).map(RankId::from).filter(move |rank| has_others && self.lives(*rank) && wakes(rank))
    }
}
