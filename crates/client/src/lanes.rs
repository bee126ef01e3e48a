//! Owns how long a process of several threads computes on a device of several cores, told from the processor time that each of them used.
//!
//! Who is charged for it is `client::account`'s business, when the process runs that of `rounds`.
//!
//! Threads of Python take turns at the interpreter's lock: together they are one lane, and so is each thread of a library's pool, as those
//! of OpenMP that carry out an operator side by side. On enough cores, compute takes as long as its longest lane; on fewer, no less than
//! all lanes together divided by the cores. Both are told by processor time, so it does not matter how many cores this machine has free.

use super::quiescence::ThreadId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

/// Processor time of threads of pools, in nanoseconds.
pub(crate) type Used = BTreeMap<ThreadId, u64>;

/// The threads of libraries' pools.
pub(crate) struct Lanes {
    cores: u32,
    pools: Mutex<BTreeSet<ThreadId>>,
    /// What they had used when the process began to run.
    begun: Mutex<Used>,
}

impl Lanes {
    pub(crate) fn new(cores: u32) -> Lanes {
        Lanes { cores, pools: Mutex::default(), begun: Mutex::default() }
    }

    /// Whether threads are told apart: on one core they take turns, whoever they are.
    pub(crate) fn matter(&self) -> bool {
        self.cores > 1
    }

    /// The thread is one of a library's pool.
    pub(crate) fn join(&self, thread: ThreadId) {
        self.pools().insert(thread);
    }

    /// The process begins to run.
    pub(crate) fn begin(&self) {
        *self.begun() = self.used();
    }

    /// What the threads of pools have used. Those that have ended are forgotten; what they used is then Python's.
    pub(crate) fn used(&self) -> Used {
        if !self.matter() {
            return Used::new();
        }
        let mut used = Used::new();
        self.pools().retain(|thread| processor_ns(*thread).map(|ns| used.insert(*thread, ns)).is_some());
        used
    }

    /// How long `total` nanoseconds of processor time, used by all threads since they had used `mark` or since the process began to run
    /// if that is later, take on the device.
    pub(crate) fn elapsed(&self, total: u64, mark: &Used) -> u64 {
        let (used, begun) = (self.used(), self.begun());
        let before = |thread| [mark, &*begun].into_iter().filter_map(|used| used.get(thread)).max().copied();
        let pools = used.iter().map(|(thread, used)| used.saturating_sub(before(thread).unwrap_or(0)));
        elapsed(total, pools, self.cores)
    }

    fn pools(&self) -> MutexGuard<'_, BTreeSet<ThreadId>> {
        self.pools.lock().expect("no holder of this lock panics")
    }

    fn begun(&self) -> MutexGuard<'_, Used> {
        self.begun.lock().expect("no holder of this lock panics")
    }
}

/// max(longest lane, all lanes / cores), where Python's lane is what is left of `total`.
fn elapsed(total: u64, pools: impl Iterator<Item = u64>, cores: u32) -> u64 {
    let (sum, longest) = pools.fold((0, 0), |(sum, longest), used: u64| (sum + used, used.max(longest)));
    // A thread that runs just now may be read later than the whole process was.
    let python = total.saturating_sub(sum);
    python.max(longest).min(total).max(total.div_ceil(u64::from(cores)))
}

/// The processor time of a thread of this process; `None`: it has ended, or the kernel does not count.
fn processor_ns(thread: ThreadId) -> Option<u64> {
    let line = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// max(longest lane, total / cores); Python's lane = total - pools.
    #[test]
    fn compute_takes_its_longest_lane_or_its_share_of_the_cores() {
        let cases: [(u64, &[u64], u32, u64); 8] = [
            // One core: threads take turns, as if there were no lanes.
            (400, &[100, 100, 100], 1, 400),
            (400, &[100, 100, 100], 4, 100),
            (400, &[100, 100, 100], 2, 200),
            // 100 alone, then 50 on each of four.
            (300, &[50, 50, 50], 4, 150),
            // A pool that does all the work.
            (310, &[100, 200], 8, 200),
            (500, &[], 4, 500),
            (0, &[], 4, 0),
            // Read a little later than the whole: never more than that.
            (100, &[105], 4, 100),
        ];
        for (total, pools, cores, expected) in cases {
            assert_eq!(elapsed(total, pools.iter().copied(), cores), expected, "{total} of {pools:?} on {cores}");
        }
    }

    #[test]
    fn what_was_used_before_does_not_count() {
        let (lanes, me) = (Lanes::new(2), super::super::rounds::this_thread());
        lanes.join(me);
        let mark = lanes.used();
        assert!(mark.contains_key(&me), "the kernel says what a thread has used");
        // This thread has used no more than some microseconds since.
        assert!(lanes.elapsed(1_000_000_000, &mark) >= 900_000_000);
        assert_eq!(Lanes::new(1).used(), Used::new());
    }
}
