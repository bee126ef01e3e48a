//! Owns the detection of relay threads that are blocked on their wires. There may be hundreds of these threads, so each
//! one publishes its own state.

use crate::quiescence::ThreadId;
use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use uniference_protocol::wire::UnixWire;

/// The wire of a relay thread.
pub(crate) struct Listener {
    pub(super) wire: UnixWire,
    /// Odd while the thread waits for the wire.
    turns: AtomicU32,
}

/// Threads that wait for their wires, each with the value of `turns` at the time of the observation.
pub(super) struct Listening<'a>(Vec<(ThreadId, &'a Listener, u32)>);

impl Listener {
    pub(super) fn new(wire: UnixWire) -> Listener {
        Listener { wire, turns: AtomicU32::new(0) }
    }

    /// Waits until the wire is readable or closed, or until a signal arrives, which is an error.
    pub(super) fn wait(&self) -> io::Result<()> {
        self.turns.fetch_add(1, SeqCst);
        let heard = rustix::event::poll(&mut [PollFd::new(&self.wire, PollFlags::IN)], None);
        self.turns.fetch_add(1, SeqCst);
        Ok(heard.map(drop)?)
    }
}

impl<'a> Listening<'a> {
    pub(super) fn of(serving: &'a BTreeMap<ThreadId, Option<Arc<Listener>>>) -> Listening<'a> {
        let waits = |(thread, listener): (&ThreadId, &'a Option<Arc<Listener>>)| {
            let listener = listener.as_deref()?;
            let turns = listener.turns.load(SeqCst);
            (turns % 2 == 1).then_some((*thread, listener, turns))
        };
        Listening(serving.iter().filter_map(waits).collect())
    }

    pub(super) fn threads(&self) -> impl Iterator<Item = ThreadId> {
        self.0.iter().map(|(thread, ..)| *thread)
    }

    /// Whether all observed threads have waited since the observation and have nothing to read. A thread whose message
    /// has arrived but that has not read it yet does not count as waiting.
    pub(super) fn still_waits(&self) -> bool {
        let mut fds: Vec<PollFd<'_>> =
            self.0.iter().map(|(_, listener, _)| PollFd::new(&listener.wire, PollFlags::IN)).collect();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_silent = fds.is_empty() || rustix::event::poll(&mut fds, Some(&now)) == Ok(0);
        is_silent && self.0.iter().all(|(_, listener, turns)| listener.turns.load(SeqCst) == *turns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::thread;
    use uniference_protocol::wire::Wire;

    #[test]
    fn a_thread_that_waits_for_its_wire_is_told_from_one_that_has_something_to_read() {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let (theirs, listener) = (UnixWire::of_rank(theirs), Arc::new(Listener::new(UnixWire::of_rank(ours))));
        let serving = BTreeMap::from([(1, Some(Arc::clone(&listener))), (2, None)]);
        assert_eq!(Listening::of(&serving).threads().count(), 0, "it does not wait yet");
        let waits = thread::spawn(move || listener.wait().unwrap());
        while Listening::of(&serving).threads().count() == 0 {
            thread::yield_now();
        }
        let listening = Listening::of(&serving);
        assert_eq!(listening.threads().collect::<Vec<_>>(), [1]);
        assert!(listening.still_waits());
        theirs.write(&[0]).unwrap();
        assert!(!listening.still_waits(), "there is something to read, or it has gone on");
        waits.join().unwrap();
        assert!(!listening.still_waits() && Listening::of(&serving).threads().count() == 0);
    }
}
