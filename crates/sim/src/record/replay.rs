//! Owns the way back from a program record: ranks that ask again for just what they asked for before, in the same order.
//!
//! Reading a record from disk is `uniference-formats`' business.

use super::Observer;
use crate::engine::{Engine, Halt, Resumption, Turn};
use crate::ids::{RankId, TaskId};
use crate::program::Request;
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

/// Runs a program record again: for each rank the requests of its tasks, in the order in which they were submitted.
///
/// # Panics
/// If there are not as many records as ranks.
pub fn replay<I>(engine: &mut Engine, records: Vec<I>, observer: &mut dyn Observer) -> Replayed
where
    I: Iterator<Item = (TaskId, Request)>,
{
    assert_eq!(records.len(), engine.world_size(), "one record a rank");
    let mut ranks: Vec<RecordedRank<I>> = records.into_iter().map(RecordedRank::new).collect();
    loop {
        match engine.next(observer) {
            Turn::Resume(Resumption { rank, task, .. }) => ranks[rank.index()].go_on(engine, rank, task),
            Turn::Finished => return Replayed::Finished,
            Turn::Halted(halt) => return Replayed::Halted(halt),
            Turn::Blocked => return Replayed::CutShort,
        }
    }
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
    fn go_on(&mut self, engine: &mut Engine, rank: RankId, task: TaskId) {
        if let Some(request) = self.ahead[task.index()].pop_front() {
            return engine.submit(rank, task, request);
        }
        for (owner, request) in self.frames.by_ref() {
            if owner == task {
                return engine.submit(rank, task, request);
            }
            if owner.index() == self.ahead.len() {
                assert_eq!(engine.open_task(rank), owner, "{rank}: tasks open in order");
                self.ahead.push(VecDeque::new());
                engine.submit(rank, owner, request);
            } else {
                self.ahead[owner.index()].push_back(request);
            }
        }
    }
}
