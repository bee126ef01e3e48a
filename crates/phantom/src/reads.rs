//! Owns the check of reads from device memory by the host within an operator: the operator's kernels computed nothing,
//! so the data is missing.

use crate::errors::{NOT_SUPPORTED, Status};
use crate::exports::exports;
use std::cell::Cell;
use std::ffi::c_int;

/// No read is forbidden: the program itself reads.
const FREE: c_int = 0;
/// A forbidden read was attempted.
const ASKED: c_int = 2;

thread_local! {
    /// Any value other than `FREE` forbids reads.
    static READS: Cell<c_int> = const { Cell::new(FREE) };
}

exports! {
    /// Sets whether this thread may read from devices and returns the former value, for `cpp/cpu_reference.h`.
    fn uniference_phantom_reads(now: c_int) -> c_int { READS.replace(now) }
}

/// Checks a copy from a device to the host.
pub(crate) fn check() -> Result<(), Status> {
    if READS.get() == FREE {
        return Ok(());
    }
    READS.set(ASKED);
    Err(NOT_SUPPORTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_not_be_read_is_refused_and_remembered() {
        let refused = 1;
        assert_eq!(check(), Ok(()));
        assert_eq!(uniference_phantom_reads(refused), FREE);
        assert_eq!(check(), Err(NOT_SUPPORTED));
        assert_eq!(uniference_phantom_reads(FREE), ASKED);
        assert_eq!(check(), Ok(()));
    }
}
