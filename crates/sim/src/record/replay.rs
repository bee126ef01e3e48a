//! Owns the way back from a program record: ranks that ask again for just what they asked for before, in the same order.
//!
//! Reading a record from disk is `uniference-formats`' business.

use super::{Event, Observer};
use crate::engine::{Engine, Halt, Resumption, Threads, Turn};
use crate::ids::{RankId, TaskId};
use crate::program::Request;
use crate::time::SimTime;
use std::collections::VecDeque;
use std::iter::Peekable;

/// How a replay ended.
#[derive(Debug)]
#[must_use = "figures of a replay that did not finish are not those of the run"]
pub enum Replayed {
    /// Every rank's program did.
    Finished,
    /// It could not go on, as the run it comes from, or because this cluster is another one.
    Halted(Box<Halt>),
    /// The record ends before the programs do: the run was cut short.
    CutShort,
}

/// Hears what ranks and engine say to each other, besides seeing every event.
pub trait Listener: Observer {
    /// A task asks for something; it is looked at when virtual time has come to it.
    fn asked(&mut self, rank: RankId, task: TaskId, request: &Request);

    /// A task goes on, with the answer to what it asked for last.
    fn resumed(&mut self, resumption: &Resumption);

    /// `task` is heard of for the first time, just when `opener` has gone on.
    fn opened(&mut self, rank: RankId, task: TaskId, opener: TaskId);
}

/// The second one hears, too.
impl<A: Observer, B: Listener> Listener for (A, B) {
    fn asked(&mut self, rank: RankId, task: TaskId, request: &Request) {
        self.1.asked(rank, task, request);
    }

    fn resumed(&mut self, resumption: &Resumption) {
        self.1.resumed(resumption);
    }

    fn opened(&mut self, rank: RankId, task: TaskId, opener: TaskId) {
        self.1.opened(rank, task, opener);
    }
}

/// Runs a program record again: for each rank the requests of its tasks, in the order in which they were submitted.
///
/// # Panics
/// If there are not as many records as ranks.
pub fn replay<I>(engine: &mut Engine, records: Vec<I>, observer: &mut dyn Observer) -> Replayed
where
    I: Iterator<Item = (TaskId, Request)>,
{
    replay_heard(engine, records, &mut Deaf(observer))
}

/// The same with somebody who listens.
///
/// # Panics
/// If there are not as many records as ranks.
pub fn replay_heard<I>(engine: &mut Engine, records: Vec<I>, listener: &mut dyn Listener) -> Replayed
where
    I: Iterator<Item = (TaskId, Request)>,
{
    assert_eq!(records.len(), engine.world_size(), "one record a rank");
    let mut ranks: Vec<RecordedRank<I>> = records.into_iter().map(RecordedRank::new).collect();
    loop {
        match engine.next(listener) {
            Turn::Resume(resumption) => {
                listener.resumed(&resumption);
                let Resumption { rank, task, .. } = resumption;
                ranks[rank.index()].go_on(engine, rank, task, listener);
            }
            Turn::Finished => return Replayed::Finished,
            Turn::Halted(halt) => return Replayed::Halted(halt),
            Turn::Blocked => return Replayed::CutShort,
        }
    }
}

/// Sees events and hears nothing.
struct Deaf<'a>(&'a mut dyn Observer);

impl Observer for Deaf<'_> {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        self.0.record(at, event);
    }

    fn wants_messages(&self) -> bool {
        self.0.wants_messages()
    }

    fn link_changed(&mut self, at: SimTime, link: &str) {
        self.0.link_changed(at, link);
    }
}

impl Listener for Deaf<'_> {
    fn asked(&mut self, _: RankId, _: TaskId, _: &Request) {}
    fn resumed(&mut self, _: &Resumption) {}
    fn opened(&mut self, _: RankId, _: TaskId, _: TaskId) {}
}

/// One rank's record, read as far as its tasks need it.
struct RecordedRank<I: Iterator<Item = (TaskId, Request)>> {
    frames: Peekable<I>,
    tasks: Vec<RecordedTask>,
}

/// A task of a recorded rank.
#[derive(Default)]
struct RecordedTask {
    state: State,
    /// What it asks for next, as far as it was read.
    ahead: VecDeque<Request>,
    /// How often the engine has resumed it.
    resumptions: u64,
}

/// What a recorded task does.
#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    /// It is blocked in the engine.
    Blocked,
    /// The same, but its own process may let it go on.
    Paused,
    /// It may ask, once what it followed from has happened.
    #[default]
    Free,
}

impl<I: Iterator<Item = (TaskId, Request)>> RecordedRank<I> {
    fn new(frames: I) -> RecordedRank<I> {
        RecordedRank { frames: frames.peekable(), tasks: vec![RecordedTask::default()] }
    }

    /// Submits what followed from this resumption: the task's next request, and those of the tasks that it let go on.
    fn go_on(&mut self, engine: &mut Engine, rank: RankId, task: TaskId, listener: &mut dyn Listener) {
        let resumed = &mut self.tasks[task.index()];
        resumed.resumptions += 1;
        resumed.state = State::Free;
        self.read_on(engine, rank, task, listener);
        for task in (0..self.tasks.len()).map(TaskId::from) {
            self.ask(engine, rank, task, listener);
        }
        if self.tasks.len() > 1 {
            engine.set_threads(rank, Threads::Wait);
        }
    }

    /// Reads up to the task's next request, and further as long as requests follow from what has happened.
    fn read_on(&mut self, engine: &mut Engine, rank: RankId, task: TaskId, listener: &mut dyn Listener) {
        loop {
            let found = self.tasks[task.index()].ahead.iter().any(|request| !matches!(request, Request::After { .. }));
            let tasks = &self.tasks;
            let follows = |(owner, next): &(TaskId, Request)| match next {
                Request::After { .. } => has_happened(tasks, next),
                _ => matches!(tasks.get(owner.index()).and_then(|task| task.ahead.back()), Some(Request::After { .. })),
            };
            if found && !self.frames.peek().is_some_and(follows) {
                return;
            }
            let Some((owner, request)) = self.frames.next() else { return };
            while self.tasks.len() <= owner.index() {
                let opener = if let Request::After { task, .. } = request { task } else { task };
                listener.opened(rank, engine.open_task(rank), opener);
                self.tasks.push(RecordedTask::default());
            }
            self.tasks[owner.index()].ahead.push_back(request);
        }
    }

    /// Submits the task's next request, if it may ask.
    fn ask(&mut self, engine: &mut Engine, rank: RankId, task: TaskId, listener: &mut dyn Listener) {
        let RecordedTask { state, ahead, .. } = &self.tasks[task.index()];
        let woken = matches!(ahead.front(), Some(Request::After { .. }));
        let free = *state == State::Free || (*state == State::Paused && woken);
        if !free || ahead.front().is_none_or(|next| !has_happened(&self.tasks, next)) {
            return;
        }
        let task_state = &mut self.tasks[task.index()];
        if woken {
            task_state.ahead.pop_front();
        }
        let Some(request) = task_state.ahead.pop_front() else { return };
        task_state.state = if matches!(request, Request::Pause { .. }) { State::Paused } else { State::Blocked };
        listener.asked(rank, task, &request);
        engine.submit(rank, task, request);
    }
}

fn has_happened(tasks: &[RecordedTask], after: &Request) -> bool {
    let Request::After { task, resumption } = after else { return true };
    tasks.get(task.index()).is_some_and(|task| task.resumptions >= *resumption)
}
