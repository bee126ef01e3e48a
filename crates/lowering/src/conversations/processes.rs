//! Owns the processes of ranks and their tasks: how they join and leave, and which rank a task belongs to if one
//! program uses the GPUs of all ranks.

use super::Conversations;
use super::causes::{Cause, Causes, follows_from};
use super::dictionary::written_by;
use super::task::{Asked, DeviceQuestion, State, TaskConversation};
use std::collections::BTreeMap;
use std::ops::Range;
use uniference_protocol::messages::{Op, Quiet};
use uniference_sim::ids::{OfProcess, RankId, TaskId};
use uniference_sim::program::{Outcome, Request};
use uniference_sim::replay::RecordedStep;

/// The ranks to which processes and tasks belong. By default, each rank has a process of its own.
#[derive(Default)]
pub(super) struct Processes {
    /// Number of ranks if one program, rank 0's, uses the GPUs of all of them: its processes act as the other ranks.
    lends: Option<usize>,
    /// Rank and task as which a task of rank 0 continues after its process moved to another rank.
    moved: BTreeMap<TaskId, (RankId, TaskId)>,
    /// Ranks of those processes of rank 0 that have moved to another rank.
    homes: BTreeMap<u32, RankId>,
    /// Definitions of ids in captured operators, by process, kept in case the process moves to another rank.
    definitions: BTreeMap<u32, Vec<u8>>,
}

impl Processes {
    pub(super) fn lends(&self) -> bool {
        self.lends.is_some()
    }

    fn lend(&mut self, ranks: usize) {
        self.lends = Some(ranks);
    }

    /// The rank that owns the process of the rank's threads.
    pub(super) fn head(&self, rank: RankId) -> RankId {
        if self.lends() { RankId(0) } else { rank }
    }

    /// The ranks whose threads are in the process of `head`.
    pub(super) fn family(&self, head: RankId) -> Range<usize> {
        self.lends.map_or(head.index()..head.index() + 1, |ranks| 0..ranks)
    }

    /// The rank and task that the driver's `rank` and `task` have become.
    pub(super) fn behind(&self, rank: RankId, task: TaskId) -> (RankId, TaskId) {
        self.moved.get(&task).copied().unwrap_or((rank, task))
    }

    fn move_task(&mut self, task: TaskId, to: (RankId, TaskId)) {
        self.moved.insert(task, to);
    }

    /// Adds definitions of one of the rank's processes. Returns the rank whose operators use them.
    fn define(&mut self, rank: RankId, process: u32, entries: &[u8]) -> RankId {
        let rank = self.homes.get(&process).copied().unwrap_or(rank);
        if self.lends() && rank == RankId(0) && process > 0 {
            self.definitions.entry(process).or_default().extend(entries);
        }
        rank
    }

    /// Assigns a numbered process to a rank from now on. Returns its earlier definitions if they move with it.
    fn settle(&mut self, process: u32, at: RankId) -> Option<Vec<u8>> {
        let is_new = process > 0 && self.homes.insert(process, at).is_none();
        if is_new { self.definitions.remove(&process) } else { None }
    }
}

impl Conversations {
    /// Declares that only rank 0 has a program. A process of that program that uses another rank's GPU moves to that
    /// rank with its threads, and still keeps rank 0's process from being quiet: the processes wait for each other in
    /// ways that the engine cannot see.
    pub fn lend(&mut self) {
        self.processes.lend(self.ranks.len());
    }

    /// Opens a task for a new thread of `rank` at its first call.
    pub fn open_task(&mut self, rank: RankId) -> TaskId {
        let task = self.engine.open_task(rank);
        let tasks = &mut self.ranks[rank.index()].tasks;
        assert_eq!(task.index(), tasks.len(), "{rank} numbers its tasks as the engine does");
        let line = tasks[0].lines.current();
        self.recording.open_task(rank);
        tasks.push(TaskConversation::new(State::Free, line));
        if task == TaskId(1) {
            self.took(rank, TaskId(0), RecordedStep::HandlesInOrder);
        }
        task
    }

