//! Owns the way back from a program record: ranks that ask again for just what they asked for before, in the same order.
//!
//! Reading a record from disk is `uniference-formats`' business.

use super::{Event, Observer};
use crate::engine::{Engine, Halt, Resumption, Turn};
use crate::ids::{RankId, TaskId};
use crate::program::Request;
use crate::time::SimTime;
use std::collections::VecDeque;

/// How a replay ended.
#[derive(Debug)]
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
}

impl Listener for Deaf<'_> {
    fn asked(&mut self, _: RankId, _: TaskId, _: &Request) {}
    fn resumed(&mut self, _: &Resumption) {}
    fn opened(&mut self, _: RankId, _: TaskId, _: TaskId) {}
}

/// One rank's record, read as far as its tasks need it.
struct RecordedRank<I> {
    frames: I,
    /// By task: requests that were read while looking for another task's.
    ahead: Vec<VecDeque<Request>>,
}

impl<I: Iterator<Item = (TaskId, Request)>> RecordedRank<I> {
    fn new(frames: I) -> RecordedRank<I> {
        RecordedRank { frames, ahead: vec![VecDeque::new()] }
    }

    /// Submits the task's next request. A task that the engine does not know yet starts where the record first names it.
    fn go_on(&mut self, engine: &mut Engine, rank: RankId, task: TaskId, listener: &mut dyn Listener) {
        if let Some(request) = self.ahead[task.index()].pop_front() {
            return submit(engine, rank, task, request, listener);
        }
        for (owner, request) in self.frames.by_ref() {
            if owner == task {
                return submit(engine, rank, task, request, listener);
            }
            if owner.index() == self.ahead.len() {
                assert_eq!(engine.open_task(rank), owner, "{rank}: tasks open in order");
                listener.opened(rank, owner, task);
                self.ahead.push(VecDeque::new());
                submit(engine, rank, owner, request, listener);
            } else {
                self.ahead[owner.index()].push_back(request);
            }
        }
    }
}

fn submit(engine: &mut Engine, rank: RankId, task: TaskId, request: Request, listener: &mut dyn Listener) {
    listener.asked(rank, task, &request);
    engine.submit(rank, task, request);
}
