//! Owns the descriptors that a live run polls: signals, the zygote, ranks' threads and their output.

use super::output::Stream;
use crate::error::HostError;
use rustix::event::epoll;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;
use uniference_sim::ids::{RankId, TaskId};

/// The origin of an epoll event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Signal,
    Zygote,
    /// A worker, by its index in the list of workers.
    RemoteWorker(usize),
    Task(RankId, TaskId),
    Pipe(RankId, Stream),
}

/// The polled descriptors.
pub(super) struct Sources {
    epoll: OwnedFd,
    table: Vec<Source>,
}

impl Sources {
    pub(super) fn new() -> Result<Sources, HostError> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(HostError::system("creating an epoll instance"))?;
        Ok(Sources { epoll, table: Vec::new() })
    }

    pub(super) fn add(&mut self, fd: BorrowedFd<'_>, source: Source) -> Result<(), HostError> {
        let data = epoll::EventData::new_u64(self.table.len() as u64);
        self.table.push(source);
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)
            .map_err(HostError::system("adding a rank to the epoll instance"))
    }

    pub(super) fn remove(&self, fd: BorrowedFd<'_>) -> Result<(), HostError> {
        epoll::delete(&self.epoll, fd).map_err(HostError::system("removing a rank from the epoll instance"))
    }

    /// Sources that become ready within `timeout`. Signals come first, even if a rank became ready earlier: the
    /// recipient of a Ctrl-C depends on the state of the debugged rank at the time of the keystroke.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Result<Vec<Source>, HostError> {
        let mut events = Vec::with_capacity(64);
        let timeout = timeout.map(|span| span.try_into().expect("seconds fit"));
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(HostError::system("waiting for ranks")(error)),
        }
        let mut ready: Vec<Source> =
            events.iter().map(|event: &epoll::Event| self.table[event.data.u64() as usize]).collect();
        ready.sort_by_key(|source| *source != Source::Signal);
        Ok(ready)
    }
}

#[cfg(test)]
mod tests {
    use super::{Source, Sources};
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;
    use uniference_sim::ids::{RankId, TaskId};

    #[test]
    fn a_signal_is_heard_before_a_rank_that_was_ready_earlier() {
        let mut sources = Sources::new().unwrap();
        let listened = [Source::Task(RankId(1), TaskId(0)), Source::Signal, Source::Zygote];
        let mut ends = Vec::new();
        for source in listened {
            let (read, mut written) = UnixStream::pair().unwrap();
            sources.add(read.as_fd(), source).unwrap();
            written.write_all(&[1]).unwrap();
            ends.push((read, written));
        }
        let heard = sources.wait(Some(Duration::ZERO)).unwrap();
        assert_eq!(heard, [Source::Signal, Source::Task(RankId(1), TaskId(0)), Source::Zygote]);
    }
}
