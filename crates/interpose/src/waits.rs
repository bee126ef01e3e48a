//! Owns the functions that wait with a timeout.
//!
//! A thread that is alone in its process cannot be woken by another one: it checks its condition, and otherwise sleeps
//! in virtual time. In a process with several threads, a thread really waits, without a timeout, and the watch wakes
//! the thread at the right virtual time. The same applies if the process has started other processes or was started by
//! a rank, because another process may fulfil the condition.

use crate::pauses::{pause, restore, signal, this_thread, unblock};
use crate::wakes::settle_for_call;
use crate::{
    Kind, answered, errno, hand_over, interpreter, is_length, is_moment, kind, moment, on_host, program, rank, real,
    set_errno, span,
};
use libc::{
    c_int, c_long, clockid_t, epoll_event, fd_set, nfds_t, pollfd, pthread_cond_t, pthread_mutex_t, sem_t, siginfo_t,
    sigset_t, timespec, timeval,
};
use std::cell::Cell;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use uniference_client::thread_barrier::Kick;
use uniference_client::{Client, ClientError};
use uniference_protocol::messages::Span;
use uniference_sim::time::{SimDuration, SimTime};

/// Duration of a wait in real time.
#[derive(Clone, Copy, PartialEq)]
enum Host {
    Not,
    Forever,
}

/// Number of consecutive calls in which a thread may find descriptors ready immediately before it counts as polling:
/// another thread may have to read the data, or to release a lock first, and wait for virtual time to pass.
const MOST_FOUND_AT_ONCE: u32 = 1000;

thread_local! {
    static FOUND_AT_ONCE: Cell<u32> = const { Cell::new(0) };
}

/// Waits in virtual time. `attempt` waits in real time, and returns the C library's result, with errno; `is_over` tells
/// whether a result means that the timeout has passed.
fn wait(client: &Client, span: Span, is_over: impl Fn(c_int) -> bool, attempt: impl Fn(Host) -> c_int) -> c_int {
    // Whether a wait is necessary may depend on this machine's timing.
    client.hands_over();
    let first = attempt(Host::Not);
    let found = if first > 0 { FOUND_AT_ONCE.get() + 1 } else { 0 };
    FOUND_AT_ONCE.set(found % MOST_FOUND_AT_ONCE);
    if found == MOST_FOUND_AT_ONCE {
        answered(client.yields());
    }
    if !is_over(first) || span.from(client.last_now()) == SimDuration::ZERO {
        return first;
    }
    if !client.has_threads() {
        answered(client.sleep(span));
        return attempt(Host::Not);
    }
    let asleep = || {
        let result = attempt(Host::Forever);
        (result, errno())
    };
    let mask = unblock();
    let paused = pause(client, span, Kick::Signal(this_thread()), asleep);
    restore(&mask);
    match answered(paused) {
        // An event that arrived just at the timeout must not be lost: a semaphore was decremented, and some events are
        // reported once.
        Some(((result, code), over)) if !over || result >= 0 && !is_over(result) => {
            set_errno(code);
            result
        }
        _ => attempt(Host::Not),
    }
}

/// Whether the program has ever set an alarm, which may interrupt its sleeps.
pub(crate) static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Sleeps; returns the remaining time if a signal has ended the sleep early. Without alarms, only the program itself
/// sends signals.
pub(crate) fn sleep(client: &Client, span: Span) -> Result<SimDuration, ClientError> {
    if !INTERRUPTED.load(SeqCst) {
        return client.sleep(span).map(|()| SimDuration::ZERO);
    }
    let until = match span {
        Span::Until(then) => then,
        Span::For(span) => client.now()?.0.saturating_add(span),
    };
    let attempt = |host| match host {
        // SAFETY: a list of 0 descriptors may be null.
        Host::Forever => unsafe { real::poll()(null_mut(), 0, -1) },
        _ => 0,
    };
    wait(client, Span::Until(until), |result| result == 0, attempt);
    Ok(Span::Until(until).from(client.last_now()))
}

// Descriptors

