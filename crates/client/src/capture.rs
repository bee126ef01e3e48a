//! Owns the interface to the capture of operators that a rank's program runs.
//!
//! `uniference-formats` defines the captured bytes (`operators`); this crate passes them on unchanged.

/// Captures operators, separately on each thread.
pub trait Capture: Send + Sync {
    /// Appends the calling thread's operators since the previous call to `operators`, and new definitions of ids that
    /// all threads of the rank use to `dictionary`. Returns the thread's CPU time of the capture itself since the
    /// previous call, in nanoseconds.
    fn take(&self, dictionary: &mut Vec<u8>, operators: &mut Vec<u8>) -> u64;

    /// Number of the log that contains the calling thread's operators, and whether the log has operators that no call
    /// has returned. A thread that works for another thread, which waits for it, uses that thread's log.
    fn log(&self) -> (u64, bool);

    /// Notes that the calling thread begins or ends Uniference's own work, whose operators are not captured.
    fn inside(&self, inside: bool);

    /// Notes that the calling thread has just started, and may run operators.
    fn thread_started(&self);

    /// Whether the calling thread is compiling the program (`torch.compile`), which depends on the state of compile
    /// caches.
    fn is_compiling(&self) -> bool;
}
