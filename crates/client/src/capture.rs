//! Owns the seam to whatever writes down the operators that a rank's program runs.
//!
//! What is written is `uniference-formats`' business (`operators`); here it is passed on as it is.

/// Writes down operators, on every thread for itself.
pub trait Capture: Send + Sync {
    /// Appends what the calling thread's operators have been since it was asked last to `operators`, and what is new of the names that all threads
    /// of the rank use to `dictionary`. Returns how many nanoseconds of the thread's processor time the capture itself has taken meanwhile.
    fn take(&self, dictionary: &mut Vec<u8>, operators: &mut Vec<u8>) -> u64;

    /// Which log the calling thread's operators stand in, by a number, and whether any do that were not taken. A thread that works for another one, which
    /// waits for it, writes to the log of that one.
    fn log(&self) -> (u64, bool);

    /// The calling thread begins or ends work of ours, whose operators are not the program's.
    fn inside(&self, inside: bool);

    /// The calling thread has just started, and may run operators.
    fn thread_started(&self);

    /// Whether the calling thread compiles the program, which a run that finds all compiled does not.
    fn is_compiling(&self) -> bool;
}
