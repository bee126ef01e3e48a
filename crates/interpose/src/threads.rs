//! Owns the start of threads: that the rank has several, and who has started whom.

use crate::pauses::start_watch;
use crate::real::Start;
use crate::stack::library_of;
use crate::{hand_over, rank, real, wakes};
use libc::{c_int, c_void, pthread_attr_t, pthread_t};

/// What a new thread is to do.
struct Beginning {
    path: Vec<u32>,
    /// It belongs to a library's pool.
    pool: bool,
    start: Start,
    argument: *mut c_void,
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    // Also one that a library starts while we import it: it may look at clocks as any other.
    let Some(client) = rank() else {
        // SAFETY: what the caller gave.
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
    // SAFETY: what the caller gave; `begin` takes the box.
    let result = unsafe { real::pthread_create()(thread, attributes, begin, beginning.cast()) };
    if result != 0 {
        // SAFETY: there is no thread that has taken it.
        drop(unsafe { Box::from_raw(beginning) });
    }
    result
}

/// Nothing that must be dropped is on its frame while the program runs: what ends a thread early goes right through it.
extern "C-unwind" fn begin(beginning: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` made it for this thread alone.
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

/// Whether the interpreter starts the thread, which then takes turns at its lock with the others: the thread's first function lies in the
/// same library as the interpreter's own function for that.
fn is_pythons(start: Start) -> bool {
    // SAFETY: the name ends with a zero.
    let known = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"PyThread_start_new_thread".as_ptr()) };
    let base = |address: usize| library_of(address).map(|library| library.base);
    base(start as usize) == base(known as usize)
}
