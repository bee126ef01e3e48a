//! Owns where a rank's own descriptors lie: above those that programs open, and close by number (`os.closerange(3, 100)`).
//!
//! Who uses them is `client`'s business.

use rustix::io::fcntl_dupfd_cloexec;
use std::os::fd::{OwnedFd, RawFd};

/// Below the usual limit of 1024, above what programs have.
const ABOVE: RawFd = 900;

/// The same file under a high number, or as it is where the limit of descriptors is too low for that.
pub(crate) fn lift(fd: OwnedFd) -> OwnedFd {
    fcntl_dupfd_cloexec(&fd, ABOVE).unwrap_or(fd)
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
}
