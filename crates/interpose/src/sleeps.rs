//! Owns the functions that sleep and wait for nothing else.

use crate::{NS_PER_S, PS_PER_NS, answered, is_length, kind, moment, on_host, program, rank, real, span};
use libc::{c_int, c_uint, clockid_t, timespec, useconds_t};
use uniference_protocol::messages::Span;
use uniference_sim::time::SimDuration;

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    // SAFETY: what the caller gave.
    match unsafe { time.as_ref() }.filter(|time| is_length(time)).and_then(|time| sleep_for(span(time))) {
        // SAFETY: the caller's, or null.
        Some(rest) => fail_with(unsafe { interrupted(rest, left) }),
        // SAFETY: what the caller gave.
        None => unsafe { real::nanosleep()(time, left) },
    }
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    // SAFETY: what the caller gave.
    let wanted = unsafe { time.as_ref() }.filter(|time| is_length(time)).zip(kind(clock));
    let span = wanted.map(|(time, kind)| match flags & libc::TIMER_ABSTIME {
        0 => span(time),
        _ => Span::Until(moment(time, kind)),
    });
    if let Some(rest) = span.and_then(sleep_for) {
        let left = if flags & libc::TIMER_ABSTIME == 0 { left } else { std::ptr::null_mut() };
        // SAFETY: the caller's, or null.
        return unsafe { interrupted(rest, left) };
    }
    match (rank(), span) {
        // We sleep, on the host, until a moment that a virtual clock was read for.
        (Some(client), Some(Span::Until(then))) => {
            let until = on_host(client, then, libc::CLOCK_MONOTONIC);
            // SAFETY: what the caller gave.
            unsafe { real::clock_nanosleep()(libc::CLOCK_MONOTONIC, flags, &until, left) }
        }
        // SAFETY: what the caller gave.
        _ => unsafe { real::clock_nanosleep()(clock, flags, time, left) },
    }
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usleep(time: useconds_t) -> c_int {
    match sleep_for(Span::For(SimDuration::from_us(u64::from(time)))) {
        // SAFETY: null.
        Some(rest) => fail_with(unsafe { interrupted(rest, std::ptr::null_mut()) }),
        // SAFETY: a number.
        None => unsafe { real::usleep()(time) },
    }
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sleep(time: c_uint) -> c_uint {
    match sleep_for(span(&timespec { tv_sec: i64::from(time), tv_nsec: 0 })) {
        Some(rest) => rest.as_ps().div_ceil(PS_PER_NS * NS_PER_S) as c_uint,
        // SAFETY: a number.
        None => unsafe { real::sleep()(time) },
    }
}

/// As in the C library. A thread that waits in a loop for what another one writes to memory says by this that it has nothing to do until then.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sched_yield() -> c_int {
    match program().and_then(|client| answered(client.yields())) {
        Some(true) => 0,
        // SAFETY: it takes nothing.
        _ => unsafe { real::sched_yield()() },
    }
}

/// How much is left, if a signal has ended the sleep early. `None`: the caller is not a rank's program.
fn sleep_for(span: Span) -> Option<SimDuration> {
    answered(crate::waits::sleep(program()?, span))
}

/// The error of a sleep that has so much left, if any, which is told to the caller.
///
/// # Safety
/// `left` is null, or the caller's.
unsafe fn interrupted(rest: SimDuration, left: *mut timespec) -> c_int {
    if rest == SimDuration::ZERO {
        return 0;
    }
    let ns = rest.as_ps() / PS_PER_NS;
    // SAFETY: as above.
    if let Some(left) = unsafe { left.as_mut() } {
        *left = timespec { tv_sec: (ns / NS_PER_S) as i64, tv_nsec: (ns % NS_PER_S) as i64 };
    }
    libc::EINTR
}

/// As functions do that have their error in `errno`.
fn fail_with(error: c_int) -> c_int {
    if error == 0 {
        return 0;
    }
    crate::set_errno(error);
    -1
}