/// Replaces the C library's `poll`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: `poll` gets the list of its replacement, under the same contract, and accepts any timeout.
    let real = |timeout| unsafe { real::poll()(fds, count, timeout) };
    match program().filter(|_| timeout > 0) {
        Some(client) => wait(client, milliseconds(timeout), |ready| ready == 0, |host| real(host.milliseconds())),
        None => {
            if timeout < 0 {
                hand_over();
            }
            real(timeout)
        }
    }
}

/// Replaces the C library's `__poll_chk`, which programs call that were compiled with checks.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, _size: usize) -> c_int {
    // SAFETY: `__poll_chk` has the contract of `poll`.
    unsafe { poll(fds, count, timeout) }
}

/// Replaces the C library's `ppoll`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: `ppoll` gets the list of its replacement; callers of the closure pass pointers that are null or live
    // during the call.
    let real = |timeout, mask| unsafe { real::ppoll()(fds, count, timeout, mask) };
    // SAFETY: `ppoll` requires that `timeout` is null or points to a `timespec` during the call.
    let time = unsafe { timeout.as_ref() };
    match program().zip(time.filter(|time| is_length(time))) {
        Some((client, time)) => {
            // SAFETY: `ppoll` requires that `mask` is null or points to a set during the call.
            let mask = unsafe { without_signal(mask) };
            let attempt = |host: Host| host.with_timespec(|timeout| real(timeout, pointer(&mask)));
            wait(client, span(time), |ready| ready == 0, attempt)
        }
        None => {
            if time.is_none() {
                hand_over();
            }
            real(timeout, mask)
        }
    }
}

/// Replaces the C library's `epoll_wait`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
    // SAFETY: the contract of `epoll_wait` is that of `epoll_pwait` without a mask.
    unsafe { epoll_pwait(epoll, events, most, timeout, null()) }
}

/// Replaces the C library's `epoll_pwait`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: `epoll_pwait` gets the list of its replacement; callers of the closure pass a mask that is null or lives
    // during the call.
    let real = |timeout, mask| unsafe { real::epoll_pwait()(epoll, events, most, timeout, mask) };
    match program().filter(|_| timeout > 0) {
        Some(client) => {
            // SAFETY: `epoll_pwait` requires that `mask` is null or points to a set during the call.
            let mask = unsafe { without_signal(mask) };
            let attempt = |host: Host| real(host.milliseconds(), pointer(&mask));
            wait(client, milliseconds(timeout), |ready| ready == 0, attempt)
        }
        None => {
            if timeout < 0 {
                hand_over();
            }
            real(timeout, mask)
        }
    }
}

/// Replaces the C library's `select`. The timeout is not modified.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the replaced function requires that `timeout` is null or points to a value during the call.
    let time = unsafe { timeout.as_ref() };
    let waits = |time: &&timeval| time.tv_sec >= 0 && time.tv_usec >= 0 && (time.tv_sec, time.tv_usec) != (0, 0);
    match program().zip(time.filter(waits)) {
        Some((client, time)) => {
            // As in the kernel, microseconds beyond a million count as seconds.
            let (seconds, us) = (time.tv_sec.saturating_add(time.tv_usec / 1_000_000), time.tv_usec % 1_000_000);
            let time = timespec { tv_sec: seconds, tv_nsec: us * 1000 };
            // SAFETY: `select` requires that each set is null or has `count` bits; a null mask is allowed.
            unsafe { select_sets(client, span(&time), count, [read, write, except], null()) }
        }
        None => {
            if time.is_none() {
                hand_over();
            }
            // SAFETY: `select` gets the arguments that its replacement got, under the same contract.
            unsafe { real::select()(count, read, write, except, timeout) }
        }
    }
}

/// Replaces the C library's `pselect`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the replaced function requires that `timeout` is null or points to a value during the call.
    let time = unsafe { timeout.as_ref() };
    match program().zip(time.filter(|time| is_length(time))) {
        // SAFETY: `pselect` requires that each set is null or has `count` bits, and that `mask` is null or a set.
        Some((client, time)) => unsafe { select_sets(client, span(time), count, [read, write, except], mask) },
        None => {
            if time.is_none() {
                hand_over();
            }
            // SAFETY: `pselect` gets the arguments that its replacement got, under the same contract.
            unsafe { real::pselect()(count, read, write, except, timeout, mask) }
        }
    }
}

