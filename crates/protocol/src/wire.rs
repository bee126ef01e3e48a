//! Owns the transport of frames between a task of a rank and the driver: a [`Wire`], which on one machine is a pair of
//! Unix sockets ([`UnixWire`]).
//!
//! Frames contain `messages`. Client and driver are written against the trait: a rank on another machine needs only its
//! own wire and its own [`Tensors`](crate::memory::Tensors).

use crate::descriptors::lift;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Byte stream in both directions between a task of a rank and the driver. Its descriptor can be polled for input.
pub trait Wire: AsFd + Send + Sync {
    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// If the other side is gone, or this side was closed.
    fn write(&self, bytes: &[u8]) -> io::Result<()>;

    /// Reads the available bytes; if there are none and `wait` is set, waits for the next ones. Returns the number of
    /// bytes; 0: the other side is closed. Descriptors that come with the bytes are added to `along`.
    ///
    /// # Errors
    /// `EMFILE` if this process cannot receive a descriptor that came with the bytes: it is lost. `EAGAIN` if there are
    /// no bytes and `wait` is not set.
    fn read(&self, buffer: &mut [u8], along: &mut VecDeque<OwnedFd>, wait: bool) -> io::Result<usize>;

    /// Opens a wire for another task of the rank. The driver learns of it by [`Wire::announce`], and opens its end by
    /// [`Wire::accept`].
    ///
    /// # Errors
    /// If no further wire can be opened.
    fn open(&self) -> io::Result<(Arc<dyn Wire>, Opening)>;

    /// Writes `frame`, which announces an opening to the driver.
    ///
    /// # Errors
    /// The errors of [`Wire::write`].
    fn announce(&self, frame: &[u8], opening: Opening) -> io::Result<()>;

    /// The driver's end of a wire that a rank has opened; `along` holds the descriptors that came with its frame.
    ///
    /// # Errors
    /// If no wire with this ticket was opened.
    fn accept(&self, ticket: u64, along: &mut VecDeque<OwnedFd>) -> io::Result<Arc<dyn Wire>>;
}

/// Announcement of a wire that a rank has opened.
#[derive(Debug, Default)]
pub struct Opening {
    /// Number of the wire, if the driver needs it.
    pub ticket: u64,
    /// The driver's end, if a descriptor can be passed to the driver.
    pub end: Option<OwnedFd>,
}

/// Socket between processes of one machine. Its descriptor number is out of the program's reach.
#[derive(Debug)]
pub struct UnixWire(UnixStream);

impl UnixWire {
    /// A rank's end.
    pub fn of_rank(socket: UnixStream) -> UnixWire {
        UnixWire(lift(socket.into()).into())
    }

    /// The driver's end.
    pub fn of_driver(socket: UnixStream) -> UnixWire {
        UnixWire(socket)
    }
}

impl AsFd for UnixWire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Wire for UnixWire {
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        write(&self.0, bytes)
    }

    fn read(&self, buffer: &mut [u8], along: &mut VecDeque<OwnedFd>, wait: bool) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags)
        })?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                along.extend(received);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(rustix::io::Errno::MFILE.into());
        }
        Ok(received.bytes)
    }

    fn open(&self) -> io::Result<(Arc<dyn Wire>, Opening)> {
        let (ours, theirs) = UnixStream::pair()?;
        let ours = UnixWire::of_rank(ours);
        Ok((Arc::new(ours), Opening { ticket: 0, end: Some(lift(theirs.into())) }))
    }

    fn announce(&self, frame: &[u8], opening: Opening) -> io::Result<()> {
        let end = opening.end.as_ref().map(AsFd::as_fd);
        write_with_fds(&self.0, frame, end.as_slice())
    }

    fn accept(&self, _: u64, along: &mut VecDeque<OwnedFd>) -> io::Result<Arc<dyn Wire>> {
        let end = along.pop_front().ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(UnixWire(end.into())))
    }
}

/// Writes all of `bytes`, with the descriptors `fds` attached to the first byte.
///
/// # Errors
/// If the other side is gone, or this side was closed.
pub fn write_with_fds(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)), "{} descriptors at once", fds.len());
    }
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)
    })?;
    write(socket, &bytes[sent..])
}

fn write(socket: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        sent += rustix::io::retry_on_intr(|| rustix::net::send(&socket, &bytes[sent..], SendFlags::NOSIGNAL))?;
    }
    Ok(())
}
