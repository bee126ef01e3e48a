//! Owns this process's standard streams: all three are open, and lost standard output is an error.
//!
//! The caller decides what to write, and what to do if output is lost.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::{self, Write};
use std::mem::forget;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether standard output was closed when this process began.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Opens `/dev/null` in place of closed standard streams (`2>&-`), whose descriptor the next opened file would get.
#[allow(unsafe_code)]
pub(crate) fn fill_in() {
    for number in 0..3 {
        // SAFETY: the descriptor is only checked for existence.
        let stream = unsafe { BorrowedFd::borrow_raw(number) };
        if rustix::io::fcntl_getfd(stream) != Err(Errno::BADF) {
            continue;
        }
        CLOSED.fetch_or(number == 1, Relaxed);
        // The closed descriptor is the lowest free one, so `open` returns it.
        match rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty()) {
            Ok(file) if file.as_raw_fd() == number => forget(file),
            _ => {}
        }
    }
}

/// Standard output without a buffer, so that each error belongs to its own call, and a closed stream is an error too.
pub(crate) struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if CLOSED.load(Relaxed) {
            return Err(Errno::BADF.into());
        }
        let stream = io::stdout();
        loop {
            match rustix::io::write(&stream, bytes) {
                Err(Errno::INTR) => {}
                // The parent process has made the stream non-blocking.
                Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&stream, PollFlags::OUT)], None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                },
                other => return Ok(other?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