/// # Safety
/// Each set is null or has `count` bits, rounded up to whole words; `mask` is null or points to a set.
unsafe fn select_sets(
    client: &Client,
    span: Span,
    count: c_int,
    sets: [*mut fd_set; 3],
    mask: *const sigset_t,
) -> c_int {
    let bytes = real::set_bytes(count);
    // SAFETY: a set that is not null has at least `count` bits, rounded up to whole words: `bytes` bytes.
    let wanted = sets.map(|set| unsafe {
        if set.is_null() { Vec::new() } else { std::slice::from_raw_parts(set.cast::<u8>(), bytes).to_vec() }
    });
    // SAFETY: `mask` is null or a set, as the contract of this function says.
    let mask = unsafe { without_signal(mask) };
    let attempt = |host: Host| {
        for (set, wanted) in sets.iter().zip(&wanted).filter(|(set, _)| !set.is_null()) {
            // SAFETY: the set has `bytes` bytes, as has `wanted`, a copy of it. A call replaces requested by ready
            // descriptors.
            unsafe { std::ptr::copy_nonoverlapping(wanted.as_ptr(), set.cast::<u8>(), bytes) };
        }
        // SAFETY: the sets are null or have `count` bits; the timeout and the mask live during the call.
        host.with_timespec(|timeout| unsafe {
            real::pselect()(count, sets[0], sets[1], sets[2], timeout, pointer(&mask))
        })
    };
    wait(client, span, |ready| ready == 0, attempt)
}

// Semaphores

/// Replaces the C library's `sem_trywait`. CPython up to 3.12 first tries its locks with this function. Success may
/// depend on the scheduling of threads, but the reported launches must not, so they are reported in any case.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sem_trywait(semaphore: *mut sem_t) -> c_int {
    hand_over();
    // SAFETY: `sem_trywait` gets the arguments that its replacement got, under the same contract.
    unsafe { real::sem_trywait()(semaphore) }
}

/// Replaces the C library's `sem_wait`, in which CPython's locks without a timeout wait.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sem_wait(semaphore: *mut sem_t) -> c_int {
    hand_over();
    // SAFETY: `sem_wait` gets the arguments that its replacement got, under the same contract.
    unsafe { real::sem_wait()(semaphore) }
}

/// Replaces the C library's `sem_timedwait`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sem_timedwait(semaphore: *mut sem_t, until: *const timespec) -> c_int {
    // SAFETY: `sem_timedwait` has the contract of `sem_clockwait` for the clock of dates.
    unsafe { sem_wait_until(semaphore, libc::CLOCK_REALTIME, until) }
}

/// Replaces the C library's `sem_clockwait`, in which CPython's locks with a timeout wait, unless they are shared
/// between processes.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sem_clockwait(semaphore: *mut sem_t, clock: clockid_t, until: *const timespec) -> c_int {
    // SAFETY: the arguments meet the contract of `sem_clockwait`.
    unsafe { sem_wait_until(semaphore, clock, until) }
}

