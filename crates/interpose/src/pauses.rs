//! Owns the pauses of threads in system calls, the end of pauses at the right virtual time, and the threads of this
//! library that end them.
//!
//! `waits` knows the conditions that threads wait for.

use crate::real::{self, Start};
use libc::{c_int, c_void, pthread_attr_t, pthread_cond_t, pthread_t, sigset_t};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use uniference_client::thread_barrier::Kick;
use uniference_client::{Client, ClientError};
use uniference_protocol::messages::Span;

/// Calls [`Client::pause`], after a watch that ends the pause was started.
pub(crate) fn pause<T>(
    client: &Client,
    span: Span,
    kick: Kick,
    asleep: impl FnOnce() -> T,
) -> Result<(T, bool), ClientError> {
    if client.lacks_watch() {
        start_watch();
    }
    client.pause(span, kick, asleep)
}

/// The signal that ends pauses: one of the real-time signals, which programs rarely use.
pub(crate) fn signal() -> c_int {
    libc::SIGRTMAX() - 2
}

/// Installs an empty handler, without the restart of interrupted calls.
pub(crate) fn prepare_signal() {
    extern "C" fn nothing(_: c_int) {}
    // SAFETY: an empty handler may run at any time.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(c_int) as usize;
        libc::sigaction(signal(), &action, null_mut());
    }
}

/// Ends the sleep of a thread.
pub(crate) fn kick(how: Kick) {
    match how {
        // SAFETY: the arguments are numbers; if the thread has ended, nothing happens.
        Kick::Signal(thread) => unsafe {
            libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal());
        },
        // SAFETY: the waiting thread keeps the condition variable alive until it has reported the end of its wait, for
        // which it needs the lock that the caller of `kick` holds.
        Kick::Broadcast(condition) => unsafe {
            real::pthread_cond_broadcast()(condition as *mut pthread_cond_t);
        },
    }
}

pub(crate) fn this_thread() -> c_int {
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { libc::gettid() }
}

/// Unblocks the signal in the calling thread; returns its previous mask.
pub(crate) fn unblock() -> sigset_t {
    let (mut only, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: each set is filled by the call that it is passed to.
    unsafe {
        libc::sigemptyset(only.as_mut_ptr());
        libc::sigaddset(only.as_mut_ptr(), signal());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, only.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

pub(crate) fn restore(mask: &sigset_t) {
    // SAFETY: a set that the C library has made.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, null_mut()) };
}

/// Starts the thread that ends sleeps.
pub(crate) fn start_watch() {
    start_own(watch, null_mut());
}

/// Starts a thread of this library, which the program does not know. It blocks all signals, which are for the program's
/// threads.
pub(crate) fn start_own(work: Start, argument: *mut c_void) {
    /// Stack size in bytes, enough for the little work of such a thread.
    const STACK: usize = 512 << 10;
    let mut all = MaybeUninit::<sigset_t>::uninit();
    let mut before = MaybeUninit::<sigset_t>::uninit();
    let mut thread = MaybeUninit::<pthread_t>::uninit();
    let mut attributes = MaybeUninit::<pthread_attr_t>::uninit();
    // SAFETY: each structure is filled by the call that it is passed to; the caller guarantees that the argument is
    // valid.
    unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let result = real::pthread_create()(thread.as_mut_ptr(), attributes.as_ptr(), work, argument);
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        assert!(result == 0, "a thread that watches over others could not be started: error {result}");
        libc::pthread_detach(thread.assume_init());
    }
}

extern "C-unwind" fn watch(_: *mut c_void) -> *mut c_void {
    let client = crate::rank().expect("a rank has started it");
    client.watch(&kick)
}
