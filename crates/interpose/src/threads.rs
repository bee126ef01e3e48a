//! Owns the start of threads: the detection of several threads in a rank, and the tree of thread starts.

use crate::pauses::start_watch;
use crate::real::Start;
use crate::stack::library_of;
use crate::{hand_over, rank, real, wakes};
use libc::{c_int, c_void, pthread_attr_t, pthread_t};

/// The start of a new thread.
struct Beginning {
    path: Vec<u32>,
    /// Whether the thread belongs to a library's pool.
    pool: bool,
    start: Start,
    argument: *mut c_void,
}

/// Replaces the C library's `pthread_create`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    // Threads that a library starts during its import are included: such a thread may read clocks like any other.
    let Some(client) = rank() else {
        // SAFETY: `pthread_create` gets the arguments that its replacement got, under the same contract.
        return unsafe { real::pthread_create()(thread, attributes, start, argument) };
    };
    if client.begins_threads() {
        start_watch();
    }
    let is_pythons = is_pythons(start);
    if is_pythons {
        wakes::settle_without_lock()
    } else {
        wakes::settle()
    }
    let pool = client.has_cores() && !is_pythons;
    let beginning = Box::into_raw(Box::new(Beginning { path: client.starts_thread(), pool, start, argument }));
    // SAFETY: `begin` gets the box that it frees; thread and attributes meet the contract of `pthread_create`.
    let result = unsafe { real::pthread_create()(thread, attributes, begin, beginning.cast()) };
    if result != 0 {
        // SAFETY: no thread was started that could free the box.
        drop(unsafe { Box::from_raw(beginning) });
    }
    result
}

/// Runs a new thread. Its frame holds nothing that must be dropped while the program runs, because an early end of the
/// thread unwinds through it.
extern "C-unwind" fn begin(beginning: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` allocated the argument for this thread alone.
    let Beginning { path, pool, start, argument } = *unsafe { Box::from_raw(beginning.cast::<Beginning>()) };
    if let Some(client) = rank() {
        crate::family::keep_books(client);
        client.begin_thread(path);
        if pool {
            client.joins_pool();
        }
    }
    let result = start(argument);
    hand_over();
    wakes::settle();
    result
}

/// Whether the interpreter starts the thread, which then alternates with others under the interpreter's lock: the
/// thread's start function is in the same library as the interpreter's function for thread starts.
fn is_pythons(start: Start) -> bool {
    // SAFETY: the name is a C string literal, and `dlsym` only reads it.
    let known = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"PyThread_start_new_thread".as_ptr()) };
    let base = |address: usize| library_of(address).map(|library| library.base);
    base(start as usize) == base(known as usize)
}
