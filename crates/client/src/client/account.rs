//! Owns the compute that a rank's program is charged: its CPU time between calls of the client.
//!
//! `client` decides when to report it.
//!
//! **Charged time.** Between `leave` and the next outermost `enter` the program computes. The process's CPU time in
//! between is charged to the task that enters; waits on this machine are not charged. Threads of library pools compute
//! concurrently, on as many cores as the rank's device has (`lanes`): one, unless the cluster file says otherwise.
//! Python threads alternate under the interpreter's lock, so each thread is charged the whole CPU time of the process
//! since the thread left, or since the process began to run if that is later: compute of another thread has kept this
//! thread waiting. CPU time of Uniference's own code is excluded.
//!
//! Charged time is reported in *slices*, with the operators of that time if these are captured. Each stretch of the
//! program between two calls is a slice, even of zero duration: this gives two runs of one program the same slices,
//! whatever their durations. CPU time of the capture is excluded, too.
//!
//! A read of the CPU clock is a system call, and a blocking call enters and leaves twice. For some microseconds after a
//! reading, further readings are therefore derived from the monotonic clock, which needs no system call: the thread has
//! run all the time, because it has not blocked in a call of the client.

use super::{Client, Compute};
use crate::lanes::Used;
use rustix::time::{ClockId, clock_gettime};
use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::Relaxed;
use uniference_protocol::messages::ComputeSlice;
use uniference_sim::time::SimDuration;

/// Time after a reading of the CPU clock during which the monotonic clock gives its progress. If the kernel preempts
/// the thread during this time, the charged time is wrong by at most this duration.
const TRUSTED_NS: u64 = 50_000;

/// A thread's uncharged compute, and the nesting depth of the client's own work on the thread.
#[derive(Default)]
struct Account {
    client: u64,
    depth: u32,
    /// CPU time of the program that has not been reported; `None`: the program did not run.
    owed_ns: Option<u64>,
    /// Operators that were passed to [`Client::ran`] and not reported yet.
    operators: Vec<u8>,
    /// The thread's CPU time at the outermost `enter`, if the process has several threads.
    entered_ns: u64,
    /// The value of `ThreadBarrier::computed` at the outermost `leave`, if the process has several threads.
    left_ns: u64,
    /// CPU time of pool threads at the outermost `leave`.
    left_lanes: Used,
    /// The last readings of the process's CPU clock and of the monotonic clock, if the thread has not blocked since.
    reading: Option<(u64, u64)>,
}

impl Account {
    /// The process's CPU time, in nanoseconds; `alone`: whether this thread is the only one.
    fn process_cpu(&mut self, alone: bool) -> u64 {
        let now = clock_ns(ClockId::Monotonic);
        match self.reading {
            Some((cpu, at)) if alone && now.saturating_sub(at) < TRUSTED_NS => cpu + (now - at),
            _ => {
                let cpu = clock_ns(ClockId::ProcessCPUTime);
                self.reading = Some((cpu, now));
                cpu
            }
        }
    }
}

thread_local! {
    /// True if the calling thread has reported operators since its last request to the driver: virtual time has not
    /// advanced by these operators.
    static UNSETTLED: Cell<bool> = const { Cell::new(false) };
    /// Whether the calling thread is a relay thread: it makes requests for another process, whose operators this
    /// process does not capture.
    static RELAYS: Cell<bool> = const { Cell::new(false) };
    static ACCOUNTS: RefCell<Vec<Account>> = const { RefCell::new(Vec::new()) };
}

/// Allocates the calling thread's accounts.
pub(super) fn make() {
    ACCOUNTS.with(|_| ());
}

impl Client {
    /// Begins work of the client on this thread, which is not charged, until the matching `leave`. Calls may be nested.
    pub fn enter(&self) {
        self.with_account(|account| {
            account.depth += 1;
            if account.depth > 1 {
                return;
            }
            if self.counts() {
                let ns = if self.measures() { self.computed(account) } else { 0 };
                account.owed_ns = Some(account.owed_ns.unwrap_or(0) + ns);
            }
            self.say_inside(true);
        });
    }

    /// Duration of the program's compute on this thread between its `leave` and the current `enter`.
    fn computed(&self, account: &mut Account) -> u64 {
        if self.barrier.threaded() {
            let computed = self.barrier.computed_since(account.left_ns, &account.left_lanes);
            account.entered_ns = clock_ns(ClockId::ThreadCPUTime);
            return computed;
        }
        let now = account.process_cpu(self.is_alone());
        now.saturating_sub(self.charged.fetch_max(now, Relaxed))
    }

    /// Ends the client's work on this thread: the program continues.
    pub fn leave(&self) {
        self.with_account(|account| {
            account.depth = account.depth.checked_sub(1).expect("`leave` without `enter`");
            if account.depth > 0 {
                return;
            }
            self.say_inside(false);
            if self.measures() {
                self.skip_own_work(account);
            }
        });
    }