/// # Safety
/// The contract is that of `sem_clockwait`.
unsafe fn sem_wait_until(semaphore: *mut sem_t, clock: clockid_t, until: *const timespec) -> c_int {
    // SAFETY: `until` is null or points to a `timespec`, as `sem_clockwait` requires.
    let (known, time) = (rank().zip(kind(clock)), unsafe { until.as_ref() }.filter(|time| is_moment(time)));
    let Some(((client, kind), time)) = known.zip(time) else {
        // SAFETY: the arguments meet the contract of `sem_clockwait`.
        return unsafe { real::sem_clockwait()(semaphore, clock, until) };
    };
    let then = moment(time, kind);
    let on_host = || {
        let until = on_host(client, then, libc::CLOCK_REALTIME);
        // SAFETY: `semaphore` is initialised, as `sem_clockwait` requires, and `until` lives during the call.
        unsafe { real::sem_timedwait()(semaphore, &until) }
    };
    if program().is_none() {
        return on_host();
    }
    let attempt = |host| match host {
        // SAFETY: `semaphore` is initialised, as `sem_clockwait` requires.
        Host::Not => unsafe { real::sem_trywait()(semaphore) },
        // SAFETY: `semaphore` is initialised, as `sem_clockwait` requires.
        Host::Forever => unsafe { real::sem_wait()(semaphore) },
    };
    let is_over = |result| result != 0 && matches!(errno(), libc::EAGAIN | libc::ETIMEDOUT);
    let result = wait(client, Span::Until(then), is_over, attempt);
    if is_over(result) {
        set_errno(libc::ETIMEDOUT);
    }
    result
}

// Condition variables

/// Replaces the C library's `pthread_cond_timedwait`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_timedwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    until: *const timespec,
) -> c_int {
    // SAFETY: condition and mutex meet the contract; callers of the closure pass the time of the replacement, or one
    // that lives during the call.
    let real = |until: *const timespec| unsafe { real::pthread_cond_timedwait()(condition, mutex, until) };
    // SAFETY: the replaced function requires that `until` is null or points to a value during the call.
    let time = unsafe { until.as_ref() }.filter(|time| is_moment(time));
    let Some((client, time)) = rank().zip(time) else { return real(until) };
    // The clock of a condition variable cannot be read, but no run is as long as the years since 1970.
    let (kind, clock) = match time.tv_sec {
        crate::EPOCH_S.. => (Kind::Date, libc::CLOCK_REALTIME),
        _ => (Kind::Elapsed, libc::CLOCK_MONOTONIC),
    };
    let on_host = |then| real(&on_host(client, then, clock));
    // SAFETY: `pthread_cond_timedwait` requires of condition and mutex what `pthread_cond_wait` requires.
    unsafe { condition_wait(client, condition, mutex, moment(time, kind), on_host) }
}

/// Replaces the C library's `pthread_cond_clockwait`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_clockwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    // SAFETY: condition and mutex meet the contract; callers of the closure pass the time of the replacement, or one
    // that lives during the call.
    let real = |until: *const timespec| unsafe { real::pthread_cond_clockwait()(condition, mutex, clock, until) };
    // SAFETY: the replaced function requires that `until` is null or points to a value during the call.
    let time = unsafe { until.as_ref() }.filter(|time| is_moment(time));
    let known = rank().zip(kind(clock)).zip(time);
    let Some(((client, kind), time)) = known else { return real(until) };
    let on_host = |then| real(&on_host(client, then, clock));
    // SAFETY: `pthread_cond_clockwait` requires of condition and mutex what `pthread_cond_wait` requires.
    unsafe { condition_wait(client, condition, mutex, moment(time, kind), on_host) }
}

/// # Safety
/// `condition` and `mutex` meet the contract of `pthread_cond_wait`: both are initialised, and this thread holds the
/// mutex.
unsafe fn condition_wait(
    client: &Client,
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    then: SimTime,
    on_host: impl FnOnce(SimTime) -> c_int,
) -> c_int {
    let is_lock = interpreter::get().is_some_and(|interpreter| interpreter.contains(condition as usize));
    if is_lock || program().is_none() {
        return on_host(then);
    }
    if then > client.last_now() && !client.has_threads() {
        // The process has no other thread that could signal the condition.
        answered(client.sleep(Span::Until(then)));
    }
    if then <= client.last_now() || !client.has_threads() {
        // The timeout has passed, but the mutex must be released and reacquired, as other threads expect.
        return on_host(then);
    }
    // SAFETY: condition and mutex meet the contract of `pthread_cond_wait`, as this function requires.
    let asleep = || unsafe { real::pthread_cond_wait()(condition, mutex) };
    match answered(pause(client, Span::Until(then), Kick::Broadcast(condition as usize), asleep)) {
        Some((result, false)) => result,
        _ => libc::ETIMEDOUT,
    }
}

