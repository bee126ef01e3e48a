//! Owns the busy times of each rank's communicating threads; the transport determines their work.
//!
//! A rank has one input thread, which reads messages from sockets, one after the other; the thread of its program,
//! which posts sends and receives; and a thread for each running collective, which combines elements and starts the
//! next steps.

use crate::ids::RankId;
use crate::time::{SimDuration, SimTime};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

/// Times until which threads are busy.
#[derive(Debug)]
pub(super) struct HostThreads {
    input: Vec<SimTime>,
    program: Vec<SimTime>,
    /// Threads of collectives, by rank and the collective's instance.
    workers: IndexMap<(RankId, u32), SimTime, FxBuildHasher>,
}

/// Keeps a thread busy for `work` from `now` on, or from the time when it is free; returns the end.
fn occupy(free: &mut SimTime, now: SimTime, work: SimDuration) -> SimTime {
    *free = (*free).max(now).saturating_add(work);
    *free
}

impl HostThreads {
    pub(super) fn new(world: usize) -> HostThreads {
        let idle = vec![SimTime::ZERO; world];
        HostThreads { input: idle.clone(), program: idle, workers: IndexMap::default() }
    }

    /// Time at which a message that arrives now has been read.
    pub(super) fn take_in(&mut self, rank: RankId, now: SimTime, work: SimDuration) -> SimTime {
        occupy(&mut self.input[rank.index()], now, work)
    }

    /// Time at which an operation that the program calls now is posted.
    pub(super) fn post(&mut self, rank: RankId, now: SimTime, work: SimDuration) -> SimTime {
        occupy(&mut self.program[rank.index()], now, work)
    }

    /// Time at which the thread of a collective has done its `work` on a message. The thread need not be woken if it is
    /// still busy with another message.
    pub(super) fn work(
        &mut self,
        rank: RankId,
        instance: u32,
        now: SimTime,
        wake: SimDuration,
        work: SimDuration,
    ) -> SimTime {
        let free = self.workers.entry((rank, instance)).or_insert(SimTime::ZERO);
        let begin = if *free > now { now } else { now.saturating_add(wake) };
        occupy(free, begin, work)
    }
}
