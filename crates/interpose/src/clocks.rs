//! Owns the functions that read a clock. Each read costs what the engine says.

use crate::{Kind, PS_PER_NS, answered, interpreter, kind, program, rank, real, shown};
use libc::{c_int, c_void, clockid_t, time_t, timespec, timeval};
use std::arch::naked_asm;
use std::cell::Cell;
use uniference_client::Client;
use uniference_sim::time::SimTime;

/// In a row, by one thread.
const MOST_FREE_LOOKS: u32 = 1000;

thread_local! {
    static FREE_LOOKS: Cell<u32> = const { Cell::new(0) };
}

/// As in the C library. It goes on to `read`, which is also told who calls.
///
/// # Safety
/// As in the C library.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov rdx, [rsp]", "mov rcx, rsp", "jmp {read}", read = sym read);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x2, x30", "mov x3, sp", "b {read}", read = sym read);
}

/// As in the C library. It goes on to `read_date`, which is also told who calls.
///
/// # Safety
/// As in the C library.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(time: *mut timeval, zone: *mut c_void) -> c_int {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov rdx, [rsp]", "jmp {read}", read = sym read_date);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x2, x30", "b {read}", read = sym read_date);
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn time(result: *mut time_t) -> time_t {
    let Some(now) = now(Kind::Date, (0, 0)) else {
        // SAFETY: what the caller gave.
        return unsafe { real::time()(result) };
    };
    if !result.is_null() {
        // SAFETY: the caller's, and not null.
        unsafe { *result = now.tv_sec };
    }
    now.tv_sec
}

/// Tells the date for the caller at address `from`.
unsafe extern "C" fn read_date(time: *mut timeval, zone: *mut c_void, from: usize) -> c_int {
    // oneDNN asks at each of its operators, for its log, in which nobody looks at it.
    let of_torch = || interpreter::get().is_some_and(|interpreter| interpreter.is_of_torch(from)) && is_free();
    let now = match rank() {
        Some(client) if asks_for_memory(client, from) || of_torch() => {
            Some(shown(client.last_now().as_ps() / PS_PER_NS, Kind::Date))
        }
        _ => now(Kind::Date, (0, 0)),
    };
    let Some(now) = now else {
        // SAFETY: what the caller gave.
        return unsafe { real::gettimeofday()(time, zone) };
    };
    if !time.is_null() {
        // SAFETY: the caller's, and not null.
        unsafe { *time = timeval { tv_sec: now.tv_sec, tv_usec: now.tv_nsec / 1000 } };
    }
    0
}

/// Reads a clock for the caller at address `from`; the stack pointer was `stack` when it called.
unsafe extern "C" fn read(clock: clockid_t, time: *mut timespec, from: usize, stack: usize) -> c_int {
    match kind(clock).and_then(|kind| now(kind, (from, stack))) {
        Some(now) if !time.is_null() => {
            // SAFETY: the caller's, and not null.
            unsafe { *time = now };
            0
        }
        // SAFETY: what the caller gave.
        _ => unsafe { real::clock_gettime()(clock, time) },
    }
}

/// What a clock of that kind shows, if this process is a rank.
fn now(kind: Kind, (from, stack): (usize, usize)) -> Option<timespec> {
    let client = rank()?;
    if asks_for_memory(client, from) {
        // In place of what was computed, too: that only the engine knows.
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
    // The other threads run up to their own calls meanwhile, rather than wait for the lock while time passes.
    let ps = match interpreter.filter(|_| client.has_threads()) {
        Some(interpreter) => interpreter.without_lock(ask)?,
        None => ask()?,
    };
    Some(shown(ps / PS_PER_NS, kind))
}

/// Whether it is an allocator that calls, from address `from`: what it asks the clock for are its own books, and it must not be called meanwhile, as it
/// would be by whoever asks the engine.
fn asks_for_memory(client: &Client, from: usize) -> bool {
    interpreter::get().is_some_and(|interpreter| interpreter.is_of_allocator(from)) || client.makes_books()
}

/// Whether a look of torch's own, or of its compiler's, costs nothing. Not if it was a loop that waits for the clock.
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

/// Whether others find our functions.
pub(crate) fn is_preloaded() -> bool {
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"clock_gettime".as_ptr()) } as usize;
    found == clock_gettime as *const () as usize
}
