//! Owns who goes first where others use the machine too: the threads of the testbed in real time, where that is permitted.
//!
//! A packet that is handed over a millisecond late is a slower network, so the emulator comes before the ranks, and both before everything
//! else. What waits for the processor without real time (compilers, other tests) still gets the twentieth part that Linux keeps for it.

// There is no safe wrapper for a thread's scheduling policy.
#![allow(unsafe_code)]

/// Of the thread that carries packets.
pub(super) const EMULATOR: i32 = 40;
/// Of the processes on the hosts.
pub(super) const RANKS: i32 = 20;

/// Gives the calling thread, and what it starts from now on, a real-time priority of 1 to 99 (`SCHED_RR`). Is it permitted?
pub(super) fn real_time(priority: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters outlive the call; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) == 0 }
}
