//! Owns the simplest driver: all ranks are programs of this process, and each is resumed as soon as the engine permits.

use super::{Engine, Halt, Resumption, Turn};
use crate::event::Observer;
use crate::ids::{RankId, TaskId};
use crate::program::{Program, ProgramError};
use crate::time::SimTime;

/// End of a run.
#[derive(Debug)]
#[must_use = "figures of a run that did not finish are not its own"]
pub enum RunEnd {
    /// All programs have ended.
    Finished,
    /// The run halted, for example in a deadlock.
    Halted(Box<Halt>),
    /// A program could not continue.
    Failed(Failure),
    /// The record of a replay ends before the programs do, because the recorded run was cut short.
    CutShort,
}

/// A program that could not continue, and therefore ended the run.
#[derive(Debug, thiserror::Error)]
#[error("{rank}, {task}, at {at}: {error}")]
pub struct Failure {
    /// The rank of the program.
    pub rank: RankId,
    /// The thread that was resumed.
    pub task: TaskId,
    /// The virtual time at which the task was resumed.
    pub at: SimTime,
    /// The error that the program returned.
    #[source]
    pub error: ProgramError,
}

/// Runs `programs`, one per rank, to the end, or until the first one fails.
///
/// # Panics
/// If the numbers of programs and ranks differ.
pub fn drive(engine: &mut Engine, programs: &mut [Box<dyn Program + '_>], observer: &mut dyn Observer) -> RunEnd {
    assert_eq!(programs.len(), engine.ranks.len(), "one program a rank");
    loop {
        match engine.next(observer) {
            Turn::Resume(Resumption { rank, task, now, reply }) => {
                match programs[rank.index()].resume(now, task, reply) {
                    Ok(request) => engine.submit(rank, task, request),
                    Err(error) => return RunEnd::Failed(Failure { rank, task, at: now, error }),
                }
            }
            Turn::Finished => return RunEnd::Finished,
            Turn::Halted(halt) => return RunEnd::Halted(halt),
            Turn::Blocked => panic!("every program of this process answers at once"),
        }
    }
}
