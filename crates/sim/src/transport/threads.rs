//! Owns the threads of each rank that communicate: when they are free. What they do then is the transport's business.
//!
//! A rank has one thread that takes messages out of sockets, one after the other; the thread of its program, which posts sends and
//! receives; and a thread for each collective that runs, which combines elements and starts the next steps.

use crate::ids::RankId;
use crate::time::{SimDuration, SimTime};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

/// Until when threads are busy.
#[derive(Debug)]
pub(super) struct HostThreads {
    input: Vec<SimTime>,
    program: Vec<SimTime>,
    /// By rank and the collective's instance.
    workers: IndexMap<(RankId, u32), SimTime, FxBuildHasher>,
}

/// Keeps a thread busy for `work` from `now` on, or from when it is free; returns until when.
fn occupy(free: &mut SimTime, now: SimTime, work: SimDuration) -> SimTime {
    *free = (*free).max(now).saturating_add(work);
    *free
}

impl HostThreads {
    pub(super) fn new(world: usize) -> HostThreads {
        let idle = vec![SimTime::ZERO; world];
        HostThreads { input: idle.clone(), program: idle, workers: IndexMap::default() }
    }

    /// When a message that arrives now has been taken in.
    pub(super) fn take_in(&mut self, rank: RankId, now: SimTime, work: SimDuration) -> SimTime {
        occupy(&mut self.input[rank.index()], now, work)
    }

    /// When an operation that the program calls now is posted.
    pub(super) fn post(&mut self, rank: RankId, now: SimTime, work: SimDuration) -> SimTime {
        occupy(&mut self.program[rank.index()], now, work)
    }

    /// When the worker of a collective has done its `work` on a message. It need not be woken if it still is at work on another.
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
