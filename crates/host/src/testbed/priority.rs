//! Owns priorities over other work on this machine: the threads of the testbed run in real time, if permitted.
//!
//! A packet that is delivered a millisecond late looks like a slower network, so the emulator has priority over the
//! ranks, and both over all other work. Threads without real-time priority (compilers, other tests) still get the
//! twentieth of CPU time that Linux reserves for them.

// There is no safe wrapper for a thread's scheduling policy.
#![allow(unsafe_code)]

/// Priority of the thread that carries packets.
pub(super) const EMULATOR: i32 = 40;
/// Priority of the processes on the hosts.
pub(super) const RANKS: i32 = 20;

/// Gives the calling thread, and the processes that it starts from now on, a real-time priority of 1 to 99
/// (`SCHED_RR`). Returns whether this is permitted.
pub(super) fn real_time(priority: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters outlive the call; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) == 0 }
}
