//! Owns the ways in which a command ends: errors with their hints, and the exit codes of the contract.

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
    /// Ctrl-C (SIGINT).
    Interrupted = 130,
    /// `kill` (SIGTERM).
    Terminated = 143,
}

/// A command that cannot do what it was asked for. The message ends with a hint where there is one to give.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Wrong usage or configuration.
    #[error("{0}")]
    Usage(String),
    /// A mistake in what the user wrote, shown with its place.
    #[error("{0}")]
    Diagnostic(Box<uniference_formats::diagnostic::Diagnostic>),
    /// A file or folder cannot be used.
    #[error("cannot {action} {}: {source}\nhint: {hint}", path.display())]
    File {
        /// The verb of the message: `write`, `create`.
        action: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// Standard output could not be written to its end.
    #[error("cannot write standard output: {source}\nhint: {}", output_hint(source))]
    Output {
        /// What the operating system says.
        source: io::Error,
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
    /// A rank has run an operator or kernel whose values are not computed, as the text says, with `--strict-values`.
    #[error(
        "{0} (--strict-values)\nhint: remove --strict-values, or change the line: what such an operator writes reads as zero"
    )]
    MissingValues(String),
    /// The process that ranks are forked from did not start.
    #[error("{what}\nhint: {hint}")]
    Zygote {
        /// What it said.
        what: String,
        /// What to do.
        hint: String,
    },
    /// Somebody has ended it.
    #[error("the process that ranks are forked from {how}\nhint: {hint}")]
    ZygoteLost {
        /// "was killed by SIGKILL".
        how: String,
        /// What to do.
        hint: &'static str,
    },
    /// A rank is not of this program's version, or not of its machine's kind.
    #[error("rank {rank} cannot join the run: {why}")]
    Disagreement {
        /// The rank that cannot join.
        rank: u32,
        /// What differs.
        why: uniference_protocol::hello::Disagreement,
    },
    /// A call of the operating system that should not fail.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What the operating system says.
        source: io::Error,
    },
}

/// What to do where a file may not be as large as it must be; the arena that ranks share is one, too.
pub const FILE_SIZE: &str = "raise the file size limit: ulimit -f unlimited";

/// What to do where the host has not enough of something, by the error's code.
const SHORTAGES: [(Errno, &str); 6] = [
    (Errno::MFILE, "raise the limit of open descriptors: ulimit -Hn"),
    (Errno::NFILE, "the machine has too many open files; close some, or raise fs.file-max"),
    (Errno::NOMEM, "use fewer ranks, free memory, or raise the memory limit (ulimit -v)"),
    (Errno::AGAIN, "raise the limit of processes and threads (ulimit -u), or stop some"),
    (Errno::FBIG, FILE_SIZE),
    (Errno::NOSPC, "free disk space, or choose another folder with --out"),
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
            HostError::ZygoteLost { .. } | HostError::MissingValues(_) => Exit::ProgramFailed,
            _ => Exit::Usage,
        }
    }
}

/// What to do when a file of results cannot be written.
pub fn file_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free disk space, or choose another folder with --out"
        }
        io::ErrorKind::FileTooLarge => FILE_SIZE,
        _ => "choose a writable folder with --out",
    }
}

/// What to do when standard output takes no more.
fn output_hint(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT) => "free disk space at the destination",
        Some(Errno::FBIG) => FILE_SIZE,
        Some(Errno::BADF) => "standard output is closed; redirect it to a file or to /dev/null",
        _ => "redirect it to a writable file or to /dev/null",
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
