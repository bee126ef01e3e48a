//! Owns the placement of a rank's own file descriptors: above the numbers that programs open, and close by number
//! (`os.closerange(3, 100)`).
//!
//! The rank's client decides which descriptors are placed.

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// Least number of a placed descriptor if the limit cannot be raised: above the programs' own descriptors.
const ABOVE: RawFd = 900;

/// Highest soft limit beyond which descriptors are placed. The kernel's descriptor table is as long as the highest
/// number; up to this number its length costs nothing.
const HIGHEST: u64 = 4096;

/// Lock of the thread that raises the limit of descriptors.
static RAISED: Mutex<()> = Mutex::new(());

/// Moves a file to a descriptor number above the program's soft limit, out of the program's reach. If the limit cannot
/// be raised, the number is at least 900, or stays.
pub fn lift(fd: OwnedFd) -> OwnedFd {
    let above_limit = || {
        let _one = RAISED.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = getrlimit(Resource::Nofile);
        let number = beyond(limit)?;
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).ok()?;
        let lifted = fcntl_dupfd_cloexec(&fd, number);
        // The previous limit can always be restored, because it was valid before.
        let _ = setrlimit(Resource::Nofile, limit);
        lifted.ok()
    };
    above_limit().or_else(|| fcntl_dupfd_cloexec(&fd, ABOVE).ok()).unwrap_or(fd)
}

/// The first number above this soft limit that the hard limit allows.
fn beyond(limit: Rlimit) -> Option<RawFd> {
    let current = limit.current.filter(|current| *current <= HIGHEST)?;
    limit.maximum.is_none_or(|maximum| maximum > current).then_some(current as RawFd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn descriptors_lie_above_those_of_programs() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let (read, other) = (lift(read), lift(write));
        assert!(read.as_raw_fd() >= ABOVE && other.as_raw_fd() > read.as_raw_fd());
        rustix::io::write(&other, b"x").unwrap();
        assert_eq!(rustix::io::read(&read, &mut [0; 1][..]), Ok(1));
    }

    #[test]
    fn they_lie_beyond_the_limit_if_it_can_be_raised() {
        let beyond = |current, maximum| beyond(Rlimit { current, maximum });
        assert_eq!(beyond(Some(1024), Some(4096)), Some(1024));
        assert_eq!(beyond(Some(64), None), Some(64));
        assert_eq!(beyond(Some(24), Some(24)), None);
        assert_eq!(beyond(Some(1 << 20), None), None);
    }
}
