//! Owns the outcomes of a command: errors with their hints, and the documented exit codes.

use rustix::io::Errno;
use std::io;
use std::path::PathBuf;
use uniference_lowering::compute::CostingError;

/// The exit code of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Ok = 0,
    /// The program failed.
    ProgramFailed = 1,
    /// Wrong usage or configuration, or a shortage of memory or disk space on this machine.
    Usage = 2,
    /// Deadlock or mismatch.
    Halted = 3,
    /// A bug in Uniference.
    Bug = 70,
    /// The terminal was closed (SIGHUP).
    HungUp = 129,
    /// Ctrl-C (SIGINT).
    Interrupted = 130,
    /// `kill` (SIGTERM).
    Terminated = 143,
}

/// Compute that cannot be costed is a matter of the user's files and options.
impl From<CostingError> for HostError {
    fn from(error: CostingError) -> HostError {
        HostError::Usage(error.to_string())
    }
}

/// An error that ends a command. The message ends with a hint if there is one.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Wrong usage or configuration.
    #[error("{0}")]
    Usage(String),
    /// An error in the user's input, shown with its position.
    #[error("{0}")]
    Diagnostic(Box<uniference_formats::diagnostic::Diagnostic>),
    /// A file or folder cannot be used.
    #[error("cannot {action} {}: {source}\nhint: {hint}", path.display())]
    File {
        /// The verb of the message: `write`, `create`.
        action: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
        /// The remedy.
        hint: &'static str,
    },
    /// Standard output could not be written to its end.
    #[error("cannot write standard output: {source}\nhint: {}", output_hint(source))]
    Output {
        /// The operating system's error.
        source: io::Error,
    },
    /// The results could not be written to their end: usually a full disk.
    #[error(transparent)]
    Write(#[from] uniference_formats::sink::WriteError),
    /// A program record cannot be read.
    #[error(transparent)]
    Record(#[from] uniference_formats::record::RecordError),
    /// This machine lacks a resource.
    #[error("{what}\nhint: {hint}")]
    Host {
        /// The missing resource.
        what: String,
        /// The remedy.
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
        /// The zygote's error.
        what: String,
        /// The remedy.
        hint: String,
    },
    /// The process that ranks are forked from has ended unexpectedly.
    #[error("the process that ranks are forked from {how}\nhint: {hint}")]
    ZygoteLost {
        /// "was killed by SIGKILL".
        how: String,
        /// The remedy.
        hint: &'static str,
    },
    /// A rank with another version of this program, or on an incompatible machine.
    #[error("rank {rank} cannot join the run: {why}")]
    Disagreement {
        /// The rank that cannot join.
        rank: u32,
        /// The difference.
        why: uniference_protocol::hello::Disagreement,
    },
    /// A system call that should not fail has failed.
    #[error("{doing}: {source}")]
    System {
        /// The action that failed.
        doing: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

/// The hint for a file size limit that is too low; the limit also applies to the arena that ranks share.
pub const FILE_SIZE: &str = "raise the file size limit: ulimit -f unlimited";

/// Hints for shortages on this machine, by error code.
const SHORTAGES: [(Errno, &str); 6] = [
    (Errno::MFILE, "raise the limit of open descriptors: ulimit -Hn"),
    (Errno::NFILE, "the machine has too many open files; close some, or raise fs.file-max"),
    (Errno::NOMEM, "use fewer ranks, free memory, or raise the memory limit (ulimit -v)"),
    (Errno::AGAIN, "raise the limit of processes and threads (ulimit -u), or stop some"),
    (Errno::FBIG, FILE_SIZE),
    (Errno::NOSPC, "free disk space, or choose another folder with --out"),
];

impl HostError {
    /// Makes the error of a system call that should not fail, except for a shortage on this machine.
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

    /// The exit code of the error.
    pub fn exit(&self) -> Exit {
        match self {
            HostError::System { .. } => Exit::Bug,
            HostError::ZygoteLost { .. } | HostError::MissingValues(_) => Exit::ProgramFailed,
            _ => Exit::Usage,
        }
    }
}

/// The hint for a results file that cannot be written.
pub fn file_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free disk space, or choose another folder with --out"
        }
        io::ErrorKind::FileTooLarge => FILE_SIZE,
        _ => "choose a writable folder with --out",
    }
}

/// The hint for standard output that cannot be written.
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
