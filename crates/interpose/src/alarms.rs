//! Owns the alarm of a rank's process (`alarm`, `setitimer` with `ITIMER_REAL`), which expires in virtual time.
//!
//! `ITIMER_VIRTUAL` and `ITIMER_PROF` count CPU time and are left to the C library, as is `timerfd`.
//!
//! A thread of this library waits for the alarm, like a program's thread that waits with a timeout, so virtual time
//! does not skip the alarm. The thread then sends SIGALRM to the process. It is started with the first alarm and never
//! ends.

use crate::pauses::{pause, this_thread, unblock};
use crate::waits::INTERRUPTED;
use crate::{PS_PER_NS, answered, program, rank, real};
use libc::{c_int, c_long, c_uint, c_void, itimerval, suseconds_t, timeval};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};
use uniference_client::Client;
use uniference_client::thread_barrier::Kick;
use uniference_protocol::messages::Span;
use uniference_sim::time::{SimDuration, SimTime};

/// Time of the alarm, and its interval if it repeats.
#[derive(Clone, Copy)]
struct Setting {
    at: SimTime,
    every: Option<SimDuration>,
}

static SETTING: Mutex<Option<Setting>> = Mutex::new(None);

/// Number of times that the alarm was set; the alarm's thread sleeps on this futex.
static SETTINGS: AtomicU32 = AtomicU32::new(0);

const PS_PER_US: u64 = 1000 * PS_PER_NS;
const US_PER_S: u64 = 1_000_000;

/// Replaces the C library's `alarm`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn alarm(seconds: c_uint) -> c_uint {
    let Some(client) = program() else {
        // SAFETY: `alarm` accepts any number.
        return unsafe { real::alarm()(seconds) };
    };
    let (left, _) = set(client, SimDuration::from_ps(crate::picoseconds(i64::from(seconds), 0)), SimDuration::ZERO);
    let us = left.as_ps() / PS_PER_US;
    // As in the kernel, a pending alarm never has 0 seconds left.
    ((us + US_PER_S / 2) / US_PER_S).max(u64::from(us > 0)) as c_uint
}

/// Replaces the C library's `setitimer`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setitimer(which: c_int, new: *const itimerval, old: *mut itimerval) -> c_int {
    // SAFETY: the replaced function requires that `new` is null or points to a value during the call.
    let Some((client, new)) = program().filter(|_| which == libc::ITIMER_REAL).zip(unsafe { new.as_ref() }) else {
        // SAFETY: `setitimer` gets the arguments that its replacement got, under the same contract.
        return unsafe { real::setitimer()(which, new, old) };
    };
    let (Some(value), Some(interval)) = (duration(new.it_value), duration(new.it_interval)) else {
        crate::set_errno(libc::EINVAL);
        return -1;
    };
    let before = set(client, value, interval);
    // SAFETY: `setitimer` requires that `old` is null or points to an `itimerval` during the call.
    unsafe { show(before, old) };
    0
}

/// Replaces the C library's `getitimer`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getitimer(which: c_int, current: *mut itimerval) -> c_int {
    let Some(client) = program().filter(|_| which == libc::ITIMER_REAL) else {
        // SAFETY: `getitimer` gets the arguments that its replacement got, under the same contract.
        return unsafe { real::getitimer()(which, current) };
    };
    // SAFETY: `getitimer` requires that `current` is null or points to an `itimerval` during the call.
    unsafe { show(left(now(client), *setting()), current) };
    0
}

/// Sets the alarm, or clears it if `value` is 0; returns the remaining time and the interval of the previous alarm.
fn set(client: &'static Client, value: SimDuration, interval: SimDuration) -> (SimDuration, SimDuration) {
    let now = now(client);
    let new = (value > SimDuration::ZERO)
        .then(|| Setting { at: now.saturating_add(value), every: (interval > SimDuration::ZERO).then_some(interval) });
    if new.is_some() && !INTERRUPTED.swap(true, SeqCst) {
        start();
    }
    let before = std::mem::replace(&mut *setting(), new);
    SETTINGS.fetch_add(1, SeqCst);
    // SAFETY: the futex is a static variable.
    unsafe { futex(libc::FUTEX_WAKE, 1) };
    left(now, before)
}

