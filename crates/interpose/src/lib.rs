//! Owns the C library's time functions in a rank's process: clock functions read the rank's clock, and sleeps and waits
//! with a timeout advance it. The engine computes the rank's clock, behind `uniference_client`.
//!
//! In the order of a call: the dynamic linker finds the functions of [`clocks`], [`sleeps`], [`waits`], [`blocks`],
//! [`wakes`], [`alarms`] and [`threads`] before the C library's own, because the zygote is started with the extension
//! in `LD_PRELOAD`. These functions call the rank's client, which [`activate`] has set. In the zygote, and before a
//! rank's program starts, they call the C library's functions, which `real` finds. Processes that the program starts
//! are on the rank's clock as well ([`family`]): their client sends requests to the rank's client.
//!
//! Threads are known without a call: [`threads`] sees their start, and a thread that waits in a system call is woken at
//! the right virtual time (`pauses`). [`names`] reads the names that the program gives to threads, and [`leaves`]
//! records resources that would outlive the program.
//!
//! [`profiler`] replaces no function of the C library, but the class from which PyTorch's profiler gets its times,
//! because these come from the CPU's cycle counter and not from a clock.
//!
//! **The interpreter.** A thread that waits for CPython's lock (the GIL) waits with a timeout in real time, for which
//! it reads the clock (`interpreter` distinguishes such reads and waits from the program's).

// Functions that replace the C library's have its signatures, and callers that Rust cannot check.
#![allow(unsafe_code)]

pub mod alarms;
pub mod blocks;
pub mod clocks;
pub mod family;
mod interpreter;
pub mod leaves;
pub mod names;
mod pauses;
pub mod profiler;
mod real;
pub mod sleeps;
mod stack;
pub mod threads;
pub mod waits;
pub mod wakes;

use libc::{c_int, clockid_t, timespec};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::SeqCst};
use uniference_client::{Client, ClientError};
use uniference_protocol::messages::Span;
use uniference_sim::time::{SimDuration, SimTime};

/// The date of virtual time zero, in Unix seconds: 2026-01-01 00:00:00 UTC, the same in every run.
pub const EPOCH_S: i64 = 1_767_225_600;

const NS_PER_S: u64 = 1_000_000_000;
const PS_PER_NS: u64 = 1_000;

static ACTIVE: AtomicBool = AtomicBool::new(false);

/// The client of this process, which is kept until the process ends; a forked child has another one.
static CLIENT: AtomicPtr<Client> = AtomicPtr::new(null_mut());

/// The error of an extension that was not loaded before the C library.
#[derive(Debug, thiserror::Error)]
#[error(
    "the clocks of the C library cannot be replaced: this library was not preloaded\nhint: start ranks with `uniference run`"
)]
pub struct NotPreloaded;

/// Puts this process on the rank's clock.
///
/// # Errors
/// If the C library's functions are not replaced.
pub fn activate(client: Arc<Client>) -> Result<(), NotPreloaded> {
    prepare_process()?;
    CLIENT.store(Arc::into_raw(client).cast_mut(), SeqCst);
    ACTIVE.store(true, SeqCst);
    Ok(())
}

fn prepare_process() -> Result<(), NotPreloaded> {
    if !clocks::is_preloaded() {
        return Err(NotPreloaded);
    }
    interpreter::find();
    pauses::prepare_signal();
    let (prepare, parent, child) = (family::prepare_fork, family::forked_parent, family::forked_child);
    // SAFETY: the functions may run at the C library's fork hooks: they use no lock that another thread may hold.
    unsafe {
        libc::pthread_atfork(None, None, Some(alarms::forked_child));
        libc::pthread_atfork(Some(prepare), Some(parent), Some(child));
    }
    Ok(())
}

/// Puts this process, which a rank has started, on the rank's clock.
fn become_client(client: Client) {
    CLIENT.store(Arc::into_raw(Arc::new(client)).cast_mut(), SeqCst);
    ACTIVE.store(true, SeqCst);
}

/// Whether the calling thread, which has called a C library function, holds the interpreter's lock or may wait for the
/// lock.
pub fn may_ask_interpreter() -> bool {
    interpreter::may_ask()
}

/// Sleeps in virtual time; returns the remaining time if a signal has ended the sleep early.
///
/// # Errors
/// If the calling process is a forked child of a rank.
pub fn sleep(client: &Client, span: Span) -> Result<SimDuration, ClientError> {
    waits::sleep(client, span)
}

/// The answer of the rank's client. `None`: the process is a forked child without a client, and uses this machine's
/// clock. Any other error ends the process, because C callers cannot receive it, and continuing on this machine's clock
/// would give wrong results unnoticed.
fn answered<T>(answer: Result<T, ClientError>) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(ClientError::Forked { .. }) => None,
        Err(error) => error.end(),
    }
}

