//! Owns the driver's ends of one rank: wires of its tasks, pipes of its outputs, and the state of its process.
//!
//! The driver handles the messages.

use super::output::Pipe;
use crate::error::HostError;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use uniference_protocol::frame::FrameBuffer;
use uniference_protocol::wire::Wire;
use uniference_sim::program::Outcome;

/// The driver's connections to one rank.
pub(super) struct RankConnections {
    pub(super) tasks: Vec<TaskConnection>,
    /// Whether the rank has sent its hello message.
    pub(super) greeted: bool,
    pub(super) pipes: [Option<Pipe>; 2],
    pub(super) process: Process,
    /// Whether the process was killed because the cluster file specifies a crash.
    pub(super) crashed: bool,
}

/// The state of a rank's process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Process {
    Coming,
    Alive { pid: i32 },
    Ended { pid: i32, status: i32 },
}

impl Process {
    /// The id of a process that lives.
    pub(super) fn pid(self) -> Option<i32> {
        if let Process::Alive { pid } = self { Some(pid) } else { None }
    }

    /// The status of a process that has ended.
    pub(super) fn status(self) -> Option<i32> {
        if let Process::Ended { status, .. } = self { Some(status) } else { None }
    }
}

/// The driver's connection to one task.
#[derive(Default)]
pub(super) struct TaskConnection {
    /// `None` once the wire is closed.
    pub(super) wire: Option<Arc<dyn Wire>>,
    pub(super) frames: FrameBuffer,
    /// Whether the rank was running when its socket was closed.
    pub(super) ran_to_its_end: bool,
    /// Whether the wire was closed other than by the end of the process.
    pub(super) severed: bool,
    pub(super) exited: Option<Outcome>,
}

impl RankConnections {
    /// The connections of a rank without a process.
    pub(super) fn absent() -> RankConnections {
        let main = TaskConnection { exited: Some(Outcome::Ok), ..TaskConnection::default() };
        let process = Process::Ended { pid: 0, status: 0 };
        RankConnections { tasks: vec![main], greeted: true, pipes: [None, None], process, crashed: false }
    }
}

impl TaskConnection {
    pub(super) fn new(wire: Arc<dyn Wire>) -> TaskConnection {
        TaskConnection { wire: Some(wire), ..TaskConnection::default() }
    }

    pub(super) fn readable(&self) -> bool {
        let Some(wire) = &self.wire else { return false };
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(wire.as_fd(), rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Default::default())).is_ok_and(|count| count > 0)
    }
}

/// Makes a pipe whose read end does not block.
pub(super) fn pipe() -> Result<(File, File), HostError> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(HostError::system("creating a rank's pipe"))?;
    rustix::io::ioctl_fionbio(&read, true).map_err(HostError::system("making a pipe non-blocking"))?;
    Ok((File::from(read), File::from(write)))
}
