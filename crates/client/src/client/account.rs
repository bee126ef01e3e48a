//! Owns what a rank's program is charged: the processor's time that it uses between our calls.
//!
//! Who is told of it, and when, is `client`'s business.
//!
//! **What is charged.** Between `leave` and the next outermost `enter` the program computes, and the process's CPU time that passed
//! is charged to the task that enters, host waits are not. Threads of libraries' pools compute side by side, on as many cores as the
//! rank's device has (`lanes`); one, unless the cluster file says more. Threads of Python take turns at the
//! interpreter's lock, so each is charged all that the process has used since it left, or since the process began to run if that is later:
//! what another thread computed meanwhile has kept it waiting. What any of them used for our work is left out.
//!
//! What it is charged is said in *slices*, with the operators that it ran meanwhile, if these are captured. There is a slice wherever the program ran
//! between two calls, also where it took no time: so two runs of one program have the same slices, however long each took. What the capture takes
//! of the processor is left out, too.
//!
//! The CPU clock is a system call, and a blocking call enters and leaves twice. So within some microseconds of one reading the next is
//! taken from the monotonic clock, which is none: the thread has run all the time, as it has not blocked in a call of ours.

use super::{Client, Compute};
use crate::lanes::Used;
use rustix::time::{ClockId, clock_gettime};
use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::Relaxed;
use uniference_protocol::messages::Slice;
use uniference_sim::time::SimDuration;

/// For so long after a reading of the CPU clock the monotonic clock tells how it has gone on. A thread that the host takes off its
/// processor just then is charged wrongly by no more than this.
const TRUSTED_NS: u64 = 50_000;

/// What a thread has computed, and how deep it is in our work.
#[derive(Default)]
struct Account {
    client: u64,
    depth: u32,
    /// What the program has computed and was not told yet; `None`: it did not run.
    owed_ns: Option<u64>,
    /// Operators that were handed over ([`Client::ran`]) and not told yet.
    operators: Vec<u8>,
    /// The thread's own CPU time at the outermost `enter`, of several.
    entered_ns: u64,
    /// What `Rounds::computed` said at the outermost `leave`, of several.
    left_ns: u64,
    /// What threads of pools had used then.
    left_lanes: Used,
    /// The last reading of the process's CPU clock, and of the monotonic one, if the thread has not blocked since.
    reading: Option<(u64, u64)>,
}

impl Account {
    /// The process's CPU time, in nanoseconds, where this thread is `alone` in it.
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
    /// True if the calling thread has reported operators since its last question to the driver: the time of these
    /// operators has not passed.
    static UNSETTLED: Cell<bool> = const { Cell::new(false) };
    /// The calling thread asks in the name of another process's, whose operators are not this process's to write down.
    static RELAYS: Cell<bool> = const { Cell::new(false) };
    static ACCOUNTS: RefCell<Vec<Account>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread's are there.
pub(super) fn make() {
    ACCOUNTS.with(|_| ());
}

impl Client {
    /// From here to the matching `leave` this thread does our work. Nests.
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

    /// For how long the program has computed on this thread since the thread left, which now enters.
    fn computed(&self, account: &mut Account) -> u64 {
        if self.rounds.threaded() {
            let computed = self.rounds.computed_since(account.left_ns, &account.left_lanes);
            account.entered_ns = clock_ns(ClockId::ThreadCPUTime);
            return computed;
        }
        let now = account.process_cpu(self.is_alone());
        now.saturating_sub(self.charged.fetch_max(now, Relaxed))
    }

    /// The program goes on.
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

    /// Leaves out of the account what this thread used since it entered (alone in the process: all that was used since).
    fn skip_own_work(&self, account: &mut Account) {
        if self.rounds.threaded() {
            if account.entered_ns > 0 {
                self.rounds.leave_out(clock_ns(ClockId::ThreadCPUTime).saturating_sub(account.entered_ns));
            }
            account.left_lanes = self.rounds.lanes.used();
            account.left_ns = self.rounds.computed();
        } else {
            self.charged.store(account.process_cpu(self.is_alone()), Relaxed);
        }
    }

