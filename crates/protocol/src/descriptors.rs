//! Owns where a rank's own descriptors lie: above those that programs open, and close by number (`os.closerange(3, 100)`).
//!
//! Who uses them is the rank's client's business.

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// Above what programs have, where there is nothing higher.
const ABOVE: RawFd = 900;

/// The kernel's table of descriptors is as long as the highest number: up to here that costs nothing.
const HIGHEST: u64 = 4096;

/// The limit may be raised by one thread at a time.
static RAISED: Mutex<()> = Mutex::new(());

/// The same file under a number which the program's limit keeps out of its reach; where the limit cannot be raised under a high
/// one, or as it is.
pub fn lift(fd: OwnedFd) -> OwnedFd {
    let above_limit = || {
        let _one = RAISED.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = getrlimit(Resource::Nofile);
        let number = beyond(limit)?;
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).ok()?;
        let lifted = fcntl_dupfd_cloexec(&fd, number);
        // It was so before.
        let _ = setrlimit(Resource::Nofile, limit);
        lifted.ok()
    };
    above_limit().or_else(|| fcntl_dupfd_cloexec(&fd, ABOVE).ok()).unwrap_or(fd)
}

/// The first number that a program with this limit cannot have and we can.
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
