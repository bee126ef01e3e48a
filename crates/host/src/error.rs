//! Owns the ways in which a command ends: errors with their hints, and the exit codes of the contract.

use crate::interrupt::Interrupt;
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;

/// How a command ended, as the shell sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All is well.
    Ok = 0,
    /// The program failed.
    ProgramFailed = 1,
    /// Wrong usage or configuration; also where the host lacks what was asked for: memory, room on the disk.
    Usage = 2,
    /// Deadlock or mismatch.
    Halted = 3,
    /// A bug of ours.
    Bug = 70,
    /// The terminal has gone (SIGHUP).
    HungUp = 129,
    /// Ctrl-C.
    Interrupted = 130,
    /// SIGTERM.
    Terminated = 143,
}

impl From<Interrupt> for Exit {
    fn from(interrupt: Interrupt) -> Exit {
        match interrupt {
            Interrupt::Int => Exit::Interrupted,
            Interrupt::Term => Exit::Terminated,
            Interrupt::Hup => Exit::HungUp,
        }
    }
}

/// A command that cannot do what it was asked for. The message ends with a hint where there is one to give.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Wrong usage or configuration.
    #[error("{0}")]
    Usage(String),
    /// A mistake in what the user wrote, shown with its place.
    #[error("{0}")]
    Diagnostic(String),
    /// A file or folder cannot be used.
    #[error("cannot {action} {}: {source}\nhint: {hint}", path.display())]
    File {
        /// `write`, `create`.
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// The results could not be written to their end: usually a full disk.
    #[error(transparent)]
    Write(#[from] uniference_formats::sink::WriteError),
    /// A program record cannot be read.
    #[error(transparent)]
    Record(#[from] uniference_formats::record::RecordError),
    /// The host has not enough of something.
    #[error("{what}\nhint: {hint}")]
    Host {
        /// What is missing.
        what: String,
        /// What to do.
        hint: String,
    },
    /// The process that ranks are forked from did not start.
    #[error("{what}\nhint: {hint}")]
    Zygote {
        /// What it said.
        what: String,
        /// What to do.
        hint: String,
    },
    /// It has ended in the middle of a run.
    #[error("the process that ranks are forked from {how}\nhint: {hint}")]
    ZygoteLost {
        /// "was killed by SIGKILL".
        how: String,
        /// What to do.
        hint: &'static str,
    },
    /// A call of the operating system that should not fail.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// What to do where the host has not enough of something, by the error's code.
const SHORTAGES: [(Errno, &str); 4] = [
    (Errno::MFILE, "raise the limit of open descriptors: ulimit -Hn"),
    (Errno::NFILE, "the whole machine is out of open files: close some, or raise fs.file-max"),
    (Errno::NOMEM, "use fewer ranks, or free memory"),
    (Errno::NOSPC, "make room on the disk, or choose another folder with --out"),
];

impl HostError {
    /// Makes the error of a system call that should not fail, but where the host has not enough of something.
    pub fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> HostError {
        move |source| {
            let source = source.into();
            let is = |code: &Errno| source.raw_os_error() == Some(code.raw_os_error());
            match SHORTAGES.iter().find(|(code, _)| is(code)) {
                Some((_, hint)) => HostError::Host { what: format!("{doing}: {source}"), hint: (*hint).to_owned() },
                None => HostError::System { doing, source },
            }
        }
    }

    /// The exit code that goes with it.
    pub fn exit(&self) -> Exit {
        match self {
            HostError::System { .. } => Exit::Bug,
            HostError::ZygoteLost { .. } => Exit::ProgramFailed,
            _ => Exit::Usage,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_lacks_is_no_bug_of_ours() {
        let error = HostError::system::<Errno>("making a pipe")(Errno::MFILE);
        assert_eq!(error.exit(), Exit::Usage);
        assert!(error.to_string().starts_with("making a pipe: ") && error.to_string().contains("\nhint: "), "{error}");
        assert_eq!(HostError::system::<Errno>("making a pipe")(Errno::INVAL).exit(), Exit::Bug);
    }
}
