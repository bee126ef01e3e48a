//! Owns the slots of ranks that may run at once on a machine (`--jobs`). Slots change the time at which a rank runs on
//! this machine, never the result of the run.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use uniference_sim::ids::RankId;

/// Duration without a call after which a rank no longer keeps others from running.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// The ranks that run, and turns that wait for a rank to block.
pub struct Slots<T> {
    /// Number of free slots of each machine.
    free: Vec<usize>,
    ranks: Vec<Slot>,
    waiting: VecDeque<(RankId, T)>,
}

/// The state of one rank.
#[derive(Clone, Default)]
struct Slot {
    machine: usize,
    /// Whether the rank's process runs.
    running: bool,
    /// Start of the rank's slot, or time of its latest message; `None`: the rank holds no slot.
    holds: Option<Instant>,
}

impl<T> Slots<T> {
    /// Creates `jobs` slots per machine; `machines` has the machine of each rank.
    pub fn new(jobs: usize, machines: impl IntoIterator<Item = usize>) -> Slots<T> {
        let slot = |machine| Slot { machine, ..Slot::default() };
        let ranks: Vec<Slot> = machines.into_iter().map(slot).collect();
        let count = ranks.iter().map(|slot| slot.machine + 1).max().unwrap_or(0);
        Slots { free: vec![jobs.max(1); count], ranks, waiting: VecDeque::new() }
    }

    /// Queues `turn` of a task of `rank`.
    pub fn offer(&mut self, rank: RankId, turn: T) {
        self.waiting.push_back((rank, turn));
    }

    /// The next turn that may run now; its rank then runs. A rank has one turn at a time, so the order of its threads
    /// does not depend on this machine's scheduling.
    pub fn take(&mut self, now: Instant) -> Option<T> {
        let may_run = |(rank, _): &(RankId, T)| {
            let slot = &self.ranks[rank.index()];
            self.free[slot.machine] > 0 && !slot.running
        };
        let at = self.waiting.iter().position(may_run)?;
        let (rank, turn) = self.waiting.remove(at)?;
        let slot = &mut self.ranks[rank.index()];
        (slot.running, slot.holds) = (true, Some(now));
        self.free[slot.machine] -= 1;
        Some(turn)
    }

    /// Frees the slot of `rank`: all its threads wait, or it has ended.
    pub fn blocked(&mut self, rank: RankId) {
        let slot = &mut self.ranks[rank.index()];
        slot.running = false;
        if slot.holds.take().is_some() {
            self.free[slot.machine] += 1;
        }
    }

    /// Notes a message of `rank`.
    pub fn heard(&mut self, rank: RankId, now: Instant) {
        if let Some(since) = &mut self.ranks[rank.index()].holds {
            *since = now;
        }
    }

    /// Frees the slots of ranks that were silent for too long. Returns the time of the next check, if turns are
    /// waiting.
    pub fn expire(&mut self, now: Instant) -> Option<Instant> {
        if self.waiting.is_empty() {
            return None;
        }
        for slot in &mut self.ranks {
            if slot.holds.is_some_and(|since| now.duration_since(since) >= PATIENCE) {
                slot.holds = None;
                self.free[slot.machine] += 1;
            }
        }
        self.ranks.iter().filter_map(|slot| slot.holds).min().map(|since| since + PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: RankId = RankId(0);
    const B: RankId = RankId(1);

    fn offered(jobs: usize) -> Slots<char> {
        let mut slots = Slots::new(jobs, [0, 0]);
        slots.offer(A, 'a');
        slots.offer(B, 'b');
        slots
    }

    #[test]
    fn one_job_runs_one_rank_at_a_time() {
        let (mut slots, now) = (offered(1), Instant::now());
        assert_eq!((slots.take(now), slots.take(now)), (Some('a'), None));
        slots.blocked(A);
        assert_eq!(slots.take(now), Some('b'));
    }

    #[test]
    fn two_jobs_run_two() {
        let (mut slots, now) = (offered(2), Instant::now());
        assert_eq!((slots.take(now), slots.take(now), slots.take(now)), (Some('a'), Some('b'), None));
    }

    #[test]
    fn each_machine_has_slots_of_its_own() {
        let (mut slots, now) = (Slots::new(1, [0, 1, 1]), Instant::now());
        [A, B, RankId(2)].into_iter().zip(['a', 'b', 'c']).for_each(|(rank, turn)| slots.offer(rank, turn));
        assert_eq!((slots.take(now), slots.take(now), slots.take(now)), (Some('a'), Some('b'), None));
        slots.blocked(B);
        assert_eq!(slots.take(now), Some('c'));
    }

    #[test]
    fn a_rank_takes_one_turn_at_a_time() {
        let (mut slots, now) = (offered(2), Instant::now());
        slots.offer(A, 'c');
        assert_eq!((slots.take(now), slots.take(now), slots.take(now)), (Some('a'), Some('b'), None));
        slots.blocked(A);
        assert_eq!(slots.take(now), Some('c'));
    }

    #[test]
    fn a_silent_rank_gives_up_its_slot_after_a_second() {
        let (mut slots, now) = (offered(1), Instant::now());
        slots.take(now);
        assert_eq!(slots.expire(now), Some(now + PATIENCE));
        assert_eq!(slots.take(now + PATIENCE / 2), None);
        slots.expire(now + PATIENCE);
        assert_eq!(slots.take(now + PATIENCE), Some('b'));
        // The silent rank's next call does not free a second slot.
        slots.blocked(A);
        slots.offer(A, 'c');
        assert_eq!(slots.take(now + PATIENCE), None);
    }
}
