//! Owns the C library's functions of time, as a rank's process sees them: clocks read the rank's clock, sleeps and waits with a time-out
//! spend it. What the rank's clock shows is the engine's business, behind `uniference_client`.
//!
//! In the order in which a call travels: the dynamic linker finds the functions of [`clocks`], [`sleeps`], [`waits`], [`blocks`], [`wakes`], [`alarms`] and
//! [`threads`] before the C library's own, because the zygote is started with the extension in `LD_PRELOAD`; they ask the rank's client, which
//! [`activate`] was given, or go on to the C library's, which `real` finds. They do the latter in the zygote, and before a rank's
//! program starts. Processes that it starts are on the rank's clock as well ([`family`]): their client asks that of the rank.
//!
//! Threads need no call to be counted on: those that the process starts are known from [`threads`], and a thread that waits in a call
//! of the system is woken when virtual time says so (`pauses`). What the program calls them is heard by [`names`], and what it makes that would outlive
//! it by [`leaves`].
//!
//! [`profiler`] has no function of the C library, but the class by which PyTorch's profiler has its times, as these come from the processor and not from a
//! clock.
//!
//! **The interpreter.** A thread that waits for CPython's lock (the GIL) does so with a time-out of the host's, and reads the clock for
//! it (`interpreter` tells such reads and waits from the program's).

// Functions that stand in for the C library's have its signatures, and callers that Rust cannot check.
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

/// That of the process, which it keeps until it ends; of a copy of the process another one.
static CLIENT: AtomicPtr<Client> = AtomicPtr::new(null_mut());

/// The extension was not loaded before the C library.
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
    // SAFETY: the functions may run where the C library calls them: they take no lock that another thread may hold.
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

/// Sleeps in virtual time; how much is left, if a signal has ended it early.
///
/// # Errors
/// If the calling process is a rank's child.
pub fn sleep(client: &Client, span: Span) -> Result<SimDuration, ClientError> {
    waits::sleep(client, span)
}

/// What the rank's client has answered. `None`: the process is a copy of the rank's which has not found that, and on the host's clock. Any other error is the end of the
/// process, as C has no way to hear of it: what went on by the host's clock would be wrong, and nobody would know.
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

/// The client of this process, if it is one that a rank has started, and it was put on the rank's clock before it began ([`family::join`]).
pub fn relative() -> Option<Arc<Client>> {
    let client = std::ptr::from_ref(rank().filter(|client| client.relay().is_some())?);
    // SAFETY: it came out of an `Arc`, which nobody takes back.
    unsafe {
        Arc::increment_strong_count(client);
        Some(Arc::from_raw(client))
    }
}

/// The process's client, if it is a rank, or a process of one.
fn rank() -> Option<&'static Client> {
    // SAFETY: null, or what nobody frees.
    if ACTIVE.load(SeqCst) { unsafe { CLIENT.load(SeqCst).as_ref() } } else { None }
}

/// The same, if it is the program that calls, and not we on its behalf.
fn program() -> Option<&'static Client> {
    rank().filter(|client| !client.is_inside())
}

/// The program may be about to wait for another thread: that one may ask for what this one has done.
fn hand_over() {
    if let Some(client) = program() {
        client.hands_over();
    }
}

/// Whether a clock of the C library is one of those that show the time of day, or that of a rank at all.
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

/// What a clock counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The Unix epoch: 1970-01-01, UTC.
    Date,
    /// The rank's start.
    Elapsed,
    /// The same, but only while the rank computes.
    Computed,
}

/// A moment on the rank's clock as a clock of that kind shows it.
fn shown(ns: u64, kind: Kind) -> timespec {
    let seconds = (ns / NS_PER_S) as i64;
    timespec { tv_sec: if kind == Kind::Date { EPOCH_S + seconds } else { seconds }, tv_nsec: (ns % NS_PER_S) as i64 }
}

/// A moment that a clock of that kind will show, on the rank's clock.
fn moment(time: &timespec, kind: Kind) -> SimTime {
    let seconds = if kind == Kind::Date { time.tv_sec.saturating_sub(EPOCH_S) } else { time.tv_sec };
    SimTime::from_ps(picoseconds(seconds, time.tv_nsec))
}

/// The span of a `timespec`, which is a length of time.
fn span(time: &timespec) -> Span {
    Span::For(SimDuration::from_ps(picoseconds(time.tv_sec, time.tv_nsec)))
}

/// A length of time that the C library takes. What is not is for it to refuse.
fn is_length(time: &timespec) -> bool {
    time.tv_sec >= 0 && is_moment(time)
}

/// A moment that the C library takes; one before its clock's first is over.
fn is_moment(time: &timespec) -> bool {
    (0..NS_PER_S as i64).contains(&time.tv_nsec)
}

/// "Never" where it is too long for virtual time.
fn picoseconds(seconds: i64, nanoseconds: i64) -> u64 {
    let ns = u64::try_from(seconds).unwrap_or(0).saturating_mul(NS_PER_S).saturating_add(nanoseconds.max(0) as u64);
    ns.saturating_mul(PS_PER_NS)
}

/// The same on this machine's clock of that kind: as far from now as `then` is from the rank's last known moment.
fn on_host(client: &Client, then: SimTime, clock: clockid_t) -> timespec {
    let left = then.max(client.last_now()).since(client.last_now());
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec, and the clock is one that there is.
    unsafe { real::clock_gettime()(clock, &mut now) };
    let ns = now.tv_nsec as u64 + left.as_ps() / PS_PER_NS;
    timespec { tv_sec: now.tv_sec.saturating_add((ns / NS_PER_S) as i64), tv_nsec: (ns % NS_PER_S) as i64 }
}

fn errno() -> c_int {
    // SAFETY: the C library's errno of this thread.
    unsafe { *libc::__errno_location() }
}

fn set_errno(code: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = code }
}
