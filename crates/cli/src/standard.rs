//! Owns this process's standard streams: that all three are there, and that nothing which does not reach standard output goes unnoticed.
//!
//! What is written, and what becomes of a command whose output is lost, is the caller's business.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::{self, Write};
use std::mem::forget;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Standard output was closed when this process began.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Opens `/dev/null` in the place of standard streams that are closed (`2>&-`): otherwise the next file that is opened would be one of them.
#[allow(unsafe_code)]
pub(crate) fn fill_in() {
    for number in 0..3 {
        // SAFETY: it is only asked whether there is such a descriptor.
        let stream = unsafe { BorrowedFd::borrow_raw(number) };
        if rustix::io::fcntl_getfd(stream) != Err(Errno::BADF) {
            continue;
        }
        CLOSED.fetch_or(number == 1, Relaxed);
        // The lowest number that is free is this one.
        match rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty()) {
            Ok(file) if file.as_raw_fd() == number => forget(file),
            _ => {}
        }
    }
}

/// Standard output. Unlike the library's it is not buffered, so that each error is that of its own call, and a closed one is an error too.
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
                // Who has given us the stream has made it non-blocking.
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
