//! Owns how long a process of several threads computes on a device of several cores, told from the processor time that each of them used.
//!
//! Who is charged for it is `client::account`'s business, when the process runs that of `rounds`.
//!
//! Threads of Python take turns at the interpreter's lock: together they are one lane, and so is each thread of a library's pool, as those
//! of OpenMP that carry out an operator side by side. On enough cores, compute takes as long as its longest lane; on fewer, no less than
//! all lanes together divided by the cores. Each process that the rank has started, or that these have, is a lane of its own. Both are told by processor time, so it does not matter how many cores this machine has free.

use super::quiescence::ThreadId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// Processor time of threads of pools, in nanoseconds.
pub(crate) type Used = BTreeMap<ThreadId, u64>;

/// What other processes use of the processor, in nanoseconds, as the C library tells it.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    /// A process; `None`: it is gone.
    pub process: fn(i32) -> Option<u64>,
    /// Those that this process has started and asked how they have ended, with what these have started.
    pub ended: fn() -> u64,
}

/// What other processes of the rank's have used of the processor.
#[derive(Default)]
struct Relatives {
    /// As far as is known, by process.
    used: BTreeMap<i32, u64>,
    /// Those that are gone, as far as was known.
    gone: u64,
    /// All together, when that was asked last.
    all: u64,
}

impl Relatives {
    /// Of those that are gone the kernel knows all that they have used, but only once each of their parents was asked for; we know at once what they had
    /// used when we last looked.
    fn look(&mut self, meter: Meter) -> u64 {
        // First: one that ends in between must not be counted twice.
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

/// The threads of libraries' pools.
pub(crate) struct Lanes {
    cores: u32,
    pools: Mutex<BTreeSet<ThreadId>>,
    /// What they had used when the process began to run.
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

    /// From now on other processes count, as `meter` tells.
    pub(crate) fn measure_relatives(&self, meter: Meter) {
        self.meter.get_or_init(|| meter);
    }

    /// The process counts.
    pub(crate) fn meet(&self, process: i32) {
        self.relatives().used.entry(process).or_default();
    }

    /// What all other processes of the rank's have used.
    pub(crate) fn relatives_computed(&self) -> u64 {
        self.meter.get().map_or(0, |meter| self.relatives().look(*meter))
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
        // Their numbers are of the same kind as those of threads.
        used.extend(&self.relatives().used);
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

    fn relatives(&self) -> MutexGuard<'_, Relatives> {
        self.relatives.lock().expect("no holder of this lock panics")
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

    /// All = those that are there + max(what the kernel knows of the others, what was known of them).
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
        // It has used 2 more and is gone, and nobody has asked for it.
        THERE.set(None);
        assert_eq!(lanes.relatives_computed(), 5);
        ENDED.set(7);
        assert_eq!(lanes.relatives_computed(), 7);
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
