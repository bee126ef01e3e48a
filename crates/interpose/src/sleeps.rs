//! Owns the functions that only sleep.

use crate::{NS_PER_S, PS_PER_NS, answered, is_length, kind, moment, on_host, program, rank, real, span};
use libc::{c_int, c_uint, clockid_t, timespec, useconds_t};
use uniference_protocol::messages::Span;
use uniference_sim::time::SimDuration;

/// Replaces the C library's `nanosleep`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    // SAFETY: the replaced function requires that `time` is null or points to a value during the call.
    match unsafe { time.as_ref() }.filter(|time| is_length(time)).and_then(|time| sleep_for(span(time))) {
        // SAFETY: `nanosleep` requires that `left` is null or points to a `timespec`.
        Some(rest) => fail_with(unsafe { interrupted(rest, left) }),
        // SAFETY: `nanosleep` gets the arguments that its replacement got, under the same contract.
        None => unsafe { real::nanosleep()(time, left) },
    }
}

/// Replaces the C library's `clock_nanosleep`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    // SAFETY: the replaced function requires that `time` is null or points to a value during the call.
    let wanted = unsafe { time.as_ref() }.filter(|time| is_length(time)).zip(kind(clock));
    let span = wanted.map(|(time, kind)| match flags & libc::TIMER_ABSTIME {
        0 => span(time),
        _ => Span::Until(moment(time, kind)),
    });
    if let Some(rest) = span.and_then(sleep_for) {
        let left = if flags & libc::TIMER_ABSTIME == 0 { left } else { std::ptr::null_mut() };
        // SAFETY: `clock_nanosleep` requires that `left` is null or points to a `timespec`.
        return unsafe { interrupted(rest, left) };
    }
    match (rank(), span) {
        // Uniference's own code sleeps in real time for as long as the virtual clock is away from the requested time.
        (Some(client), Some(Span::Until(then))) => {
            let until = on_host(client, then, libc::CLOCK_MONOTONIC);
            // SAFETY: `until` lives during the call; the other arguments are those of the replacement, under the same
            // contract.
            unsafe { real::clock_nanosleep()(libc::CLOCK_MONOTONIC, flags, &until, left) }
        }
        // SAFETY: `clock_nanosleep` gets the arguments that its replacement got, under the same contract.
        _ => unsafe { real::clock_nanosleep()(clock, flags, time, left) },
    }
}

/// Replaces the C library's `usleep`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usleep(time: useconds_t) -> c_int {
    match sleep_for(Span::For(SimDuration::from_us(u64::from(time)))) {
        // SAFETY: `interrupted` accepts a null pointer.
        Some(rest) => fail_with(unsafe { interrupted(rest, std::ptr::null_mut()) }),
        // SAFETY: `usleep` accepts any number.
        None => unsafe { real::usleep()(time) },
    }
}

/// Replaces the C library's `sleep`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sleep(time: c_uint) -> c_uint {
    match sleep_for(span(&timespec { tv_sec: i64::from(time), tv_nsec: 0 })) {
        Some(rest) => rest.as_ps().div_ceil(PS_PER_NS * NS_PER_S) as c_uint,
        // SAFETY: `sleep` accepts any number.
        None => unsafe { real::sleep()(time) },
    }
}

/// Replaces the C library's `sched_yield`. A thread that polls memory written by another thread declares by this call
/// that it has no work until then.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sched_yield() -> c_int {
    match program().and_then(|client| answered(client.yields())) {
        Some(true) => 0,
        // SAFETY: `sched_yield` has no arguments and accesses no memory of the process.
        _ => unsafe { real::sched_yield()() },
    }
}

/// Sleeps; returns the remaining time if a signal has ended the sleep early. `None`: the caller is not a rank's
/// program.
fn sleep_for(span: Span) -> Option<SimDuration> {
    answered(crate::waits::sleep(program()?, span))
}

/// Stores the remaining time of a sleep in `left`, and returns the sleep's error: `EINTR` if time remains.
///
/// # Safety
/// `left` is null or points to a `timespec`.
unsafe fn interrupted(rest: SimDuration, left: *mut timespec) -> c_int {
    if rest == SimDuration::ZERO {
        return 0;
    }
    let ns = rest.as_ps() / PS_PER_NS;
    // SAFETY: `left` is null or points to a `timespec`.
    if let Some(left) = unsafe { left.as_mut() } {
        *left = timespec { tv_sec: (ns / NS_PER_S) as i64, tv_nsec: (ns % NS_PER_S) as i64 };
    }
    libc::EINTR
}

/// Reports an error through `errno`.
fn fail_with(error: c_int) -> c_int {
    if error == 0 {
        return 0;
    }
    crate::set_errno(error);
    -1
}