/// Clears the alarm in a forked child; called by the C library.
pub(crate) extern "C" fn forked_child() {
    INTERRUPTED.store(false, SeqCst);
    // A forked child has a single thread. If a thread of the parent held the lock during the fork, the lock stays
    // locked in the child: the setting is then not cleared, but is not used either.
    if let Ok(mut setting) = SETTING.try_lock() {
        *setting = None;
    }
}

fn left(now: SimTime, setting: Option<Setting>) -> (SimDuration, SimDuration) {
    setting.map_or((SimDuration::ZERO, SimDuration::ZERO), |setting| {
        (setting.at.max(now).since(now), setting.every.unwrap_or(SimDuration::ZERO))
    })
}

fn now(client: &Client) -> SimTime {
    // In a forked child, which is no rank, no caller uses the result.
    answered(client.now()).map_or(SimTime::ZERO, |(now, _)| now)
}

fn setting() -> MutexGuard<'static, Option<Setting>> {
    SETTING.lock().expect("no holder of this lock panics")
}

fn start() {
    let mut thread = std::mem::MaybeUninit::uninit();
    // SAFETY: the thread needs no argument, and is not joined.
    unsafe {
        let result = crate::threads::pthread_create(thread.as_mut_ptr(), null(), run, null_mut());
        assert!(result == 0, "the thread that waits for alarms could not be started: error {result}");
        libc::pthread_detach(thread.assume_init());
    }
}

extern "C-unwind" fn run(_: *mut c_void) -> *mut c_void {
    let client = rank().expect("a rank has started it");
    take_no_signals();
    loop {
        let seen = SETTINGS.load(SeqCst);
        let span = setting().map_or(Span::For(SimDuration::MAX), |setting| Span::Until(setting.at));
        // SAFETY: the futex is a static variable.
        let asleep = || unsafe { futex(libc::FUTEX_WAIT, seen) };
        match answered(pause(client, span, Kick::Signal(this_thread()), asleep)) {
            Some((_, true)) => go_off(seen),
            Some((_, false)) => {}
            None => return null_mut(),
        }
    }
}

/// Sends SIGALRM, unless the alarm was set again in the meantime.
fn go_off(seen: u32) {
    let mut setting = setting();
    if SETTINGS.load(SeqCst) != seen {
        return;
    }
    *setting =
        setting.and_then(|Setting { at, every }| every.map(|span| Setting { at: at.saturating_add(span), every }));
    // SAFETY: `kill` accepts any numbers, and reads no memory.
    unsafe { libc::kill(libc::getpid(), libc::SIGALRM) };
}

/// Blocks all signals in the thread, which are the program's, except the one that ends waits.
fn take_no_signals() {
    // SAFETY: the set is filled by the call that it is given to.
    unsafe {
        let mut all = std::mem::MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), null_mut());
    }
    unblock();
}

/// # Safety
/// `SETTINGS` must outlive the call.
unsafe fn futex(operation: c_int, value: u32) -> c_long {
    let (address, operation) = (SETTINGS.as_ptr() as c_long, c_long::from(operation | libc::FUTEX_PRIVATE_FLAG));
    // SAFETY: the caller guarantees that the futex is valid; there is no timeout.
    unsafe { real::syscall()(libc::SYS_futex, address, operation, c_long::from(value), 0, 0, 0) }
}

fn duration(time: timeval) -> Option<SimDuration> {
    let valid = time.tv_sec >= 0 && (0..US_PER_S as suseconds_t).contains(&time.tv_usec);
    valid.then(|| SimDuration::from_ps(crate::picoseconds(time.tv_sec, time.tv_usec * 1000)))
}

/// # Safety
/// `into` is null or points to an `itimerval`.
unsafe fn show((left, interval): (SimDuration, SimDuration), into: *mut itimerval) {
    let time = |span: SimDuration| {
        let us = span.as_ps().div_ceil(PS_PER_US);
        timeval { tv_sec: (us / US_PER_S) as i64, tv_usec: (us % US_PER_S) as suseconds_t }
    };
    // SAFETY: `into` is null or points to an `itimerval`.
    if let Some(into) = unsafe { into.as_mut() } {
        *into = itimerval { it_value: time(left), it_interval: time(interval) };
    }
}
