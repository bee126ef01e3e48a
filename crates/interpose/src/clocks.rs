//! Owns the functions that read a clock. The engine defines the cost of each read.

use crate::{Kind, PS_PER_NS, answered, interpreter, kind, program, rank, real, shown};
use libc::{c_int, c_void, clockid_t, time_t, timespec, timeval};
use std::arch::naked_asm;
use std::cell::Cell;
use uniference_client::Client;
use uniference_sim::time::SimTime;

/// Maximum number of consecutive clock reads by one thread that cost no virtual time.
const MOST_FREE_LOOKS: u32 = 1000;

thread_local! {
    static FREE_LOOKS: Cell<u32> = const { Cell::new(0) };
}

/// Replaces the C library's `clock_gettime`. The call is forwarded to `read`, together with the caller's address.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov rdx, [rsp]", "mov rcx, rsp", "jmp {read}", read = sym read);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x2, x30", "mov x3, sp", "b {read}", read = sym read);
}

/// Replaces the C library's `gettimeofday`. The call is forwarded to `read_date`, together with the caller's address.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(time: *mut timeval, zone: *mut c_void) -> c_int {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov rdx, [rsp]", "jmp {read}", read = sym read_date);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x2, x30", "b {read}", read = sym read_date);
}

/// Replaces the C library's `time`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn time(result: *mut time_t) -> time_t {
    let Some(now) = now(Kind::Date, (0, 0)) else {
        // SAFETY: `time` gets the arguments that its replacement got, under the same contract.
        return unsafe { real::time()(result) };
    };
    if !result.is_null() {
        // SAFETY: `time` requires that `result` is null, which was excluded, or points to a `time_t`.
        unsafe { *result = now.tv_sec };
    }
    now.tv_sec
}

/// Returns the date to the caller at address `from`.
unsafe extern "C" fn read_date(time: *mut timeval, zone: *mut c_void, from: usize) -> c_int {
    // oneDNN reads the date at each of its operators for its log, which is not used.
    let of_torch = || interpreter::get().is_some_and(|interpreter| interpreter.is_of_torch(from)) && is_free();
    let now = match rank() {
        Some(client) if asks_for_memory(client, from) || of_torch() => {
            Some(shown(client.last_now().as_ps() / PS_PER_NS, Kind::Date))
        }
        _ => now(Kind::Date, (0, 0)),
    };
    let Some(now) = now else {
        // SAFETY: `gettimeofday` gets the arguments that its replacement got, under the same contract.
        return unsafe { real::gettimeofday()(time, zone) };
    };
    if !time.is_null() {
        // SAFETY: `gettimeofday` requires that `time` is null, which was excluded, or points to a `timeval`.
        unsafe { *time = timeval { tv_sec: now.tv_sec, tv_usec: now.tv_nsec / 1000 } };
    }
    0
}

/// Reads a clock for the caller at address `from`, whose stack pointer at the call was `stack`.
unsafe extern "C" fn read(clock: clockid_t, time: *mut timespec, from: usize, stack: usize) -> c_int {
    match kind(clock).and_then(|kind| now(kind, (from, stack))) {
        Some(now) if !time.is_null() => {
            // SAFETY: `clock_gettime` requires that `time` points to a `timespec`; null was excluded.
            unsafe { *time = now };
            0
        }
        // SAFETY: `clock_gettime` gets the arguments that its replacement got, under the same contract.
        _ => unsafe { real::clock_gettime()(clock, time) },
    }
}

/// The time on a clock of this kind, if this process belongs to a rank.
fn now(kind: Kind, (from, stack): (usize, usize)) -> Option<timespec> {
    let client = rank()?;
    if asks_for_memory(client, from) {
        // The elapsed time also replaces the compute time of the thread or process, which only the engine knows.
        return Some(shown(client.last_now().as_ps() / PS_PER_NS, kind));
    }
    let interpreter = interpreter::get().filter(|interpreter| interpreter.contains(from));
    let locks = interpreter.is_some_and(|interpreter| interpreter.locks(from, stack));
    let torch_looks = || interpreter::get().is_some_and(|interpreter| interpreter.torch_looks(from, stack));
    let free = || (torch_looks() || client.is_compiling()) && is_free();
    if kind != Kind::Computed && (locks || program().is_none() || free()) {
        return Some(shown(client.last_now().as_ps() / PS_PER_NS, kind));
    }
    program()?;
    if kind != Kind::Computed
        && let Some(now) = client.now_after_yield()
    {
        return Some(shown(now.as_ps() / PS_PER_NS, kind));
    }
    let ask = || ask(client, kind);
    // The interpreter's lock is released, so that other threads reach their own calls and do not wait for the lock
    // while virtual time passes.
    let ps = match interpreter.filter(|_| client.has_threads()) {
        Some(interpreter) => interpreter.without_lock(ask)?,
        None => ask()?,
    };
    Some(shown(ps / PS_PER_NS, kind))
}

/// Whether the caller at address `from` is a memory allocator. An allocator reads the clock for its own bookkeeping,
/// and must not be called again during the read, but a request to the engine allocates memory.
fn asks_for_memory(client: &Client, from: usize) -> bool {
    interpreter::get().is_some_and(|interpreter| interpreter.is_of_allocator(from)) || client.makes_books()
}

/// Whether a clock read of torch itself, or of its compiler, costs no virtual time. Reads in a loop that waits for the
/// clock do cost time.
fn is_free() -> bool {
    let looks = FREE_LOOKS.get() + 1;
    FREE_LOOKS.set(looks % MOST_FREE_LOOKS);
    looks < MOST_FREE_LOOKS
}

fn ask(client: &Client, kind: Kind) -> Option<u64> {
    FREE_LOOKS.set(0);
    match kind {
        Kind::Computed => answered(client.now()).map(|(_, computed)| computed.as_ps()),
        _ => answered(client.look()).map(SimTime::as_ps),
    }
}

/// Whether the functions of this library replace the C library's in other libraries.
pub(crate) fn is_preloaded() -> bool {
    // SAFETY: the name is a C string literal, and `dlsym` only reads it.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"clock_gettime".as_ptr()) } as usize;
    found == clock_gettime as *const () as usize
}