    /// Closes the task of a thread that has ended without an exit message; its rank continues.
    pub fn close_task(&mut self, rank: RankId, task: TaskId) {
        let (rank, task) = self.processes.behind(rank, task);
        let closed = self.task(rank, task);
        closed.closed = true;
        closed.inbox.hear([Op::Exit(Outcome::Ok)]);
        // A running process keeps time from passing as long as the engine has one of its tasks running.
        if !self.turn(rank).runs() {
            self.pump(rank, task);
        }
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
        turn.end();
        if turn.runs() && has_ended || self.processes.lends() {
            self.quiet(rank, Quiet::default());
        }
    }

    /// Ends a rank whose process has ended as its program intended, without an exit message.
    pub fn end(&mut self, rank: RankId) {
        self.task(rank, TaskId(0)).inbox.hear([Op::Exit(Outcome::Ok)]);
        self.quiet(rank, Quiet::default());
    }

    /// Adds definitions of ids that operators of one of the rank's processes use from now on.
    pub(super) fn names(&mut self, rank: RankId, process: u32, entries: Vec<u8>) {
        let entries = written_by(OfProcess::new(process), entries);
        let rank = self.processes.define(rank, process, &entries);
        self.ranks[rank.index()].dictionary.hear(entries);
    }

    /// Continues the task as a task of the rank whose GPU its process uses.
    pub(super) fn moves(&mut self, from: RankId, task: TaskId, (to, follows): (RankId, Cause)) {
        let moved = self.open_task(to);
        let [home, other] = self.ranks.get_disjoint_mut([from.index(), to.index()]).expect("two ranks of this run");
        let leaves = &mut home.tasks[task.index()];
        let goes_on = &mut other.tasks[moved.index()];
        *goes_on = TaskConversation {
            process: leaves.process,
            lines: leaves.lines.moved(&mut self.lines, to, goes_on.lines.current()),
            questions: leaves.questions,
            asked_at: leaves.asked_at,
            inbox: std::mem::take(&mut leaves.inbox),
            causes: Causes { woken_by_other: Some(follows), ..Causes::default() },
            driver_id: Some((from, task)),
            ..TaskConversation::new(State::Free, goes_on.lines.current())
        };
        self.processes.move_task(task, (to, moved));
        self.took(to, moved, follows_from(follows));
        self.end_task(from, task, Outcome::Ok);
    }

    /// Assigns a numbered process to a rank from now on: its definitions of ids belong to that rank, including earlier
    /// ones.
    pub(super) fn settles(&mut self, process: u32, at: RankId) {
        if let Some(earlier) = self.processes.settle(process, at) {
            self.ranks[at.index()].dictionary.hear(earlier);
        }
    }

    /// Ends a task. The main task's end waits until its device has no work left, as the end of a process does.
    pub(super) fn exit(&mut self, rank: RankId, task: TaskId, outcome: Outcome) {
        let handles = self.ranks[rank.index()].streams.all_ends();
        if (task, outcome) == (TaskId(0), Outcome::Ok) && !handles.is_empty() {
            return self.await_device(rank, task, handles, DeviceQuestion::Exit);
        }
        self.end_task(rank, task, outcome);
    }

    pub(super) fn end_task(&mut self, rank: RankId, task: TaskId, outcome: Outcome) {
        self.submit(rank, task, Request::Exit(outcome), Asked::FirstTurn);
        let ended = self.task(rank, task);
        ended.state = State::Ended;
        let follows = Some((rank, task, ended.causes.resumptions));
        if self.processes.lends() && (rank, task) == (RankId(0), TaskId(0)) {
            for other in (1..self.ranks.len()).map(RankId::from) {
                self.task(other, TaskId(0)).causes.woken_by = follows;
                self.end_task(other, TaskId(0), Outcome::Ok);
            }
        }
    }
}