    /// Process CPU time up to which compute has been charged, while the process has one thread.
    pub(in super::super) fn charged(&self) -> u64 {
        self.charged.load(Relaxed)
    }

    /// Whether the process has one thread only.
    pub(super) fn is_alone(&self) -> bool {
        self.tasks.load(Relaxed) == 1 && !self.rounds.threaded()
    }

    fn measures(&self) -> bool {
        self.compute == Compute::Measured && self.started.load(Relaxed)
    }

    /// Whether the program's slices are said.
    fn counts(&self) -> bool {
        self.compute != Compute::None && self.started.load(Relaxed)
    }

    /// Tells who captures operators that this thread begins or ends our work.
    pub(super) fn say_inside(&self, inside: bool) {
        if let Some(capture) = self.capture.get() {
            capture.inside(inside);
        }
    }

    /// Whether the calling thread is between `enter` and `leave`.
    pub(super) fn is_at_own_work(&self) -> bool {
        self.with_account(|account| account.depth > 0)
    }

    /// The program has run these operators on the calling thread, for which there is no [`Capture`](crate::Capture): `dictionary` is what they
    /// are the first of the rank's operators to name.
    pub fn ran(&self, dictionary: &[u8], operators: &[u8]) {
        if self.compute != Compute::None {
            self.dictionary().new.extend_from_slice(dictionary);
            self.with_account(|account| account.operators.extend_from_slice(operators));
        }
    }

    /// Whether the calling thread is between `enter` and `leave`, or is about to end: then the program sees no call of the clock.
    pub fn is_inside(&self) -> bool {
        let depth = |accounts: &RefCell<Vec<Account>>| {
            let accounts = accounts.try_borrow().ok()?;
            Some(accounts.iter().any(|account| account.client == self.id && account.depth > 0))
        };
        !self.started.load(Relaxed) || ACCOUNTS.try_with(depth).ok().flatten().unwrap_or(true)
    }

    /// What the program has done on this thread and was not told yet; `None`: it did not run.
    pub(super) fn take_slice(&self) -> Option<Slice> {
        let (owed_ns, mut operators) = self.with_account(|account| {
            let owed_ns = account.owed_ns.take()?;
            Some((owed_ns, std::mem::take(&mut account.operators)))
        })?;
        let mut dictionary = self.dictionary();
        let capture = self.capture.get().filter(|_| !relays());
        let own_ns = capture.map_or(0, |capture| capture.take(&mut dictionary.new, &mut operators));
        // The dictionary goes ahead of what any thread did.
        if self.rounds.threaded() {
            // The other threads' compute goes by the processor time of all.
            self.rounds.leave_out(own_ns);
        }
        UNSETTLED.set(UNSETTLED.get() || !operators.is_empty());
        Some(Slice { measured: SimDuration::from_ns(owed_ns.saturating_sub(own_ns)), operators })
    }

    /// Whether the calling thread has run operators whose time has not passed.
    pub(super) fn has_unsettled(&self) -> bool {
        UNSETTLED.get()
            || self.capture().is_some_and(|capture| capture.log().1)
            || self.with_account(|account| !account.operators.is_empty())
    }

    /// The next reading of the CPU clock must be one.
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

/// While it lives, the thread does our work.
pub(super) struct Ours<'a>(&'a Client);

impl Drop for Ours<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// From here on the calling thread asks in the name of another process's.
pub(super) fn begins_to_relay() {
    RELAYS.set(true);
}

/// Whether it does.
pub(super) fn relays() -> bool {
    RELAYS.get()
}

/// Records that the time of all operators that the calling thread has reported has passed.
pub(super) fn has_settled() {
    UNSETTLED.set(false);
}

/// Whether what the calling thread has of its own is gone.
pub(super) fn is_exiting() -> bool {
    ACCOUNTS.try_with(|_| ()).is_err()
}

pub(in super::super) fn clock_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