// Signals and futexes

/// Replaces the C library's `sigtimedwait`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigtimedwait(set: *const sigset_t, info: *mut siginfo_t, timeout: *const timespec) -> c_int {
    // SAFETY: callers of the closure pass a set and a timeout that are null or live during the call, and `info` is the
    // argument of the replacement.
    let real = |set, timeout| unsafe { real::sigtimedwait()(set, info, timeout) };
    // SAFETY: the replaced function requires that `timeout` is null or points to a value during the call.
    match program().zip(unsafe { timeout.as_ref() }.filter(|time| is_length(time))) {
        Some((client, time)) => {
            // SAFETY: `sigtimedwait` requires that `set` points to a set during the call.
            let wanted = unsafe { without_signal(set) };
            let is_over = |result| result < 0 && errno() == libc::EAGAIN;
            let attempt = |host: Host| host.with_timespec(|timeout| real(pointer(&wanted), timeout));
            wait(client, span(time), is_over, attempt)
        }
        None => real(set, timeout),
    }
}

/// Replaces the C library's `syscall`. `std::future` waits with it, as the C library has no function for futexes.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    // SAFETY: the system call gets the arguments of the replacement. The fourth is replaced only for a futex wait, by
    // null or by a time that lives during the call.
    let real = |fourth| unsafe { real::syscall()(number, first, second, third, fourth, fifth, sixth) };
    // SAFETY: for a futex wait, the argument is a time, or null.
    let time =
        futex_waits(number, second).and_then(|kind| Some((kind, unsafe { (fourth as *const timespec).as_ref() }?)));
    let time = time.filter(|(_, time)| is_length(time));
    let Some((client, (kind, time))) = program().zip(time) else {
        settle_for_call(number, second);
        return real(fourth);
    };
    let span = kind.map_or_else(|| span(time), |kind| Span::Until(moment(time, kind)));
    let over = timespec { tv_sec: 0, tv_nsec: 0 };
    let attempt = |host| match host {
        Host::Forever => real(0) as c_int,
        // A time long ago, or a zero duration: both have passed.
        _ => real(&raw const over as c_long) as c_int,
    };
    c_long::from(wait(client, span, |result| result < 0 && errno() == libc::ETIMEDOUT, attempt))
}

/// Whether the call is a futex wait with a timeout; for an absolute timeout, its clock.
fn futex_waits(number: c_long, operation: c_long) -> Option<Option<Kind>> {
    let by_date = operation as c_int & libc::FUTEX_CLOCK_REALTIME != 0;
    match operation as c_int & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) {
        _ if number != libc::SYS_futex => None,
        libc::FUTEX_WAIT => Some(None),
        libc::FUTEX_WAIT_BITSET => Some(Some(if by_date { Kind::Date } else { Kind::Elapsed })),
        _ => None,
    }
}

// Masks and timeouts

/// A signal mask without the signal that ends pauses; `None` for null.
///
/// # Safety
/// `mask` is null or points to a set.
unsafe fn without_signal(mask: *const sigset_t) -> Option<sigset_t> {
    // SAFETY: `mask` is null or points to a set.
    let mut mask = *unsafe { mask.as_ref() }?;
    // SAFETY: `mask` is a copy of a set, on this function's stack.
    unsafe { libc::sigdelset(&mut mask, signal()) };
    Some(mask)
}

fn pointer(mask: &Option<sigset_t>) -> *const sigset_t {
    mask.as_ref().map_or(null(), |mask| mask)
}

fn milliseconds(timeout: c_int) -> Span {
    Span::For(SimDuration::from_us(1000 * u64::from(timeout.unsigned_abs())))
}

impl Host {
    fn milliseconds(self) -> c_int {
        match self {
            Host::Not => 0,
            Host::Forever => -1,
        }
    }

    fn with_timespec<T>(self, call: impl FnOnce(*const timespec) -> T) -> T {
        match self {
            Host::Not => call(&timespec { tv_sec: 0, tv_nsec: 0 }),
            Host::Forever => call(null()),
        }
    }
}
