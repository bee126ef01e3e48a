//! Owns the signals that end a run: a descriptor that becomes readable when one has come, and which one it was.

use crate::error::HostError;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// What has asked for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// Ctrl-C.
    Int,
    /// What `kill` sends.
    Term,
    /// The terminal has gone.
    Hup,
}

/// While it lives, the signals that end a program only make its descriptor readable.
pub struct Interrupts {
    readable: UnixStream,
    latest: Arc<AtomicUsize>,
    registered: Vec<SigId>,
}

impl Interrupts {
    /// Takes the signals over.
    pub fn new() -> Result<Interrupts, HostError> {
        let (readable, written) = UnixStream::pair().map_err(HostError::system("making a socket pair"))?;
        readable.set_nonblocking(true).map_err(HostError::system("making a socket non-blocking"))?;
        let latest = Arc::new(AtomicUsize::new(0));
        // First the number, then the wake-up.
        let number = |signal| signal_hook::flag::register_usize(signal, latest.clone(), signal as usize);
        let wake = |signal| signal_hook::low_level::pipe::register(signal, written.try_clone()?);
        let both = |signal| Ok([number(signal)?, wake(signal)?]);
        let registered: std::io::Result<Vec<_>> = [SIGINT, SIGTERM, SIGHUP].into_iter().map(both).collect();
        let registered = registered.map_err(HostError::system("taking signals over"))?.into_flattened();
        Ok(Interrupts { readable, latest, registered })
    }

    /// The latest signal that has not been taken yet.
    pub fn take(&self) -> Option<Interrupt> {
        let mut drain = [0; 64];
        while (&self.readable).read(&mut drain).is_ok_and(|count| count > 0) {}
        match self.latest.swap(0, SeqCst) as i32 {
            0 => None,
            SIGTERM => Some(Interrupt::Term),
            SIGHUP => Some(Interrupt::Hup),
            _ => Some(Interrupt::Int),
        }
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
