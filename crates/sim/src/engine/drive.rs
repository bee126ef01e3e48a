//! Owns the simplest driver: all ranks are programs of this process, and each is resumed as soon as it may go on.

use super::{Engine, Halt, Resumption, Turn};
use crate::program::Program;
use crate::record::Observer;

/// How a run ended.
#[derive(Debug)]
#[must_use = "figures of a run that did not finish are not its own"]
pub enum Ended {
    /// Every rank's program did.
    Finished,
    /// It could not go on.
    Halted(Box<Halt>),
}

/// Runs `programs`, one a rank, to the end.
///
/// # Panics
/// If there are not as many programs as ranks.
pub fn drive(engine: &mut Engine, programs: &mut [Box<dyn Program + '_>], observer: &mut dyn Observer) -> Ended {
    assert_eq!(programs.len(), engine.ranks.len(), "one program a rank");
    loop {
        match engine.next(observer) {
            Turn::Resume(Resumption { rank, task, now, reply }) => {
                let request = programs[rank.index()].resume(now, task, reply);
                engine.submit(rank, task, request);
            }
            Turn::Finished => return Ended::Finished,
            Turn::Halted(halt) => return Ended::Halted(halt),
            Turn::Blocked => panic!("every program of this process answers at once"),
        }
    }
}
