//! Owns queues from a receiving thread to a polling thread: the queue's descriptor is readable while the queue has
//! items.

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A flag as an eventfd: the descriptor is readable while the flag is set.
struct Flag(OwnedFd);

impl Flag {
    fn new() -> io::Result<Flag> {
        Ok(Flag(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    fn set(&self) {
        // Fails only if the counter is at its maximum, in which case the flag is set.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8][..]);
    }
}

/// Items that have not been read.
pub(super) struct Inbox<T> {
    queue: Mutex<VecDeque<T>>,
    flag: Flag,
}

impl<T> Inbox<T> {
    pub(super) fn new() -> io::Result<Inbox<T>> {
        Ok(Inbox { queue: Mutex::default(), flag: Flag::new()? })
    }

    pub(super) fn push(&self, item: T) {
        let mut queue = lock(&self.queue);
        queue.push_back(item);
        self.flag.set();
    }

    pub(super) fn take_all(&self) -> Vec<T> {
        let mut queue = lock(&self.queue);
        self.flag.clear();
        queue.drain(..).collect()
    }
}

impl<T> AsFd for Inbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.flag.0.as_fd()
    }
}

/// Bytes that are read like a socket.
pub(super) struct Mailbox {
    held: Mutex<Held>,
    flag: Flag,
}

#[derive(Default)]
struct Held {
    bytes: VecDeque<u8>,
    /// Whether the stream was closed because the process ends; `None`: not closed.
    closed: Option<bool>,
}

impl Mailbox {
    pub(super) fn new() -> io::Result<Mailbox> {
        Ok(Mailbox { held: Mutex::default(), flag: Flag::new()? })
    }

    pub(super) fn push(&self, bytes: &[u8]) {
        let mut held = lock(&self.held);
        held.bytes.extend(bytes);
        self.flag.set();
    }

    pub(super) fn close(&self, exiting: bool) {
        let mut held = lock(&self.held);
        held.closed = held.closed.or(Some(exiting));
        self.flag.set();
    }

    /// Whether the task's connection was closed because its process ends.
    pub(super) fn is_exiting(&self) -> bool {
        lock(&self.held).closed == Some(true)
    }

    /// Reads as many bytes as are available and fit; 0: the mailbox is closed.
    ///
    /// # Errors
    /// `EAGAIN` if the mailbox is empty and `wait` is false.
    pub(super) fn read(&self, buffer: &mut [u8], wait: bool) -> io::Result<usize> {
        loop {
            {
                let mut held = lock(&self.held);
                let count = buffer.len().min(held.bytes.len());
                for (to, from) in buffer.iter_mut().zip(held.bytes.drain(..count)) {
                    *to = from;
                }
                if held.bytes.is_empty() && held.closed.is_none() {
                    self.flag.clear();
                }
                if count > 0 || held.closed.is_some() {
                    return Ok(count);
                }
            }
            if !wait {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            poll(&mut [PollFd::new(&self.flag.0, PollFlags::IN)], None)?;
        }
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.flag.0.as_fd()
    }
}

/// Locks a mutex whose holders only move items, so that a poisoned lock is still valid.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(fd: impl AsFd) -> bool {
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Default::default())).unwrap() > 0
    }

    #[test]
    fn a_mailbox_is_readable_while_it_holds_something_or_is_closed() {
        let (mailbox, mut buffer) = (Mailbox::new().unwrap(), [0; 2]);
        assert!(!is_readable(&mailbox));
        assert_eq!(mailbox.read(&mut buffer, false).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        mailbox.push(&[1, 2, 3]);
        assert_eq!((mailbox.read(&mut buffer, false).unwrap(), buffer), (2, [1, 2]));
        assert!(is_readable(&mailbox));
        assert_eq!((mailbox.read(&mut buffer, true).unwrap(), buffer[0]), (1, 3));
        assert!(!is_readable(&mailbox));
        mailbox.close(true);
        mailbox.close(false);
        assert!(is_readable(&mailbox) && mailbox.is_exiting());
        assert_eq!(mailbox.read(&mut buffer, false).unwrap(), 0);
    }

    #[test]
    fn an_inbox_is_readable_until_all_is_taken() {
        let inbox = Inbox::new().unwrap();
        assert!(!is_readable(&inbox));
        inbox.push('a');
        inbox.push('b');
        assert!(is_readable(&inbox));
        assert_eq!(inbox.take_all(), ['a', 'b']);
        assert!(!is_readable(&inbox));
    }
}
