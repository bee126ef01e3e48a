//! Owns Ctrl-C: a descriptor that becomes readable when the user wants the run to end.

use crate::error::HostError;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// While it lives, the signals that end a program only make its descriptor readable.
pub struct Interrupts {
    readable: UnixStream,
    registered: Vec<SigId>,
}

impl Interrupts {
    /// Takes the signals over.
    pub fn new() -> Result<Interrupts, HostError> {
        let (readable, written) = UnixStream::pair().map_err(HostError::system("making a socket pair"))?;
        let register = |signal| signal_hook::low_level::pipe::register(signal, written.try_clone()?);
        let registered: Result<Vec<SigId>, _> = [SIGINT, SIGTERM, SIGHUP].into_iter().map(register).collect();
        let registered = registered.map_err(HostError::system("taking signals over"))?;
        Ok(Interrupts { readable, registered })
    }
}

impl AsFd for Interrupts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}