fn deactivate() {
    ACTIVE.store(false, SeqCst);
}

/// The client of this process, if a rank has started the process, and it was put on the rank's clock before its start
/// ([`family::join`]).
pub fn relative() -> Option<Arc<Client>> {
    let client = std::ptr::from_ref(rank().filter(|client| client.relay().is_some())?);
    // SAFETY: the pointer comes from an `Arc` that is never released.
    unsafe {
        Arc::increment_strong_count(client);
        Some(Arc::from_raw(client))
    }
}

/// The process's client, if it is a rank's process or a descendant of one.
fn rank() -> Option<&'static Client> {
    // SAFETY: null, or a client that is never freed.
    if ACTIVE.load(SeqCst) { unsafe { CLIENT.load(SeqCst).as_ref() } } else { None }
}

/// The process's client, unless Uniference's own code is the caller.
fn program() -> Option<&'static Client> {
    rank().filter(|client| !client.is_inside())
}

/// Sends launches of this thread before the program may wait for another thread, which may query the driver about these
/// launches.
fn hand_over() {
    if let Some(client) = program() {
        client.hands_over();
    }
}

/// The kind of a C library clock; `None`: the clock does not follow the rank's clock.
fn kind(clock: clockid_t) -> Option<Kind> {
    match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE | libc::CLOCK_TAI => Some(Kind::Date),
        libc::CLOCK_MONOTONIC | libc::CLOCK_MONOTONIC_RAW | libc::CLOCK_MONOTONIC_COARSE | libc::CLOCK_BOOTTIME => {
            Some(Kind::Elapsed)
        }
        libc::CLOCK_PROCESS_CPUTIME_ID | libc::CLOCK_THREAD_CPUTIME_ID => Some(Kind::Computed),
        _ => None,
    }
}

/// The origin of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The Unix epoch: 1970-01-01, UTC.
    Date,
    /// The rank's start.
    Elapsed,
    /// The rank's start, for clocks of CPU time, which advance only during compute.
    Computed,
}

/// A time of the rank's clock as shown by a clock of that kind.
fn shown(ns: u64, kind: Kind) -> timespec {
    let seconds = (ns / NS_PER_S) as i64;
    timespec { tv_sec: if kind == Kind::Date { EPOCH_S + seconds } else { seconds }, tv_nsec: (ns % NS_PER_S) as i64 }
}

/// The time of the rank's clock at which a clock of that kind shows `time`.
fn moment(time: &timespec, kind: Kind) -> SimTime {
    let seconds = if kind == Kind::Date { time.tv_sec.saturating_sub(EPOCH_S) } else { time.tv_sec };
    SimTime::from_ps(picoseconds(seconds, time.tv_nsec))
}

/// The duration of a `timespec`.
fn span(time: &timespec) -> Span {
    Span::For(SimDuration::from_ps(picoseconds(time.tv_sec, time.tv_nsec)))
}

/// Whether the C library accepts `time` as a duration. It refuses other values itself.
fn is_length(time: &timespec) -> bool {
    time.tv_sec >= 0 && is_moment(time)
}

/// Whether the C library accepts `time` as a point in time; a time before the clock's origin has passed.
fn is_moment(time: &timespec) -> bool {
    (0..NS_PER_S as i64).contains(&time.tv_nsec)
}

/// Time in picoseconds, saturating at the end of virtual time.
fn picoseconds(seconds: i64, nanoseconds: i64) -> u64 {
    let ns = u64::try_from(seconds).unwrap_or(0).saturating_mul(NS_PER_S).saturating_add(nanoseconds.max(0) as u64);
    ns.saturating_mul(PS_PER_NS)
}

/// The time on this machine's clock of that kind which is as far from now as `then` is from the rank's last known time.
fn on_host(client: &Client, then: SimTime, clock: clockid_t) -> timespec {
    let left = then.max(client.last_now()).since(client.last_now());
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec, and the clock exists.
    unsafe { real::clock_gettime()(clock, &mut now) };
    let ns = now.tv_nsec as u64 + left.as_ps() / PS_PER_NS;
    timespec { tv_sec: now.tv_sec.saturating_add((ns / NS_PER_S) as i64), tv_nsec: (ns % NS_PER_S) as i64 }
}

fn errno() -> c_int {
    // SAFETY: the pointer is to a variable of this thread, which lives as long as the thread.
    unsafe { *libc::__errno_location() }
}

fn set_errno(code: c_int) {
    // SAFETY: the pointer is to a variable of this thread, which lives as long as the thread.
    unsafe { *libc::__errno_location() = code }
}
