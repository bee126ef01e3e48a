//! Owns the errors of the calling program, with their messages.

use std::io;

/// An error of the calling program.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The rank's part of the arena is full.
    #[error(
        "rank {rank} cannot stage {bytes} more bytes: its part of the shared arena is full\nhint: wait for outstanding operations before issuing more"
    )]
    ArenaFull {
        /// The rank whose arena is full.
        rank: u32,
        /// Number of bytes requested.
        bytes: u64,
    },
    /// A forked child of the rank's process has called a function of the client.
    #[error(
        "a forked child process of rank {rank} uses a simulated GPU or called torch.distributed\nhint: start it with the method spawn in place of fork (multiprocessing.get_context(\"spawn\")), and communicate only from the process of the rank"
    )]
    Forked {
        /// The rank whose process forked.
        rank: u32,
    },
    /// The program has closed descriptors that it has not opened.
    #[error(
        "rank {rank} has closed the descriptors that connect it to Uniference\nhint: close only descriptors that the program has opened, not a whole range as os.closerange() does"
    )]
    Severed {
        /// The rank that lost its connection.
        rank: u32,
    },
    /// A thread could not be announced to the driver.
    #[error(
        "rank {rank} cannot register another thread: {source}\nhint: raise the limit of open descriptors (ulimit -n), or use fewer threads at a time"
    )]
    Thread {
        /// The rank that could not start a thread.
        rank: u32,
        /// The operating system's error.
        source: io::Error,
    },
    /// The rank's processes have used up the available process numbers.
    #[error(
        "more than 127 processes that rank {rank} has started run operators or name ranges\nhint: start fewer such processes, or let one do more"
    )]
    Processes {
        /// The rank whose processes are too many.
        rank: u32,
    },
    /// The arguments of a call are invalid for any group.
    #[error("{what}\nhint: compare the call's ranks, and the sizes of its tensors and lists, with the group's size")]
    Arguments {
        /// The mismatch.
        what: String,
    },
    /// The hello messages with the driver failed.
    #[error("the rank cannot join the run: {0}")]
    Adopt(#[from] io::Error),
}

impl ClientError {
    /// Ends the process with the error's message, in functions that cannot return an error.
    pub fn end(self) -> ! {
        eprintln!("{self}");
        std::process::abort()
    }
}
