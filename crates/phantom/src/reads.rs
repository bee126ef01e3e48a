//! Owns what the host reads of devices inside of an operator: what its kernels should have written there is not there, as kernels compute nothing.

use crate::errors::{NOT_SUPPORTED, Status};
use crate::exports::exports;
use std::cell::Cell;
use std::ffi::c_int;

/// Reads are what the program asks for.
const FREE: c_int = 0;
/// Something was asked for that may not be read.
const ASKED: c_int = 2;

thread_local! {
    /// With any other number nothing may be read.
    static READS: Cell<c_int> = const { Cell::new(FREE) };
}

exports! {
    /// Whether this thread may read from devices: for `cpp/mirror.h`, which is told what was before.
    fn uniference_phantom_reads(now: c_int) -> c_int { READS.replace(now) }
}

/// What is read now is copied to the host.
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