    /// Excludes the thread's CPU time since `enter` (if alone in the process, all CPU time since then).
    fn skip_own_work(&self, account: &mut Account) {
        if self.barrier.threaded() {
            if account.entered_ns > 0 {
                self.barrier.leave_out(clock_ns(ClockId::ThreadCPUTime).saturating_sub(account.entered_ns));
            }
            account.left_lanes = self.barrier.lanes.used();
            account.left_ns = self.barrier.computed();
        } else {
            self.charged.store(account.process_cpu(self.is_alone()), Relaxed);
        }
    }

    /// Process CPU time up to which compute has been charged, while the process has one thread.
    pub(in super::super) fn charged(&self) -> u64 {
        self.charged.load(Relaxed)
    }

    /// Whether the process has a single thread.
    pub(super) fn is_alone(&self) -> bool {
        self.tasks.load(Relaxed) == 1 && !self.barrier.threaded()
    }

    fn measures(&self) -> bool {
        self.compute == Compute::Measured && self.started.load(Relaxed)
    }

    /// Whether the program's slices are reported.
    fn counts(&self) -> bool {
        self.compute != Compute::None && self.started.load(Relaxed)
    }

    /// Tells the capture that this thread begins or ends work of the client.
    pub(super) fn say_inside(&self, inside: bool) {
        if let Some(capture) = self.capture.get() {
            capture.inside(inside);
        }
    }

    /// Whether the calling thread is between `enter` and `leave`.
    pub(super) fn is_at_own_work(&self) -> bool {
        self.with_account(|account| account.depth > 0)
    }

    /// Reports operators that the program has run on the calling thread without a [`Capture`](crate::Capture);
    /// `dictionary`: definitions of ids that these operators use for the first time in the rank.
    pub fn ran(&self, dictionary: &[u8], operators: &[u8]) {
        if self.compute != Compute::None {
            self.dictionary().new.extend_from_slice(dictionary);
            self.with_account(|account| account.operators.extend_from_slice(operators));
        }
    }

    /// Whether the calling thread is between `enter` and `leave`, or is about to end: calls of the clock are then not
    /// the program's.
    pub fn is_inside(&self) -> bool {
        let depth = |accounts: &RefCell<Vec<Account>>| {
            let accounts = accounts.try_borrow().ok()?;
            Some(accounts.iter().any(|account| account.client == self.id && account.depth > 0))
        };
        !self.started.load(Relaxed) || ACCOUNTS.try_with(depth).ok().flatten().unwrap_or(true)
    }

    /// The unreported slice of this thread; `None`: the program did not run.
    pub(super) fn take_slice(&self) -> Option<ComputeSlice> {
        let (owed_ns, mut operators) = self.with_account(|account| {
            let owed_ns = account.owed_ns.take()?;
            Some((owed_ns, std::mem::take(&mut account.operators)))
        })?;
        let mut dictionary = self.dictionary();
        let capture = self.capture.get().filter(|_| !relays());
        let own_ns = capture.map_or(0, |capture| capture.take(&mut dictionary.new, &mut operators));
        // Definitions are sent before the operators of all threads, which refer to them.
        if self.barrier.threaded() {
            // Compute of the other threads is derived from the CPU time of all threads.
            self.barrier.leave_out(own_ns);
        }
        UNSETTLED.set(UNSETTLED.get() || !operators.is_empty());
        Some(ComputeSlice { measured: SimDuration::from_ns(owed_ns.saturating_sub(own_ns)), operators })
    }

    /// Whether the calling thread has run operators by which virtual time has not advanced yet.
    pub(super) fn has_unsettled(&self) -> bool {
        UNSETTLED.get()
            || self.capture().is_some_and(|capture| capture.log().1)
            || self.with_account(|account| !account.operators.is_empty())
    }

    /// Makes the next reading of the CPU clock a system call.
    pub(super) fn is_about_to_block(&self) {
        self.with_account(|account| account.reading = None);
    }

    pub(super) fn ours(&self) -> Ours<'_> {
        self.enter();
        Ours(self)
    }

    fn with_account<T>(&self, f: impl FnOnce(&mut Account) -> T) -> T {
        ACCOUNTS.with_borrow_mut(|accounts| {
            let at = accounts.iter().position(|account| account.client == self.id).unwrap_or_else(|| {
                accounts.push(Account { client: self.id, ..Account::default() });
                accounts.len() - 1
            });
            f(&mut accounts[at])
        })
    }
}

/// Marks the thread as doing work of the client while this lives.
pub(super) struct Ours<'a>(&'a Client);

impl Drop for Ours<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Marks the calling thread as a relay thread, which makes requests for another process.
pub(super) fn begins_to_relay() {
    RELAYS.set(true);
}

/// Whether the calling thread is a relay thread.
pub(super) fn relays() -> bool {
    RELAYS.get()
}

/// Records that virtual time has advanced by all operators that the calling thread has reported.
pub(super) fn has_settled() {
    UNSETTLED.set(false);
}

/// Whether the calling thread's thread-local state has been destroyed.
pub(super) fn is_exiting() -> bool {
    ACCOUNTS.try_with(|_| ()).is_err()
}

pub(in super::super) fn clock_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
