//! Owns the duration of a multi-threaded process's compute on a device with several cores, derived from the CPU time of
//! each thread.
//!
//! `client::account` decides which task is charged, and `thread_barrier` when the process runs.
//!
//! Python threads alternate under the interpreter's lock: together they are one lane. Each thread of a library's pool
//! is a lane, such as the OpenMP threads that carry out an operator in parallel. With enough cores, compute needs the
//! time of its longest lane; with fewer, at least the sum of all lanes divided by the number of cores. Each descendant
//! process of the rank is a lane of its own. All lanes are measured by CPU time, so the number of idle cores of this
//! machine does not matter.

use super::quiescence::ThreadId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// CPU time of pool threads, in nanoseconds.
pub(crate) type Used = BTreeMap<ThreadId, u64>;

/// Measures CPU time of other processes in nanoseconds, through the C library.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    /// CPU time of a process; `None`: it no longer exists.
    pub process: fn(i32) -> Option<u64>,
    /// CPU time of reaped child processes and their descendants.
    pub ended: fn() -> u64,
}

/// CPU time of the rank's other processes.
#[derive(Default)]
struct Relatives {
    /// Latest known CPU time, by process.
    used: BTreeMap<i32, u64>,
    /// Latest known CPU time of processes that have ended.
    gone: u64,
    /// Total CPU time at the last reading.
    all: u64,
}

impl Relatives {
    /// The kernel knows the exact CPU time of ended processes only after each of their parents has reaped them; the
    /// last readings of these processes are known at once.
    fn look(&mut self, meter: Meter) -> u64 {
        // The total of ended processes is read before the running ones: a process that ends in between must not be
        // counted twice.
        let ended = (meter.ended)();
        let gone = &mut self.gone;
        self.used.retain(|process, used| match (meter.process)(*process) {
            Some(now) => {
                *used = now;
                true
            }
            None => {
                *gone += *used;
                false
            }
        });
        self.all = self.all.max(self.used.values().sum::<u64>() + ended.max(self.gone));
        self.all
    }
}

/// The lanes of a process: threads of library pools, and other processes.
pub(crate) struct Lanes {
    cores: u32,
    pools: Mutex<BTreeSet<ThreadId>>,
    /// CPU time of pool threads when the process began to run.
    begun: Mutex<Used>,
    relatives: Mutex<Relatives>,
    meter: OnceLock<Meter>,
}

impl Lanes {
    pub(crate) fn new(cores: u32) -> Lanes {
        Lanes {
            cores,
            pools: Mutex::default(),
            begun: Mutex::default(),
            relatives: Mutex::default(),
            meter: OnceLock::new(),
        }
    }

    /// Makes other processes count from now on, measured by `meter`.
    pub(crate) fn measure_relatives(&self, meter: Meter) {
        self.meter.get_or_init(|| meter);
    }

    /// Makes the process count.
    pub(crate) fn meet(&self, process: i32) {
        self.relatives().used.entry(process).or_default();
    }

    /// CPU time of all other processes of the rank.
    pub(crate) fn relatives_computed(&self) -> u64 {
        self.meter.get().map_or(0, |meter| self.relatives().look(*meter))
    }

    /// Whether threads must be distinguished: on one core, all threads alternate.
    pub(crate) fn matter(&self) -> bool {
        self.cores > 1
    }

    /// Registers a thread of a library's pool.
    pub(crate) fn join(&self, thread: ThreadId) {
        self.pools().insert(thread);
    }

    /// Notes that the process begins to run.
    pub(crate) fn begin(&self) {
        *self.begun() = self.used();
    }

    /// CPU time of pool threads. Threads that have ended are forgotten, and their CPU time counts for the Python lane.
    pub(crate) fn used(&self) -> Used {
        if !self.matter() {
            return Used::new();
        }
        let mut used = Used::new();
        self.pools().retain(|thread| processor_ns(*thread).map(|ns| used.insert(*thread, ns)).is_some());
        // Process ids and thread ids share one number space.
        used.extend(&self.relatives().used);
        used
    }

    /// Duration on the device of `total` nanoseconds of CPU time, used by all threads since their CPU time was `mark`,
    /// or since the process began to run if that is later.
    pub(crate) fn elapsed(&self, total: u64, mark: &Used) -> u64 {
        let (used, begun) = (self.used(), self.begun());
        let before = |thread| [mark, &*begun].into_iter().filter_map(|used| used.get(thread)).max().copied();
        let pools = used.iter().map(|(thread, used)| used.saturating_sub(before(thread).unwrap_or(0)));
        elapsed(total, pools, self.cores)
    }

    fn pools(&self) -> MutexGuard<'_, BTreeSet<ThreadId>> {
        self.pools.lock().expect("no holder of this lock panics")
    }

    fn relatives(&self) -> MutexGuard<'_, Relatives> {
        self.relatives.lock().expect("no holder of this lock panics")
    }

    fn begun(&self) -> MutexGuard<'_, Used> {
        self.begun.lock().expect("no holder of this lock panics")
    }
}

/// max(longest lane, all lanes / cores); Python's lane is the rest of `total`.
fn elapsed(total: u64, pools: impl Iterator<Item = u64>, cores: u32) -> u64 {
    let (sum, longest) = pools.fold((0, 0), |(sum, longest), used: u64| (sum + used, used.max(longest)));
    // A running thread may be read later than the whole process was.
    let python = total.saturating_sub(sum);
    python.max(longest).min(total).max(total.div_ceil(u64::from(cores)))
}

/// CPU time of a thread of this process; `None`: it has ended, or the kernel keeps no schedstat.
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
            // One core: threads alternate, as if there were no lanes.
            (400, &[100, 100, 100], 1, 400),
            (400, &[100, 100, 100], 4, 100),
            (400, &[100, 100, 100], 2, 200),
            // 100 ns on the Python lane alone, then 50 ns on each of four pool threads.
            (300, &[50, 50, 50], 4, 150),
            // A pool that does all the work.
            (310, &[100, 200], 8, 200),
            (500, &[], 4, 500),
            (0, &[], 4, 0),
            // Read later than the total: the result never exceeds the total.
            (100, &[105], 4, 100),
        ];
        for (total, pools, cores, expected) in cases {
            assert_eq!(elapsed(total, pools.iter().copied(), cores), expected, "{total} of {pools:?} on {cores}");
        }
    }

    /// Total = running processes + max(the kernel's value for ended ones, the last known value for them).
    #[test]
    fn what_processes_have_used_is_counted_once_and_does_not_shrink() {
        use std::cell::Cell;
        thread_local! {
            static THERE: Cell<Option<u64>> = const { Cell::new(None) };
            static ENDED: Cell<u64> = const { Cell::new(0) };
        }
        let lanes = Lanes::new(1);
        assert_eq!(lanes.relatives_computed(), 0, "nobody measures");
        lanes.measure_relatives(Meter { process: |_| THERE.get(), ended: || ENDED.get() });
        lanes.meet(7);
        THERE.set(Some(5));
        assert_eq!(lanes.relatives_computed(), 5);
        // The process has used 2 ns more and has ended, but has not been reaped.
        THERE.set(None);
        assert_eq!(lanes.relatives_computed(), 5);
        ENDED.set(7);
        assert_eq!(lanes.relatives_computed(), 7);
    }

    #[test]
    fn what_was_used_before_does_not_count() {
        let (lanes, me) = (Lanes::new(2), super::super::thread_barrier::this_thread());
        lanes.join(me);
        let mark = lanes.used();
        assert!(mark.contains_key(&me), "the kernel says what a thread has used");
        // Since `mark` was read, the calling thread has used only some microseconds.
        assert!(lanes.elapsed(1_000_000_000, &mark) >= 900_000_000);
        assert_eq!(Lanes::new(1).used(), Used::new());
    }
}
